"""The peers of scripts/bench/peers.py compute what they stand for. Needs what scripts/bench/requirements.txt lists."""

import sys

import numpy as np
import pytest
import torch

from tests.scripts import SCRIPTS

sys.path.append(str(SCRIPTS / "bench"))


def test_operations_of_a_step_with_memory():
    from peer_work import WORKS

    weights = 4 * 64 + 64 * 64 + 4 * (64 + 64) * 64 + 64 * 3
    forward, first_layer = 2 * weights, 2 * 4 * 64
    assert WORKS["lstm-128"].flop_per_step() == forward + 4 * (3 * forward - first_layer)


def test_the_lstm_in_jax_is_that_of_torch():
    pytest.importorskip("gymnax")
    pytest.importorskip("optax")
    import jax
    import jax.numpy as jnp
    import peer_jax_memory as peer
    from peer_work import WORKS

    work, steps, envs = WORKS["lstm-128"], 5, 3
    net = peer.network(jax.random.key(0), work)
    x, begins = np.random.default_rng(0).normal(size=(steps, envs, 4)).astype(np.float32), 3
    lstm = torch.nn.LSTM(64, 64)
    for own, jaxs in ((lstm.weight_ih_l0, net.inputs), (lstm.weight_hh_l0, net.recurrent)):
        own.data = torch.tensor(np.asarray(jaxs)).T.contiguous()
    lstm.bias_ih_l0.data = torch.tensor(np.asarray(net.bias))
    lstm.bias_hh_l0.data.zero_()
    hidden = torch.tensor(x)
    for weight, bias in net.hidden:
        hidden = torch.tanh(hidden @ torch.tensor(np.asarray(weight)) + torch.tensor(np.asarray(bias)))
    expected = torch.cat([lstm(hidden[:begins])[0], lstm(hidden[begins:])[0]])  # an episode begins
    carry, outputs = peer.Carry(jnp.zeros((envs, 64)), jnp.zeros((envs, 64))), []
    for t in range(steps):
        carry = peer.cell(net, carry.kept(jnp.full(envs, float(t != begins))), peer.gates_of(net, jnp.asarray(x[t])))
        outputs.append(carry.output)
    assert np.allclose(np.stack(outputs), expected.detach().numpy(), atol=1e-5)
