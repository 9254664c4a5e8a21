"""Functions that kernels inline are kept one by one: a change compiles what it touches, and a caller is never one from before it."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from numba import types

from warprun import envs as environments
from warprun.config.compose import compose
from warprun.config.schema import Config
from warprun.kernels import compile as kernels
from warprun.kernels import compilers, pieces
from warprun.kernels.without_gpu import compiling_for
from warprun.runs import early
from warprun.runs.build import make_agent, make_training_simulator, set_up
from warprun.simulation.kernel_engine import KernelEngine

KERNEL = """
from numba import njit


@njit(cache=True, **FLAGS)
def kernel(x):
    return step(x)
"""
Compiled = Callable[[str], tuple[float, Counter[str]]]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return how often each function is compiled, and not loaded, from now on."""
    counts: Counter[str] = Counter()
    save = pieces.Pieces.save_overload

    def counted(own: pieces.Pieces, *compiled: Any) -> None:
        counts[own._dispatcher.py_func.__name__] += 1
        save(own, *compiled)

    monkeypatch.setattr(pieces.Pieces, "save_overload", counted)
    return counts


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels be made as if in a new process."""
    for name in [each for each in sys.modules if each.startswith("warprun_kernels_")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(kernels, "_rebuilt", {})


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made: Counter[str]) -> Compiled:
    """Return what makes a kernel of the text of functions, and returns step(3.0) and which functions were compiled for it."""
    monkeypatch.setenv("WARPRUN_CACHE_DIR", str(tmp_path))

    def call(text: str) -> tuple[float, Counter[str]]:
        names: dict[str, Any] = {"__name__": "written", "np": np}
        exec(compile(text, "written.py", "exec", dont_inherit=True), names)
        made.clear()
        forget(monkeypatch)
        module = kernels.load_module("written", KERNEL, {"step": names["step"], "FLAGS": kernels.FLAGS})
        return float(module.kernel(np.float32(3.0))), Counter(made)

    return call


CHAIN = """
def inner(x):
    return x * 2.0


def middle(x):
    return inner(x) + 1.0


def step(x):
    return middle(x) * 10.0
"""


def test_a_change_compiles_one_function(compiled: Compiled) -> None:
    assert compiled(CHAIN) == (70.0, Counter(inner=1, middle=1, step=1))
    assert compiled(CHAIN.replace("2.0", "3.0")) == (100.0, Counter(inner=1))
    assert compiled(CHAIN.replace("+ 1.0", "+ 2.0")) == (80.0, Counter(middle=1))
    assert compiled("# moved\n\n" + CHAIN.replace("    return x * 2.0", '    """Double."""\n    return x * 2.0')) == (70.0, Counter())


CALLERS = {
    "another type": (CHAIN, "x * 2.0", "np.int64(x) * 2", 70.0, {"inner", "middle", "step"}),
    "arguments in another order": (
        "def inner(a, b):\n    return a - b\n\n\ndef step(x):\n    return inner(a=x, b=1.0)\n",
        "inner(a, b)",
        "inner(b, a)",
        2.0,
        {"inner", "step"},
    ),
    "another default": (
        "def inner(x, k=2.0):\n    return x * k\n\n\ndef step(x):\n    return inner(x)\n",
        "k=2.0",
        "k=3.0",
        9.0,
        {"inner", "step"},
    ),
    "one name for another function": (
        "def one(x):\n    return x\n\n\ndef two(x):\n    return x * 2.0\n\n\nother = one\n\n\ndef step(x):\n    return one(x) + other(x)\n",
        "other = one",
        "other = two",
        9.0,
        {"two", "step"},
    ),
    "fields in another order": (
        "from typing import NamedTuple\n\n\nclass Two(NamedTuple):\n    a: float\n    b: float\n\n\n"
        "def inner(x):\n    return Two(x, 1.0)\n\n\ndef step(x):\n    return inner(x).a\n",
        "    a: float\n    b: float",
        "    b: float\n    a: float",
        1.0,
        {"inner", "step"},
    ),
    "a number behind a name of the caller": (
        "G = 2.0\n\n\ndef inner(x):\n    return x\n\n\ndef step(x):\n    return inner(x) * G\n",
        "2.0",
        "5.0",
        15.0,
        {"step"},
    ),
}


@pytest.mark.by_default(2)
@pytest.mark.parametrize("case", CALLERS)
def test_a_caller_is_not_one_from_before(case: str, compiled: Compiled) -> None:
    text, old, new, result, names = CALLERS[case]
    assert old in text
    compiled(text)
    found, functions = compiled(text.replace(old, new))
    assert found == result and set(functions) == names


def test_what_is_kept_for_other_types_is_not_taken(compiled: Compiled) -> None:
    text = "def inner(x):\n    return x / 2\n\n\ndef step(x):\n    return inner(ARGUMENT)\n"
    assert compiled(text.replace("ARGUMENT", "x"))[0] == 1.5
    assert compiled(text.replace("ARGUMENT", "(int(x) << 60)")) == (1.5 * 2**60, Counter(inner=1, step=1))


# Environments ---------------------------------------------------------------------------------------------------------


def engine_of(config: Config) -> KernelEngine:
    setup = set_up(config)
    simulator = make_training_simulator(setup, make_agent(setup))
    assert isinstance(simulator, KernelEngine)
    simulator.prepare()
    return simulator


def code_of(kernel: Any) -> bytes:
    """Return the machine code of a kernel that this process has compiled, and its constants."""
    (compiled,) = kernel.overloads.values()
    sections = llvm.ObjectFileRef.from_data(compiled.library._get_compiled_object()).sections()
    return b"".join(each.data() for each in sections if each.is_text() or (each.name() or b"").startswith((b".rodata", b".lrodata")))


@pytest.mark.by_default(2)
@pytest.mark.parametrize("name", ["cartpole", "t_maze", "tag_gridworld", "cartpole engine.fused=false"])
def test_another_process_knows_the_types_of_a_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would compile kernels that nobody calls."""
    asked: dict[str, tuple[object, ...]] = {}
    monkeypatch.setattr(early, "compile_here", lambda kernel, kinds: asked.update({kernel.__name__: tuple(kinds)}))
    config = compose([*f"env={name}".split(), "agent=ppo", "n_envs=8", "device=cpu", "concurrency.threads=1"])
    early.compile_kernels(config)
    module = vars(engine_of(config)._kernels._module)
    assert asked.keys() == ({"step", "sample", "reset"} if "fused" in name else {"rollout", "reset"})
    assert {kernel: list(module[kernel].overloads) for kernel in asked} == {kernel: [kinds] for kernel, kinds in asked.items()}


def test_a_constant_in_step_compiles_what_depends_on_it_and_gives_the_same_machine_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made: Counter[str]
) -> None:
    text = (Path(environments.__file__).parent / "cartpole.py").read_text()
    file = tmp_path / "mine.py"
    optimized: list[str] = []
    optimize = compilers.LinkedLibrary._optimized

    def noted(tile: compilers.LinkedLibrary) -> bytes:
        optimized.append(tile.name.rpartition(".")[2])
        return optimize(tile)

    monkeypatch.setattr(compilers.LinkedLibrary, "_optimized", noted)

    def kernels_of(cache: str, factor: float) -> tuple[bytes, Counter[str], set[str]]:
        """Return machine code of the rollout, which functions Numba compiled, and which kernels and tiles LLVM did."""
        assert "4.0 / 3.0" in text
        file.write_text(text.replace("4.0 / 3.0", f"{factor} * 4.0 / 3.0"))
        monkeypatch.setenv("WARPRUN_CACHE_DIR", str(tmp_path / cache))
        made.clear()
        forget(monkeypatch)
        overrides = [
            "env=cartpole",
            "env.name=mine",
            f"env.module={file}",
            "agent=ppo",
            "n_envs=70",
            "agent.horizon=40",
            "device=cpu",
            "concurrency.threads=1",
        ]
        optimized.clear()
        module = engine_of(compose(overrides))._kernels._module
        built = {kernel.__name__ for kernel in (module.rollout, module.reset) if kernel.stats.cache_misses}
        return code_of(module.rollout), Counter(made), built | set(optimized)

    before, first, _ = kernels_of("kept", 1.001)
    assert first["step_tile"] == first["reset_tile"] == first["step"] == 1
    found, functions, built = kernels_of("kept", 1.002)
    assert (functions, built) == (Counter(step=1), {"rollout", "step_tile"})
    expected, functions, built = kernels_of("empty", 1.002)
    assert functions["step_tile"] == 1 and built >= {"rollout", "reset", "step_tile", "reset_tile", "sample_tile", "agent_infer"}
    assert found == expected and found != before


ON_GPU = """
from numba import cuda


@cuda.jit(cache=True)
def changing(x):
    x[0] = changed(x[0])


@cuda.jit(cache=True)
def staying(x):
    x[0] = same(x[0])
"""


@pytest.mark.ptx
def test_a_change_compiles_the_cuda_kernels_that_contain_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WARPRUN_CACHE_DIR", str(tmp_path))

    def compiled(changed: Callable[[np.float32], np.float32]) -> list[str]:
        module = kernels.load_module("on_gpu", ON_GPU, {"changed": changed, "same": lambda x: x + 1.0})
        with compiling_for(None, (9, 0)):
            for kernel in (module.changing, module.staying):
                kernel.compile((types.float32[::1],))
        return [kernel.py_func.__name__ for kernel in (module.changing, module.staying) if kernel.stats.cache_misses]

    assert compiled(lambda x: x * 2.0) == ["changing", "staying"]
    assert compiled(lambda x: x * 3.0) == ["changing"]
