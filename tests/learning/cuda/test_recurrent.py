"""Recurrent layers by the kernels of a GPU, in the simulator: values and gradients against torch in float64 and the kernels of the CPU.

    NUMBA_ENABLE_CUDASIM=1 python -m tests.learning.cuda.test_recurrent FILE.npz

writes what each of the three computes.
"""

import copy
import os
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
import torch

from tests.learning.cpu.test_recurrent import computed, made
from tests.pretended import CUDA, pretended
from tests.simulation.rollouts import ROOT
from warprun.learning.kernels.cpu import recurrent as cpu_recurrent
from warprun.learning.kernels.cuda import recurrent as cuda_recurrent
from warprun.learning.kernels.cuda import recurrent_slopes, recurrent_tensor, sums
from warprun.simulation import cuda_layers

CASES = {
    f"{kind}, {name}": (kind, *sizes)
    for kind in ("lstm", "gru")
    for name, sizes in {
        "one step": ((16,), None, 1, 1, 1),
        "two layers": ((16, 32), None, 4, 3, 1),
        "blocks that are not full": ((16,), 2, 3, 22, 2),
        "threads without a tile": ((48,), None, 3, 2, 1),
    }.items()
}
"""Type; units, steps after which all is forgotten, steps, sequences, multiprocessors."""
VIEWS = tuple(
    f"aten.{name}" for name in ("view", "_unsafe_view", "t.", "transpose", "expand", "select", "split", "unbind", "slice", "permute")
)
VIEWS += ("aten.empty", "aten.new_empty")
"""Operations that are no kernels."""
WAYS = ("float64", "cpu", "cuda")


def ways_of(kind: str, units: tuple[int, ...], sequence: int | None, steps: int, count: int, processors: int) -> dict[str, np.ndarray]:
    """Return what each way computes, by way and number."""
    network = made(kind, sequence, units)
    networks = copy.deepcopy(network).double(), network, copy.deepcopy(network)
    cpu_recurrent.compute_by_kernels(networks[1])
    cuda_recurrent.compute_by_kernels(networks[2])
    assert networks[2].over_steps is cuda_recurrent.layer
    cuda_recurrent.multiprocessors = lambda device: processors
    found = zip(WAYS, (computed(each, steps, count) for each in networks), strict=True)
    return {f"{way}/{n}": tensor.numpy() for way, tensors in found for n, tensor in enumerate(tensors)}


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    file = tmp_path_factory.mktemp("recurrent") / "simulated.npz"
    command = [sys.executable, "-m", "tests.learning.cuda.test_recurrent", str(file)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_ENABLE_CUDASIM": "1"}, check=True)
    return dict(np.load(file))


@pytest.mark.parametrize("case", CASES)
def test_values_carries_and_gradients_are_those_of_torch_and_of_the_cpu(simulated: dict[str, np.ndarray], case: str) -> None:
    names = [name for name in simulated if name.startswith(f"{case}/cuda/")]
    assert len(names) > 10
    for name in names:
        exact, by_cpu = (simulated[name.replace("/cuda/", f"/{way}/")] for way in ("float64", "cpu"))
        for expected in (exact, by_cpu):
            np.testing.assert_allclose(simulated[name], expected, rtol=0, atol=1e-5 * np.abs(exact).max(), err_msg=name)


def test_layers_that_do_not_fit_into_shared_memory_are_left_to_torch() -> None:
    for kind, most in (("lstm", 512), ("gru", 768)):
        for units, fits in ((most, True), (most + 16, False), (20, False)):
            network = made(kind, None, (16, units))
            cuda_recurrent.compute_by_kernels(network)
            assert (network.over_steps is not None) == fits


@pytest.mark.parametrize(
    ("capability", "expected", "fewest", "mosts"),
    [
        ((7, 5), ["forward", "backward"], 20, 22),
        ((9, 0), ["pack", "forward", "backward", "weight_slopes", "reduce"], 16, 19),
    ],
)
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_pass_over_all_steps_is_one_launch(
    kind: str, capability: tuple[int, int], expected: list[str], fewest: int, mosts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and backward with a layer before and after it; the other kernels of torch are as many for any number of steps."""
    launched: list[str] = []
    monkeypatch.setattr(cuda_layers, "capability", lambda: capability)
    for module in (cuda_recurrent, recurrent_slopes, sums, cuda_layers):
        monkeypatch.setattr(module, "launch", lambda module, name, *given: launched.append(name))
        monkeypatch.setattr(module, "on_device", lambda value: value)
    for module in (cuda_recurrent, recurrent_slopes):
        monkeypatch.setattr(module, "multiprocessors", lambda device: 132)
    monkeypatch.setattr(recurrent_slopes, "weight_slopes_of", cache(recurrent_slopes.WeightSlopes))
    monkeypatch.setattr(recurrent_tensor, "sources", cache(recurrent_tensor.sources.__wrapped__))
    with pretended() as device, torch.device(CUDA):
        for by_kernels, least, most in ((True, fewest, mosts), (False, 2000, 2500)):
            network = made(kind, None, (64,))
            if by_kernels:
                cuda_recurrent.compute_by_kernels(network)
            x, begins, carry = torch.empty(128, 1024, 5), torch.empty(128, 1024, dtype=torch.bool), torch.empty(1024, network.carry)
            if by_kernels:  # what is made once
                torch.autograd.grad(network.unroll(x[:1], carry, begins[:1])[0].sum(), list(network.parameters()))
                launched.clear()
            device.operations.clear()
            device.watches = True
            torch.autograd.grad(network.unroll(x, carry, begins)[0].sum(), list(network.parameters()))
            device.watches = False
            kernels = [name for name, *_ in device.operations if not name.startswith(VIEWS)]
            assert least <= len(kernels) <= most
            assert launched == expected


if __name__ == "__main__":
    torch.set_num_threads(1)
    np.savez(sys.argv[1], **{f"{case}/{name}": array for case, given in CASES.items() for name, array in ways_of(*given).items()})
