"""CUDA graphs as far as a machine without a GPU can tell: the emulated ones of `graphs` leave the same bits as plain training."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest
import torch

from tests.kernels import graphs
from tests.simulation.rollouts import ROOT
from warprun.config.compose import compose
from warprun.config.schema import load_environment
from warprun.errors import UserError
from warprun.kernels import repeat
from warprun.kernels.repeat import WARM_UP, Captured
from warprun.runs.build import make_plan
from warprun.simulation.device import Device


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a function that trains some cases, once, and returns what they leave behind, by name."""

    @cache
    def train(cases):
        file = tmp_path_factory.mktemp("graphs") / "trained.npz"
        command = [sys.executable, "-W", "error::RuntimeWarning", "-m", "tests.kernels.graphs", str(file), *cases]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_ENABLE_CUDASIM": "1"}
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        return dict(np.load(file))

    return train


BY_TORCH = tuple(case for case in graphs.CASES if case not in graphs.BY_KERNELS)


@pytest.mark.by_default(0)
@pytest.mark.parametrize("case", [*BY_TORCH, *(pytest.param(case, marks=pytest.mark.slow) for case in graphs.BY_KERNELS)])
def test_captured_training_is_the_plain_one(trained, case):
    trained = trained(BY_TORCH if case in BY_TORCH else (case,))
    plain = {name: array for name, array in trained.items() if name.startswith(f"{case}/plain/")}
    assert sum(name.endswith("parameters") for name in plain) > 0
    for name, array in plain.items():
        np.testing.assert_array_equal(trained[name.replace("/plain/", "/captured/")], array, err_msg=name)
        if name.endswith("updates"):
            assert array > 2 * WARM_UP


def emulated(monkeypatch):
    monkeypatch.setattr(repeat, "record", graphs.record)
    monkeypatch.setattr(repeat, "run_aside", lambda work: work())


def test_every_call_is_one_run_and_only_the_device_is_asked_again(monkeypatch):
    emulated(monkeypatch)
    total, asked = torch.zeros(()), []

    def add(amount):
        asked.append(amount)
        total.add_(amount)
        return total * 2

    captured = Captured(add)
    for n in range(10):
        assert captured(1.0) == 2 * (n + 1)
        total_before = float(total)
        captured(100.0)
        total.fill_(total_before)
    assert asked == [1.0, 100.0] * (WARM_UP + 1)


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
    [
        ("cuda", True, "; captured in CUDA graphs"),
        ("cuda", False, "; not captured (engine.capture=false)"),
        ("cpu", True, ""),
        ("cpu", False, ""),
        ("cudasim", True, ""),
    ],
)
def test_the_setting_decides_on_cuda_and_the_plan_says_so(device, wanted, told):
    # Nothing is built, so no GPU is needed.
    config = compose(["env=cartpole", "device=cpu", f"engine.capture={str(wanted).lower()}"])
    plan = make_plan(config, load_environment(config.env)[0], Device(device, "a test"))
    assert str(plan).partition(";")[1:] == told.partition(";")[1:]
    assert plan.captured == (("graphs" if device == "cuda" else "calls") if wanted else None)


@pytest.mark.parametrize("ends_with_an_error", [False, True])
def test_what_cannot_be_captured_is_told_in_one_line(monkeypatch, ends_with_an_error):
    @contextmanager
    def capture(made, stream):
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
