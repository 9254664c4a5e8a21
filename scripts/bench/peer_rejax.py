"""rejax's PPO on gymnax. PPO with one epoch of one minibatch stands in for A2C."""

from __future__ import annotations

from typing import Any

import gymnax
import jax
from peer_work import CLIP, ENTROPY_COEF, GAMMA, HORIZON, LAMBDA, LEARNING_RATE, MAX_NORM, VALUE_COEF, Iterate, Work
from rejax import PPO


class OneDone(type(gymnax.make("CartPole-v1")[0])):  # type: ignore[misc]
    """gymnax's CartPole with the five results of a step that rejax expects; newer versions of gymnax return six."""

    def step(self, key: Any, state: Any, action: Any, params: Any = None) -> tuple[Any, ...]:
        obs, state, reward, terminated, truncated, info = super().step(key, state, action, params)
        return obs, state, reward, terminated | truncated, info


def make(n_envs: int, horizon: int, width: int, epochs: int, minibatches: int, learning_rate: float = LEARNING_RATE) -> Any:
    """Return rejax's PPO with tanh units and the coefficients of all peers; only advantages are normalised."""
    return PPO.create(
        env=OneDone(),
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (width, width)},
        num_envs=n_envs,
        num_steps=horizon,
        num_epochs=epochs,
        num_minibatches=minibatches,
        learning_rate=learning_rate,
        gamma=GAMMA,
        gae_lambda=LAMBDA,
        clip_eps=CLIP,
        vf_coef=VALUE_COEF,
        ent_coef=ENTROPY_COEF,
        max_grad_norm=MAX_NORM,
        normalize_observations=False,
        normalize_rewards=False,
        skip_initial_evaluation=True,
    )


def prepare(work: Work, variant: str, n_envs: int, threads: int) -> tuple[Iterate, str]:
    """Return several rejax iterations in one compiled call; `variant` is the random number generator."""
    jax.config.update("jax_default_prng_impl", variant)
    agent = make(n_envs, HORIZON, work.width, work.epochs, work.minibatches)
    # A call of its own costs some tens of microseconds: nothing for many environments.
    together = max(1, 4_000 // n_envs)
    several = jax.jit(lambda state: jax.lax.fori_loop(0, together, lambda _, state: agent.train_iteration(state), state), donate_argnums=0)
    state = agent.init_state(jax.random.key(0))

    def iterate() -> int:
        nonlocal state
        state = jax.block_until_ready(several(state))
        return together * HORIZON * n_envs

    return iterate, f"PPO, {work.epochs} epochs x {work.minibatches} minibatches, jit of {together} iterations, random numbers: {variant}"
