"""The peers of scripts/bench/peers.py compute what they stand for, and tables follow from their rounds.

What is in JAX needs scripts/bench/requirements.txt.
"""

import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tests.scripts import SCRIPTS, load

campaign = load("campaign")
sys.path.append(str(SCRIPTS / "bench"))


def test_operations_of_a_step_with_memory():
    from peer_work import WORKS

    weights = 4 * 64 + 64 * 64 + 4 * (64 + 64) * 64 + 64 * 3
    forward, first_layer = 2 * weights, 2 * 4 * 64
    assert WORKS["lstm-128"].flop_per_step() == forward + 4 * (3 * forward - first_layer)


def mlp(n_in, n_out, width):
    return nn.Sequential(nn.Linear(n_in, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, n_out))


def gradient_step(learner, width, batch):
    """Make the gradient steps of the formulas of DQN, TD3 and SAC in torch, two for TD3, whose second one trains the actor."""
    obs = torch.zeros(batch, 4 if learner == "dqn" else 3)
    if learner == "dqn":
        online, target = mlp(4, 2, width), mlp(4, 2, width)
        with torch.no_grad():
            target(obs)
        online(obs).sum().backward()
        return
    actor, critics, targets = mlp(3, 2 if learner == "sac" else 1, width), [mlp(4, 1, width)] * 2, [mlp(4, 1, width)] * 2
    for step in range(1 if learner == "sac" else 2):
        with torch.no_grad():
            pairs = torch.cat([obs, actor(obs)[:, :1]], 1)
            [target(pairs) for target in targets]
        sum(critic(pairs).sum() for critic in critics).backward()
        if learner == "sac" or step == 1:
            pairs = torch.cat([obs, actor(obs)[:, :1]], 1)
            value = sum(critic(pairs).sum() for critic in (critics if learner == "sac" else critics[:1]))
            torch.autograd.grad(value, list(actor.parameters()))


@pytest.mark.parametrize("learner", ["dqn", "td3", "sac"])
def test_operations_of_gradient_steps_are_those_that_torch_counts(learner):
    from peer_work import BATCH, WORKS

    with FlopCounterMode(display=False) as counter:
        gradient_step(learner, 64, BATCH)
    each = counter.get_total_flops() / (2 if learner == "td3" else 1)
    weights = {"dqn": 4 * 64 + 64 * 64 + 64 * 2, "td3": 3 * 64 + 64 * 64 + 64, "sac": 3 * 64 + 64 * 64 + 64 * 2}[learner]
    assert WORKS[f"{learner}-64"].flop_per_step() == each + 2 * weights
    assert WORKS[f"{learner}-1000-envs"].flop_per_step() == pytest.approx(each * 0.016 + 2 * weights)


def kept(rounds):
    """Return a work with rows of the limit, of warprun with one trunk and two, and of another package; QUIET and RATES of each round."""
    rows = {
        "limit": ("arithmetic limit", "shared"),
        "own": ("warprun", "shared"),
        "two": ("warprun", "separate"),
        "other": ("rejax", "separate"),
    }
    told = {key: {"name": name, "trunk": trunk, "n_envs": 1_000, "threads": 1, "settings": key} for key, (name, trunk) in rows.items()}
    parts = {"prepared": {"values": told, "quiet": True}}
    for n, (quiet, *rates) in enumerate(rounds):
        values = {key: [rate, rate / 2] for key, rate in zip(rows, rates, strict=True)}
        parts[f"round {n}"] = {"values": values, "quiet": quiet, "foreign_cores": 0.02, "date": "2026-01-01 12:00"}
    return {"machine": {"processor": "P", "cores": 2}, "commit": "abc", "seconds": 1.5, "load_before": [0.1], "parts": parts}


def test_the_table_has_medians_of_quiet_rounds_and_ratios_at_the_same_number_of_trunks():
    from peer_work import WORKS

    tables = load("bench.peer_tables")
    flop = WORKS["a2c-64"].flop_per_step()
    one = flop / 2 * 1e6  # multiply-adds of a million steps
    rounds = [(True, 8 * one, 4e6, 3e6, 1e6), (False, one, 1e6, 1e6, 9e6), (True, 10 * one, 5e6, 4e6, 2e6), (True, 12 * one, 6e6, 5e6, 3e6)]
    text = tables.of_works({"a2c-64": kept(rounds)}, ["rollout-64", "a2c-64"], 1e6)
    lines = text.splitlines()
    assert lines[2].startswith("| A2C, 64-64 | arithmetic limit | 1,000 |") and "| 10 [8, 12] | 5 | 2.00 |  |  |  |" in lines[2]
    assert lines[3] == "| A2C, 64-64 | warprun | 1,000 | own | 5 [4, 6] | 2.5 | 2.00 | 50 % |  |  |"
    assert lines[5] == "| A2C, 64-64 | rejax, two trunks | 1,000 | other | 2 [1, 3] | 1 | 2.00 |  | 2.00 x | 2.00 x |"
    assert "1 of 4 rounds were not quiet" in text
    noisy = tables.of_works({"a2c-64": kept([(False, *each) for _, *each in rounds])}, ["a2c-64"], 1e6)
    assert "| A2C, 64-64 ~ |" in noisy
    assert tables.compared({"a2c-64": kept(rounds)}).startswith("A2C with 64-64 units is 2.0 times as fast as rejax")
    assert not any(text for _, _, text in tables.of_pages({}))


def test_processor_time_has_that_of_processes_that_go_on_and_of_those_that_have_ended():
    import os
    import subprocess

    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    before = campaign.cpu_s(os.getpid())
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin and child.stdout
        child.stdout.readline()
        going_on = campaign.cpu_s(os.getpid()) - before
        child.communicate("\n")
    assert going_on >= 0.28
    assert campaign.cpu_s(os.getpid()) - before >= 0.28


def test_the_lstm_in_jax_is_that_of_torch():
    pytest.importorskip("gymnax")
    pytest.importorskip("optax")
    import jax
    import jax.numpy as jnp
    import peer_jax as peer
    from peer_work import WORKS

    steps, envs, begins = 5, 3, 3
    net = peer.recurrent_network(jax.random.key(0), WORKS["lstm-128"])
    x = np.random.default_rng(0).normal(size=(steps, envs, 4)).astype(np.float32)
    *hidden, (inputs, bias) = net.gates
    lstm = torch.nn.LSTM(64, 64)
    for own, jaxs in ((lstm.weight_ih_l0, inputs), (lstm.weight_hh_l0, net.recurrent), (lstm.bias_ih_l0, bias)):
        own.data = torch.tensor(np.asarray(jaxs).T.copy())
    lstm.bias_hh_l0.data.zero_()
    rows = torch.tensor(x)
    for weight, own in hidden:
        rows = torch.tanh(rows @ torch.tensor(np.asarray(weight)) + torch.tensor(np.asarray(own)))
    expected = torch.cat([lstm(rows[:begins])[0], lstm(rows[begins:])[0]])  # an episode begins
    memory, outputs = peer.Memory(jnp.zeros((envs, 64)), jnp.zeros((envs, 64)), jnp.zeros(envs)), []
    for t in range(steps):
        memory = peer.remember(net, memory._replace(keep=jnp.full(envs, float(t != begins))), peer.outputs(net.gates, x[t]))
        outputs.append(memory.output)
    assert np.allclose(np.stack(outputs), expected.detach().numpy(), atol=1e-5)
