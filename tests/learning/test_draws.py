"""Draws are a function of (seed, number of the draw): neighbouring seeds share nothing, and kernels have the same numbers as torch."""

from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise, product
from threading import Event

import numpy as np
import pytest
import torch
from torch import nn

from tests.agents import build
from tests.compiled import compiled
from tests.learning.helpers import SPACES, environment
from warprun.environment import Box
from warprun.learning.draws import Stream, normals, permutation, random_bits
from warprun.learning.interfaces import Agent
from warprun.learning.kernels.draws import TOGETHER, bits_of, key_of, normal_of
from warprun.learning.networks import ActorCritic, flatten_parameters, seeded
from warprun.learning.settings.networks import LayersConfig, NetworkConfig
from warprun.learning.settings.off_policy import ReplayConfig

PLACES = list(product(range(21), range(51)))
"""Neighbouring seeds, and draws of each."""


@pytest.mark.parametrize("draw", [permutation, random_bits, normals])
def test_neighbouring_seeds_share_no_draw(draw) -> None:  # type: ignore[no-untyped-def]
    found = torch.stack([draw(400, seed, torch.tensor(number)) for seed, number in PLACES])
    assert len(found.unique(dim=0)) == len(PLACES)
    # Shifted by one place, too, and element by element: correlations are those of independent numbers, of deviation 1 / 20.
    both = np.corrcoef(found.double().numpy())
    assert np.abs(both[np.triu_indices(len(PLACES), 1)]).max() < 6 / 20
    shifted = [np.corrcoef(a[1:], b[:-1])[0, 1] for a, b in pairwise(found.double().numpy())]
    assert np.abs(shifted).max() < 5 / 20


def test_correlations_of_draws_are_centred() -> None:
    """The mean square of 573,000 correlations of independent numbers is 1 / n, to a few thousandths."""
    n = 400
    found = torch.stack([normals(n, seed, torch.tensor(number)) for seed, number in PLACES]).double().numpy()
    pairs = np.corrcoef(found)[np.triu_indices(len(PLACES), 1)]
    assert np.mean(pairs**2) * (n - 1) == pytest.approx(1.0, abs=0.02)
    assert abs(np.mean(pairs)) < 5e-4


@pytest.mark.parametrize("seed", [0, 1, 2**32 + 5, 2**63 - 1])
def test_kernels_draw_the_bits_of_torch(seed: int) -> None:
    keys, bits, normal = (compiled(function) for function in (key_of, bits_of, normal_of))
    for number in (0, 1, 70_000):
        place = Stream(seed, torch.tensor(number))
        key = keys(place.words())
        assert [int(bits(key, index)) for index in range(9)] == random_bits(9, *place).tolist()
        assert [float(normal(key, index, 9)) for index in range(9)] == pytest.approx(normals(9, *place).tolist(), abs=1e-5)


def weights(agent: Agent) -> list[np.ndarray]:
    """Return the first 90 weights of every network of an agent."""
    state = agent.state()
    tensors = [state[name] for name in sorted(state) if name.endswith(("/parameters", "/actor/parameters", "/critics/parameters"))]
    return [tensor[:90].double().numpy() for tensor in tensors]


@pytest.mark.parametrize("name", ["a2c", "td3"])
def test_groups_and_networks_of_neighbouring_seeds_share_no_weights(name: str) -> None:
    """A network made from the seed of another has the same first numbers, but for their scale."""
    found: list[np.ndarray] = []
    for seed in range(5):
        if name == "a2c":
            env = environment(one=SPACES["one"], same=SPACES["one"])
            found += weights(build("a2c", env, seed=seed))
        else:
            env = environment(one=Box(2), same=Box(2))
            found += weights(build("td3", env, seed=seed, network=LayersConfig(hidden=[32]), replay=ReplayConfig(capacity=300)))
    assert len(found) == 5 * (2 if name == "a2c" else 4)
    assert np.abs(np.corrcoef(found)[np.triu_indices(len(found), 1)]).max() < 0.6


# Networks of layers, and their flat parameters; tests/policies has those of users -------------------------------------


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "gelu", "silu"])
@pytest.mark.parametrize("shared", [True, False])
def test_actor_critic(activation: str, shared: bool) -> None:
    network = ActorCritic(Box(3), 5, NetworkConfig(hidden=[8, 16], activation=activation, shared=shared))
    output, value = network(torch.randn(7, 3))
    assert (output.shape, value.shape) == ((7, 5), (7,))
    trunk = 3 * 8 + 8 + 8 * 16 + 16
    heads = 16 * 6 + 6
    assert sum(p.numel() for p in network.parameters()) == heads + trunk * (1 if shared else 2)


def test_parameters_are_views_of_one_tensor() -> None:
    network = ActorCritic(Box(3), 5, NetworkConfig())
    before = [p.detach().clone() for p in network.parameters()]
    flat = flatten_parameters(network)
    assert flat.numel() == sum(p.numel() for p in before)
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
    flat.fill_(2.0)
    assert all((p == 2).all() for p in network.parameters())
    assert {p.untyped_storage().data_ptr() for p in network.parameters()} == {flat.untyped_storage().data_ptr()}


@pytest.mark.parametrize(
    ("n", "step_rows"), [(1, 1), (2, 1), (7, 1), (2049, 1), (70_000, 1), (70_000, 1000), (70_000, 16), (90, 45), (21, 7)]
)
def test_the_kernel_gives_the_order_of_torch(n: int, step_rows: int) -> None:
    shuffle = build("ppo", environment(one=SPACES["one"]), fused=True).learners[0].operations.permutation
    assert shuffle is not permutation
    for seed, draw in ((0, 0), (5, 3), (2**63, 123_456_789_012), (5, 4)):
        number = torch.tensor(draw)
        assert torch.equal(shuffle(n, seed, number, step_rows), permutation(n, seed, number, step_rows))


@pytest.mark.parametrize(("n", "step_rows"), [(800, 40), (800, 16), (96, 6)])
def test_an_order_keeps_runs_of_a_step_together(n: int, step_rows: int) -> None:
    order = permutation(n, 3, torch.tensor(5), step_rows)
    assert order.sort().values.tolist() == list(range(n))
    runs = [row for row in range(n) if row % step_rows % TOGETHER == 0]
    begins = [at for at, row in enumerate(order.tolist()) if row in runs]
    for at in begins:
        first = int(order[at])
        length = min(TOGETHER, step_rows - first % step_rows)
        assert order[at : at + length].tolist() == list(range(first, first + length))
    assert order[torch.tensor(begins)].tolist() != sorted(runs)


def test_first_weights_are_those_of_the_seed_beside_another_thread() -> None:
    """The second thread comes while the first one draws, and waits."""
    alone = [seeded(seed, lambda: nn.Linear(3, 2)) for seed in (1, 2)]
    begun, drawn = Event(), Event()

    def first() -> nn.Linear:
        other.append(second.submit(seeded, 2, later))
        begun.wait(0.2)
        made = nn.Linear(3, 2)
        drawn.set()
        return made

    def later() -> nn.Linear:
        begun.set()
        drawn.wait(60)
        return nn.Linear(3, 2)

    other: list[Future[nn.Linear]] = []
    with ThreadPoolExecutor(1) as second:
        found = [seeded(1, first), other[0].result()]
    assert all(torch.equal(a.weight, b.weight) for a, b in zip(alone, found, strict=True))


def test_a_network_may_make_another_one() -> None:
    inner, outer = seeded(1, lambda: (seeded(2, lambda: nn.Linear(3, 2)), nn.Linear(3, 2)))
    for seed, found in ((2, inner), (1, outer)):
        assert torch.equal(found.weight, seeded(seed, lambda: nn.Linear(3, 2)).weight)
