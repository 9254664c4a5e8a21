"""Records single episodes step by step, for the figures and tables of an environment's report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from warprun.learning.interfaces import Agent
from warprun.runtime.build import Setup, make_engine, set_up, uncaptured


@dataclass(frozen=True)
class Recording:
    """What happened in one episode of T steps; A actors in a group, C components of an action."""

    states: dict[str, dict[str, np.ndarray]]
    """group -> field -> [T + 1, A] (array fields [T + 1, A, length]); the last row is the final state."""
    actions: dict[str, np.ndarray]
    """group -> [T, A, C], in the policy's units."""
    rewards: dict[str, np.ndarray]
    """group -> [T, A]."""
    terminated: bool
    """Whether the episode ended in a terminal state; else it hit the time limit."""
    params: Any
    """The environment's parameters, in the types that kernels use."""
    tables: Any
    """The environment's tables, or None."""


class Player:
    """Records episodes of the agent's greedy policy or of given actions."""

    def __init__(self, setup: Setup, agent: Agent, seed: int) -> None:
        """Without a time limit, episodes end after `eval.max_steps` steps. Raises UserError if the environment is not made of kernels."""
        self._setup, self._agent, self._seed = setup, agent, seed
        self._engine = make_engine(uncaptured(setup), 1, 1, seed, exploration=agent.exploration, auto_reset=False)
        self.environment = self._engine.environment

    def __call__(self, actions: Mapping[str, np.ndarray] | None = None) -> Recording:
        """Record one episode. `actions`: group -> [T, A, C], T at least the length of the episode; None: the agent's greedy actions."""
        engine, taken = self._engine, self._engine.trajectory
        engine.steps = 0  # the same draws in every recording: episodes differ only by their actions
        engine.reset()
        groups = engine.environment.groups
        steps: list[dict[str, dict[str, torch.Tensor]]] = [self._states()]
        chosen: dict[str, list[torch.Tensor]] = {g.name: [] for g in groups}
        rewards: dict[str, list[torch.Tensor]] = {g.name: [] for g in groups}
        for t in range(engine.environment.time_limit or self._setup.config.eval.max_steps):
            if actions is None:
                self._agent.act(taken, 0)
                engine.choose_best(0)
            else:
                for name, given in actions.items():
                    taken.groups[name].action[0, 0].copy_(torch.from_numpy(np.ascontiguousarray(given[t])))
            engine.step(0)
            for group in groups:
                chosen[group.name].append(taken.groups[group.name].action[0, 0].cpu().clone())
                rewards[group.name].append(taken.groups[group.name].reward[0, 0].cpu().clone())
            ended = bool(taken.terminated[0, 0]) or bool(taken.truncated[0, 0])
            steps.append(self._states())
            engine.carry_over()
            if ended:
                break
        return Recording(
            {g.name: {f.name: np.stack([step[g.name][f.name].numpy() for step in steps]) for f in g.fields} for g in groups},
            {name: torch.stack(values).numpy() for name, values in chosen.items()},
            {name: torch.stack(values).numpy() for name, values in rewards.items()},
            bool(taken.terminated[0, 0]),
            engine.params,
            engine.tables,
        )

    def under(self, time_limit: int | None = None, **options: Any) -> Player:
        """Return a player of the same environment with other options and another time limit."""
        config = self._setup.config
        env = replace(config.env, options=config.env.options | options, time_limit=time_limit or config.env.time_limit)
        return Player(set_up(replace(config, env=env)), self._agent, self._seed)

    def _states(self) -> dict[str, dict[str, torch.Tensor]]:
        groups = self._engine.environment.groups
        return {g.name: {name: value[0].cpu().clone() for name, value in self._engine.state_of(g.name).items()} for g in groups}
