"""Every environment that gymnax knows by an id: env=gymnax env.id=CartPole-v1 (https://github.com/RobertTLange/gymnax)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from warprun.environment import Box, Discrete
from warprun.envs.in_jax import InJax, where
from warprun.errors import UserError, nearest, shown

if TYPE_CHECKING:
    from gymnax.environments.environment import EnvState
    from gymnax.environments.spaces import Space

    State: TypeAlias = tuple[jax.Array, EnvState]
    """A key, and the states of all environments."""


class Gymnax(InJax["State"]):
    """A batch of an environment of gymnax; `parameters` are fields of its `default_params`."""

    def __init__(self, n_envs: int, id: str | None = None, **parameters: float) -> None:
        if not id:
            raise UserError("env.id is missing: write env.id=NAME of an environment of gymnax, such as env.id=CartPole-v1")
        if id not in gymnax.registered_envs:
            raise UserError(f"env.id={shown(id)}: gymnax knows no such environment{nearest(id, gymnax.registered_envs)}")
        env, params = gymnax.make(id)
        unknown = sorted(parameters.keys() - vars(params).keys())
        if unknown:
            raise UserError(f"env.kwargs.{unknown[0]}: {id} has no such parameter; it has {', '.join(vars(params))}")
        params = params.replace(**parameters)
        actions = env.action_space(params)
        self.time_limit = int(params.max_steps_in_episode)
        observed = env.observation_space(params)
        self.observation_space = pictured(observed) if len(observed.shape) > 1 else box(observed)
        self.action_space = Discrete(int(actions.n)) if hasattr(actions, "n") else box(actions)
        shape = (n_envs, *(observed.shape or (1,)))

        def begin(seed: jax.Array) -> tuple[jax.Array, State]:
            keys = jax.random.split(jax.random.PRNGKey(seed), 1 + n_envs)
            obs, states = jax.vmap(env.reset_env, (0, None))(keys[1:], params)
            return obs.reshape(shape).astype(jnp.float32), (keys[0], states)

        def step(given: jax.Array, state: State) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, State]:
            keys = jax.random.split(state[0], 1 + n_envs)
            given = given.reshape(n_envs, *actions.shape)
            obs, states, reward, over, _ = jax.vmap(env.step_env, (0, 0, 0, None))(keys[1:], state[1], given, params)
            cut = jax.vmap(env.is_truncated, (0, None))(states, params)
            return obs.reshape(shape).astype(jnp.float32), reward, over, cut, (keys[0], states)

        self.compile(begin, step, lambda mask, fresh, before: (fresh[0], where(mask, fresh[1], before[1])))


def box(space: Space) -> Box:
    """Return a Box of gymnax as a flat one of warprun. Raises UserError for another space."""
    if not hasattr(space, "low"):
        raise UserError(f"gymnax: the space {shown(space)} is neither a Box nor a Discrete")
    most = np.finfo(np.float32).max
    bounds = [np.broadcast_to(np.asarray(bound, np.float64), space.shape).ravel() for bound in (space.low, space.high)]
    low, high = (np.where(np.abs(bound) < most, bound, np.copysign(np.inf, bound)).tolist() for bound in bounds)
    return Box(len(low), tuple(low), tuple(high))


def pictured(space: Space) -> spaces.Box:
    """Return a Box of several axes as one of Gymnasium, whose pictures are fields."""
    return spaces.Box(np.asarray(space.low, np.float32).min(), np.asarray(space.high, np.float32).max(), space.shape, np.float32)


environment = Gymnax
