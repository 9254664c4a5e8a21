"""Every mistake in an environment file ends the command in one line with the place, exit code 2, and no files."""

import builtins
import re
import shutil
import signal
import time
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pytest
from _pytest.mark import ParameterSet

from tests.environments import clockwork, market
from tests.environments.broken import CASES, FACTORY, SOUND, Case
from tests.simulation.rollouts import CPU, make
from tests.written import add_environment
from warprun.cli.main import run
from warprun.config.registry import import_environment
from warprun.environment import Box, Discrete, Environment, float32, single_agent
from warprun.errors import UserError
from warprun.kernels.check import check_language
from warprun.simulation.arrays import ArrayPlan
from warprun.simulation.codegen import targets
from warprun.simulation.kernel_engine import KernelEngine

SETTINGS = (
    "env=mine", "agent=a2c", "n_envs=2", "agent.horizon=2", "total_steps=8", "device=cpu", "concurrency.threads=1",
    "engine.fused=false", "eval.every=never", "eval.episodes=1", "eval.final_episodes=1", "log.tensorboard=false",
)  # fmt: skip


def parameter(case: Case) -> ParameterSet:
    """Return a case as a parameter; two thirds, chosen by a hash of their name, are `long`."""
    marks = () if crc32(case.id.encode()) % 3 == 0 else (pytest.mark.long,)
    return pytest.param(case, id=case.id, marks=marks)


def write(folder: Path, text: str | bytes) -> Path:
    add_environment(folder, "mine")
    file = folder / "mine.py"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


@pytest.fixture
def fails(tmp_path, monkeypatch, capfd):
    """Return a function that trains on a file in one of these folders, and returns the exit code and the only line of its errors."""
    monkeypatch.chdir(tmp_path)

    def train(text: str | bytes | None, *settings: str) -> tuple[int, str]:
        present = {"conf"}
        if text is not None:
            present.add(write(tmp_path, text).name)
        start = time.process_time()  # other processes do not count
        code = run([*SETTINGS, *settings])
        seconds = time.process_time() - start
        out, err = capfd.readouterr()
        assert err.count("\n") == 1 and err.startswith("warprun: error: "), err
        assert "Traceback" not in out
        if code == 2:
            assert {path.name for path in tmp_path.iterdir()} == present
        assert len(err) < 500
        assert seconds < 5
        return code, err

    return train


@pytest.mark.by_default(30)
@pytest.mark.parametrize("case", [parameter(case) for case in CASES])
def test_a_broken_environment(case, fails, tmp_path):
    code, err = fails(case.text)
    assert code == 2, err
    for word in case.words:
        assert word.lower() in err.lower(), err
    if case.line:
        assert re.search(rf"{re.escape(str(tmp_path / 'mine.py'))}:{case.line}\b", err), (case.line, err)
    if case.function:
        assert f" in {case.function}" in err, err
    assert "mine.py" in err, err


def test_the_sound_environments_are_accepted(tmp_path):
    for text in (SOUND, FACTORY, "\ufeff" + SOUND):  # the last one with a byte order mark
        shutil.rmtree(tmp_path)
        environment, _ = import_environment(str(write(tmp_path, text)))
        if isinstance(environment, Environment):
            assert environment.make_tables() is not None
            check_language(tuple(phase.function for phase in environment.phases))


@pytest.mark.parametrize(
    "content, words",
    [
        (SOUND.encode().replace(b'"text"', b'"\xff"'), "utf-8"),
        (b"\xff\xfe" + SOUND.encode("utf-16-le"), "mine.py"),
        (b"\x7fELF\0\0\0", "null byte"),
        (SOUND.replace("NUMBERS =", "import os\nos.remove(__file__)\nNUMBERS =").encode(), "mine.py does not exist"),
        (SOUND.replace("import functools", "import other").encode(), "No module named 'other'"),
    ],
    ids=["not UTF-8", "UTF-16", "a program", "removed while it is imported", "neighbour missing"],
)
def test_files_that_are_no_environment(content, words, fails, tmp_path):
    if b"os.remove" in content:
        file = write(tmp_path, content)
        code = run(SETTINGS)
        assert code == 2 and not file.exists()
        return
    code, err = fails(content)
    assert code == 2
    assert words in err and "mine.py" in err


def test_a_file_that_does_not_exist_and_a_folder(fails, tmp_path):
    write(tmp_path, SOUND).unlink()
    code, err = fails(None)
    assert code == 2 and "environment file ./mine.py does not exist" in err
    (tmp_path / "mine.py").mkdir()
    code = run(SETTINGS)
    assert code == 2


def test_neighbours_that_import_each_other(tmp_path, monkeypatch, capfd):
    write(tmp_path, SOUND.replace("import functools", "import functools\nimport one"))
    (tmp_path / "one.py").write_text("from two import b\na = 1\n")
    (tmp_path / "two.py").write_text("from one import a\nb = 1\n")
    monkeypatch.chdir(tmp_path)
    assert run(SETTINGS) == 2
    err = capfd.readouterr().err
    assert f"{tmp_path / 'two.py'}:1: ImportError: cannot import name 'a'" in err and err.count("\n") == 1


@pytest.mark.parametrize("statement, words", [("raise SystemExit(0)", "SystemExit: 0"), ("raise OSError('stuck')", "OSError: stuck")])
def test_a_simulator_that_fails_during_training_fails_the_run(statement, words, fails, tmp_path):
    text = FACTORY.replace('raise RuntimeError("the mistake was not found")', f"{statement}  # here")
    line = next(number for number, each in enumerate(text.splitlines(), 1) if each.endswith("# here"))
    code, err = fails(text)
    assert code == 1
    assert f"{tmp_path / 'mine.py'}:{line} in collect: {words}" in err


def test_an_interrupt_while_a_file_is_imported_stays_an_interrupt(tmp_path):
    # To this thread: one sent to the process can reach another thread, and then Python's handler runs at any later time.
    file = write(tmp_path, "import signal\nsignal.raise_signal(signal.SIGINT)\n")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what is in the background without
    try:
        with pytest.raises(KeyboardInterrupt):
            import_environment(str(file))
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.long
def test_fields_with_a_default_are_filled_in(tmp_path):
    field = "    h: Annotated[np.ndarray, 3]\n"
    text = SOUND.replace(field, f"{field}    w: float32 = 0.5\n").replace("s.x, s.h[1]", "s.x, s.w")
    for given, seen in (("s.h, s.w + 0.25", 0.75), ("s.h, w=2", 2.0), ("s.h", 0.5)):
        file = tmp_path / "mine.py"
        file.write_text(text.replace("State(x, s.n + 1, s.h)", f"State(x, s.n + 1, {given})"))
        engine = make(import_environment(str(file))[0], "mine", n_envs=1, horizon=1)
        engine.step(0)
        assert engine.trajectory.groups["agent"].obs[1, 0, 0, 1] == seen


class State(NamedTuple):
    x: float32


def reset():
    return State(float32(0.0))


def step(s):
    return s, 0.0, False


def observe(s):
    return (s.x,)


GOOD = {"state": State, "observation": Box(1), "action": Discrete(2), "reset": reset, "step": step, "observe": observe}


@pytest.mark.parametrize("environment", [clockwork.environment, market.environment], ids=["one group", "two groups"])
def test_too_many_environments_are_refused_before_memory_is_taken(environment, monkeypatch):
    monkeypatch.setattr("warprun.simulation.trajectory.allocate", lambda *_: pytest.fail("allocated"))
    with pytest.raises(UserError, match=r"1000000000000 environments .*GiB on cpu; .* GiB are free"):
        KernelEngine(environment, "big", device=CPU, n_envs=10**12, horizon=16, seed=0, params=environment.params())


def test_memory_estimate_is_what_is_taken():
    environment, tables = market.environment, market.tables(0.05)
    engine = KernelEngine(environment, "market", device=CPU, n_envs=37, horizon=5, seed=0, params=environment.params(), tables=tables)
    taken = [*engine.arrays.by_name().values(), engine.trajectory.terminated, engine.trajectory.truncated]
    for group in engine.trajectory.groups.values():
        taken += [tensor for tensor in vars(group).values() if tensor is not None]
    assert ArrayPlan(environment, targets.CPU, 37, 5).bytes_needed() == sum(tensor.numel() * tensor.element_size() for tensor in taken)


def test_tables_in_double_precision_become_single():
    class Tables(NamedTuple):
        numbers: np.ndarray

    def observe_table(s, tables):
        return (tables.numbers[1],)

    environment = single_agent(**(GOOD | {"observe": observe_table, "tables": lambda: Tables(np.array([0.5, 1.5]))}))
    engine = make(environment, "tables", n_envs=1)
    assert engine.trajectory.groups["agent"].obs[0].item() == 1.5


def test_a_file_is_executed_once_and_again_when_it_has_changed(tmp_path):
    file = tmp_path / "counted.py"
    for value in ("None", "0.0"):
        file.write_text(f"import builtins\nbuiltins.counted = getattr(builtins, 'counted', 0) + 1\nenvironment = {value}\n")
        for _ in range(3):
            with pytest.raises(UserError, match="environment"):
                import_environment(str(file))
    assert vars(builtins).pop("counted") == 2
