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

RUN_TABLES: dict[str, tuple[type, str]] = {
    "run": (config.Config, ""),
    "env": (config.EnvConfig, "env."),
    "concurrency": (concurrency.ConcurrencyConfig, "concurrency."),
    **{mode: (concurrency.CONCURRENCY[mode], "concurrency.") for mode in ("single", "ddp", "sync", "seed", "async", "rma")},
    "eval": (config.EvalConfig, "eval."),
    "checkpoint": (config.CheckpointConfig, "checkpoint."),
    "log": (config.LogConfig, "log."),
    "engine": (config.EngineConfig, "engine."),
    "agent": (agents.OnPolicyConfig, "agent."),
    "a2c": (config_class("a2c"), "agent."),
    "ppo": (config_class("ppo"), "agent."),
    "off_policy": (off_policy_settings.OffPolicyConfig, "agent."),
    "dqn": (config_class("dqn"), "agent."),
    "ddpg": (config_class("ddpg"), "agent."),
    "td3": (config_class("td3"), "agent."),
    "sac": (config_class("sac"), "agent."),
    "replay": (off_policy_settings.ReplayConfig, "agent.replay."),
    "layers": (network_settings.LayersConfig, "agent.network."),
    "network": (network_settings.NetworkConfig, "agent.network."),
    "optimizer": (agents.OptimizerConfig, "agent.optimizer."),
}
SWEEP_TABLES: dict[str, tuple[type, str]] = {
    "local": (launch.LocalConfig, "launcher."),
    "slurm": (launch.SlurmConfig, "launcher."),
    "tune": (launch.TuneSettings, "tune."),
}
PAGES = {DOCS / "configuration.md": RUN_TABLES, DOCS / "sweeps.md": SWEEP_TABLES}


def keys(schema: type, prefix: str) -> str:
    """Return the Markdown table of the fields that `schema` itself defines: key, default, meaning."""
    described = docstrings(schema)
    own = [field for field in dataclasses.fields(schema) if field.name in described and not is_section(field)]
    return table(["key", "default", "meaning"], [[f"`{prefix}{field.name}`", default(field), described[field.name]] for field in own])


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
    for name, (schema, prefix) in PAGES[page].items():
        text = replaced(text, f"table {name}", keys(schema, prefix))
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
