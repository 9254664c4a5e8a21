"""The text of a kernel module: templates with placeholders, indices, and its global names."""

from __future__ import annotations

import re
from collections.abc import Callable
from textwrap import dedent, indent

from warprun.environment import Group

Function = Callable[..., object]
"""A function of an environment, or one that kernels call."""

HOLE = re.compile(r"^( *)\$(\w+)\n|\$\{?(\w+)\}?", re.MULTILINE)


def fill(template: str, **holes: str) -> str:
    """Return `template` with `$name` and `${name}` replaced.

    A placeholder alone on its line is replaced by any number of lines, with its indentation, or by none.
    """

    def replacement(found: re.Match[str]) -> str:
        if found[3]:
            return holes[found[3]]
        return indent(holes[found[2]], found[1]) + "\n" if holes[found[2]] else ""

    return HOLE.sub(replacement, dedent(template).lstrip("\n")).rstrip("\n")


def lines(*parts: str) -> str:
    """Return the parts that are not empty, each on lines of its own."""
    return "\n".join(part for part in parts if part)


def block(head: str, *parts: str) -> str:
    """Return the parts, indented, below `head`; nothing if all are empty."""
    body = lines(*parts)
    return f"{head}\n{indent(body, '    ')}" if body else ""


def index(group: Group, at: str, component: int | str, width: int) -> str:
    """Return the index of a component of this actor in a flat row, `width` numbers for each actor."""
    # LLVM vectorises only if it knows the distance of neighbouring lanes, so the sizes are written as numbers.
    actor = operand(at) if group.size == 1 else f"({operand(at)} * {group.size} + actor)"
    return actor if width == 1 else f"{actor} * {width} + {component}"


def operand(at: str) -> str:
    """Return the number of an environment as an operand."""
    return at if at.isidentifier() else f"({at})"


class Names:
    """The global names of a kernel module: functions and classes that it gets, and constants that it defines."""

    def __init__(self) -> None:
        self.functions: dict[str, Function] = {}
        self.definitions: dict[str, str] = {}
        """Name and value as Python text, for the head of the module."""

    def use(self, name: str, value: Function) -> str:
        """Add a global to the module and return its name; another function of the same name gets a number."""
        unique, n = name, 1
        while self.functions.get(unique, value) is not value:
            n += 1
            unique = f"{name}{n}"
        self.functions[unique] = value
        return unique

    def define(self, name: str, text: str) -> str:
        """Define a constant at the head of the module and return its name."""
        self.definitions[name] = text
        return name
