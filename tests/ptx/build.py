"""Compiled kernels for the machine: Numba's PTX, its translation to C, gcc's library of that, and their cache."""

import ctypes
import hashlib
import inspect
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from tests.kernels.test_ptx import compiled
from tests.ptx.tensor_core import defines
from tests.ptx.translate import Module
from warprun.kernels.compile import cache_root

HERE = Path(__file__).parent
MACHINE = [HERE / "machine.c", HERE / "tensor_core.c"]
CAPABILITY = (9, 0)
"""What PTX is compiled for. Tensor cores need 8.0, other kernels nothing newer than 7.5; the PTX differs little."""

NEEDED = [pytest.mark.ptx, pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")]


@dataclass(frozen=True)
class Compiled:
    """A kernel for one set of argument types."""

    name: str
    symbol: str
    ptx: Path
    function: Any
    """The C function, `void (struct thread *)`."""
    parameters: list[int]
    shared_bytes: int
    """Of a fixed size."""


@cache
def version() -> str:
    return digest("".join((HERE / name).read_text() for name in ("translate.py", "instructions.py", "memory.py", "machine.h")))


def folder() -> Path:
    made = cache_root() / "ptx"
    made.mkdir(parents=True, exist_ok=True)
    return made


def library(name: str, sources: list[Path], *options: str) -> Path:
    """Compile C files to a shared library, once for their text."""
    command = ["gcc", "-w", "-fPIC", "-shared", "-ffp-contract=off", f"-I{HERE}", *options, *defines()]
    if "fma" in Path("/proc/cpuinfo").read_text():
        command.append("-mfma")
    text = b"".join(source.read_bytes() for source in [*sources, HERE / "machine.h"])
    made = folder() / f"{name}-{hashlib.sha256(f'{command}'.encode() + text).hexdigest()[:16]}.so"
    if not made.exists():
        unfinished = made.with_suffix(f".{os.getpid()}")
        subprocess.run([*command, *map(str, sources), "-o", str(unfinished), "-lm", "-ldl"], check=True)
        unfinished.replace(made)
    return made


def build(dispatcher: Any, signature: tuple[Any, ...], change: Callable[[str], str] | None = None) -> Compiled:
    """Return a kernel for these types of arguments; `change` changes its PTX."""
    function = dispatcher.py_func
    code = function.__module__
    if not code.startswith("warprun_kernels_"):  # those have a hash of all their code in their name
        code = f"{function.__qualname__}{Path(inspect.getfile(function)).read_text()}"
    ptx = folder() / f"{function.__name__}-{digest(metadata.version('numba-cuda') + code + f'{signature}{CAPABILITY}')}.ptx"
    if not ptx.exists():
        # Numba asks a GPU for its capability where a kernel calls another compiled function.
        device = SimpleNamespace(compute_capability=CAPABILITY)
        with mock.patch("numba.cuda.dispatcher.get_current_device", lambda: device):
            write(ptx, compiled(function, signature, CAPABILITY))
    if change:
        text = change(ptx.read_text())
        ptx = ptx.with_stem(f"{ptx.stem}-{digest(text)}")
        write(ptx, text)
    return translated(ptx, function.__name__)


def translated(ptx: Path, name: str) -> Compiled:
    """Return the kernel in a file of PTX, as a function of this process."""
    described = ptx.with_name(f"{ptx.stem}-{version()}.json")
    if not described.exists():
        module = Module(ptx.read_text())
        (kernel,) = module.kernels
        write(described.with_suffix(".c"), module.source)
        about = {
            # Optimised, a large kernel would take ten times as long to compile, and it runs for a fraction of a second.
            "library": library(name, [described.with_suffix(".c")], "-O0").name,
            "name": kernel.name,
            "symbol": kernel.symbol,
            "parameters": list(kernel.parameters.values()),
            "shared_bytes": module.shared_bytes,
        }
        write(described, json.dumps(about))
    about = json.loads(described.read_text())
    loaded = getattr(ctypes.CDLL(str(folder() / about["library"])), about["symbol"])
    return Compiled(name, about["name"], ptx, loaded, about["parameters"], about["shared_bytes"])


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write(path: Path, text: str) -> None:
    """Write a file that another process may write at the same time."""
    unfinished = path.with_suffix(f"{path.suffix}.{os.getpid()}")
    unfinished.write_text(text)
    unfinished.replace(path)
