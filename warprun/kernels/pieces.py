"""Compiled functions of which kernels are made, kept one by one: after a change only the functions that it touches are compiled.

A kernel has functions of the user and of this package in it, which LLVM inlines. Numba's part of the work, from bytecode to
LLVM's code, is half of the time that a kernel takes to compile, and depends on a function alone: on its code, the types of
its arguments and the values that it refers to. Of the functions that it calls it depends on the names of their arguments,
their defaults, and the types that they return. So a file has the code of one function for some types before anything is
inlined, and names what it calls. To load it is to link it with what these functions are now, if they return the same types.

Kernels, too, are kept one by one: `cache.py` has them with all that is inlined in them.
"""

from __future__ import annotations

import inspect
import io
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeGuard, cast

import llvmlite.binding as llvm
from numba import types
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.environment import Environment
from numba.core.errors import NumbaError

from warprun.environment import KernelFunction
from warprun.kernels.bytecode import chains
from warprun.kernels.cache import KernelFiles, cache_root, text_of
from warprun.kernels.compilers import LinkedLibrary, Tiles
from warprun.kernels.fingerprint import (
    Dispatcher,
    Fingerprints,
    Unhashable,
    closed_over,
    code_content,
    fingerprint,
    follow,
    is_jitted,
)

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.codegen import CodeLibrary, CPUCodegen, JITCodeLibrary
    from numba.core.funcdesc import FunctionDescriptor
    from numba.core.typing.templates import Signature
    from numba.types import Type

Identity: TypeAlias = tuple[str, tuple[str, ...]]
"""Name and fields of a class of NamedTuples."""

PLAIN = (types.Number, types.Boolean, types.Array, types.NoneType, types.Omitted, types.SliceType)
"""Types that are known by their names."""


class Called(NamedTuple):
    """A function that the code of a piece calls."""

    place: str
    """Where the piece reads it, as in `lab.growth`."""
    types: bytes
    """Of the arguments, pickled."""
    returns: str
    """The type that it returned, as `type_content` returns it."""
    symbol: str
    """Its name in the code of the piece."""


class Linked(NamedTuple):
    """Code of Numba that a piece calls, such as that of `min`."""

    name: str
    bitcode: bytes


class Piece(NamedTuple):
    """The content of a file."""

    code: list[bytes]
    """The modules of the function, in LLVM's bitcode."""
    links: list[Called | Linked]
    """What it calls, in the order of its calls."""
    result: bytes
    """The descriptor of the function and its signature, pickled."""


class UnkeptError(Exception):
    """A piece cannot be kept or not be read; it is compiled."""


# Symbols of two processes meet in one kernel. Numba numbers functions from 1 in every process, and forked ones would go on alike.
FunctionIdentity._unique_ids = iter(lambda: int.from_bytes(os.urandom(8), "big"), None)

_made: dict[CodeLibrary, tuple[Dispatcher, CompileResult]] = {}
"""Code of pieces in this process, as long as it lives -> where it is from."""


_keeps = [True]
"""Whether pieces are kept and read."""


def compile_all() -> None:
    """Keep and read nothing from now on: this process wants what Numba knows of the functions that it compiles."""
    _keeps[0] = False


def keep(function: KernelFunction) -> KernelFunction:
    """Let what is compiled of a function that kernels inline be kept; return it. Nothing is compiled of a plain one."""
    if is_jitted(function) and _keeps[0]:
        function._cache = Pieces(function)
    return function


def is_tile(dispatcher: Dispatcher) -> bool:
    """Return whether kernels call a function for each tile."""
    compiler = dispatcher._compiler  # type: ignore[attr-defined]
    return compiler.pipeline_class is Tiles


class Pieces(NullCache):
    """The cache of one function, in the place of Numba's."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._is_tile = is_tile(dispatcher)
        self._hash: str | None = None
        self._callees: dict[str, Dispatcher] = {}
        """Functions that have pieces, by the place where the function reads them."""
        self._classes: list[type] = []
        """Classes of NamedTuples among the values that it reads."""

    def load_overload(self, sig: tuple[Type, ...], target_context: BaseContext) -> CompileResult | None:
        """Return the compiled function for arguments of these types; None if there is none, or what it calls has changed its types."""
        try:
            found = self._files().load(self._key(sig))
            if isinstance(found, Piece):
                made = self._linked(found, sig, target_context)
                _made[made.library] = self._dispatcher, made
                return made
        except (UnkeptError, Unhashable, NumbaError):  # an error of what is called has its place in the message of the caller
            pass
        return None

    def save_overload(self, sig: tuple[Type, ...], data: CompileResult) -> None:
        """Keep a compiled function, unless something that it refers to is in the memory of this process only."""
        _made[data.library] = self._dispatcher, data
        with suppress(UnkeptError, Unhashable):
            self._files().save(self._key(sig), self._piece(data))

    def _files(self) -> KernelFiles:
        return KernelFiles(folder(), self._dispatcher.py_func.__name__.strip("<>"))

    def _key(self, sig: tuple[Type, ...]) -> str:  # type: ignore[override]
        if self._hash is None:
            self._hash = self._of_function()
        described = [type_content(kind, {}) for kind in sig]
        return fingerprint((text_of(__file__), self._hash, repr(described), repr(self._dispatcher.targetctx.codegen().magic_tuple())))

    def _of_function(self) -> str:
        """Return the hash of the function without those that it calls. Raises Unhashable."""
        function, known = self._dispatcher.py_func, Fingerprints()
        parts: list[tuple[object, ...]] = []
        for place, value in _read(function):
            if is_jitted(value) and isinstance(value._cache, Pieces):
                self._callees.setdefault(place, value)
                # Two names of one function become two if a change makes them so.
                number = list(self._callees.values()).index(value)
                parts.append((place, number, *_interface(value.py_func, known)))
            elif _is_named(value):
                self._classes.append(value)
                parts.append((place, _identity(value), known.of(value._field_defaults)))  # its module may have another name
            else:
                parts.append((place, known.of(value)))
        name = function.__qualname__, self._is_tile
        return known.of((*name, code_content(function.__code__), repr(parts), known.of(self._dispatcher.targetoptions)))

    def _piece(self, made: CompileResult) -> Piece:
        """Return the content of the file of a compiled function. Raises UnkeptError."""
        library = made.library
        if not isinstance(library, LinkedLibrary) or library.has_dynamic_globals or library._reload_init or made.lifted:
            raise UnkeptError
        classes = _classes(made.signature.args, self._classes)
        links: list[Called | Linked] = []
        for linked in library._linking_libraries:
            if linked not in _made:
                links.append(Linked(linked.name, linked._get_module_for_linking().as_bitcode()))
                continue
            called, result = _made[linked]
            place = next((place for place, each in self._callees.items() if each is called), None)
            if place is None:
                raise UnkeptError
            given = _pickled(result.signature.args, classes)
            links.append(Called(place, given, repr(type_content(result.signature.return_type, classes)), result.fndesc.mangled_name))
        function = copy(made.fndesc)
        function.typemap = function.calltypes = function.global_dict = None
        return Piece(library.own, links, _pickled((function, made.signature), classes))

    def _linked(self, piece: Piece, sig: tuple[Type, ...], target_context: BaseContext) -> CompileResult:
        """Return a compiled function with what it calls now. Raises UnkeptError, and NumbaError if that does not compile."""
        classes, codegen = _classes(sig, self._classes), target_context.codegen()
        names: dict[str, str] = {}
        libraries: list[CodeLibrary] = []
        for link in piece.links:
            if isinstance(link, Linked):
                libraries.append(_library(codegen, *link))
                continue
            called, given = self._callees[link.place], cast("tuple[Type, ...]", _unpickled(link.types, classes))
            called.compile(given)
            result = called.overloads[given]
            if repr(type_content(result.signature.return_type, classes)) != link.returns:
                raise UnkeptError
            names[link.symbol] = result.fndesc.mangled_name
            libraries.append(result.library)
        made, signature = cast("tuple[FunctionDescriptor, Signature]", _unpickled(piece.result, classes))
        made.modname = self._dispatcher.py_func.__module__
        library = LinkedLibrary(codegen, made.qualname)
        library.is_tile = self._is_tile
        for code in piece.code:
            module = llvm.parse_bitcode(code)
            for function in [each for each in module.functions if each.is_declaration and each.name in names]:
                function.name = names[function.name]
            library.add_own(module, code)
        for each in libraries:
            library.add_linking_library(each)
        library.finalize()
        environment = Environment.from_fndesc(made)
        return CompileResult(
            typing_context=target_context.typing_context,
            target_context=target_context,
            entry_point=target_context.get_executable(library, made, environment),
            typing_error=None,
            type_annotation="",
            signature=signature,
            library=library,
            objectmode=False,
            lifted=(),
            fndesc=made,
            call_helper=None,
            environment=environment,
            metadata=None,
            reload_init=(),
            referenced_envs=(),
        )


def _recall(tile: JITCodeLibrary, optimized: Callable[[], bytes]) -> bytes:
    """Return the code of a tile after `optimized`, which is called once for what the tile and all that it calls are before."""
    if not _keeps[0]:
        return optimized()
    files = KernelFiles(folder(), "tile")
    key = fingerprint((text_of(__file__), tile._final_module.as_bitcode(), repr(tile._codegen.magic_tuple())))
    found = files.load(key)
    if not isinstance(found, bytes):
        found = optimized()
        files.save(key, found)
    return found


LinkedLibrary.recall = staticmethod(_recall)


def folder() -> Path:
    """Return the folder of compiled functions."""
    return cache_root().with_name("functions")


@cache
def _library(codegen: CPUCodegen, name: str, bitcode: bytes) -> LinkedLibrary:
    library = LinkedLibrary(codegen, name)
    library._final_module = library._shared_module = llvm.parse_bitcode(bitcode)
    library._finalized = True
    return library


def _read(function: FunctionType) -> list[tuple[str, object]]:
    """Return place and value of everything that a function refers to."""
    code, defaults = function.__code__, function.__defaults__ or ()
    with_default = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    read: list[tuple[str, object]] = [(f"{name}=", value) for name, value in zip(with_default, defaults, strict=True)]
    read += [(f"{name}*", value) for name, value in closed_over(function).items() if not isinstance(value, ModuleType)]
    return read + list(filter(None, (follow(function, chain) for chain in chains(code))))


def _interface(function: FunctionType, known: Fingerprints) -> tuple[object, ...]:
    """Return what a call depends on beside types: the names of arguments, and their defaults. Raises Unhashable."""
    arguments = inspect.signature(function).parameters.values()
    empty = inspect.Parameter.empty
    return tuple((each.name, each.kind.name, None if each.default is empty else known.of(each.default)) for each in arguments)


# Types ------------------------------------------------------------------------------------------------------------------


def _is_named(value: object) -> TypeGuard[type[NamedTuple]]:
    return isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields")


def _identity(kind: type[NamedTuple]) -> Identity:
    return kind.__qualname__, kind._fields


def type_content(kind: Type, classes: dict[Identity, type | None]) -> object:
    """Return what tells a type from others, the same in every process; add its classes to `classes`. Raises UnkeptError."""
    if isinstance(kind, types.NamedTuple | types.NamedUniTuple):
        identity = _identity(kind.instance_class)
        if classes.setdefault(identity, kind.instance_class) is not kind.instance_class:
            classes[identity] = None
        return identity, [type_content(each, classes) for each in kind.types]
    if isinstance(kind, types.BaseTuple):
        return [type_content(each, classes) for each in kind.types]
    if not isinstance(kind, PLAIN):
        raise UnkeptError
    return str(kind)


def _classes(given: Sequence[Type], read: Sequence[type]) -> dict[Identity, type | None]:
    """Return the classes by their identities, None if there are two of one identity. Raises UnkeptError."""
    found: dict[Identity, type | None] = {}
    for kind in given:
        type_content(kind, found)
    for each in read:
        if found.setdefault(_identity(each), each) is not each:
            found[_identity(each)] = None
    return found


class _Writer(pickle.Pickler):
    """Writes classes of NamedTuples by their identities: a process does not have those of another one."""

    def __init__(self, memory: io.BytesIO, classes: Mapping[Identity, type | None]) -> None:
        super().__init__(memory)
        self._known = classes

    def persistent_id(self, value: object) -> Identity | None:
        if _is_named(value):
            if self._known.get(_identity(value)) is not value:
                raise UnkeptError
            return _identity(value)
        if isinstance(value, FunctionType) and value.__module__.partition(".")[0] not in ("numba", "copyreg"):
            raise UnkeptError
        return None


class _Reader(pickle.Unpickler):
    def __init__(self, content: bytes, classes: Mapping[Identity, type | None]) -> None:
        super().__init__(io.BytesIO(content))
        self._known = classes

    def persistent_load(self, identity: Identity) -> type:
        found = self._known.get(identity)
        if found is None:
            raise UnkeptError
        return found


def _pickled(value: object, classes: Mapping[Identity, type | None]) -> bytes:
    memory = io.BytesIO()
    _Writer(memory, classes).dump(value)
    return memory.getvalue()


def _unpickled(content: bytes, classes: Mapping[Identity, type | None]) -> object:
    return _Reader(content, classes).load()
