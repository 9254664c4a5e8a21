"""From plain Python functions to cached Numba kernels."""

from __future__ import annotations

import dis
import hashlib
import importlib.util
import os
import re
import sys
import types
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import njit
from numba.core.cpu import CPUTargetOptions
from numba.core.options import TargetOptions

from warprun.engine import integers, simd
from warprun.errors import UserError

# No reassociation, and NaN and infinity keep their meaning; contraction to fused multiply-add and reciprocals are allowed.
FLAGS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract", "arcp", "nsz", "afn"}}

COMPILES = not numba.config.DISABLE_JIT  # type: ignore[attr-defined]
"""False under NUMBA_DISABLE_JIT=1, where all that follows runs as plain Python."""

# LLVM vectorises no loop with a call in it, and by itself does not inline what is as long as a sine.
INLINED: dict[str, Any] = FLAGS | {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False}
# Numba's own inlining is slow, but what it has inlined is not optimised as a function of its own, and again where it is called.
MERGED: dict[str, Any] = FLAGS | {"inline": "always"}

# Numba has this flag of a function, and no name for it in a decorator. Who does not use the name is not touched.
CPUTargetOptions.noalias = TargetOptions.Mapping("noalias")
# The arrays of an engine lie apart, which LLVM has to know to vectorise over lanes, and live longer than a kernel runs: a view of one
# need not be counted, which costs more than what it is for.
KERNELS: dict[str, Any] = FLAGS | {"noalias": True, "_nrt": False}

# Called by Python, one at a time, to look for what is wrong in them: an index out of bounds raises IndexError.
CHECKED: dict[str, Any] = FLAGS | {"boundscheck": True, "no_cfunc_wrapper": True, "_nrt": False}

_inlined = njit(**INLINED)
_checked = njit(**CHECKED, no_cpython_wrapper=True)
_rebuilt: dict[tuple[types.FunctionType, Callable[..., Any]], Any] = {}
_being_rebuilt: set[tuple[types.FunctionType, Callable[..., Any]]] = set()


def device_function(function: Any) -> Any:
    """Compile a plain Python function, and those it calls, for kernels; floats written in it are float32.

    Numba reads the literal 0.5 as float64, which would make all arithmetic around it float64 (slow, and on a GPU very slow).
    So every float constant and every float global that the code names is replaced by its float32.
    """
    return _rebuild(function, _inlined)


@cache
def checked_function(function: types.FunctionType) -> Any:
    """Compile as `device_function` does, with every index checked, to be called from Python."""
    return njit(**CHECKED)(_rebuild(function, _checked).py_func)


def merged_function(function: Any) -> Any:
    """Compile as `device_function` does, but as a part of the one place that calls it: cheaper for a function with much below it."""
    built = device_function(function)
    return njit(**MERGED)(built.py_func) if COMPILES and isinstance(function, types.FunctionType) else built


def plain_function(function: Any) -> Any:
    """Return the same function uncompiled, for the CUDA simulator and for debuggers."""
    return _rebuild(function, _unchanged)


def _unchanged(function: types.FunctionType) -> types.FunctionType:
    return function


def _rebuild(function: Any, finish: Callable[..., Any]) -> Any:
    if not isinstance(function, types.FunctionType):
        return function
    key = (function, finish)
    if key not in _rebuilt:
        if key in _being_rebuilt:
            code = function.__code__
            raise UserError(f"{code.co_filename}:{code.co_firstlineno} in {function.__name__}: functions of kernels cannot call themselves")
        _being_rebuilt.add(key)
        names = dict(function.__globals__)
        for name, value in _named_globals(function):
            names[name] = _rebuild(_single_precision(value), finish)
        widens = (finish is _unchanged or not COMPILES) and integers.in_environment(function)
        if widens:
            names |= {name: integers.widened_global(names[name]) for name in _global_names(function.__code__) & names.keys()}
        code, defaults = _single_precision(function.__code__), _single_precision(function.__defaults__)
        made = types.FunctionType(code, names, function.__name__, defaults, function.__closure__)
        _rebuilt[key] = finish(integers.widening(made) if widens else made)
        _being_rebuilt.discard(key)
    return _rebuilt[key]


def fingerprint(functions: list[types.FunctionType]) -> str:
    """Return a hash of everything that compiled code depends on in these functions and those they call."""
    options = [(n, sorted(v) if isinstance(v, set) else v) for kind in (INLINED, MERGED, KERNELS) for n, v in kind.items()]
    # The products in SIMD are written at compile time, so it is their source that counts.
    products = Path(simd.__file__).read_text()
    digest = hashlib.sha256(f"{numba.__version__} {sys.version_info[:2]} {options} {products}".encode())
    for function in reached(functions):
        code = function.__code__
        digest.update(repr((function.__name__, _content(code), function.__defaults__, _constants(function))).encode())
    return digest.hexdigest()


def _constants(function: types.FunctionType) -> list[tuple[str, Any]]:
    """Return what a function reads from its module, from other modules and from enclosing functions, where it is data.

    Numba compiles such values in, whatever their type, so a cached kernel is right for these only.
    """
    code = function.__code__
    found: list[tuple[str, Any]] = []
    for name in sorted(_global_names(code)):
        value = function.__globals__.get(name)
        found.append((name, value))
        if isinstance(value, types.ModuleType):
            found += [(f"{name}.{attribute}", getattr(value, attribute, None)) for attribute in sorted(set(code.co_names))]
    found += [(name, cell.cell_contents) for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)]
    return [(n, _data(v)) for n, v in found if _data(v) is not None]


def _data(value: Any) -> Any:
    """Return what kernels would compile in of `value`: numbers, the order of a NamedTuple's fields, an Enum's members; None if nothing."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, type):
        members = [(member.name, member.value) for member in value] if issubclass(value, Enum) else None
        return getattr(value, "_fields", members)
    return value if isinstance(value, bool | int | float | str | tuple | np.generic) else None


def _content(code: types.CodeType) -> tuple[Any, ...]:
    constants = tuple(_content(c) if isinstance(c, types.CodeType) else c for c in code.co_consts)
    return code.co_code, constants, code.co_names


def reached(functions: list[types.FunctionType]) -> list[types.FunctionType]:
    """Return these functions and all plain ones that they call."""
    found: list[types.FunctionType] = []
    waiting = list(functions)
    while waiting:
        function = waiting.pop()
        if function not in found:
            found.append(function)
            waiting += [value for _, value in _named_globals(function) if isinstance(value, types.FunctionType)]
    return found


def _single_precision(constant: Any) -> Any:
    """Replace every float64 in a constant, a tuple of constants or a code object by its float32."""
    if type(constant) is float:
        return np.float32(constant)
    if type(constant) is tuple:
        return tuple(_single_precision(c) for c in constant)
    if isinstance(constant, types.CodeType):
        return constant.replace(co_consts=_single_precision(constant.co_consts))
    return constant


def _named_globals(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the functions, floats and tuples that a function reads from its module, by name."""
    for name in sorted(_global_names(function.__code__)):
        value = function.__globals__.get(name)
        if type(value) in (float, tuple) or isinstance(value, types.FunctionType):
            yield name, value


def _global_names(code: types.CodeType) -> set[str]:
    # Not co_names, where the names of attributes are, too.
    names = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names


def cache_root() -> Path:
    """Return the folder of compiled kernels: WARPRUN_CACHE_DIR, else the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "warprun"
    return Path(os.environ.get("WARPRUN_CACHE_DIR", default)) / "kernels"


def load_module(name: str, source: str, functions: dict[str, Any], build: Callable[[Any], Any] = device_function) -> types.ModuleType:
    """Write `source` to the kernel cache and import it, with `functions`, put through `build`, as its globals.

    The folder's name holds a hash of the source and the functions, so a module found there is never out of date.
    """
    plain = [f for f in functions.values() if isinstance(f, types.FunctionType)]
    classes = [(n, _data(c)) for n, c in functions.items() if isinstance(c, type)]
    key = hashlib.sha256(f"{source}{classes}{fingerprint(plain)}".encode()).hexdigest()[:16]
    folder = cache_root() / f"{name}-{key}"
    path = folder / f"{name}_kernels.py"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            temporary = path.with_suffix(f".{os.getpid()}")
            temporary.write_text(source)
            temporary.replace(path)
    except OSError as error:
        raise UserError(
            f"cannot write compiled kernels to {folder}: {error.strerror}; set WARPRUN_CACHE_DIR to a writable folder"
        ) from None
    unique = f"warprun_kernels_{name}_{key}"
    if build is plain_function:
        unique += "_plain"
    if unique in sys.modules:
        return sys.modules[unique]
    spec = importlib.util.spec_from_file_location(unique, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    for global_name, function in functions.items():
        setattr(module, global_name, build(function))
    spec.loader.exec_module(module)
    return module


def is_cached(module: types.ModuleType) -> bool:
    """Tell whether compiled code of a kernel module is on disk."""
    assert module.__file__
    return any(Path(module.__file__).parent.glob("**/*.nbc"))


def explain(error: Exception, functions: list[types.FunctionType]) -> UserError:
    """Turn Numba's pages into one line: file, line, function and what is wrong there."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    files = {f.__code__.co_filename for f in reached(functions)}
    places = re.findall(r'File "([^"]+)", line (\d+)', text)
    # Numba tells the innermost function first.
    own = [(file, int(line)) for file, line in places if _same_file(file, files)]
    if own:
        file, line = own[0]
        file = next(known for known in files if _same_file(file, {known}))
    else:
        file, line = functions[0].__code__.co_filename, functions[0].__code__.co_firstlineno
    name = _function_at(functions, file, line)
    where = f"{file}:{line} in {name}" if name else f"{file}:{line}"
    return UserError(f"{where} does not compile: {_cause(text)}")


def _cause(text: str) -> str:
    lines = [line.strip(" -!") for line in text.splitlines()]
    # The call that Numba shows in such a form has types where the person wrote values.
    calls = [line.removeprefix(">>> ") for line in lines if line.startswith(">>> ")]
    causes = [line.strip(">") for line in lines if line and not _NOISE.search(line)]
    cause = next((c for c in causes if _TELLING.search(c)), causes[0] if causes else "unknown error")
    if "Cannot modify readonly array" in text:
        return "tables and the arrays of a module are read-only"
    if "NRT required" in text or "array_allocate" in text or any(call.startswith(("empty(", "zeros(", "array(")) for call in calls):
        return "kernels cannot make arrays; write the numbers out, or loop over them"
    if "No implementation of function" in cause and calls:
        cause = f"kernels know no {calls[-1]}"
    return _READABLE.sub(r"\1", cause)


_NOISE = re.compile(r'^Failed in|^During:|^File "|There are \d+ candidate|Overload of function|^<source|^[|*]')
_TELLING = re.compile(
    r"No implementation of function|Unknown attribute|undefined|NameError|Cannot unify|Cannot bind|not supported|Unsupported|Untyped"
    r"|wrong number|takes|missing"
)
_READABLE = re.compile(r"(?:Module\()?<(\w+ '[\w.]+')[^>]*>\)?")
"""Modules and classes as Python shows them, without their addresses and folders."""


def _same_file(shown: str, files: set[str]) -> bool:
    # Numba shortens paths to be relative to the working folder.
    return any(
        file == shown or os.path.abspath(shown) == os.path.abspath(file) or file.endswith("/" + shown.lstrip("./")) for file in files
    )


def _function_at(functions: list[types.FunctionType], file: str, line: int) -> str | None:
    best = None
    for function in reached(functions):
        code = function.__code__
        last = max((n for _, _, n in code.co_lines() if n is not None), default=code.co_firstlineno)
        if _same_file(file, {code.co_filename}) and code.co_firstlineno <= line <= last:
            best = function.__name__
    return best
