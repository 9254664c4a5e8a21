"""Seals of the folders of runs and sweeps: whether the code that a folder opens with is the code that this user's command put there.

A run seals what it is opened with: config.yaml, and the manifests of the copies of its environment and its networks, which hold the SHA-256
of every source file. The seal is the HMAC-SHA256 (RFC 2104) of these, with a key that only the user can read. A run folder of somebody
else, or one that was changed, has no valid seal. A sweep seals its plan in the same way.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from omegaconf import OmegaConf

from warprun.errors import UserError, printable
from warprun.files import read_limited, sync, write_atomic
from warprun.learning.settings.agent import AgentConfig
from warprun.run_folder import CONFIG, ENVIRONMENT, MANIFEST, NETWORKS, network_in_run

A = TypeVar("A", bound=AgentConfig)
ADVICE = "read it, then add trust=true"
SEAL = f"{ENVIRONMENT}/seal"
OF_RUN, OF_PLAN = b"warprun seal of a run folder, version 1\n", b"warprun seal of a plan, version 1\n"
"""What is sealed: the seal of one is none of the other."""
KEY_BYTES = 32
MAX_BYTES = 1 << 20
"""Size limit of a sealed file."""


def key_file() -> Path:
    """Return the file of the user's key: in $XDG_CONFIG_HOME, else in ~/.config."""
    given = os.environ.get("XDG_CONFIG_HOME", "")
    # https://specifications.freedesktop.org/basedir-spec/latest/: a relative path is to be ignored.
    return (Path(given) if os.path.isabs(given) else Path("~/.config").expanduser()) / "warprun" / "key"


def seal(folder: Path, config: bytes) -> str | None:
    """Seal a run folder whose config.yaml is about to become `config`; return None, or one line that says why the folder has no seal.

    The seal before stays valid beside the new one, so a crash before config.yaml is replaced leaves a folder with a valid seal. The user's
    key is made if there is none.
    """
    try:
        key = _key() or _make_key()
        before = _valid_line(folder)
        lines = [*([before] if before else []), _digest(folder, config, key).encode()]
        write_atomic(folder / SEAL, b"".join(line + b"\n" for line in lines))
    except (UserError, OSError, RuntimeError) as error:  # RuntimeError: Python finds no home folder
        reason = str(error) if not isinstance(error, OSError) else f"{error.filename or key_file()}: {error.strerror}"
        return f"the run folder has no seal, so opening it later needs trust=true if it has code of its own: {reason}"
    return None


def is_own(folder: Path) -> bool:
    """Return whether the seal of a run folder is valid: this user's run wrote it, and what it seals has not changed since.

    Raises UserError if other users can read or change the key.
    """
    return _valid_line(folder) is not None


def plan_seal(content: bytes) -> str:
    """Return the seal of a plan; make the user's key if there is none. Raises UserError, OSError and RuntimeError."""
    return _hmac(_key() or _make_key(), OF_PLAN, [content])


def is_own_plan(content: bytes, seal: str) -> bool:
    """Return whether the seal of a plan is valid. Raises UserError if other users can read or change the key."""
    try:
        key = _key()
    except RuntimeError:  # Python finds no home folder
        return False
    return key is not None and hmac.compare_digest(seal.encode(errors="replace"), _hmac(key, OF_PLAN, [content]).encode())


def network_modules(agent: object, key: str = "agent") -> Iterator[tuple[str, str]]:
    """Yield (key, value) of each network of the user in the settings of an agent, as plain dicts, and of its groups."""
    if isinstance(agent, Mapping):
        for name, value in agent.items():
            if name == "network" and isinstance(value, Mapping) and value.get("module") is not None:
                yield f"{key}.network.module", str(value["module"])
            yield from network_modules(value, f"{key}.{name}")


def open_networks(folder: Path, agent: A, trusted: bool) -> A:
    """Return the settings of the agent of a run with the copies in its folder in place of the files of the user's networks.

    `trusted`: the user trusts the code in the folder. No code runs here, but a network that is built from the result may run it. Raises
    UserError if the user has to decide.
    """
    plain = asdict(agent)
    for key, value in network_modules(plain):
        if not trusted and not is_own(folder):
            raise UserError(f"{printable(folder)} is not a run of yours, and its {key}={printable(value)} is code: {ADVICE}")
    if not any(network_modules(plain)):
        return agent
    opened = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(type(agent)), _with_copies(folder, plain)))
    assert isinstance(opened, type(agent))
    return opened


def _with_copies(folder: Path, settings: object) -> object:
    if not isinstance(settings, Mapping):
        return settings
    found = {name: _with_copies(folder, value) for name, value in settings.items()}
    network = found.get("network")
    if isinstance(network, dict) and network.get("module") is not None:
        network["module"] = network_in_run(folder, "agent.network.module", str(network["module"]))
    return found


def _valid_line(folder: Path) -> bytes | None:
    """Return the line of the seal that is valid; None if there is none. Raises UserError."""
    try:
        key = _key()
        if key is None:
            return None
        valid = _digest(folder, read_limited(folder / CONFIG, MAX_BYTES), key).encode()
        written = read_limited(folder / SEAL, 1024).split()
    except (FileNotFoundError, RuntimeError):
        return None
    return valid if any(hmac.compare_digest(line, valid) for line in written) else None


def _digest(folder: Path, config: bytes, key: bytes) -> str:
    """Return the seal of a folder with a config, in hexadecimal digits. Raises UserError, and FileNotFoundError."""
    contents = [config, read_limited(folder / ENVIRONMENT / MANIFEST, MAX_BYTES)]
    with suppress(FileNotFoundError):
        contents.append(read_limited(folder / NETWORKS / MANIFEST, MAX_BYTES))
    return _hmac(key, OF_RUN, contents)


def _hmac(key: bytes, purpose: bytes, contents: Sequence[bytes]) -> str:
    hashes = [hashlib.sha256(content).digest() for content in contents]
    return hmac.new(key, purpose + b"".join(hashes), hashlib.sha256).hexdigest()


def _key() -> bytes | None:
    """Return the user's key; None if there is none. Raises UserError if it is not usable."""
    path = key_file()
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(f"cannot read the key of seals {printable(path)}: {error.strerror}") from None
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise UserError(f"{printable(path)} must be a file of yours that nobody else can read (chmod 600), or be removed")
        key = os.read(handle, KEY_BYTES + 1)
    finally:
        os.close(handle)
    if len(key) != KEY_BYTES:
        raise UserError(f"{printable(path)} is damaged: it must have {KEY_BYTES} bytes; remove it, and the next run makes a new one")
    return key


def _make_key() -> bytes:
    """Make the user's key; if another process has just made one, return that. Raises OSError and UserError."""
    path = key_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f"key.{secrets.token_hex(8)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(handle, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            sync(file.fileno())
        with suppress(FileExistsError):
            os.link(temporary, path)  # unlike a rename it replaces nothing, and unlike O_EXCL it shows nobody an unfinished key
    finally:
        temporary.unlink()
    key = _key()
    if key is None:
        raise UserError(f"{printable(path)} was removed")
    return key
