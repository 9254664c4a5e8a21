"""Hashes of everything that compiled code depends on: the key of a cached kernel.

Numba compiles in all values that a function refers to: defaults, closure variables, globals, and attributes of modules
such as `lab.constants.G`. So the hash of a function covers its bytecode and all these values, and recursively the
functions among them. Types, shapes and dtypes count. A value of an unknown kind raises `Unhashable`, and its kernel
must not be cached.

Functions of warprun that kernels call are hashed in the same way. What writes LLVM's code (`OWN`) is not called by
kernels: compilers, intrinsics, and the change of loops over lanes. The text of these files is in every hash, and a new
file of this kind must be added there.
"""

from __future__ import annotations

import builtins
import dis
import hashlib
import importlib.metadata
import os
import platform
import struct
import sys
import sysconfig
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cache
from types import BuiltinFunctionType, CodeType, EllipsisType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeGuard, cast
from weakref import WeakKeyDictionary

import numba
import numpy as np
from numba.core.compiler import Compiler

from warprun.environment import KernelFunction
from warprun.kernels import compilers, lane_cut, lane_regions, lane_values, lanes, moved, simd, vectors, warp, warp_values, warp_writer
from warprun.kernels.bytecode import Chain, chains, instructions
from warprun.kernels.cache import text_of
from warprun.user_code import ISOLATED

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.caching import Cache
    from numba.core.compiler import CompileResult

Content: TypeAlias = "str | bytes | int | EllipsisType | tuple[Content, ...] | None"
"""Nested tuples of plain values, which have the same `repr` in every process."""

MISSING: object = object()
"""Stands for the value of a name that is not defined."""

LIBRARIES = ("numpy", "numba", "numba_cuda", "llvmlite")
"""Values from these packages, and from the standard library, are identified by name and version."""
OWN = (compilers, lanes, lane_regions, lane_values, lane_cut, moved, simd, vectors, warp, warp_values, warp_writer)
"""Modules that write LLVM's code."""


class Unhashable(Exception):
    """A function refers to a value that has no hash; the message names the value and, once known, the function and the name in it."""

    def __init__(self, what: str, found: bool = False) -> None:
        super().__init__(what)
        self.found = found
        """Whether the message names the place."""


class Dispatcher(Protocol):
    """A function that Numba or numba-cuda compiles for each signature: a CPUDispatcher or a CUDADispatcher."""

    py_func: FunctionType
    """The plain function."""
    targetoptions: Mapping[str, object]
    """The options that it is compiled with."""
    overloads: Mapping[object, CompileResult]
    """What is compiled so far, by signature."""
    _can_compile: bool
    """False if the signatures are declared, so that no others are compiled."""
    _cache: Cache
    targetctx: BaseContext
    """Numba's context of the processor, with the data models of types."""

    compile: Callable[..., object]
    """Compiles for a signature, unless it has."""
    get_call_template: Callable[..., object]
    """(args, kws) -> how a call is typed; it compiles for the types of the call."""

    def __call__(self, *arguments: object) -> object: ...

    def __hash__(self) -> int: ...


_settled: WeakKeyDictionary[FunctionType, bytes | None] = WeakKeyDictionary()
"""Functions that refer to values which never change -> their hashes, once they are known."""


_options_of: WeakKeyDictionary[Dispatcher, tuple[Content, ...]] = WeakKeyDictionary()
"""Dispatchers -> the content of their options, which Numba reads once."""


def settled(function: FunctionType) -> FunctionType:
    """Return a function, with the promise that what it refers to never changes: its hash is computed once in a process."""
    _settled.setdefault(function, None)
    return function


class Fingerprints:
    """Hashes of functions and other values at one moment. Values may change, so every use needs a new instance."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[FunctionType, bytes]] = {}
        """Id of each function -> the function and its hash. The reference keeps the id from being reused."""
        self._open: list[int] = []
        """Ids of the functions whose hash is being computed, to detect recursion."""

    def of(self, value: object) -> str:
        """Return the hash of a value, or of a dictionary of values. Raises Unhashable."""
        return _digest(self._options(value)).hex()

    def _content(self, value: object) -> Content:
        """Return the content of `value`: equal for values that Numba compiles to the same code. Raises Unhashable."""
        kind = type(value)
        if isinstance(value, FunctionType) and (known := _settled.get(value)) is not None:  # most of what a module of kernels is made of
            return "function", known
        if is_jitted(value):
            return self._dispatcher(value)
        if value is None or value is Ellipsis or (isinstance(value, int | str | bytes) and kind in (bool, int, str, bytes)):
            return kind.__name__, value
        if isinstance(value, float | complex) and kind in (float, complex):
            return kind.__name__, struct.pack("<2d", value.real, value.imag)
        if kind in (range, slice):
            return kind.__name__, repr(value)
        if isinstance(value, Enum):
            return "member", self._content(kind), value.name
        if isinstance(value, tuple):
            return "tuple", None if kind is tuple else self._content(kind), tuple(self._content(each) for each in value)
        if isinstance(value, np.ndarray | np.generic):
            return self._numbers(value)
        if isinstance(value, np.dtype):
            return "dtype", repr(value)
        if isinstance(value, type):
            return self._type(value)
        if isinstance(value, FunctionType):
            return self._library(value) or ("function", self._function(value))
        if isinstance(value, ModuleType) and is_library(value):
            return "module", value.__name__
        if isinstance(value, numba.types.Number | numba.types.Boolean):
            return "Numba type", str(value)
        found = self._intrinsic(value) or self._library(value)
        if found is None:
            raise Unhashable(f"{_article(kind.__name__)}, which has no hash")
        return found

    def _options(self, value: object) -> Content:
        """Return the content of an option, which unlike a value in a function may be a dictionary, a list or a set."""
        if isinstance(value, Mapping):
            return "options", tuple(sorted((str(name), self._options(each)) for name, each in value.items()))
        if isinstance(value, set | frozenset):
            return "set", tuple(sorted(repr(self._options(each)) for each in value))
        if isinstance(value, tuple | list) and type(value) in (tuple, list):
            return "values", tuple(self._options(each) for each in value)
        return self._content(value)

    def _numbers(self, value: np.ndarray | np.generic) -> Content:
        if value.dtype.hasobject or not is_library(sys.modules.get(type(value).__module__)):
            raise Unhashable(f"{_article(type(value).__name__)} of {value.dtype}, which has no hash")
        flags = tuple(value.flags[name] for name in ("C", "F", "A", "W"))
        return type(value).__name__, repr(value.dtype), value.shape, flags, hashlib.sha256(value.tobytes()).digest()

    def _type(self, kind: type) -> Content:
        name = (_home(kind), kind.__qualname__)
        if issubclass(kind, Enum) and kind.__module__ != "enum":
            members = tuple((label, self._content(member.value)) for label, member in kind.__members__.items())
            return "Enum", name, tuple(base.__qualname__ for base in kind.__mro__[1:]), members
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            defaults = tuple((field, self._content(value)) for field, value in kind._field_defaults.items())  # type: ignore[attr-defined]
            return "NamedTuple", name, kind._fields, defaults
        if kind.__module__ in (each.__name__ for each in OWN):
            return "own", name
        if issubclass(kind, Compiler) and kind is not Compiler:
            methods = {label: each for label, each in vars(kind).items() if isinstance(each, FunctionType)}
            return "compiler", name, self._options(methods)
        found = self._library(kind)
        if found is None:
            raise Unhashable(f"the class {kind.__name__}, which has no hash")
        return found

    def _library(self, value: object) -> Content:
        """Return module and name of a value of a library; None if no library has it under that name."""
        if isinstance(value, np.ufunc):
            label = str(value.__name__)
            return ("ufunc", label) if getattr(np, label, None) is value else None
        if not isinstance(value, type | FunctionType | BuiltinFunctionType) and type(value).__module__.partition(".")[0] not in LIBRARIES:
            return None
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        home = sys.modules.get(module) if isinstance(module, str) else None
        if home is None or name is None or not is_library(home):
            return None
        found: object = home
        for part in name.split("."):
            found = getattr(found, part, None)
        return ("library", module, name) if found is value else None

    def _intrinsic(self, value: object) -> Content:
        """Return the name of an intrinsic of this package, or None. Its content is the text of its module, which is part of every key."""
        own = [name for module in OWN for name, each in vars(module).items() if each is value]
        return ("intrinsic", own[0]) if own else None

    def _dispatcher(self, dispatcher: Dispatcher) -> Content:
        # With declared signatures, no others are compiled.
        declared = () if dispatcher._can_compile else tuple(sorted(str(each) for each in dispatcher.overloads))
        if dispatcher not in _options_of:
            kinds = tuple(sorted((name, str(kind)) for name, kind in getattr(dispatcher, "locals", {}).items()))
            _options_of[dispatcher] = type(dispatcher).__name__, self._options(dispatcher.targetoptions), kinds
        return *_options_of[dispatcher], declared, self._content(dispatcher.py_func)

    def _function(self, function: FunctionType) -> Content:
        if id(function) in self._known:
            return self._known[id(function)][1]
        if id(function) in self._open:
            return "from above", len(self._open) - self._open.index(id(function))
        self._open.append(id(function))
        try:
            content = (code_content(function.__code__), tuple(self._parts(function)))
        finally:
            self._open.pop()
        digest = _digest(content)
        self._known[id(function)] = (function, digest)
        if function in _settled or _is_of_package(function):
            _settled[function] = digest
        return digest

    def _parts(self, function: FunctionType) -> Iterator[Content]:
        """Yield name and content of every value that a function refers to."""
        code, defaults = function.__code__, function.__defaults__ or ()
        with_default = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
        given = [*zip(with_default, defaults, strict=True), *sorted((function.__kwdefaults__ or {}).items())]
        read: list[tuple[str, object]] = [(f"{name}=", value) for name, value in given]
        read += [(name, value) for name, value in closed_over(function).items() if not isinstance(value, ModuleType)]
        read += filter(None, (follow(function, chain) for chain in chains(code)))
        for place, value in read:
            try:
                yield place, self._content(value)
            except Unhashable as reason:
                if reason.found:
                    raise
                raise Unhashable(f"{_place(code)}: `{place}` is {reason}", found=True) from None


def _is_of_package(function: FunctionType) -> bool:
    """Return whether a function is one of this package as it stands in its module; those of environments may be built with options."""
    module = function.__module__
    is_own = module.startswith("warprun.") and not module.startswith("warprun.envs.")
    return is_own and getattr(sys.modules.get(module), function.__name__, None) is function


def fingerprint(value: object) -> str:
    """Return the hash of a value, or of a dictionary of values, and of Numba's versions and settings. Raises Unhashable."""
    return _digest((_versions(), _settings(), Fingerprints().of(value))).hex()


def hash_of(value: object) -> str | None:
    """Return the `fingerprint` of a value; None if it has none."""
    try:
        return fingerprint(value)
    except Unhashable:
        return None


@cache
def _versions() -> Content:
    versions = [importlib.metadata.version(name) for name in ("numba", "llvmlite", "numpy")]
    try:
        versions.append(importlib.metadata.version("numba-cuda"))
    except importlib.metadata.PackageNotFoundError:
        versions.append("none")
    texts = tuple(text_of(str(each.__file__)) for each in OWN)
    return platform.python_implementation(), tuple(sys.version_info[:3]), tuple(versions), texts


def _settings() -> Content:
    """Return the settings of NUMBA_... variables, except the number of threads and the cache folders."""
    now = list(vars(numba.config).items())
    if now != _seen:
        others = ("THREADS", "CACHE", "CUDA")
        _of_numba[:] = [(name, repr(value)) for name, value in now if name.isupper() and not any(word in name for word in others)]
        _seen[:] = now  # last: another thread takes the texts for theirs from here on
    # The CUDA settings are defined only once numba-cuda is imported, so they are read from the environment variables instead.
    of_cuda = [(name, repr(value)) for name, value in os.environ.items() if name.startswith("NUMBA_CUDA_")]
    return tuple(sorted([*_of_numba, *of_cuda]))


_seen: list[tuple[str, object]] = []
"""The variables of Numba as they were last: a run asks for them for each of its kernels."""
_of_numba: list[tuple[str, str]] = []
"""The settings among them, as texts."""


@cache
def code_content(code: CodeType) -> bytes:
    """Return the hash of bytecode without line numbers, annotations, docstring and unused constants. Raises Unhashable."""
    content: list[tuple[str, Content]] = []
    for name, argument, value in instructions(code):
        if name in ("IMPORT_NAME", "IMPORT_FROM"):
            raise Unhashable(f"{_place(code)}: it imports {value}", found=True)
        if name not in ("RESUME", "NOP"):
            number = dis.opmap[name]
            content.append((name, _constant(value) if number in dis.hasconst else cast(str, value) if number in dis.hasname else argument))
    arguments = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return _digest((content, arguments, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_exceptiontable))


def _constant(value: object) -> Content:
    if isinstance(value, CodeType):
        return code_content(value)
    if isinstance(value, frozenset):
        return "frozenset", tuple(sorted(repr(_constant(each)) for each in value))
    if isinstance(value, tuple):
        return "tuple", tuple(_constant(each) for each in value)
    return type(value).__name__, struct.pack("<2d", value.real, value.imag) if isinstance(value, float | complex) else repr(value)


def closed_over(function: KernelFunction) -> dict[str, object]:
    """Return the closure variables of a function that have a value, by name."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    found = {}
    for name, cell in cells:
        try:
            found[name] = cell.cell_contents
        except ValueError:  # raised for an empty cell; there is no other way to tell
            continue
    return found


def follow(function: KernelFunction, chain: Chain) -> tuple[str, object] | None:
    """Resolve a chain through modules of the user; return the dotted name and the value, or None if it is not defined.

    Resolution stops at a library or at a value that is no module: the value is hashed as a whole, and the names of further attributes
    are part of the bytecode.
    """
    names = closed_over(function) if chain.closure else ChainMap(function.__globals__, vars(builtins))
    place, value = chain.name, names.get(chain.name, MISSING)
    for attribute in chain.attributes:
        if not isinstance(value, ModuleType) or is_library(value):
            break
        place, value = f"{place}.{attribute}", getattr(value, attribute, MISSING)
    return None if value is MISSING else (place, value)


def _home(kind: type) -> str:
    """Return the module of a class, without the package prefix of environment files, which depends on folder and content."""
    package, _, name = kind.__module__.partition(".")
    return name if package.startswith(ISOLATED) else kind.__module__


def _place(code: CodeType) -> str:
    return f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}"


def is_jitted(value: object) -> TypeGuard[Dispatcher]:
    """Return whether a value is a function that Numba or numba-cuda compiles."""
    return type(value).__name__ in ("CPUDispatcher", "CUDADispatcher") and type(value).__module__.partition(".")[0] in LIBRARIES


def is_library(module: ModuleType | None) -> bool:
    """Return whether a module belongs to the standard library or to `LIBRARIES`; a user's file of that name, or a stand-in, does not."""
    spec = getattr(module, "__spec__", None)
    if spec is None:
        return False
    root = spec.name.partition(".")[0]
    return root in LIBRARIES or (root in sys.stdlib_module_names and _is_pythons_own(spec.origin))


@cache
def _is_pythons_own(origin: str | None) -> bool:
    folders = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
    return origin in ("built-in", "frozen") or (origin is not None and origin.startswith(folders) and "site-packages" not in origin)


def _article(noun: str) -> str:
    return f"{'an' if noun[0] in 'AEIOUaeiou' else 'a'} {noun}"


def _digest(content: object) -> bytes:
    return hashlib.sha256(repr(content).encode()).digest()
