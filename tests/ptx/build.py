"""Compiled kernels for the machine: Numba's PTX, its translation to C, and gcc's library of that, kept beside the kernels of the tests."""

from __future__ import annotations

import ctypes
import hashlib
import inspect
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numba_cuda

from tests.kernels.test_ptx import compiled, nvvm_problem
from tests.ptx.translate import Module
from warprun.kernels.compile import cache_root

HERE = Path(__file__).parent
CAPABILITY = (9, 0)
"""What PTX is compiled for. Kernels ask for nothing newer than 7.5, and the PTX differs little."""


@dataclass(frozen=True)
class Compiled:
    """A kernel for one set of argument types."""

    name: str
    ptx: Path
    function: Any
    """The C function, `void (struct thread *)`."""
    parameters: list[int]
    """Bytes of each."""
    shared_bytes: int
    """Of a fixed size."""
    instructions: int


@cache
def problem() -> str | None:
    """Return why no PTX runs here, or None."""
    if os.name != "posix" or not shutil.which("gcc"):
        return "needs gcc, on Linux"
    return nvvm_problem()


@cache
def version() -> str:
    """Return a hash of the files that say what is built."""
    told = [(HERE / name).read_bytes() for name in ("build.py", "translate.py", "instructions.py", "machine.h")]
    return hashlib.sha256(b"".join(told) + numba_cuda.__version__.encode()).hexdigest()


def folder() -> Path:
    """Return where PTX, C and libraries are kept."""
    made = cache_root() / "ptx"
    made.mkdir(parents=True, exist_ok=True)
    return made


def library(name: str, sources: list[Path], *options: str) -> Path:
    """Compile C files to a shared library, once for their text."""
    command = ["gcc", "-w", "-fPIC", "-shared", "-ffp-contract=off", f"-I{HERE}", *options]
    if "fma" in Path("/proc/cpuinfo").read_text():
        command.append("-mfma")
    text = b"".join(source.read_bytes() for source in [*sources, HERE / "machine.h"])
    made = folder() / f"{name}-{hashlib.sha256(f'{command}'.encode() + text).hexdigest()[:16]}.so"
    if not made.exists():
        unfinished = made.with_suffix(f".{os.getpid()}")
        subprocess.run([*command, *map(str, sources), "-o", str(unfinished), "-lm", "-ldl"], check=True)
        unfinished.replace(made)
    return made


def build(dispatcher: Any, signature: tuple[Any, ...]) -> Compiled:
    """Return a kernel for these types of arguments."""
    function = dispatcher.py_func
    code = function.__module__
    if not code.startswith("warprun_kernels_"):  # those have a hash of all their code in their name
        code = f"{function.__qualname__}{Path(inspect.getfile(function)).read_text()}"
    key = f"{version()}{code}{signature}{CAPABILITY}"
    stem = f"{function.__name__}-{hashlib.sha256(key.encode()).hexdigest()[:20]}"
    ptx, described = (folder() / f"{stem}{suffix}" for suffix in (".ptx", ".json"))
    if not described.exists():
        # Numba asks a GPU for its capability where a kernel calls another compiled function.
        with mock.patch("numba.cuda.dispatcher.get_current_device", lambda: SimpleNamespace(compute_capability=CAPABILITY)):
            text = compiled(function, signature, CAPABILITY)
        translated = Module(text)
        (kernel,) = translated.kernels
        source = ptx.with_suffix(".c")
        for path, content in ((ptx, text), (source, translated.source)):
            _write(path, content)
        made = library(function.__name__, [source], "-O0")
        about = {
            "library": made.name,
            "symbol": kernel.symbol,
            "parameters": list(kernel.parameters.values()),
            "shared_bytes": translated.shared_bytes,
            "instructions": kernel.instructions,
        }
        _write(described, json.dumps(about))
    about = json.loads(described.read_text())
    loaded = getattr(ctypes.CDLL(str(folder() / about["library"])), about["symbol"])
    return Compiled(function.__name__, ptx, loaded, about["parameters"], about["shared_bytes"], about["instructions"])


def _write(path: Path, text: str) -> None:
    """Write a file that another process may write at the same time."""
    unfinished = path.with_suffix(f"{path.suffix}.{os.getpid()}")
    unfinished.write_text(text)
    unfinished.replace(path)
