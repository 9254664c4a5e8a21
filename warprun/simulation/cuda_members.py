"""Launches of several members of a population in one: the second dimension of the grid counts the members (CUDA).

A kernel is written around that of a single run. It gets the arguments of the first member, and two tables that say how those of the others
differ: how far apart their arrays lie in memory, and their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import count
from types import ModuleType

import numpy as np
import torch
from numba import cuda

from warprun.kernels.moved import moved
from warprun.kernels.repeat import Captured
from warprun.simulation.codegen.templates import fill
from warprun.simulation.cuda_launch import SIMULATED, module_for, on_device, start
from warprun.simulation.launches import Launch, Recorded, is_array, is_own

REGISTERS = 65536
"""Registers of a block: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#features-and-technical-specifications, 5.0 and later."""

KERNEL = '''"""The kernel $name for several members on CUDA; written by warprun."""

from numba import cuda, float32, float64, uint32


@cuda.jit(cache=CACHE, **OPTIONS)
def $name(places, place, places_of_one, numbers, number, numbers_of_one, given):
    place += cuda.blockIdx.y * places_of_one
    number += cuda.blockIdx.y * numbers_of_one
    of_one($arguments)
'''


def merged(works: Sequence[Recorded[object]], device: torch.device) -> Callable[[], None]:
    """Return what does the work of several members, whose launches are alike, at once. They must outlive it."""
    if SIMULATED or len(works) == 1:
        return _repeated([launch for work in works for launch in work.launches], device)
    first = works[0]
    places = np.stack([work.places for work in works]) - first.places
    numbers = np.stack([work.numbers for work in works])
    tables = [torch.from_numpy(np.append(table, table.dtype.type(0))).to(device) for table in (places, numbers)]
    launches = []
    at_place = at_number = 0
    for launch in first.launches:
        source, functions, of_place, of_number = written(launch)
        module = _module(launch.module, launch.name, launch.grid[1], source, functions)
        tabled = on_device(tables[0]), at_place, places.shape[1], on_device(tables[1]), at_number, numbers.shape[1]
        given = (*tabled, tuple(launch.arguments))
        launches.append(launch._replace(module=module, arguments=given, members=len(works)))
        at_place, at_number = at_place + of_place, at_number + of_number
    return _repeated(launches, device)


def _repeated(launches: Sequence[Launch], device: torch.device) -> Callable[[], None]:
    """Return what makes launches, from the fourth time on by a CUDA graph."""

    def once() -> None:
        for launch in launches:
            start(launch)

    return Captured(once) if device.type == "cuda" else once


def written(launch: Launch) -> tuple[str, tuple[type, ...], int, int]:
    """Return the source of the kernel for several members, the classes of tuples in it, and how many arrays and own numbers it takes."""
    arrays, own = count(), count()
    classes: dict[type, str] = {}
    parts = [_argument(value, f"given[{n}]", arrays, own, classes) for n, value in enumerate(launch.arguments)]
    source = fill(KERNEL, name=launch.name, arguments=", ".join(parts))
    return source, tuple(classes), next(arrays), next(own)


def _argument(value: object, text: str, arrays: Iterator[int], own: Iterator[int], classes: dict[type, str]) -> str:
    """Return the expression of an argument of a member; `text` is that of the first member."""
    if is_array(value):
        return f"moved({text}, places[place + {next(arrays)}])"
    if is_own(value):
        kind = "uint32" if isinstance(value, np.uint32) else "float32" if isinstance(value, np.float32) else "float64"
        return f"{kind}(numbers[number + {next(own)}])"
    if not isinstance(value, tuple):
        return text
    fields = getattr(value, "_fields", None)
    names = [f"{text}.{field}" for field in fields] if fields else [f"{text}[{n}]" for n in range(len(value))]
    parts = [_argument(each, name, arrays, own, classes) for each, name in zip(value, names, strict=True)]
    if fields is None:
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    return f"{classes.setdefault(type(value), f'Tuple{len(classes)}')}({', '.join(parts)})"


@cache
def _module(module: ModuleType, name: str, threads: int, source: str, classes: tuple[type, ...]) -> ModuleType:
    """Return the module of the kernel around kernel `name` of a module, for blocks of so many threads."""
    kernel = getattr(module, name)
    options = {"fastmath": kernel.targetoptions["fastmath"]} if kernel.targetoptions["fastmath"] else {}
    # It may need more registers than the kernel inside, and a GPU refuses a block that has more of them than a multiprocessor.
    most = [kernel.targetoptions.get("max_registers"), REGISTERS // threads // 8 * 8 if threads > REGISTERS // 256 else None]
    if any(most):
        options["max_registers"] = min(filter(None, most))
    functions = {f"Tuple{n}": each for n, each in enumerate(classes)} | {
        "of_one": cuda.jit(device=True, forceinline=True, fastmath=kernel.targetoptions["fastmath"])(kernel.py_func),
        "moved": moved,
        "OPTIONS": options,
    }
    return module_for(f"{name}_of_members", source, functions)
