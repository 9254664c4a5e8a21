"""The folder of a run: its name, the versions it was made with, and its status.

config.yaml           the resolved config
versions.json         software, hardware, command line
status.json           the status of the run: state, env_steps, wall_s, started, ...
metrics.jsonl         one JSON object per log interval
events.out.tfevents.* TensorBoard
checkpoints/          see warprun.runs.checkpoint
environment/          the source and the tables of the environment, see warprun.config.environment_copy
networks/             the source of networks of the user, see warprun.run_folder
lock                  held by the process that trains
"""

from __future__ import annotations

import fcntl
import functools
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
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import yaml
from omegaconf._utils import get_omega_conf_dumper

from warprun.config import reading
from warprun.errors import UserError, one_line, printable, program, typed
from warprun.files import make_folder, read_json, remove_empty, write_atomic
from warprun.processes import usable_cores
from warprun.run_folder import CONFIG, LOCK, PLAN, STATUS, VERSIONS, folder_name, is_free

STATES = ("running", "finished", "solved", "failed", "interrupted")
"""States of a run in status.json."""
ENDED = ("finished", "solved")
"""States of runs that reached their end."""
KILLED = "killed"
"""State that `read_status` returns for a run whose process ended without writing its end: by SIGKILL, or without memory
or power."""


class Held:
    """A run folder that this process trains in; no other process can hold it at the same time."""

    def __init__(self, folder: Path) -> None:
        """Lock `folder`. Raises UserError if another process holds it, and OSError if it cannot be written to."""
        self.folder = folder
        self.made: list[Path] = []
        """The folders that were made for it, innermost first."""
        path = folder / LOCK
        # The kernel releases the lock when the process ends, whatever ends it.
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            self._lock()
            if not self.is_there():
                raise BlockingIOError  # removed by a process that gave up the folder
        except BlockingIOError:
            os.close(self._handle)
            who = read_status(folder)
            by = f" (process {who['pid']} on {who['host']})" if {"pid", "host"} <= who.keys() else ""
            raise UserError(f"another process is training in {folder}{by}; choose another folder, or wait for its end") from None
        except OSError as error:
            if _has_process(folder):
                os.close(self._handle)
                raise UserError(
                    f"status.json in {folder} says that another process is training there, and locks do not work there"
                ) from None
            # A file system without locks: go on without the guarantee, and say so.
            print(f"warning: {path} cannot be locked ({error.strerror}); start no second run in this folder", file=sys.stderr, flush=True)

    def _lock(self) -> None:
        # A reader that asks whether a process trains here holds the lock for a moment, see `is_running`.
        for _ in range(10):
            with suppress(BlockingIOError):
                return fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            time.sleep(0.01)
        raise BlockingIOError

    @classmethod
    def new(cls, folder: Path) -> Held:
        """Make `folder` if it is not there, and lock it. Raises what `Held` raises, and then leaves no folder that it has made."""
        made = make_folder(folder)
        try:
            held = cls(folder)
        except BaseException:
            remove_empty(made)
            raise
        held.made = made
        return held

    def is_there(self) -> bool:
        """Return whether the locked folder is still in its place; it may have been removed or replaced."""
        try:
            now, then = os.stat(self.folder / LOCK), os.fstat(self._handle)
        except OSError:
            return False
        return (now.st_dev, now.st_ino) == (then.st_dev, then.st_ino)

    def release(self) -> None:
        """Let other processes hold the folder."""
        os.close(self._handle)


def create(root: Path, name: str) -> Held:
    """Make a new folder `root/name_YYYYmmdd-HHMMSS_xxxxxx` for a run and lock it. Raises UserError."""
    while True:
        folder = root / f"{folder_name(name)}_{datetime.now():%Y%m%d-%H%M%S}_{secrets.token_hex(3)}"
        if not os.path.lexists(folder):
            return claim(folder)


def claim(folder: Path) -> Held:
    """Make the folder that the user named, or use it if it is empty, and lock it. Raises UserError."""
    try:
        if is_running(folder) or is_free(folder):
            held = Held.new(folder)  # raises the UserError that names the process
            if is_free(folder):  # another process may have trained there before the lock
                return held
            held.release()
    except OSError as error:
        raise UserError(f"cannot make the run folder {folder}: {error.strerror}") from None
    raise UserError(
        f"{folder} exists and is not empty; choose another folder, or continue its run with `{program()} resume={typed(folder)}`"
    )


def is_running(folder: Path) -> bool:
    """Return whether a process trains in a run folder: by its lock, or by its process number if locks do not work there."""
    try:
        handle = os.open(folder / LOCK, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return _has_process(folder)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return _has_process(folder)
    finally:
        os.close(handle)
    return False


def _has_process(folder: Path) -> bool:
    """Return whether the process in status.json exists; True for one of another machine."""
    status = _read_json(folder / STATUS)
    pid = status.get("pid")
    if status.get("state") != "running" or type(pid) is not int:
        return False
    if status.get("host") != socket.gethostname():
        return True
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def latest(root: Path) -> Path:
    """Return the folder in `root` of the run that started last. Raises UserError if there is none."""
    started: dict[Path, datetime] = {}
    broken = []
    try:
        folders = sorted(status.parent for status in root.glob(f"*/{STATUS}"))
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
        raise UserError(f"cannot read {printable(root)}: {one_line(error)}") from None
    for folder in folders:
        try:
            time_of_start = datetime.fromisoformat(str(read_status(folder).get("started")))
            if time_of_start.tzinfo is None:
                raise ValueError("it cannot be compared with the other times")
            started[folder] = time_of_start
        except ValueError:
            broken.append(printable(folder.name))
    if not started:
        sweep = next((plan.parent for pattern in (f"*/{PLAN}", f"sweeps/*/{PLAN}") for plan in root.glob(pattern)), None)
        more = f"; status.json is damaged in {', '.join(broken[:3])}" if broken else ""
        of_sweep = f"; name one of a sweep, such as those in {printable(sweep)}" if sweep else ""
        raise UserError(f"no run in {root}{more}{of_sweep}")
    return max(started, key=lambda folder: started[folder])


def now() -> str:
    """Return the current time in UTC as ISO 8601 text, so that times of different machines compare as text."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def write_status(folder: Path, status: Mapping[str, object]) -> None:
    """Replace status.json and add process id and host; `state` is one of STATES, `started` is from `now()`. Raises OSError."""
    if status.get("state") not in STATES:
        raise ValueError(f"state must be one of {', '.join(STATES)}, not {status.get('state')!r}")
    _write_json(folder / STATUS, {**status, "pid": os.getpid(), "host": socket.gethostname()})


def read_status(folder: Path) -> dict[str, object]:
    """Read status.json; return an empty dict if it is missing or damaged. Of a run whose process has gone, the state is KILLED."""
    status = _read_json(folder / STATUS)
    if status.get("state") not in STATES:
        return {}
    if status.get("state") == "running" and not is_running(folder):
        status["state"] = KILLED
    return status


class Status:
    """Writes how a run is going to status.json; `message` gets a line if that fails."""

    def __init__(self, held: Held, message: Callable[[str], None]) -> None:
        self._held, self._message = held, message
        self._history: dict[str, object] = {"started": now()}
        self._lock = threading.Lock()
        """The thread that reads signals writes the last status."""

    def resume(self, env_steps: int, changed: Sequence[str]) -> None:
        """Note that the run continues after `env_steps`, with other values of the settings `changed`."""
        former = read_status(self._held.folder)
        resumes = former.get("resumes")
        resumed = {"at": now(), "env_steps": env_steps, "changed": list(changed)}
        self._history = {
            "started": former.get("started", now()),
            "resumes": [*(resumes if isinstance(resumes, list) else []), resumed],
        }

    def write(self, state: str, facts: Mapping[str, object], reason: str | None = None) -> None:
        """Write `state` (running, finished, solved, interrupted or failed) with `facts`, and the `reason` of an end."""
        if not self._held.is_there():
            return
        status = {"state": state} | self._history | dict(facts) | ({"reason": reason} if reason else {})
        with self._lock:
            try:
                write_status(self._held.folder, status)
            except OSError as error:
                self._message(f"cannot write {self._held.folder / STATUS}: {error.strerror}")


def _read_json(path: Path) -> dict[str, object]:
    try:
        content = read_json(path)
    except (OSError, UserError):
        return {}
    return content if isinstance(content, dict) else {}


def config_text(config: Mapping[str, object]) -> bytes:
    """Return a config as the text of config.yaml."""
    return "".join(_section_text(key, section) for key, section in config.items()).encode()


def _section_text(key: str, section: object) -> str:
    """Return the text of a section: the runs of a sweep have most of them in common."""
    content = repr((key, section))
    text = _texts.get(content)
    if text is None:
        if len(_texts) >= MOST_TEXTS:
            _texts.clear()
        text = _texts[content] = yaml.dump({key: section}, default_flow_style=False, allow_unicode=True, sort_keys=False, Dumper=_dumper())
    return text


MOST_TEXTS = 256
_texts: dict[str, str] = {}
"""Sections of configs, as Python shows them -> their texts."""


@functools.cache
def _dumper() -> type:
    """Return what writes YAML as OmegaConf does, which puts quotes around texts that look like numbers, by libyaml where it is there."""

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        pass

    Dumper.add_representer(str, get_omega_conf_dumper().str_representer)
    return Dumper


def read_config(folder: Path) -> dict[str, object]:
    """Read config.yaml. Raises UserError if the folder is no run folder."""
    with _is_run(folder):
        return reading.read_config(folder / CONFIG)


def read_settings(folder: Path) -> dict[str, object]:
    """Read config.yaml by dotted key; what it holds is shared with other runs. Raises UserError if the folder is no run folder."""
    with _is_run(folder):
        return reading.read_settings(folder / CONFIG)


@contextmanager
def _is_run(folder: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{printable(folder)} is not a run folder: {_why_no_run(folder)}") from None


def _why_no_run(folder: Path) -> str:
    """Return why a folder without config.yaml is no run folder, and what to name in its place."""
    if not folder.is_dir():
        return "it is a file in one" if folder.exists() else "it does not exist"
    if LOCK in os.listdir(folder) and is_free(folder):
        return "its run has just begun, or was killed in its set-up; try again when it trains"
    runs = sorted(folder.glob(f"*/{CONFIG}"), key=os.path.getmtime)
    return f"it has runs in it, such as {typed(runs[-1].parent)}; name one" if runs else f"it has no {CONFIG}"


def write_versions(folder: Path, found: Mapping[str, object]) -> None:
    """Write `found`, the result of `versions`, to versions.json. Raises OSError."""
    _write_json(folder / VERSIONS, found)


def versions() -> dict[str, object]:
    """Return the versions of software, the hardware and the command line."""
    from warprun.kernels.driver import gpu_name  # policies that have left read run folders without kernels

    found: dict[str, object] = {package: _version(package) for package in ("warprun", "torch", "numba", "numpy", "gymnasium")}
    found |= {
        "python": platform.python_version(),
        "commit": _commit(),
        "platform": platform.platform(),
        "cpu": processor(),
        # The cores that this process may use: in a SLURM job fewer than the machine has.
        "cores": usable_cores(),
        "gpu": gpu_name(),
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


@functools.cache
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
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


@functools.cache
def processor() -> str:
    """Return the name of the processor of this machine."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1) if found else platform.processor() or platform.machine()
