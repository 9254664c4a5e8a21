"""Kernels with their arguments bound once: a call passes one address and three numbers.

Numba's dispatcher unboxes every argument in every call. Kernels get NamedTuples of dozens of arrays, so that takes tens of microseconds, as
long as a rollout of ten environments. A `Call` writes the arguments to memory once, in the layout of Numba's data models, where the entry
point of the kernel (`compilers.py`) reads them.
"""

from __future__ import annotations

import ctypes
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np
from numba import typeof, types
from numba.np.numpy_support import as_dtype

from warprun.kernels.compile import BOUND, kernel_function, load_module
from warprun.kernels.compilers import SPAN
from warprun.kernels.fingerprint import Dispatcher, is_jitted

if TYPE_CHECKING:
    from numba.core.datamodel import DataModelManager
    from numba.types import Type

Kernel: TypeAlias = Callable[..., None]
"""kernel(first, last, thread, *arguments) does the work of the items `first` .. `last` - 1 with the memory of a thread."""
Function: TypeAlias = Callable[..., object]
"""A function for kernels."""
ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, *[ctypes.c_int64] * SPAN)  # releases the lock of Python (GIL)
ARRAY = ("meminfo", "parent", "nitems", "itemsize", "data", "shape", "strides")
"""The fields of an array in Numba's data model, in their order."""


def signature(arguments: Sequence[object]) -> list[Type]:
    """Return the types with which a kernel is compiled for these arguments, `first`, `last` and `thread` included."""
    return [types.int64] * SPAN + [_kind_of(value) for value in arguments]


def _kind_of(value: object) -> Type:
    """Return the type of an argument. Numba builds types of arrays anew, and a run has thousands; they are kept, as those of tuples are."""
    if not isinstance(value, tuple | np.ndarray):
        return typeof(value)
    form = _form(value)
    found = _KINDS.get(form)
    if found is None:
        found = _KINDS[form] = typeof(value)
    return found


def _form(value: object) -> object:
    """Return what the type of an argument follows from, which can be a key of a dict."""
    if isinstance(value, tuple):
        return type(value), *map(_form, value)
    if isinstance(value, np.ndarray):
        return type(value), value.dtype, value.ndim, value.flags.num
    return type(value) if isinstance(value, float | np.generic | None) else typeof(value)


_KINDS: dict[object, Type] = {}
"""Form of a tuple or an array -> its type."""


def kernel_module(name: str, made_of: Mapping[str, Sequence[Function]], build: Callable[[object], object] = kernel_function) -> ModuleType:
    """Return a module of kernels; `made_of`: kernel -> the functions that it calls one after the other, which `build` compiles.

    A kernel takes `first`, `last`, `thread`, and then what its functions take, by the names of their arguments. A function with the
    argument `part` is called for each item, the others once.
    """
    texts = [f'"""Kernels of {name}; written by warprun."""\n\nfrom numba import njit']
    for kernel, functions in made_of.items():
        taken = {each.__name__: list(inspect.signature(each).parameters) for each in functions}
        own = dict.fromkeys(each for names in taken.values() for each in names if each not in ("part", "first", "last", "thread"))
        texts.append(f"@njit(cache=True, **BOUND)\ndef {kernel}({', '.join(('first', 'last', 'thread', *own))}):")
        for function, names in taken.items():
            loop = "for part in range(first, last):\n        " if "part" in names else ""
            texts[-1] += f"\n    {loop}{function}({', '.join(names)})"
    given = {each.__name__: each for functions in made_of.values() for each in functions}
    return load_module(name, "\n\n\n".join(texts) + "\n", {**given, "BOUND": BOUND}, build)


NEVER = 0
"""`Made.code` of a call that cannot be repeated: of a kernel that is not compiled, or that covered only some items."""


@dataclass(frozen=True)
class Made:
    """A call that was made: the items 0 .. `total` - 1 of a kernel, split between up to `count` threads."""

    code: int
    arguments: bytes
    """What lay in memory at the address of the arguments."""
    total: int
    count: int
    kept: tuple[object, ...] = field(compare=False)
    """The arguments, so that their memory stays."""


class Calls(threading.local):
    """The calls of one thread."""

    made: list[Made] | None = None
    """Those made so far, in their order, while they are recorded; else None."""


recording = Calls()


class Call:
    """A kernel with its arguments, which it keeps alive. Arrays are passed by address: later changes of their numbers count.

    A kernel that is not compiled gets the same arguments from Python.
    """

    def __init__(self, kernel: Kernel, *arguments: object) -> None:
        self.kernel = kernel
        self.arguments = list(arguments)
        self.code = self.address = 0
        """Addresses of the entry point and of the arguments; 0 before the kernel is compiled, and if it never is."""
        self._entry: Callable[[int, int, int, int], int] | None = None
        self._kinds: Sequence[Type] = ()
        code = kernel.__code__  # type: ignore[attr-defined]  # a dispatcher of Numba has that of its function
        self.names: tuple[str, ...] = code.co_varnames[SPAN : code.co_argcount]
        """Those of the arguments."""
        self._places = {name: n for n, name in enumerate(self.names)}
        self._numbers = {n for n, value in enumerate(arguments) if isinstance(value, int | float | np.generic)}
        self._record: np.ndarray = np.zeros((), np.uint8)
        self._addresses: dict[str, np.ndarray] = {}
        """Where the record has the address of each array, [] each."""

    def __call__(self, first: int, last: int, thread: int) -> None:
        """Do the work of the items `first` .. `last` - 1 with the memory of a thread."""
        self.note(last, 1, whole=first == thread == 0)
        self.run(first, last, thread)

    def run(self, first: int, last: int, thread: int) -> None:
        """Do the same without a record of it."""
        if self._entry or self.compiled():
            check(self._entry(self.address, first, last, thread))  # type: ignore[misc]
        else:
            self.kernel(first, last, thread, *self.arguments)

    def compiled(self) -> bool:
        """Compile the kernel, or load it from the cache, if that can be done; return whether it is. Raises errors of Numba."""
        if not self._entry and is_jitted(self.kernel):
            form = self.kernel, *map(_form, self.arguments)
            entry = _ENTRIES.get(form)
            if entry is None:
                entry = _ENTRIES[form] = _entry_of(self.kernel, tuple(signature(self.arguments)))
            self.code, self._kinds, layout = entry
            self._record = np.array(tuple(map(in_memory, self._kinds, self.arguments)), layout)
            self.address = self._record.ctypes.data
            arrays = (n for n, kind in enumerate(self._kinds) if isinstance(kind, types.Array))
            self._addresses = {self.names[n]: self._record[f"f{n}"]["data"] for n in arrays}
            self._entry = ENTRY(self.code)
        return self._entry is not None

    def note(self, total: int, count: int, whole: bool = True) -> None:
        """Record a call of the items 0 .. `total` - 1, on up to `count` threads, if calls are recorded; not `whole`: of some others."""
        if recording.made is not None:
            code = self.code if whole and self.compiled() else NEVER
            recording.made.append(Made(code, self._record.tobytes(), total, count, tuple(self.arguments)))

    def change(self, **given: object) -> None:
        """Replace arguments, by name, by others of the same types.

        Raises TypeError for an array of another dtype, layout or number of axes, and ValueError for a tuple of another length, and changes
        nothing then; sizes are not looked at.
        """
        changed: dict[int, object] = {}
        fields: list[tuple[np.ndarray, str, object]] = []
        for name, value in given.items():
            number = self._places[name]
            former = self.arguments[number]
            if number in self._numbers and former == value:
                continue
            changed[number] = value
            if self._entry:
                fields += _differing(self._record, number, self._kinds[number], value, former)
        for record, field_name, numbers in fields:  # after all were looked at: a TypeError leaves what was there
            record[field_name] = numbers
        for number, value in changed.items():
            self.arguments[number] = value

    def move(self, **given: np.ndarray) -> None:
        """Replace arrays, by name, by others of the same dtype, shape and strides, which are not looked at.

        The caller keeps them until the call is made, and no longer: libraries may reuse memory that nobody else refers to.
        """
        if not self.compiled():
            self.change(**given)
            return
        for name, array in given.items():
            self._addresses[name][()] = array.__array_interface__["data"][0]


class _Entry(NamedTuple):
    """Where a kernel begins that is compiled for some types."""

    code: int
    """Address of the entry point."""
    kinds: tuple[Type, ...]
    """Types of the arguments, without `first`, `last` and `thread`."""
    layout: np.dtype
    """How they lie in memory."""


_ENTRIES: dict[tuple[object, ...], _Entry] = {}
"""A kernel and the forms of its arguments -> its entry: types of Numba compute their hashes in Python, forms do not."""


def _entry_of(kernel: Dispatcher, kinds: tuple[Type, ...]) -> _Entry:
    kernel.compile(kinds)
    compiled = kernel.overloads[kinds]
    address: int = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cfunc_wrapper_name)
    models = kernel.targetctx.data_model_manager
    return _Entry(address, kinds[SPAN:], _struct([layout_of(models, kind) for kind in kinds[SPAN:]]))


def check(status: int) -> None:
    """Raise RuntimeError if a kernel has ended with an error."""
    if status != 0:
        raise RuntimeError(f"a kernel has ended with status {status}")


@cache
def layout_of(models: DataModelManager, kind: Type) -> np.dtype:
    """Return how a value of a Numba type lies in memory."""
    if isinstance(kind, types.Array):
        assert models[kind]._fields == ARRAY
        address, number, numbers = np.dtype(np.intp), np.dtype(np.int64), np.dtype((np.int64, (kind.ndim,)))
        return np.dtype(list(zip(ARRAY, (address, address, number, number, address, numbers, numbers), strict=True)), align=True)
    if isinstance(kind, types.BaseTuple):
        return _struct([layout_of(models, each) for each in kind])
    return np.dtype(np.intp) if isinstance(kind, types.NoneType) else as_dtype(kind)


def in_memory(kind: Type, value: Any) -> object:
    """Return the numbers of a value of a Numba type, in the layout of `layout_of`. Raises TypeError for an array that has another type."""
    if isinstance(kind, types.Array):
        if _kind_of(value) is not kind:  # else it need not be looked at
            contiguous = kind.layout == "A" or (value.flags.c_contiguous if kind.layout == "C" else value.flags.f_contiguous)
            if value.dtype != as_dtype(kind.dtype) or value.ndim != kind.ndim or not contiguous:
                raise TypeError(f"a kernel for {kind} got an array of {value.dtype} with shape {value.shape} and strides {value.strides}")
        # Kernels count no references (`meminfo`) and hand no arrays to Python (`parent`). NumPy gives empty arrays any address.
        address = value.__array_interface__["data"][0] if value.size else 0
        return 0, 0, value.size, value.itemsize, address, value.shape, value.strides
    if isinstance(kind, types.BaseTuple):
        return tuple(in_memory(each, part) for each, part in zip(kind, value, strict=True))
    return 0 if isinstance(kind, types.NoneType) else value


def _differing(record: np.ndarray, number: int, kind: Type, value: object, former: object) -> Iterator[tuple[np.ndarray, str, object]]:
    """Yield record, field and numbers for field `number`, of a tuple only where it is not `former`, which is there.

    Raises TypeError and ValueError as `Call.change` does.
    """
    if not isinstance(kind, types.BaseTuple):
        yield record, f"f{number}", in_memory(kind, value)
        return
    parts = zip(kind, cast("tuple[object, ...]", value), cast("tuple[object, ...]", former), strict=True)
    for n, (each, new, old) in enumerate(parts):
        if new is not old:
            yield from _differing(record[f"f{number}"], n, each, new, old)


def _struct(layouts: Sequence[np.dtype]) -> np.dtype:
    # Fields with the alignment of C, which LLVM has, too.
    return np.dtype([(f"f{n}", layout) for n, layout in enumerate(layouts)], align=True)
