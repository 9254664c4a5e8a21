"""Environments of one process: one by one, or as one vectorized environment. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from warprun.errors import shown
from warprun.simulation.external import mpi
from warprun.simulation.external.examination import place_within
from warprun.simulation.external.recipe import Closes, Recipe, SavesState, Stepped, is_silent, told
from warprun.simulation.external.spaces import actions, mask_of, observations, resets_in_step, saver_of

FAILURES = (Exception, SystemExit)
"""Exceptions of the code of an environment."""
TRUTH = (bool, np.bool_, int, np.integer)
REAL = (float, int, np.floating, np.integer, np.bool_)


class EnvironmentFailed(Exception):
    """An environment raised an exception, or returned something that is not allowed."""

    def __init__(self, environment: int, action: str, reason: str) -> None:
        super().__init__(reason)
        self.environment, self.action, self.reason = environment, action, reason


@dataclass(frozen=True)
class Outcome:
    """Where n environments write what a step or a reset gives."""

    obs: np.ndarray
    """[n, F] float32: the observation after the step, also if the episode has ended."""
    mask: np.ndarray | None
    """[n, M] bool: the allowed actions."""
    reward: np.ndarray
    """[n] float32."""
    terminated: np.ndarray
    """[n] bool."""
    truncated: np.ndarray
    """[n] bool."""


@contextmanager
def calls(at: np.ndarray, action: str, where: Callable[[], str] = str) -> Iterator[None]:
    """Raise EnvironmentFailed for what the code of an environment raises; `at` [2] says which one is called, see `enter`.

    `where` it is, "FILE:LINE in NAME: ", for what it returned: that names no line.
    """
    try:
        yield
    except FAILURES as error:
        raise EnvironmentFailed(int(at[0]), action, f"{where() if is_silent(error) else ''}{told(error)}") from error


def enter(at: np.ndarray, environment: int) -> None:
    """Tell other processes that a call of an environment begins: its number, and one call more (`slice.layout`)."""
    at[0] = environment
    at[1] += 1


class Singles:
    """Environments that are stepped one after the other. Methods raise EnvironmentFailed. `at` [2]: see `slice.layout`."""

    def __init__(self, recipe: Recipe, first: int, count: int, at: np.ndarray) -> None:
        self._at, self._first = at, first
        self._envs: list[Stepped] = []
        with calls(at, "its construction"):
            for n in range(count):
                enter(at, first + n)
                self._envs.append(mpi.make(recipe))
        self._observe = observations(self._envs[0].observation_space)
        self._act = actions(self._envs[0].action_space)

    def reset(self, seeds: np.ndarray, out: Outcome) -> None:
        """Begin an episode in every environment with its seed [n]; writes observations and masks."""
        with calls(self._at, "a reset", partial(self._method, "reset")):
            for n, seed in enumerate(seeds.tolist()):
                self._reset(n, out, seed=seed)

    def step(self, actions: np.ndarray, out: Outcome) -> None:
        """Take a step with the actions [n, C] of a trajectory."""
        converted = self._act.convert(actions)
        chosen = converted if self._act.space.shape else converted.tolist()
        with calls(self._at, "a step", partial(self._method, "step")):
            for n, env in enumerate(self._envs):
                enter(self._at, self._first + n)
                returned = env.step(chosen[n])
                _require(isinstance(returned, tuple) and len(returned) == 5, returned, "(observation, reward, terminated, truncated, info)")
                obs, reward, terminated, truncated, info = returned
                out.obs[n] = self._observe.flatten(obs)
                real = isinstance(reward, REAL) or (np.ndim(reward) == 0 and _holds_numbers(reward))
                _require(real, reward, "one number as the reward")
                out.reward[n] = reward
                _require(isinstance(terminated, TRUTH) and isinstance(truncated, TRUTH), (terminated, truncated), "booleans")
                out.terminated[n], out.truncated[n] = terminated, truncated
                if out.mask is not None:
                    out.mask[n] = mask_of(info, out.mask.shape[1])

    def renew(self, over: Sequence[int], out: Outcome) -> None:
        """Begin the next episode of the environments `over`, whose episodes have ended; writes observations and masks."""
        with calls(self._at, "a reset", partial(self._method, "reset")):
            for n in over:
                self._reset(n, out)

    def save(self, states: np.ndarray) -> None:
        """Write what `get_state` returns, for every environment."""
        with calls(self._at, "get_state"):
            for n, env in enumerate(self._envs):
                enter(self._at, self._first + n)
                given = np.asarray(_saver(env).get_state())
                shape = states.shape[1:]
                _require((given.shape or (1,)) == shape, given, f"an array of the shape {shape}, as after its first reset")
                safe = np.can_cast(given.dtype, states.dtype, "safe")
                _require(safe, given, f"numbers that fit in {states.dtype}, as after its first reset")
                states[n] = given

    def load(self, states: np.ndarray) -> None:
        """Give every environment its state."""
        with calls(self._at, "set_state"):
            for n, env in enumerate(self._envs):
                enter(self._at, self._first + n)
                _saver(env).set_state(states[n].copy())

    def close(self) -> None:
        for env in self._envs:
            if isinstance(env, Closes):
                env.close()

    def _method(self, name: str) -> str:
        """Return "FILE:LINE in NAME: " of a method of the user, without the wrappers of libraries; empty if there is none."""
        return place_within(self._envs[int(self._at[0]) - self._first], name)

    def _reset(self, n: int, out: Outcome, **seed: int) -> None:
        enter(self._at, self._first + n)
        returned = self._envs[n].reset(**seed)
        _require(isinstance(returned, tuple) and len(returned) == 2, returned, "(observation, info)")
        obs, info = returned
        out.obs[n] = self._observe.flatten(obs)
        if out.mask is not None:
            out.mask[n] = mask_of(info, out.mask.shape[1])


class Vectorized:
    """The same with one `gymnasium.vector.VectorEnv`."""

    def __init__(self, recipe: Recipe, first: int, count: int, at: np.ndarray) -> None:
        self._first, self._at = first, at
        with self._calling("its construction"):
            self._env: VectorEnv = mpi.make(recipe, num_envs=count)
            self._resets_in_step = resets_in_step(self._env)
            _require(self._env.num_envs == count, self._env.num_envs, f"num_envs = {count}")
            self._observe, self._act = observations(self._env.single_observation_space), actions(self._env.single_action_space)
        self._fresh: Any = None
        """Observations that a step returned, where an episode ended those of the next one."""
        self._info: dict[str, Any] = {}

    def reset(self, seeds: np.ndarray, out: Outcome) -> None:
        each = isinstance(self._env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        with self._calling("a reset"):
            obs, info = self._env.reset(seed=seeds.tolist() if each else int(seeds[0]))
            out.obs[:] = self._rows(obs)
            self._write_masks(info, range(len(out.obs)), out)

    def step(self, actions: np.ndarray, out: Outcome) -> None:
        with self._calling("a step"):
            obs, reward, terminated, truncated, info = self._env.step(self._act.convert(actions))
            for name, given in (("rewards", reward), ("terminated", terminated), ("truncated", truncated)):
                _require(np.shape(given) == out.reward.shape, np.shape(given), f"{name} of the shape {out.reward.shape}")
                _require(_holds_numbers(given), given, f"numbers as {name}")
            out.reward[:], out.terminated[:], out.truncated[:] = reward, terminated, truncated
            self._fresh, self._info = self._rows(obs), info
            out.obs[:] = self._fresh
            over = np.flatnonzero(out.terminated | out.truncated)
            if self._resets_in_step and len(over):
                for n in over:
                    out.obs[n] = self._observe.flatten(info["final_obs"][n])
            self._write_masks(info, range(len(out.obs)), out)

    def renew(self, over: Sequence[int], out: Outcome) -> None:
        with self._calling("a reset"):
            if not self._resets_in_step:
                ended = np.zeros(len(out.obs), np.bool_)
                ended[over] = True
                obs, info = self._env.reset(options={"reset_mask": ended})
                self._fresh, self._info = self._rows(obs), info
            out.obs[over] = self._fresh[over]
            self._write_masks(self._info, over, out)

    def save(self, states: np.ndarray) -> None:
        raise NotImplementedError("a vectorized environment has no state that a checkpoint could hold")

    load = save

    def close(self) -> None:
        self._env.close()

    def _calling(self, action: str) -> AbstractContextManager[None]:
        enter(self._at, self._first)
        return calls(self._at, action)

    def _rows(self, obs: object) -> np.ndarray:
        return self._observe.flatten_batch(obs, self._env.observation_space)

    def _write_masks(self, info: dict[str, Any], which: Sequence[int], out: Outcome) -> None:
        if out.mask is not None:
            for n in which:
                out.mask[n] = mask_of({"action_mask": info["action_mask"][n]}, out.mask.shape[1])


def _saver(env: object) -> SavesState:
    found = saver_of(env)
    if found is None:
        raise ValueError("it has no get_state and set_state any more")
    return found


def _holds_numbers(given: object) -> bool:
    return np.asarray(given).dtype.kind in "biuf"


def _require(holds: bool, given: object, wanted: str) -> None:
    if not holds:
        raise ValueError(f"it must return {wanted}; it returned {shown(given)}")
