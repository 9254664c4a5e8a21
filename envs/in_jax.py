"""Compiled functions of a state, behind methods that keep it: shared by the batches of libraries in JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_cpu_enable_async_dispatch", False)  # each step is waited for: another thread would only cost a change of threads

S = TypeVar("S")
"""Arrays in classes that JAX knows."""
Results = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
"""Observations, rewards, terminated and truncated of a step."""


def where(mask: jax.Array, fresh: S, before: S) -> S:
    """Return the state that is `fresh` in the environments where `mask` [N] is true, and as `before` elsewhere; all arrays are [N, ...]."""

    def pick(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(mask.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    found: S = jax.tree.map(pick, fresh, before)
    return found


class InJax(Generic[S]):
    """A batch whose state is that of functions, see `compile`."""

    arrays = jnp

    def compile(
        self,
        begin: Callable[[jax.Array], tuple[jax.Array, S]],
        step: Callable[[jax.Array, S], tuple[jax.Array, jax.Array, jax.Array, jax.Array, S]],
        mix: Callable[[jax.Array, S, S], S] = where,
    ) -> None:
        """Compile the functions of the methods, and begin.

        `begin(seed)` returns observations and states of new episodes in all environments, `step(actions, state)` the results of a step and
        the next state, and `mix(mask, fresh, before)` the state in which some episodes are new.
        """

        def reset(seed: jax.Array, mask: jax.Array, before: S) -> tuple[jax.Array, S]:
            obs, fresh = begin(seed)
            return obs, mix(mask, fresh, before)

        def step_and_reset(actions: jax.Array, seed: jax.Array, before: S) -> tuple[*Results, jax.Array, S]:
            obs, reward, terminated, truncated, after = step(actions, before)
            over = terminated | truncated
            fresh, after = jax.lax.cond(over.any(), lambda: reset(seed, over, after), lambda: (jnp.zeros_like(obs), after))
            return obs, reward, terminated, truncated, fresh, after

        self._reset, self._step, self._step_and_reset = jax.jit(reset), jax.jit(step), jax.jit(step_and_reset)
        self.state: S = jax.jit(begin)(0)[1]
        if jax.default_backend() == "cpu":
            # Compiled functions take arrays of NumPy in a tenth of the time that makes those of jax of them.
            self.arrays = np

    def reset(self, seed: int, mask: jax.Array) -> jax.Array:
        """Begin episodes where `mask` [N] is true; return observations, of which those count."""
        obs, self.state = self._reset(seed, mask, self.state)
        return obs

    def step(self, actions: jax.Array) -> Results:
        """Return what a step of all environments gives."""
        *results, self.state = self._step(actions, self.state)
        return tuple(results)

    def step_and_reset(self, actions: jax.Array, seed: int) -> tuple[*Results, jax.Array]:
        """Return what a step gives, and observations of new episodes, which begin where others have ended; of these count those."""
        *results, self.state = self._step_and_reset(actions, seed, self.state)
        return tuple(results)
