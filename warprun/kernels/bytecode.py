"""Bytecode: its instructions, and the names that it reads."""

from __future__ import annotations

import dis
import sys
from dataclasses import dataclass
from functools import cache
from types import CodeType
from typing import NamedTuple, cast


class Instruction(NamedTuple):
    """An instruction of bytecode."""

    name: str
    argument: int
    """With the bytes before it; 0 if there is none."""
    value: object
    """The name or the constant that the argument stands for, else None."""


NAME_BITS = {"LOAD_GLOBAL": 1, "LOAD_SUPER_ATTR": 2} | ({"LOAD_ATTR": 1} if sys.version_info >= (3, 12) else {})
"""Instructions whose argument has other bits below the number of a name."""
CACHE, EXTENDED, DEREF = dis.opmap["CACHE"], dis.EXTENDED_ARG, dis.opmap["LOAD_DEREF"]


@cache
def instructions(code: CodeType) -> tuple[Instruction, ...]:
    """Return the instructions of bytecode, without inline caches and with whole arguments.

    The same as those of `dis`, which also computes texts, lines and labels of each, and takes longer.
    """
    found, before, words = [], 0, code.co_code
    for at in range(0, len(words), 2):
        number, argument = words[at], before << 8 | words[at + 1]
        before = argument if number == EXTENDED else 0
        if number in (CACHE, EXTENDED):
            continue
        name, value = dis.opname[number], None
        if number in dis.hasconst:
            value = code.co_consts[argument]
        elif number in dis.hasname:
            value = code.co_names[argument >> NAME_BITS.get(name, 0)]
        elif number == DEREF:
            names = dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars))
            value = list(names)[argument]
        found.append(Instruction(name, argument, value))
    return tuple(found)


@dataclass(frozen=True)
class Chain:
    """A name that code reads, with the attributes that follow it, as in `lab.constants.G`."""

    name: str
    attributes: tuple[str, ...]
    closure: bool
    """Whether the name is a closure variable; else it is a global."""


@cache
def chains(code: CodeType) -> tuple[Chain, ...]:
    """Return the distinct globals and closure variables that code, and functions nested in it, read, in order."""
    found: dict[Chain, None] = {}
    name, closure = "", False
    attributes: tuple[str, ...] = ()
    for step in [*instructions(code), None]:
        if step is not None and name and step.name in ("LOAD_ATTR", "LOAD_METHOD"):
            attributes = (*attributes, cast(str, step.value))
            continue
        if name:
            found[Chain(name, attributes, closure)] = None
        name, attributes = "", ()
        if step is not None and step.name in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
            name, closure = cast(str, step.value), step.name == "LOAD_DEREF"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= dict.fromkeys(chains(constant))
    return tuple(found)
