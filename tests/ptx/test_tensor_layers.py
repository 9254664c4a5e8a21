"""Layers on tensor cores, on the machine beside float64; mistakes planted in them are found; the float32 kernels beside them."""

import numpy as np
import pytest
import torch

from tests.ptx import learning, project, rolling
from tests.ptx.build import NEEDED
from tests.ptx.learning import parts
from tests.ptx.mistakes import Mistake
from tests.ptx.project import on
from tests.ptx.rolling import clear, machine, wrong_in
from tests.ptx.test_learner import BY_DEFAULT
from warprun.kernels import mlp_tensor
from warprun.simulation import cuda_layers

pytestmark = NEEDED

PROMISED = 2e-5
"""Of the largest number."""


def evidence(mistake: Mistake | None = None) -> list[str]:
    """Return what is wrong with the network of the check."""
    clear(machine())
    with on(machine(), mistake):
        error = cuda_layers.tensor_core_error(torch.device("cpu"))
    return [f"{error:.0e} off"] * (not error < cuda_layers.TOLERANCE) + [str(finding) for finding in wrong_in(machine())]


def test_the_check_before_their_first_use_finds_them_right() -> None:
    assert evidence() == []
    with on(machine()):
        assert cuda_layers.tensor_core_error(torch.device("cpu")) < PROMISED


def test_what_is_no_number_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = "_on_tensor_cores", lambda parameters, table, inputs: (inputs.numpy(), np.full(len(parameters), np.nan))
    monkeypatch.setattr(cuda_layers, *nowhere)
    assert np.isnan(cuda_layers.tensor_core_error(torch.device("cpu")))


MISTAKES = (
    Mistake("the biases of other rows", "bias + row", "bias + ROWS * tile + lane % 4", mlp_tensor.compute_rows),
    Mistake("more rows than there are", "n_out - row", "n_out", mlp_tensor.compute_rows),
    Mistake("columns of another lane", "lane % 4 * 2", "lane % 4", mlp_tensor.compute_rows),
    Mistake("weights of another tile", "tile * apart", "tile * STEP", mlp_tensor.add_products),
    Mistake("terms that do not exist", "left - t)", "left)", mlp_tensor.add_products),
    Mistake("the next terms too early", "x += TERMS * stride", "x += 8 * stride", mlp_tensor.add_products),
    Mistake("slopes through no activation function", "activation == TANH", "activation == -1", mlp_tensor.slopes_of_rows),
    Mistake("half of the columns in a weight's slope", "range(0, network.columns, TERMS)", "range(0, TERMS, TERMS)", mlp_tensor.add_share),
    Mistake("the slope of a bias by four lanes", "given == 0 and t == 0", "given == 0", mlp_tensor.add_share),
    Mistake("every share but the first twice", "item // wide * SHARE", "0", mlp_tensor.add_weight_slopes),
    Mistake("registers of A exchanged", "(register % 2)", "(register // 2)", mlp_tensor._words),
    Mistake("no rests", "part == 1", "part == 2", mlp_tensor._words),
    Mistake("tables without their padding", "tiles <= 2", "tiles > 0", mlp_tensor.padded_tiles),
    Mistake("no barrier between two layers", "THREADS)\n        cuda.syncthreads()", "THREADS)"),
)
DEFAULT = {"registers of A exchanged", "no rests"}


@pytest.mark.parametrize("mistake", [pytest.param(m, marks=() if m.name in DEFAULT else pytest.mark.long, id=m.name) for m in MISTAKES])
def test_each_mistake_is_found(mistake: Mistake) -> None:
    assert evidence(mistake)
    assert mistake.made


@pytest.mark.parametrize("name", [pytest.param(BY_DEFAULT, marks=pytest.mark.long)])
def test_without_tensor_cores_float32_computes_layers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "CAPABILITY", (7, 5))
    assert learning.check(parts()[name]) == []


@pytest.mark.long
def test_without_tensor_cores_float32_computes_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "CAPABILITY", (7, 5))
    way = rolling.ways_of("cartpole")["fused tanh"]
    assert rolling.difference(way.run(rolling.CPU, 37), rolling.on_machine(way.run, 37), way.tolerance) == []
