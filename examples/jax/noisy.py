"""Pendulums in JAX, pushed by noise."""

import jax
import jax.numpy as jnp

from warprun.environment import Box


class Noisy:
    arrays, observation_space, action_space = jnp, Box(3), Box(1, -2.0, 2.0)

    def __init__(self, n_envs):
        self.state = jnp.zeros((2, n_envs)), jax.random.PRNGKey(0)

    def reset(self, seed, mask):
        obs, self.state = begin(seed, mask, self.state)
        return obs

    def step(self, actions):
        *results, self.state = advance(self.state, actions[:, 0])
        return tuple(results)


@jax.jit
def begin(seed, mask, state):
    key, fresh = jax.random.split(jax.random.PRNGKey(seed))
    x = jnp.where(mask, 2.0 * jax.random.normal(fresh, state[0].shape), state[0])
    return observations(x), (x, key)


@jax.jit
def advance(state, torque):
    (angle, speed), (key, noise) = state[0], jax.random.split(state[1])
    away = jnp.remainder(angle + jnp.pi, 2 * jnp.pi) - jnp.pi
    push = 3.0 * torque + jax.random.normal(noise, angle.shape)
    speed = jnp.clip(speed + 0.05 * (15.0 * jnp.sin(angle) + push), -8.0, 8.0)
    x, never = jnp.stack((angle + 0.05 * speed, speed)), jnp.zeros(angle.shape, bool)
    return observations(x), -(away**2 + 0.1 * speed**2 + 0.001 * torque**2), never, never, (x, key)


def observations(x):
    return jnp.stack((jnp.cos(x[0]), jnp.sin(x[0]), x[1]), 1)


environment = Noisy
