"""warprun: reinforcement learning at very high data throughput, for people whose environment is a scientific simulation."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from warprun.errors import TrainingFailed, UserError

if TYPE_CHECKING:
    from warprun.cli.main import train
    from warprun.runtime.run import Result

__all__ = ["Result", "TrainingFailed", "UserError", "train"]

_MODULES = ("data", "environment", "errors", "math", "random")
"""Modules for users, which are attributes of the package without an import statement."""

_package = Path(__file__).resolve().parent
if not (_package / "conf").is_dir() and (_package.parent / "conf" / "warprun.yaml").is_file():
    # A checkout that is not installed: conf/ and envs/ lie beside the package, not in it.
    __path__.append(str(_package.parent))


def __getattr__(name: str) -> object:
    # Lazy: both import torch and numba, which take seconds.
    if name == "train":
        from warprun.cli.main import train

        return train
    if name == "Result":
        from warprun.runtime.run import Result

        return Result
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, *(name for name in globals() if name.startswith("__"))})
