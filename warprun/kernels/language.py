"""What functions of an environment may contain. Checked in their bytecode, before anything is compiled.

Numba compiles more of Python than kernels can run, and reports other mistakes far from their cause. So this check comes first.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import random
import sys
import types
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise

import numpy as np

from warprun.environment import KernelFunction
from warprun.errors import UserError, shown
from warprun.kernels import integers
from warprun.kernels.compile import reached
from warprun.kernels.fingerprint import is_library
from warprun.kernels.flow import unassigned

NO_LISTS = "kernels cannot make a list; use a tuple, an array field of the state, or a loop"
NO_DICTS = "kernels cannot make a dict; use a NamedTuple or a tuple"
NO_SETS = "kernels cannot make a set; use a tuple"
NO_TEXT = "kernels cannot make text; use numbers"
NO_PRINT = "kernels cannot call {name}(); to debug, run as plain Python with NUMBA_DISABLE_JIT=1 and engine.fused=false"

STATEMENTS = {
    "LOAD_ASSERTION_ERROR": "kernels cannot assert; end the episode with terminated, or compare in a test",
    "RAISE_VARARGS": "kernels cannot raise; end the episode with terminated, or return a reward that says so",
    "BEFORE_WITH": "kernels know no with statement",
    "IMPORT_NAME": "import {name} is inside the function; import at the top of the file",
    "LOAD_BUILD_CLASS": "kernels cannot define a class; define it at the top of the file",
    "BUILD_SET": NO_SETS,
    "BUILD_MAP": NO_DICTS,
    "BUILD_CONST_KEY_MAP": NO_DICTS,
    "FORMAT_VALUE": NO_TEXT,
    "BUILD_STRING": NO_TEXT,
    "DELETE_SUBSCR": "kernels cannot del an element of an array",
    "STORE_GLOBAL": "the global variable {name} cannot be assigned; what changes belongs into the state",
    "DELETE_GLOBAL": "the global variable {name} cannot be deleted; what changes belongs into the state",
}
"""Instructions that kernels do not have, with the message for each."""

COMPREHENSIONS = {
    "<listcomp>": NO_LISTS,
    "<dictcomp>": NO_DICTS,
    "<setcomp>": NO_SETS,
    "<genexpr>": "kernels cannot run a generator; write a loop",
}
"""Names of code inside a function that kernels cannot run."""

BUILTINS = {
    **dict.fromkeys(("print", "breakpoint"), NO_PRINT),
    **dict.fromkeys(("list", "sorted", "map", "filter"), NO_LISTS),
    **dict.fromkeys(("dict", "vars", "globals", "locals"), NO_DICTS),
    **dict.fromkeys(("set", "frozenset"), NO_SETS),
    **dict.fromkeys(("str", "repr", "format", "bytes", "bytearray"), NO_TEXT),
    **dict.fromkeys(
        ("input", "open", "eval", "exec", "compile", "setattr", "delattr", "super", "exit", "quit"), "kernels cannot call {name}()"
    ),
}
"""Functions of Python that kernels cannot call, with the message for each."""

GLOBALS: dict[type, str] = {list: "write a tuple", dict: "use a NamedTuple", set: "write a tuple", str: "use a number"}
"""Types of global variables that kernels cannot read, with what to do."""

DIVISIONS = ("/", "//", "%", "/=", "//=", "%=")


@cache
def check_language(functions: tuple[KernelFunction, ...]) -> None:
    """Raise UserError, with file, line and function, for the first thing in `functions` or in what they call that kernels do not have.

    The same functions are checked once.
    """
    for function in reached(functions):
        if integers.in_environment(function) and not is_library(sys.modules.get(function.__module__)):
            for code in _nested(function.__code__):
                _check(function, code)


def check_variables(functions: tuple[KernelFunction, ...]) -> None:
    """Raise UserError for a variable of `functions`, or of what they call, that is read where it may have no value."""
    for function in reached(functions):
        if integers.in_environment(function) and not is_library(sys.modules.get(function.__module__)):
            for name, line in unassigned(function):
                raise UserError(
                    f"{function.__code__.co_filename}:{line} in {function.__name__}: the variable {name} may have no value here: a branch"
                    " leaves it out, or a loop that sets it may make no turn; set it before"
                )


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def _check(function: KernelFunction, code: types.CodeType) -> None:
    line = code.co_firstlineno

    def refuse(problem: str, at: dis.Instruction | None = None) -> UserError:
        number = at.positions.lineno if at and at.positions and at.positions.lineno else line
        return UserError(f"{code.co_filename}:{number} in {function.__name__}: {problem}")

    if code.co_name in COMPREHENSIONS:
        raise refuse(COMPREHENSIONS[code.co_name])
    if code.co_kwonlyargcount or code.co_flags & inspect.CO_VARKEYWORDS:
        raise refuse("kernels know no keyword-only arguments and no **; write arguments without the *, they can still be given by name")
    steps = [
        step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "EXTENDED_ARG", "PRECALL", "KW_NAMES", "PUSH_NULL")
    ]
    makes_tuple = any(step.opname == "LIST_TO_TUPLE" or step.argrepr == "INTRINSIC_LIST_TO_TUPLE" for step in steps)
    for before, step in pairwise([steps[0], *steps]):
        name = step.argval
        if step.opname in STATEMENTS:
            raise refuse(STATEMENTS[step.opname].format(name=name), step)
        if step.opname == "BUILD_LIST" and not makes_tuple:
            raise refuse(NO_LISTS, step)
        if step.opname in ("STORE_ATTR", "DELETE_ATTR"):
            owner = f"{before.argval}." if before.opname == "LOAD_FAST" else "."
            raise refuse(f"{owner}{name} cannot be assigned; return a new State with the changed numbers", step)
        if step.opname == "STORE_DEREF" and name in code.co_freevars:
            raise refuse(f"the variable {name} of the enclosing function cannot be assigned", step)
        if step.opname == "LOAD_CONST" and type(name) is int and not -(2**63) <= name < 2**64:
            raise refuse(f"the number {name} does not fit into 64 bits", step)
        if step.opname == "BINARY_OP" and step.argrepr in DIVISIONS and before.opname == "LOAD_CONST" and before.argval == 0:
            raise refuse("division by zero", step)
        if step.opname == "LOAD_GLOBAL":
            _check_global(function, str(name), step, refuse)
        module = function.__globals__.get(before.argval) if before.opname == "LOAD_GLOBAL" else None
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(module, types.ModuleType) and name not in dir(module):
            raise refuse(f"module {before.argval} has no {name!r}", step)
        if _is_numpy_random(function, before, step) or _is_random(function, step):
            raise refuse("kernels have random numbers of their own; use those of warprun.random", step)
    for step in steps:  # last, because other statements contain text
        if step.opname == "LOAD_CONST" and isinstance(step.argval, str):
            raise refuse(f"kernels cannot read text ({shown(step.argval)}); use numbers", step)
    tried = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    if tried:
        raise refuse("kernels know no try statement", next((step for step in steps if step.offset >= tried[0].start), None))


def _check_global(function: KernelFunction, name: str, step: dis.Instruction, refuse: Callable[[str, dis.Instruction], UserError]) -> None:
    if name not in function.__globals__:
        if not hasattr(builtins, name):
            raise refuse(f"name {name!r} is not defined", step)
        if name in BUILTINS:
            raise refuse(BUILTINS[name].format(name=name), step)
        return
    value = function.__globals__[name]
    for kind, instead in GLOBALS.items():
        if isinstance(value, kind):
            raise refuse(f"{name} is a {kind.__name__}, which kernels cannot read; {instead}", step)


def _is_numpy_random(function: KernelFunction, before: dis.Instruction, step: dis.Instruction) -> bool:
    attribute = step.opname in ("LOAD_ATTR", "LOAD_METHOD") and step.argval == "random"
    return attribute and before.opname == "LOAD_GLOBAL" and function.__globals__.get(before.argval) is np


def _is_random(function: KernelFunction, step: dis.Instruction) -> bool:
    value = function.__globals__.get(step.argval) if step.opname == "LOAD_GLOBAL" else None
    owner = value.__self__ if isinstance(value, types.BuiltinMethodType | types.MethodType) else value
    return owner is random or owner is np.random or isinstance(owner, random.Random | np.random.RandomState)
