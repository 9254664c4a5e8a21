"""Hashes of what compiled code depends on: the key of a cached kernel.

Numba compiles in what a function reaches, by value: its code, defaults, what it closes over, its globals, and what it reads from modules
(`lab.constants.G`). So a function is hashed with all that, and with the functions it reaches, and so on. Types, shapes and dtypes count.
What is not known here cannot be hashed (`Unhashable`): a kernel of it must not be kept.
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import numba
import numpy as np

from warprun.config.sources import PREFIX
from warprun.kernels import simd

MISSING: Any = object()
"""In the place of what a name does not stand for."""

LIBRARIES = ("numpy", "numba", "numba_cuda", "llvmlite")
"""What is taken from these, and from Python's own modules, is known by its name and the version."""


class Unhashable(Exception):
    """A function reaches something whose content is not known; says what, and, once that is known, in which function by which name."""

    def __init__(self, what: str, found: bool = False) -> None:
        super().__init__(what)
        self.found = found
        """Whether the message has the place."""


@dataclass(frozen=True)
class Chain:
    """A name that code reads, and the attributes that it reads of it at once, as in `lab.constants.G`."""

    name: str
    attributes: tuple[str, ...]
    closure: bool
    """Whether the name belongs to an enclosing function, and not to the module."""


class Fingerprints:
    """Hashes of functions and other values as they are now; one is made anew for each use, because values change."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, bytes]] = {}
        """Hash of each function, by its id; with the function, so that no other gets that id."""
        self._open: list[int] = []
        """Functions whose hash is being computed, for those that refer to each other."""

    def of(self, value: Any) -> str:
        """Return the hash of a value, or of a dictionary of values. Raises Unhashable."""
        return _digest(self._options(value)).hex()

    def _content(self, value: Any) -> Any:
        """Return nested tuples of texts, integers and bytes that are equal where `value` is the same to Numba."""
        kind = type(value)
        if value is None or value is Ellipsis or kind in (bool, int, str, bytes):
            return kind.__name__, value
        if kind in (float, complex):
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
        if is_jitted(value):
            return self._dispatcher(value)
        found = self._intrinsic(value) or self._library(value)
        if found is None:
            raise Unhashable(f"{_article(kind.__name__)}, which has no hash")
        return found

    def _options(self, value: Any) -> Any:
        """Return the content of a value that is no part of a function: there are dictionaries, lists and sets of names among these."""
        if isinstance(value, Mapping):
            return "options", tuple(sorted((str(name), self._options(each)) for name, each in value.items()))
        if isinstance(value, set | frozenset):
            return "set", tuple(sorted(repr(self._options(each)) for each in value))
        if type(value) in (tuple, list):
            return "values", tuple(self._options(each) for each in value)
        return self._content(value)

    def _numbers(self, value: Any) -> Any:
        if value.dtype.hasobject or not is_library(sys.modules.get(type(value).__module__)):
            raise Unhashable(f"{_article(type(value).__name__)} of {value.dtype}, which has no hash")
        flags = tuple(value.flags[name] for name in ("C", "F", "A", "W"))
        return type(value).__name__, repr(value.dtype), value.shape, flags, hashlib.sha256(value.tobytes()).digest()

    def _type(self, kind: type) -> Any:
        name = (_home(kind), kind.__qualname__)
        if issubclass(kind, Enum) and kind.__module__ != "enum":
            members = tuple((label, self._content(member.value)) for label, member in kind.__members__.items())
            return "Enum", name, tuple(base.__qualname__ for base in kind.__mro__[1:]), members
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            defaults = tuple((field, self._content(value)) for field, value in kind._field_defaults.items())  # type: ignore[attr-defined]
            return "NamedTuple", name, kind._fields, defaults
        found = self._library(kind)
        if found is None:
            raise Unhashable(f"the class {kind.__name__}, which has no hash")
        return found

    def _library(self, value: Any) -> Any:
        """Return the name of what a library has; None if none does."""
        if isinstance(value, np.ufunc):
            label = str(value.__name__)
            return ("ufunc", label) if getattr(np, label, None) is value else None
        if not isinstance(value, type | FunctionType | BuiltinFunctionType) and type(value).__module__.partition(".")[0] not in LIBRARIES:
            return None
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        home = sys.modules.get(module) if isinstance(module, str) else None
        if home is None or name is None or not is_library(home):
            return None
        found: Any = home
        for part in name.split("."):
            found = getattr(found, part, None)
        return ("library", module, name) if found is value else None

    def _intrinsic(self, value: Any) -> Any:
        """Return the name of an intrinsic of `simd`, whose source is hashed as a whole: what it writes is decided by code."""
        own = [name for name, each in vars(simd).items() if each is value]
        return ("intrinsic", own[0]) if own else None

    def _dispatcher(self, dispatcher: Any) -> Any:
        # One with declared types compiles for no others.
        declared = () if dispatcher._can_compile else tuple(sorted(str(each) for each in dispatcher.overloads))
        options, kinds = (
            self._options(dispatcher.targetoptions),
            tuple(sorted((n, str(t)) for n, t in getattr(dispatcher, "locals", {}).items())),
        )
        return type(dispatcher).__name__, options, kinds, declared, self._content(dispatcher.py_func)

    def _function(self, function: FunctionType) -> Any:
        if id(function) in self._known:
            return self._known[id(function)][1]
        if id(function) in self._open:
            return "from above", len(self._open) - self._open.index(id(function))
        self._open.append(id(function))
        try:
            content = (code_content(function.__code__), tuple(self._parts(function)))
        finally:
            self._open.pop()
        self._known[id(function)] = (function, _digest(content))
        return self._known[id(function)][1]

    def _parts(self, function: FunctionType) -> Iterator[Any]:
        """Yield the content of everything that a function has beside its code."""
        read = [(f"{name}=", value) for name, value in zip(_last_arguments(function), function.__defaults__ or (), strict=True)]
        read += [(f"{name}=", value) for name, value in sorted((function.__kwdefaults__ or {}).items())]
        read += [(name, value) for name, value in closed_over(function).items() if not isinstance(value, ModuleType)]
        for chain in chains(function.__code__):
            found = follow(function, chain)
            read += [] if found is None else [found]
        for place, value in read:
            try:
                yield place, self._content(value)
            except Unhashable as reason:
                if reason.found:
                    raise
                raise Unhashable(f"{_place(function.__code__)}: `{place}` is {reason}", found=True) from None


def fingerprint(value: Any) -> str:
    """Return the hash of a value, or of a dictionary of values, for these versions and settings of Numba. Raises Unhashable."""
    return _digest((_versions(), _settings(), Fingerprints().of(value))).hex()


@cache
def _versions() -> Any:
    packages = ("numba", "llvmlite", "numpy", "numba-cuda")
    python = (platform.python_implementation(), tuple(sys.version_info[:3]))
    return python, tuple(_version(name) for name in packages), Path(simd.__file__).read_bytes()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _settings() -> Any:
    """Return what NUMBA_... variables ask for, less how many threads there are and where files are kept."""
    # Those of CUDA come with numba-cuda's first import, so that a name more would mean another key.
    others = ("THREADS", "CACHE", "CUDA")
    of_numba = {n: v for n, v in vars(numba.config).items() if n.isupper() and not any(word in n for word in others)}
    of_cuda = {n: v for n, v in os.environ.items() if n.startswith("NUMBA_CUDA_")}
    return tuple(sorted((name, repr(value)) for name, value in [*of_numba.items(), *of_cuda.items()]))


@cache
def code_content(code: CodeType) -> Any:
    """Return what Python compiled, without what only a reader sees: lines, annotations, a docstring, constants that are not used."""
    instructions = []
    for step in dis.get_instructions(code):
        if step.opname in ("IMPORT_NAME", "IMPORT_FROM"):
            raise Unhashable(f"{_place(code)}: it imports {step.argval}", found=True)
        if step.opname not in ("CACHE", "EXTENDED_ARG", "RESUME", "NOP"):
            instructions.append((step.opname, _operand(step)))
    arguments = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return _digest((instructions, arguments, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_exceptiontable))


def _operand(step: dis.Instruction) -> Any:
    if step.opcode in dis.hasconst:
        return _constant(step.argval)
    return step.argval if step.opcode in dis.hasname else step.arg


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return code_content(value)
    if isinstance(value, frozenset):
        return "frozenset", tuple(sorted(repr(_constant(each)) for each in value))
    if isinstance(value, tuple):
        return "tuple", tuple(_constant(each) for each in value)
    return type(value).__name__, struct.pack("<2d", value.real, value.imag) if isinstance(value, float | complex) else repr(value)


@cache
def chains(code: CodeType) -> tuple[Chain, ...]:
    """Return the names that code, and functions within it, read from elsewhere, in order and each once."""
    found: dict[Chain, None] = {}
    name, closure = "", False
    attributes: tuple[str, ...] = ()
    for step in [*dis.get_instructions(code), None]:
        if step is not None and step.opname in ("CACHE", "EXTENDED_ARG"):
            continue
        if step is not None and name and step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            attributes = (*attributes, step.argval)
            continue
        if name:
            found[Chain(name, attributes, closure)] = None
        name, attributes = "", ()
        if step is not None and step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
            name, closure = step.argval, step.opname == "LOAD_DEREF"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= dict.fromkeys(chains(constant))
    return tuple(found)


def closed_over(function: FunctionType) -> dict[str, Any]:
    """Return what a function closes over, by name, less what has no value yet."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    found = {}
    for name, cell in cells:
        try:
            found[name] = cell.cell_contents
        except ValueError:  # an empty cell has no other sign
            continue
    return found


def root_of(function: FunctionType, chain: Chain) -> Any:
    """Return what the name of a chain stands for; MISSING if nothing."""
    if chain.closure:
        return closed_over(function).get(chain.name, MISSING)
    return function.__globals__.get(chain.name, getattr(builtins, chain.name, MISSING))


def follow(function: FunctionType, chain: Chain) -> tuple[str, Any] | None:
    """Return by which name a chain leads to what, through modules of the user; None if there is no such thing: that does not compile.

    What follows in the chain is in the code by its name: an attribute of a library, or of a value, which is hashed as a whole.
    """
    place, value = chain.name, root_of(function, chain)
    for attribute in chain.attributes:
        if not isinstance(value, ModuleType) or is_library(value):
            break
        place, value = f"{place}.{attribute}", getattr(value, attribute, MISSING)
    return None if value is MISSING else (place, value)


def _home(kind: type) -> str:
    """Return the module of a class; of an environment file, whose package is named after folder and content, the name within it."""
    package, _, name = kind.__module__.partition(".")
    return name if package.startswith(PREFIX) else kind.__module__


def _place(code: CodeType) -> str:
    return f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}"


def _last_arguments(function: FunctionType) -> tuple[str, ...]:
    code, count = function.__code__, len(function.__defaults__ or ())
    return code.co_varnames[code.co_argcount - count : code.co_argcount]


def is_jitted(value: Any) -> bool:
    return type(value).__name__ in ("CPUDispatcher", "CUDADispatcher") and type(value).__module__.partition(".")[0] in LIBRARIES


def is_library(module: ModuleType | None) -> bool:
    """Tell whether a module is one of Python's own or of `LIBRARIES`, and no file of the user with such a name, nor a stand-in."""
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


def _digest(content: Any) -> bytes:
    return hashlib.sha256(repr(content).encode()).digest()
