"""Write the tables of keys in docs/configuration.md from the dataclasses of the schema; with --check only tell whether they are true.

python scripts/config_reference.py [--check]
"""

import ast
import dataclasses
import inspect
import re
import sys
from pathlib import Path

from warprun.config import schema as config
from warprun.learning import settings as agents

DOC = Path(__file__).parents[1] / "docs" / "configuration.md"
TABLES: dict[str, tuple[type, str]] = {
    "run": (config.Config, ""),
    "env": (config.EnvConfig, "env."),
    "concurrency": (config.SingleConfig, "concurrency."),
    "eval": (config.EvalConfig, "eval."),
    "checkpoint": (config.CheckpointConfig, "checkpoint."),
    "log": (config.LogConfig, "log."),
    "engine": (config.EngineConfig, "engine."),
    "agent": (agents.OnPolicyConfig, "agent."),
    "a2c": (agents.A2CConfig, "agent."),
    "ppo": (agents.PPOConfig, "agent."),
    "off_policy": (agents.OffPolicyConfig, "agent."),
    "dqn": (agents.DQNConfig, "agent."),
    "ddpg": (agents.DDPGConfig, "agent."),
    "td3": (agents.TD3Config, "agent."),
    "replay": (agents.ReplayConfig, "agent.replay."),
    "layers": (agents.LayersConfig, "agent.network."),
    "network": (agents.NetworkConfig, "agent.network."),
    "optimizer": (agents.OptimizerConfig, "agent.optimizer."),
}


def table(schema: type, prefix: str) -> str:
    """Return the Markdown table of the fields that `schema` itself defines: key, default, meaning."""
    described = docstrings(schema)
    own = [field for field in dataclasses.fields(schema) if field.name in described and not is_section(field)]
    rows = [f"| `{prefix}{field.name}` | {default(field)} | {described[field.name]} |" for field in own]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])


def is_section(field: dataclasses.Field) -> bool:
    """Tell whether a field is a dataclass itself, which has a table of its own (so has the agent's, which is not known before)."""
    made = None if field.default_factory is dataclasses.MISSING else field.default_factory()
    return dataclasses.is_dataclass(made) or (field.name == "agent" and field.type == "Any")


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
    """Return the default as one types it on the command line."""
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    if value in ("???", ""):  # MISSING: the group file says it
        return ""
    if value is None:
        return "`null`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{str(value).replace(' ', '')}`"


def rewritten(text: str) -> str:
    """Return the page with every table between its `<!-- table NAME -->` and `<!-- end -->` made anew."""
    for name, (schema, prefix) in TABLES.items():
        between = re.compile(f"(<!-- table {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        made = table(schema, prefix)
        text, n = between.subn(lambda match, made=made: f"{match[1]}{made}\n{match[2]}", text)
        assert n == 1, f"{DOC} has {n} tables called {name}"
    return text


def main() -> int:
    """Write the tables, or check them; return the exit code."""
    text = DOC.read_text()
    made = rewritten(text)
    if "--check" in sys.argv[1:]:
        if made != text:
            print(f"{DOC} is out of date; run python scripts/config_reference.py", file=sys.stderr)
        return int(made != text)
    DOC.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
