"""One environment as a `gymnasium.Env`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from warprun.errors import UserError, shown
from warprun.extras import needs
from warprun.interop.environments import Wishes, load, make_engine, only_actor

with needs("gymnasium", "gymnasium"):
    import gymnasium
    from gymnasium import error

from warprun.interop.actions import flat_actions
from warprun.interop.results import make_results
from warprun.interop.spaces import space_of
from warprun.simulation.memory import Array


class WarprunEnv(gymnasium.Env):
    """A compiled environment of one actor. Arguments are those of `make_vec`; `env` is its first.

    `gymnasium.make("warprun/NAME-v0")` makes one (`registration.py`). Observations are float32 [F]. An environment with masks gives
    `action_mask` bool [M] in every info. Nothing is drawn: `render_mode` must be None.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

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

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
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

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
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


def _info(mask: Array | None) -> dict[str, Any]:
    return {} if mask is None else {"action_mask": np.array(mask[0])}
