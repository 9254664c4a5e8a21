"""Bytecode is read as Python's own disassembler reads it."""

import argparse
import ast
import dis
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType

import pytest

from warprun.kernels import lane_cut
from warprun.kernels.bytecode import instructions


def codes(within: CodeType) -> Iterator[CodeType]:
    yield within
    for constant in within.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


@pytest.mark.parametrize("module", [argparse, ast, lane_cut])
def test_instructions_are_those_of_the_disassembler(module: ModuleType) -> None:
    path = str(module.__file__)
    for code in codes(compile(Path(path).read_text(), path, "exec")):
        own = [(step.name, step.argument, step.value) for step in instructions(code)]
        of_python = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "EXTENDED_ARG")]
        assert [each[:2] for each in own] == [(step.opname, step.arg or 0) for step in of_python]
        for (name, _, value), step in zip(own, of_python, strict=True):
            # Of the names of arguments in a call `dis` knows the number only.
            if name == "LOAD_DEREF" or (dis.opmap[name] in (*dis.hasname, *dis.hasconst) and name != "KW_NAMES"):
                assert repr(value) == repr(step.argval)
