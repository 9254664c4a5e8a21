"""Checks of the functions as they are written: parameters that nothing reads, arrays of the module."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Iterator, Mapping

import numpy as np

from warprun.checking.findings import Problem, doubt
from warprun.checking.names import listed, short
from warprun.environment import Environment, KernelFunction
from warprun.kernels import compile as kernels
from warprun.kernels import integers


def source(environment: Environment, functions: list[types.FunctionType]) -> Iterator[Problem]:
    """Find parameters that no function reads, fields that look swapped, and arrays of modules in functions."""
    reached = [function for function in kernels.reached(functions) if integers.in_environment(function)]
    read = {name for function in reached for name in _names(function.__code__)}
    unused = [name for name in environment.params._fields if name not in read]  # type: ignore[attr-defined]
    if unused:
        yield doubt(f"no function reads the parameter {listed(unused)} of {environment.params.__name__}; use it or remove it")
    states = {group.state.__name__: group.state._fields for group in environment.groups}
    for function in reached:
        yield from _swapped(function, states)
        for name in function.__code__.co_names:
            if isinstance(function.__globals__.get(name), np.ndarray):
                where = f"{short(function.__code__.co_filename)}:{function.__code__.co_firstlineno} in {function.__name__}"
                yield doubt(f"{where} reads {name}, an array of the module: its values are fixed when kernels are compiled; use tables")


def _swapped(function: KernelFunction, states: Mapping[str, tuple[str, ...]]) -> Iterator[Problem]:
    """Find two fields of a state of which one gets the other by name, and the other what is computed from the one."""
    code = function.__code__
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        return
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in states):
            continue
        given = dict(zip(states[call.func.id], call.args, strict=False)) | {word.arg: word.value for word in call.keywords if word.arg}
        for field, value in given.items():
            other = _bare(value)
            if other == field or other not in given:
                continue
            mentioned = {_bare(node) for node in ast.walk(given[other]) if isinstance(node, ast.expr)}
            if field in mentioned and other not in mentioned:
                where = f"{short(code.co_filename)}:{code.co_firstlineno + call.lineno - 1} in {function.__name__}"
                texts = f"{field} {ast.unparse(value)}, and {other} {ast.unparse(given[other])}"
                yield doubt(f"{where} gives {call.func.id}.{texts}: are they swapped?")


def _bare(node: ast.expr) -> str:
    """Return the name of `NAME` or `s.NAME`; empty for any other expression."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "s":
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _names(code: types.CodeType) -> set[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names(constant)
    return found
