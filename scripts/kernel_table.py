"""What every CUDA kernel takes of a GPU, by the assembler of each architecture, without a GPU.

    python scripts/kernel_table.py [ENVIRONMENT ...] [--jobs N] [--write]

compiles the kernels of the environments that warprun ships, stepwise and in fused rollouts, and those of the learners (extra `ptx`). Numba
makes them as it does on a card: libnvvm compiles a kernel for the card's architecture, and nvJitLink optimises it once more when it links
it. What comes out of that as PTX goes through `ptxas` of the same version, which says what the kernel takes, and whose code has the
instructions that nvJitLink makes; `nvdisasm` lists them.

`--write` keeps all in docs/benchmarks/kernels.json, with what is kept of environments that are not named. scripts/reproduce.py has the
page. Exit code 1: a kernel is beyond a limit (`problems`)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache, partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from common import DOCS, require, settings, stop, table

if TYPE_CHECKING:
    from cuda_launches import Launch

KEPT, PAGE = DOCS / "benchmarks" / "kernels.json", DOCS / "benchmarks" / "kernels.md"
N_ENVS = 10_000
"""Environments of the launches in the table."""
PACKAGES = ("numba-cuda", "nvidia-nvvm", "nvidia-nvjitlink", "nvidia-cuda-nvcc", "nvidia-cuda-nvdisasm")
"""Those that make the code of a kernel."""
FLOAT64 = (
    "step",
    "reduce",
    "squares",
    "pick",
    "part_moments",
    "adapt",
    "advantages",
    "spread",
    "returns",
    "merge",
    "moments",
    "gather",
    "draw",
    "put",
    "sum_stored",
)
"""Kernels of learners that compute in float64: corrections of Adam, sums over many rows, learning rates, and priorities."""
LOSSES = ("q_values", "critics", "soft_critics", "actor", "soft_actor")
"""Kernels of gradient steps off policy."""


# Cards ----------------------------------------------------------------------------------------------------------------
# The numbers are those of "Technical Specifications per Compute Capability" in NVIDIA's CUDA C++ Programming Guide, and
# the units in which registers and shared memory are handed out those of `cuda_occupancy.h` in the CUDA toolkit.


class Card(NamedTuple):
    """The limits of an architecture."""

    capability: tuple[int, int]
    warps: int
    """That a multiprocessor holds at once."""
    blocks: int
    """That it holds at once."""
    shared: int
    """Bytes of its shared memory."""
    reserved: int
    """Bytes of shared memory that every block takes in addition."""
    unit: int
    """Bytes in which shared memory is handed out."""
    example: str

    @property
    def named(self) -> tuple[int, int, str]:
        """Major, minor and suffix, as Numba gives it: from 9.0 on with the instructions that only this architecture has."""
        return (*self.capability, "a" if self.capability >= (9, 0) else "")

    @property
    def architecture(self) -> str:
        """Name for the tools."""
        return "sm_{}{}{}".format(*self.named)


KIB = 1024
CARDS = (
    Card((7, 5), 32, 16, 64 * KIB, 0, 256, "T4"),
    Card((8, 0), 64, 32, 164 * KIB, KIB, 128, "A100"),
    Card((8, 6), 48, 16, 100 * KIB, KIB, 128, "RTX 3090"),
    Card((8, 9), 48, 24, 100 * KIB, KIB, 128, "L4, RTX 4090"),
    Card((9, 0), 64, 32, 228 * KIB, KIB, 128, "H100, H200"),
    Card((10, 0), 64, 32, 228 * KIB, KIB, 128, "B200"),
    Card((12, 0), 48, 24, 100 * KIB, KIB, 128, "RTX 5090"),
)
ALIKE = (CARDS[:1], CARDS[1:4], CARDS[4:])
"""Those without tensor cores for bfloat16, and those with them, by the registers that kernels may have."""
WARP = 32
REGISTERS, PARTITIONS, UNIT = 65536, 4, 256
"""Of a multiprocessor and of a block; parts that it splits them into; how many are handed out to a warp at once."""
MOST_REGISTERS, MOST_THREADS, MOST_BLOCKS = 255, 1024, 2**31 - 1
"""Of a thread, of a block, and of a grid's first dimension."""
MOST_SHARED = 48 * KIB
"""Bytes of shared memory of a block, static and dynamic, that need no permission of the driver, on every card."""


def warps_by_registers(registers: int) -> int:
    """Return how many warps with so many registers of a thread a multiprocessor holds; no block may have more."""
    of_warp = -(-registers * WARP // UNIT) * UNIT
    return PARTITIONS * (REGISTERS // PARTITIONS // of_warp) if of_warp else MOST_THREADS // WARP


def most_threads(registers: int) -> int:
    """Return the threads of the largest block, as the driver says it of a kernel."""
    return min(MOST_THREADS, WARP * warps_by_registers(registers))


def resident(card: Card, registers: int, threads: int, shared: int) -> int:
    """Return how many blocks a multiprocessor holds; `shared`: bytes of a block, static and dynamic."""
    warps = -(-threads // WARP)
    taken = -(-(shared + card.reserved) // card.unit) * card.unit
    by_shared = card.shared // taken if taken else card.blocks
    return min(warps_by_registers(registers) // warps, by_shared, card.warps // warps, card.blocks)


# Compiling ------------------------------------------------------------------------------------------------------------


MIX = {
    "float64": r"D(?:FMA|ADD|MUL|SETP|MNMX)|MUFU\.\w*64H?|\w+\.F64|\w+\.\w+\.F64",
    "local": r"LDL|STL",
    "atomic": r"ATOM|ATOMS|ATOMG|RED|REDG",
}
"""What no kernel, or few, should have -> pattern of the beginning of an instruction, up to a dot or its end."""
SAID = {
    "registers": "registers",
    "stack": "bytes stack frame",
    "spill_stores": "bytes spill stores",
    "spill_loads": "bytes spill loads",
    "static": "bytes smem",
}
"""Field of a row -> what `ptxas` calls it."""
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)


def tool(name: str) -> Path:
    """Return the path of a program of the extra `ptx`. Exits with code 2 if it is not installed."""
    from cuda.pathfinder import find_nvidia_binary_utility

    found = find_nvidia_binary_utility(name)
    if found is None:
        stop(f'needs {name}; run: pip install -c constraints.txt -e ".[ptx]"')
    return Path(found)


COMPILING = (8, 0)
"""What Numba asks a card for while it reads a kernel; what it writes then is the same for all."""


@lru_cache(maxsize=8)
def library(launch: Launch) -> Any:
    """Return Numba's code library of a kernel, made as for a card."""
    from numba.cuda import dispatcher

    from warprun.kernels.without_gpu import compiling_for

    with compiling_for(None, COMPILING):
        return dispatcher._Kernel(launch.kernel.py_func, launch.types, **launch.kernel.targetoptions).library


def assembled(launch: Launch, card: Card) -> dict[str, Any]:
    """Return what a row has of the code that the assembler makes of a kernel, which libnvvm and nvJitLink have optimised for the card."""
    ptx = str(library(launch).get_lto_ptx(card.named)).rstrip("\0")
    most_registers = launch.kernel.targetoptions.get("max_registers")
    with tempfile.TemporaryDirectory() as folder:
        source, code = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx)
        limit = [f"-maxrregcount={most_registers}"] if most_registers else []
        command = [tool("ptxas"), "-v", f"-arch={card.architecture}", *limit, source, "-o", code]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        listing = disassembled(code)

    numbers = {key: max(map(int, re.findall(rf"(\d+) {what}", said)), default=0) for key, what in SAID.items()}
    return {**numbers, "instructions": mix(listing)}


def disassembled(cubin: Path) -> str:
    """Return the instructions of machine code."""
    command = [tool("nvdisasm"), "-c", "-ndf", cubin]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def mix(listing: str) -> dict[str, int]:
    """Return how many instructions of each group of MIX a listing has."""
    count = Counter(INSTRUCTION.findall(listing))
    del count["NOP"]
    patterns = {name: re.compile(rf"(?:{pattern})(?:\.|$)") for name, pattern in MIX.items()}
    groups = {name: sum(n for op, n in count.items() if pattern.match(op)) for name, pattern in patterns.items()}
    return {"all": count.total()} | {name: n for name, n in groups.items() if n}


# The kernels ----------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A kernel for an architecture, and how it is launched for N_ENVS environments."""

    environment: str
    """That of the launch."""
    owner: str
    """The same, or "learner"."""
    kernel: str
    architecture: str
    blocks: int
    threads: int
    dynamic: int
    """Bytes of dynamic shared memory of a block."""
    registers: int
    stack: int
    """Bytes of a thread, as are the spills."""
    spill_stores: int
    spill_loads: int
    static: int
    """Bytes of static shared memory of a block."""
    instructions: dict[str, int]
    """Group of MIX -> how many; "all": every one."""

    @property
    def card(self) -> Card:
        """The limits of the architecture."""
        return next(card for card in CARDS if card.architecture == self.architecture)

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        return self.static + self.dynamic

    @property
    def occupancy(self) -> float:
        """Share of a multiprocessor's warps that blocks of this kernel can fill."""
        blocks = resident(self.card, self.registers, self.threads, self.shared)
        return blocks * -(-self.threads // WARP) / self.card.warps


FEW_ENVS = 64
ENVIRONMENTS = {
    "cartpole": ("agent=ppo", "agent=a2c", "agent=dqn"),
    "acrobot": ("agent=ppo",),
    "mountain_car": ("agent=ppo",),
    "mountain_car_continuous": ("agent=ppo",),
    "pendulum": ("agent=ppo", "agent=a2c", "agent=td3", "agent=sac"),
    "t_maze": (
        "agent=ppo tuned=none",
        "agent=ppo tuned=none agent.network=lstm agent.minibatches=1",
        "agent=ppo tuned=none agent.network=gru agent.minibatches=1",
    ),
    "booster": ("agent=ppo",),
    "booster_continuous": ("agent=ppo",),
    "catalysis": ("agent=ppo",),
    "catalysis_continuous": ("agent=ppo",),
    "covid": ("agent=ppo",),
    "gray_scott": ("agent=ppo tuned=none",),
    "tag_gridworld": ("agent=ppo", "agent=dqn"),
    "tag_continuous": ("agent=ppo",),
}
"""Environment -> runs whose networks kernels compute, with the settings that a run has. Every way to draw actions is there for one
environment of each kind, and recurrent layers for the T-maze. Tuned policies of Gray-Scott have convolutions, which torch computes."""
VARIANTS = {"cartpole": "env.randomize.length=[0.3,0.7] env.on_nan=reset"}
"""Environment -> settings with which its kernels do more."""
OFF_POLICY = ("dqn", "ddpg", "td3", "sac")


class Kernel(NamedTuple):
    """A kernel of the table."""

    environment: str
    """In which it was launched."""
    owner: str
    """Environment, or "learner"."""
    name: str
    launch: Launch


def kernels_of(environment: str, capability: tuple[int, int], n_envs: int = N_ENVS) -> Iterator[Kernel]:
    """Yield every kernel of an environment, stepwise and in fused rollouts, and of the agents that learn in it, for a capability."""
    import cuda_launches
    from cuda_launches import of_learner

    of_run = partial(cuda_launches.of_run, capability=capability)
    of_steps = partial(cuda_launches.of_steps, capability=capability)

    def of_environment(found: list[Launch], names: str, mark: str = "") -> Iterator[Kernel]:
        for launch in found:
            if launch.name in names.split() and not of_learner(launch):
                yield Kernel(environment, environment, f"{launch.name}{mark}", launch)

    def given(run: str, *more: str) -> tuple[str, ...]:
        replay = ["agent.replay.capacity=100_000_000"] if agent_of(run) in OFF_POLICY else []
        return f"env={environment}", *run.split(), f"n_envs={n_envs}", *replay, *more

    first, stepwise = ENVIRONMENTS[environment][0], "engine.fused=false"
    for run in ENVIRONMENTS[environment]:
        agent, found = agent_of(run), of_run(*given(run))
        mark = "" if run == first else f", {agent}"
        if agent in OFF_POLICY or run == first:
            yield from of_environment(found, "reset rollout" if run == first else "rollout", mark)
            yield from of_environment(of_run(*given(run, stepwise)), "sample" if mark else "step sample greedy", mark)
        for launch in found:
            if of_learner(launch):
                yield Kernel(environment, "learner", name_of(launch, agent), launch)
    # An order of few rows is sorted by a kernel, of many by torch.
    few = of_run(f"env={environment}", *first.split(), f"n_envs={FEW_ENVS}")
    yield from (Kernel(environment, "learner", launch.name, launch) for launch in few if launch.name == "order")
    yield from of_environment(of_steps(*given(first)), "reset advance", ", of a caller")
    if environment in VARIANTS:
        variant = VARIANTS[environment].split()
        yield from of_environment(of_run(*given(first, *variant)), "reset rollout", ", randomized")


def name_of(launch: Launch, agent: str) -> str:
    """Return the name of a learner's kernel; numbers of the network are constants in the source of some."""
    names = launch.kernel.py_func.__globals__
    if launch.name in ("forward", "backward"):  # in float32 cards have blocks of other sizes
        return f"{launch.name}, {'lstm' if 'lstm_forward' in names else 'gru'}"
    if launch.name == "weight_slopes":
        return f"{launch.name}, {names['GATES']} gates"
    name = launch.name
    if name == "gradient":
        loss = names["loss"].py_func
        parts = {getattr(cell.cell_contents, "__name__", "") for cell in loss.__closure__ or ()}
        found = [actions for actions in ("choices", "gaussian") if f"evaluate_{actions}" in parts]
        if not found:  # of replay memory: cards have tiles of other sizes
            return str(loss.__name__)
        name = f"gradient, {agent}, {found[0]}"
    return f"{name}, {names['COLUMNS']} x {names['THREADS']}" if launch.name in ("gradient", "advantages") else name


def agent_of(run: str) -> str:
    """Return the agent of a run."""
    return run.partition("agent=")[2].split()[0]


def distinct(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Return each kernel once."""
    found: dict[tuple[str, str], Kernel] = {}
    for kernel in kernels:
        found.setdefault((kernel.owner, kernel.name), kernel)
    return list(found.values())


def rows_of(kernel: Kernel, cards: Sequence[Card]) -> list[Row]:
    """Compile a kernel; return a row for each architecture."""
    found = []
    for card in cards:
        code = assembled(kernel.launch, card)
        blocks, threads = kernel.launch.grid(most_threads(code["registers"]))
        found.append(Row(*kernel[:3], card.architecture, blocks, threads, kernel.launch.shared, **code))
    return found


# Limits ---------------------------------------------------------------------------------------------------------------


def problems(row: Row) -> list[str]:
    """Return what a card would refuse of a kernel, or what makes it slow for no reason."""
    mix, float64 = row.instructions, row.owner != "learner" or row.kernel.partition(",")[0] not in FLOAT64
    warps = -(-row.threads // WARP)
    wrong = {
        f"{row.spill_stores} + {row.spill_loads} bytes of spills": row.spill_stores + row.spill_loads > 0,
        f"a stack of {row.stack} bytes": row.stack > 0,
        f"{mix.get('local')} accesses to local memory": "local" in mix,
        f"{mix.get('float64')} instructions of float64": float64 and "float64" in mix,
        f"{mix.get('atomic')} atomic operations": "atomic" in mix,
        f"{row.registers} registers of a thread": row.registers > MOST_REGISTERS,
        f"{row.threads} threads of {row.registers} registers in a block": warps > warps_by_registers(row.registers),
        f"{row.threads} threads of a block": not 0 < row.threads <= MOST_THREADS,
        f"{row.blocks} blocks": not 0 < row.blocks <= MOST_BLOCKS,
        f"{row.shared} bytes of shared memory of a block": row.shared
        > (MOST_SHARED if row.card in ALIKE[0] else row.card.shared - row.card.reserved),
    }
    return [f"{row.owner} {row.kernel} {row.architecture}: {what}" for what, holds in wrong.items() if holds]


# The table ------------------------------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    """Return the versions of Python, whose code Numba reads, and of PACKAGES."""
    python = ".".join(map(str, sys.version_info[:2]))
    return {"python": python} | {package: version(package) for package in PACKAGES}


def keep(rows: Sequence[Row]) -> None:
    """Write all rows and the versions of the packages that they were made with, a line for each row."""
    lines = ",\n".join(f"  {json.dumps(row._asdict())}" for row in rows)
    KEPT.write_text(f'{{\n "versions": {json.dumps(versions())},\n "n_envs": {N_ENVS},\n "rows": [\n{lines}\n ]\n}}\n')


def kept() -> tuple[dict[str, str], list[Row]]:
    """Return the versions and the rows that are kept."""
    found = json.loads(KEPT.read_text())
    return found["versions"], [Row(**row) for row in found["rows"]]


def by_kernel(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Return the rows of each kernel, in the order of CARDS."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.owner, row.kernel), []).append(row)
    return found


def of_page(rows: Iterable[Row]) -> str:
    """Return the table of the page: the largest kernels of environments and of learners."""
    lines = []
    for (owner, name), found in by_kernel(rows).items():
        if name == "rollout" or name.startswith(("gradient", "forward", "backward", "weight_slopes", *LOSSES)):
            of_cards = {row.architecture: f"{row.registers}, {row.occupancy:.0%}" for row in found}
            cells = [of_cards.get(card.architecture, "") for card in CARDS]
            threads = " or ".join(dict.fromkeys(str(row.threads) for row in found))
            lines.append([owner, name, threads, f"{found[0].shared:,}", *cells])
    cards = [f"{card.architecture} ({card.example})" for card in CARDS]
    return table(["of", "kernel", "threads of a block", "shared memory, B", *cards], lines)


def compiled(environment: str, names: Collection[tuple[str, str]]) -> dict[tuple[str, str], list[Row]]:
    """Compile the kernels of an environment that have these owners and names; return the rows of each."""
    found: dict[tuple[str, str], list[Row]] = {}
    for cards in ALIKE:
        for kernel in distinct(kernels_of(environment, cards[0].capability)):
            if (key := (kernel.owner, kernel.name)) in names:
                found[key] = found.get(key, []) + rows_of(kernel, cards)
    return found


def main() -> None:
    """Compile the kernels, print what is beyond a limit, and keep the rows."""
    chosen = settings(__doc__, "environments*", jobs=os.cpu_count() or 1, write=False)
    require("numba_cuda", "numba-cuda")
    tool("ptxas"), tool("nvdisasm")
    environments = chosen.environments or list(ENVIRONMENTS)
    if unknown := set(environments) - set(ENVIRONMENTS):
        stop(f"no environment {min(unknown)!r}; there are: {', '.join(ENVIRONMENTS)}")
    every = distinct(kernel for cards in ALIKE for name in ENVIRONMENTS for kernel in kernels_of(name, cards[0].capability))
    order = [(kernel.owner, kernel.name) for kernel in sorted(every, key=lambda kernel: kernel.owner == "learner")]
    known = by_kernel(kept()[1]) if chosen.environments else {}
    wrong: list[str] = []
    with ProcessPoolExecutor(chosen.jobs, get_context("fork")) as pool:
        names = {name: {(each.owner, each.name) for each in every if each.environment == name} for name in environments}
        for done in as_completed([pool.submit(compiled, name, own) for name, own in names.items()]):
            known |= done.result()
            for (owner, name), rows in done.result().items():
                print(*(f"{row.registers} ({row.occupancy:.0%})" for row in rows), owner, name, flush=True)
                wrong += [problem for row in rows for problem in problems(row)]
            if chosen.write:  # each as soon as it is there
                keep([row for key in order for row in known.get(key, ())])
    print("\n".join(wrong or ["nothing is beyond a limit"]))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
