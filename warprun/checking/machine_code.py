"""Looks into the machine code of an environment: float64, what is slow on a GPU, and which loops are vectors. Needs a process of its own.

    python -m warprun.checking.machine_code FOUND.json KEY=VALUE ...

LLVM's remarks on loops go to standard error and cannot be turned off again, and numba-cuda has to be told a GPU to compile for.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import llvmlite.binding as llvm
import numpy as np
import torch
from numba import typeof, types

from warprun.checking.findings import short
from warprun.config.compose import compose
from warprun.config.schema import parameters
from warprun.environment import Environment
from warprun.kernels import compile as kernels
from warprun.kernels import integers, pieces
from warprun.kernels.fingerprint import is_jitted
from warprun.runs.build import Setup, set_up
from warprun.simulation import allocation as store
from warprun.simulation import trajectory
from warprun.simulation.arrays import ArrayPlan
from warprun.simulation.codegen.targets import target_for
from warprun.simulation.kernel_module import draw_scalars, make
from warprun.simulation.plain import OfRun

CAPABILITY = (8, 0)
"""Compute capability of the GPU that PTX is compiled for."""
UNWANTED = {"float64": r"\.f64\b", "local memory": r"\.local\b", "a call": r"\bcall\b"}
"""Cause of a slow kernel on a GPU -> pattern of it in PTX."""
SLOW_KERNELS = ("reset", "step")
REMARK = re.compile(r"^remark: (.*?):(\d+):\d+: (.*)$", re.MULTILINE)
REASONS = {
    "call instruction": "it calls something that is not inlined",
    "control flow": "a branch reads or writes memory, or loops; compute both sides and choose with where()",
    "array bounds": "it reads or writes arrays at computed indices",
    "unsafe dependent memory": "it reads or writes arrays at computed indices",
    "number of loop iterations": "a while loop, or a range() that depends on the state",
    "not beneficial": "vectors would not be faster, by LLVM's estimate",
}
"""Words of a remark of LLVM on a loop -> the likely cause."""
INNER_LOOP = "it contains a loop that cannot move outside of the environments"
KERNEL_FILES = "_kernels.py"
"""End of the names of kernel modules."""


def main(found: Path, overrides: Sequence[str]) -> None:
    """Compile the kernels of the environment of `overrides`, and write what they contain to `found`."""
    pieces.compile_all()
    for kind in ("pass-remarks", "pass-remarks-missed", "pass-remarks-analysis"):
        llvm.set_option("", f"-{kind}=loop-vectorize")
    setup = set_up(replace(compose(overrides), device="cpu"))
    assert isinstance(setup.environment, Environment)
    loops, doubles, lines = _for_cpu(setup, setup.environment)
    unwanted, problem = _for_cuda(setup, setup.environment)
    found.write_text(
        json.dumps({"loops": loops, "doubles in CPU code": doubles, "float64": lines, "unwanted": unwanted, "no cuda": problem})
    )


def _module(setup: Setup, environment: Environment, kind: str, options: Mapping[str, object]) -> tuple[ModuleType, list[types.Type]]:
    """Return the kernel module for a device kind, and the types of the arguments of its kernels."""
    env = setup.config.env
    plan = ArrayPlan(environment, target_for(environment, kind), 2, 2, tuple(env.randomize))
    of_run: OfRun = {"params": parameters(environment, env), "tables": setup.tables, "vary": env.randomize}
    built = make(plan, env.name, kind, options=options, **of_run)
    cpu = torch.device("cpu")
    scalars = {"n_envs": 2, **draw_scalars(0), **built.values}
    values = store.kernel_values(store.allocate(plan, cpu, {}), trajectory.allocate(environment.spec, 2, 2, cpu), scalars)
    host = ({n: v.numpy() if isinstance(v, torch.Tensor) else v for n, v in given.items()} for given in values.values())
    return built.module, [typeof(getattr(built.module, name)(**named)) for name, named in zip(values, host, strict=True)]


# CPU ----------------------------------------------------------------------------------------------------------------------------------


def _for_cpu(setup: Setup, environment: Environment) -> tuple[dict[str, str], bool, dict[str, list[int]]]:
    """Return the loops that are no vectors, whether float64 is left in the code, and the lines that compute float64 before optimisation."""
    lines_of_loops = {"debug": True, "_dbg_optnone": False, "_dbg_extend_lifetimes": False}
    options = {"BOUND": kernels.BOUND_KERNELS | lines_of_loops, "INLINED": kernels.TILES | lines_of_loops}
    module, given = _module(setup, environment, "cpu", options)
    with warnings.catch_warnings(), remarks() as said:
        warnings.simplefilter("ignore")
        codes = []
        for kernel in SLOW_KERNELS:
            tile = getattr(module, f"{kernel}_tile")
            signature = (typeof(0), typeof(0), typeof(np.uint32(0)), *given)
            tile.compile(signature)
            codes.append(tile.inspect_llvm(signature))
    doubles = any(re.search(r"= (?:\w+ )*f(?:add|sub|mul|div|pext|cmp)\b[^\n]*\bdouble\b|llvm\.\w+\.f64", code) for code in codes)
    return loops_without_vectors(module.__recipe__.source, said[0]), doubles, _float64(module)


@contextmanager
def remarks() -> Iterator[list[str]]:
    """Yield a list; after the context it holds the text that LLVM has written to standard error."""
    said: list[str] = []
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield said
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            said.append(file.read().decode(errors="replace"))


def loops_without_vectors(source: str, said: str) -> dict[str, str]:
    """Return "FILE:LINE NAME" of functions whose loop over environments LLVM did not turn into vectors, with the likely cause."""
    by_line: dict[int, list[str]] = {}
    for file, line, text in REMARK.findall(said):
        if not Path(file).suffix or file.endswith(KERNEL_FILES):  # not of loops within functions of the user
            by_line.setdefault(int(line), []).append(text)
    found = {}
    lines = source.splitlines()
    for first, text in enumerate(lines, 1):
        if text.strip() != "for lane in range(count):":
            continue
        depth = len(text) - len(text.lstrip())
        last = first
        while last < len(lines) and (not lines[last].strip() or len(lines[last]) - len(lines[last].lstrip()) > depth):
            last += 1
        body = "\n".join(lines[first:last])
        functions = [name for name in re.findall(r"# (\S+:\d+ \S+)", body) if "<" not in name]
        told = [remark for n in range(first, last + 1) for remark in by_line.get(n, ())]
        # Loops that run at the end of episodes only, or begin with a branch, are not meant to be vectors.
        if not functions or "continue" in body or any(remark.startswith("vectorized loop") for remark in told):
            continue
        reasons = [cause for remark in told for words, cause in REASONS.items() if words in remark]
        for name in functions:
            found[name] = reasons[0] if reasons else INNER_LOOP
    return found


def _float64(module: ModuleType) -> dict[str, list[int]]:
    """Return "FILE NAME" of functions of the environment -> lines that compute a float64, by Numba's types."""
    found: dict[str, list[int]] = {}
    waiting = [value for value in vars(module).values() if is_jitted(value)]
    seen: list[object] = []
    while waiting:
        dispatcher = waiting.pop()
        if any(dispatcher is each for each in seen):
            continue
        seen.append(dispatcher)
        function = dispatcher.py_func
        waiting += [value for value in function.__globals__.values() if is_jitted(value)]
        if not integers.in_environment(function) or function.__module__.startswith("warprun_kernels_"):
            continue
        code = function.__code__
        for overload in dispatcher.overloads.values():
            annotation = overload.type_annotation
            lines = {
                statement.loc.line
                for block in annotation.blocks.values()
                for statement in block.body
                if annotation.typemap.get(getattr(getattr(statement, "target", None), "name", "")) == types.float64
            }
            if lines:
                found[f"{short(code.co_filename)} {function.__name__}"] = sorted(lines)
    return found


# CUDA ---------------------------------------------------------------------------------------------------------------------------------


def _for_cuda(setup: Setup, environment: Environment) -> tuple[dict[str, list[str]], str]:
    """Return the names in UNWANTED that the PTX of each kernel has, and the reason if nothing could be compiled."""
    problem = nvvm_problem()
    if problem:
        return {}, problem
    from numba import cuda
    from numba.cuda import dispatcher

    # numba-cuda asks the GPU for its capability even if the caller gives one.
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=CAPABILITY)
    module, given = _module(setup, environment, "cuda", {"CACHE": False})
    found = {}
    for kernel in SLOW_KERNELS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                ptx, _ = cuda.compile_ptx(getattr(module, kernel).py_func, (typeof(1), typeof(np.uint32(0)), *given), cc=CAPABILITY)
            except Exception as error:  # Numba and libnvvm raise any kind
                return {}, " ".join(str(error).split())[:300]
        text = instructions(ptx)
        found[kernel] = [name for name, pattern in UNWANTED.items() if re.search(pattern, text)]
    return found, ""


def nvvm_problem() -> str:
    """Return why nothing compiles for CUDA here; empty if it does."""
    if find_spec("numba_cuda") is None:  # Numba's own CUDA target takes other arguments
        return "numba-cuda is not installed"
    try:
        from numba.cuda.cudadrv.nvvm import NVVM

        NVVM()
    except Exception as error:  # the type depends on what is missing: numba-cuda, libnvvm or its version
        return " ".join(str(error).split()) or type(error).__name__
    return ""


def instructions(ptx: str) -> str:
    """Return PTX without comments and names, which may hold any word."""
    return re.sub(r"//.*|[%$\w]*_[$\w]+|%\w+", "", ptx)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
