"""The table of `warprun envs`."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from warprun.config.compose import environment_config, environment_names
from warprun.config.external import BY_ID
from warprun.config.registry import is_shipped
from warprun.config.schema import EnvConfig, load_environment
from warprun.environment import Box, Discrete, Environment, Space
from warprun.errors import NotInstalledError, UserError, printable
from warprun.runs.records.terminal import table_console


def print_environments() -> list[str]:
    """Print the table of environments and why some fail to load; return the reasons for those that warprun ships."""
    console = table_console(160)
    table = Table("name", "actors", "observation", "action", "time limit", "solved at", "parameters")
    broken: dict[str, str] = {}
    missing_extras: dict[str, str] = {}
    for name in environment_names():
        try:
            table.add_row(*_row(environment_config(name)))
        except UserError as error:
            missing = isinstance(error, NotInstalledError)
            (missing_extras if missing else broken)[name] = str(error)
            table.add_row(printable(name), Text("not installed", style="yellow") if missing else Text("fails to load", style="red"))
    console.print(table)
    for reasons, style in ((missing_extras, "yellow"), (broken, "red")):
        for name, reason in reasons.items():
            console.print(printable(f"{name}: {reason}"), style=style, soft_wrap=True)
    return [f"{name}: {reason}" for name, reason in broken.items() if is_shipped("env", name)]


def _row(env: EnvConfig) -> tuple[str, ...]:
    if env.module == BY_ID and env.id is None:
        return (env.name, "1 agent", "env.id=NAME selects", "an environment", "of Gymnasium", "", "env.kwargs")
    environment, _ = load_environment(env)
    groups = environment.spec.groups
    parameters = environment.params._fields if isinstance(environment, Environment) else ()
    return (
        env.name,
        "\n".join(f"{group.size} {group.name}" for group in groups),
        "\n".join(f"{group.observation.size} numbers" for group in groups),
        "\n".join(_space(group.action) + (", masked" if group.masked else "") for group in groups),
        str(environment.spec.time_limit or "none"),
        "" if env.solved_at is None else f"{env.solved_at:g}",
        ", ".join(parameters),
    )


def _space(space: Space) -> str:
    if isinstance(space, Discrete):
        return f"{space.n} choices"
    if isinstance(space, Box):
        return f"{space.size} in " + " x ".join(f"{low:g}..{high:g}" for low, high in dict.fromkeys(space.bounds()))
    return " x ".join(map(str, space.nvec)) + " choices"
