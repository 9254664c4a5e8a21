"""Play episodes of kernel environments one at a time and record them step by step, for `warprun play` and for reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from warprun.environment import Environment
from warprun.runs.build import Setup, make_engine, set_up, uncaptured
from warprun.runs.sentinel import refuse
from warprun.simulation.exploration import Exploration
from warprun.simulation.trajectory import Trajectory
from warprun.simulation.units import in_environment_units
from warprun.spec import GroupSpec

PLACE = "in a recorded episode "
"""The place that the message of a fault names."""


class ChoosesActions(Protocol):
    """An agent, or anything else that chooses actions, such as `warprun.playing.episodes.RandomPolicy`."""

    exploration: Exploration | None
    """See `warprun.learning.interfaces.Agent`."""
    carry: Mapping[str, int]
    """See `warprun.learning.interfaces.Agent`."""

    def act(self, trajectory: Trajectory, row: int) -> None:
        """Write every group's `policy_output` for the observations of row `row`."""


@dataclass(frozen=True)
class Taken:
    """The step that one environment took; A actors in a group, C components of an action."""

    actions: dict[str, np.ndarray]
    """group -> [A, C], in the environment's units: int32, or float32 within the bounds of the `Box`."""
    rewards: dict[str, np.ndarray]
    """group -> [A] float32."""
    terminated: bool
    truncated: bool
    replaced: bool = False
    """Whether a fault has ended the episode, with `env.on_nan=reset`."""


@dataclass(frozen=True)
class Moment:
    """The state of one environment after `step` steps of an episode, and the step that it takes next; F features of an
    observation.
    """

    step: int
    states: dict[str, dict[str, np.ndarray]]
    """group -> field -> [A] (array fields [A, length]); empty if the environment is not made of kernels."""
    observations: dict[str, np.ndarray]
    """group -> [A, F] float32; NaN if a simulator does not tell the last observation of an episode."""
    params: object
    """The parameters of the episode, in the types that kernels use; None if the environment is not made of kernels."""
    taken: Taken | None
    """None after the last step of the episode."""


@dataclass(frozen=True)
class Recording:
    """The states, actions and rewards of one episode of T steps; A actors in a group, C components of an action."""

    states: dict[str, dict[str, np.ndarray]]
    """group -> field -> [T + 1, A] (array fields [T + 1, A, length]); the last row is the final state."""
    actions: dict[str, np.ndarray]
    """group -> [T, A, C], in the environment's units."""
    rewards: dict[str, np.ndarray]
    """group -> [T, A]."""
    terminated: bool
    """Whether the episode ended in a terminal state; else it hit the time limit."""
    params: Any
    """The environment's parameters, in the types that kernels use."""
    tables: Any
    """The environment's tables, or None."""


class Player:
    """Plays episodes of a policy or of given actions in an environment that is made of kernels.

    Episode n is that of environment n among `episodes`, from their first step on: the n-th episode of an `Evaluator` of the same seed
    and number of episodes, up to rounding if its rollouts are fused.
    """

    def __init__(self, setup: Setup, policy: ChoosesActions, seed: int, episodes: int = 1, greedy: bool = True) -> None:
        """Make the environments. `greedy`: take the most probable actions, else sample them.

        Without a time limit, episodes end after `eval.max_steps` steps. Raises UserError if the environment is not made
        of kernels.
        """
        self._setup, self._policy, self._seed, self._greedy = setup, policy, seed, greedy
        self._engine = make_engine(uncaptured(setup), episodes, 1, seed, exploration=policy.exploration, auto_reset=False, announce=print)
        self._engine.trajectory.remember(policy.carry)
        self.environment: Environment = self._engine.environment
        self.params, self.tables = self._engine.params, self._engine.tables

    def moments(self, episode: int = 0, actions: Mapping[str, np.ndarray] | None = None) -> Iterator[Moment]:
        """Play one episode and yield it step by step.

        `actions`: group -> [T, A, C] in the policy's units, T at least the length of the episode; None: those of the policy. Raises
        TrainingFailed for a number that is not finite, unless `env.on_nan=reset`, which ends the episode.
        """
        engine, taken = self._engine, self._engine.trajectory
        engine.steps = 0  # every episode begins with the same draws, however many were played before
        engine.reset()
        refuse(engine.fault_of(episode), PLACE)
        params = engine.params_of(episode)
        limit = engine.environment.time_limit or self._setup.config.eval.max_steps
        for step in range(limit):
            states, observations = self._states(episode), self._observations(0, episode)
            if actions is None:
                self._policy.act(taken, 0)
                engine.choose_best(0) if self._greedy else engine.sample(0)
            else:
                for name, given in actions.items():
                    taken.groups[name].action[0, episode].copy_(torch.from_numpy(np.ascontiguousarray(given[step])))
            engine.step(0)
            done = what_happened(taken, engine.spec.groups, 0, episode)
            fault = engine.fault_of(episode)
            if fault and fault.field != "action" and self._setup.config.env.on_nan == "reset":
                done = Taken(done.actions, {name: np.zeros_like(each) for name, each in done.rewards.items()}, True, False, replaced=True)
            else:
                refuse(fault, PLACE)
            yield Moment(step, states, observations, params, done)
            engine.carry_over()
            if done.terminated or done.truncated:
                break
        yield Moment(step + 1, self._states(episode), self._observations(0, episode), params, None)

    def __call__(self, actions: Mapping[str, np.ndarray] | None = None) -> Recording:
        """Record the first episode, see `moments`."""
        moments = list(self.moments(0, actions))
        steps = [moment.taken for moment in moments if moment.taken is not None]
        groups = self.environment.groups
        return Recording(
            {g.name: {f.name: np.stack([moment.states[g.name][f.name] for moment in moments]) for f in g.fields} for g in groups},
            {g.name: np.stack([step.actions[g.name] for step in steps]) for g in groups},
            {g.name: np.stack([step.rewards[g.name] for step in steps]) for g in groups},
            steps[-1].terminated,
            moments[-1].params,
            self.tables,
        )

    def close(self) -> None:
        """Free what the environments hold."""
        self._engine.close()

    def under(self, time_limit: int | None = None, **options: object) -> Player:
        """Return a player of the same environment with other options and another time limit."""
        config = self._setup.config
        env = replace(config.env, options=config.env.options | options, time_limit=time_limit or config.env.time_limit)
        return Player(set_up(replace(config, env=env)), self._policy, self._seed)

    def _states(self, episode: int) -> dict[str, dict[str, np.ndarray]]:
        groups = self.environment.groups
        return {g.name: {name: on_host(value[episode]) for name, value in self._engine.state_of(g.name).items()} for g in groups}

    def _observations(self, row: int, episode: int) -> dict[str, np.ndarray]:
        return {name: on_host(group.obs[row, episode]) for name, group in self._engine.trajectory.groups.items()}


def what_happened(taken: Trajectory, groups: Sequence[GroupSpec], row: int, env: int) -> Taken:
    """Return the step of environment `env` in row `row` of a trajectory; `groups` are the specs of the groups."""
    return Taken(
        {g.name: in_environment_units(g.action, on_host(taken.groups[g.name].action[row, env])) for g in groups},
        {g.name: on_host(taken.groups[g.name].reward[row, env]) for g in groups},
        bool(taken.terminated[row, env]),
        bool(taken.truncated[row, env]),
    )


def on_host(tensor: torch.Tensor) -> np.ndarray:
    """Return a copy of a tensor as a numpy array."""
    copied: np.ndarray = tensor.detach().cpu().clone().numpy()
    return copied
