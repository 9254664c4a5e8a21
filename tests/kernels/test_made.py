"""Functions that functions make, in another process, and functions that are rebuilt, by several threads."""

import os
import signal
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event

import pytest
from numba.core.compiler_lock import global_compiler_lock

from tests.learning.cpu.test_gradient import NETWORKS, SPACES, learner_for
from warprun.kernels import compile
from warprun.kernels.compile import kernel_function, load_module, plain_function
from warprun.kernels.fingerprint import is_jitted
from warprun.kernels.made import dumps
from warprun.learning.kernels.losses import DUELING, PLAIN, q_values_by
from warprun.learning.kernels.policy_gradient import PolicyGradient

READ = """
import pickle, sys
from warprun.kernels.compile import load_module
print(load_module(*pickle.load(open(sys.argv[1], "rb"))).__name__)
"""


def test_the_same_arguments_make_the_same_function() -> None:
    assert q_values_by(PLAIN, None) is q_values_by(PLAIN, None)
    assert q_values_by(PLAIN, None) is not q_values_by(DUELING, None)


def test_another_process_makes_the_same_module(tmp_path: Path) -> None:
    gradient = learner_for("ppo", SPACES["box"], NETWORKS["tanh"]).operations.gradient
    assert isinstance(gradient, PolicyGradient)
    file = tmp_path / "recipe"
    file.write_bytes(dumps(gradient._gradient.module.__recipe__))
    found = subprocess.run([sys.executable, "-c", READ, str(file)], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == gradient._gradient.module.__name__


def half(x: float) -> float:
    return 0.5 * x


def test_a_module_of_compiled_functions_is_not_that_of_plain_ones() -> None:
    plain, compiled = (load_module("halves", "\n", {"half": half}, build) for build in (plain_function, kernel_function))
    assert not is_jitted(plain.half) and is_jitted(compiled.half)
    assert load_module("halves", "\n", {"half": half}, plain_function) is plain


def test_two_threads_rebuild_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second thread comes while the first one rebuilds, and waits."""
    second = ThreadPoolExecutor(1)
    made: list[Future[object]] = []

    def rebuild(function, part, with_parts=compile._with_parts):
        if not made:
            made.append(second.submit(plain_function, half))
            wait(made, timeout=0.2)
        return with_parts(function, part)

    monkeypatch.setattr(compile, "_with_parts", rebuild)
    monkeypatch.setattr(compile, "_rebuilt", {})
    with second:
        first = plain_function(half)
        assert made[0].result() is first


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_that_is_forked_while_a_thread_compiles_can_compile() -> None:
    compiles = Event()

    @global_compiler_lock
    def compile_for_a_while() -> None:
        compiles.set()
        Event().wait(0.2)

    with ThreadPoolExecutor(1) as other:
        other.submit(compile_for_a_while)
        compiles.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # ends a process that waits for the thread
            with global_compiler_lock:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
