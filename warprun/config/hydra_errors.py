"""Errors of Hydra and OmegaConf in one line, with the most similar known name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import Node, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from warprun.config.overrides import GROUPS
from warprun.config.registry import options, own_folders
from warprun.errors import UserError, nearest, similar, typed


@contextmanager
def explained() -> Iterator[None]:
    """Convert an error of Hydra or OmegaConf to a UserError."""
    try:
        yield
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(_explain(error)) from error


def _explain(error: Exception) -> str:
    """Return an error of Hydra or OmegaConf as one line, with the most similar known name."""
    cause = next((e for e in _causes(error) if isinstance(e, OmegaConfBaseException)), None)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.partition("/")
        if group not in GROUPS:
            group, _, name = error.missing_cfg_file.rpartition("/")
        known = options(group)
        places = " and ".join(typed(folder / group) for folder in own_folders()) or f"no folder conf in {typed(Path.cwd())}"
        return f"unknown {GROUPS.get(group, group)} {name!r}{nearest(name, known)} (there are: {', '.join(known)}); own files: {places}"
    if isinstance(error, OverrideParseException):
        wanted = "" if "=" in error.override else ": write key=value"
        return f"cannot read {error.override!r}{wanted or ': ' + _first_line(error)}"
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and cause.full_key:
        file = re.match(r"In '([\w/.]+)'", str(error))
        where = f"in {file[1]}.yaml: " if file and "/" in file[1] else ""
        key = str(cause.full_key)
        return f"{where}unknown key {key!r}{_nearest_key(key, cause.parent_node)}"
    if cause is not None and cause.full_key:
        return _refused_value(str(cause.full_key), _first_line(cause))
    if "Ambiguous value" in str(error):
        return f"{_first_line(error)}: add -m to run every value, or write a list as [a,b]"
    if str(error).startswith("Config group override"):
        return f"{', '.join(GROUPS)}: write the name of one, such as env=cartpole or tuned=none"
    return _first_line(cause or error)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__  # Hydra sets no cause for errors in a file of a group


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]


def _refused_value(key: str, reason: str) -> str:
    for pattern, meaning in _REFUSED.items():
        match = re.search(pattern, reason)
        if match:
            return f"{key} {meaning}" + (f", not {match[1]!r}" if match.groups() else "")
    return f"{key}: {reason}"


_REFUSED = {
    r"^Value '(.*)' of type '.*' could not be converted to Integer": "must be a whole number",
    r"^Value '(.*)' of type '.*' could not be converted to Float": "must be a number",
    r"^Value '(.*)' is not a valid bool": "must be true or false",
    r"is not a ListConfig": "must be a list in brackets, such as [64,64]",
    r"is not Optional": "cannot be null",
}
"""Pattern of a message of OmegaConf -> the message for users."""


def _nearest_key(key: str, refused_by: Node | None) -> str:
    """Return the end of a message that refuses `key`: the most similar key of the composed config, or the keys beside it.

    `refused_by` is the part of the config that refused the key. It belongs to the composed config, so it has the keys of the chosen agent.
    """
    if refused_by is None:
        return ""
    composed = OmegaConf.to_container(refused_by._get_root())
    assert isinstance(composed, dict)
    composed.pop("hydra", None)
    known = list(_keys(composed, ""))
    match = similar(key, known, most_edits=1)
    if match is not None:
        return f"; did you mean {match!r}?"
    parent, _, name = key.rpartition(".")
    if parent and parent not in known:
        return nearest(key, known)
    below = [path for path in known if not parent or path.startswith(f"{parent}.")]
    beside = {path.rpartition(".")[2]: path for path in below if path.rpartition(".")[0] == parent}
    deeper = {path.rpartition(".")[2]: path for path in reversed(below)}
    initials = {"".join(word[0] for word in leaf.split("_")): leaf for leaf in deeper}  # lr: learning_rate
    # A key in another section must be more similar: agent.epsilon is not a misspelling of agent.optimizer.eps.
    for candidates, cutoff in ((beside, 0.6), (deeper, 0.8)):
        close = difflib.get_close_matches(name, candidates, n=1, cutoff=cutoff) or [initials.get(name, "")]
        if close[0] in candidates:
            return f"; did you mean {candidates[close[0]]!r}?"
    return f"; {parent} has {', '.join(beside)}" if parent else ""


def _keys(container: object, prefix: str) -> Iterator[str]:
    if isinstance(container, dict):
        for key, value in container.items():
            yield f"{prefix}{key}"
            yield from _keys(value, f"{prefix}{key}.")
