"""Kernels whose arguments are bound once, and the threads that share a call."""

import atexit
import os
import signal
import threading
import weakref
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import typeof
from numba.core.registry import cpu_target

from warprun.kernels import bound
from warprun.kernels.bound import Call, kernel_module
from warprun.kernels.compile import BOUND, load_module
from warprun.kernels.threads import ASLEEP, HAND_OFF, Team, Threads

pytestmark = pytest.mark.filterwarnings("ignore::numba.core.errors.NumbaPerformanceWarning")


class Pair(NamedTuple):
    """Two numbers of one type: Numba's model of it is an array."""

    a: np.float32
    b: np.float32


class Mixed(NamedTuple):
    """Fields of different alignment."""

    flag: bool
    number: np.float64
    small: np.uint32
    array: np.ndarray
    pair: Pair
    none: None
    other: np.float32


def fill(first: int, last: int, thread: int, out: np.ndarray, mixed: Mixed, add: np.int64, transposed: np.ndarray) -> None:
    """Write a number that depends on every argument."""
    for n in range(first, last):
        out[n, 0] = mixed.array[1, 2] + mixed.number + mixed.small + mixed.pair.a + mixed.pair.b + mixed.other + add
        out[n, 1] = transposed[2, 0] + (100.0 if mixed.flag else 0.0)
        out[n, 2] = thread


SOURCE = '''"""A kernel of the tests."""

from numba import njit


@njit(cache=True, **BOUND)
def kernel(first, last, thread, out, mixed, add, transposed):
    fill(first, last, thread, out, mixed, add, transposed)
'''


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return load_module("bound", SOURCE, {"fill": fill, "BOUND": BOUND})


def given() -> tuple[np.ndarray, Mixed, int, np.ndarray]:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    mixed = Mixed(True, np.float64(0.5), np.uint32(7), array, Pair(np.float32(10.0), np.float32(20.0)), None, np.float32(0.25))
    return np.zeros((9, 3)), mixed, 1000, array.T


def call_of(module: ModuleType, arguments: tuple[Any, ...], python: bool = False) -> Call:
    return Call(fill if python else module.kernel, *arguments)


@pytest.mark.parametrize("python", [False, True])
def test_every_argument_arrives(module: ModuleType, python: bool) -> None:
    arguments = given()
    call = call_of(module, arguments, python)
    call(2, 4, 3)
    assert arguments[0][2:4].tolist() == [[5.0 + 0.5 + 7.0 + 30.0 + 0.25 + 1000.0, 102.0, 3.0]] * 2
    assert not arguments[0][:2].any() and not arguments[0][4:].any()
    call.change(add=2000)
    call.change(mixed=arguments[1]._replace(array=arguments[1].array[:, :]))
    call(0, 1, 0)
    assert arguments[0][0, 0] == 5.0 + 0.5 + 7.0 + 30.0 + 0.25 + 2000.0
    other = np.zeros_like(arguments[0])
    call.move(out=other)
    call(0, 1, 0)
    assert (other[0] == arguments[0][0]).all()
    kept = weakref.ref(other)
    del other
    assert (kept() is not None) == python  # machine code has its address alone


def test_the_layout_is_that_of_llvm(module: ModuleType) -> None:
    context = cpu_target.target_context
    for value in (*given(), np.zeros(()), np.zeros((2, 3, 4), np.int32), (), (True, np.float64(1.0)), (np.float32(1.0), True, (1, None))):
        kind = typeof(value)
        layout = bound.layout_of(context.data_model_manager, kind)
        assert layout.itemsize == context.get_abi_sizeof(context.get_data_type(kind)), value


class Inner(NamedTuple):
    """A value within a tuple."""

    a: object


def test_kept_types_are_those_of_numba() -> None:
    fixed, square = np.zeros((3, 4), np.float32), np.zeros((4, 4))
    fixed.flags.writeable = False
    forms = [
        square,
        square.T,
        square[::2],
        square[:, 0],
        fixed,
        np.zeros(4, np.int32),
        np.zeros((), bool),
        np.float32(1),
        1.0,
        1,
        True,
        None,
    ]
    values = [Inner(form) for form in forms] + [(form, Inner(form)) for form in forms] + [(), (square, 1), (square, 2**63)]
    for _ in range(2):  # first made, then found
        assert bound.signature(values)[bound.SPAN :] == [typeof(value) for value in values]


def test_an_array_of_another_type_is_refused(module: ModuleType) -> None:
    """Machine code would read it as one of the type that it was compiled for."""
    arguments = given()
    call, array = call_of(module, arguments), arguments[1].array
    call(0, 1, 0)
    for other in (np.repeat(array, 2, axis=1)[:, ::2], array.astype(np.float64), array[:, 0]):
        with pytest.raises(TypeError, match="a kernel for array"):
            call.change(mixed=arguments[1]._replace(number=np.float64(9.0), array=other))
    expected = arguments[0][0].copy()
    call(0, 1, 0)
    assert (arguments[0][0] == expected).all()


def scale(out: np.ndarray, by: float, part: int) -> None:
    out[part] *= by


def test_a_kernel_is_compiled_for_each_type_of_an_argument() -> None:
    module = kernel_module("scaling", {"run": [scale]})
    for by in (np.float32(2.5), 2.5, 3):
        for dtype in (np.float32, np.float64, np.int64):
            out = np.full(2, 4, dtype)
            Call(module.run, out, by)(0, 2, 0)
            assert out.tolist() == [int(4 * by)] * 2


def test_a_change_that_is_refused_changes_nothing() -> None:
    module = kernel_module("scaling", {"run": [scale]})
    out, other = np.ones(2, np.float32), np.ones(2, np.float32)
    call = Call(module.run, out, 2.0)
    call(0, 2, 0)
    with pytest.raises(TypeError, match="got an array of float64"):
        call.change(by=5.0, out=np.ones(2))
    call(0, 2, 0)
    assert out.tolist() == [4.0, 4.0] and call.arguments == [out, 2.0]
    call.change(by=5.0, out=other)
    call(0, 2, 0)
    assert other.tolist() == [5.0, 5.0]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_threads_share_all_items(module: ModuleType, count: int) -> None:
    arguments = given()
    call, threads = call_of(module, arguments), Team(count)
    for total in (1, 2, 5, 9):
        arguments[0][:] = -1.0
        threads.share(call, total)
        done = arguments[0]
        assert (done[:total, 1] == 102.0).all() and (done[total:] == -1.0).all()
        assert set(done[:total, 2]) == set(range(min(count, total)))
        assert (np.diff(done[:total, 2]) >= 0).all()


def test_a_small_call_takes_one_thread(module: ModuleType) -> None:
    arguments = given()
    call, threads = call_of(module, arguments), Team(2)
    threads.share(call, 9, operations=HAND_OFF)
    assert not arguments[0][:, 2].any()
    threads.share(call, 9, operations=HAND_OFF + 1)
    assert arguments[0][:, 2].any()


def test_threads_wake_up_again(module: ModuleType) -> None:
    arguments = given()
    call, threads = call_of(module, arguments), Team(2)
    for _ in range(20):
        arguments[0][:] = -1.0
        threads.share(call, 9)
        assert (arguments[0][:, 1] == 102.0).all()
        while threads._slots[1, 0] != ASLEEP:
            pass


def test_a_second_caller_works_alone(module: ModuleType) -> None:
    calls = [call_of(module, given()) for _ in range(4)]
    threads = Team(3)
    callers = [threading.Thread(target=lambda call=call: [threads.share(call, 9) for _ in range(500)]) for call in calls]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all((call.arguments[0][:, 1] == 102.0).all() for call in calls)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own(module: ModuleType) -> None:
    arguments = given()
    call, threads = call_of(module, arguments), Team(2)
    threads.share(call, 9)
    arguments[0][:] = -1.0
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends a process that waits for a thread which it does not have
        threads.share(call, 9)
        os._exit(0 if (arguments[0][:, 1] == 102.0).all() and arguments[0][:, 2].any() else 1)
    assert os.waitpid(child, 0)[1] == 0
    threads.share(call, 9)
    assert (arguments[0][:, 1] == 102.0).all()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_has_threads_for_functions_of_its_own() -> None:
    numbers, threads = np.zeros(4), Threads(2)

    def work(begin: int, end: int, _: int) -> None:
        numbers[begin:end] += 1.0

    threads.share(work, 4)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends a process that waits for a thread which it does not have
        threads.share(work, 4)
        os._exit(0 if (numbers == 2.0).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    threads.share(work, 4)
    assert (numbers == 2.0).all()


def test_calls_at_the_end_of_a_process_work_alone(module: ModuleType) -> None:
    """A thread that has ended does not answer, and one that still works would forget that it was told to end."""
    team_of_two, called = Team(2), threading.Event()
    busy = call_of(module, given())

    def many() -> None:
        for _ in range(2000):
            team_of_two.share(busy, 9)
            called.set()

    caller = threading.Thread(target=many, daemon=True)
    caller.start()
    assert called.wait(60)
    ending = threading.Thread(target=team_of_two._end, daemon=True)
    ending.start()
    atexit.unregister(team_of_two._end)
    for thread in (ending, caller):
        thread.join(60)
        assert not thread.is_alive()
    assert (busy.arguments[0][:, 1] == 102.0).all()


def test_an_error_in_any_thread_is_raised(module: ModuleType) -> None:
    source = SOURCE.replace("    fill(first, last, thread, out, mixed, add, transposed)", "    if last == add:\n        raise ValueError")
    failing = load_module("failing", source, {"BOUND": BOUND})
    out, mixed, _, transposed = given()
    for last in (4, 9):
        with pytest.raises(RuntimeError, match="kernel"):
            Team(2).share(Call(failing.kernel, out, mixed, last, transposed), 9)
    Team(2).share(Call(failing.kernel, out, mixed, -1, transposed), 9)
