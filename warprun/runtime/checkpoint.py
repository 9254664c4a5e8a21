"""Checkpoints: named tensors and a JSON header in one file. A crash at any point leaves a checkpoint that can be loaded.

A file is an uncompressed .npz without pickle: `header` holds JSON text, `tensor/NAME` a tensor. `manifest.json` lists the files in the
order of saving with their SHA-256. A checkpoint is valid once the manifest lists it; only then are older files removed.
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
from typing import TypedDict

import numpy as np
import torch

from warprun.errors import UserError
from warprun.files import write_atomic

FORMAT = 2
"""Version of the format. Format 1 stored the heads of a shared trunk under other names."""
MANIFEST = "manifest.json"
LAST, BEST = "checkpoints", "best"
"""Folders of a run: the newest checkpoints, and the one with the best evaluation."""


class Meta(TypedDict, total=False):
    """What a checkpoint holds in addition to its tensors."""

    steps: int
    """Steps of each environment since the start of the run."""
    evaluation: dict[str, float]
    """`mean` and `stderr` of the return in the evaluation before it was saved; either may be missing."""


@dataclass(frozen=True)
class Entry:
    """An entry of the manifest."""

    file: str
    sha256: str
    size: int
    env_steps: int


@dataclass(frozen=True)
class Loaded:
    """The content of a checkpoint; tensors are on the CPU."""

    env_steps: int
    tensors: dict[str, torch.Tensor]
    meta: Meta
    path: Path


class _DamagedError(Exception):
    """The reason why a file cannot be used."""


def save(
    folder: Path,
    env_steps: int,
    tensors: Mapping[str, torch.Tensor | np.ndarray],
    meta: Meta,
    keep: int = 2,
    line: str = LAST,
) -> Path:
    """Write `folder/<line>/step_<env_steps>.ckpt` and remove all but the last `keep` checkpoints of that line.

    Raises OSError if it cannot be written; the earlier checkpoints are then kept.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, not {keep}")
    home = folder / line
    home.mkdir(parents=True, exist_ok=True)
    try:
        listed = _read_manifest(home)
    except _DamagedError:
        listed = []
    # Checkpoints of more steps than this one belong to a discarded part of the run.
    listed = [entry for entry in listed if entry.env_steps <= env_steps]
    data = _pack(env_steps, tensors, meta)
    name = _free_name(env_steps, {entry.file for entry in listed})
    write_atomic(home / name, data)
    kept = [*listed, Entry(name, hashlib.sha256(data).hexdigest(), len(data), env_steps)][-keep:]
    write_atomic(home / MANIFEST, json.dumps([asdict(entry) for entry in kept], indent=2).encode() + b"\n")
    _sweep(home, {entry.file for entry in kept})
    return home / name


def load(folder: Path, line: str = LAST) -> Loaded:
    """Read the newest checkpoint in `folder/<line>`; if it is damaged, warn and read the one before it.

    Raises UserError if no checkpoint can be used.
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


def newest(folder: Path) -> str:
    """Return a line that names the newest checkpoint of a run."""
    home = folder / LAST
    candidates = _candidates(home) if home.is_dir() else []
    return f"the last good checkpoint is {candidates[0][0]}" if candidates else "there is no checkpoint yet"


def _candidates(home: Path) -> list[tuple[Path, Entry | None]]:
    """Return the files to try, newest first, with their entries in the manifest; None without a manifest."""
    try:
        return [(home / entry.file, entry) for entry in reversed(_read_manifest(home))]
    except _DamagedError as error:
        files = sorted(home.glob("step_*.ckpt"), reverse=True)
        if files:
            _warn(f"{MANIFEST} {error}; using the newest complete file")
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


def _pack(env_steps: int, tensors: Mapping[str, torch.Tensor | np.ndarray], meta: Meta) -> bytes:
    header = json.dumps({"format": FORMAT, "env_steps": env_steps, "meta": dict(meta)}).encode()
    arrays: dict[str, np.ndarray] = {"header": np.frombuffer(header, np.uint8)}
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
            # zipfile compares its own checksums here.
            content = {name: arrays[name] for name in arrays.files}
        header = json.loads(content.pop("header").tobytes())
    except (ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile):  # raised by zipfile and numpy for broken files
        raise _DamagedError("is damaged: it is not a checkpoint") from None
    if header["format"] != FORMAT:
        raise _DamagedError(f"has format {header['format']} of another version of warprun; this version reads format {FORMAT}")
    tensors = {name.removeprefix("tensor/"): torch.from_numpy(array) for name, array in content.items()}
    return Loaded(header["env_steps"], tensors, header["meta"], path)


def _free_name(env_steps: int, taken: set[str]) -> str:
    # A file that the manifest lists is never replaced: until the manifest is replaced too, its hash would not match.
    names = (f"step_{env_steps:012d}{suffix}.ckpt" for suffix in itertools.chain([""], (f"_{n}" for n in itertools.count(2))))
    return next(name for name in names if name not in taken)


def _sweep(home: Path, kept: set[str]) -> None:
    """Remove older checkpoints and unfinished files of a crash."""
    for path in home.glob("step_*"):
        if path.name not in kept:
            path.unlink(missing_ok=True)


def _warn(text: str) -> None:
    print(f"warning: checkpoint: {text}", file=sys.stderr, flush=True)
