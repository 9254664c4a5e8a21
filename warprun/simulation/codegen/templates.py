"""Templates for the source of kernels: text with placeholders."""

from __future__ import annotations

import re
from textwrap import dedent, indent

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
