"""The cache of kernels: damaged files are compiled anew, one process at a time compiles a kernel, and another one can do so ahead."""

import errno
import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numba import typeof
from numba.core.codegen import JITCPUCodegen
from numba.core.cpu import CPUContext
from numba.core.types import Literal

import warprun
from warprun import math
from warprun.errors import UserError
from warprun.kernels import ahead, cache
from warprun.kernels.bound import Call, kernel_module
from warprun.kernels.cache import KernelFiles
from warprun.kernels.compile import FLAGS, kernel_function, load_module, own_tuple
from warprun.kernels.kept import compile_here
from warprun.random import Rng, uniform

# Damaged files --------------------------------------------------------------------------------------------------------

TWO = '''"""Two kernels."""
from numba import njit


@njit(cache=True, **FLAGS)
def twice(x):
    return double(x)


@njit(cache=True, **FLAGS)
def thrice(x):
    return double(x) + x
'''
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "flipped": lambda content: flipped(content, len(content) // 2),
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "last flipped": lambda content: flipped(content, len(content) - 1),
}


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def double(x):
    return x * 2.0


def load() -> ModuleType:
    for name in [name for name in sys.modules if name.startswith("warprun_kernels_small")]:
        del sys.modules[name]
    cache._noticed.clear()
    return load_module("small", TWO, {"double": double, "FLAGS": FLAGS})


def results(module: ModuleType) -> tuple[float, float]:
    return module.twice(np.float32(4.0)), module.thrice(np.float32(4.0))


def loaded_from_disk(module: ModuleType) -> int:
    return sum(sum(kernel.stats.cache_hits.values()) for kernel in (module.twice, module.thrice))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WARPRUN_CACHE_DIR", str(folder))
        assert results(load()) == (8.0, 12.0)
    return folder


@pytest.fixture
def warm(compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(compiled, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("WARPRUN_CACHE_DIR", str(tmp_path))
    again = load()
    assert (results(again), loaded_from_disk(again)) == ((8.0, 12.0), 2)
    return tmp_path


def test_nothing_is_kept_but_what_is_checked(warm: Path) -> None:
    names = [file.name.partition("-")[0] + file.suffix for file in warm.rglob("*") if file.is_file()]
    assert sorted(names) == ["double.nbc", "small_kernels.py.py", "thrice.lock", "thrice.nbc", "twice.lock", "twice.nbc"]


@pytest.mark.by_default(4)
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("suffix", [".nbc", ".py"])
def test_what_is_damaged_is_made_anew_with_one_line(suffix: str, damage: str, warm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in warm.rglob(f"*{suffix}"):
        file.write_bytes(DAMAGE[damage](file.read_bytes()))
    damaged = load()
    assert results(damaged) == (8.0, 12.0)
    assert loaded_from_disk(damaged) == (0 if suffix == ".nbc" else 2)
    assert re.fullmatch(r"warning: kernels: .* damaged; .* anew\n", capsys.readouterr().err)
    again = load()
    assert (results(again), loaded_from_disk(again)) == ((8.0, 12.0), 2)
    assert capsys.readouterr().err == ""


FIRST = """
from numba import njit

UNUSED = {number}


@njit(cache=True, **FLAGS)
def first(pair):
    return pair.a
"""


def first_of(fields: str, number: int) -> tuple[float, int]:
    """Return the field `a` of (1, 2) by the kernel of a module of its own, and how many kernels were read for it."""
    module = load_module("first", FIRST.format(number=number), {"FLAGS": FLAGS})
    pair = own_tuple(module, "Pair", namedtuple("Pair", fields)(np.float32(1.0), np.float32(2.0)))
    return module.first(pair), sum(module.first.stats.cache_hits.values())


def test_modules_share_a_kernel_but_not_one_for_other_fields(empty_cache: None) -> None:
    assert first_of("a b", 1) == (1.0, 0)
    assert first_of("a b", 2) == (1.0, 1)
    assert first_of("b a", 3) == (2.0, 0)


def test_a_file_in_the_place_of_another_is_not_taken(warm: Path) -> None:
    """Both kernels take the same types, and so are asked for by the same key."""
    (twice,), (thrice,) = warm.rglob("twice-*.nbc"), warm.rglob("thrice-*.nbc")
    content = twice.read_bytes()
    twice.write_bytes(thrice.read_bytes())
    thrice.write_bytes(content)
    assert results(load()) == (8.0, 12.0)
    one, other = (KernelFiles(folder, "twice", bytes)._digest(content) for folder in (warm, warm.parent))
    assert one != other


def test_kernels_of_another_processor_are_not_taken(warm: Path) -> None:
    """Machines of several kinds can share a home folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITCPUCodegen, "_get_host_cpu_name", lambda codegen: "another")
        there = load()
        assert (results(there), loaded_from_disk(there)) == ((8.0, 12.0), 0)
    assert len(list(warm.rglob("t*.nbc"))) == 4
    back = load()
    assert (results(back), loaded_from_disk(back)) == ((8.0, 12.0), 2)


def test_what_another_process_is_writing_is_not_read(warm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = next(warm.rglob("twice-*.nbc"))
    kernel.with_suffix(".0123").write_bytes(kernel.read_bytes()[:100])
    kernel.unlink()
    assert results(load()) == (8.0, 12.0)
    assert capsys.readouterr().err == ""


def test_kernels_that_cannot_be_written_are_used_once(warm: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    for file in warm.rglob("*.nbc"):
        file.unlink()
    monkeypatch.setattr(cache, "replace", full)
    assert results(load()) == (8.0, 12.0)
    assert capsys.readouterr().err == f"warning: kernels: cannot keep compiled kernels in {warm / 'functions'}: No space left on device\n"


def test_a_cache_that_cannot_be_looked_into_is_told_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As a home folder that this user may not enter; a root of tests may enter all, so a name that is too long stands for it."""
    monkeypatch.setenv("WARPRUN_CACHE_DIR", "x" * 300)
    ahead.expect("probe", (), processes=0)
    module = load()
    assert results(module) == (8.0, 12.0)
    err = capsys.readouterr().err
    assert err.count("\n") == err.count("File name too long") == 1 and "set WARPRUN_CACHE_DIR to a writable folder" in err


def add_one(part, x):
    x[part] += 1.0


def adding() -> Call:
    """Return a call of a kernel with a module of its own."""
    module = kernel_module("adding", {"add": [add_one]})
    del sys.modules[module.__name__]
    return Call(module.add, np.ones(3, np.float32))


def test_a_kernel_that_python_does_not_call_is_read_without_all_that_compiles(empty_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    adding()(0, 3, 0)
    monkeypatch.setattr(CPUContext, "refresh", lambda context: pytest.fail("Numba loads all that it compiles with"))
    again = adding()
    again(0, 3, 0)
    assert (again.arguments[0] == 2.0).all()


# Several processes ----------------------------------------------------------------------------------------------------

NESTED = """
from numba import njit


@njit(cache=True, **FLAGS)
def inner(x):
    for n in range(x.size):
        x[n] = change(x[n])


@njit(cache=True, **FLAGS)
def outer(x):
    for n in range(x.size):
        inner(x)
"""
PROGRAM = f"""
import numpy as np
from warprun import math
from warprun.kernels.compile import FLAGS, load_module
module = load_module("once", {NESTED!r}, {{"change": math.sin, "FLAGS": FLAGS}})
print("ready", flush=True)
input()
module.outer(np.zeros(2, np.float32))
print(sum(sum(each.stats.cache_misses.values()) for each in (module.inner, module.outer)), flush=True)
"""


def ready(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    assert process.stdout and process.stdout.readline() == "ready\n"
    return process


def begun(*command: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_processes_that_start_together_compile_a_kernel_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WARPRUN_CACHE_DIR", str(tmp_path))
    processes = [ready(each) for each in [begun(PROGRAM), begun(PROGRAM)]]
    for each in processes:
        assert each.stdin
        print(file=each.stdin, flush=True)
    assert sorted(int(each.communicate()[0]) for each in processes) == [0, 2]
    assert {path.suffix for path in (tmp_path / "functions").iterdir()} == {".nbc", ".lock"}


@pytest.fixture
def files(tmp_path: Path) -> KernelFiles:
    return KernelFiles(tmp_path, "kernel")


KEY = "of a kernel and its types"

HOLDER = """
import sys
from pathlib import Path
from warprun.kernels.cache import KernelFiles
with KernelFiles(Path(sys.argv[1]), "kernel").alone("of a kernel and its types"):
    print("ready", flush=True)
    input()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that compiles the kernel and does not come to an end."""
    with begun(HOLDER, tmp_path) as process:
        yield ready(process)
        process.kill()


def waits(files: KernelFiles, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(cache, "WAIT_S", 0.0)
    said: list[str] = []
    monkeypatch.setattr(cache, "notice", said.append)
    with files.alone(KEY):
        pass
    return bool(said)


def test_a_process_that_takes_too_long_is_not_waited_for(files, holder, monkeypatch) -> None:
    assert waits(files, monkeypatch)


def test_a_process_that_dies_holds_nobody_up(files, holder, monkeypatch) -> None:
    holder.kill()
    holder.wait()
    assert not waits(files, monkeypatch)


def test_a_kernel_that_is_there_needs_no_lock(files, holder, monkeypatch) -> None:
    files.save(KEY, b"")
    assert not waits(files, monkeypatch)


def test_a_failure_gives_the_lock_back(files, monkeypatch) -> None:
    with pytest.raises(ZeroDivisionError), files.alone(KEY):
        raise ZeroDivisionError
    assert not waits(files, monkeypatch)


@pytest.mark.parametrize("call", [(fcntl, "flock"), (os, "open")])
def test_without_locks_nobody_waits(files, holder, monkeypatch, call) -> None:
    def refuse(*given: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(*call, refuse)
    assert not waits(files, monkeypatch)


# Kernels that another process compiles --------------------------------------------------------------------------------

CHANGED = """
from numba import njit

NUMBER = {number}


@njit(cache=True, **FLAGS)
def kernel(x):
    for n in range(x.size):
        x[n] = change(x[n]) + NUMBER
"""


NUMBERS = count()


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ahead.dismiss()  # what tests before have wanted
    monkeypatch.setenv("WARPRUN_CACHE_DIR", str(tmp_path))


def module_of(change: Callable[[np.float32], np.float32]) -> ModuleType:
    source = CHANGED.format(number=next(NUMBERS))
    return load_module("ahead", source, {"change": change, "FLAGS": FLAGS, "np": np})


def result(module: ModuleType) -> np.ndarray:
    x = np.array([0.5, 2.0], np.float32)
    module.kernel(x)
    return x - module.NUMBER


def asked(module: ModuleType) -> int:
    """Begin another process for the kernel of a module; return of how many kernels it was asked."""
    ahead.want(module, "kernel", [typeof(np.zeros(2, np.float32))])
    ahead.begin()
    return len(cache.awaited)


def test_another_process_compiles(empty_cache: None) -> None:
    module = module_of(math.sqrt)
    assert asked(module) == 1
    np.testing.assert_allclose(result(module), np.sqrt([0.5, 2.0]), rtol=1e-4)
    assert sum(module.kernel.stats.cache_hits.values()) == 1 and not module.kernel.stats.cache_misses
    assert asked(module) == 0  # it is there


def test_this_process_compiles_what_another_one_cannot(empty_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    double, root = module_of(lambda x: x + x), module_of(math.sqrt)  # the first has no name by which another process could import it
    ahead.want(root, "kernel", [typeof(np.zeros(2, np.float32))])
    assert asked(double) == 1  # for the other one
    np.testing.assert_allclose(result(double), [1.0, 4.0], rtol=1e-4)

    cache.awaited.clear()
    monkeypatch.setattr(ahead, "PROGRAM", "raise SystemExit(1)")
    failed = module_of(math.sqrt)
    assert asked(failed) == 1
    np.testing.assert_allclose(result(failed), np.sqrt([0.5, 2.0]), rtol=1e-4)
    assert sum(failed.kernel.stats.cache_misses.values()) == 1


def test_a_process_whose_kernels_cannot_be_kept_compiles_no_more(empty_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [module_of(each).kernel for each in (math.sqrt, math.exp)]
    monkeypatch.setattr(cache, "replace", lambda path, content: None)
    assert [compile_here(kernel, [typeof(np.zeros(2, np.float32))]) for kernel in kernels] == [False, False]
    monkeypatch.undo()
    assert compile_here(module_of(math.tan).kernel, [typeof(np.zeros(2, np.float32))])


@pytest.mark.parametrize("begun", [False, True])
def test_this_process_compiles_what_the_other_one_has_not_begun(empty_cache: None, monkeypatch: pytest.MonkeyPatch, begun: bool) -> None:
    monkeypatch.setattr(ahead, "PROGRAM", "import time; time.sleep(60)")
    monkeypatch.setattr(KernelFiles, "is_taken", lambda files, key: begun)
    module = module_of(math.sqrt)
    assert asked(module) == 1
    ahead.share()
    assert (len(cache.awaited), len(module.kernel.overloads)) == ((1, 0) if begun else (0, 1))
    cache.awaited.clear()


def test_the_lock_of_another_process_says_what_it_compiles(files: KernelFiles, holder) -> None:
    assert files.is_taken(KEY)
    holder.kill()
    holder.wait()
    assert not files.is_taken(KEY)


def test_a_process_starts_early_for_a_new_environment_only(empty_cache: None, tmp_path: Path) -> None:
    (tmp_path / "kernels" / "known-0123").mkdir(parents=True)
    source, lock = tmp_path / "env.py", tmp_path / ".#env.py"
    source.touch()
    os.utime(source, (0, 0))
    lock.symlink_to("somebody@machine.1")  # as of an editor with unsaved changes
    ahead.expect("known", (), source=source)
    assert not ahead._waiting
    ahead.expect("new", ("warprun.math",))
    (early,) = ahead._waiting
    module = module_of(math.sqrt)
    assert asked(module) == 1 and not ahead._waiting
    np.testing.assert_allclose(result(module), np.sqrt([0.5, 2.0]), rtol=1e-4)
    assert sum(module.kernel.stats.cache_hits.values()) == 1
    assert early.wait() == 0


def test_a_run_that_is_not_built_leaves_no_process(empty_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    expected: list[int] = []

    def fail(*_: object) -> None:
        expected.append(len(ahead._waiting))
        raise UserError("the folder is taken")

    ahead.dismiss()
    monkeypatch.setattr("warprun.runs.train.train", fail)
    with pytest.raises(UserError, match="taken"):
        warprun.train(["env=cartpole", "agent=ppo", "n_envs=8", "total_steps=4096", "device=cpu", "concurrency.threads=2"])
    assert expected == [1] and not ahead._waiting


def test_a_process_that_gets_no_orders_ends(empty_cache: None) -> None:
    ahead.expect("new", ())
    (early,) = ahead._waiting
    ahead.begin()
    assert not ahead._waiting and early.returncode is not None


@pytest.mark.by_default(1)
@pytest.mark.parametrize("setting", [("cartpole", "a2c"), ("pendulum", "ppo"), ("cartpole", "ppo", "agent.advantage=nstep")])
def test_agents_want_what_their_updates_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: tuple[str, ...]) -> None:
    """A kernel that is wanted for other types than it is called with would be compiled twice."""
    wanted: list[tuple[ModuleType, str, tuple[object, ...]]] = []
    monkeypatch.setattr(ahead, "want", lambda module, kernel, types: wanted.append((module, kernel, tuple(types))))
    env, agent, *more = setting
    sizes = ["n_envs=4", "agent.horizon=4", "total_steps=32", "eval.episodes=2", "tuned=none"]
    given = [f"env={env}", f"agent={agent}", *sizes, f"output_root={tmp_path}", "agent.minibatches=2" if agent == "ppo" else "", *more]
    warprun.train([each for each in given if each])
    assert {"gradient", "whole"} < {kernel for _, kernel, _ in wanted}
    for module, kernel, types in wanted:
        assert types in getattr(module, kernel).overloads


def at(pair: tuple[np.float32, int], place: int) -> object:
    return pair[place]


def test_a_function_is_compiled_once_for_all_numbers_and_for_each_where_nothing_else_will_do() -> None:
    draw, head = kernel_function(uniform), "from numba import njit\n\n@njit(**FLAGS)\ndef kernel"
    before = set(draw.overloads)  # type: ignore[attr-defined]
    source = f"{head}(rng):\n    return draw(rng, 0, 0.0, 1.0) + draw(rng, 1, 0.0, 1.0)\n"
    load_module("draws", source, {"draw": uniform, "FLAGS": FLAGS}).kernel(Rng(*[np.uint32(7)] * 5))
    assert len(set(draw.overloads) - before) <= 1  # type: ignore[attr-defined]
    assert not any(isinstance(kind, Literal) for types in draw.overloads for kind in types)  # type: ignore[attr-defined]
    source = f"{head}(x, n):\n    return at((x, n), 1) + at((x, n), 0)\n"
    assert load_module("places", source, {"at": at, "FLAGS": FLAGS}).kernel(np.float32(0.5), 2) == 2.5
