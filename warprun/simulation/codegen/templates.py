"""The source of a kernel module: templates with placeholders, and its global names."""

from __future__ import annotations

import re
from collections.abc import Callable
from textwrap import dedent, indent

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
