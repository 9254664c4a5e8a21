"""Environments of several actors as a `pettingzoo.ParallelEnv`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from warprun.errors import UserError, nearest, needs, shown

with needs("pettingzoo", "pettingzoo"), needs("gymnasium", "pettingzoo"):
    from gymnasium import error, spaces
    from gymnasium.utils import seeding
    from pettingzoo import ParallelEnv

from warprun.interop.environments import Info, Wishes, flat_actions, load, make_engine, space_of
from warprun.spec import GroupSpec

Mask: TypeAlias = np.ndarray | tuple[np.ndarray, ...]
Observation: TypeAlias = np.ndarray | dict[str, Mask]


def make_parallel(
    env: str,
    *,
    params: Mapping[str, object] | None = None,
    options: Mapping[str, object] | None = None,
    randomize: Mapping[str, tuple[float, float]] | None = None,
    time_limit: int | None = None,
) -> WarprunParallelEnv:
    """Return one compiled environment with all its actors as a `pettingzoo.ParallelEnv`; arguments as of `make_vec`. Raises UserError."""
    return WarprunParallelEnv(env, Wishes(params, options, randomize, time_limit))


class WarprunParallelEnv(ParallelEnv):
    """One environment; actor n of a group is the agent GROUP_n. The episode ends for all agents at once.

    Observations are float32 [F]. In a group with masks they are a dict of `observation` and `action_mask`, which is int8, as
    `action_space(agent).sample(mask)` takes it: [n] for Discrete, a tuple of arrays for MultiDiscrete.
    """

    def __init__(self, env: str, wishes: Wishes) -> None:
        self.metadata = {"render_modes": [], "is_parallelizable": True, "name": env}
        self.render_mode = None
        self.engine = make_engine(*load(env, wishes), num_envs=1, device="cpu", threads=1)
        self._groups = self.engine.spec.groups
        self._names = [[f"{group.name}_{n}" for n in range(group.size)] for group in self._groups]
        self.possible_agents = [agent for names in self._names for agent in names]
        self.agents: list[str] = []
        of_agents = [(agent, group) for group, names in zip(self._groups, self._names, strict=True) for agent in names]
        # Spaces of their own, because an agent's space is seeded.
        self.observation_spaces = {agent: _observation_space(group) for agent, group in of_agents}
        self.action_spaces = {agent: space_of(group.action) for agent, group in of_agents}
        self._is_seeded = False
        self._bind()

    def observation_space(self, agent: str) -> spaces.Space:
        """Return the observation space of an agent."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space:
        """Return the action space of an agent, in the environment's units."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[dict[str, Observation], dict[str, Info]]:
        """Begin an episode. `seed` decides all random numbers from now on; options have no effect."""
        # Not refused: PettingZoo's own test gives options to any environment.
        if seed is not None or not self._is_seeded:
            _, drawn = seeding.np_random(seed)
            self.engine.seed(drawn)
            self._bind()
            self._is_seeded = True
        self.engine.reset(self._bound)
        self.agents = list(self.possible_agents)
        return self._observations(is_final=False), {agent: {} for agent in self.agents}

    def step(
        self, actions: Mapping[str, object]
    ) -> tuple[dict[str, Observation], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Info]]:
        """Take a step with an action of every agent. After the end of an episode there are no agents until `reset`."""
        if not self._is_seeded:
            raise error.ResetNeeded("call reset before step")
        if not self.agents:
            return {}, {}, {}, {}, {}
        missing = [agent for agent in self.agents if agent not in actions]
        if missing:
            raise UserError(f"agent {missing[0]} has no action; all {len(self.agents)} agents act in every step")
        for agent in actions:
            if agent not in self.agents:
                raise UserError(f"there is no agent {shown(agent)}{nearest(str(agent), self.agents)}")
        for number, (group, names) in enumerate(zip(self._groups, self._names, strict=True)):
            given = [actions[agent] for agent in names]
            self.engine.take(number, flat_actions(group, given, group.size, self._actions[number]), self._actions[number])
        self.engine.advance(self._bound)
        step = self._bound.step
        terminated, truncated = bool(step.terminated[0]), bool(step.truncated[0])
        observations = self._observations(is_final=terminated or truncated)
        rewards = {
            agent: float(reward)
            for names, group in zip(self._names, step.groups, strict=True)
            for agent, reward in zip(names, group.reward, strict=True)
        }
        agents = self.agents
        if terminated or truncated:
            self.agents = []
        return observations, rewards, dict.fromkeys(agents, terminated), dict.fromkeys(agents, truncated), {agent: {} for agent in agents}

    def render(self) -> None:
        """Draw nothing."""

    def close(self) -> None:
        """Do nothing: there are no resources but memory."""

    def _bind(self) -> None:
        self._actions = self.engine.new_actions()
        self._bound = self.engine.new_step(self._actions)

    def _observations(self, is_final: bool) -> dict[str, Observation]:
        """Return the observation of every agent.

        `is_final`: the last one of the episode, since the engine has begun the next.
        """
        found: dict[str, Observation] = {}
        for group, names, given in zip(self._groups, self._names, self._bound.step.groups, strict=True):
            seen = np.array(given.final_obs if is_final else given.obs).reshape(group.size, -1)
            mask = given.final_mask if is_final else given.mask
            masks = None if mask is None else np.array(mask, np.int8).reshape(group.size, -1)
            for n, agent in enumerate(names):
                found[agent] = seen[n] if masks is None else {"observation": seen[n], "action_mask": _mask(group, masks[n])}
        return found


def _observation_space(group: GroupSpec) -> spaces.Space:
    observation = space_of(group.observation)
    if not group.masked:
        return observation
    parts = [spaces.Box(0, 1, (count,), np.int8) for count in group.action.choices]
    return spaces.Dict({"observation": observation, "action_mask": spaces.Tuple(parts) if group.action.shape else parts[0]})


def _mask(group: GroupSpec, mask: np.ndarray) -> Mask:
    parts = np.split(mask, np.cumsum(group.action.choices)[:-1])
    return tuple(parts) if group.action.shape else parts[0]
