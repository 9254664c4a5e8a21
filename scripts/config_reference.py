"""Write the tables of keys in docs/configuration.md and docs/sweeps.md from the dataclasses of the settings; --check only compares them.

python scripts/config_reference.py [--check]
"""

import ast
import dataclasses
import inspect
import sys
from pathlib import Path

from common import DOCS, replaced, table

from warprun.algorithms import config_class
from warprun.config import concurrency
from warprun.config import schema as config
from warprun.learning import network_settings, off_policy_settings
from warprun.learning import settings as agents
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
        ("both", agents.OnPolicyConfig, "agent."),
        ("`a2c`", config_class("a2c"), "agent."),
        ("`ppo`", config_class("ppo"), "agent."),
    ],
    "off_policy": [
        ("all", off_policy_settings.OffPolicyConfig, "agent."),
        ("all", off_policy_settings.ReplayConfig, "agent.replay."),
        *((f"`{name}`", config_class(name), "agent.") for name in ("dqn", "ddpg", "td3", "sac")),
    ],
    "network": [
        ("all", network_settings.LayersConfig, "agent.network."),
        ("`a2c` `ppo`", network_settings.NetworkConfig, "agent.network."),
    ],
    "optimizer": [("", agents.OptimizerConfig, "agent.optimizer.")],
}
SWEEP_TABLES: dict[str, list[Part]] = {
    "local": [("", launch.LocalConfig, "launcher.")],
    "slurm": [("", launch.SlurmConfig, "launcher.")],
    "tune": [("", launch.TuneSettings, "tune.")],
}
PAGES = {DOCS / "configuration.md": RUN_TABLES, DOCS / "sweeps.md": SWEEP_TABLES}


def keys(parts: list[Part]) -> str:
    """Return the Markdown table of the fields that dataclasses themselves define; without the name of a group's option."""
    rows = []
    for of, schema, prefix in parts:
        described = docstrings(schema)
        own = [field for field in dataclasses.fields(schema) if field.name in described and not is_section(field)]
        own = [field for field in own if field.name != "name" or prefix in ("", "env.", "agent.optimizer.")]
        rows += [[f"`{prefix}{field.name}`", *([of] if of else []), default(field), described[field.name]] for field in own]
    return table(["key", *(["of"] if parts[0][0] else []), "default", "meaning"], rows)


def is_section(field: dataclasses.Field) -> bool:
    """Return whether a field is a section with its own table (`agent` is one, although its type depends on the run)."""
    made = None if field.default_factory is dataclasses.MISSING else field.default_factory()
    return dataclasses.is_dataclass(made) or (field.name in ("agent", "concurrency") and field.type == "Any")


def docstrings(schema: type) -> dict[str, str]:
    """Return the string below each field in the source of a dataclass."""
    (definition,) = ast.parse(inspect.getsource(schema)).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
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


def rewritten(page: Path) -> str:
    """Return a page with every table between `<!-- table NAME -->` and `<!-- end -->` regenerated."""
    text = page.read_text()
    for name, parts in PAGES[page].items():
        text = replaced(text, f"table {name}", keys(parts))
    return text


def main() -> int:
    """Write the tables, or check them; return the exit code."""
    outdated = [page for page in PAGES if rewritten(page) != page.read_text()]
    for page in outdated:
        if "--check" in sys.argv[1:]:
            print(f"{page} is out of date; run python scripts/config_reference.py", file=sys.stderr)
        else:
            page.write_text(rewritten(page))
    return int(bool(outdated) and "--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
