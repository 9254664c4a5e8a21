"""Checks of the functions of an environment: in their bytecode, and then by compiling them one at a time.

Numba compiles more of Python than kernels can run, and reports other mistakes far from their cause. So `check_language`
and `check_variables` come first. `check_functions` then compiles each function alone and looks at the types that it
returns and stores, and `explain` turns an error of Numba into one line. Messages name the user's file, line and function.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import linecache
import os
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from types import BuiltinMethodType, CodeType, MethodType, ModuleType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numba import typeof, types
from numba.core import ir
from numba.core.errors import NumbaError, NumbaWarning

from warprun.environment import Environment, Group, KernelFunction, arguments
from warprun.errors import UserError, one_line, shown
from warprun.kernels import compile as kernels
from warprun.kernels import integers
from warprun.kernels.causes import cause_of, readable
from warprun.kernels.fingerprint import is_library
from warprun.kernels.flow import unassigned
from warprun.kernels.integers import integer_fields
from warprun.user_code import source_line

if TYPE_CHECKING:
    from numba.core.annotations.type_annotations import TypeAnnotation


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
    for function in _of_user(functions):
        for code in _nested(function.__code__):
            _check(function, code)


def check_variables(functions: tuple[KernelFunction, ...]) -> None:
    """Raise UserError for a variable of `functions`, or of what they call, that is read where it may have no value."""
    for function in _of_user(functions):
        for name, line in unassigned(function).items():
            raise UserError(
                f"{source_line(function, line)}: the variable {name} may have no value here: a branch leaves it out,"
                " or a loop that sets it may make no turn; set it before"
            )


def _of_user(functions: tuple[KernelFunction, ...]) -> list[KernelFunction]:
    """Return those of `functions`, and of what they call, that the user has written."""
    found = kernels.reached(functions)
    return [each for each in found if integers.in_environment(each) and not is_library(sys.modules.get(each.__module__))]


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _check(function: KernelFunction, code: CodeType) -> None:
    def refuse(problem: str, at: dis.Instruction | None = None) -> UserError:
        line = at.positions.lineno if at and at.positions else None
        return UserError(f"{source_line(function, line or code.co_firstlineno)}: {problem}")

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
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(module, ModuleType) and name not in dir(module):
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
    owner = value.__self__ if isinstance(value, BuiltinMethodType | MethodType) else value
    return owner is random or owner is np.random or isinstance(owner, random.Random | np.random.RandomState)


Check: TypeAlias = Callable[[Group, KernelFunction, types.Type], None]
"""Raises UserError if the type that a function returns is wrong."""


def check_functions(environment: Environment, sample: Callable[[Group, str], object]) -> None:
    """Raise UserError if a function does not compile or returns a wrong type; `sample` gives a value of an argument."""
    found = list(_functions(environment))
    for group, function, check in found:
        values = [sample(group, name) for name in arguments(function)]
        check(group, function, _return_type(function, values))
    for function, types_in_code in kernels.checked_parts([function for _, function, _ in found]):
        _check_stores(function, types_in_code)


def _functions(environment: Environment) -> Iterator[tuple[Group, KernelFunction, Check]]:
    for group in environment.groups:
        yield group, group.reset, _check_state
    for index in environment.indices:
        for group in environment.indexed(index):
            yield group, index.cell, _check_cell
    for phase in environment.phases:
        yield environment.group(phase.group), phase.function, _check_step
    for group in environment.groups:
        yield group, group.observe, _check_observe
        if group.mask:
            yield group, group.mask, _check_mask


def _return_type(function: KernelFunction, values: list[object]) -> types.Type:
    compiled = kernels.checked_function(function)
    signature = tuple(typeof(value) for value in values)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NumbaWarning)  # on speed; these copies are only for checks
            compiled.compile(signature)
    except NumbaError as error:
        raise explain(error, [function]) from error
    except UserError:
        raise
    except Exception as error:  # Numba and LLVM raise any kind for code that they do not know
        raise UserError(f"{source_line(function)} does not compile: {_cause(error)}") from error
    return compiled.overloads[signature].signature.return_type


def _cause(error: Exception) -> str:
    if isinstance(error, AssertionError):  # without a message, for fields left out between others
        return "give every NamedTuple all its fields, defaults are not filled in"
    if "invalid type in Constant" in str(error):  # Numba fails to fuse operations on arrays with constants of a NumPy type
        return "kernels cannot compute with whole arrays; loop over the elements"
    # A TypeError is for a NamedTuple with too few or too many values.
    return readable(" ".join(str(error).split())) if isinstance(error, TypeError) else one_line(error)


def _check_step(group: Group, function: KernelFunction, found: types.Type) -> None:
    if not isinstance(found, types.BaseTuple) or isinstance(found, types.BaseNamedTuple) or len(found) != 3:
        raise UserError(f"{source_line(function)} must return state, reward, terminated; it returns {_described(found)}")
    _check_state(group, function, found[0])
    if not _is_real(found[1]):
        raise UserError(f"{source_line(function)} must return a number as reward; it returns {_described(found[1])}")
    if not isinstance(found[2], types.Boolean | types.Integer):
        raise UserError(f"{source_line(function)} must return True or False as terminated; it returns {_described(found[2])}")


def _check_state(group: Group, function: KernelFunction, found: types.Type) -> None:
    if not isinstance(found, types.BaseNamedTuple) or found.instance_class is not group.state:
        raise UserError(f"{source_line(function)} must return a {group.state.__name__} as state; it returns {_described(found)}")
    left_out = [field.name for field in group.fields][len(found) :]
    if left_out:  # Numba compiles a State with fewer fields without an error
        raise UserError(f"{source_line(function)} must give {group.state.__name__} all its fields; it leaves out {', '.join(left_out)}")
    for field, kind in zip(group.fields, found, strict=True):
        name = f"{group.state.__name__}.{field.name}"
        if field.length and not (isinstance(kind, types.Array) and kind.ndim == 1 and kind.mutable):
            raise UserError(f"{source_line(function)} must pass on the array s.{field.name} as {name}; it gives {_described(kind)}")
        if not field.length and not isinstance(kind, types.Boolean) and not _is_real(kind):
            raise UserError(f"{source_line(function)} must give {name} a number; it gives {_described(kind)}")


def _check_stores(function: KernelFunction, code: TypeAnnotation) -> None:
    """Raise UserError if a real number or a number beyond 32 bits is written to an integer array, or made a field of a state."""
    kinds = code.typemap
    for statement in (each for block in code.blocks.values() for each in block.body):
        where = source_line(function, statement.loc.line)
        for kind in _stored_integers(statement, kinds):
            if isinstance(kind, types.IntegerLiteral) and not -(2**31) <= kind.literal_value < 2**31:
                raise UserError(f"{where}: {kind.literal_value} does not fit into the 32 bits of an integer")
            if isinstance(kind, types.Float):  # a state with one does not compile
                raise UserError(
                    f"{where}: an array of integers gets a real number; write int32(...), which cuts off the digits, or declare it float32"
                )


def _stored_integers(statement: ir.Stmt, kinds: Mapping[str, types.Type]) -> list[types.Type]:
    """Return the types of what a statement stores as an integer, in an array or in a new state."""
    if isinstance(statement, ir.SetItem | ir.StaticSetItem):
        array = kinds[statement.target.name]
        return [kinds[statement.value.name]] if isinstance(array, types.Array) and isinstance(array.dtype, types.Integer) else []
    if isinstance(statement, ir.Assign) and isinstance(statement.value, ir.Expr) and statement.value.op == "call":
        given, named = statement.value.args, dict(statement.value.kws)
        called = kinds[statement.value.func.name]
        if isinstance(called, types.NumberClass):  # int32(...) cuts off digits, but a constant it would make another one
            is_literal = called.dtype == types.int32 and given and isinstance(kinds[given[0].name], types.IntegerLiteral)
            return [kinds[given[0].name]] if is_literal else []
        made = getattr(called, "dispatcher", None)
        found = [given[n] if n < len(given) else named.get(name) for n, name in (integer_fields(made.py_func) if made else ())]
        return [kinds[value.name] for value in found if value is not None]
    return []


def _check_observe(group: Group, function: KernelFunction, found: types.Type) -> None:
    size = group.observation.size
    if "out" in arguments(function):
        if not isinstance(found, types.NoneType):
            raise UserError(f"{source_line(function)} fills `out`, so it must return nothing; it returns {_described(found)}")
        return
    numbers = isinstance(found, types.BaseTuple) and all(_is_real(n) or isinstance(n, types.Boolean) for n in found)
    if not numbers or isinstance(found, types.BaseNamedTuple) or len(found) != size:
        raise UserError(f"{source_line(function)} must return a tuple of numbers, {size} by its space; it returns {_described(found)}")


def _check_cell(group: Group, function: KernelFunction, found: types.Type) -> None:
    if not isinstance(found, types.Integer):
        raise UserError(f"{source_line(function)} must return the number of a cell, an integer; it returns {_described(found)}")


def _check_mask(group: Group, function: KernelFunction, found: types.Type) -> None:
    if not isinstance(found, types.Boolean | types.Integer):
        raise UserError(f"{source_line(function)} must return True or False; it returns {_described(found)}")


def _is_real(kind: types.Type) -> bool:
    return isinstance(kind, types.Number) and not isinstance(kind, types.Complex)


def _described(found: types.Type) -> str:
    if isinstance(found, types.NoneType):
        return "nothing"
    if isinstance(found, types.Optional):
        return f"{_described(found.type)}, or nothing in some branch"
    if isinstance(found, types.BaseNamedTuple):
        return f"a {found.instance_class.__name__}"
    if isinstance(found, types.BaseTuple):
        return f"{len(found)} values ({', '.join(_described(each) for each in found)})"
    return str(found)


def explain(error: Exception, functions: Sequence[KernelFunction]) -> UserError:
    """Turn a Numba error of many lines into one: file, line, function and cause."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    files = {f.__code__.co_filename for f in kernels.reached(functions) if integers.in_environment(f)}
    places = re.findall(r'File "([^"]+)", line (\d+)', text)
    # Numba lists the innermost function first.
    own = ((file, int(line)) for shown, line in places for file in files if _same_file(shown, file))
    file, line = next(own, (functions[0].__code__.co_filename, functions[0].__code__.co_firstlineno))
    name = _function_at(functions, file, line)
    where = f"{file}:{line} in {name}" if name else f"{file}:{line}"
    return UserError(f"{where} does not compile: {cause_of(text, functions)}{_action_hint(text, linecache.getline(file, line))}")


def _action_hint(text: str, code: str) -> str:
    """Return what an action is, for an error about a tuple in a line that takes the whole action; empty for another one."""
    whole = "Tuple(" in text and re.search(r"(?<![.\w])action\b(?!\s*[\[=])", code.partition("#")[0])
    return "; action is a tuple of the numbers of a Box or MultiDiscrete, also of a single one: write action[0]" if whole else ""


def _same_file(shown: str, file: str) -> bool:
    # Numba may print paths relative to the working directory.
    return os.path.abspath(shown) == os.path.abspath(file) or file.endswith("/" + shown.lstrip("./"))


def _function_at(functions: Sequence[KernelFunction], file: str, line: int) -> str | None:
    best = None
    for function in kernels.reached(functions):
        code = function.__code__
        last = max((n for _, _, n in code.co_lines() if n is not None), default=code.co_firstlineno)
        if _same_file(file, code.co_filename) and code.co_firstlineno <= line <= last:
            best = function.__name__
    return best
