"""One episode, step by step, for an environment's own figures and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from warprun.config.schema import Config, load_environment
from warprun.runtime.build import make_engine
from warprun.simulation.device import Device
from warprun.simulation.kernel_engine import Engine


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
    """The environment's parameters, as kernels have them."""
    tables: Any
    """The environment's tables, or None."""


class Player:
    """Records episodes, of the agent's greedy policy or of a given list of actions."""

    def __init__(self, config: Config, device: Device, agent: Any, seed: int) -> None:
        """Without a time limit, episodes end after `config.eval.max_steps` steps."""
        self._given = (config, device, agent, seed)
        self.environment, _ = load_environment(config.env)
        self._agent = agent
        self._engine: Engine = make_engine(config, device, n_envs=1, horizon=1, seed=seed, auto_reset=False, exploration=agent.exploration)

    def __call__(self, actions: Mapping[str, np.ndarray] | None = None) -> Recording:
        """Record one episode: `actions` is group -> [T, A, C] (T at least the episode's length), None: the agent's greedy ones."""
        engine, taken = self._engine, self._engine.trajectory
        engine.steps = 0  # the same draws in every recording: episodes differ by their actions alone
        engine.reset()
        groups = engine.environment.groups
        steps: list[dict[str, dict[str, torch.Tensor]]] = [self._states()]
        chosen: dict[str, list[torch.Tensor]] = {g.name: [] for g in groups}
        rewards: dict[str, list[torch.Tensor]] = {g.name: [] for g in groups}
        for t in range(engine.environment.time_limit or self._given[0].eval.max_steps):
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
        """Return a player of the same environment under other options, and another time limit."""
        config, *others = self._given
        env = replace(config.env, options=config.env.options | options, time_limit=time_limit or config.env.time_limit)
        return Player(replace(config, env=env), *others)

    def _states(self) -> dict[str, dict[str, torch.Tensor]]:
        groups = self._engine.environment.groups
        return {g.name: {name: value[0].cpu().clone() for name, value in self._engine.state_of(g.name).items()} for g in groups}
