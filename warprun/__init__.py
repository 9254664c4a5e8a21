"""warprun: reinforcement learning at very high data throughput, for people whose environment is a scientific simulation."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warprun.cli.main import train as train
    from warprun.runtime.run import Result as Result

_root = Path(__file__).resolve().parent.parent
if (_root / "conf" / "config.yaml").is_file():
    # A checkout that is not installed: conf/ and envs/ lie beside the package, not in it.
    __path__.append(str(_root))


def __getattr__(name: str) -> Any:
    # Lazy, because both end in torch and numba, which `warprun --help` must not wait for.
    if name == "train":
        from warprun.cli.main import train

        return train
    if name == "Result":
        from warprun.runtime.run import Result

        return Result
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
