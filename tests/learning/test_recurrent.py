"""Policies with memory: formulas and gradients in float64, where memory begins anew, and learning what no other policy can."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from tests.agents import build
from tests.simulation.rollouts import CASES, make
from warprun.config.compose import compose
from warprun.config.registry import import_environment
from warprun.environment import Environment
from warprun.errors import UserError
from warprun.learning import distributions
from warprun.learning.batch import Batch, Past, Spread
from warprun.learning.networks import StochasticPolicy
from warprun.learning.on_policy import Learner
from warprun.learning.operations import RowLoss
from warprun.learning.recurrent import Recurrent
from warprun.learning.settings.networks import NetworkConfig
from warprun.simulation.kernel_engine import KernelEngine
from warprun.simulation.trajectory import Trajectory

KINDS = ("lstm", "gru")
SMALL: dict[str, Any] = {"hidden": [6], "units": [5, 4], "after": [3]}


def maze(length: int = 1, time_limit: int = 5) -> Environment:
    """Return a T-maze in which episodes terminate and are truncated often."""
    return replace(import_environment("warprun.envs.t_maze", {"length": length})[0], time_limit=time_limit)


def engine_for(agent: Any, environment: Environment, **options: Any) -> KernelEngine:
    engine = make(environment, "t_maze", **({"n_envs": 6, "horizon": 12} | options))
    engine.trajectory.remember(agent.carry)
    return engine


# The network ---------------------------------------------------------------------------------------------------------------------


def by_formulas(network: Recurrent, obs: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the outputs [O] for the steps of one episode [T, I], by the formulas of torch's documentation, cell by cell."""
    states = [[torch.zeros(cell.hidden_size, dtype=obs.dtype)] * 2 for cell in network.cells]
    for x in obs:
        x = network.before(x)
        for n, cell in enumerate(network.cells):
            h, c = states[n]
            own, past = x @ cell.weight_ih.T + cell.bias_ih, h @ cell.weight_hh.T + cell.bias_hh
            if network.kind == "lstm":
                i, f, g, o = (own + past).chunk(4)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
            else:
                (r, z, new), (r_past, z_past, new_past) = own.chunk(3), past.chunk(3)
                kept = (z + z_past).sigmoid()
                h = (1 - kept) * (new + (r + r_past).sigmoid() * new_past).tanh() + kept * h
            states[n], x = [h, c], h
        yield network.after(x)


def episodes(begins: torch.Tensor) -> list[tuple[int, int]]:
    """Return (first, last + 1) of the episodes of one sequence [T], of which the first begins before it."""
    cuts = [0, *(t for t in range(1, len(begins)) if begins[t]), len(begins)]
    return list(pairwise(cuts))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_over_sequences_is_that_of_the_formulas(kind: str, shared: bool) -> None:
    """In float64: a loss of all steps of some sequences with ends in them, against autograd through the formulas."""
    agent = build("ppo", maze(), network=NetworkConfig(type=kind, shared=shared, **SMALL), normalize_obs=False)
    learner: Learner[Any] = agent.learners[0]
    loss = RowLoss(lambda log_prob, value, row, p: (row.advantage, row.value, ()), (), ())
    learner.entropy_coef.fill_(-0.1)
    learner.operations = replace(learner.reference, loss=loss).operations()
    policy = learner.policy.module.double()
    rng = torch.Generator().manual_seed(0)
    steps, count = 9, 7
    obs = torch.randn(count, steps, 3, generator=rng, dtype=torch.float64)
    begins = torch.rand(count, steps, generator=rng) < 0.25
    weights = torch.randn(2, count, steps, generator=rng, dtype=torch.float64)
    action = torch.randint(0, 4, (count, steps, 1), generator=rng, dtype=torch.int32)
    zeros = torch.zeros(count, steps, dtype=torch.float64)
    past = Past(torch.zeros(count, policy.carry, dtype=torch.float64), begins)
    batch = Batch(obs, None, action, zeros, weights[1], weights[0], zeros, Spread.of(zeros, zeros), past)

    order = torch.arange(count).flip(0)
    gradient, _ = learner.gradient(batch, batch.advantage[order], order)

    total = torch.zeros((), dtype=torch.float64)
    network = policy.network
    for n in range(count):
        for first, end in episodes(begins[n]):
            output = torch.stack(list(by_formulas(network.policy, obs[n, first:end])))
            value = output[:, -1] if network.value is None else torch.stack(list(by_formulas(network.value, obs[n, first:end])))[:, 0]
            log_prob, entropy = distributions.evaluate(learner.policy.space, output[:, :4], None, action[n, first:end])
            total = total + (log_prob * weights[0, n, first:end] + value * weights[1, n, first:end] + 0.1 * entropy).sum()
    total = total / (count * steps)
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(total, list(policy.parameters()))])
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_of_k_steps_sees_k_steps(kind: str) -> None:
    """Step t depends on those from the last multiple of K on, and on no others; so does the gradient."""
    network = StochasticPolicy(maze().spec.groups[0], NetworkConfig(type=kind, sequence=3, **SMALL))
    obs = torch.randn(8, 1, 3, requires_grad=True)
    begins = torch.zeros(8, 1, dtype=torch.bool)
    begins[4] = True
    output, value, _ = network.unroll(obs, torch.zeros(1, network.carry), begins)
    firsts = [0, 0, 0, 3, 4, 4, 4, 7]
    for t, first in enumerate(firsts):
        (gradient,) = torch.autograd.grad(output[t].sum() + value[t].sum(), obs, retain_graph=True)
        depends = gradient[:, 0].abs().sum(-1) > 0
        assert depends.tolist() == [first <= s <= t for s in range(8)], t


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_of_one_step_has_no_memory(kind: str) -> None:
    network = StochasticPolicy(maze().spec.groups[0], NetworkConfig(type=kind, sequence=1, **SMALL))
    obs, none = torch.randn(6, 2, 3), torch.zeros(6, 2, dtype=torch.bool)
    output, _, carry = network.unroll(obs, torch.zeros(2, network.carry), none)
    alone = torch.cat([network.unroll(row[None], torch.zeros(2, network.carry), none[:1])[0] for row in obs])
    torch.testing.assert_close(output, alone, rtol=0.0, atol=1e-6)
    assert carry.abs().sum() > 0


# Rollouts ------------------------------------------------------------------------------------------------------------------------


def check_memory(agent: Any, engine: KernelEngine, rollouts: int = 3) -> None:
    """Raise AssertionError unless every step of some rollouts was taken with the memory of its own episode, all of it.

    Every environment is followed alone: an own module, one step at a time, zeros where an episode begins.
    """
    kept: dict[tuple[str, int], torch.Tensor] = {}
    for _ in range(rollouts):
        taken = engine.collect(agent.act)
        for learner in agent.learners:
            if learner.policy.carry:
                _follow(learner, taken, kept)


def _follow(learner: Learner[Any], taken: Trajectory, kept: dict[tuple[str, int], torch.Tensor]) -> None:
    group, module, actors = taken.groups[learner.name], learner.policy.module, learner.actors
    obs = learner.policy.normalizer(group.obs) if learner.policy.normalizer else group.obs
    following = learner.reference.next_value(taken)
    cuts = [0] * taken.n_envs
    none = torch.zeros(1, actors, dtype=torch.bool)
    for env in range(taken.n_envs):
        carry = kept.get((learner.name, env), torch.zeros(actors, module.carry))
        for t in range(taken.horizon):
            with torch.no_grad():
                _, value, carry = module.unroll(obs[t : t + 1, env], carry, none)
            torch.testing.assert_close(group.value[t, env], value[0], rtol=1e-5, atol=1e-5)
            then, before = obs[t + 1, env], carry
            if taken.truncated[t, env]:
                then = learner.policy.normalizer(group.final_obs) if learner.policy.normalizer else group.final_obs
                then, cuts[env] = then[cuts[env], env], cuts[env] + 1
            with torch.no_grad():
                _, value, _ = module.unroll(then[None], before, none)
            bootstrap = torch.zeros(actors) if taken.terminated[t, env] else value[0]
            torch.testing.assert_close(following[t, env], bootstrap, rtol=1e-5, atol=1e-5)
            if taken.terminated[t, env] or taken.truncated[t, env]:
                carry = torch.zeros_like(carry)
        kept[learner.name, env] = carry


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_memory_begins_anew_with_every_episode_and_only_then(kind: str, shared: bool) -> None:
    agent = build("ppo", maze(), n_envs=6, network=NetworkConfig(type=kind, shared=shared, **SMALL))
    engine = engine_for(agent, maze())
    check_memory(agent, engine)
    ends = engine.trajectory.terminated, engine.trajectory.truncated
    assert all(end.any() for end in ends)
    engine.reset()
    check_memory(agent, engine, 1)  # a reset forgets everything


def test_what_is_restored_is_remembered_where_the_trial_of_the_kernels_ended_an_episode() -> None:
    agent = build("ppo", maze(), n_envs=6, network=NetworkConfig(type="lstm", **SMALL))
    engine = engine_for(agent, maze())
    engine.trajectory.truncated[-1] = engine.trajectory.terminated[-1, 0] = True
    engine.reset()
    state = engine.trajectory.state()["agent/carry"].fill_(0.5)
    assert torch.equal(engine.trajectory.carry_before("agent", 0), state)


def probabilities(learner: Learner[Any], taken: Trajectory) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probabilities of the actions of a rollout as the gradient sees them, and as they were when it acted."""
    batch = learner.batch(taken).samples()
    assert batch.past
    output, _ = learner.policy.along(batch.obs, *batch.past)
    rows = batch.rows()
    return distributions.evaluate(learner.policy.space, output, rows.mask, rows.action)[0], rows.log_prob


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_sees_the_policy_that_acted(kind: str) -> None:
    agent = build("ppo", maze(), n_envs=6, network=NetworkConfig(type=kind, **SMALL))
    engine = engine_for(agent, maze())
    for _ in range(3):
        taken = engine.collect(agent.act)
    learned, acted = probabilities(agent.learners[0], taken)
    torch.testing.assert_close(learned, acted, rtol=0.0, atol=1e-5)
    taken.carries["agent"].first.zero_()
    assert not torch.allclose(*probabilities(agent.learners[0], taken), atol=1e-5)  # the carry of row 0 counts


@pytest.mark.by_default(0)
def test_groups_masks_and_normalisation() -> None:
    """Five producers with masks, MultiDiscrete regulator: one group with memory, the other without; A2C with V-trace."""
    environment = CASES["market"].environment
    groups = {"producers": {"network": {"type": "gru", "units": [7]}}}
    agent = build("a2c", environment, n_envs=4, groups=groups, advantage="vtrace", normalize_obs=True)
    assert agent.carry == {"producers": 7, "regulator": 0}
    engine = make(environment, "market", n_envs=4, horizon=9)
    engine.trajectory.remember(agent.carry)
    for _ in range(2):
        agent.update(engine.collect(agent.act), 0.0)
    assert engine.trajectory.truncated.any()
    taken = engine.collect(agent.act)
    producers = agent.learners[0]
    assert producers.name == "producers"
    value = taken.groups["producers"].value.clone()
    learned, acted = probabilities(producers, taken)  # V-trace computes values and probabilities anew, by the same policy
    torch.testing.assert_close(learned, acted, rtol=0.0, atol=1e-5)
    torch.testing.assert_close(taken.groups["producers"].value, value, rtol=0.0, atol=1e-5)
    assert agent.update(taken, 0.0)["loss/producers/grad_norm"].isfinite()


@pytest.mark.long
def test_real_actions() -> None:
    environment = import_environment("warprun.envs.pendulum", {"velocity": False})[0]
    environment = replace(environment, time_limit=7)
    agent = build("ppo", environment, n_envs=4, network=NetworkConfig(type="lstm", units=[8], shared=False), minibatches=2)
    engine = make(environment, "pendulum", n_envs=4, horizon=10)
    engine.trajectory.remember(agent.carry)
    agent.update(engine.collect(agent.act), 0.0)
    learned, acted = probabilities(agent.learners[0], engine.collect(agent.act))
    torch.testing.assert_close(learned, acted, rtol=0.0, atol=1e-5)


def test_any_number_of_threads_takes_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warprun.learning.slices.ROWS", 24)
    found = []
    for threads in (1, 2):
        agent = build("ppo", maze(), n_envs=6, threads=threads, network=NetworkConfig(type="lstm", **SMALL), minibatches=1)
        engine = engine_for(agent, maze())
        for _ in range(2):
            agent.update(engine.collect(agent.act), 0.0)
        found.append(agent.learners[0].policy.parameters.clone())
    assert torch.equal(*found)


# Settings ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("settings", [{"type": "lstm"}, {"type": "gru", **SMALL}, {"type": "lstm", "hidden": [], "sequence": 4}, {}])
def test_settings_know_the_sizes(settings: dict[str, Any], shared: bool) -> None:
    config = NetworkConfig(shared=shared, **settings)
    config.check("agent.network")
    policy = StochasticPolicy(maze().spec.groups[0], config)
    heads = [5] if shared else [4, 1]
    assert sum(p.numel() for p in policy.parameters()) == sum(config.parameters(3, head) for head in heads)
    assert policy.carry == len(heads) * config.carry()
    assert isinstance(policy.network.policy, Recurrent if config.remembers else nn.Sequential)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"type": "rnn"}, "agent.network.type=rnn"),
        ({"sequence": 3}, "agent.network.sequence=3: it is for networks with memory; add agent.network=lstm"),
        ({"after": [3]}, r"agent.network.after=\[3\]: it is for networks with memory"),
        ({"type": "lstm", "units": []}, r"agent.network.units=\[\]"),
        ({"type": "lstm", "sequence": 0}, "agent.network.sequence=0"),
        ({"type": "gru", "module": "./net.py:Net"}, "agent.network.module is a network of your own"),
    ],
)
def test_mistakes_are_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        NetworkConfig(**settings).check("agent.network")


def test_after_may_be_null() -> None:
    """As the layers before the memory; `units` may not be."""
    agent = compose(["env=cartpole", "agent=ppo", "agent.network=lstm", "agent.network.hidden=[7]", "agent.network.after=null"]).agent
    assert agent.network.last_hidden == [7]
    with pytest.raises(UserError, match=r"agent\.network\.units cannot be null"):
        compose(["env=cartpole", "agent=ppo", "agent.network=lstm", "agent.network.units=null"])


# Learning ------------------------------------------------------------------------------------------------------------------------


def share_of_right_turns(network: NetworkConfig, updates: int) -> float:
    """Return the share of right turns of the last episodes of a training in a short T-maze."""
    environment = maze(length=3, time_limit=20)
    settings = {"learning_rate": 5e-3, "minibatches": 2, "entropy_coef": 0.02, "gamma": 0.95}
    agent = build("ppo", environment, n_envs=64, seed=1, network=network, horizon=16, **settings)
    engine = engine_for(agent, environment, n_envs=64, horizon=16)
    for n in range(updates):
        agent.update(engine.collect(agent.act), n / updates)
    return right_turns(agent, engine, rollouts=6)


def right_turns(agent: Any, engine: KernelEngine, rollouts: int) -> float:
    """Return the share of the episodes that end in some greedy rollouts with the right turn."""
    right = ended = 0
    for _ in range(rollouts):
        taken = engine.collect(agent.act, greedy=True)
        right += int((taken.groups["agent"].reward == 4.0).sum())
        ended += int((taken.terminated | taken.truncated).sum())
    assert ended > 100
    return right / ended


@pytest.mark.by_default(0)
@pytest.mark.parametrize("kind", KINDS)
def test_memory_solves_a_maze(kind: str) -> None:
    assert share_of_right_turns(NetworkConfig(type=kind, hidden=[], units=[16]), 60) > 0.95


@pytest.mark.by_default(0)
@pytest.mark.parametrize("network", [NetworkConfig(hidden=[16]), NetworkConfig(type="lstm", hidden=[], units=[16], sequence=1)])
def test_without_memory_half_of_the_turns_are_right(network: NetworkConfig) -> None:
    """An MLP, and an LSTM whose sequences have one step."""
    assert 0.35 < share_of_right_turns(network, 60) < 0.65
