"""Networks, flat parameters, the registry."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from warprun.errors import UserError
from warprun.learning.networks import NETWORKS, Mlp, flatten_parameters, make_network, register
from warprun.learning.settings import NetworkConfig


class Narrow(nn.Module):
    """A network of a user."""

    def __init__(self, features: int, outputs: int, config: NetworkConfig) -> None:
        super().__init__()
        self.layer = nn.Linear(features, outputs + 1)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        both = self.layer(obs)
        return both[:, :-1], both[:, -1]


class Wrong(Narrow):
    """Returns the value as a column."""

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output, value = super().forward(obs)
        return output, value[:, None]


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "gelu", "silu"])
@pytest.mark.parametrize("shared", [True, False])
def test_mlp(activation: str, shared: bool) -> None:
    network = Mlp(3, 5, NetworkConfig(hidden=[8, 16], activation=activation, shared=shared))
    output, value = network(torch.randn(7, 3))
    assert (output.shape, value.shape) == ((7, 5), (7,))
    trunk = 3 * 8 + 8 + 8 * 16 + 16
    heads = 16 * 6 + 6
    assert sum(p.numel() for p in network.parameters()) == heads + trunk * (1 if shared else 2)


def test_parameters_are_views_of_one_tensor() -> None:
    network = Mlp(3, 5, NetworkConfig())
    before = [p.detach().clone() for p in network.parameters()]
    flat = flatten_parameters(network)
    assert flat.numel() == sum(p.numel() for p in before)
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
    flat.fill_(2.0)
    assert all((p == 2).all() for p in network.parameters())
    assert {p.untyped_storage().data_ptr() for p in network.parameters()} == {flat.untyped_storage().data_ptr()}


def test_networks_by_name_and_by_import() -> None:
    register("narrow", Narrow)
    try:
        assert isinstance(make_network(3, 2, NetworkConfig("narrow")), Narrow)
    finally:
        del NETWORKS["narrow"]
    assert type(make_network(3, 2, NetworkConfig(f"{__name__}:Narrow"))).__name__ == "Narrow"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mpl", "unknown"),
        ("no_such_module:X", "cannot be imported"),
        (f"{__name__}:NoSuch", "cannot be imported"),
        (f"{__name__}:Wrong", r"forward must return .*\(2, 1\)"),
    ],
)
def test_networks_that_do_not_work_are_told_in_one_line(name: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as failure:
        make_network(3, 2, NetworkConfig(name))
    assert name in str(failure.value)
    assert "\n" not in str(failure.value)
