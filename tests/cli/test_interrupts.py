"""Ctrl-C while a command imports what it needs: one line and exit code 130, whatever is being imported."""

import os
import pty
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

DRIVER = """
import os, signal, sys, time

class Watcher:
    # Print each import; at that of the module that is named, interrupt this process, and give it time to end.
    def find_spec(self, name, path=None, target=None):
        watched = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        if not at:
            print("watched" if watched else "before", name)
        elif watched and name == at:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(20)

at = sys.argv.pop(1)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Watcher())
from warprun.__main__ import main
main()
"""
COMMAND = ["env=cartpole", "--cfg", "job"]
LIGHT = {"warprun", "warprun.__main__", "warprun.cli", "warprun.cli.streams", "warprun.runs", "warprun.runs.signals"}
"""What is imported before signals are watched, beside the standard library."""


def run(at: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", DRIVER, at, *COMMAND], capture_output=True, text=True, timeout=60)


@cache
def imports() -> dict[str, list[str]]:
    """Return what a command imports before and after it watches for signals ("watched"), in this order."""
    lines = [line.split() for line in run("").stdout.splitlines()]
    return {when: [line[1] for line in lines if line[:1] == [when] and len(line) == 2] for when in ("before", "watched")}


def test_signals_are_watched_before_anything_else_is_imported() -> None:
    before = {name for name in imports()["before"] if name.partition(".")[0] not in sys.stdlib_module_names}
    assert before == LIGHT


@pytest.mark.by_default(1)
@pytest.mark.parametrize("part", range(8))
def test_an_interrupt_in_an_import_is_one_line(part: int) -> None:
    names = [name for name in dict.fromkeys(imports()["watched"]) if name.startswith("warprun.") or "." not in name]
    assert names[0] == "warprun.cli.main" and {"numpy", "hydra", "omegaconf", "warprun.config.registry"} <= {*names}
    # The first part has the first and the last import, and five between them.
    chosen = [names[0], names[-1], *names[1 :: len(names) // 5]] if part == 0 else names[part - 1 :: 7]
    for name in chosen:
        done = run(name)
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "warprun: error: interrupted\n"), name


WAITING = """
import os, signal, time
from warprun.kernels import waiting
from warprun.runs import signals
signals.watch()
waiting.PATIENCE_S = waiting.TICK_S = 0.1
with waiting.on("compiling rollout", "tank"):
    time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(20)
"""


def test_an_interrupt_takes_the_place_of_a_line_that_moves(tmp_path: Path) -> None:
    terminal, end = pty.openpty()
    given = os.environ | {"TERM": "xterm", "WARPRUN_CACHE_DIR": str(tmp_path)}  # which does not know how long the last time took
    with subprocess.Popen([sys.executable, "-c", WAITING], stderr=end, env=given) as process:
        os.close(end)
        said = b""
        with suppress(OSError):  # Linux reports the end of a terminal so
            while part := os.read(terminal, 1 << 16):
                said += part
    os.close(terminal)
    assert process.returncode == 130
    assert b"compiling rollout of tank: 1 s\x1b[K\r\x1b[Kwarprun: error: interrupted\r\n" in said.replace(b": 0 s", b": 1 s")


def test_a_thread_that_keeps_a_command_from_ending_is_named(tmp_path: Path) -> None:
    program = tmp_path / "started.py"
    text = (
        "import threading, time\nfrom warprun.cli import process\nprocess.PATIENCE_S = 0.1\n"
        "def late(): time.sleep(600)\nthreading.Thread(target=late).start()\nprocess.name_threads()\n"
    )
    program.write_text(text)
    started = subprocess.Popen([sys.executable, str(program)], stderr=subprocess.PIPE, text=True)
    try:
        assert started.stderr
        line = started.stderr.readline()
    finally:
        started.kill()
        started.communicate()
    assert line == f"{program}:4 in late: this thread keeps the command from ending; make it a daemon, or end it in close()\n"
