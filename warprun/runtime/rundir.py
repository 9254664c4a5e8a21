"""The folder of a run: its name, the versions it was made with, and its status.

config.yaml           the resolved config
versions.json         software, hardware, command line
status.json           the status of the run: state, env_steps, wall_s, started, ...
metrics.jsonl         one JSON object per log interval
events.out.tfevents.* TensorBoard
checkpoints/          see warprun.runtime.checkpoint
environment/          the source and the tables of the environment, see warprun.config.kept
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import re
import secrets
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from warprun.errors import UserError
from warprun.files import write_atomic

STATES = ("running", "finished", "solved", "failed", "interrupted")


def create(root: Path, name: str) -> Path:
    """Make a new folder `root/name_YYYYmmdd-HHMMSS_xxxxxx` for a run. Raises UserError."""
    label = re.sub(r"[^\w.=,+-]+", "-", name).lstrip(".-") or "run"
    while True:
        folder = root / f"{label}_{datetime.now():%Y%m%d-%H%M%S}_{secrets.token_hex(3)}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            if not folder.is_dir():  # The root is a file. If only the name is taken, another one is tried.
                raise UserError(f"{root} is a file; choose another folder for the runs") from None
        except OSError as error:
            raise UserError(f"cannot make the run folder {folder}: {error.strerror}") from None


def claim(folder: Path) -> Path:
    """Make the folder that the user named, or use it if it is empty. Raises UserError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = any(folder.iterdir())
    except OSError as error:
        raise UserError(f"cannot make the run folder {folder}: {error.strerror}") from None
    if taken:
        raise UserError(f"{folder} exists and is not empty; choose another folder")
    return folder


def latest(root: Path) -> Path:
    """Return the folder in `root` of the run that started last. Raises UserError if there is none."""
    started = {status.parent: str(read_status(status.parent).get("started", "")) for status in root.glob("*/status.json")}
    if not started:
        raise UserError(f"no run in {root}")
    return max(started, key=lambda folder: started[folder])


def now() -> str:
    """Return the current time in UTC as ISO 8601 text, so that times of different machines compare as text."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def write_status(folder: Path, status: Mapping[str, object]) -> None:
    """Replace status.json and add process id and host; `state` is one of STATES, `started` is from `now()`. Raises OSError."""
    if status.get("state") not in STATES:
        raise ValueError(f"state must be one of {', '.join(STATES)}, not {status.get('state')!r}")
    _write_json(folder / "status.json", {**status, "pid": os.getpid(), "host": socket.gethostname()})


def read_status(folder: Path) -> dict[str, object]:
    """Read status.json; return an empty dict if it is missing or damaged."""
    try:
        status = json.loads((folder / "status.json").read_text())
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}


def write_config(folder: Path, config: Mapping[str, object]) -> None:
    """Write the resolved config to config.yaml. Raises OSError."""
    write_atomic(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(dict(config)), resolve=True).encode())


def read_config(folder: Path) -> dict[str, object]:
    """Read config.yaml. Raises UserError if the folder is no run folder."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise UserError(f"{folder} is not a run folder: it has no {path.name}")
    try:
        config = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except (OSError, YAMLError, OmegaConfBaseException, ValueError) as error:
        raise UserError(f"cannot read {path}: {str(error).splitlines()[0]}") from None
    if not isinstance(config, dict):
        raise UserError(f"cannot read {path}: it holds no config")
    return {str(key): value for key, value in config.items()}


def write_versions(folder: Path) -> dict[str, object]:
    """Write versions.json and return its content. Raises OSError."""
    found = versions()
    _write_json(folder / "versions.json", found)
    return found


def versions() -> dict[str, object]:
    """Return the versions of software, the hardware and the command line."""
    import torch  # Here, so that reading a run folder does not import it.

    found: dict[str, object] = {package: _version(package) for package in ("warprun", "torch", "numba", "numpy")}
    found |= {
        "python": platform.python_version(),
        "commit": _commit(),
        "platform": platform.platform(),
        "cpu": _cpu(),
        # The cores that this process may use: in a SLURM job fewer than the machine has.
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "command": shlex.join(sys.argv),
    }
    return found


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    write_atomic(path, json.dumps(_finite(content), indent=2, default=str, allow_nan=False).encode() + b"\n")


def _finite(value: object) -> object:
    """Return `value` with None for NaN and infinity, which JSON lacks."""
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the git commit of the checkout that warprun runs from, with `+` if files have changed; None for an installed wheel."""
    checkout = Path(__file__).parents[2]
    if not (checkout / ".git").exists():
        return None
    command = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1) if found else platform.processor() or platform.machine()
