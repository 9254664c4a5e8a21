"""Networks of layers, and their flat parameters; tests/policies has those of users."""

import pytest
import torch

from warprun.learning.network_settings import NetworkConfig
from warprun.learning.networks import ActorCritic, flatten_parameters


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "gelu", "silu"])
@pytest.mark.parametrize("shared", [True, False])
def test_actor_critic(activation: str, shared: bool) -> None:
    network = ActorCritic(3, 5, NetworkConfig(hidden=[8, 16], activation=activation, shared=shared))
    output, value = network(torch.randn(7, 3))
    assert (output.shape, value.shape) == ((7, 5), (7,))
    trunk = 3 * 8 + 8 + 8 * 16 + 16
    heads = 16 * 6 + 6
    assert sum(p.numel() for p in network.parameters()) == heads + trunk * (1 if shared else 2)


def test_parameters_are_views_of_one_tensor() -> None:
    network = ActorCritic(3, 5, NetworkConfig())
    before = [p.detach().clone() for p in network.parameters()]
    flat = flatten_parameters(network)
    assert flat.numel() == sum(p.numel() for p in before)
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
    flat.fill_(2.0)
    assert all((p == 2).all() for p in network.parameters())
    assert {p.untyped_storage().data_ptr() for p in network.parameters()} == {flat.untyped_storage().data_ptr()}
