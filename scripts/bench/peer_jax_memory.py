"""gymnax with recurrent PPO written for speed in JAX: an LSTM that `lax.scan` takes over the steps, an iteration in one compiled program.

As in PureJaxRL (Lu et al. 2022) a minibatch has all steps of some environments, and sequences begin with what was remembered in the
rollout. The formulas of the LSTM are those of Hochreiter & Schmidhuber 1997 with the forget gates of Gers, Schmidhuber & Cummins 2000.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import peer_work as spec
from peer_jax import ENV, ENV_PARAMS, Layers, Step, advantages, chosen, objective, optimizer_of, several
from peer_work import Iterate, Work


class Network(NamedTuple):
    """Hidden layers, an LSTM with the gates input, forget, cell and output, and a head for logits and value."""

    hidden: Layers
    inputs: jax.Array
    """[hidden units, 4 units]."""
    recurrent: jax.Array
    """[units, 4 units]."""
    bias: jax.Array
    head: tuple[jax.Array, jax.Array]


class Carry(NamedTuple):
    """What is remembered, [N, units] each."""

    output: jax.Array
    cell: jax.Array

    def kept(self, keep: jax.Array) -> Carry:
        """Return it with zeros where an episode begins, where `keep` [N] is 0."""
        return Carry(self.output * keep[:, None], self.cell * keep[:, None])


class State(NamedTuple):
    """The state that an iteration passes to the next."""

    parameters: Network
    optimizer: Any
    env: Any
    obs: jax.Array
    carry: Carry
    keep: jax.Array
    """[N]: 0 if an episode begins, else 1."""
    key: jax.Array


def network(key: jax.Array, work: Work) -> Network:
    """Return orthogonal weights; the forget gate has a bias of 1."""
    keys, init = jax.random.split(key, 5), jax.nn.initializers.orthogonal
    sizes = ((spec.FEATURES, work.width), (work.width, work.width))
    hidden = [(init(2**0.5)(own, size, jnp.float32), jnp.zeros(size[1])) for own, size in zip(keys, sizes, strict=False)]

    def gates(key: jax.Array, inputs: int) -> jax.Array:
        return jnp.concatenate([init()(own, (inputs, work.units), jnp.float32) for own in jax.random.split(key, 4)], 1)

    bias = jnp.zeros(4 * work.units).at[work.units : 2 * work.units].set(1.0)
    head = init(0.01)(keys[4], (work.units, spec.ACTIONS + 1), jnp.float32), jnp.zeros(spec.ACTIONS + 1)
    return Network(hidden, gates(keys[2], work.width), gates(keys[3], work.units), bias, head)


def gates_of(net: Network, obs: jax.Array) -> jax.Array:
    """Return the part of the gates [..., 4 units] that follows from observations [..., F]."""
    for weight, bias in net.hidden:
        obs = jnp.tanh(obs @ weight + bias)
    return obs @ net.inputs + net.bias


def cell(net: Network, carry: Carry, gates: jax.Array) -> Carry:
    """Return what is remembered after a step."""
    i, f, g, o = jnp.split(gates + carry.output @ net.recurrent, 4, -1)
    state = jax.nn.sigmoid(f) * carry.cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    return Carry(jax.nn.sigmoid(o) * jnp.tanh(state), state)


def heads(net: Network, output: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return logits [..., 2] and values [...]."""
    out = output @ net.head[0] + net.head[1]
    return out[..., : spec.ACTIONS], out[..., spec.ACTIONS]


def act(state: State) -> tuple[jax.Array, jax.Array, Carry]:
    """Return logits and values of the current observations, and what is remembered after them."""
    carry = cell(state.parameters, state.carry.kept(state.keep), gates_of(state.parameters, state.obs))
    return *heads(state.parameters, carry.output), carry


def rollout(state: State, horizon: int) -> tuple[State, tuple[Step, jax.Array]]:
    """Make `horizon` steps in every environment; return them, and `keep` before each."""

    def step(state: State, _: None) -> tuple[State, tuple[Step, jax.Array]]:
        key, key_action, key_env = jax.random.split(state.key, 3)
        logits, value, carry = act(state)
        action = jax.random.categorical(key_action, logits)
        keys = jax.random.split(key_env, len(state.obs))
        stepped = jax.vmap(ENV.step, (0, 0, 0, None))(keys, state.env, action, ENV_PARAMS)
        obs, env, reward, terminated, truncated, _ = stepped
        done = terminated | truncated
        made = Step(state.obs, action, chosen(logits, action), value, reward, done)
        return state._replace(env=env, obs=obs, carry=carry, keep=1.0 - done, key=key), (made, state.keep)

    return jax.lax.scan(step, state, None, horizon)


def loss(net: Network, first: Carry, steps: Step, keeps: jax.Array, advantage: jax.Array, work: Work) -> jax.Array:
    """Return PPO's loss over sequences, [T, B, ...] each, that follow `first`; its gradient goes back through all their steps."""

    def step(carry: Carry, given: tuple[jax.Array, jax.Array]) -> tuple[Carry, jax.Array]:
        gates, keep = given
        carry = cell(net, carry.kept(keep), gates)
        return carry, carry.output

    _, outputs = jax.lax.scan(step, first, (gates_of(net, steps.obs), keeps))
    return objective(*heads(net, outputs), steps, advantage, work)


def iteration(state: State, work: Work) -> State:
    """Make a rollout and an update."""
    first = state.carry
    state, (steps, keeps) = rollout(state, work.horizon)
    advantage = advantages(steps, act(state)[1])

    def minibatch(carry: tuple[Network, Any], part: jax.Array) -> tuple[tuple[Network, Any], None]:
        net, optimizer = carry
        sequences = jax.tree.map(lambda x: x[:, part], (steps, keeps, advantage))
        slope = jax.grad(loss)(net, jax.tree.map(lambda x: x[part], first), *sequences, work)
        change, optimizer = optimizer_of(work).update(slope, optimizer)
        return (optax.apply_updates(net, change), optimizer), None

    def epoch(carry: tuple[Network, Any], key: jax.Array) -> tuple[tuple[Network, Any], None]:
        order = jax.random.permutation(key, len(state.obs)).reshape(work.minibatches, -1)
        return jax.lax.scan(minibatch, carry, order)

    key, *keys = jax.random.split(state.key, work.epochs + 1)
    (net, optimizer), _ = jax.lax.scan(epoch, (state.parameters, state.optimizer), jnp.stack(keys))
    return state._replace(parameters=net, optimizer=optimizer, key=key)


def first_state(key: jax.Array, work: Work, n_envs: int) -> State:
    """Return reset environments, a new network, and nothing remembered."""
    key, key_network, key_env = jax.random.split(key, 3)
    obs, env = jax.vmap(ENV.reset, (0, None))(jax.random.split(key_env, n_envs), ENV_PARAMS)
    parameters, nothing = network(key_network, work), jnp.zeros((n_envs, work.units))
    carry = Carry(nothing, nothing.copy())  # two arrays, because each is donated
    return State(parameters, optimizer_of(work).init(parameters), env, obs, carry, jnp.zeros(n_envs), key)


def prepare(work: Work, variant: str, n_envs: int, threads: int) -> tuple[Iterate, str]:
    """Return some iterations in one compiled call; `variant` is the random number generator."""
    jax.config.update("jax_default_prng_impl", variant)
    state = jax.jit(lambda key: first_state(key, work, n_envs))(jax.random.key(0))
    iterate, together = several(lambda state: iteration(state, work), state, n_envs * work.horizon)
    return iterate, f"jit of {together} iterations, scan over time"
