"""Learning from sequences in replay memory: what is drawn, the memory before it, gradients in float64, and mazes that need it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from tests.agents import build
from tests.learning.test_recurrent import KINDS, by_formulas, engine_for, maze, right_turns
from tests.selection import few
from warprun.algorithms import config_class
from warprun.algorithms.dqn import values_loss
from warprun.algorithms.settings import DQNConfig
from warprun.config.registry import import_environment
from warprun.errors import UserError
from warprun.learning.off_policy import OffPolicyLearner
from warprun.learning.recurrent import Recurrent
from warprun.learning.sequences import recall, recall_both, recall_next
from warprun.learning.settings.networks import LayersConfig
from warprun.learning.settings.off_policy import ReplayConfig

N_ENVS, HORIZON, GAMMA, N_STEP = 4, 7, 0.9, 3
REPLAY: dict[str, Any] = {"capacity": 203, "sequence": 9, "burn_in": 5}
"""50 steps of 4 environments: not a multiple of the horizon, and the ring turns over."""
SMALL: dict[str, Any] = {"hidden": [6], "units": [5, 4], "after": [3]}


class Step(NamedTuple):
    """A step of one environment, as the test wrote it down."""

    obs: torch.Tensor
    action: int
    reward: float
    terminated: bool
    truncated: bool
    next_obs: torch.Tensor


def learner_and_steps(kind: str, rollouts: int = 11, **settings: Any) -> tuple[OffPolicyLearner[Any], list[list[Step]]]:
    """Return the learner of a DQN that has seen some rollouts of a maze and never learned, and all steps of every environment."""
    environment = maze(length=2, time_limit=8)
    defaults = {"batch_size": 40, "gamma": GAMMA, "n_step": N_STEP, "horizon": HORIZON, "replay": ReplayConfig(**REPLAY)}
    agent = build("dqn", environment, n_envs=N_ENVS, network=LayersConfig(type=kind, **SMALL), **(defaults | settings))
    engine = engine_for(agent, environment, n_envs=N_ENVS, horizon=HORIZON)
    learner: OffPolicyLearner[Any] = agent.learners[0]
    steps: list[list[Step]] = [[] for _ in range(N_ENVS)]
    for _ in range(rollouts):
        taken = engine.collect(agent.act)
        group, slots = taken.groups["agent"], taken.final_slot()
        for env, known in enumerate(steps):
            for t in range(HORIZON):
                truncated = bool(taken.truncated[t, env])
                next_obs = group.final_obs[slots[t, env], env, 0] if truncated else group.obs[t + 1, env, 0]
                action, reward = int(group.action[t, env, 0, 0]), float(group.reward[t, env, 0])
                row = (group.obs[t, env, 0].clone(), action, reward, bool(taken.terminated[t, env]), truncated, next_obs.clone())
                known.append(Step(*row))
        learner.add(taken)
    return learner, steps


def carry_before(network: Recurrent, steps: list[Step], at: int) -> torch.Tensor:
    """Return what a network remembers before step `at` of an environment: of its episode alone, [1, H]."""
    first = max((t + 1 for t in range(at) if steps[t].terminated or steps[t].truncated), default=0)
    carry = torch.zeros(1, network.carry)
    for t in range(first, at):
        _, carry = network.unroll(steps[t].obs[None, None], carry, torch.zeros(1, 1, dtype=torch.bool))
    return carry


def check_draws(learner: OffPolicyLearner[Any], steps: list[list[Step]]) -> set[int]:
    """Raise AssertionError unless drawn sequences are those of the environments; return the first steps of the sequences."""
    assert learner.sequences
    memory = learner.policy.memory
    assert memory
    wide, seen = REPLAY["burn_in"] + REPLAY["sequence"] + N_STEP - 1, set()
    total, kept = len(steps[0]), REPLAY["capacity"] // N_ENVS
    for number in range(4):
        batch, history = learner.sequences.draw(torch.tensor(number))
        for b in range(40):
            # Row of the ring -> environment and step: the last step that was written there.
            place, env = divmod(int(batch.row[b]), N_ENVS)
            begin = max(step for step in range(total) if step % kept == place)
            seen.add(begin)
            own = steps[env][begin : begin + wide]
            assert torch.equal(history.obs[:, b], torch.stack([step.obs for step in own]))
            assert history.begins[:, b].tolist() == [False, *(step.terminated or step.truncated for step in own[:-1])]
            torch.testing.assert_close(history.carry[b : b + 1], carry_before(memory, steps[env], begin), rtol=0.0, atol=1e-5)
            for t in range(REPLAY["sequence"]):
                at, row = REPLAY["burn_in"] + t, t * 40 + b
                reward, discount, end = 0.0, 1.0, at
                for n in range(N_STEP):
                    end = at + n
                    reward, discount = reward + discount * own[end].reward, discount * GAMMA
                    if own[end].terminated or own[end].truncated:
                        break
                assert torch.equal(batch.obs[row], own[at].obs) and batch.action[row].tolist() == [own[at].action]
                assert float(batch.reward[row]) == pytest.approx(reward, abs=1e-6)
                assert float(batch.discount[row]) == pytest.approx(0.0 if own[end].terminated else discount, abs=1e-6)
                assert int(history.last[t, b]) == end
                if not own[end].terminated:
                    assert torch.equal(batch.next_obs[row], own[end].next_obs)
    return seen


@pytest.mark.by_default(2)
@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_sequences_are_those_of_the_environments_with_the_memory_of_their_episodes(kind: str, prioritized: bool) -> None:
    learner, steps = learner_and_steps(kind, replay=ReplayConfig(**REPLAY, prioritized=prioritized))
    ends = [(step.terminated, step.truncated) for step in steps[0]]
    assert (True, False) in ends and (False, True) in ends
    found = check_draws(learner, steps)
    wide, total = REPLAY["burn_in"] + REPLAY["sequence"] + N_STEP - 1, 11 * HORIZON
    assert (min(found), max(found)) == (total - REPLAY["capacity"] // N_ENVS, total - wide)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_recalled_is_that_of_the_formulas(kind: str) -> None:
    """In float64, step by step for every sequence: rows, the rows that follow, and the gradient, which burn-in has none of."""
    learner, _ = learner_and_steps(kind)
    assert learner.sequences
    batch, history = learner.sequences.draw(torch.tensor(0))
    batch, history = (
        batch._replace(next_obs=batch.next_obs.double()),
        history._replace(obs=history.obs.double(), carry=torch.zeros_like(history.carry).double()),
    )
    memory = learner.policy.memory
    assert memory
    memory.double().requires_grad_()
    rows_found, next_found = recall_both(memory, batch, history)
    assert torch.equal(rows_found, recall(memory, batch, history))
    assert torch.equal(next_found, recall_next(memory, batch, history))
    parameters = list(memory.parameters())
    steps, count = history.last.shape
    weights = torch.randn(rows_found.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gradient = torch.autograd.grad((rows_found * weights).sum(), parameters)
    assert not next_found.requires_grad

    total = torch.zeros((), dtype=torch.float64)
    for b in range(0, count, 3):
        cuts = [0, *(t for t in range(1, len(history.obs)) if history.begins[t, b]), len(history.obs)]
        for first, end in pairwise(cuts):
            rows = list(by_formulas(memory, history.obs[first:end, b]))
            for t in range(max(first, history.burn_in), min(end, history.burn_in + steps)):
                torch.testing.assert_close(rows_found[(t - history.burn_in) * count + b], rows[t - first], rtol=1e-9, atol=1e-12)
        for t in range(steps):
            last = int(history.last[t, b])
            first = max(cut for cut in cuts if cut <= last)
            following = torch.cat((history.obs[first : last + 1, b], batch.next_obs[t * count + b][None]))
            torch.testing.assert_close(next_found[t * count + b], list(by_formulas(memory, following))[-1], rtol=1e-9, atol=1e-12)
    # The gradient: a memory that begins with what burn-in left, without gradients.
    for b in range(count):
        carry = history.carry[b : b + 1]
        with torch.no_grad():
            _, carry = memory.unroll(history.obs[: history.burn_in, b : b + 1], carry, history.begins[: history.burn_in, b : b + 1])
        for t in range(history.burn_in, history.burn_in + steps):
            if history.begins[t, b]:
                carry = torch.zeros_like(carry)
            row, carry = memory.unroll(history.obs[t : t + 1, b : b + 1], carry, torch.zeros(1, 1, dtype=torch.bool))
            total = total + (row[0, 0] * weights[(t - history.burn_in) * count + b]).sum()
    for one, other in zip(gradient, torch.autograd.grad(total, parameters), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_dqn_compares_values_after_a_sequence_with_those_of_the_target_network() -> None:
    learner, _ = learner_and_steps("gru")
    assert learner.sequences
    values: Any = learner.trained["values"]
    values.target_parameters.normal_(0.0, 0.3)
    batch, history = learner.sequences.draw(torch.tensor(1))
    loss, value, error = values_loss(learner.config, values, batch, history)
    rows, next_rows = recall_both(values.network.memory, batch, history)
    chosen = values.network.layers(next_rows).argmax(-1)
    next_rows = recall_next(values.target.memory, batch, history)
    target = batch.reward + batch.discount * values.target.layers(next_rows)[torch.arange(len(chosen)), chosen]
    expected = values.network.layers(rows)[torch.arange(len(chosen)), batch.action[:, 0].long()]
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(error, (expected - target).detach())
    torch.testing.assert_close(loss, nn.functional.huber_loss(expected, target.detach()))


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("rollouts", [3, 11])
def test_whole_sequences_are_drawn_equally_often(prioritized: bool, rollouts: int) -> None:
    """Of a ring that is not full and of one that is; new sequences have the same, the largest priority."""
    learner, _ = learner_and_steps("gru", rollouts, replay=ReplayConfig(**REPLAY, prioritized=prioritized))
    assert learner.sequences
    total, kept = rollouts * HORIZON, REPLAY["capacity"] // N_ENVS
    possible = min(total, kept) - learner.sequences.wide + 1
    rows = torch.cat([learner.sequences.draw(torch.tensor(number))[0].row.clone() for number in range(300)])
    ages = (rows // N_ENVS - max(0, total - kept)) % kept
    counts = torch.bincount(ages * N_ENVS + rows % N_ENVS, minlength=possible * N_ENVS)
    assert len(counts) == possible * N_ENVS
    expected = 300 * 40 / len(counts)
    assert ((counts - expected).square() / expected).sum() < len(counts) + 6 * (2 * len(counts)) ** 0.5


def test_a_priority_is_that_of_the_drawn_sequence() -> None:
    learner, _ = learner_and_steps("gru", replay=ReplayConfig(**REPLAY, prioritized=True, alpha=1.0))
    assert learner.sequences
    batch, _ = learner.sequences.draw(torch.tensor(0))
    learner.replay.update_priorities(batch.row, torch.where(batch.row == batch.row[0], 1e6, 1e-6))
    drawn, _ = learner.sequences.draw(torch.tensor(1))
    assert (drawn.row == batch.row[0]).float().mean() > 0.9


def test_critics_forget_at_the_same_steps_as_the_actor() -> None:
    """With `agent.network.sequence` the count of steps is kept, all else is not."""
    environment = maze(length=2, time_limit=8)
    network = LayersConfig(type="gru", sequence=3, **SMALL)
    settings: dict[str, Any] = {"replay": ReplayConfig(**REPLAY), "horizon": HORIZON, "batch_size": 40}
    agent = build("dqn", environment, n_envs=N_ENVS, network=network, **settings)
    engine = engine_for(agent, environment, n_envs=N_ENVS, horizon=HORIZON)
    for _ in range(4):
        agent.learners[0].add(engine.collect(agent.act))
    _, history = agent.learners[0].sequences.draw(torch.tensor(0))
    forgotten = history.forgotten().carry
    assert torch.equal(forgotten[:, -1], history.carry[:, -1]) and forgotten[:, -1].unique().tolist() == [0.0, 1.0, 2.0, 3.0]
    assert not forgotten[:, :-1].any() and history.carry[:, :-1].any()


def test_priorities_are_of_sequences() -> None:
    """Kapturowski et al. 2019, section 2.3, by hand."""
    learner, _ = learner_and_steps("gru")
    assert learner.sequences
    _, history = learner.sequences.draw(torch.tensor(0))
    error = torch.zeros(history.last.shape)
    error[0, 0], error[3, 0], error[:, 1] = -2.0, 1.0, 0.5
    found = learner.sequences.errors(error.flatten(), history)
    assert found[:3].tolist() == pytest.approx([0.9 * 2.0 + 0.1 * 3.0 / 9, 0.5, 0.0])


@pytest.mark.by_default(0)
@pytest.mark.parametrize("name", ["ddpg", "td3", "sac"])
def test_actors_and_critics_learn_with_memory(name: str) -> None:
    """The pendulum without velocity: gradients arrive in every layer, recurrent ones included, and in no other way than by recall."""
    environment = import_environment("warprun.envs.pendulum", {"velocity": False})[0]
    network = LayersConfig(type="lstm", activation="tanh", **SMALL)
    agent = build(name, environment, n_envs=3, network=network, replay=ReplayConfig(**REPLAY), batch_size=8, horizon=4, learning_starts=60)
    engine = engine_for(agent, environment, n_envs=3, horizon=4)
    before = {key: trained.parameters.clone() for key, trained in agent.learners[0].trained.items()}
    for _ in range(12):
        metrics = agent.update(engine.collect(agent.act), 0.1)
    assert metrics["loss/grad_norm"].isfinite()
    for key in ("actor", "critics"):
        trained = agent.learners[0].trained[key]
        moved = (trained.parameters != before[key]).split([leaf.numel() for leaf in trained.layer_parameters])
        assert all(part.any() for part in moved), key


@pytest.mark.parametrize("settings", [{"type": "lstm"}, {"type": "gru", **SMALL}, {"type": "lstm", "hidden": [], "sequence": 4}, {}])
@pytest.mark.parametrize("more", [{}, {"dueling": True}, {"quantiles": 3, "dueling": True}])
def test_settings_know_the_sizes(settings: dict[str, Any], more: dict[str, Any]) -> None:
    if settings.get("hidden") == []:
        settings = settings | {"after": [4]}
    agent = build("dqn", maze(), network=LayersConfig(**settings), **more)
    learner = agent.learners[0]
    assert learner.carry == (learner.policy.memory.carry if learner.policy.memory else 0)
    if not more:
        (sizes,) = learner.config.trained_networks(maze().spec.groups[0])
        trained = sum(each.parameters.numel() for each in learner.trained.values())
        assert trained == learner.config.network.parameters(*sizes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"learning_starts": 100},
            "agent.learning_starts=100: give 240 or more, burn_in .* 1 = 60 steps of n_envs=4",
        ),
        (
            {"replay": ReplayConfig(capacity=200)},
            "agent.replay.capacity=200: give 240 or more, burn_in .* 1 = 60 steps of 4 actors",
        ),
        ({"replay": ReplayConfig(sequence=0)}, "agent.replay.sequence=0"),
        ({"replay": ReplayConfig(burn_in=-1)}, "agent.replay.burn_in=-1"),
        ({"replay": ReplayConfig(eta=2.0)}, "agent.replay.eta=2"),
    ],
)
def test_mistakes_are_one_line(settings: dict[str, Any], message: str) -> None:
    config = DQNConfig(**({"network": LayersConfig(type="gru"), "learning_starts": 1000} | settings))
    with pytest.raises(UserError, match=message):
        config.check("agent")
        config.check_run(maze().spec, 4, 100_000)


@pytest.mark.parametrize("name", ["ddpg", "td3", "sac"])
@pytest.mark.parametrize("layers", [{"after": []}, {"hidden": []}])
def test_values_are_not_linear_in_the_action(name: str, layers: dict[str, list[int]]) -> None:
    config = config_class(name)(network=LayersConfig(type="gru", **layers))
    with pytest.raises(UserError, match=r"agent.network.after=\[\]: values would be linear in the action"):
        config.check("agent")


def share_of_right_turns(network: LayersConfig, updates: int) -> float:
    """Return the share of right turns of greedy episodes after some updates in a short T-maze."""
    environment = maze(length=3, time_limit=20)
    settings: dict[str, Any] = {"learning_rate": 3e-3, "gamma": 0.9, "batch_size": 32, "utd_ratio": 1 / 64, "learning_starts": 1024}
    replay = ReplayConfig(capacity=20_000, sequence=12, burn_in=4)
    agent = build("dqn", environment, n_envs=32, seed=1, network=network, horizon=4, replay=replay, tau=0.02, **settings,
                  target_update_interval=1, exploration_fraction=0.5)  # fmt: skip
    engine = engine_for(agent, environment, n_envs=32, horizon=4, exploration=agent.exploration)
    for n in range(updates):
        agent.update(engine.collect(agent.act), n / updates)
    return right_turns(agent, engine, rollouts=40)


@pytest.mark.by_default(0)
@pytest.mark.parametrize("kind", few(KINDS, "gru"))
def test_memory_solves_a_maze(kind: str) -> None:
    assert share_of_right_turns(LayersConfig(type=kind, hidden=[], units=[16], after=[]), 300) > 0.95
