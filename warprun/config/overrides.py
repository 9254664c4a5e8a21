"""Read overrides before Hydra does: refuse what no setting needs, in one line, and count the runs of a sweep.

Hydra's parser evaluates functions, recurses into lists, and expands sweeps, so the limits are checked on the text first.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import partial

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, IntervalSweep, Override, Quote, QuotedString, RangeSweep, Sweep
from hydra.errors import HydraException

from warprun.config.kinds import MAX_DIGITS, NUMBER, kind, whole
from warprun.config.registry import options
from warprun.config.schema import MAX_DEPTH, EnvConfig
from warprun.errors import UserError, shown
from warprun.learning.settings.networks import ENCODERS

MAX_CHARACTERS = 5_000
"""Of all overrides together."""
MAX_NAME = 200
"""Of a part of a key, and of what `NAME=` chooses from a group: these become names of files, which have at most 255 bytes."""
MAX_RUNS = 10_000
"""Of one sweep, unless its user says `sweep.yes=true`."""
MAX_RUNS_EVER = 1_000_000
"""Of one sweep, whatever its user says."""
AUTO = "n_envs=auto"
"""The override with which a run begins by measuring, see `runs.auto`."""

GROUPS = {
    "env": "environment",
    "agent": "agent",
    "concurrency": "concurrency",
    "experiment": "experiment",
    "tuned": "tuned settings",
    "launcher": "launcher",
}
"""Config group -> what it is called in messages."""
ONLY_REFERENCES = "${...} can name another key, such as ${n_envs}; functions such as ${oc.env:...} are not called"
FREE = ("env.params", "env.randomize", "env.options", "env.kwargs", "agent.groups", "agent.network.kwargs", "launcher.options")
"""Dicts whose keys are not part of the schema, so Hydra requires a `+` before each."""
PATHS = ("run_dir", "output_root", "sweep_dir", "resume")
"""Settings whose value is a path as the shell passes it, whatever characters it has; null and a value in quotes are read by Hydra."""


def read(overrides: Sequence[str]) -> list[str]:
    """Return the overrides of one run in the form that Hydra accepts, without AUTO, which is no number. Raises UserError."""
    read_overrides = []
    for given, parsed in _parsed(override for override in overrides if override.strip() != AUTO):
        if parsed.is_sweep_override():
            raise UserError(f"{shown(given)} has many values: add -m to run every value, or write a list as [a,b]")
        read_overrides.append(str(parsed.input_line))
    return read_overrides


def runs(overrides: Sequence[str], most: int = MAX_RUNS) -> list[list[str]]:
    """Return the overrides of every run of a sweep: all combinations of the values. Raises UserError, also for more than `most`."""
    values: dict[str, Callable[[], Sequence[str]]] = {}
    counts: dict[str, int] = {}
    for given, parsed in _parsed(overrides):
        key = parsed.key_or_group
        if isinstance(parsed.value(), IntervalSweep):
            raise UserError(
                f"{shown(given)}: an interval has no single values; write a list of values or range(start,stop,step), or search it with"
                " `warprun tune`"
            )
        counts[key] = _count(parsed, given)
        values[key] = partial(_values, parsed)
    count = math.prod(counts.values())
    if count > most:
        many = max(counts, key=lambda key: counts[key])
        size = f"{_number(count)} runs is too large (at most {most:,})"
        allowed = "; sweep.yes=true allows it" if most < count <= MAX_RUNS_EVER else ""
        raise UserError(f"a sweep of {size}; {many} has {_number(counts[many])} values{allowed}")
    return [list(run) for run in itertools.product(*(found() for found in values.values()))]


def searched(overrides: Sequence[str]) -> tuple[list[str], dict[str, tuple[str, Sweep | list[str]]]]:
    """Return the overrides that are the same for all runs of a search, and for every other key the text given and what it ranges over.

    That is an IntervalSweep or RangeSweep of Hydra, or the list of overrides `key=value` of a choice or a glob. Raises UserError.
    """
    fixed: list[str] = []
    space: dict[str, tuple[str, Sweep | list[str]]] = {}
    for given, parsed in _parsed(overrides):
        value = parsed.value()
        if not isinstance(value, Sweep | Glob):
            fixed.append(given)
        elif isinstance(value, IntervalSweep | RangeSweep):
            if isinstance(value, RangeSweep):
                _count(parsed, given)
            space[parsed.key_or_group] = (given, value)
        else:
            _count(parsed, given)
            space[parsed.key_or_group] = (given, _values(parsed))
    return fixed, space


def is_auto(overrides: Sequence[str]) -> bool:
    """Return whether the number of environments is to be chosen by measurement: the last override of `n_envs` is AUTO."""
    return [override.strip() for override in overrides if override.partition("=")[0] == "n_envs"][-1:] == [AUTO]


def _parsed(overrides: Iterable[str]) -> Iterator[tuple[str, Override]]:
    """Yield each override as it was given, and parsed in the form that Hydra accepts."""
    overrides = list(overrides)
    length = sum(map(len, overrides))
    if length > MAX_CHARACTERS:
        where = "write them into a file conf/experiment/NAME.yaml"
        raise UserError(f"the overrides have {length:,} characters, {shown(max(overrides, key=len))} (at most {MAX_CHARACTERS:,}); {where}")
    for override in overrides:
        _check_text(override)
        parsed = _parse(rewrite(override), override)
        _check_parsed(parsed, override)
        yield override, parsed


def _values(override: Override) -> list[str]:
    """Return `key=value` for every value."""
    key, value = override.key_or_group, override.value()
    if isinstance(value, Glob):
        return [f"{key}={name}" for name in value.filter(options(key))]
    if override.is_sweep_override():
        return [f"{key}={text}" for text in override.sweep_string_iterator()]
    return [str(override.input_line).lstrip("+")]


def rewrite(override: str) -> str:
    """Return an override in the form that Hydra accepts.

    1e4 becomes 10000 for a setting that is a whole number, and is put in quotes for one that is text, as the values of PATHS are. Options
    come under `env.options`, free keys have `++` before them. `~key` stays.
    """
    key, _, value = override.partition("=")
    if key.startswith("~"):
        return override
    key = key.lstrip("+")
    if key in PATHS:
        is_read = value in ("", "null") or value.startswith(("'", '"'))
        return f"{key}={value if is_read else QuotedString(value, Quote.single).with_quotes()}"
    if key == NETWORK and not value.strip().startswith("{"):
        encodes = all(name.strip() in _ENCODERS for name in value.split(","))
        key, value = f"{key}.encoder" if encodes else f"{key}.type", _CNN.sub("conv", value) if encodes else value
    if _OPTION.fullmatch(key) and key.removeprefix("env.") not in _ENV_KEYS:
        key = key.replace("env.", "env.options.")
    free = key.startswith(_BELOW_FREE) or (key in FREE and value.strip().startswith("{"))
    return f"{'++' if free else ''}{key}={_fitted(key, value)}"


def refuse_plus(overrides: Sequence[str]) -> None:
    """Raise UserError for `+key=value` with a key that exists: `+` adds keys to the dicts of FREE. Hydra would add any key."""
    for override in overrides:
        if re.match(r"\+[^+]", override) and not rewrite(override).startswith("++"):
            raise UserError(f"{shown(override)}: this setting exists already; write {shown(override[1:])}")


def references_only(text: str) -> bool:
    """Return whether every interpolation in `text` is a reference to a key, such as `${n_envs}`, and not a function."""
    return "${" not in _REFERENCE.sub("", text)


NETWORK = "agent.network"
"""A section; a word as its value is that of a setting within it: agent.network=lstm is agent.network.type, =cnn agent.network.encoder."""
_ENCODERS = ("cnn", *ENCODERS)
_CNN = re.compile(r"\bcnn\b")
_OPTION = re.compile(r"env\.\w+")
_BELOW_FREE = tuple(f"{parent}." for parent in FREE)
_ENV_KEYS = {f.name for f in dataclasses.fields(EnvConfig)}
"""Any other key below `env` is an option of the environment."""
_BRACKETS = re.compile(r"(\s*\w*\(|\s*[\[{])(.*)([\])}]\s*)", re.DOTALL)
"""A list, a dict, or a function of Hydra such as range(0,3)."""
_NO_TEXT = re.compile(r"[-+]?(nan|inf)|true|false", re.IGNORECASE)
"""What Hydra does not take for text, beside numbers."""
_KEY = re.compile(r"\+{0,2}[A-Za-z_][\w-]*(\.[\w-]+)*", re.ASCII)
_REFERENCE = re.compile(r"(?<!\\)\$\{\.*\w+(\.\w+)*\}", re.ASCII)
_NUMBER = re.compile(rf"\d[\d_]{{{MAX_DIGITS},}}")


def _fitted(key: str, value: str) -> str:
    """Return the text of a value, or of several, with each in the form that Hydra reads as the type of the setting."""
    items = _items(value)
    if len(items) > 1:
        return ",".join(_fitted(key, item) for item in items)
    found = _BRACKETS.fullmatch(value)
    if found and _depth(value) <= MAX_DEPTH:
        begin, inner, end = found.groups()
        if begin.strip() == "{":
            pairs = [item.partition(":") for item in _items(inner)]
            return begin + ",".join(name + colon + _fitted(f"{key}.{name.strip()}", item) for name, colon, item in pairs) + end
        return begin + _fitted(key, inner) + end
    text, wanted = value.strip(), kind(key)
    number = whole(text) if wanted is int and not text.isdecimal() else None
    if number is not None:
        return str(number)
    is_number = wanted is str and (NUMBER.fullmatch(text) or _NO_TEXT.fullmatch(text))
    return QuotedString(text, Quote.single).with_quotes() if is_number else value


def _items(text: str) -> list[str]:
    """Return the parts of a text between commas that are neither in brackets nor in quotes."""
    items, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        depth += 0 if quote else (character in "([{") - (character in ")]}")
        if character == "," and not depth and not quote:
            items.append("")
        else:
            items[-1] += character
    return items


def _check_text(override: str) -> None:
    key, equals, value = override.partition("=")
    what = shown(override)
    if override.startswith("~") and not key[1:].startswith(_BELOW_FREE):
        free = ", ".join(f"{parent}.NAME" for parent in FREE)
        raise UserError(f"{what}: a setting cannot be removed, only {free}; leave it out, or give it another value")
    if not equals and not override.startswith("~"):
        raise UserError(f"cannot read {what}: write key=value")
    if not override.isprintable():
        raise UserError(f"{what} has a control character or one that is no text")
    if re.match(r"\+*hydra\b", key):
        raise UserError(f"{what}: settings of Hydra cannot be changed")
    if not _KEY.fullmatch(key.removeprefix("~")):
        raise UserError(f"cannot read {what}: a key is made of names with dots between them, such as agent.gamma=0.9")
    if max(map(len, key.split("."))) > MAX_NAME:
        raise UserError(f"{what}: a name in a key has at most {MAX_NAME} characters")
    if _depth(value) > MAX_DEPTH:
        raise UserError(f"{what} is nested too deeply (at most {MAX_DEPTH} levels)")
    if _NUMBER.search(value):
        raise UserError(f"{what} has a number of more than {MAX_DIGITS} digits")
    if not references_only(value):
        raise UserError(f"{what}: {ONLY_REFERENCES}")


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _parse(override: str, given: str) -> Override:
    try:
        return OverridesParser.create().parse_override(override)
    except HydraException as error:
        reason = str(error).strip().splitlines()[0]
        if sum(map(given.count, "([{")) != sum(map(given.count, ")]}")):
            reason = "brackets do not match"
        hint = "; put the value in quotes, and these in quotes for the shell: \"name='Zürich'\"" if "token recognition" in reason else ""
        raise UserError(f"cannot read {shown(given)}: {reason}{hint}") from None


def _check_parsed(override: Override, given: str) -> None:
    key = override.key_or_group
    value = override.value()
    values = value.list if isinstance(value, ChoiceSweep) else [value]
    for leaf in _leaves(values if isinstance(value, ChoiceSweep) else value):
        if isinstance(leaf, int) and abs(leaf) >= 10**MAX_DIGITS:
            raise UserError(f"{shown(given)} has a number of more than {MAX_DIGITS} digits")
        if isinstance(leaf, Sweep | Glob) and leaf is not value:
            raise UserError(f"{shown(given)}: a sweep cannot stand inside a list, a dict or another sweep")
    if isinstance(value, Glob) and key not in GROUPS:
        raise UserError(f"{shown(given)}: glob() is for the names of a group: {', '.join(GROUPS)}")
    if key in GROUPS and not isinstance(value, Glob):
        for name in values:
            if not (isinstance(name, str) and name and "$" not in name) and not (name is None and key == "experiment"):
                raise UserError(f"{shown(given)}: {', '.join(GROUPS)}: write the name of one, such as env=cartpole or tuned=none")
            if key == "env" and str(name).endswith(".py"):
                lines = f"the lines `name: NAME` and `module: {name}`"
                raise UserError(f"{shown(given)}: write a file conf/env/NAME.yaml with {lines}, then env=NAME")
            if name is not None and len(os.fsencode(name)) > MAX_NAME:
                raise UserError(f"{shown(given)}: a name has at most {MAX_NAME} bytes")


def _leaves(value: object) -> Iterator[object]:
    items = value if isinstance(value, list) else [*value, *value.values()] if isinstance(value, dict) else None
    if items is None:
        yield value
    else:
        for item in items:
            yield from _leaves(item)


def _number(count: int) -> str:
    return f"{count:,}" if count < 10**15 else f"{Decimal(count):.2e}"


def _count(override: Override, given: str) -> int:
    """Return the number of values of an override, without making them."""
    value = override.value()
    if isinstance(value, ChoiceSweep):
        count = len(value.list)
    elif isinstance(value, RangeSweep):
        count = _range_size(value, given)
    elif isinstance(value, Glob):
        count = len(value.filter(options(override.key_or_group)))
    else:
        return 1
    if not count:
        raise UserError(f"{shown(given)} has no values")
    return count


def _range_size(sweep: RangeSweep, given: str) -> int:
    bounds = (sweep.start, sweep.stop, sweep.step)
    numbers = [Fraction(bound) for bound in bounds if bound is not None and math.isfinite(bound)]
    if len(numbers) != len(bounds) or numbers[2] == 0:
        raise UserError(f"{shown(given)}: write range(start,stop,step) with finite numbers, and a step that is not 0")
    start, stop, step = numbers
    return max(0, math.ceil((stop - start) / step))
