"""Fused rollouts of the CUDA kernels: in the simulator the trajectories of the stepwise path on CPU, and layers against float64."""

from itertools import pairwise

import numpy as np
import pytest

from tests.agents import build
from tests.compiled import compiled
from tests.selection import few, selected
from tests.simulation.rollouts import (
    CASES,
    CPU,
    FUSED_CASES,
    KINDS,
    acting,
    assert_same,
    compared,
    load,
    roll_out,
    roll_out_networks,
    start,
)
from warprun.envs import cartpole, pendulum
from warprun.kernels import mlp_cuda
from warprun.kernels.mlp import LINEAR, RELU, TANH, Layer, Network
from warprun.kernels.mlp_cuda import FOUR, SHARED_BYTES
from warprun.learning.settings.networks import NetworkConfig
from warprun.simulation.cuda_layers import FLOATS, block_network

TOLERANCE = 1e-5
"""Relative to 1 + |value|: policy outputs differ by their rounding, and all that follows from them."""


FUSED = few(FUSED_CASES, "cartpole tanh", "crane_exploring relu", "mountain_car_continuous tanh")
OTHERS = few(["cartpole", "crane", *(name for name in CASES if name not in ("cartpole", "crane"))], "cartpole", "crane")


@pytest.fixture(scope="module")
def simulated(request, tmp_path_factory):
    """Return the rollouts of the cases that are tested, in the simulator."""
    tests = {"fused": "a_fused_rollout_is_the_stepwise_one", "retraced": "steps_with_given_actions_are_one_launch"}
    tests["by a caller"] = "steps_with_the_actions_of_a_caller_are_those_of_the_cpu"
    runs = [f"{kind}: {name}" for kind, test in tests.items() for name in selected(request, f"test_{test}", "name")]
    file = tmp_path_factory.mktemp("rollouts") / "found.npz"
    return load(start("cudasim", file, runs, NUMBA_ENABLE_CUDASIM="1"), file)


@pytest.mark.by_default(0)
@pytest.mark.parametrize("name", FUSED)
def test_a_fused_rollout_is_the_stepwise_one(simulated, name):
    found = simulated[f"fused: {name}"]
    assert found["episodes"][0] > 0
    case, expected = FUSED_CASES[name][0], roll_out_networks(name, CPU, fused=False)
    assert_same(compared(case, expected), compared(case, found), TOLERANCE)


@pytest.mark.by_default(1)
@pytest.mark.parametrize("name", OTHERS)
def test_steps_with_given_actions_are_one_launch(simulated, name):
    """For all steps, of one actor and of several: the simulation alone, without policies."""
    found = dict(simulated[f"retraced: {name}"])
    assert found.pop("launches").tolist() == ["retrace"] * CASES[name].collects
    assert_same(roll_out(name, CPU), found, CASES[name].tolerance)


@pytest.mark.by_default(0)
@pytest.mark.parametrize("name", few(["market", "cartpole", "crane"], "market"))
def test_steps_with_the_actions_of_a_caller_are_those_of_the_cpu(simulated, name):
    """On CPU tests/interop compares them with training."""
    expected = KINDS["by a caller"](name, CPU)
    assert expected["terminated"].any() or expected["truncated"].any()
    assert_same(expected, simulated[f"by a caller: {name}"], TOLERANCE)


def layers_of(sizes, activation):
    """Return the table of fully connected layers, and parameters [P] for it."""
    table, at, row = [], 0, 0
    for n, (n_in, n_out) in enumerate(pairwise(sizes)):
        last = n == len(sizes) - 2
        table.append(Layer(at, at + n_in * n_out, n_in, n_out, row, row + n_in, LINEAR if last else activation))
        at, row = at + (n_in + 1) * n_out, row + n_in
    return np.array(table, np.int64), np.random.default_rng(0).normal(0.0, 0.4, at).astype(np.float32)


def exact(table, parameters, block):
    """Fill `block` [row, column] in float64."""
    functions = {TANH: np.tanh, RELU: lambda x: np.maximum(x, 0.0), LINEAR: lambda x: x}
    for layer in (Layer(*row) for row in table):
        weights = parameters[layer.weight : layer.weight + layer.n_in * layer.n_out].reshape(layer.n_out, layer.n_in).astype(np.float64)
        bias = parameters[layer.bias : layer.bias + layer.n_out, None].astype(np.float64)
        y = weights @ block[layer.in_row : layer.in_row + layer.n_in] + bias
        block[layer.out_row : layer.out_row + layer.n_out] = functions[layer.activation](y)


@pytest.mark.parametrize("activation", [TANH, RELU])
@pytest.mark.parametrize("columns", [4, 12, 32])
@pytest.mark.parametrize("sizes", [(4, 64, 64, 3), (1, 8, 1), (5, 7, 9, 15, 16, 17), (3, 130, 2)])
def test_layers_compute_what_float64_does(sizes, columns, activation):
    table, parameters = layers_of(sizes, activation)
    rows = sum(sizes)
    network = Network(parameters, table, rows - sizes[-1], rows - 1, rows, 0, np.zeros(0, np.float32), np.zeros(0, np.float32))
    made, _ = block_network(network, sizes[-1] - 1, columns, FLOATS)
    sources, _ = FLOATS.pack_layers([Layer(*row) for row in table])
    taken = made._replace(weights=parameters[sources[:, 0]], layers=made.layers.numpy(), mean=made.mean.numpy(), scale=made.scale.numpy())
    block = np.full((rows, columns), np.nan, np.float32)
    block[: sizes[0]] = np.random.default_rng(1).normal(size=(sizes[0], columns))
    expected = block.astype(np.float64)
    exact(table, parameters, expected)
    compute_layer = compiled(mlp_cuda.compute_layer)
    for layer in range(len(table)):
        for thread in reversed(range(64)):  # in any order: no thread reads what another writes
            compute_layer(taken, layer, block.reshape(-1), thread, 64)
    np.testing.assert_allclose(block, expected, rtol=2e-6, atol=2e-6)


CARTPOLE = cartpole.environment()


def network_of(hidden, environment=CARTPOLE):
    return acting(environment, NetworkConfig(hidden=hidden), CPU).learners[0].policy.kernel_network()


@pytest.mark.parametrize("hidden", [[8], [64, 64], [128, 128], [256, 256], [300, 700], [3000]])
@pytest.mark.parametrize("actors", [1, 5, 32, 51, 1000])
def test_columns_fit_into_shared_memory(hidden, actors):
    network = network_of(hidden)
    columns = FLOATS.columns_for(network.rows, actors)
    assert columns > 0
    assert columns % FOUR == 0
    assert 4 * network.rows * columns <= SHARED_BYTES
    # No more columns than actors need, and no turn that could be spared.
    most = SHARED_BYTES // (4 * FOUR * network.rows) * FOUR
    turns = -(-actors // columns)
    assert turns == -(-actors // most)
    assert (turns * columns - actors) < turns * FOUR


@pytest.mark.parametrize("settings", [{}, {"shared": False}, {"activation": "relu", "hidden": [7]}], ids=str)
@pytest.mark.parametrize("name", ["a2c", "ppo"])
@pytest.mark.parametrize("world", [cartpole, pendulum], ids=["choices", "real"])
def test_the_rows_of_a_network_are_known_before_it_is_built(name, settings, world):
    agent = build(name, world.environment(), fused=True, network=NetworkConfig(**settings))
    fusion = agent.learners[0].config.fusion(world.environment().spec)
    assert fusion.network_rows == {group: network.rows for group, network in agent.networks().items()}


def test_a_network_that_does_not_fit_stays_stepwise():
    assert FLOATS.columns_for(network_of([2000, 2000]).rows, 1) == 0
