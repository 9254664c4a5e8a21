"""Classes whose objects step a batch of environments, as they are known before a run begins. No torch."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol, TypeAlias, cast

from warprun.spec import Space, Spec

Array: TypeAlias = Any
"""An array of a library that speaks DLPack, whose types this package does not know."""
Tree: TypeAlias = Any
"""An array, or lists, tuples, dictionaries and other classes that the library knows, of arrays and numbers."""


MASK = "action_mask"
"""Method of a batch that says which actions are allowed; without it all are."""

STEP_AND_RESET = "step_and_reset"
"""Method of a batch that does the work of `step` and `reset` in one call."""


class Batch(Protocol):
    """N environments that a class of the user steps."""

    arrays: ModuleType
    """The module of its arrays."""
    observation_space: Space
    action_space: Space
    """Spaces of warprun or of Gymnasium."""
    state: Tree
    """All that later steps depend on; a batch that has `get_state` and `set_state`, or tells no state, need not have it."""

    def reset(self, seed: int, mask: Array) -> Array:
        """Begin an episode where `mask` [N] bool is true; return observations [N, ...], of which those are read."""

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array]:
        """Return observations [N, ...], rewards [N], terminated [N] bool and truncated [N] bool. Resets nothing."""

    def step_and_reset(self, actions: Array, seed: int) -> tuple[Array, Array, Array, Array, Array]:
        """Return what `step` does and, beginning an episode where one was terminated or truncated, what `reset` does; optional, on CPU."""

    def action_mask(self) -> Array:
        """Return which actions the state allows [N, M] bool, M the values of all choices one after the other; optional."""

    def get_state(self) -> Tree:
        """Return all that later steps depend on."""

    def set_state(self, state: Tree) -> None:
        """Continue from a result of `get_state`."""


@dataclass(frozen=True)
class BatchClass:
    """A class whose objects step a batch of environments."""

    title: str
    """Its name in messages."""
    made: type
    arguments: Mapping[str, object]
    """Arguments of the class beside `n_envs` and `device`."""
    spec: Spec
    shape: tuple[int, ...]
    """Of one observation."""
    resumes: bool
    """Whether an object tells its state, so that a resumed run continues exactly."""
    note: str = ""
    """What `unpaired` says of the class."""

    def make(self, n_envs: int, device: str) -> Batch:
        """Return a new batch; whatever the class raises passes. If it has the argument `device`, it gets that of torch."""
        where = {"device": device} if "device" in inspect.signature(self.made).parameters else {}
        with redirect_stdout(sys.stderr):  # a print must not stand in the output of a command
            return cast(Batch, self.made(n_envs, **where, **self.arguments))
