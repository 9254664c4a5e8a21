"""Compiled environments of one actor for Gymnasium: thousands as one `VectorEnv`, or a single `Env`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch

from warprun.errors import UserError, nearest, needs, shown
from warprun.interop.environments import (
    Info,
    Kept,
    Overwritten,
    Results,
    ResultSource,
    Wishes,
    flat_actions,
    load,
    make_engine,
    make_results,
    only_actor,
    space_of,
)
from warprun.simulation.allocation import Array

with needs("gymnasium", "gymnasium"):
    import gymnasium
    from gymnasium import error
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space


OUTPUTS = ("numpy", "torch")


def make_vec(
    env: str,
    num_envs: int = 1,
    *,
    params: Mapping[str, object] | None = None,
    options: Mapping[str, object] | None = None,
    randomize: Mapping[str, tuple[float, float]] | None = None,
    time_limit: int | None = None,
    device: str = "cpu",
    threads: int | None = None,
    output: Literal["numpy", "torch"] = "numpy",
    copy: bool = True,
    statistics: bool = False,
) -> WarprunVectorEnv:
    """Return `num_envs` compiled environments of one actor as a `gymnasium.vector.VectorEnv`.

    `env` is a name of `warprun envs`, a dotted module or the path of a .py file. `params`, `options`, `randomize` and
    `time_limit` are those of the config group `env`. `device`: cpu, cuda or auto. `threads`: most CPU threads; None:
    all cores, if they are faster than one. `output="torch"`: results are tensors on the device, on CPU on the memory of
    the kernels. `copy=False`: the arrays of a step are overwritten by the next one. `statistics`: infos have the
    returns and lengths of ended episodes. Raises UserError.
    """
    if output not in OUTPUTS:
        raise UserError(f"output={shown(output)} is not one of {', '.join(OUTPUTS)}{nearest(str(output), OUTPUTS)}")
    wishes = Wishes(params, options, randomize, time_limit)
    return WarprunVectorEnv(env, num_envs, wishes, device=device, threads=threads, output=output, copy=copy, statistics=statistics)


class WarprunVectorEnv(VectorEnv):
    """`num_envs` environments; an episode that ends is followed by the next one in the same step (SAME_STEP).

    Observations are float32 [N, F], rewards float32 [N], ends bool [N]. If any episode has ended, infos have
    `final_obs` [N, F], valid where `_final_obs` [N] is true; other rows hold any numbers. An environment with masks
    gives `action_mask` bool [N, M] in every info; after the end of an episode it is the mask of the next episode, and
    that of the last observation is in `final_info`.
    """

    metadata: dict[str, object] = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(
        self, env: str, num_envs: int, wishes: Wishes, *, device: str, threads: int | None, output: str, copy: bool, statistics: bool
    ) -> None:
        config, environment = load(env, wishes)
        group = only_actor(env, environment)
        self.engine = make_engine(config, environment, num_envs=num_envs, device=device, threads=threads)
        self.num_envs = num_envs
        self.single_observation_space = space_of(group.observation)
        self.single_action_space = space_of(group.action)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._group = group
        self._output = output
        self._actions = self.engine.new_actions()
        in_numpy = isinstance(self._actions[0], np.ndarray)
        self._copies = copy and not in_numpy
        self._results: ResultSource = (Kept if copy and in_numpy else Overwritten)(self.engine, self._actions)
        self._statistics = Statistics(num_envs) if statistics else None
        self._is_seeded = False

    @property
    def is_masked(self) -> bool:
        """Whether infos have `action_mask`."""
        return self._group.masked

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Array, Info]:
        """Begin an episode in every environment. `seed` decides all random numbers from now on; options are refused."""
        self._check_open()
        if options:
            raise UserError(f"reset has no options, such as {shown(min(map(str, options)))}; give make_vec params and options")
        super().reset(seed=seed)
        if seed is not None or not self._is_seeded:
            drawn = self.np_random_seed
            assert drawn is not None
            self.engine.seed(drawn)
            self._results.clear()
            self._is_seeded = True
        results = self._results.next()
        self.engine.reset(results.bound)
        if self._statistics:
            self._statistics.begin()
        return self._given(results.obs), self._masks(results)

    def step(self, actions: object) -> tuple[Array, Array, Array, Array, Info]:
        """Step all environments with actions in the space's units: [N], or [N, C] for actions of several components."""
        self._check_open()
        if not self._is_seeded:
            raise error.ResetNeeded("call reset before step")
        self.engine.take(0, flat_actions(self._group, actions, self.num_envs, self._actions[0]), self._actions[0])
        results = self._results.next()
        has_ended = self.engine.advance(results.bound)
        infos = self._masks(results)
        over = results.terminated | results.truncated
        # On CUDA only the device knows whether any has ended.
        if has_ended and bool(over.any()):
            given_over = self._given(over)
            last = {} if results.final_mask is None else {"action_mask": self._given(results.final_mask), "_action_mask": given_over}
            infos |= {"final_obs": self._given(results.final_obs), "_final_obs": given_over}
            infos |= {"final_info": last, "_final_info": given_over}
        if self._statistics:
            infos |= self._statistics.count(as_numpy(results.reward), as_numpy(over))
        given = self._given
        return given(results.obs), given(results.reward), given(results.terminated), given(results.truncated), infos

    def close_extras(self, **kwargs: object) -> None:
        """Free the arrays."""
        del self.engine, self._results, self._actions

    def _check_open(self) -> None:
        if self.closed:
            raise error.ClosedEnvironmentError("the environments are closed")

    def _masks(self, results: Results) -> Info:
        if results.mask is None:
            return {}
        return {"action_mask": self._given(results.mask), "_action_mask": np.ones(self.num_envs, np.bool_)}

    def _given(self, array: Array) -> Array:
        """Return an array in the type that the caller wants."""
        if isinstance(array, np.ndarray):
            return torch.from_numpy(array) if self._output == "torch" else array
        if self._output == "numpy":
            return array.cpu().numpy()
        return array.clone() if self._copies else array


class Statistics:
    """Counters of episodes, with the results of `gymnasium.wrappers.vector.RecordEpisodeStatistics`."""

    def __init__(self, num_envs: int) -> None:
        self._returns = np.zeros(num_envs, np.float64)
        self._lengths = np.zeros(num_envs, np.int64)
        self._began = np.zeros(num_envs)
        self.begin()

    def begin(self) -> None:
        """Begin to count in all environments."""
        self._returns[:], self._lengths[:], self._began[:] = 0.0, 0, time.perf_counter()

    def count(self, rewards: np.ndarray, over: np.ndarray) -> Info:
        """Count a step; return `episode` (r: returns, l: lengths, t: seconds; 0 elsewhere) and `_episode` if any is `over`."""
        self._returns += rewards
        self._lengths += 1
        if not over.any():
            return {}
        now = time.perf_counter()
        episode = {
            "r": np.where(over, self._returns, 0.0),
            "l": np.where(over, self._lengths, 0),
            "t": np.where(over, np.round(now - self._began, 6), 0.0),
        }
        self._returns[over], self._lengths[over], self._began[over] = 0.0, 0, now
        return {"episode": episode, "_episode": over}


def as_numpy(array: Array) -> np.ndarray:
    """Return an array, or a copy of a tensor on the host, as a numpy array."""
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()


class WarprunEnv(gymnasium.Env):
    """A compiled environment of one actor. Arguments are those of `make_vec`; `env` is its first.

    `gymnasium.make("warprun/NAME-v0")` makes one (`registration.py`). Observations are float32 [F]. An environment with masks gives
    `action_mask` bool [M] in every info. Nothing is drawn: `render_mode` must be None.
    """

    metadata: dict[str, object] = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        env: str,
        *,
        params: Mapping[str, object] | None = None,
        options: Mapping[str, object] | None = None,
        randomize: Mapping[str, tuple[float, float]] | None = None,
        time_limit: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        if render_mode is not None:
            raise UserError(f"render_mode={shown(render_mode)}: environment {env} cannot be drawn; leave it None")
        self.render_mode = None
        config, environment = load(env, Wishes(params, options, randomize, time_limit))
        self._group = only_actor(env, environment)
        self.engine = make_engine(config, environment, num_envs=1, device="cpu", threads=1)
        self.observation_space = space_of(self._group.observation)
        self.action_space = space_of(self._group.action)
        self._is_seeded = False
        self._is_over = True
        self._bind()

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[np.ndarray, Info]:
        """Begin an episode. `seed` decides all random numbers from now on; options are refused."""
        if options:
            raise UserError(f"reset has no options, such as {shown(min(map(str, options)))}; give make params and options")
        super().reset(seed=seed)
        if seed is not None or not self._is_seeded:
            self.engine.seed(self.np_random_seed)
            self._bind()
            self._is_seeded = True
        self.engine.reset(self._results.bound)
        self._is_over = False
        return np.array(self._results.obs[0]), _info(self._results.mask)

    def step(self, action: object) -> tuple[np.ndarray, float, bool, bool, Info]:
        """Take a step with an action in the space's units. Raises `gymnasium.error.ResetNeeded` after the end of an episode."""
        if self._is_over:
            raise error.ResetNeeded("the episode has ended, or none has begun: call reset")
        results = self._results
        self.engine.take(0, flat_actions(self._group, np.asarray(action)[None], 1, self._actions[0]), self._actions[0])
        self.engine.advance(results.bound)
        self._is_over = bool(results.terminated[0] or results.truncated[0])
        # The engine has begun the next episode.
        seen, mask = (results.final_obs, results.final_mask) if self._is_over else (results.obs, results.mask)
        ends = bool(results.terminated[0]), bool(results.truncated[0])
        return np.array(seen[0]), float(results.reward[0]), *ends, _info(mask)

    def _bind(self) -> None:
        self._actions = self.engine.new_actions()
        self._results = make_results(self.engine, self._actions)


def _info(mask: Array | None) -> Info:
    return {} if mask is None else {"action_mask": np.array(mask[0])}
