"""gymnax with A2C and PPO written for speed in JAX, a whole iteration in one compiled program; and rejax on gymnax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import optax
import peer_work as spec
from peer_work import Iterate, OffPolicy, Work


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
Layers = list[tuple[jax.Array, jax.Array]]
"""Weights and biases."""


def optimizer_of(work: Work) -> optax.GradientTransformation:
    """Return Adam with clipped gradients."""
    rate = optax.linear_schedule(work.learning_rate, 0.0, work.anneal_over) if work.anneal_over else work.learning_rate
    return optax.chain(optax.clip_by_global_norm(spec.MAX_NORM), optax.adam(rate, eps=1e-5))


def network(key: jax.Array, work: Work) -> list[Layers]:
    """Return a trunk with a head for logits and value, or one for each."""
    if not work.separate:
        return [trunk(key, work.width, spec.ACTIONS + 1, 0.01)]
    keys = jax.random.split(key)
    return [trunk(keys[0], work.width, spec.ACTIONS, 0.01), trunk(keys[1], work.width, 1, 1.0)]


def trunk(key: jax.Array, width: int, outputs: int, gain: float) -> Layers:
    """Return two hidden layers and a head, whose weights have `gain`."""
    sizes = (spec.FEATURES, width, width, outputs)
    gains = (2**0.5, 2**0.5, gain)
    keys = jax.random.split(key, len(gains))
    init = jax.nn.initializers.orthogonal
    return [(init(gains[n])(keys[n], sizes[n : n + 2], jnp.float32), jnp.zeros(sizes[n + 1])) for n in range(3)]


def forward(parameters: list[Layers], obs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return logits [..., 2] and values [...]."""
    out = jnp.concatenate([outputs(layers, obs) for layers in parameters], -1)
    return out[..., : spec.ACTIONS], out[..., spec.ACTIONS]


def outputs(layers: Layers, obs: jax.Array) -> jax.Array:
    """Return the outputs of a trunk."""
    for weight, bias in layers[:-1]:
        obs = jnp.tanh(obs @ weight + bias)
    return obs @ layers[-1][0] + layers[-1][1]


def chosen(logits: jax.Array, action: jax.Array) -> jax.Array:
    """Return the log-probability of `action`."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], -1)[..., 0]


def rollout(state: State, horizon: int) -> tuple[State, Step]:
    """Make `horizon` steps in every environment."""

    def step(state: State, _: None) -> tuple[State, Step]:
        key, key_action, key_env = jax.random.split(state.key, 3)
        logits, value = forward(state.parameters, state.obs)
        action = jax.random.categorical(key_action, logits)
        keys = jax.random.split(key_env, len(state.obs))
        stepped = jax.vmap(ENV.step, (0, 0, 0, None))(keys, state.env, action, ENV_PARAMS)
        obs, env, reward, terminated, truncated, _ = stepped
        kept = Step(state.obs, action, chosen(logits, action), value, reward, terminated | truncated)
        return state._replace(env=env, obs=obs, key=key), kept

    return jax.lax.scan(step, state, None, horizon)


def advantages(steps: Step, last: jax.Array) -> jax.Array:
    """Return generalised advantages [T, N]; a time limit counts as a termination."""

    def back(carry: tuple[jax.Array, jax.Array], step: Step) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        advantage, following = carry
        going_on = 1.0 - step.done
        error = step.reward + spec.GAMMA * following * going_on - step.value
        advantage = error + spec.GAMMA * spec.LAMBDA * going_on * advantage
        return (advantage, step.value), advantage

    return jax.lax.scan(back, (jnp.zeros_like(last), last), steps, reverse=True)[1]


def loss(parameters: list[Layers], rows: Step, advantage: jax.Array, work: Work) -> jax.Array:
    """Return the loss of A2C, or PPO's clipped one, over rows [R]."""
    return objective(*forward(parameters, rows.obs), rows, advantage, work)


def objective(logits: jax.Array, value: jax.Array, rows: Step, advantage: jax.Array, work: Work) -> jax.Array:
    """Return the loss of what a network gives for steps, [...] each, of a minibatch."""
    log_p = jax.nn.log_softmax(logits)
    log_prob = jnp.take_along_axis(log_p, rows.action[..., None], -1)[..., 0]
    returns = rows.value + advantage
    error = jnp.square(value - returns)
    if work.clips_value:
        near = rows.value + jnp.clip(value - rows.value, -spec.CLIP, spec.CLIP)
        error = 0.5 * jnp.maximum(error, jnp.square(near - returns))
    entropy = -(jnp.exp(log_p) * log_p).sum(-1).mean()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    if work.learner == "ppo":
        ratio = jnp.exp(log_prob - rows.log_prob)
        policy = -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - spec.CLIP, 1 + spec.CLIP) * advantage).mean()
    else:
        policy = -(log_prob * advantage).mean()
    return policy + spec.VALUE_COEF * error.mean() - spec.ENTROPY_COEF * entropy


def iteration(state: State, work: Work) -> State:
    """Make a rollout and an update."""
    state, steps = rollout(state, work.horizon)
    if work.learner == "none":
        return state
    advantage = advantages(steps, forward(state.parameters, state.obs)[1])
    rows, advantage = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (steps, advantage))

    def descend(carry: tuple[Any, Any], part: tuple[Step, jax.Array]) -> tuple[tuple[Any, Any], None]:
        parameters, optimizer = carry
        slope = jax.grad(loss)(parameters, *part, work)
        change, optimizer = optimizer_of(work).update(slope, optimizer)
        return (optax.apply_updates(parameters, change), optimizer), None

    def epoch(carry: tuple[Any, Any], key: jax.Array) -> tuple[tuple[Any, Any], None]:
        order = jax.random.permutation(key, len(advantage)).reshape(work.minibatches, -1)

        def minibatch(carry: tuple[Any, Any], part: jax.Array) -> tuple[tuple[Any, Any], None]:
            return descend(carry, jax.tree.map(lambda x: x[part], (rows, advantage)))

        return jax.lax.scan(minibatch, carry, order)

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
    parameters = network(key_network, work)
    return State(parameters, optimizer_of(work).init(parameters), env, obs, key)


def several(step: Callable[[Any], Any], state: Any, steps: int, together: int = 0) -> tuple[Iterate, int]:
    """Return some iterations of so many environment steps in one compiled call, and their number."""
    # A call of its own costs some tens of microseconds: nothing for many steps.
    together = together or max(1, 64_000 // steps)
    run = jax.jit(lambda state: jax.lax.fori_loop(0, together, lambda _, state: step(state), state), donate_argnums=0)

    def iterate() -> int:
        nonlocal state
        state = jax.block_until_ready(run(state))
        return together * steps

    return iterate, together


def prepare(work: Work, variant: str, n_envs: int, threads: int) -> tuple[Iterate, str]:
    """Return some iterations in one compiled call; `variant` is the random number generator."""
    jax.config.update("jax_default_prng_impl", variant)
    state = jax.jit(lambda key: first_state(key, work, n_envs))(jax.random.key(0))
    iterate, together = several(lambda state: iteration(state, work), state, n_envs * work.horizon)
    return iterate, f"jit of {together} iterations"


# rejax ----------------------------------------------------------------------------------------------------------------


def with_one_done(name: str) -> Any:
    """Return gymnax's environment with the five results of a step that rejax expects; newer versions of gymnax return six."""
    base: Any = type(gymnax.make(name)[0])

    class OneDone(base):  # type: ignore[misc]
        def step(self, key: Any, state: Any, action: Any, params: Any = None) -> tuple[Any, ...]:
            obs, state, reward, terminated, truncated, info = super().step(key, state, action, params)
            return obs, state, reward, terminated | truncated, info

    return OneDone()


def make(n_envs: int, work: Work) -> Any:
    """Return rejax's PPO with tanh units and the coefficients of all peers; only advantages are normalised."""
    from rejax import PPO

    return PPO.create(
        env=with_one_done("CartPole-v1"),
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (work.width, work.width)},
        num_envs=n_envs,
        num_steps=work.horizon,
        num_epochs=work.epochs,
        num_minibatches=work.minibatches,
        learning_rate=work.learning_rate,
        gamma=spec.GAMMA,
        gae_lambda=spec.LAMBDA,
        clip_eps=spec.CLIP,
        vf_coef=spec.VALUE_COEF,
        ent_coef=spec.ENTROPY_COEF,
        max_grad_norm=spec.MAX_NORM,
        normalize_observations=False,
        normalize_rewards=False,
        skip_initial_evaluation=True,
    )


def make_off_policy(work: OffPolicy, capacity: int) -> Any:
    """Return rejax's SAC, TD3 or DQN with ReLU units and the settings of all peers; TD3 and DQN have 64-64 units, whatever is asked for."""
    import rejax

    relu = {"activation": "relu"}
    agents = {
        "sac": {"agent_kwargs": relu, "hidden_layer_sizes": (work.width, work.width)},
        "td3": {"actor_kwargs": relu, "critic_kwargs": dict(relu)},
        "dqn": {"agent_kwargs": relu, "ddqn": False},
    }
    return getattr(rejax, work.learner.upper()).create(
        env=with_one_done({"pendulum": "Pendulum-v1", "cartpole": "CartPole-v1"}[work.env]),
        num_envs=work.n_envs,
        num_epochs=work.updates,
        batch_size=spec.BATCH,
        buffer_size=capacity,
        fill_buffer=spec.FILLED,
        gamma=spec.GAMMA,
        skip_initial_evaluation=True,
        **agents[work.learner],
    )


def prepare_rejax(work: Work, variant: str, n_envs: int, threads: int) -> tuple[Iterate, str]:
    """Return several iterations of rejax's PPO, which with one epoch of one minibatch stands in for A2C."""
    jax.config.update("jax_default_prng_impl", variant)
    agent = make(n_envs, work)
    iterate, together = several(agent.train_iteration, agent.init_state(jax.random.key(0)), n_envs * work.horizon)
    return iterate, f"PPO, {work.epochs} epochs x {work.minibatches} minibatches, jit of {together} iterations"


def prepare_off_policy(work: OffPolicy, variant: str, n_envs: int, threads: int) -> tuple[Iterate, str]:
    """Return several iterations of rejax off policy; `variant` is the capacity of the replay memory."""
    jax.config.update("jax_default_prng_impl", "unsafe_rbg")
    agent, delay = make_off_policy(work, int(variant)), 2 if work.learner == "td3" else 1  # its iteration ends with a step of the actor
    state = jax.jit(agent.init_state)(jax.random.key(0))
    iterate, together = several(agent.train_iteration, state, delay * n_envs, spec.TOGETHER // delay)
    for _ in range(-(-spec.FILLED // (spec.TOGETHER * n_envs))):
        iterate()
    return iterate, f"{type(agent).__name__}, jit of {together} iterations"
