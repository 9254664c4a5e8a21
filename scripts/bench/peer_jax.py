"""gymnax with A2C and PPO written for speed in JAX, a whole iteration in one compiled program; and rejax on gymnax.

With memory PPO is recurrent, an LSTM that `lax.scan` takes over the steps. As in PureJaxRL (Lu et al. 2022) a minibatch has all steps of
some environments then, and sequences begin with what was remembered in the rollout. The formulas of the LSTM are those of Hochreiter &
Schmidhuber 1997 with the forget gates of Gers, Schmidhuber & Cummins 2000.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import optax
import peer_work as spec
from peer_work import Iterate, OffPolicy, Work

ENV, ENV_PARAMS = gymnax.make("CartPole-v1")
Layers = list[tuple[jax.Array, jax.Array]]
"""Weights and biases."""


class Step(NamedTuple):
    """The stored tensors of a rollout, [T, N, ...]."""

    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    done: jax.Array


class Memory(NamedTuple):
    """What an LSTM remembers, [N, units] each."""

    output: jax.Array
    cell: jax.Array
    keep: jax.Array
    """[N]: 0 if an episode begins, else 1."""


class State(NamedTuple):
    """The state that an iteration passes to the next."""

    parameters: Any
    optimizer: Any
    env: Any
    obs: jax.Array
    memory: Memory | None
    """None without an LSTM."""
    key: jax.Array


def optimizer_of(work: Work) -> optax.GradientTransformation:
    """Return Adam with clipped gradients."""
    rate = optax.linear_schedule(work.learning_rate, 0.0, work.anneal_over) if work.anneal_over else work.learning_rate
    return optax.chain(optax.clip_by_global_norm(spec.MAX_NORM), optax.adam(rate, eps=1e-5))


# Networks -------------------------------------------------------------------------------------------------------------


class Recurrent(NamedTuple):
    """An LSTM with the gates input, forget, cell and output after hidden layers, and a head for logits and value."""

    gates: Layers
    """The last one has the part of the gates, 4 units, that follows from observations."""
    recurrent: jax.Array
    """[units, 4 units]."""
    head: Layers


def network(key: jax.Array, work: Work) -> list[Layers]:
    """Return a trunk with a head for logits and value, or one for each."""
    sizes = (spec.FEATURES, work.width, work.width)
    if not work.separate:
        return [layers(key, (*sizes, spec.ACTIONS + 1), 0.01)]
    policy, value = jax.random.split(key)
    return [layers(policy, (*sizes, spec.ACTIONS), 0.01), layers(value, (*sizes, 1), 1.0)]


def recurrent_network(key: jax.Array, work: Work) -> Recurrent:
    """Return orthogonal weights; the forget gate has a bias of 1."""
    keys, init = jax.random.split(key, 4), jax.nn.initializers.orthogonal()

    def gates(key: jax.Array, inputs: int) -> jax.Array:
        return jnp.concatenate([init(own, (inputs, work.units), jnp.float32) for own in jax.random.split(key, 4)], 1)

    hidden = layers(keys[0], (spec.FEATURES, work.width, work.width))
    bias = jnp.zeros(4 * work.units).at[work.units : 2 * work.units].set(1.0)
    head = layers(keys[1], (work.units, spec.ACTIONS + 1), 0.01)
    return Recurrent([*hidden, (gates(keys[2], work.width), bias)], gates(keys[3], work.units), head)


def layers(key: jax.Array, sizes: tuple[int, ...], gain: float = 2**0.5) -> Layers:
    """Return layers with orthogonal weights; those of the last one have `gain`."""
    keys, gains = jax.random.split(key, len(sizes) - 1), [2**0.5] * (len(sizes) - 2) + [gain]
    init = jax.nn.initializers.orthogonal
    return [(init(gains[n])(own, sizes[n : n + 2], jnp.float32), jnp.zeros(sizes[n + 1])) for n, own in enumerate(keys)]


def forward(parameters: list[Layers], obs: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return logits [..., 2] and values [...]."""
    return split(jnp.concatenate([outputs(trunk, obs) for trunk in parameters], -1))


def split(out: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the logits and the values of the outputs of heads."""
    return out[..., : spec.ACTIONS], out[..., spec.ACTIONS]


def outputs(layers: Layers, rows: jax.Array) -> jax.Array:
    """Return the outputs of layers, of which only the last one is linear."""
    for weight, bias in layers[:-1]:
        rows = jnp.tanh(rows @ weight + bias)
    return rows @ layers[-1][0] + layers[-1][1]


def remember(net: Recurrent, memory: Memory, gates: jax.Array) -> Memory:
    """Return what is remembered after a step; where an episode begins, nothing is before it."""
    output, cell = memory.output * memory.keep[:, None], memory.cell * memory.keep[:, None]
    i, f, g, o = jnp.split(gates + output @ net.recurrent, 4, -1)
    cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    return memory._replace(output=jax.nn.sigmoid(o) * jnp.tanh(cell), cell=cell)


# An iteration ---------------------------------------------------------------------------------------------------------


def act(state: State) -> tuple[jax.Array, jax.Array, Memory | None]:
    """Return logits and values of the current observations, and what is remembered after them."""
    if state.memory is None:
        return *forward(state.parameters, state.obs), None
    memory = remember(state.parameters, state.memory, outputs(state.parameters.gates, state.obs))
    return *split(outputs(state.parameters.head, memory.output)), memory


def rollout(state: State, horizon: int) -> tuple[State, Step]:
    """Make `horizon` steps in every environment."""

    def step(state: State, _: None) -> tuple[State, Step]:
        key, key_action, key_env = jax.random.split(state.key, 3)
        logits, value, memory = act(state)
        action = jax.random.categorical(key_action, logits)
        keys = jax.random.split(key_env, len(state.obs))
        stepped = jax.vmap(ENV.step, (0, 0, 0, None))(keys, state.env, action, ENV_PARAMS)
        obs, env, reward, terminated, truncated, _ = stepped
        done = terminated | truncated
        made = Step(state.obs, action, chosen(jax.nn.log_softmax(logits), action), value, reward, done)
        return state._replace(env=env, obs=obs, memory=memory and memory._replace(keep=1.0 - done), key=key), made

    return jax.lax.scan(step, state, None, horizon)


def chosen(log_p: jax.Array, action: jax.Array) -> jax.Array:
    """Return the log-probability of `action`."""
    return jnp.take_along_axis(log_p, action[..., None], -1)[..., 0]


def advantages(steps: Step, last: jax.Array) -> jax.Array:
    """Return generalised advantages [T, N]; a time limit counts as a termination."""

    def back(carry: tuple[jax.Array, jax.Array], step: Step) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        advantage, following = carry
        going_on = 1.0 - step.done
        error = step.reward + spec.GAMMA * following * going_on - step.value
        advantage = error + spec.GAMMA * spec.LAMBDA * going_on * advantage
        return (advantage, step.value), advantage

    return jax.lax.scan(back, (jnp.zeros_like(last), last), steps, reverse=True)[1]


def objective(logits: jax.Array, value: jax.Array, rows: Step, advantage: jax.Array, work: Work) -> jax.Array:
    """Return the loss of what a network gives for steps, [...] each, of a minibatch."""
    log_p = jax.nn.log_softmax(logits)
    log_prob = chosen(log_p, rows.action)
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


def loss(parameters: Any, first: Memory | None, steps: Step, advantage: jax.Array, work: Work) -> jax.Array:
    """Return the loss over rows [R], or over sequences [T, B] that follow `first`: its gradient goes back through all their steps."""
    if first is None:
        return objective(*forward(parameters, steps.obs), steps, advantage, work)

    def step(memory: Memory, given: tuple[jax.Array, jax.Array]) -> tuple[Memory, jax.Array]:
        gates, keep = given
        memory = remember(parameters, memory._replace(keep=keep), gates)
        return memory, memory.output

    keeps = jnp.concatenate([first.keep[None], 1.0 - steps.done[:-1]])
    _, remembered = jax.lax.scan(step, first, (outputs(parameters.gates, steps.obs), keeps))
    return objective(*split(outputs(parameters.head, remembered)), steps, advantage, work)


def iteration(state: State, work: Work) -> State:
    """Make a rollout and an update."""
    first = state.memory
    state, steps = rollout(state, work.horizon)
    if work.learner == "none":
        return state
    learned = steps, advantages(steps, act(state)[1])
    if first is None:  # else a minibatch has whole sequences
        learned = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), learned)

    def descend(carry: tuple[Any, Any], first: Memory | None, part: tuple[Step, jax.Array]) -> tuple[Any, Any]:
        parameters, optimizer = carry
        slope = jax.grad(loss)(parameters, first, *part, work)
        change, optimizer = optimizer_of(work).update(slope, optimizer)
        return optax.apply_updates(parameters, change), optimizer

    def minibatch(carry: tuple[Any, Any], part: jax.Array) -> tuple[tuple[Any, Any], None]:
        taken = jax.tree.map(lambda x: x[part] if first is None else x[:, part], learned)
        return descend(carry, jax.tree.map(lambda x: x[part], first), taken), None

    def epoch(carry: tuple[Any, Any], key: jax.Array) -> tuple[tuple[Any, Any], None]:
        order = jax.random.permutation(key, learned[1].shape[-1]).reshape(work.minibatches, -1)
        return jax.lax.scan(minibatch, carry, order)

    carry = (state.parameters, state.optimizer)
    if work.minibatches == 1:
        carry = descend(carry, first, learned)
    else:
        key, *keys = jax.random.split(state.key, work.epochs + 1)
        carry, _ = jax.lax.scan(epoch, carry, jnp.stack(keys))
        state = state._replace(key=key)
    return state._replace(parameters=carry[0], optimizer=carry[1])


def first_state(key: jax.Array, work: Work, n_envs: int) -> State:
    """Return reset environments, a new network, and nothing remembered."""
    key, key_network, key_env = jax.random.split(key, 3)
    obs, env = jax.vmap(ENV.reset, (0, None))(jax.random.split(key_env, n_envs), ENV_PARAMS)
    parameters: Any = recurrent_network(key_network, work) if work.units else network(key_network, work)
    nothing = [jnp.zeros((n_envs, work.units)) for _ in range(2)]  # two arrays, because each is donated
    memory = Memory(*nothing, jnp.zeros(n_envs)) if work.units else None
    return State(parameters, optimizer_of(work).init(parameters), env, obs, memory, key)


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
    return iterate, f"jit of {together} iterations" + ", scan over time" * bool(work.units)


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
