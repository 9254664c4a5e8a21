"""The folder of a run: its name, what it was made with, and how it stands.

config.yaml           the resolved config
versions.json         software, hardware, command line
status.json           how the run stands: state, env_steps, wall_s, started, ...
metrics.jsonl         one JSON object a log interval
events.out.tfevents.* TensorBoard
checkpoints/          see warprun.runtime.checkpoint
environment/          the source and the tables of the environment, see warprun.config.kept
"""

from __future__ import annotations

import errno
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
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from warprun.errors import UserError

STATES = ("running", "finished", "solved", "failed", "interrupted")


def create(root: Path, name: str) -> Path:
    """Make a new run folder `root/name_YYYYmmdd-HHMMSS_xxxxxx` that no other run shares. Raises UserError."""
    label = re.sub(r"[^\w.=,+-]+", "-", name).lstrip(".-") or "run"
    while True:
        folder = root / f"{label}_{datetime.now():%Y%m%d-%H%M%S}_{secrets.token_hex(3)}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            if not folder.is_dir():  # The root is a file; a clash of names is tried again.
                raise UserError(f"{root} is a file; choose another folder for the runs") from None
        except OSError as error:
            raise UserError(f"cannot make the run folder {folder}: {error.strerror}") from None


def claim(folder: Path) -> Path:
    """Make the folder that the user asks for, or take it if it is empty. Raises UserError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = any(folder.iterdir())
    except OSError as error:
        raise UserError(f"cannot make the run folder {folder}: {error.strerror}") from None
    if taken:
        raise UserError(f"{folder} exists and is not empty; choose another folder")
    return folder


def latest(root: Path) -> Path:
    """Find the run folder in `root` that was started last. Raises UserError where there is none."""
    started = {status.parent: str(read_status(status.parent).get("started", "")) for status in root.glob("*/status.json")}
    if not started:
        raise UserError(f"no run in {root}")
    return max(started, key=lambda folder: started[folder])


def now() -> str:
    """Tell the time for a status: ISO 8601 in UTC, so that times of different machines compare as text."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def write_status(folder: Path, status: Mapping[str, Any]) -> None:
    """Replace status.json; `state` is one of STATES, `started` is from `now()`, process id and host are added. Raises OSError."""
    if status.get("state") not in STATES:
        raise ValueError(f"state must be one of {', '.join(STATES)}, not {status.get('state')!r}")
    _write_json(folder / "status.json", {**status, "pid": os.getpid(), "host": socket.gethostname()})


def read_status(folder: Path) -> dict[str, Any]:
    """Read status.json; empty where it is missing or damaged."""
    try:
        status = json.loads((folder / "status.json").read_text())
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write the resolved config to config.yaml. Raises OSError."""
    write_atomic(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(dict(config)), resolve=True).encode())


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.yaml. Raises UserError where the folder is no run folder."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise UserError(f"{folder} is no run folder: it has no {path.name}")
    try:
        config = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except (OSError, YAMLError, OmegaConfBaseException, ValueError) as error:
        raise UserError(f"cannot read {path}: {str(error).splitlines()[0]}") from None
    if not isinstance(config, dict):
        raise UserError(f"cannot read {path}: it holds no config")
    return {str(key): value for key, value in config.items()}


def write_versions(folder: Path) -> dict[str, Any]:
    """Write versions.json and return its content. Raises OSError."""
    found = versions()
    _write_json(folder / "versions.json", found)
    return found


def versions() -> dict[str, Any]:
    """Tell what a run is made with: software, hardware and command line."""
    import torch  # Here, so that reading a run folder does not load it.

    found: dict[str, Any] = {package: _version(package) for package in ("warprun", "torch", "numba", "numpy")}
    found |= {
        "python": platform.python_version(),
        "commit": _commit(),
        "platform": platform.platform(),
        "cpu": _cpu(),
        # What this process may use, which in a SLURM job is less than what the machine has.
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "command": shlex.join(sys.argv),
    }
    return found


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file so that after a crash at any point either the old or the new content is there, whole. Raises OSError."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        # On a full disk what was half written is in the way of the next try.
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_atomic(path, json.dumps(_finite(content), indent=2, default=str, allow_nan=False).encode() + b"\n")


def _finite(value: Any) -> Any:
    """Return `value` with None for NaN and infinity, which JSON lacks."""
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # Some network file systems cannot sync folders.
            raise
    finally:
        os.close(handle)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The git commit of the checkout that warprun runs from, with `+` for changes since; None where it is installed."""
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
