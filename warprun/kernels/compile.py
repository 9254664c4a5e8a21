"""Compiles plain Python functions to Numba kernels and caches them."""

from __future__ import annotations

import hashlib
import os
import sys
import types
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar, cast

import numba
import numpy as np
from numba import njit
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaError
from numba.core.types import Literal
from numba.core.types.misc import unliteral

from warprun.environment import KernelFunction
from warprun.errors import UserError
from warprun.kernels import compilers, integers, kept, pieces, thrift
from warprun.kernels.bytecode import chains
from warprun.kernels.cache import cache_root, module_name, notice, scratch, without_comments, write_source
from warprun.kernels.fingerprint import (
    MISSING,
    Dispatcher,
    Fingerprints,
    Unhashable,
    closed_over,
    fingerprint,
    follow,
    hash_of,
    is_jitted,
    is_library,
    settled,
)
from warprun.kernels.integers import constructor, is_state

if TYPE_CHECKING:
    from numba.core.annotations.type_annotations import TypeAnnotation
    from numba.types import Type

Value = TypeVar("Value")
Options: TypeAlias = Mapping[str, object]  # of `numba.jit`
Finish: TypeAlias = Callable[[KernelFunction, Options], KernelFunction]
"""The last step of a rebuild: compiles a function, or returns it as it is."""

# No reassociation, and NaN and infinity keep their meaning; fused multiply-add and reciprocals are allowed.
FLAGS: dict[str, object] = {"error_model": "numpy", "fastmath": {"contract", "arcp", "nsz", "afn"}}


thrift.spare()

# A process that is forked while another thread compiles would wait for that thread, which it does not have.
os.register_at_fork(
    before=global_compiler_lock.acquire, after_in_parent=global_compiler_lock.release, after_in_child=global_compiler_lock.release
)

COMPILES = not numba.config.DISABLE_JIT
"""False under NUMBA_DISABLE_JIT=1, where every function runs as plain Python."""

# Numba's own inlining is slow, but LLVM then optimises the function once, in its caller, and not also as a function of its own.
MERGED: dict[str, object] = FLAGS | {"inline": "always"}

FOR_KERNELS: dict[str, object] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Options of a function that only kernels call: its wrappers for other callers would be copies of its code."""
# LLVM does not vectorise a loop with a call in it, and does not inline a function as long as a sine unless forced to.
INLINED: dict[str, object] = FLAGS | FOR_KERNELS | {"forceinline": True, "_nrt": False, "pipeline_class": compilers.Inlined}

# The arrays of an engine outlive every kernel call, so views of them need no reference counts, which would cost more than the views.
KERNELS: dict[str, object] = FLAGS | {"pipeline_class": compilers.Kernels, "_nrt": False}
# Numba's wrapper for Python, which unboxes all arguments, takes as long to compile as a small kernel, and no Python calls these.
BOUND_KERNELS: dict[str, object] = KERNELS | {"no_cpython_wrapper": True}
BOUND: dict[str, object] = FLAGS | {"pipeline_class": compilers.Bound, "no_cpython_wrapper": True, "_nrt": False}
TILES: dict[str, object] = FLAGS | FOR_KERNELS | {"pipeline_class": compilers.Tiles, "_nrt": False}

# For checks: Python calls the functions one at a time, and an index out of bounds raises IndexError.
CHECKED: dict[str, object] = FLAGS | {"boundscheck": True, "no_cfunc_wrapper": True, "_nrt": False}
WITHOUT_ARRAYS = ("warprun.math", "warprun.random")
"""Modules whose functions have no index to check: kernels take what is compiled for a check."""

_rebuilt: dict[tuple[types.FunctionType, Finish, str, str | Fingerprints], KernelFunction] = {}
_being_rebuilt: set[types.FunctionType] = set()


def kernel_function(function: Value) -> Value:
    """Compile a plain Python function, and those it calls, for kernels; its float literals become float32. Return other values as they are.

    Numba reads the literal 0.5 as float64, which would make all arithmetic with it float64 (slow, and on a GPU very slow). So every
    Python float in the code or behind a name, `lab.constants.G` too, is replaced by its float32. An explicit np.float64 stays one.
    """
    return cast(Value, _rebuild(function, _inlined)) if isinstance(function, types.FunctionType) else function


def checked_function(function: KernelFunction) -> Dispatcher:
    """Compile as `kernel_function` does, with bounds checks, for calls from Python. The same function is compiled once."""
    return _checked_for_python(cast(Dispatcher, _rebuild(function, _checked)).py_func)


@cache
def _checked_for_python(function: types.FunctionType) -> Dispatcher:
    # Without the lock of Python (GIL), so that a signal ends a function that does not return.
    return njit(nogil=True, **CHECKED)(function)


def merged_function(function: Value) -> Value:
    """Compile as `kernel_function` does, but inlined by Numba: cheaper for a function with one caller and many callees."""
    built = kernel_function(function)
    return cast(Value, _merged(built)) if COMPILES and isinstance(function, types.FunctionType) and is_jitted(built) else built


@cache
def _merged(built: Dispatcher) -> Dispatcher:
    return njit(**MERGED)(built.py_func)


def checked_parts(functions: Sequence[KernelFunction]) -> Iterator[tuple[KernelFunction, TypeAnnotation]]:
    """Yield each function that `checked_function` has compiled for these and for what they call, with the types in its code."""
    wanted = [function for function in reached(functions) if integers.in_environment(function)]
    for (function, finish, _, _), built in list(_rebuilt.items()):
        if finish is _checked and function in wanted and is_jitted(built):
            for one in (built, _checked_for_python(built.py_func)):
                yield from ((function, each.type_annotation) for each in one.overloads.values())


def plain_function(function: Value) -> Value:
    """Return the same function uncompiled, for the CUDA simulator and for debuggers. Return other values as they are."""
    return cast(Value, _rebuild(function, _unchanged)) if isinstance(function, types.FunctionType) else function


def _inlined(function: KernelFunction, options: Options) -> KernelFunction:
    """Compile with the user's options, if there are any."""
    return numba.jit(**{"nopython": True, **options})(function) if options else general(pieces.keep(njit(**INLINED)(function)))


def _checked(function: KernelFunction, options: Options) -> KernelFunction:
    return general(njit(**CHECKED, no_cpython_wrapper=True, pipeline_class=compilers.Inlined)(function))


def general(function: KernelFunction) -> KernelFunction:
    """Return a compiled function that other functions call with an int in place of a literal int, if it compiles for that.

    Numba compiles a function for every number that it is called with: `uniform(rng, 0, ...)` and `uniform(rng, 1, ...)` are two. A function
    for which only a literal will do, such as the place in a tuple of several types, still gets it.
    """
    if not is_jitted(function):
        return function
    template = function.get_call_template

    def of_any_number(args: Sequence[Type], kws: Mapping[str, Type]) -> object:
        try:
            return template(tuple(map(_general_type, args)), {name: _general_type(kind) for name, kind in kws.items()})
        except NumbaError:
            return template(args, kws)

    function.get_call_template = of_any_number
    return function


def _general_type(kind: Type) -> Type:
    return unliteral(kind) if isinstance(kind, Literal) else kind


def _unchanged(function: KernelFunction, options: Options) -> KernelFunction:
    return function


def _widening(function: types.FunctionType) -> KernelFunction:
    """Return an uncompiled function with the integer promotion of compiled ones. Changes its globals, which must be its own copy."""
    names = function.__globals__
    read = names.keys() & {chain.name for chain in chains(function.__code__) if not chain.closure}
    names |= {name: integers.widened_global(names[name]) for name in read}
    return integers.widening(function)


def _rebuild(value: object, finish: Finish, within: Fingerprints | None = None) -> object:
    """Return what replaces a value in kernels: float32 for a float, and for a function the result of `finish`."""
    if type(value) is float:
        return np.float32(value)
    if is_state(value) and finish is not _unchanged and COMPILES:
        return _constructor(cast(type, value), finish)
    if isinstance(value, tuple):
        parts = [_rebuild(each, finish, within) for each in value]
        if all(a is b for a, b in zip(parts, value, strict=True)):
            return value
        return cast("Callable[..., object]", type(value))(*parts) if hasattr(value, "_fields") else tuple(parts)
    options: Options = {}
    # A function that the user has compiled keeps its options, but its floats become float32 and it has no cache of its own.
    if is_jitted(value) and value._can_compile and "device" not in value.targetoptions:
        options, value = value.targetoptions, value.py_func
    return _rebuild_function(value, finish, options, within or Fingerprints()) if isinstance(value, types.FunctionType) else value


@cache
def _constructor(state: type, finish: Finish) -> KernelFunction:
    return finish(constructor(state), {})


# Numba's own lock, which whoever compiles holds: with a second lock two threads might wait for each other.
@global_compiler_lock
def _rebuild_function(function: types.FunctionType, finish: Finish, options: Options, fingerprints: Fingerprints) -> KernelFunction:
    if finish is _checked and function.__module__ in WITHOUT_ARRAYS:
        finish = _inlined
    # The values that a function refers to may have changed since it was rebuilt. A function without a hash is rebuilt each time.
    content: str | Fingerprints
    try:
        content = fingerprints.of(function)
    except Unhashable:
        content = fingerprints
    key = (function, finish, repr(options), content)
    if key not in _rebuilt:
        if function in _being_rebuilt:
            place = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
            raise UserError(f"{place} in {function.__name__}: functions of kernels cannot call themselves")
        _being_rebuilt.add(function)
        try:
            made = _with_parts(function, lambda value: _rebuild(value, finish, fingerprints))
            widens = (finish is _unchanged or not COMPILES) and integers.in_environment(function)
            _rebuilt[key] = finish(_widening(made) if widens else settled(made), options)
        finally:
            _being_rebuilt.discard(function)
    return _rebuilt[key]


def _with_parts(function: types.FunctionType, part: Callable[[object], object]) -> types.FunctionType:
    """Return a copy of a function in which `part` has replaced every value that the function refers to."""
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


def _stand_in(value: object, read: list[tuple[str, ...]], part: Callable[[object], object]) -> object:
    """Return `part(value)`; for a module, a copy of it in which `part` has replaced the attributes that are read."""
    if not isinstance(value, types.ModuleType):
        return part(value)
    of_attributes: dict[str, list[tuple[str, ...]]] = {}
    for first, *rest in filter(None, read):
        of_attributes.setdefault(first, []).append(tuple(rest))
    changed = {}
    for name, rests in of_attributes.items():
        found = getattr(value, name, MISSING)
        # Numba compiles the functions of libraries itself.
        if found is MISSING or (is_library(value) and not isinstance(found, float | types.ModuleType)):
            continue
        changed[name] = _stand_in(found, rests, part)
        if changed[name] is found:
            del changed[name]
    if not changed:
        return value
    made = types.ModuleType(value.__name__)
    vars(made).update(vars(value) | changed | {"__spec__": None})
    return made


def reached(functions: Sequence[KernelFunction]) -> list[KernelFunction]:
    """Return these functions and all plain functions that they call, directly or not."""
    found: list[KernelFunction] = []
    waiting = list(functions)
    while waiting:
        function = waiting.pop()
        if function not in found:
            found.append(function)
            values = [value for _, value in filter(None, (follow(function, chain) for chain in chains(function.__code__)))]
            waiting += [f for f in (v.py_func if is_jitted(v) else v for v in values) if isinstance(f, types.FunctionType)]
    return found


def _single_precision(code: types.CodeType) -> types.CodeType:
    """Return code in which every float64 among the constants, those of tuples and of nested code included, is a float32."""

    def single(constant: object) -> object:
        if type(constant) is float:
            return np.float32(constant)
        if type(constant) is tuple:
            return tuple(map(single, constant))
        return _single_precision(constant) if isinstance(constant, types.CodeType) else constant

    return code.replace(co_consts=tuple(map(single, code.co_consts)))


class Recipe(NamedTuple):
    """The arguments of `load_module`, with which another process makes the same module."""

    name: str
    source: str
    functions: Mapping[str, object]
    build: Callable[[object], object]


@global_compiler_lock
def load_module(
    name: str, source: str, functions: Mapping[str, object], build: Callable[[object], object] = kernel_function
) -> types.ModuleType:
    """Write `source` to the kernel cache and import it; its globals are `build(value)` of each of `functions`.

    The folder name holds a hash of the source and of everything that the built functions refer to, so a cached module is never stale. If
    something has no hash, the module is compiled at every start, and a warning says so.
    """
    name = module_name(name)
    made_of = name, source, build, hash_of(functions)
    if made_of[-1] and (known := sys.modules.get(_loaded.get(made_of, ""))):
        return known
    given = {global_name: build(function) for global_name, function in functions.items()}
    compiles = COMPILES and build in (kernel_function, merged_function)
    try:
        # Uncompiled functions are wrapped in code of this package, so the originals are hashed.
        key = fingerprint({"source": without_comments(source), "built by": build.__name__, **(given if compiles else functions)})[:16]
        keeps = True
    except Unhashable as reason:
        key, keeps = f"{hashlib.sha256(without_comments(source).encode()).hexdigest()[:16]}-not-kept", False
        if compiles:
            notice(f"the kernels of {name} are compiled each time, not kept: {reason}")
    unique = f"warprun_kernels_{name}_{key}"
    _loaded[made_of] = unique
    if keeps and (known := sys.modules.get(unique)):
        return known
    path = cache_root() / f"{name}-{key}" / f"{name}_kernels.py"
    try:
        write_source(path, source)
    except OSError as error:
        root, why = cache_root(), f"{error.strerror}; set WARPRUN_CACHE_DIR to a writable folder"
        notice(f"cannot keep compiled kernels in {root}: {why}", once=str(root))
        path, keeps = _write_aside(path, source), False
    module = types.ModuleType(unique)
    vars(module).update(given, __file__=str(path), __recipe__=Recipe(name, source, functions, build))
    # Python's importer would run the file on disk, or its bytecode, which may be damaged.
    exec(compile(source, str(path), "exec", dont_inherit=True), vars(module))
    for kernel_name, kernel in vars(module).items():
        if is_jitted(kernel) and kernel_name not in given and pieces.is_tile(kernel):
            pieces.keep(kernel)
        elif is_jitted(kernel) and kernel_name not in given and kernel._cache.cache_path:
            if keeps:
                kept.keep(kernel, module, name)
            else:
                kernel._cache = numba.core.caching.NullCache()
    sys.modules[unique] = module
    return module


_loaded: dict[tuple[object, ...], str] = {}
"""What modules were made of -> their names: runs of a process share them, and functions are hashed sooner than built."""


def _write_aside(path: Path, source: str) -> Path:
    """Write the source of a module that has no place in the cache to a temporary folder; return its file."""
    try:
        aside = scratch() / path.parent.name / path.name
    except OSError as error:
        raise UserError(f"no folder for temporary files: {error.strerror}; set TMPDIR to a writable folder") from None
    try:
        write_source(aside, source)
    except OSError as full:
        raise UserError(f"cannot write the source of kernels to {aside.parent}: {full.strerror}; set TMPDIR to a writable folder") from None
    return aside


def own_tuple(module: types.ModuleType, name: str, values: NamedTuple) -> NamedTuple:
    """Return `values` as an instance of a NamedTuple class that belongs to the kernel module.

    Numba stores argument types with compiled code, and classes by module and name. A class of an environment file cannot be found that
    way by another process.
    """
    if name not in vars(module):
        setattr(module, name, namedtuple(name, values._fields, module=module.__name__))
    return vars(module)[name](*values)


def is_tried(module: types.ModuleType) -> bool:
    """Return whether the functions of a kernel module were tried, as `note_tried` says."""
    return os.path.exists(_mark(module))


def note_tried(module: types.ModuleType) -> None:
    """Keep in the cache that the functions of a kernel module need no further trial."""
    with suppress(OSError):
        _mark(module).touch()


def _mark(module: types.ModuleType) -> Path:
    assert module.__file__
    return Path(module.__file__).with_name("tried")
