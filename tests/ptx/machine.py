"""The machine: runs CUDA kernels of Numba on the CPU and says what it saw.

Every array of a launch is copied to a place of its own, far from all others, and back if it was written: an index that
is out of bounds falls between them, and is reported.
"""

import ctypes
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import typeof
from numba.core import types

from tests.ptx.build import MACHINE, Compiled, build, library
from tests.ptx.mistakes import Mistake

SHADOW = np.dtype([("epochs", np.uint32, 5), ("threads", np.uint16, 2)])
APART = 1 << 28
ARENA = 1 << 36


class Order(IntEnum):
    """The order of threads and of blocks; a random one is another one after every barrier."""

    FORWARD = 0
    BACKWARD = 1
    RANDOM = 2


class Kind(IntEnum):
    """What the machine reports; as in `machine.c`."""

    OUT_OF_BOUNDS = 1
    MISALIGNED = 2
    UNWRITTEN_SHARED = 3
    READ_OF_ANOTHERS_WRITE = 4
    WRITE_OF_WHAT_ANOTHER_READS = 5
    TWO_VALUES = 6
    SAME_VALUE_TWICE = 7
    SHARED_BY_BLOCKS = 8
    BARRIER_SKIPPED = 9
    DIFFERENT_BARRIERS = 10
    SPLIT_WARP = 11
    NEVER_WRITTEN = 12
    INCOMPLETE_WARP = 13
    DIVISION_BY_ZERO = 20
    TRAP = 21


RACES = {Kind.READ_OF_ANOTHERS_WRITE, Kind.WRITE_OF_WHAT_ANOTHER_READS, Kind.TWO_VALUES, Kind.SHARED_BY_BLOCKS}
HARMLESS = {Kind.SAME_VALUE_TWICE}
"""Two threads that note the same thing, as `terminated[env] = True`."""


class Fault(ctypes.Structure):
    """As in `machine.c`."""

    _names = ("kind", "space", "region", "line", "other_line", "thread", "other", "block", "size", "count")
    _fields_ = [*((name, ctypes.c_uint32) for name in _names), ("offset", ctypes.c_uint64)]


class Region(ctypes.Structure):
    """As in `machine.c`."""

    _fields_ = [
        ("base", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("granule", ctypes.c_uint32),
        ("written", ctypes.c_uint32),
        ("shadow", ctypes.c_void_p),
    ]


class Finding(NamedTuple):
    kernel: str
    kind: Kind
    where: str

    def __str__(self) -> str:
        return f"{self.kernel}: {self.kind.name}, {self.where}"


@dataclass
class Array:
    """A tensor as kernels take it: for the machine it lies on a device."""

    tensor: torch.Tensor

    def __post_init__(self) -> None:
        self.type = typeof(self.tensor.detach().numpy())


class Issued(NamedTuple):
    """Instructions of a launch, without moves; a warp has as many as its busiest thread."""

    issued: int
    longest: int
    """Of the warp with the most."""
    issued_mma: int
    issued_mufu: int
    """Those for tensor cores, and for the unit of special functions."""


@dataclass
class Seen:
    launches: int = 0
    findings: list[Finding] = field(default_factory=list)
    issued: list[Issued] = field(default_factory=list)
    """Of each launch."""
    bytes: list[int] = field(default_factory=list)
    """Of the arrays of each launch."""


class Machine:
    """Compiles and runs kernels; `seen` has what it saw, by kernel."""

    def __init__(self) -> None:
        self.order = Order.FORWARD
        self.ulps = 0
        """Error of approximate instructions, at most, in units of the last place."""
        self.mistake: Mistake | None = None
        self.seen: dict[str, Seen] = {}
        self._kernels: dict[tuple[int, tuple[Any, ...]], tuple[Any, Compiled]] = {}
        self._runtime = ctypes.CDLL(str(library("machine", MACHINE, "-O2")), mode=ctypes.RTLD_GLOBAL)
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        self.arena = libc.mmap(None, ARENA, 3, 0x4022, -1, 0)  # read, write; private, anonymous, without reserve
        assert self.arena not in (None, 2**64 - 1), "no address space"
        self.shadows: dict[int, np.ndarray] = {}
        self._faults = (Fault * 4096).in_dll(self._runtime, "faults")
        self._fault_count = ctypes.c_uint32.in_dll(self._runtime, "fault_count")
        self._issued = [ctypes.c_uint64.in_dll(self._runtime, name) for name in Issued._fields]

    def findings(self, *allowed: Kind) -> list[Finding]:
        """Return what is wrong: all that was seen but for what is harmless or `allowed`."""
        every = [finding for seen in self.seen.values() for finding in seen.findings]
        return [finding for finding in every if finding.kind not in HARMLESS | set(allowed)]

    def kinds(self) -> Counter[Kind]:
        return Counter(finding.kind for seen in self.seen.values() for finding in seen.findings)

    def compiled(self, dispatcher: Any, signature: tuple[Any, ...]) -> Compiled:
        change = self.mistake and self.mistake.in_ptx(dispatcher.py_func.__name__)
        if change:
            return build(dispatcher, signature, change)
        key = id(dispatcher), signature
        if key not in self._kernels:  # with the dispatcher, so that no other one gets its id
            self._kernels[key] = dispatcher, build(dispatcher, signature)
        return self._kernels[key][1]

    def launch(self, dispatcher: Any, configuration: Sequence[Any], arguments: Sequence[Any]) -> None:
        """Run a kernel as dispatcher[configuration](*arguments) does."""
        signature = tuple(map(type_of, arguments))
        kernel = self.compiled(dispatcher, signature)
        grid, block = (as_three(size) for size in configuration[:2])
        dynamic = configuration[3] if len(configuration) > 3 else 0
        memory = Memory(self, arguments)
        pairs = zip(signature, arguments, strict=True)
        values = [value for kind, given in pairs for value in flat(kind, given, memory)]
        assert kernel.parameters == [ctypes.sizeof(value) for value in values], kernel.name
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        self._fault_count.value = 0
        memory.copy_in(self._runtime)
        failed = self._runtime.launch(
            kernel.function,
            pointers,
            (ctypes.c_uint32 * 3)(*grid),
            (ctypes.c_uint32 * 3)(*block),
            kernel.shared_bytes,
            dynamic,
            self.order,
            ctypes.c_uint64(1),
            self.ulps,
        )
        assert not failed, f"a GPU refuses {kernel.name}: grid {grid}, block {block}, {dynamic} bytes of shared memory"
        memory.copy_out()
        seen = self.seen.setdefault(kernel.name, Seen())
        seen.launches += 1
        seen.issued.append(Issued(*(number.value for number in self._issued)))
        seen.bytes.append(sum(region.size for region in memory.regions))
        names = memory.names(dispatcher.py_func)
        found = [told(kernel, fault, names) for fault in self._faults[: self._fault_count.value]]
        seen.findings += [finding for finding in found if finding not in seen.findings]


class Memory:
    """The arrays of a launch in the arena."""

    def __init__(self, machine: Machine, arguments: Sequence[Any]) -> None:
        self.owners: list[tuple[int, int, int, int]] = []
        """Of each stretch of memory: first and last address, bytes that share a shadow, number of the argument."""
        found = []
        for number, value in enumerate(arguments):
            for tensor in tensors_of(value):
                item, dimensions = tensor.element_size(), zip(tensor.shape, tensor.stride(), strict=True)
                size = item * (1 + sum((n - 1) * stride for n, stride in dimensions)) if tensor.numel() else 0
                found.append((tensor.data_ptr(), tensor.data_ptr() + size, min(4, item), number))
        for begin, end, granule, number in sorted(found):
            if self.owners and begin < self.owners[-1][1]:  # arrays that share memory
                first, last, before, owner = self.owners[-1]
                self.owners[-1] = (first, max(end, last), min(granule, before), owner)
            elif end > begin:
                self.owners.append((begin, end, granule, number))
        regions, at = [], machine.arena
        for n, (begin, end, granule, _) in enumerate(self.owners):
            shadow = machine.shadows.get(n)
            if shadow is None or len(shadow) < (end - begin) // granule + 2:
                machine.shadows[n] = shadow = np.zeros((end - begin) // granule + 2, SHADOW)
            regions.append(Region(at, end - begin, granule, 0, shadow.ctypes.data))
            at += -(-(end - begin) // APART) * APART + APART
        assert at <= machine.arena + ARENA, "the arrays of this launch are too large for the arena"
        self.regions = (Region * len(regions))(*regions)

    def address(self, tensor: torch.Tensor) -> int:
        for (begin, end, _, _), region in zip(self.owners, self.regions, strict=True):
            if begin <= tensor.data_ptr() < end:
                return int(region.base) + tensor.data_ptr() - begin
        return 0

    def copy_in(self, runtime: ctypes.CDLL) -> None:
        for (begin, _, _, _), region in zip(self.owners, self.regions, strict=True):
            ctypes.memmove(region.base, begin, region.size)
        runtime.set_regions(self.regions, len(self.regions))

    def copy_out(self) -> None:
        for (begin, _, _, _), region in zip(self.owners, self.regions, strict=True):
            if region.written:
                ctypes.memmove(begin, region.base, region.size)

    def names(self, function: Any) -> list[str]:
        names = function.__code__.co_varnames
        return [names[number] for _, _, _, number in self.owners]


def told(kernel: Compiled, fault: Fault, names: list[str]) -> Finding:
    kind = Kind(fault.kind)
    memory = "shared memory" if fault.space else names[fault.region] if fault.region < len(names) else "memory"
    where = f"line {fault.line} of {kernel.ptx.name}, block {fault.block} thread {fault.thread}"
    if kind < Kind.BARRIER_SKIPPED or kind == Kind.NEVER_WRITTEN:
        where += f", {memory} + {fault.offset} bytes"
    if kind in RACES | HARMLESS:
        where += f", and thread {fault.other}"
    elif fault.other_line:
        where += ", and another thread"
    if fault.other_line:
        where += f" in line {fault.other_line}"
    return Finding(kernel.name, kind, f"{where} ({fault.count} times)")


def as_three(size: Any) -> tuple[int, int, int]:
    x, y, z = (*(size if isinstance(size, tuple) else (size,)), 1, 1)[:3]
    return x, y, z


def tensors_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, Array):
        return [value.tensor]
    return [tensor for part in value for tensor in tensors_of(part)] if isinstance(value, tuple) else []


def type_of(value: Any) -> Any:
    if isinstance(value, Array):
        return value.type
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return types.NamedTuple([type_of(part) for part in value], type(value))
    if isinstance(value, tuple):
        return types.BaseTuple.from_types([type_of(part) for part in value])
    return typeof(value)


def flat(kind: Any, value: Any, memory: Memory) -> Iterator[Any]:
    """Yield what a kernel takes for a value: of an array seven and more numbers, of a tuple what its members need."""
    if isinstance(kind, types.Array):
        tensor = value.tensor
        item = tensor.element_size()
        numbers = [0, 0, tensor.numel(), item, memory.address(tensor), *tensor.shape, *(item * s for s in tensor.stride())]
        yield from map(ctypes.c_int64, numbers)
    elif isinstance(kind, types.BaseTuple):
        for of_part, part in zip(kind, value, strict=True):
            yield from flat(of_part, part, memory)
    elif kind == types.boolean:
        yield ctypes.c_uint8(value)
    elif isinstance(kind, types.Integer):
        yield getattr(ctypes, f"c_{kind}")(int(value))
    elif isinstance(kind, types.Float):
        yield (ctypes.c_float if kind == types.float32 else ctypes.c_double)(value)
    else:
        raise TypeError(f"a kernel is given a {kind}")


class Launches:
    def __init__(self, module: ModuleType, machine: Machine) -> None:
        self._module, self._machine = module, machine

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        return Launcher(value, self._machine) if hasattr(value, "py_func") and hasattr(value, "configure") else value


class Launcher:
    """A kernel whose launches go to a machine, with what the project asks a kernel for."""

    def __init__(self, dispatcher: Any, machine: Machine) -> None:
        self.dispatcher, self.machine = dispatcher, machine
        self.typeof_pyval = type_of

    def compile(self, signature: tuple[Any, ...]) -> Any:
        """Compile the kernel; nothing here limits the threads of a block."""
        self.machine.compiled(self.dispatcher, signature)
        return SimpleNamespace(max_threads_per_block=1024)

    def __getitem__(self, configuration: tuple[Any, ...]) -> Any:
        return lambda *arguments: self.machine.launch(self.dispatcher, configuration, arguments)
