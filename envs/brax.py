"""Every environment that Brax knows by a name: env=brax env.id=ant (https://github.com/google/brax); its physics can be MuJoCo's (MJX)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import brax.envs
import jax
import jax.numpy as jnp

from warprun.environment import Box
from warprun.envs.in_jax import InJax
from warprun.errors import UserError, nearest, shown

if TYPE_CHECKING:
    from brax.envs import State

KNOWN = brax.envs._envs
"""Name -> class."""
STEPS = 1000
"""Time limit of an episode: that of `brax.envs.create`."""


class Brax(InJax["State"]):
    """A batch of an environment of Brax; `arguments` are those of its class, such as backend=mjx."""

    time_limit = STEPS

    def __init__(self, n_envs: int, id: str | None = None, **arguments: object) -> None:
        if not id:
            raise UserError("env.id is missing: write env.id=NAME of an environment of Brax, such as env.id=ant")
        if id not in KNOWN:
            raise UserError(f"env.id={shown(id)}: Brax knows no such environment{nearest(id, KNOWN)}")
        env = brax.envs.get_environment(id, **arguments)
        if not isinstance(env.observation_size, int):
            raise UserError(
                f"env.id={id}: its observation is a dictionary; give it as one vector by a class of your own (docs/external.md)"
            )
        self.observation_space, self.action_space = Box(env.observation_size), Box(env.action_size, -1.0, 1.0)

        def begin(seed: jax.Array) -> tuple[jax.Array, State]:
            state = jax.vmap(env.reset)(jax.random.split(jax.random.PRNGKey(seed), n_envs))
            return state.obs, state

        def step(actions: jax.Array, state: State) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, State]:
            state = jax.vmap(env.step)(state, actions)
            return state.obs, state.reward, state.done > 0.5, jnp.zeros(n_envs, bool), state

        self.compile(begin, step)


environment = Brax
