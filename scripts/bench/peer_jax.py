"""gymnax, jitted, with A2C and PPO written for speed in JAX: one trunk, a whole iteration in one compiled program."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import optax
from peer_work import (
    ACTIONS,
    CLIP,
    ENTROPY_COEF,
    FEATURES,
    GAMMA,
    HORIZON,
    LAMBDA,
    LEARNING_RATE,
    MAX_NORM,
    VALUE_COEF,
    Iterate,
    Work,
)


class Step(NamedTuple):
    """The stored tensors of a rollout, [T, N, ...]."""

    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    done: jax.Array


class State(NamedTuple):
    """The state that an iteration passes to the next."""

    parameters: Any
    optimizer: Any
    env: Any
    obs: jax.Array
    key: jax.Array


ENV, ENV_PARAMS = gymnax.make("CartPole-v1")
OPTIMIZER = optax.chain(optax.clip_by_global_norm(MAX_NORM), optax.adam(LEARNING_RATE, eps=1e-5))


def network(key: jax.Array, width: int) -> list[tuple[jax.Array, jax.Array]]:
    """Return weights and biases of the two hidden layers and of the head for logits and value."""
    sizes = (FEATURES, width, width, ACTIONS + 1)
    gains = (2**0.5, 2**0.5, 0.01)
    keys = jax.random.split(key, len(gains))
    init = jax.nn.initializers.orthogonal
    return [(init(gains[n])(keys[n], sizes[n : n + 2], jnp.float32), jnp.zeros(sizes[n + 1])) for n in range(3)]


def forward(parameters: Any, obs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return logits [..., 2] and values [...]."""
    for weight, bias in parameters[:-1]:
        obs = jnp.tanh(obs @ weight + bias)
    out = obs @ parameters[-1][0] + parameters[-1][1]
    return out[..., :ACTIONS], out[..., ACTIONS]


def chosen(logits: jax.Array, action: jax.Array) -> jax.Array:
    """Return the log-probability of `action`."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], -1)[..., 0]


def rollout(state: State) -> tuple[State, Step]:
    """Make HORIZON steps in every environment."""

    def step(state: State, _: None) -> tuple[State, Step]:
        key, key_action, key_env = jax.random.split(state.key, 3)
        logits, value = forward(state.parameters, state.obs)
        action = jax.random.categorical(key_action, logits)
        keys = jax.random.split(key_env, len(state.obs))
        obs, env, reward, terminated, truncated, _ = jax.vmap(ENV.step, (0, 0, 0, None))(keys, state.env, action, ENV_PARAMS)
        kept = Step(state.obs, action, chosen(logits, action), value, reward, terminated | truncated)
        return state._replace(env=env, obs=obs, key=key), kept

    return jax.lax.scan(step, state, None, HORIZON)


def advantages(steps: Step, last: jax.Array) -> jax.Array:
    """Return generalised advantages [T, N]; a time limit counts as a termination."""

    def back(carry: tuple[jax.Array, jax.Array], step: Step) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        advantage, following = carry
        going_on = 1.0 - step.done
        advantage = step.reward + GAMMA * following * going_on - step.value + GAMMA * LAMBDA * going_on * advantage
        return (advantage, step.value), advantage

    return jax.lax.scan(back, (jnp.zeros_like(last), last), steps, reverse=True)[1]


def loss(parameters: Any, rows: Step, advantage: jax.Array, clipped: bool) -> jax.Array:
    """Return the loss of A2C, or PPO's clipped one, over rows [R]."""
    logits, value = forward(parameters, rows.obs)
    log_p = jax.nn.log_softmax(logits)
    log_prob = jnp.take_along_axis(log_p, rows.action[..., None], -1)[..., 0]
    error = jnp.square(value - (rows.value + advantage)).mean()
    entropy = -(jnp.exp(log_p) * log_p).sum(-1).mean()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    if clipped:
        ratio = jnp.exp(log_prob - rows.log_prob)
        policy = -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage).mean()
    else:
        policy = -(log_prob * advantage).mean()
    return policy + VALUE_COEF * error - ENTROPY_COEF * entropy


def iteration(state: State, work: Work) -> State:
    """Make a rollout and an update."""
    state, steps = rollout(state)
    if work.learner == "none":
        return state
    advantage = advantages(steps, forward(state.parameters, state.obs)[1])
    rows, advantage = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (steps, advantage))

    def descend(carry: tuple[Any, Any], part: tuple[Step, jax.Array]) -> tuple[tuple[Any, Any], None]:
        parameters, optimizer = carry
        slope = jax.grad(loss)(parameters, *part, work.learner == "ppo")
        change, optimizer = OPTIMIZER.update(slope, optimizer)
        return (optax.apply_updates(parameters, change), optimizer), None

    def epoch(carry: tuple[Any, Any], key: jax.Array) -> tuple[tuple[Any, Any], None]:
        order = jax.random.permutation(key, len(advantage)).reshape(work.minibatches, -1)
        return jax.lax.scan(lambda carry, part: descend(carry, jax.tree.map(lambda x: x[part], (rows, advantage))), carry, order)

    carry = (state.parameters, state.optimizer)
    if work.minibatches == 1:
        carry, _ = descend(carry, (rows, advantage))
    else:
        key, *keys = jax.random.split(state.key, work.epochs + 1)
        carry, _ = jax.lax.scan(epoch, carry, jnp.stack(keys))
        state = state._replace(key=key)
    return state._replace(parameters=carry[0], optimizer=carry[1])


def first_state(key: jax.Array, work: Work, n_envs: int) -> State:
    """Return reset environments and a new network."""
    key, key_network, key_env = jax.random.split(key, 3)
    obs, env = jax.vmap(ENV.reset, (0, None))(jax.random.split(key_env, n_envs), ENV_PARAMS)
    parameters = network(key_network, work.width)
    return State(parameters, OPTIMIZER.init(parameters), env, obs, key)


def prepare(work: Work, variant: str, n_envs: int, threads: int) -> tuple[Iterate, str]:
    """Return some iterations in one compiled call; `variant` is the random number generator."""
    jax.config.update("jax_default_prng_impl", variant)
    # A call of its own costs some tens of microseconds: nothing for many environments.
    together = max(1, 4_000 // n_envs)
    several = jax.jit(lambda state: jax.lax.fori_loop(0, together, lambda _, state: iteration(state, work), state), donate_argnums=0)
    state = jax.jit(lambda key: first_state(key, work, n_envs))(jax.random.key(0))

    def iterate() -> int:
        nonlocal state
        state = jax.block_until_ready(several(state))
        return together * HORIZON * n_envs

    return iterate, f"jit of {together} iterations, random numbers: {variant}"
