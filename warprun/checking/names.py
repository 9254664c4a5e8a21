"""What messages call the parts of an environment: features by the expression that gives them, functions by their place."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FunctionType

from warprun.environment import Environment, Group
from warprun.errors import printable
from warprun.spec import GroupSpec

LONGEST = 50
"""Characters of an expression in a message."""
MOST_LISTED = 5


def place_of(function: Callable[..., object], line: int | None = None) -> str:
    """Return "FILE:LINE in NAME" of a function, the file by its last two parts."""
    plain = inspect.unwrap(function)
    assert isinstance(plain, FunctionType)
    code = plain.__code__
    return f"{short(code.co_filename)}:{line or code.co_firstlineno} in {plain.__name__}"


def short(file: str) -> str:
    """Return the last two parts of a path."""
    return "/".join(Path(file).parts[-2:])


def feature(group: GroupSpec, n: int, environment: Environment | None) -> str:
    """Return what a message calls feature `n` of an observation, with its expression and place if `observe` returns a tuple."""
    named = f"observation {n} of {group.name}"
    if environment is None:
        return named
    observe = environment.group(group.name).observe
    parts = returned(observe)
    expression = f" ({parts[n]})" if len(parts) == group.observation.size else ""
    return f"{named}{expression}, {place_of(observe)}"


def returned(function: Callable[..., object]) -> list[str]:
    """Return the expressions of the tuple that the last `return` of a function has; empty if there is none."""
    found = [node.value for node in returns(function) if isinstance(node.value, ast.Tuple)]
    if not found or not isinstance(found[-1], ast.Tuple):
        return []
    return [printable(ast.unparse(element), LONGEST) for element in found[-1].elts]


def returns(function: Callable[..., object]) -> list[ast.Return]:
    """Return the `return` statements of a function; none if its source cannot be read."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, SyntaxError, TypeError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.Return)]


def phases_of(environment: Environment, group: Group) -> str:
    """Return the places of the functions that step a group."""
    return ", ".join(place_of(phase.function) for phase in environment.phases if phase.group == group.name)


def listed(words: Iterable[object]) -> str:
    """Return a list in words, at most MOST_LISTED of them."""
    every = [str(word) for word in words]
    more = f" and {len(every) - MOST_LISTED} more" if len(every) > MOST_LISTED else ""
    return ", ".join(every[:MOST_LISTED]) + more
