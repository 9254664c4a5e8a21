"""Limits of GPUs, without one: registers, spills, shared memory, grids, and indices of more than 31 bits.

The table of all kernels is docs/benchmarks/kernels.json; `scripts/kernel_table.py` makes it and has the limits.
Here a few kernels are compiled again, and with the mark `long` all that hold the others."""

import mmap
import re
from functools import cache
from math import prod
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch
from numba import cuda

from tests.scripts import load
from tests.selection import few
from tests.simulation.rollouts import CPU, acting, make
from warprun.config.compose import compose
from warprun.config.registry import import_environment
from warprun.errors import UserError
from warprun.kernels.compile import kernel_function
from warprun.kernels.mlp_cuda import accumulate, read_eight, spread, write_rows
from warprun.learning.draws import _mix
from warprun.learning.settings.networks import NetworkConfig
from warprun.simulation import kernel_module

table = load("kernel_table")


launches = load("cuda_launches")
compiles = pytest.mark.ptx(*table.PACKAGES)
VERSIONS, ROWS = table.kept()
KEPT = {(row.owner, row.kernel, row.architecture): row for row in ROWS}
FEW = (table.CARDS[0], table.CARDS[4], table.CARDS[-1])
"""The oldest architecture, the one of most reports, and the newest one."""
HOLDS_THE_OTHERS = ("rollout", "advance")
"""Kernels that contain what the other kernels of an environment do."""


@cache
def of_cartpole() -> dict[str, Any]:
    return {launch.name: launch for launch in launches.of_run("env=cartpole", "agent=ppo", f"n_envs={table.N_ENVS}")}


# The table ------------------------------------------------------------------------------------------------------------


def test_kept_kernels_are_within_the_limits_of_every_card() -> None:
    assert not [problem for row in ROWS for problem in table.problems(row)]


def test_every_kernel_of_every_environment_is_kept_for_every_card() -> None:
    found, every = table.by_kernel(ROWS), {"rollout", "reset", "step", "sample", "greedy", "reset, of a caller", "advance, of a caller"}
    for environment in table.ENVIRONMENTS:
        assert {name for owner, name in found if owner == environment} >= every, environment
    of_learners = {name.partition(",")[0] for owner, name in found if owner == "learner"}
    every = {"gradient", "reduce", "squares", "step", "advantages", "spread", "moments", "returns", "merge"}
    assert of_learners >= every
    architectures = [card.architecture for card in table.CARDS]
    for (_, name), rows in found.items():
        # Without tensor cores torch computes the gradients of recurrent layers.
        needs_tensor_cores = name.startswith("weight_slopes")
        assert [row.architecture for row in rows] == architectures[len(table.ALIKE[0]) * needs_tensor_cores :], name


def test_environments_of_kernels_are_those_of_the_package() -> None:
    configs = {path.stem for path in (Path(table.DOCS).parent / "conf" / "env").glob("*.yaml")}
    assert configs - {"gymnasium", "gymnax", "brax", "jumanji", "heat_equation", "kuramoto_sivashinsky"} == set(table.ENVIRONMENTS)


# Compiling ------------------------------------------------------------------------------------------------------------


def check(kernel: Any) -> None:
    """Compile a kernel; it is within the limits, and what is kept of it if that was made with the same versions.

    Then one card will do: a kernel that has not changed there is for all cards what is kept.
    """
    same = table.versions() == VERSIONS
    for row in table.rows_of(kernel, FEW[1:2] if same else FEW[1:]):
        assert not table.problems(row)
        before = KEPT.get((row.owner, row.kernel, row.architecture))
        assert not same or before in (None, row), "run: python scripts/kernel_table.py --write"


@compiles
@pytest.mark.parametrize(("owner", "name"), [("cartpole", "rollout"), ("learner", "gradient, ppo, choices, 32 x 64")])
def test_a_rollout_and_a_gradient_are_within_the_limits(owner: str, name: str) -> None:
    check(table.Kernel("cartpole", owner, name, of_cartpole()[name.partition(",")[0]]))


@compiles
@pytest.mark.long
@pytest.mark.parametrize("environment", few(table.ENVIRONMENTS, "cartpole", "pendulum", "catalysis", "tag_gridworld"))
def test_all_kernels_are_within_the_limits_and_compute_indices_in_64_bits(environment: str) -> None:
    for kernel in table.distinct(table.kernels_of(environment, launches.CAPABILITY)):
        kept = KEPT.get((kernel.owner, kernel.name, FEW[0].architecture))
        # Of environments that share a learner's kernel one is enough.
        elsewhere = kept is not None and kept.environment != environment
        if kernel.launch.name in HOLDS_THE_OTHERS or (kernel.owner == "learner" and not elsewhere):
            check(kernel)
            assert_wide(kernel.launch)


@compiles
def test_the_assembler_makes_the_instructions_that_the_linker_makes(tmp_path: Path) -> None:
    card, launch = table.CARDS[4], of_cartpole()["reduce"]
    file = tmp_path / "linked.cubin"
    file.write_bytes(bytes(table.library(launch).get_cubin(card.named).code))
    assert table.assembled(launch, card)["instructions"] == table.mix(table.disassembled(file))


def in_local_memory(x):
    numbers = cuda.local.array(64, np.float32)
    for n in range(64):
        numbers[int(x[n]) % 64] += x[n]
    x[0] = numbers[int(x[1]) % 64]


def in_float64(x):
    x[0] += np.float64(x[1]) / np.float64(3.0)


def atomic(x):
    cuda.atomic.add(x, 0, x[1])


def with_many_registers(x):
    write_rows(x, 0, 32, 8, accumulate(x, 0, 8, x, 0, 32, 9, spread(read_eight(x, 0))))


@compiles
@pytest.mark.parametrize(
    ("kernel", "most_registers", "problem"),
    [
        (in_local_memory, None, "local memory"),
        (in_float64, None, "float64"),
        (atomic, None, "atomic"),
        (with_many_registers, 32, "spills"),
        (with_many_registers, None, ""),
    ],
)
def test_what_is_beyond_a_limit_is_found(kernel: Any, most_registers: int | None, problem: str) -> None:
    launch = planted(kernel, most_registers)
    (row,) = table.rows_of(table.Kernel("none", "none", "kernel", launch), table.CARDS[:1])
    assert [found for found in table.problems(row) if problem in found] or not problem, row
    assert problem or not table.problems(row)


def planted(kernel: Any, most_registers: int | None = None) -> Any:
    called = {function.__name__: kernel_function(function) for function in (accumulate, read_eight, spread, write_rows)}
    made = FunctionType(kernel.__code__, kernel.__globals__ | called, kernel.__name__)
    options = {} if most_registers is None else {"max_registers": most_registers}
    numbers = torch.empty(1000, device="meta")
    return launches.Launch(cuda.jit(made, **options), "kernel", lambda most: (1, 32), 0, (numbers,))


@pytest.mark.parametrize(
    ("registers", "threads", "shared", "blocks"),
    [
        (32, 128, 0, (8, 16, 12, 12, 16, 16, 12)),
        (168, 64, 17280, (3, 6, 5, 5, 6, 6, 5)),
        (128, 64, 18176, (3, 8, 5, 5, 8, 8, 5)),
        (40, 1024, 49152, (1, 1, 1, 1, 1, 1, 1)),
        (65, 1024, 0, (0,) * 7),
    ],
)
def test_occupancy_is_that_of_nvidia(registers: int, threads: int, shared: int, blocks: tuple[int, ...]) -> None:
    """The numbers are those of `cuda_occupancy.h` of CUDA 13.0."""
    assert tuple(table.resident(card, registers, threads, shared) for card in table.CARDS) == blocks


# Launches -------------------------------------------------------------------------------------------------------------

SIZES = (1, 33, 1_000_000)
"""Environments of a run. The table has the launches of 10,000."""


def rows_for(launch: Any, environment: str) -> list[Any]:
    """Return the kept row of a kernel for each card: of several kernels with its name that with the most registers."""
    owner = "learner" if launches.of_learner(launch) else environment
    named = [row for row in ROWS if row.owner == owner and row.kernel.partition(",")[0] == launch.name]
    assert named, launch.name
    return [max((row for row in named if row.card == card), key=lambda row: row.registers) for card in table.CARDS]


def assert_fits(launch: Any, environment: str, items: int) -> None:
    """Check for every card with tensor cores that a block can run, and that there are blocks for all `items`, by threads or by blocks."""
    for row in rows_for(launch, environment):
        if row.card in table.ALIKE[0]:
            continue
        blocks, threads = launch.grid(table.most_threads(row.registers))
        assert threads % table.WARP == 0
        changed = row._replace(blocks=blocks, threads=threads, dynamic=launch.shared)
        assert not table.problems(changed), launch.name
        assert table.resident(changed.card, changed.registers, threads, changed.shared) > 0
        if launch.name in ("reset", "advance"):
            assert (blocks - 1) * threads < items <= blocks * threads or blocks == items


def assert_launches_fit(environment: str, *run: str) -> None:
    for n_envs in SIZES:
        given = (f"env={environment}", *run, f"n_envs={n_envs}", "agent.minibatches=1")
        for launch in (*launches.of_run(*given), *launches.of_steps(*given)):
            assert_fits(launch, environment, n_envs)


@compiles
@pytest.mark.by_default(1)
@pytest.mark.parametrize("environment", table.ENVIRONMENTS)
def test_launches_fit_every_card(environment: str) -> None:
    assert_launches_fit(environment, *table.ENVIRONMENTS[environment][0].split())


@compiles
@pytest.mark.long
def test_launches_of_1000_actors_fit_every_card() -> None:
    run = ("env.taggers=10", "env.runners=990", "agent=ppo")
    assert_launches_fit("tag_continuous", *run)
    found = launches.of_run("env=tag_continuous", *run, f"n_envs={SIZES[-1]}", "agent.minibatches=1")
    rollout = next(each for each in found if each.name == "rollout")
    kernel = table.Kernel("tag_continuous", "tag_continuous", "rollout of 1000", rollout)
    assert not [problem for row in table.rows_of(kernel, FEW[1:2]) for problem in table.problems(row)]


# Indices --------------------------------------------------------------------------------------------------------------

NARROW = re.compile(r"= (?:add|sub|mul|shl|sdiv|srem|udiv|urem|or|and)\b[a-z ]* i(?:8|16|32) ")
DEFINED = re.compile(r"^define .*?@\"?(_ZN[^\"(]+)")
COUNTERS = (
    "warprun4math",
    "warprun6random",
    "warprun4envs",
    "warprun10neighbours",
    "number_places",
    "one_output",
    "one_slope",
    "four_outputs",
    "four_slopes",
    "evaluate_choices",
    "choices_slopes",
    "add_products",
    "past_products",
    "past_slopes",
    "add_share",
    "split_word",
    "pack",
)
"""Parts of the names of functions that compute in 32 bits: random numbers, the bits of a float32 or of two bfloat16, counters of the
choices of an action and of the units of a layer, numbers of actors within an environment.
Functions of environments get views of the arrays of their own environment."""


def narrow(ir: str) -> set[str]:
    """Return the functions of Numba's code, before any optimisation, that compute integers of less than 64 bits."""
    found, name = set(), ""
    for line in ir.splitlines():
        defined = DEFINED.match(line)
        name = defined[1] if defined else name
        if NARROW.search(line):
            found.add(name)
    return found


def assert_wide(launch: Any) -> None:
    found = narrow(table.library(launch).get_llvm_str())
    assert not [name for name in found if not any(part in name for part in COUNTERS)], launch.name


@compiles
@pytest.mark.parametrize("name", ["rollout", "gradient"])
def test_a_rollout_and_a_gradient_compute_indices_in_64_bits(name: str) -> None:
    assert_wide(of_cartpole()[name])


def with_narrow_indices(x):
    for n in range(np.int32(x.size)):
        x[n] = 1.0


@compiles
def test_an_index_of_32_bits_would_be_found() -> None:
    assert narrow(table.library(planted(with_narrow_indices)).get_llvm_str())


def reserved(shape: Any, *, dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
    """Return a tensor of zeros whose memory is taken page by page when it is written first."""
    size = prod(shape if isinstance(shape, tuple) else (shape,)) * dtype.itemsize
    pages = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0))
    return torch.frombuffer(pages, dtype=dtype, count=size // dtype.itemsize).view(shape)


@pytest.mark.long
def test_rows_beyond_2_31_numbers_are_those_of_a_small_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last environments of a large run, alone, on CPU: the only ones whose memory is taken."""
    environment, horizon, last = import_environment("warprun.envs.cartpole", {})[0], 70, 8
    n_envs = 2**23 + last
    assert horizon * n_envs * environment.groups[0].observation.size > 2**31
    agent = acting(environment, NetworkConfig(hidden=[12, 8]), CPU, fused=True)
    given = {"horizon": horizon, "seed": 2**40 + 3, "networks": agent.networks()}
    small = make(environment, "cartpole", **given, n_envs=last, first_env=n_envs - last)
    small.collect(agent.act)
    monkeypatch.setattr(kernel_module, "available_memory", lambda: 2**60)
    monkeypatch.setattr(torch, "zeros", reserved)
    monkeypatch.setattr(type(small), "reset", lambda self: None)
    large = make(environment, "cartpole", **given, n_envs=n_envs)
    kernels, tiles = large._kernels, -(-n_envs // large.plan.target.lanes(environment))
    kernels._at[:] = 0, -1
    kernels._single["reset"](tiles - 1, tiles, 0)
    kernels._rollout.change(steps=horizon)
    kernels._rollout(tiles - 1, tiles, 0)
    for mine, alone in zip(large.trajectory.groups.values(), small.trajectory.groups.values(), strict=True):
        for name in ("obs", "action", "log_prob", "value", "reward"):
            torch.testing.assert_close(getattr(mine, name)[:, -last:], getattr(alone, name), rtol=0, atol=0, msg=name)
    assert torch.equal(large.trajectory.terminated[:, -last:], small.trajectory.terminated)


def test_numbers_of_rows_beyond_2_31_wrap_without_an_error() -> None:
    """Shuffles count rows in int32, of which they need random bits only."""
    rows = torch.arange(2**31 - 2, 2**31 + 2, dtype=torch.int32)
    assert torch.equal(rows, torch.arange(2**31 - 2, 2**31 + 2).int())
    assert len(set(_mix(rows).tolist())) == 4


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("n_envs=2147483648", "n_envs"),
        ("n_envs=2147483647", "n_envs=2147483647 needs"),
        ("agent.horizon=2147483647", "agent.horizon=2147483647 needs"),
    ],
)
def test_a_run_that_no_memory_holds_is_refused_in_one_line(setting: str, told: str) -> None:
    with pytest.raises(UserError, match=told) as refusal:
        compose(["env=cartpole", "agent=ppo", "device=cpu", setting])
    assert "\n" not in str(refusal.value)
