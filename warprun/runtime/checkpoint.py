"""Checkpoints: named tensors and a JSON meta in one file, that a crash at any point leaves loadable.

A file is an uncompressed .npz without pickle: `header` holds JSON text, `tensor/NAME` a tensor. `manifest.json` lists the files in the
order of saving with their SHA-256. A checkpoint counts from the moment it is in the manifest, and older files go only after that.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from warprun.errors import UserError
from warprun.runtime.rundir import write_atomic

FORMAT = 2
"""1 had other parameters in the places of a shared trunk's heads."""
MANIFEST = "manifest.json"
LAST, BEST = "checkpoints", "best"
"""Folders of a run: the newest checkpoints, and the one with the best evaluation."""


@dataclass(frozen=True)
class Entry:
    """A line of the manifest."""

    file: str
    sha256: str
    size: int
    env_steps: int


@dataclass(frozen=True)
class Loaded:
    """The content of a checkpoint; tensors are on the CPU."""

    env_steps: int
    tensors: dict[str, torch.Tensor]
    meta: dict[str, Any]
    path: Path


class _DamagedError(Exception):
    """Why a file cannot be used."""


def save(
    folder: Path,
    env_steps: int,
    tensors: Mapping[str, torch.Tensor | np.ndarray],
    meta: Mapping[str, Any],
    keep: int = 2,
    line: str = LAST,
) -> Path:
    """Write `folder/<line>/step_<env_steps>.ckpt` and drop all but the last `keep` checkpoints of that line.

    `meta` is JSON-able. Raises OSError where it cannot be written: the earlier checkpoints are then still there.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, not {keep}")
    home = folder / line
    home.mkdir(parents=True, exist_ok=True)
    try:
        listed = _read_manifest(home)
    except _DamagedError:
        listed = []
    # A run that fell back to an earlier checkpoint has abandoned the later ones.
    listed = [entry for entry in listed if entry.env_steps <= env_steps]
    data = _pack(env_steps, tensors, meta)
    name = _free_name(env_steps, {entry.file for entry in listed})
    write_atomic(home / name, data)
    kept = [*listed, Entry(name, hashlib.sha256(data).hexdigest(), len(data), env_steps)][-keep:]
    write_atomic(home / MANIFEST, json.dumps([asdict(entry) for entry in kept], indent=2).encode() + b"\n")
    _sweep(home, {entry.file for entry in kept})
    return home / name


def load(folder: Path, line: str = LAST) -> Loaded:
    """Read the newest checkpoint in `folder/<line>`; fall back to the one before, with a warning, where it is damaged.

    Raises UserError where there is none that can be used.
    """
    home = folder / line
    problem = "there is none"
    for path, entry in _candidates(home):
        try:
            return _unpack(path, entry)
        except (_DamagedError, OSError) as error:
            problem = f"{path.name} {error.strerror if isinstance(error, OSError) else error}"
            _warn(f"{problem}; trying the checkpoint before it")
    raise UserError(f"no usable checkpoint in {home}: {problem}")


def newest(folder: Path, line: str = LAST) -> str:
    """Say which checkpoint of a run is the newest."""
    candidates = _candidates(folder / line) if (folder / line).is_dir() else []
    return f"the last good checkpoint is {candidates[0][0]}" if candidates else "there is no checkpoint yet"


def _candidates(home: Path) -> list[tuple[Path, Entry | None]]:
    """Files to try, newest first; without an entry where the manifest is lost, and then the checksums within the files must do."""
    try:
        return [(home / entry.file, entry) for entry in reversed(_read_manifest(home))]
    except _DamagedError as error:
        files = sorted(home.glob("step_*.ckpt"), reverse=True)
        if files:
            _warn(f"{MANIFEST} {error}; taking the newest file that is whole")
        return [(file, None) for file in files]


def _read_manifest(home: Path) -> list[Entry]:
    try:
        listed = json.loads((home / MANIFEST).read_text())
        if not isinstance(listed, list):
            raise TypeError("the manifest is a list")
        return [Entry(**fields) for fields in listed]
    except FileNotFoundError:
        raise _DamagedError("is missing") from None
    except (ValueError, TypeError):
        raise _DamagedError("is damaged") from None


def _pack(env_steps: int, tensors: Mapping[str, torch.Tensor | np.ndarray], meta: Mapping[str, Any]) -> bytes:
    header = json.dumps({"format": FORMAT, "env_steps": env_steps, "meta": dict(meta)}).encode()
    arrays: dict[str, Any] = {"header": np.frombuffer(header, np.uint8)}
    for name, tensor in tensors.items():
        array = tensor.detach().cpu().numpy() if isinstance(tensor, torch.Tensor) else tensor
        arrays[f"tensor/{name}"] = np.asarray(array, order="C")
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def _unpack(path: Path, entry: Entry | None) -> Loaded:
    data = path.read_bytes()
    if entry is not None and hashlib.sha256(data).hexdigest() != entry.sha256:
        raise _DamagedError("is damaged: it does not match its SHA-256")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            # Without an entry the checksums that zipfile compares here must do.
            content = {name: arrays[name] for name in arrays.files}
        header = json.loads(content.pop("header").tobytes())
    except (ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile):  # What zipfile and numpy raise on broken input.
        raise _DamagedError("is damaged: it is no checkpoint") from None
    if header["format"] != FORMAT:
        raise _DamagedError(f"is of format {header['format']}, of another version of warprun: this one reads {FORMAT}")
    tensors = {name.removeprefix("tensor/"): torch.from_numpy(array) for name, array in content.items()}
    return Loaded(header["env_steps"], tensors, header["meta"], path)


def _free_name(env_steps: int, taken: set[str]) -> str:
    # Never over a file that the manifest lists: between the two renames it would match no hash.
    names = (f"step_{env_steps:012d}{suffix}.ckpt" for suffix in itertools.chain([""], (f"_{n}" for n in itertools.count(2))))
    return next(name for name in names if name not in taken)


def _sweep(home: Path, kept: set[str]) -> None:
    """Remove older checkpoints and what a crash left behind."""
    for path in home.glob("step_*"):
        if path.name not in kept:
            path.unlink(missing_ok=True)


def _warn(text: str) -> None:
    print(f"warning: checkpoint: {text}", file=sys.stderr, flush=True)
