"""What pages take from the source: the tables of keys of settings, and the lines that docs/architecture.md quotes."""

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from common import DOCS, ROOT, table

from warprun.algorithms import config_class
from warprun.config import concurrency
from warprun.config import schema as config
from warprun.learning.settings import agent, networks, off_policy, on_policy
from warprun.sweeps import launch

Part = tuple[str, type, str]
"""Whose settings these are, if a table has those of several; their dataclass; what stands before their keys."""
RUN_TABLES: dict[str, list[Part]] = {
    "run": [("", config.Config, "")],
    "env": [("", config.EnvConfig, "env.")],
    "concurrency": [
        ("all", concurrency.ConcurrencyConfig, "concurrency."),
        ("`ddp`", concurrency.CONCURRENCY["ddp"], "concurrency."),
        ("`sync` `seed` `async` `rma`", concurrency.CONCURRENCY["sync"], "concurrency."),
        ("`seed`", concurrency.CONCURRENCY["seed"], "concurrency."),
        ("`async` `rma`", concurrency.CONCURRENCY["async"], "concurrency."),
        ("`rma`", concurrency.CONCURRENCY["rma"], "concurrency."),
    ],
    "eval": [("", config.EvalConfig, "eval.")],
    "checkpoint": [("", config.CheckpointConfig, "checkpoint.")],
    "log": [("", config.LogConfig, "log.")],
    "engine": [("", config.EngineConfig, "engine.")],
    "on_policy": [
        ("both", on_policy.OnPolicyConfig, "agent."),
        ("`a2c`", config_class("a2c"), "agent."),
        ("`ppo`", config_class("ppo"), "agent."),
    ],
    "off_policy": [
        ("all", off_policy.OffPolicyConfig, "agent."),
        ("all", off_policy.ReplayConfig, "agent.replay."),
        ("`dqn`", config_class("dqn"), "agent."),
        ("`ddpg` `td3`", config_class("ddpg"), "agent."),
        ("`td3`", config_class("td3"), "agent."),
        ("`sac`", config_class("sac"), "agent."),
    ],
    "network": [
        ("all", networks.LayersConfig, "agent.network."),
        ("`a2c` `ppo`", networks.NetworkConfig, "agent.network."),
    ],
    "optimizer": [("", agent.OptimizerConfig, "agent.optimizer.")],
}
SWEEP_TABLES: dict[str, list[Part]] = {
    "local": [("", launch.LocalConfig, "launcher.")],
    "slurm": [("", launch.SlurmConfig, "launcher.")],
    "batch": [("", launch.BatchConfig, "launcher.")],
    "ray": [("", launch.RayConfig, "launcher.")],
    "tune": [("", launch.TuneSettings, "tune.")],
}
PAGES = {DOCS / "configuration.md": RUN_TABLES, DOCS / "sweeps.md": SWEEP_TABLES}


def keys(parts: list[Part]) -> str:
    """Return the Markdown table of the fields of the first dataclass and those that the others define; no name of a group's option."""
    rows = []
    for n, (of, schema, prefix) in enumerate(parts):
        described = docstrings(schema)
        shown = described if n == 0 else inspect.get_annotations(schema)
        own = [field for field in dataclasses.fields(schema) if field.name in shown and not is_section(field)]
        own = [field for field in own if field.name != "name" or prefix in ("", "env.", "agent.optimizer.")]
        rows += [[f"`{prefix}{field.name}`", *([of] if of else []), default(field), described[field.name]] for field in own]
    return table(["key", *(["of"] if parts[0][0] else []), "default", "meaning"], rows)


def is_section(field: dataclasses.Field) -> bool:
    """Return whether a field is a section with its own table (`agent` is one, although its type depends on the run)."""
    made = None if field.default_factory is dataclasses.MISSING else field.default_factory()
    return dataclasses.is_dataclass(made) or (field.name in ("agent", "concurrency") and field.type == "Any")


def docstrings(schema: type) -> dict[str, str]:
    """Return the string below each field in the source of a dataclass, or in that of the nearest one it derives from."""
    (definition,) = ast.parse(inspect.getsource(schema)).body
    assert isinstance(definition, ast.ClassDef)
    found = {name: text for base in schema.__bases__ if dataclasses.is_dataclass(base) for name, text in docstrings(base).items()}
    for field, following in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(following, ast.Expr):
            text = ast.literal_eval(following.value)
            found[field.target.id] = " ".join(text.split()).replace("|", "\\|")
    return found


def default(field: dataclasses.Field) -> str:
    """Return the default as it is typed on the command line."""
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if value in ("???", ""):  # MISSING: set by the group file
        return ""
    if value is None:
        return "`null`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{str(value).replace(' ', '')}`"


def places() -> Iterator[tuple[Path, str, str]]:
    """Yield page, mark and text of every table."""
    for page, tables in PAGES.items():
        for name, parts in tables.items():
            yield page, f"table {name}", keys(parts)


# Lines ----------------------------------------------------------------------------------------------------------------

WALK = DOCS / "architecture.md"
REFERENCE = re.compile(r"\[`(?P<name>[\w.]+)`, line (?P<shown>\d+)\]\(\.\./(?P<file>[\w/.]+)#L(?P<line>\d+)\): `(?P<code>[^`]+)`")
"""[`FILE`, line N](../FILE#LN): `code`, which stands on exactly one line of the file."""


def line_of(file: str, code: str) -> int:
    """Return the number of the one line of `file` that is `code`, but for indentation. Raises ValueError."""
    found = [n for n, line in enumerate((ROOT / file).read_text().splitlines(), 1) if line.strip() == code]
    if len(found) != 1:
        raise ValueError(f"docs/architecture.md quotes {code!r}, which stands on {len(found)} lines of {file}")
    return found[0]


def numbered(text: str) -> str:
    """Return the page with the line numbers of today."""

    def written(match: re.Match[str]) -> str:
        line = line_of(match["file"], match["code"])
        return f"[`{match['name']}`, line {line}](../{match['file']}#L{line}): `{match['code']}`"

    return REFERENCE.sub(written, text)
