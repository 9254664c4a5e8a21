"""Episodes of any environment, step by step, for the records of `warprun play`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch

from warprun.environment import Environment
from warprun.runs.build import Setup, make_external, prepare, uncaptured
from warprun.runs.recording import PLACE, ChoosesActions, Moment, Player, on_host, what_happened
from warprun.runs.sentinel import refuse
from warprun.simulation.exploration import Exploration
from warprun.simulation.trajectory import Trajectory
from warprun.spec import Space, Spec


def episodes_of(setup: Setup, policy: ChoosesActions, seed: int, episodes: int, greedy: bool) -> Player | SimulatorEpisodes:
    """Return a player of `episodes` of a policy; `greedy`: with the most probable actions, else with sampled ones.

    Raises UserError. What it yields, `moments(episode)`, raises TrainingFailed for a number that is not finite.
    """
    if isinstance(setup.environment, Environment):
        return Player(setup, policy, seed, episodes, greedy)
    return SimulatorEpisodes(setup, policy, seed, greedy)


class SimulatorEpisodes:
    """Plays episodes of a simulator that is not made of kernels, one after the other in one environment."""

    def __init__(self, setup: Setup, policy: ChoosesActions, seed: int, greedy: bool) -> None:
        self._policy, self._greedy = policy, greedy
        concurrency = replace(setup.config.concurrency, workers=0)  # one environment needs no process of its own
        setup = replace(setup, config=replace(setup.config, concurrency=concurrency))
        self._simulator = make_external(uncaptured(setup), 1, 1, seed, policy.exploration)
        self._simulator.trajectory.remember(policy.carry)
        prepare(setup, self._simulator)
        self._limit = self._simulator.spec.time_limit or setup.config.eval.max_steps
        self._begun = True
        """Whether the next episode has begun: the simulator resets when it is prepared, and when an episode ends."""

    def close(self) -> None:
        self._simulator.close()

    def moments(self, episode: int) -> Iterator[Moment]:
        """Play the next episode and yield it step by step. An episode without an end is cut after `eval.max_steps` steps.

        A simulator keeps the last observation of truncated episodes only; that of a terminated one is NaN.
        """
        simulator, taken = self._simulator, self._simulator.trajectory
        groups = simulator.spec.groups
        if not self._begun:
            simulator.reset()
        refuse(simulator.fault(wait=True), PLACE)
        for step in range(self._limit):
            simulator.collect(self._policy.act, self._greedy)
            refuse(simulator.fault(wait=True), PLACE)
            done = replace(what_happened(taken, groups, 0, 0), replaced=simulator.episodes().replaced > 0)
            yield Moment(step, {}, {name: on_host(group.obs[0, 0]) for name, group in taken.groups.items()}, None, done)
            if done.terminated or done.truncated:
                break
        self._begun = done.terminated or done.truncated
        last = {name: on_host(group.final_obs[0, 0] if done.truncated else group.obs[1, 0]) for name, group in taken.groups.items()}
        if done.terminated:
            last = {name: np.full_like(values, np.nan) for name, values in last.items()}
        yield Moment(step + 1, {}, last, None, None)


class RandomPolicy:
    """Uniform random actions: a choice among the allowed ones, a real number within its bounds.

    A component with an infinite bound is standard normal, clipped at the other bound. The outputs name one drawn
    action, so act greedily.
    """

    exploration: Exploration | None = None

    def __init__(self, spec: Spec, seed: int) -> None:
        self.carry: Mapping[str, int] = {}
        self._groups = spec.groups
        self._draws = np.random.default_rng(seed)

    def act(self, trajectory: Trajectory, row: int) -> None:
        """Write the outputs of a policy that takes the actions drawn now."""
        for group in self._groups:
            arrays = trajectory.groups[group.name]
            # Of random logits the largest is any of them, with the same probability.
            outputs = self._draws.random(tuple(arrays.policy_output.shape), np.float32)
            if arrays.mask is not None:
                outputs[~arrays.mask[row].cpu().numpy()] = -np.inf
            outputs[..., : group.action.reals] = self._real(group.action, outputs.shape[:-1])
            arrays.policy_output.copy_(torch.from_numpy(outputs))

    def _real(self, space: Space, actors: tuple[int, ...]) -> np.ndarray:
        """Return the real numbers of actions [..., reals] in the units of a policy."""
        bounded = np.array([math.isfinite(low) and math.isfinite(high) for low, high in space.bounds()], bool)
        shape = (*actors, space.reals)
        drawn: np.ndarray = np.where(bounded, self._draws.uniform(-1.0, 1.0, shape), self._draws.standard_normal(shape))
        return drawn
