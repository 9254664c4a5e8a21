"""CUDA graphs as far as a machine without a GPU can tell: the emulated ones of `graphs` leave the same bits as plain training."""

import gc
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from tests.kernels import graphs
from tests.selection import few, selected
from tests.simulation.rollouts import begin, finish
from warprun.config.compose import compose
from warprun.config.planning import make_plan
from warprun.config.schema import load_environment
from warprun.errors import UserError
from warprun.kernels import repeat
from warprun.kernels.repeat import WARM_UP, Captured


@pytest.fixture(scope="module")
def trained(request, tmp_path_factory):
    """Return what trainings of the cases that are tested leave behind, by name."""
    file = tmp_path_factory.mktemp("graphs") / "trained.npz"
    cases = selected(request, "test_captured_training_is_the_plain_one", "case")
    finish(begin("tests.kernels.graphs", file, *cases, NUMBA_ENABLE_CUDASIM="1"))
    return dict(np.load(file))


@pytest.mark.by_default(0)
@pytest.mark.parametrize("case", few(graphs.CASES, *graphs.CASES.keys() - graphs.BY_KERNELS))
def test_captured_training_is_the_plain_one(trained, case):
    plain = {name: array for name, array in trained.items() if name.startswith(f"{case}/plain/")}
    assert sum(name.endswith("parameters") for name in plain) > 0
    for name, array in plain.items():
        np.testing.assert_array_equal(trained[name.replace("/plain/", "/captured/")], array, err_msg=name)
        if name.endswith("updates"):
            assert array > 2 * WARM_UP


def emulated(monkeypatch):
    monkeypatch.setattr(repeat, "record", graphs.record)
    monkeypatch.setattr(repeat, "run_aside", lambda work: work())


def test_numbers_of_the_host_are_those_of_the_capture(monkeypatch):
    """And so an emulated graph is as wrong as a real one would be."""
    emulated(monkeypatch)
    total, on_device = torch.zeros(()), torch.zeros(())
    count = 0
    captured = Captured(lambda: total.add_(on_device + count))
    for n in range(WARM_UP + 3):
        count = n
        on_device.fill_(10.0 * n)
        captured()
    seen = [min(n, WARM_UP) for n in range(WARM_UP + 3)]
    assert float(total) == sum(seen) + 10.0 * sum(range(WARM_UP + 3))


@pytest.mark.parametrize(
    ("device", "wanted", "told"),
    [("cuda", True, "; captured in CUDA graphs"), ("cuda", False, "; not captured (engine.capture=false)"), ("cpu", True, "")],
)
def test_the_setting_decides_on_cuda_and_the_plan_says_so(device, wanted, told):
    # Nothing is built, so no GPU is needed.
    config = compose(["env=cartpole", "device=cpu", f"engine.capture={str(wanted).lower()}"])
    plan = make_plan(config, load_environment(config.env)[0], device)
    assert str(plan).partition(";")[1:] == told.partition(";")[1:]
    assert plan.repeated.by == (("graphs" if device == "cuda" else "calls") if wanted else "Python")


@pytest.mark.parametrize("ends_with_an_error", [False, True])
def test_what_cannot_be_captured_is_told_in_one_line(monkeypatch, ends_with_an_error):
    @contextmanager
    def capture(made, stream, capture_error_mode):
        try:
            yield
        finally:
            if ends_with_an_error:  # torch's own error, which comes last, does not tell the cause
                raise RuntimeError("capture was invalidated")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(repeat, "_stream_of_captures", lambda: None)

    def work():
        raise RuntimeError("operation not permitted when stream is capturing\nCUDA kernel errors might be ...")

    with pytest.raises(UserError, match=r"^a CUDA graph .*\(operation not permitted .* capturing\); run with engine\.capture=false$"):
        repeat.record(work)


class Stream:
    """Stands for a stream; keeps what the host has asked of it, in the list of all streams."""

    def __init__(self, name, asked):
        self.name, self.asked = name, asked

    def wait_stream(self, other):
        self.asked.append(f"{self.name} waits for {other.name}")


def test_runs_before_the_capture_are_in_order_with_the_work_around_them(monkeypatch):
    """So memory that torch frees on one of the two streams can be taken on the other one: the work that read it comes before."""
    asked = []
    current, aside = [Stream("current", asked)], Stream("aside", asked)

    @contextmanager
    def on(stream):
        current.append(stream)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current[-1])
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(repeat, "_stream_of_captures", lambda: aside)
    assert repeat.run_aside(lambda: asked.append(f"work on {torch.cuda.current_stream().name}")) is None
    assert asked == ["aside waits for current", "work on aside", "current waits for aside"]


class Garbage:
    """A reference cycle whose end is noted."""

    def __init__(self, noted):
        self.itself, self.noted = self, noted

    def __del__(self):
        self.noted.append("end of garbage")


@pytest.fixture
def captures(monkeypatch):
    """Let captures run their work, as the driver does in place of recording, and return what happens in them."""
    noted = []

    @contextmanager
    def capture(made, stream, capture_error_mode):
        noted.append(capture_error_mode)
        yield
        noted.append("end of capture")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: type("Graph", (), {"replay": lambda self: noted.append("replay")})())
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(repeat, "_stream_of_captures", lambda: None)
    return noted


def test_nothing_else_of_the_process_meets_a_capture(captures):
    """Calls of other threads do not end it, and no reference cycle ends within it: the ends of modules and graphs call the driver."""
    Garbage(captures)

    def work():
        for _ in range(2 * gc.get_threshold()[0]):
            Garbage(captures)
        captures.append("work")

    assert gc.isenabled()
    replay, _ = repeat.record(work)
    assert gc.isenabled()
    within = captures[captures.index("thread_local") : captures.index("end of capture")]
    assert captures[0] == "end of garbage" and within == ["thread_local", "work"]
    replay()
    assert "replay" in captures


def test_memory_that_is_full_in_a_capture_is_told_as_such(captures):
    def work():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    with pytest.raises(torch.OutOfMemoryError):
        repeat.record(work)
    assert gc.isenabled()


def test_a_capture_follows_runs_that_have_loaded_and_allocated_all(monkeypatch):
    """A graph cannot hold the first launch of a kernel, which loads its module, nor the first allocations of a library."""
    ran, recorded = Counter(), []
    monkeypatch.setattr(repeat, "run_aside", lambda work: work())

    def record(work):
        recorded.append(dict(ran))
        return (lambda: None), work()

    monkeypatch.setattr(repeat, "record", record)
    captured = Captured(lambda *given: ran.update([given]))
    for n in range(20):
        captured("a", n % 2)
    assert recorded == [{("a", 0): WARM_UP, ("a", 1): WARM_UP}, {("a", 0): WARM_UP + 1, ("a", 1): WARM_UP}]
