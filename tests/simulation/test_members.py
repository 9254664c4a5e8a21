"""Runs that go on together, without a GPU: what is launched is only noted."""

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from types import ModuleType, SimpleNamespace

import pytest
import torch

from warprun.simulation import cuda_members, members
from warprun.simulation.launches import Launch, Recorded, recording
from warprun.simulation.members import Joined, Members, inside

CPU = torch.device("cpu")
KERNELS = ModuleType("kernels")


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[float]]]:
    """The numbers of the works that were done together, one list each time."""
    calls: list[list[float]] = []

    def merged(works: tuple[Recorded[object], ...], device: torch.device) -> Callable[[], None]:
        return lambda: calls.append([float(work.numbers[0]) for work in works])

    monkeypatch.setattr(cuda_members, "merged", merged)
    yield calls
    assert not inside()


def launched(number: float, name: str = "kernel") -> str:
    """Do what launches a kernel with a number of its own; return it as a result."""
    if recording.made is not None:
        recording.made.append(Launch(KERNELS, name, (1, 32), (float(number), 5), 0, "a test"))
    return f"{name} {number}"


def run(number: int, times: int, kernel: str = "kernel", ends: list[int] | None = None) -> Callable[[], None]:
    work = Joined(lambda: launched(number, kernel), CPU)

    def go() -> None:
        assert inside()
        for _ in range(times):
            assert work() == f"{kernel} {number}"
        if ends is not None:
            ends.append(number)

    return go


def finish(all_of: Members) -> None:
    while all_of:
        all_of.go_on()


def test_alike_work_is_done_at_once_until_a_member_ends(done: list[list[float]]) -> None:
    ends: list[int] = []
    three = Members()
    for number, times in ((0, 4), (1, 2), (2, 3)):
        three.begin(run(number, times, ends=ends))
    assert len(three) == 3
    finish(three)
    assert done == [[0, 1, 2], [0, 2], [0]]  # the first time each is recorded
    assert ends == [1, 2, 0]


def test_members_that_others_do_not_wait_with_come_first(done: list[list[float]]) -> None:
    both = Joined(lambda: launched(7), CPU), Joined(lambda: launched(7, "other"), CPU)

    def behind() -> None:
        for _ in range(2):
            both[0]()
            both[1]()

    all_of = Members()
    all_of.begin(run(0, 3, "other"))
    all_of.begin(run(1, 3, "other"))
    all_of.begin(behind)
    finish(all_of)
    assert done == [[7], [0, 1, 7], [0, 1]]


def test_members_keep_their_order_in_a_launch(done: list[list[float]]) -> None:
    work = [[Joined(lambda number=number, name=name: launched(number, name), CPU) for name in ("one", "other")] for number in range(3)]

    def detour(number: int) -> Callable[[], None]:
        def go() -> None:
            for n in range(6):
                work[number][0]()
                if n == number + 1:  # an evaluation, for example, at a moment of its own
                    work[number][1]()
                    work[number][1]()

        return go

    all_of = Members()
    for number in range(3):
        all_of.begin(detour(number))
    finish(all_of)
    assert [call for call in done if len(call) > 1] == 5 * [[0, 1, 2]]


def test_work_of_modules_with_one_name_is_not_alike() -> None:
    works = [
        Recorded(lambda module=module: _note(3, module))
        for module in (KERNELS, ModuleType("kernels"), KERNELS)  # type: ignore[misc]
    ]
    assert works[0].kind == works[2].kind != works[1].kind


def test_sizes_are_in_common_and_words_of_seeds_are_not() -> None:
    kinds = {Recorded(lambda value=value: _note(value)).kind for value in (3, 4, True, 2.5, 3.5, (2.5,), (3.5,))}
    assert len(kinds) == 5


def _note(value: object, module: ModuleType = KERNELS) -> None:
    assert recording.made is not None
    recording.made.append(Launch(module, "kernel", (1, 32), (value,), 0, "a test"))


def test_a_failure_is_that_of_every_member_of_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def merged(works: tuple[Recorded[object], ...], device: torch.device) -> Callable[[], None]:
        def fail() -> None:
            if len(works) == 2:
                raise RuntimeError("the card is gone")

        return fail

    monkeypatch.setattr(cuda_members, "merged", merged)
    said: list[str] = []

    def watched(go: Callable[[], None]) -> Callable[[], None]:
        def guarded() -> None:
            try:
                go()
                said.append("ended")
            except RuntimeError as error:
                said.append(str(error))

        return guarded

    all_of = Members()
    for number, kernel in ((0, "one"), (1, "one"), (2, "two")):
        all_of.begin(watched(run(number, 3, kernel)))
    finish(all_of)
    assert sorted(said) == ["ended", "the card is gone", "the card is gone"]


def test_what_a_member_prints_is_its_own(done: list[list[float]]) -> None:
    logs = [io.StringIO(), io.StringIO()]

    def prints(number: int) -> Callable[[], None]:
        def go() -> None:
            with redirect_stdout(logs[number]):
                print("begins")
                run(number, 3)()
                print("ends", number)

        return go

    before = sys.stdout
    two = Members()
    for number in range(2):
        two.begin(prints(number))
    assert sys.stdout is before
    finish(two)
    assert [log.getvalue() for log in logs] == ["begins\nends 0\n", "begins\nends 1\n"]


def test_work_of_torch_is_done_by_each_member(done: list[list[float]]) -> None:
    numbers = torch.zeros(2)

    def work() -> None:
        launched(1.0)
        numbers.add_(1.0)

    joined = Joined(work, CPU)
    one = Members()
    one.begin(lambda: [joined() for _ in range(members.RECORDED + 2)] and None)
    finish(one)
    assert numbers.tolist() == [5.0, 5.0] and done == []


def test_work_of_torch_on_a_gpu_is_captured_as_in_a_run_alone(done: list[list[float]], monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, captured = torch.zeros(2), list[object]()

    def capture(work: Callable[[], object]) -> Callable[[], object]:
        return lambda: (captured.append(work), work())

    monkeypatch.setattr(members, "Captured", capture)
    joined = Joined(lambda: numbers.add_(1.0), torch.device("cuda"))
    one = Members()
    one.begin(lambda: [joined() for _ in range(members.RECORDED + 2)] and None)
    finish(one)
    assert numbers.tolist() == [5.0, 5.0] and len(captured) == 2 and done == []


def test_a_member_computes_with_its_own_precision(done: list[list[float]]) -> None:
    found: list[tuple[str, bool]] = []

    def go(number: int, precision: str) -> None:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = precision == "high"
        run(number, 3)()
        found.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))

    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    two = Members()
    two.begin(lambda: go(0, "high"))
    two.begin(lambda: go(1, "highest"))
    finish(two)
    assert found == [("high", True), ("highest", False)]
    assert before == (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)


@pytest.mark.parametrize(
    ("threads", "given", "expected"),
    [(128, None, None), (256, 128, 128), (640, None, 96), (1024, None, 64), (1024, 128, 64), (1024, 32, 32)],
)
def test_a_block_around_a_kernel_has_no_more_registers_than_there_are(
    monkeypatch: pytest.MonkeyPatch, threads: int, given: int | None, expected: int | None
) -> None:
    options = {"fastmath": False} | ({"max_registers": given} if given else {})
    module = ModuleType("kernels")
    module.kernel = SimpleNamespace(targetoptions=options, py_func=launched)  # type: ignore[attr-defined]
    monkeypatch.setattr(cuda_members, "module_for", lambda name, source, functions: functions["OPTIONS"])
    made: object = cuda_members._module(module, "kernel", threads, "", ())
    assert made == ({"max_registers": expected} if expected else {})


def test_work_is_recorded_for_each_combination_of_arguments(done: list[list[float]]) -> None:
    joined = Joined(lambda number: launched(number), CPU)
    found: list[str] = []
    one = Members()
    one.begin(lambda: found.extend(joined(number) for number in (1.0, 2.0, 1.0, 2.0)))
    finish(one)
    assert found == ["kernel 1.0", "kernel 2.0", "kernel 1.0", "kernel 2.0"] and done == [[1.0], [2.0]]


def test_what_torch_makes_in_the_first_run_alone_is_no_work_of_later_ones(done: list[list[float]]) -> None:
    made: list[torch.Tensor] = []

    def work() -> None:
        if not made:
            made.append(torch.full((1,), 2.0))
        launched(1.0)

    joined = Joined(work, CPU)
    one = Members()
    one.begin(lambda: [joined() for _ in range(5)] and None)
    finish(one)
    assert done == [[1.0]] * 3
