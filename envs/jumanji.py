"""Every environment that Jumanji knows by an id: env=jumanji env.id=Snake-v1 (https://github.com/instadeepai/jumanji)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import jumanji  # first, so that its extra is named if both are missing

# isort: split
import jax
import jax.numpy as jnp
import numpy as np
from jumanji import specs, wrappers

from warprun.environment import Box, Discrete, MultiDiscrete
from warprun.envs.in_jax import InJax
from warprun.errors import UserError, nearest, shown
from warprun.spec import Field

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NamedTuple

    from jumanji.env import State as EnvState
    from jumanji.types import TimeStep

    State: TypeAlias = tuple[EnvState, jax.Array | None]
    """The states of all environments, and which actions they allow."""

LAST = 2
"""`step_type` of the last step of an episode."""
CELLS = 3
"""Fewest cells of an axis of a grid; less is a list, such as that of the places of four ghosts."""


class Jumanji(InJax["State"]):
    """A batch of an environment of Jumanji; `arguments` are those of its class, such as time_limit=100.

    Of several agents one policy chooses all actions, and gets the sum of their rewards. Where a mask allows no value of a choice, all are.
    """

    def __init__(self, n_envs: int, id: str | None = None, **arguments: object) -> None:
        if not id:
            raise UserError("env.id is missing: write env.id=NAME of an environment of Jumanji, such as env.id=Snake-v1")
        known = sorted(jumanji.registered_environments())
        if id not in known:
            raise UserError(f"env.id={shown(id)}: Jumanji knows no such environment{nearest(id, known)}")
        env = wrappers.MultiToSingleWrapper(jumanji.make(id, **arguments))
        given = jax.eval_shape(env.reset, jax.random.PRNGKey(0))[1].observation
        observed = [(leaf.shape, leaf.dtype) for leaf in numbers(given)]
        self.observation_space = row_of(observed)
        shape = self.observation_space.fields[0].order if len(observed) == 1 and self.observation_space.fields else (-1,)
        mask, spec = getattr(given, "action_mask", None), env.action_spec
        self.action_space, combined = actions_of(id, spec, None if mask is None else mask.shape)
        values = math.prod(combined) if combined else 0 if mask is None else mask.shape[-1]
        if mask is not None:
            self.action_mask = self._allowed

        def seen(timestep: TimeStep) -> tuple[jax.Array, jax.Array | None]:
            rows = [leaf.reshape(n_envs, -1).astype(jnp.float32) for leaf in numbers(timestep.observation)]
            allowed = None
            if mask is not None:  # an agent of Jumanji that has finished is allowed nothing: what it chooses has no effect
                allowed = timestep.observation.action_mask.reshape(n_envs, -1, values)
                allowed = (allowed | ~allowed.any(2, keepdims=True)).reshape(n_envs, -1)
            return jnp.concatenate(rows, 1).reshape(n_envs, *shape), allowed

        def begin(seed: jax.Array) -> tuple[jax.Array, State]:
            states, timestep = jax.vmap(env.reset)(jax.random.split(jax.random.PRNGKey(seed), n_envs))
            obs, allowed = seen(timestep)
            return obs, (states, allowed)

        def step(chosen: jax.Array, state: State) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, State]:
            if combined:
                chosen = jnp.stack(jnp.unravel_index(chosen, combined), 1)
            states, timestep = jax.vmap(env.step)(state[0], chosen.reshape(n_envs, *spec.shape).astype(spec.dtype))
            obs, allowed = seen(timestep)
            over, goal = timestep.step_type == LAST, timestep.discount == 0.0
            return obs, timestep.reward.astype(jnp.float32), over & goal, over & ~goal, (states, allowed)

        self.compile(begin, step)

    def _allowed(self) -> jax.Array | None:
        return self.state[1]


def numbers(observation: NamedTuple) -> list[jax.Array]:
    """Return the arrays of an observation in the order of its fields, without the action mask."""
    mask = getattr(observation, "action_mask", None)
    return [leaf for leaf in jax.tree.leaves(observation) if leaf is not mask]


def row_of(observed: Sequence[tuple[tuple[int, ...], np.dtype]]) -> Box:
    """Return the space of arrays of these shapes and dtypes, one after the other.

    Those of three axes are pictures, whose channels are the first axis if the two others are equal, else the last. Those of two axes are
    pictures of one channel if they hold whole numbers or truth values, and have `CELLS` or more along both.
    """
    fields, size = [], 0
    for shape, dtype in observed:
        if len(shape) == 3:
            first = shape[1] == shape[2] != shape[0]
            fields.append(Field(size, shape if first else (shape[2], *shape[:2]), channels_last=not first))
        elif len(shape) == 2 and min(shape) >= CELLS and not jnp.issubdtype(dtype, jnp.floating):
            fields.append(Field(size, (1, *shape)))
        size += math.prod(shape)
    return Box(size, fields=tuple(fields))


def actions_of(id: str, spec: specs.Array, mask: tuple[int, ...] | None) -> tuple[Box | Discrete | MultiDiscrete, tuple[int, ...]]:
    """Return the space of actions, with a mask of the shape `mask`, and the sizes of the choices if the space has all their combinations.

    Raises UserError for actions or a mask that warprun does not have.
    """
    if jnp.issubdtype(spec.dtype, jnp.floating) and isinstance(spec, specs.BoundedArray) and mask is None:
        bounds = (np.broadcast_to(np.asarray(bound, np.float64), spec.shape).ravel().tolist() for bound in (spec.minimum, spec.maximum))
        low, high = map(tuple, bounds)
        return Box(len(low), low, high), ()
    if not jnp.issubdtype(spec.dtype, jnp.integer) or not isinstance(spec, specs.BoundedArray) or np.any(spec.minimum):
        raise UserError(f"env.id={id}: its actions are neither choices that begin at 0 nor numbers within bounds: {shown(spec)}")
    sizes = tuple((np.broadcast_to(spec.maximum, spec.shape).ravel() + 1).tolist())
    if mask is not None and mask == sizes != (sizes[0],):
        return Discrete(math.prod(sizes)), sizes
    if mask is not None and mask[:-1] == spec.shape:
        sizes = (mask[-1],) * len(sizes)
    elif mask is not None:
        raise UserError(f"env.id={id}: its action mask of the shape {mask} does not fit its actions, {shown(spec)}")
    return MultiDiscrete(sizes) if spec.shape else Discrete(sizes[0]), ()


environment = Jumanji
