"""How kernels make a state: with every number in the type that is declared for it, wherever a function returns."""

from __future__ import annotations

import re
import types
from functools import cache

from warprun.environment import STATES, float32, int32


def is_state(value: object) -> bool:
    """Return whether a value is the state of a group."""
    return isinstance(value, type) and value in STATES


@cache
def constructor(state: type) -> types.FunctionType:
    """Return a function with the arguments and defaults of a state that converts its numbers and makes one.

    Without it two branches that return an int64 and an int32, or 0 and 0.0, have states of two types, which Numba does not unify. `n | 0`
    makes Numba refuse a real number for an integer field; integers and truth values keep their value.
    """
    fields = STATES[state]
    # A line for each field, by which `refused_field` finds it; fields cannot begin with an underscore.
    values = (f.name if f.length else f"_int32({f.name} | 0)" if f.integer else f"_float32({f.name})" for f in fields)
    body = "".join(f"    {f.name} = {value}\n" for f, value in zip(fields, values, strict=True))
    arguments = ", ".join(f.name for f in fields)
    names = {"_float32": float32, "_int32": int32, "_state": state}
    code = compile(f"def make({arguments}):\n{body}    return _state({arguments})", f"<state {state.__name__}: {arguments}>", "exec")
    exec(code, names)
    made = names["make"]
    assert isinstance(made, types.FunctionType)
    made.__module__, made.__defaults__ = state.__module__, tuple(state._field_defaults.values())  # type: ignore[attr-defined]
    return made


def integer_fields(function: types.FunctionType) -> tuple[tuple[int, str], ...]:
    """Return place and name of the integers among the arguments of a `constructor`; nothing for another function."""
    if not function.__code__.co_filename.startswith("<state "):
        return ()
    fields = enumerate(STATES[function.__globals__["_state"]])
    return tuple((place, f.name) for place, f in fields if f.integer and not f.length)


def refused_field(text: str) -> str | None:
    """Return the problem that an error of Numba, `text`, has with a field of a state; None if it has another cause."""
    found = re.search(r'File "<state (\w+): ([^>]*)>", line (\d+)', text)
    if not found:
        return None
    field = f"{found[1]}.{found[2].split(', ')[int(found[3]) - 2]}"
    if "or_(float" in text:
        return f"{field} is an integer and gets a real number; write int32(...), which cuts off the digits, or declare it float32"
    return f"must give {field} a number"
