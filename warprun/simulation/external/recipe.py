"""How any process makes the environments of a run. Light to import: no numba, no torch, no Gymnasium."""

from __future__ import annotations

import inspect
import os
import sysconfig
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from warprun.errors import ContractError, UserError, printable
from warprun.spec import Spec

if TYPE_CHECKING:
    from gymnasium import Space
    from mpi4py import MPI

PACKAGE = str(Path(__file__).parents[2]) + os.sep
LIBRARIES = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib"))
"""Folders of the modules of Python and of libraries."""


class Stepped(Protocol):
    """A single environment, by the interface of Gymnasium; `Singles` looks whether it keeps to it."""

    observation_space: Space
    action_space: Space

    def reset(self, *, seed: int = ...) -> tuple[object, dict[str, object]]: ...

    def step(self, action: object) -> tuple[object, float, bool, bool, dict[str, object]]: ...


@dataclass(frozen=True)
class Recipe:
    """How a process makes environments; all values are those of JSON, so that a worker process can get them."""

    maker: str
    """MODULE:FUNCTION. Called with `arguments`, and with `num_envs` if `vector`, the function returns an environment."""
    arguments: Mapping[str, Any]
    vector: bool
    """Whether the maker returns one `gymnasium.vector.VectorEnv` of `num_envs` environments, or a single environment."""
    ranks: int = 1
    """Processes that step an environment together; if several, the maker gets their communicator as `comm`."""

    def make(self, **num_envs: int) -> Any:
        """Return a new environment of this process alone; whatever its code raises passes."""
        return self._made(num_envs)

    def make_with(self, comm: MPI.Intracomm) -> Stepped:
        """Return the part of this process in an environment that all ranks of `comm`, an `MPI.Intracomm`, make at the same time."""
        return self._made({"comm": comm})

    def _made(self, more: Mapping[str, object]) -> Any:
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # it would stand between the lines of a run
        module, _, function = self.maker.partition(":")
        return vars(import_module(module))[function](**self.arguments, **more)


@dataclass(frozen=True)
class ExternalEnvironment:
    """An environment with the interface of Gymnasium, which Python steps, and what is known of it before a run begins."""

    title: str
    """Its name in messages: the id or the class."""
    recipe: Recipe
    spec: Spec
    timeout_s: float
    """Longest time of a reset or step."""
    state: tuple[str, tuple[int, ...]] | None
    """dtype and shape of what `get_state` returns; None without `get_state` and `set_state`."""
    note: str = ""
    """What `unpaired` says of it."""
    places: tuple[str, str] = ("", "")
    """What `method_place` says of its reset and its step."""

    @property
    def resumes(self) -> bool:
        """Whether a resumed run continues the episodes."""
        return self.state is not None

    @property
    def group(self) -> str:
        """Name of the only group."""
        return self.spec.groups[0].name


@runtime_checkable
class SavesState(Protocol):
    """An environment that a resumed run continues exactly."""

    def get_state(self) -> np.ndarray:
        """Return all that the rest of the episode and later episodes depend on: an array of numbers, always of the same shape."""

    def set_state(self, state: np.ndarray) -> None:
        """Continue from a result of `get_state`."""


METHODS_OF_STATE = ("get_state", "set_state")


def unpaired(made: type, effect: str = "a resumed run begins new episodes") -> str:
    """Return what it means that a class of the user has only one of `get_state` and `set_state`, `effect`; empty if this is not so."""
    names = METHODS_OF_STATE
    missing = [name for name in names if not hasattr(made, name)]
    place = method_place(made, names[names[0] in missing]) if len(missing) == 1 else ""
    return place and f"{place}{made.__name__} has no {missing[0]}, so {effect}"


def method_place(made: type, name: str) -> str:
    """Return "FILE:LINE in NAME: " of a method of a class of the user; empty if it has none, or it is a method of a library."""
    code = getattr(inspect.unwrap(getattr(made, name)), "__code__", None) if name in dir(made) else None
    return f"{code.co_filename}:{code.co_firstlineno} in {name}: " if code is not None and is_own(code.co_filename) else ""


def is_own(file: str) -> bool:
    """Return whether a file that code comes from is one of the user, not of this package, of a library or of Python."""
    path = Path(file)
    return path.is_absolute() and "site-packages" not in path.parts and not file.startswith((PACKAGE, *LIBRARIES))


@runtime_checkable
class Closes(Protocol):
    """An environment that frees something at its end."""

    def close(self) -> None: ...


def is_silent(error: BaseException) -> bool:
    """Return whether no code outside warprun has raised an error, so that `told` names no line."""
    return not _frames(error)


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith((PACKAGE, "<"))]


def told(error: BaseException) -> str:
    """Return an exception of an environment as one line: file and line, type and message."""
    if isinstance(error, UserError | ContractError):
        return str(error)
    frames = _frames(error)
    frames = [frame for frame in frames if is_own(frame.filename)] or frames
    try:
        words = str(error)
    except Exception:  # __str__ of an error is code of the user
        words = "(its text cannot be read)"
    if frames:
        words = f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}: {type(error).__name__}: {words}"
    return printable(words, 500)
