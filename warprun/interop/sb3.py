"""Environments for Stable-Baselines3: a `VecEnv` on top of `WarprunVectorEnv`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from warprun.errors import UserError, needs
from warprun.interop.environments import Info
from warprun.interop.vector import WarprunVectorEnv, as_numpy, make_vec

with needs("stable_baselines3", "sb3"):
    from stable_baselines3.common.vec_env import VecEnv

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices


def make_sb3(
    env: str,
    num_envs: int = 1,
    *,
    params: Mapping[str, object] | None = None,
    options: Mapping[str, object] | None = None,
    randomize: Mapping[str, tuple[float, float]] | None = None,
    time_limit: int | None = None,
    threads: int | None = None,
) -> WarprunVecEnv:
    """Return `num_envs` compiled environments of one actor on CPU as a `VecEnv` of Stable-Baselines3; arguments as of `make_vec`.

    Infos of ended episodes have `terminal_observation`, `TimeLimit.truncated` and, as from a `Monitor`, `episode`. Raises UserError.
    """
    envs = make_vec(
        env,
        num_envs,
        params=params,
        options=options,
        randomize=randomize,
        time_limit=time_limit,
        threads=threads,
        statistics=True,
    )
    return WarprunVecEnv(envs)


class NoInfo(Info):
    """The info of environments whose episode goes on: empty, shared by all of them, and therefore never written."""

    def _refuse(self, *given: object, **named: object) -> NoReturn:
        raise TypeError("this info is shared by all environments whose episode goes on; write to a copy of it")

    __setitem__ = __delitem__ = __ior__ = update = setdefault = pop = popitem = clear = _refuse

    def copy(self) -> Info:
        """Return an empty dict, which can be written."""
        return {}

    def __deepcopy__(self, memo: object) -> Info:
        return {}

    def __reduce__(self) -> tuple[type[Info], tuple[()]]:
        return dict, ()


NO_INFO = NoInfo()


class WarprunVecEnv(VecEnv):
    """The environments of a `WarprunVectorEnv` in the interface of Stable-Baselines3."""

    def __init__(self, envs: WarprunVectorEnv) -> None:
        self.envs = envs
        self._mask: np.ndarray | None = None
        self._made = time.perf_counter()
        self.metadata = {"render_modes": []}
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> np.ndarray:
        """Begin an episode in every environment; the seed is that of `seed`, once."""
        seed = self._seeds[0]
        options = self._options[0]
        self._reset_options()
        if options:
            raise UserError("reset has no options; give make_sb3 params and options")
        obs, infos = self.envs.reset(seed=seed)
        self._mask = infos.get("action_mask")
        self._reset_seeds()
        return as_numpy(obs)

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[Info]]:
        """Step with the actions of `step_async`; an episode that ends is followed by the next one in the same step."""
        *arrays, given = self.envs.step(self._actions)
        obs, rewards, terminated, truncated = map(as_numpy, arrays)
        self._mask = given.get("action_mask")
        infos: list[Info] = [NO_INFO] * self.num_envs
        dones = terminated | truncated
        if "_episode" in given:
            final, episode = given["final_obs"], given["episode"]
            seconds = round(time.perf_counter() - self._made, 6)
            for n in np.flatnonzero(dones).tolist():
                infos[n] = {
                    "terminal_observation": final[n].copy(),
                    "TimeLimit.truncated": bool(truncated[n]),
                    "episode": {"r": float(episode["r"][n]), "l": int(episode["l"][n]), "t": seconds},
                }
        return obs, rewards, dones, infos

    def close(self) -> None:
        """Free the arrays."""
        self.envs.close()

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[object]:
        """Return an attribute that all environments share, once for each of `indices`. Raises AttributeError if there is none.

        With masks there is `action_masks`, by which MaskablePPO of sb3-contrib finds out that it can ask for them.
        """
        if attr_name == "action_masks" and self.envs.is_masked:
            return [partial(self._mask_of, n) for n in self._chosen(indices)]
        return [getattr(self.envs, attr_name)] * len(self._chosen(indices))

    def set_attr(self, attr_name: str, value: object, indices: VecEnvIndices = None) -> None:
        """Raise UserError: compiled environments have no attributes of their own."""
        raise UserError(f"{attr_name!r} cannot be set: compiled environments have no attributes; give make_sb3 params and options")

    def env_method(
        self, method_name: str, *method_args: object, indices: VecEnvIndices = None, **method_kwargs: object
    ) -> list[np.ndarray]:
        """Return the mask bool [M] of each of `indices` for `action_masks`. Raises UserError: there are no other methods."""
        if method_name == "action_masks" and self.envs.is_masked:
            return [self._mask_of(n) for n in self._chosen(indices)]
        raise UserError(
            f"{method_name!r} cannot be called: compiled environments have no methods apart from action_masks, if they have masks"
        )

    def env_is_wrapped(self, wrapper_class: type, indices: VecEnvIndices = None) -> list[bool]:
        """Return True for each of `indices` if the wrapper is a `Monitor`, whose infos these environments give
        themselves; else False.
        """
        from stable_baselines3.common.monitor import Monitor

        return [wrapper_class is Monitor] * len(self._chosen(indices))

    def _mask_of(self, n: int) -> np.ndarray:
        """Return which actions are allowed in environment `n` now."""
        if self._mask is None:
            raise UserError("call reset before action_masks")
        return self._mask[n]

    def _chosen(self, indices: VecEnvIndices) -> Sequence[int]:
        return list(self._get_indices(indices))
