"""warprun: reinforcement learning at very high data throughput, for people whose environment is a scientific simulation."""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if sys.platform == "win32":
    from warprun.errors import UserError

    raise UserError("warprun runs on Linux and macOS; on Windows install it in the Windows Subsystem for Linux (WSL 2)")

if TYPE_CHECKING:
    from warprun.cli.train import train
    from warprun.errors import TrainingFailed, UserError
    from warprun.interop.parallel import make_parallel
    from warprun.interop.sb3 import make_sb3
    from warprun.interop.vector import make_vec
    from warprun.policies.loading import load
    from warprun.policies.policy import Policy
    from warprun.report.listing import results
    from warprun.runs.result import Result

__all__ = ["Policy", "Result", "TrainingFailed", "UserError", "load", "make_parallel", "make_sb3", "make_vec", "results", "train"]

_LAZY = {
    "train": "warprun.cli.train",
    "TrainingFailed": "warprun.errors",
    "UserError": "warprun.errors",
    "Result": "warprun.runs.result",
    "results": "warprun.report.listing",
    "load": "warprun.policies.loading",
    "Policy": "warprun.policies.policy",
    "make_vec": "warprun.interop.vector",
    "make_parallel": "warprun.interop.parallel",
    "make_sb3": "warprun.interop.sb3",
}
"""Public names whose modules import torch and some numba, which take seconds, or libraries that need not be installed.
Nothing is imported with the package: a command first watches for signals."""

_MODULES = ("data", "environment", "errors", "math", "random")
"""Modules for users, which are attributes of the package without an import statement."""

_package = Path(__file__).resolve().parent
if not (_package / "conf").is_dir() and (_package.parent / "conf" / "warprun.yaml").is_file():
    # A checkout that is not installed: conf/ and envs/ lie beside the package, not in it.
    __path__.append(str(_package.parent))


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, *(name for name in globals() if name.startswith("__"))})
