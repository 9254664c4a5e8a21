"""From plain Python functions to cached Numba kernels."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import types
from collections import namedtuple
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import njit
from numba.core.cpu import CPUTargetOptions
from numba.core.options import TargetOptions

from warprun.errors import UserError
from warprun.kernels import integers
from warprun.kernels.fingerprint import MISSING, Fingerprints, Unhashable, chains, closed_over, fingerprint, follow, is_jitted, is_library
from warprun.kernels.kernel_files import KernelFiles, NoFiles, notice, write_source

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

_rebuilt: dict[tuple[Any, Any, str, str | Fingerprints], Any] = {}
_being_rebuilt: set[Any] = set()


def device_function(function: Any) -> Any:
    """Compile a plain Python function, and those it calls, for kernels; floats written in it are float32.

    Numba reads the literal 0.5 as float64, which would make all arithmetic around it float64 (slow, and on a GPU very slow). So every
    Python float that the code holds or reaches by a name, `lab.constants.G` too, is replaced by its float32. What NumPy or the user has
    made an explicit float64 stays one.
    """
    return _rebuild(function, _inlined) if isinstance(function, types.FunctionType) else function


def checked_function(function: types.FunctionType) -> Any:
    """Compile as `device_function` does, with every index checked, to be called from Python; the same function is compiled once."""
    return _checked_for_python(_rebuild(function, _checked).py_func)


@cache
def _checked_for_python(function: types.FunctionType) -> Any:
    return njit(**CHECKED)(function)


def merged_function(function: Any) -> Any:
    """Compile as `device_function` does, but as a part of the one place that calls it: cheaper for a function with much below it."""
    built = device_function(function)
    return njit(**MERGED)(built.py_func) if COMPILES and isinstance(function, types.FunctionType) else built


def plain_function(function: Any) -> Any:
    """Return the same function uncompiled, for the CUDA simulator and for debuggers."""
    return _rebuild(function, _unchanged) if isinstance(function, types.FunctionType) else function


def _inlined(function: types.FunctionType, options: Mapping[str, Any]) -> Any:
    """Compile with the options that a person has given, if any."""
    return numba.jit(**{"nopython": True, **(options or INLINED)})(function)


def _checked(function: types.FunctionType, options: Mapping[str, Any]) -> Any:
    return njit(**CHECKED, no_cpython_wrapper=True)(function)


def _unchanged(function: Callable[..., Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    return function


def _widening(function: types.FunctionType) -> Callable[..., Any]:
    """Return an uncompiled function, whose globals are its own, with the integer rule of compiled ones."""
    names = function.__globals__
    read = {chain.name for chain in chains(function.__code__) if not chain.closure}
    names |= {name: integers.widened_global(names[name]) for name in read & names.keys()}
    return integers.widening(function)


def _rebuild(value: Any, finish: Callable[..., Any], within: Fingerprints | None = None) -> Any:
    """Return what kernels have in the place of a value that a function reaches; a function goes through `finish` last."""
    if type(value) is float:
        return np.float32(value)
    if isinstance(value, tuple):
        parts = [_rebuild(each, finish, within) for each in value]
        return value if all(a is b for a, b in zip(parts, value, strict=True)) else _like(value, parts)
    if isinstance(value, types.FunctionType):
        return _rebuild_function(value, finish, {}, within or Fingerprints())
    # One that a person has compiled keeps its options, but has what this does to floats, and no cache of its own.
    if is_jitted(value) and value._can_compile and "device" not in value.targetoptions:
        return _rebuild_function(value.py_func, finish, value.targetoptions, within or Fingerprints())
    return value


def _like(value: tuple[Any, ...], parts: list[Any]) -> Any:
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


def _rebuild_function(
    function: types.FunctionType, finish: Callable[..., Any], options: Mapping[str, Any], fingerprints: Fingerprints
) -> Any:
    # What a function reaches may have changed since it was rebuilt. What has no hash is rebuilt each time.
    content: str | Fingerprints
    try:
        content = fingerprints.of(function)
    except Unhashable:
        content = fingerprints
    key = (function, finish, repr(options), content)
    if key not in _rebuilt:
        code = function.__code__
        if function in _being_rebuilt:
            raise UserError(f"{code.co_filename}:{code.co_firstlineno} in {function.__name__}: functions of kernels cannot call themselves")
        _being_rebuilt.add(function)
        try:
            made = _with_parts(function, lambda value: _rebuild(value, finish, fingerprints))
            widens = (finish is _unchanged or not COMPILES) and integers.in_environment(function)
            _rebuilt[key] = finish(_widening(made) if widens else made, options)
        finally:
            _being_rebuilt.discard(function)
    return _rebuilt[key]


def _with_parts(function: types.FunctionType, part: Callable[[Any], Any]) -> types.FunctionType:
    """Return a function with `part` of all that it holds and reaches."""
    code = function.__code__
    names, enclosed = dict(function.__globals__), closed_over(function)
    for place, of_place in ((names, False), (enclosed, True)):
        read: dict[str, list[tuple[str, ...]]] = {}
        for chain in chains(code):
            if chain.closure == of_place and chain.name in place:
                read.setdefault(chain.name, []).append(chain.attributes)
        for name, attributes in read.items():
            place[name] = _stand_in(place[name], attributes, part)
    defaults = None if function.__defaults__ is None else tuple(part(value) for value in function.__defaults__)
    cells = tuple(
        types.CellType(enclosed[name]) if name in enclosed else cell
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
    )
    made = types.FunctionType(_single_precision(code), names, function.__name__, defaults, cells)
    made.__kwdefaults__ = {name: part(value) for name, value in (function.__kwdefaults__ or {}).items()} or None
    return made


def _stand_in(value: Any, read: list[tuple[str, ...]], part: Callable[[Any], Any]) -> Any:
    """Return `part` of a value; of a module, one that has `part` of all that is read of it."""
    if not isinstance(value, types.ModuleType):
        return part(value)
    of_attributes: dict[str, list[tuple[str, ...]]] = {}
    for first, *rest in filter(None, read):
        of_attributes.setdefault(first, []).append(tuple(rest))
    changed = {}
    for name, rests in of_attributes.items():
        found = getattr(value, name, MISSING)
        # Numba knows the functions of libraries.
        if found is MISSING or (is_library(value) and not isinstance(found, float | types.ModuleType)):
            continue
        changed[name] = _stand_in(found, rests, part)
        if changed[name] is found:
            del changed[name]
    if not changed:
        return value
    made = types.ModuleType(value.__name__)
    vars(made).update({**vars(value), **changed, "__spec__": None})
    return made


def reached(functions: list[types.FunctionType]) -> list[types.FunctionType]:
    """Return these functions and all plain ones that they call."""
    found: list[types.FunctionType] = []
    waiting = list(functions)
    while waiting:
        function = waiting.pop()
        if function not in found:
            found.append(function)
            values = [value for _, value in filter(None, (follow(function, chain) for chain in chains(function.__code__)))]
            waiting += [f for f in (v.py_func if is_jitted(v) else v for v in values) if isinstance(f, types.FunctionType)]
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


def cache_root() -> Path:
    """Return the folder of compiled kernels: WARPRUN_CACHE_DIR, else the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "warprun"
    return Path(os.environ.get("WARPRUN_CACHE_DIR", default)) / "kernels"


def load_module(name: str, source: str, functions: dict[str, Any], build: Callable[[Any], Any] = device_function) -> types.ModuleType:
    """Write `source` to the kernel cache and import it, with `functions`, put through `build`, as its globals.

    The folder's name holds a hash of the source and of what `build` returns, with all that it reaches, so a module found there is never
    out of date. Where something cannot be hashed, the module is compiled anew each time, and a line says so.
    """
    given = {global_name: build(function) for global_name, function in functions.items()}
    compiles = COMPILES and build in (device_function, merged_function)
    try:
        # Around what stays uncompiled there is code of our own.
        key = fingerprint({"source": source, "built by": build.__name__, **(given if compiles else functions)})[:16]
    except Unhashable as reason:
        key, kept = f"{hashlib.sha256(source.encode()).hexdigest()[:16]}-not-kept", False
        if compiles:
            notice(f"the kernels of {name} are compiled each time, not kept: {reason}")
    else:
        kept = True
    unique = f"warprun_kernels_{name}_{key}"
    if kept and unique in sys.modules:
        return sys.modules[unique]
    path = cache_root() / f"{name}-{key}" / f"{name}_kernels.py"
    write_source(path, source)
    module = types.ModuleType(unique)
    module.__file__ = str(path)
    vars(module).update(given)
    # Not by Python's importer, which would take what lies there, or bytecode of it.
    exec(compile(source, str(path), "exec", dont_inherit=True), vars(module))
    for kernel_name, kernel in vars(module).items():
        if is_jitted(kernel) and kernel_name not in given and kernel._cache.cache_path:
            kernel._cache._cache_file = KernelFiles(path.parent, f"{kernel_name}", kernel._cache._cache_file._dump) if kept else NoFiles()
    sys.modules[unique] = module
    return module


def own_tuple(module: types.ModuleType, name: str, values: Any) -> Any:
    """Return a NamedTuple as one of a class of the kernel module.

    Numba keeps the types of arguments beside compiled code, classes by module and name; those of an environment file are found in its
    own process only.
    """
    if name not in vars(module):
        setattr(module, name, namedtuple(name, values._fields, module=module.__name__))
    return vars(module)[name](*values)


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
