"""Checkpoints: named tensors and a JSON header in one file. A crash at any point leaves a checkpoint that can be loaded.

A file is an uncompressed .npz without pickle: `header` holds JSON text, `tensor/NAME` a tensor. `manifest.json` lists the files in the
order of saving with their SHA-256. A checkpoint is valid once the manifest lists it; only then, and once both are on the disk, are older
files removed. Tensors are written and read one at a time, so a checkpoint is never in memory as a whole.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypedDict

import numpy as np
import torch
from omegaconf import OmegaConf

from warprun.errors import MOST_PRINTED, UserError, printable, program, typed
from warprun.files import BROKEN, atomic, open_regular, read_array, read_json, to_disk, write_atomic
from warprun.learning.settings.agent import AgentConfig
from warprun.run_folder import LINES, MANIFEST
from warprun.runs import rundir
from warprun.spec import GroupSpec

FORMAT = 4
"""Version of the format."""
MAX_HEADER_BYTES = 16 << 20
PIECE_BYTES = 1 << 18
"""Bytes that are written at a time."""
MAX_NUMBER = 1e100
"""Largest size of a number in a header; all are returns, which are sums of float32."""
LAST, BEST = LINES["last"], LINES["best"]
"""Folders of a run: the newest checkpoints, and the one with the best evaluation."""


class Meta(TypedDict, total=False):
    """The contents of a checkpoint apart from its tensors."""

    evaluation: dict[str, float]
    """`mean` and `stderr` of the return in the evaluation before it was saved. The last checkpoint of a run that has ended may have `more`
    and `more_stderr`: how much more the best one, after `best_env_steps`, returned in the same episodes. Each may be missing."""
    group: str
    """Of several groups the one whose return that is, and which decides what is best; missing with one group."""
    run: dict[str, object]
    """The position of the run, see `runs.position`; a checkpoint without it cannot be resumed."""
    spec: dict[str, object]
    """The groups and spaces of the environment, see `saved_spec.to_data`."""


class Entry(NamedTuple):
    """An entry of the manifest."""

    file: str
    sha256: str
    size: int
    env_steps: int


@dataclass(frozen=True)
class Loaded:
    """The content of a checkpoint."""

    env_steps: int
    tensors: Mapping[str, torch.Tensor]
    """On the CPU; each access reads the file."""
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

    Raises OSError if it cannot be written, or if `folder` does not exist; the earlier checkpoints are then kept.
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, not {keep}")
    home = folder / line
    home.mkdir(exist_ok=True)  # without parents: a run folder that was removed does not come back
    try:
        listed = _read_manifest(home)
    except _DamagedError:
        listed = []
    # Checkpoints of more steps than this one belong to a discarded part of the run.
    listed = [entry for entry in listed if entry.env_steps <= env_steps]
    name = _free_name(env_steps, {entry.file for entry in listed})
    with atomic(home / name) as file:
        hashed = _Hashed(file)
        _write(hashed, env_steps, tensors, meta)
        hashed.flush()
    kept = [*listed, Entry(name, hashed.sha256.hexdigest(), hashed.size, env_steps)][-keep:]
    _keep(home, kept)
    return home / name


def discard_after(folder: Path, env_steps: int, line: str) -> None:
    """Remove the checkpoints in `folder/<line>` with more than `env_steps`: they belong to a discarded part of the run. Raises OSError."""
    home = folder / line
    try:
        listed = _read_manifest(home)
    except _DamagedError:
        return
    kept = [entry for entry in listed if entry.env_steps <= env_steps]
    if kept != listed:
        _keep(home, kept)


def load(folder: Path, line: str = LAST) -> Loaded:
    """Read the newest checkpoint in `folder/<line>`; if it is damaged, warn and read the one before it.

    Raises UserError if no checkpoint can be used.
    """
    home, problem = folder / line, ""
    for path, entry in _candidates(home):
        try:
            return _open(path, entry)
        except (_DamagedError, OSError) as error:
            problem = f"{path.name} {error.strerror if isinstance(error, OSError) else error}"
            _warn(f"{problem}; trying the checkpoint before it")
    raise UserError(f"no usable checkpoint in {home}: {problem}" if problem else _why_none(folder, line))


def _why_none(folder: Path, line: str) -> str:
    """Return in one line why a run has saved no checkpoint in `folder/<line>`, and what to do."""
    state, is_best = rundir.read_status(folder).get("state"), line == BEST
    none = f"{printable(folder)} has no {'best checkpoint' if is_best else 'checkpoint'}"
    if state is None:
        return f"{none}: the folder {line} is missing or empty"
    if state == "running" and is_best:
        return f"{none}: its run goes on and has none yet: it is saved after an evaluation (eval.every) unless checkpoint.best=false"
    if state == "running":
        wait = "wait for the next one (checkpoint.every), or stop it with Ctrl-C, which saves one"
        return f"{none}: its run goes on and has saved none yet: {wait}"
    if is_best and exists(folder):
        return f"{none}: its run made no evaluation, or had checkpoint.best=false: checkpoint=last is there"
    ended = f"was {state}" if state in (rundir.KILLED, "interrupted") else str(state)
    return f"{none}: its run {ended} before it saved one; begin it again: {program()} resume={typed(folder)}"


def exists(folder: Path) -> bool:
    """Return whether a run has saved a checkpoint, which may be damaged."""
    return any(path.name == MANIFEST or path.suffix == ".ckpt" for path in (folder / LAST).glob("*"))


def newest(folder: Path) -> str:
    """Return a line that names the newest checkpoint of a run."""
    home = folder / LAST
    candidates = _candidates(home) if home.is_dir() else []
    return f"the last good checkpoint is {printable(candidates[0][0])}" if candidates else "there is no checkpoint yet"


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
        listed = read_json(home / MANIFEST)
        if not isinstance(listed, list):
            raise TypeError("the manifest is a list")
        entries = [Entry(**fields) for fields in listed]
    except FileNotFoundError:
        raise _DamagedError("is missing") from None
    except (TypeError, UserError):
        raise _DamagedError("is damaged") from None
    for entry in entries:
        kinds = (str, str, int, int)
        if not all(type(value) is kind for value, kind in zip(entry, kinds, strict=True)) or entry.file != Path(entry.file).name:
            raise _DamagedError("is damaged")
    return entries


class _Hashed:
    """A file that is written from its beginning to its end, with the SHA-256 and the size of its content."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._pieces = file, bytearray()
        self.sha256 = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes | memoryview) -> int:
        # zipfile writes many small pieces: each would cost more than its bytes do.
        self._pieces += data
        if len(self._pieces) >= PIECE_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        """Write what there is to the file."""
        if self._pieces:
            self.sha256.update(self._pieces)
            self.size += len(self._pieces)
            self._file.write(self._pieces)
            self._pieces.clear()


def _write(file: _Hashed, env_steps: int, tensors: Mapping[str, torch.Tensor | np.ndarray], meta: Meta) -> None:
    header = json.dumps({"format": FORMAT, "env_steps": env_steps, "meta": meta}).encode()
    # zipfile accepts anything with `write`; without `seek` it puts the lengths behind the members.
    with zipfile.ZipFile(file, "w") as archive:  # type: ignore[call-overload]
        _add(archive, "header", np.frombuffer(header, np.uint8))
        for name, tensor in tensors.items():
            _add(archive, f"tensor/{name}", tensor.detach().cpu().numpy() if isinstance(tensor, torch.Tensor) else tensor)


def _add(archive: zipfile.ZipFile, name: str, array: np.ndarray) -> None:
    with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
        data = np.asarray(array, order="C")
        member.write(_npy_header(data.dtype, data.shape))
        content = data.reshape(-1).view(np.uint8).data
        for first in range(0, len(content), PIECE_BYTES):
            member.write(content[first : first + PIECE_BYTES])


@lru_cache(maxsize=512)
def _npy_header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """Return what a .npy file has before its data: a checkpoint has dozens of arrays, and those of other runs have the same shapes."""
    text = io.BytesIO()
    np.lib.format.write_array_header_1_0(text, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape})
    return text.getvalue()


def _open(path: Path, entry: Entry | None) -> Loaded:
    """Check a file against its entry and return its content. Raises _DamagedError and OSError."""
    try:
        file = open_regular(path)
    except UserError as error:
        raise _DamagedError(str(error).removeprefix(f"{path} ")) from None
    # The size first, because a file of any size takes no space if it is sparse.
    if entry is not None and (
        os.fstat(file.fileno()).st_size != entry.size or hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256
    ):
        raise _DamagedError("is damaged: it does not match its SHA-256")
    try:
        archive = zipfile.ZipFile(file)
        infos = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if any(info.compress_type != zipfile.ZIP_STORED or info.comment for info in infos.values()):
            raise ValueError("a checkpoint has neither compression nor comments, behind which members can be hidden")
        if entry is None:  # no SHA-256 is known, so the checksums of zipfile have to do
            for info in infos.values():
                read_array(archive, info)
        if infos["header"].file_size > MAX_HEADER_BYTES:
            raise ValueError("the header is too long")
        header = json.loads(read_array(archive, infos.pop("header")).tobytes())
        version, env_steps, meta = header["format"], header["env_steps"], header["meta"]
        evaluation = meta.get("evaluation", {})
        if (
            type(env_steps) is not int
            or not 0 <= env_steps < 2**63
            or not all(isinstance(value, float | int) and -MAX_NUMBER < value < MAX_NUMBER for value in evaluation.values())
            or not isinstance(meta.get("group", ""), str)
        ):
            raise TypeError("the header has other types")
    except (*BROKEN, AttributeError):
        raise _DamagedError("is damaged: it is not a checkpoint") from None
    if version != FORMAT:
        raise _DamagedError(f"has format {version!s:.20} of another version of warprun; this version reads format {FORMAT}")
    named = {name.removeprefix("tensor/"): info for name, info in infos.items()}
    return Loaded(env_steps, _Tensors(path, archive, named), Meta(**meta), path)  # type: ignore[typeddict-item]


class _Tensors(Mapping[str, torch.Tensor]):
    """The tensors of a checkpoint file, which stays open."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, infos: Mapping[str, zipfile.ZipInfo]) -> None:
        self._path, self._archive, self._infos = path, archive, infos

    def __getitem__(self, name: str) -> torch.Tensor:
        info = self._infos[name]
        try:
            return torch.from_numpy(read_array(self._archive, info))
        except (*BROKEN, OSError):
            raise UserError(f"{self._path} is damaged: it has no tensor at {name:.100}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._infos  # that of `Mapping` reads the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)


def _free_name(env_steps: int, taken: set[str]) -> str:
    # A file that the manifest lists is never replaced: until the manifest is replaced too, its hash would not match.
    names = (f"step_{env_steps:012d}{suffix}.ckpt" for suffix in itertools.chain([""], (f"_{n}" for n in itertools.count(2))))
    return next(name for name in names if name not in taken)


def _keep(home: Path, kept: Sequence[Entry]) -> None:
    """Write the manifest; then remove all other checkpoints, and unfinished files of a crash."""
    write_atomic(home / MANIFEST, json.dumps([entry._asdict() for entry in kept], indent=2).encode() + b"\n")
    files = {entry.file for entry in kept}
    if gone := [path for path in home.glob("step_*") if path.name not in files]:
        to_disk((home, home / MANIFEST, *(home / file for file in files)))
    for path in gone:
        path.unlink(missing_ok=True)


def _warn(text: str) -> None:
    print(f"warning: checkpoint: {printable(text, MOST_PRINTED)}", file=sys.stderr, flush=True)


def check_size(agent: AgentConfig, checkpoint_bytes: int) -> None:
    """Raise UserError if the networks have more float32 weights than fit into the checkpoint, before memory is allocated for them."""
    for hidden in _hidden(OmegaConf.to_container(OmegaConf.structured(agent))):
        _check_layers(0, hidden, checkpoint_bytes)


def check_size_of_group(own: AgentConfig, group: GroupSpec, checkpoint_bytes: int) -> None:
    """Raise UserError as `check_size` does, with the inputs and outputs of a group; `own`: the settings of the agent for it."""
    settings = OmegaConf.to_container(OmegaConf.structured(own))
    assert isinstance(settings, dict)
    inputs = own.network.layout(group.observation).outputs
    for hidden in _hidden({name: value for name, value in settings.items() if name != "groups"}):
        _check_layers(inputs, [*hidden, group.acting_outputs], checkpoint_bytes)


def _check_layers(inputs: int, sizes: list[int], checkpoint_bytes: int) -> None:
    """Raise UserError if layers of these sizes have too many weights; `inputs` 0: how many they have is not known."""
    weights = sum(sizes) + sum(before * after for before, after in pairwise((inputs, *sizes)))
    if 4 * weights > checkpoint_bytes:
        of = f" of {inputs} inputs" if inputs else ""
        raise UserError(f"the checkpoint is of other networks: its {checkpoint_bytes:,} bytes cannot hold {printable(sizes)}{of}")


def _hidden(agent: object) -> Iterator[list[int]]:
    """Yield the hidden layers of an agent and of its groups; networks of the user have none that are known."""
    if isinstance(agent, Mapping):
        hidden, after = agent.get("hidden") or [], agent.get("after")
        if "hidden" in agent and isinstance(hidden, list) and agent.get("module") is None:
            # Recurrent layers have several times as many weights as counted here.
            recurrent = [*agent.get("units", []), *(hidden if after is None else after)] if agent.get("type") in ("lstm", "gru") else []
            yield [*hidden, *recurrent]
        for value in agent.values():
            yield from _hidden(value)
