"""What kernels execute: instructions counted by the machine that runs PTX, for the times of `tests.ptx.expected`."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch

from tests.agents import build
from tests.learning.cpu.test_gradient import SPACES, learner_for, rows_for
from tests.learning.cuda import test_launches
from tests.learning.cuda.simulated import cuda_kernels
from tests.learning.helpers import rollout
from tests.ptx import off_policy, project
from tests.ptx.project import on
from tests.ptx.rolling import DEVICE, clear, fused, machine, ways_of
from tests.simulation import rollouts
from warprun.learning.kernels.cuda import gradient as cuda_gradient
from warprun.learning.kernels.cuda import recurrent, recurrent_slopes, recurrent_tensor, statistics
from warprun.learning.kernels.cuda import updates as cuda_updates
from warprun.learning.recurrent import CELLS
from warprun.learning.settings.networks import LayersConfig, NetworkConfig
from warprun.simulation import cuda_layers

MULTIPROCESSORS = 132
SHARED_BYTES = 227 * 1024
"""That a block can ask for."""
HORIZON = 16
HIDDEN = NetworkConfig(hidden=[64, 64])
SATURATED = 1_584
"""CartPoles with a tile of 32 rows for each of the 792 blocks that compute a gradient on a card, in HORIZON steps."""
STATISTICS_BLOCKS = SATURATED // 4
"""Most blocks of statistics of observations, which so many CartPoles occupy; on a card 512."""
BATCH = 256
MEMBER_ENVS, MEMBER_STEPS = 64, 128
SEPARATE = NetworkConfig(hidden=[64, 64], shared=False)
"""Agents of PureJaxRL (https://github.com/luchris429/purejaxrl): environments, horizon and networks."""
RECURRENT_UNITS = 64
"""Of a recurrent layer, and its inputs."""


class Executed(NamedTuple):
    """Instructions of a kernel, without moves: of all warps, of the longest, and of all for tensor cores and for special functions."""

    launches: float
    issued: float
    longest: float
    mma: float = 0.0
    mufu: float = 0.0
    bytes: float = 0.0
    """Of its arrays, each once."""

    def times(self, count: float) -> "Executed":
        """Return what so many of these execute one after the other."""
        return Executed(*(count * number for number in self))

    def plus(self, other: "Executed", count: float = 1.0) -> "Executed":
        """Return what these and so many of the others execute one after the other."""
        return Executed(*(a + count * b for a, b in zip(self, other, strict=True)))

    def each(self) -> "Executed":
        """Return what one launch executes."""
        return self.times(1 / self.launches)


def filling(found: Executed, count: float) -> Executed:
    """Return what so many parts of a kernel execute at once, which fill a card."""
    return found.times(count)._replace(launches=1, longest=0.0)


def executed(work: Callable[[], object]) -> dict[str, Executed]:
    """Return what the kernels of some work execute."""
    clear(machine())
    with on(machine()):
        work()
    seen = machine().seen.items()
    return {name: Executed(len(each.issued), *map(sum, zip(*each.issued, strict=True)), sum(each.bytes)) for name, each in seen}


@contextmanager
def on_a_card(multiprocessors: int = MULTIPROCESSORS) -> Iterator[None]:
    """Let kernels have the blocks of a card with so many multiprocessors."""
    with ExitStack() as stack:
        for module in (cuda_gradient, cuda_updates, recurrent, recurrent_slopes):
            stack.enter_context(patch.object(module, "multiprocessors", lambda device: multiprocessors))
        stack.enter_context(patch.object(cuda_layers, "most_shared_bytes", lambda: SHARED_BYTES))
        yield


@contextmanager
def in_float32() -> Iterator[None]:
    """Let kernels be those of a GPU without tensor cores for bfloat16, as they were when a card was measured."""
    with patch.object(project, "CAPABILITY", (7, 5)):
        yield


# On policy ----------------------------------------------------------------------------------------------------------------


def gradient(rows: int) -> Executed:
    """Return what the gradient of A2C 64-64 executes on a card with one multiprocessor."""
    learner = learner_for("a2c", SPACES["discrete"], HIDDEN, fused=False)
    batch = rows_for(learner, rows, False)
    with on_a_card(1):
        return executed(lambda: cuda_kernels(learner).gradient(batch, batch.advantage, None, None))["gradient"]


def per_tile() -> Executed:
    """Return what a tile of 32 rows executes."""
    few, many = 64, 128  # more tiles than blocks, twice
    return gradient(32 * many).plus(gradient(32 * few), -1.0).times(1 / (many - few))._replace(launches=1)


def of_rollout() -> Executed:
    """Return what a step of a rollout of 32 CartPoles executes, with networks of 64-64 units."""
    found = executed(partial(ways_of("cartpole")["fused 64"].run, DEVICE, 32))["rollout"]
    return found.times(1 / (3 * found.launches))._replace(launches=1)


class Iteration(NamedTuple):
    """What the kernels of a rollout and of the update after it execute."""

    rollout: dict[str, Executed]
    update: dict[str, Executed]

    def beyond(self, few: "Iteration", times: float) -> "Iteration":
        """Return an iteration that differs from `few`, which has fewer environments, `times` as much as this one does."""
        pairs = zip(few, self, strict=True)
        return Iteration(*({name: a[name].plus(b[name].plus(a[name], -1.0), times) for name in b} for a, b in pairs))


def iteration(name: str, n_envs: int, **settings: Any) -> Iteration:
    """Return an iteration of CartPole with networks of 64-64 units on a whole card."""
    case = replace(rollouts.CASES["cartpole"], vary=(), time_limit=500, n_envs=n_envs, horizon=HORIZON)
    with on_a_card(), on(machine()), patch.object(statistics, "MOST_BLOCKS", STATISTICS_BLOCKS):
        agent = build(name, case.environment, n_envs=n_envs, network=HIDDEN, horizon=HORIZON, **settings)
        (learner,) = agent.learners
        learner.operations = cuda_kernels(learner)
        agent._has_updated = True  # what only the first update does
        engine = rollouts.engine_of(case, "cartpole", DEVICE, networks=agent.networks())
    of_rollout = executed(lambda: engine.collect(agent.act))
    with patch.object(statistics, "MOST_BLOCKS", STATISTICS_BLOCKS):
        return Iteration(of_rollout, executed(lambda: agent.update(engine.trajectory, 0.0)))


def a2c() -> Callable[[int], Iteration]:
    """Return what gives an iteration of A2C with so many environments."""
    few, many = iteration("a2c", SATURATED), iteration("a2c", 2 * SATURATED)

    def found(n_envs: int) -> Iteration:
        return iteration("a2c", n_envs) if n_envs < SATURATED else many.beyond(few, n_envs / SATURATED - 1)

    return found


def ppo(epochs: int, minibatches: int) -> Callable[[int], Iteration]:
    """Return the same for PPO. Two minibatches are counted; a launch depends on the rows of its minibatch alone."""
    few, many = (iteration("ppo", 2 * n * SATURATED, epochs=1, minibatches=2) for n in (1, 2))

    def found(n_envs: int) -> Iteration:
        whole, half = (many.beyond(few, n / (2 * SATURATED) - 1) for n in (n_envs, 2 * n_envs / minibatches))
        of_epoch = {name: whole.update[name].times(epochs) for name in ("keys", "pick", "part_moments")}
        of_values = whole.rollout["pack"]  # for the values after the rollout, by the same network as in it
        steps = half.update | {"pack": half.update["pack"].plus(of_values, -1.0)}
        of_steps = {name: steps[name].each().times(epochs * minibatches) for name in ("gradient", "reduce", "step", "pack")}
        return Iteration(whole.rollout, whole.update | of_epoch | of_steps | {"pack": of_values.plus(of_steps["pack"])})

    return found


def operations_of_torch(name: str, **settings: Any) -> int:
    """Return how many operations of torch an update launches."""
    with pytest.MonkeyPatch.context() as given:
        return sum("." in each for each in test_launches.of_an_update(given, name, **settings))


def population() -> tuple[Executed, dict[str, Executed], dict[str, Executed]]:
    """Return what a member with PureJaxRL's settings executes: in a step of a rollout, once in an update, and in each of its epochs."""
    case = replace(rollouts.CASES["cartpole"], horizon=3, collects=1)
    found = executed(partial(fused, case, "cartpole", SEPARATE, False, {}, DEVICE, MEMBER_ENVS))["rollout"]
    of_step = found.times(1 / (3 * found.launches))

    def update(epochs: int) -> dict[str, Executed]:
        environment = rollouts.CASES["cartpole"].environment
        agent = build("ppo", environment, n_envs=MEMBER_ENVS, network=SEPARATE, epochs=epochs, minibatches=4, learning_rate_end=1e-4)
        taken = rollout(environment, horizon=MEMBER_STEPS, n_envs=MEMBER_ENVS)

        def work() -> None:
            with on_a_card():
                (learner,) = agent.learners
                learner.operations = cuda_kernels(learner)
            agent.update(taken, 0.0)

        return executed(work)

    one, two = update(1), update(2)
    of_epoch = {name: two[name].plus(one[name], -1.0) for name in two}
    return of_step, {name: one[name].plus(of_epoch[name], -1.0) for name in two}, of_epoch


# Recurrent layers, and off policy -----------------------------------------------------------------------------------------


def recurrent_pass(kind: str, sequences: int) -> dict[str, Executed]:
    """Return what a step of the recurrent layer of RECURRENT_UNITS executes on a whole card, forward and backward, and what the gradients
    of its weights execute for the rows of a step; these only on tensor cores."""
    cell = CELLS[kind](RECURRENT_UNITS, RECURRENT_UNITS)

    def work(steps: int) -> None:
        x, keeps = torch.randn(steps, sequences, RECURRENT_UNITS), torch.ones(steps, sequences)
        first = torch.zeros(sequences, RECURRENT_UNITS * (2 if kind == "lstm" else 1))
        y, _ = recurrent.layer(cell, x, keeps, first)
        torch.autograd.grad(y.square().sum(), list(cell.parameters()))

    found = []
    for steps in (1, 2):
        for module in (recurrent, recurrent_tensor):
            module.kernel_module.cache_clear()
        recurrent_slopes.weight_slopes_of.cache_clear()
        with on_a_card():
            found.append(executed(partial(work, steps)))
    one, two = found
    return {name: two[name].plus(one[name], -1.0) for name in two if name not in ("pack", "reduce")}


def step(name: str, **settings: Any) -> dict[str, Executed]:
    """Return what one gradient step off policy executes on a whole card: networks of 256-256 units, 64-64 for DQN."""
    hidden = [64, 64] if name == "dqn" else [256, 256]
    _, space, _ = off_policy.CASES[name]
    env = off_policy.environment_of(space)
    given = {"learning_starts": 0, "batch_size": BATCH, "utd_ratio": 1 / 30, "network": LayersConfig(hidden=hidden), **settings}

    def work() -> None:
        with off_policy.cuda_steps(), on_a_card():
            agent = build(name, env, fused=True, **given)
        agent.update(rollout(env, horizon=6, n_envs=5), 0.0)
        machine().seen.clear()
        agent.update(rollout(env, horizon=6, n_envs=5, seed=1), 0.5)

    return executed(work)
