"""The table of environments."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from warprun.config.compose import environment_config, environment_names
from warprun.config.schema import EnvConfig, load_environment
from warprun.environment import Box, Discrete, Space
from warprun.errors import UserError


def print_environments() -> None:
    """Print what environments there are, one that fails to load with its reason."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)  # a file has no width; do not fold its lines
    table = Table("name", "actors", "observation", "action", "time limit", "solved at", "parameters")
    broken = []
    for name in environment_names():
        try:
            table.add_row(*_row(environment_config(name)))
        except UserError as error:
            broken.append(f"{name}: {error}")
    console.print(table)
    for line in broken:
        console.print(line, style="red", markup=False, soft_wrap=True)


def _row(env: EnvConfig) -> tuple[str, ...]:
    environment, _ = load_environment(env)
    groups = environment.groups
    return (
        env.name,
        "\n".join(f"{group.size} {group.name}" for group in groups),
        "\n".join(f"{group.observation.size} numbers" for group in groups),
        "\n".join(_space(group.action) + (", masked" if group.mask else "") for group in groups),
        str(environment.time_limit or "none"),
        "" if env.solved_at is None else f"{env.solved_at:g}",
        ", ".join(environment.params._fields),  # type: ignore[attr-defined]
    )


def _space(space: Space) -> str:
    if isinstance(space, Discrete):
        return f"{space.n} choices"
    if isinstance(space, Box):
        return f"{space.size} in " + " x ".join(f"{low:g}..{high:g}" for low, high in dict.fromkeys(space.bounds()))
    return " x ".join(map(str, space.nvec)) + " choices"
