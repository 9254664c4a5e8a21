"""The causes in messages of Numba, in words of the user."""

from __future__ import annotations

import re
from collections.abc import Sequence

from warprun import math
from warprun.environment import KernelFunction, is_named_tuple
from warprun.errors import did_you_mean
from warprun.kernels.integers import refused_field
from warprun.user_code import ISOLATED


def cause_of(text: str, functions: Sequence[KernelFunction]) -> str:
    """Return the cause that a message of Numba about `functions` tells, in words of the user."""
    lines = [line.strip(" -!") for line in text.splitlines()]
    # Numba shows the failing call after >>>, with types in place of values.
    calls = [line.removeprefix(">>> ") for line in lines if line.startswith(">>> ")]
    causes = [line.strip(">") for line in lines if line and not _NOISE.search(line)]
    cause = next((c for c in causes if _TELLING.search(c)), causes[0] if causes else "unknown error")
    if "Cannot modify readonly array" in text:
        return "tables and the arrays of a module are read-only"
    makes_array = any(call.startswith(("empty(", "zeros(", "array(")) for call in calls)
    if "Only accept returning of array" in text and not makes_array:
        return "a function cannot return an array that it made or took from a NamedTuple; return a tuple of numbers"
    in_state = refused_field(text)
    if in_state:
        return in_state
    if "NRT required" in text or "array_allocate" in text or makes_array:
        return "kernels cannot make arrays; write the numbers out, or loop over them"
    if "No implementation of function" in cause and calls:
        called = calls[-1].partition("(")[0]
        advice = f"; write {called} of warprun.math" if called in dir(math) else ""
        if _OF_TUPLE.match(calls[-1]):
            advice = "; a tuple is no number: take an element, such as action[0] of the action of Box"
        elif _OF_NUMBER.match(calls[-1]):
            advice = "; a number has no elements: the action of Discrete is a number, written without [0]"
        cause = f"kernels know no {calls[-1]}{advice}"
    return _of_tuple(cause, functions) or readable(cause)


def _of_tuple(cause: str, functions: Sequence[KernelFunction]) -> str | None:
    """Return a cause that is a wrong field of a NamedTuple in words; None if it is another one."""
    sums = re.search(r"Unknown attribute '(\w+)' of type (\w+)_sum_Fields\(", cause)
    if sums:
        return f"{sums[2]}_sum has no {sums[1]!r}; add {sums[1]!r} to sums= of the group {sums[2]}"
    known = {made.__name__: made for function in functions for made in function.__globals__.values() if is_named_tuple(made)}
    attribute = re.search(r"Unknown attribute '(\w+)' of type (\w+)\(", cause)
    if attribute and attribute[2] in known:
        name, made = attribute[1], known[attribute[2]]
        if name == "_replace":
            return f"kernels know no _replace; write {made.__name__}({', '.join(made._fields)}) with all fields"
        return f"{made.__name__} has no {name!r}; {did_you_mean(name, made._fields)}"
    call = re.search(r"to signature '\(([\w, ]*)\)' due to \"TypeError: (.*?)\"", cause)
    named = [made.__name__ for made in known.values() if call and ", ".join(made._fields) == call[1]]
    if call and named:
        return f"{named[0]}(...) needs each of its fields once, {call[1]}: {call[2]}"
    return None


def readable(text: str) -> str:
    """Return a message of Numba without addresses, folders and the packages that environment files are imported into."""
    return re.sub(rf"\b{ISOLATED}\w+\.", "", _READABLE.sub(r"\1", text))


_OF_TUPLE = re.compile(r"(i?add|i?sub|i?mul|i?truediv|floordiv|mod|pow|neg|abs|lt|le|gt|ge|float32|int32|exp|sqrt|sin|cos)\(.*Tuple\(")
"""A call that takes numbers, of a tuple."""
_OF_NUMBER = re.compile(r"(static_)?getitem\((u?int|float)\d+,")
_NOISE = re.compile(r'^Failed in|^During:|^File "|There are \d+ candidate|Overload of function|^<source|^[|*]')
_TELLING = re.compile(
    r"No implementation of function|Unknown attribute|undefined|NameError|Cannot unify|Cannot bind|not supported|Unsupported|Untyped"
    r"|wrong number|takes|missing"
)
_READABLE = re.compile(r"(?:Module\()?<(\w+ '[\w.]+')[^>]*>\)?")
"""The repr of a module or a class; the group leaves out addresses and folders."""
