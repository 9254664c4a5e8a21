"""Shared parts of the scripts: settings, tables, pages, figures, the machine, clocks; trainings without records and evaluations."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from warprun.config.compose import compose
from warprun.config.schema import Config
from warprun.report.style import drawing, finish
from warprun.report.table import replaced as replaced
from warprun.runs import rundir
from warprun.runs.build import make_agent, make_training_simulator, prepare, set_up

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def settings(
    doc: str | None, *words: str, choices: Mapping[str, Iterable[str]] = MappingProxyType({}), **defaults: Any
) -> argparse.Namespace:
    """Return the settings of a command line: `words` in their order, then `--name` for every default.

    A default of False is a switch, a list takes several values, any other default has the type of its setting. A word that ends with *
    takes the rest of the line. `choices` has the values that a setting may have. Exits with code 2 for a mistake.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for word in words:
        rest = {"nargs": "*"} if word.endswith("*") else {}
        parser.add_argument(word.rstrip("*"), choices=choices.get(word), **rest)  # type: ignore[arg-type]
    for name, default in defaults.items():
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, list):
            kind = type(default[0]) if default else str
            parser.add_argument(flag, nargs="+", type=kind, default=default, choices=choices.get(name), metavar=name.upper())
        else:
            parser.add_argument(flag, type=type(default), default=default, choices=choices.get(name))
    return parser.parse_intermixed_args()


def stop(why: object) -> NoReturn:
    """Say why a script cannot do what is asked, and exit with code 2."""
    print(f"{Path(sys.argv[0]).stem}: {why}", file=sys.stderr)
    sys.exit(2)


def require(module: str, package: str) -> None:
    """Exit with code 2 unless a module is installed, and say which package has it."""
    if importlib.util.find_spec(module) is None:
        stop(f"needs {package}; run: pip install {package}")


# Tables and figures ---------------------------------------------------------------------------------------------------


def row(*cells: object) -> str:
    """Return a line of a table in Markdown."""
    return f"| {' | '.join(map(str, cells))} |"


FIXED = {
    "ppo": "agent.horizon=16 agent.minibatches=4 agent.epochs=4 agent.learning_rate=0.001 agent.desired_kl=null agent.entropy_coef=0.01"
    " agent.gamma=0.99 agent.return_window=null agent.staggered=false",
    "a2c": "agent.gamma=0.99 agent.horizon=16 agent.staggered=false",
    **dict.fromkeys(("dqn", "ddpg", "td3", "sac"), "agent.utd_ratio=1.0 agent.learning_starts=1000"),
}
"""Agent -> settings in the place of those that follow from the run: those of the tables in docs/configuration.md."""


def table(titles: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown, with a newline at its end."""
    return "\n".join([row(*titles), f"{'|---' * len(titles)}|", *(row(*cells) for cells in rows)]) + "\n"


Columns = Mapping[str, Callable[[Any], object]]
"""Title -> the cell of a row."""


def by_columns(columns: Columns, rows: Iterable[Any]) -> str:
    """Return a table with a line for each row."""
    return table(list(columns), [[cell(row) for cell in columns.values()] for row in rows])


def replace(page: Path, mark: str, text: str) -> None:
    """Replace the text between `<!-- mark -->` and `<!-- end -->` of a page. Raises UserError unless there is one."""
    page.write_text(replaced(page.read_text(), mark, text))


@contextmanager
def figure(path: Path, columns: int, size: tuple[float, float]) -> Iterator[Any]:
    """Yield the panels of a row, an array of axes, and write them to a file in the style of reports, with one legend below.

    Exits with code 2 without matplotlib.
    """
    require("matplotlib", "matplotlib")
    from matplotlib.figure import Figure

    with drawing():
        page = Figure(figsize=size, layout="constrained")
        panels = page.subplots(1, columns, squeeze=False)[0]
        yield panels
        if any(panel.get_legend_handles_labels()[0] for panel in panels):
            page.legend(loc="outside lower center", ncols=3)
        finish(page)
        page.savefig(path, dpi=150)
    print(path)


# The machine ----------------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """Return the processor, its number of cores, and versions."""
    packages = {package: version(package) for package in ("warprun", "torch", "numba", "numpy")}
    return {"processor": rundir.processor(), "cores": os.cpu_count(), "python": platform.python_version(), **packages}


def described(found: Mapping[str, Any]) -> str:
    """Return what `machine` found as text."""
    versions = ", ".join(f"{key} {value}" for key, value in found.items() if key not in ("processor", "cores"))
    return f"{found['processor']}, {found['cores']} cores, {versions}"


# Time -----------------------------------------------------------------------------------------------------------------


def rate(work: Callable[[], int], seconds: float) -> float:
    """Return how much `work` does per second; it returns how much it did, and is called for `seconds` at least."""
    done, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        done += work()
    return done / spent


# Trainings ------------------------------------------------------------------------------------------------------------


class Training:
    """The simulator and the agent of a run, compiled, without records and evaluations."""

    def __init__(self, config: Config) -> None:
        """Build them from a config."""
        self.config = config
        self.setup = set_up(self.config)
        self.agent = make_agent(self.setup)
        self.simulator = make_training_simulator(self.setup, self.agent)
        prepare(self.setup, self.simulator)
        self.steps = self.config.n_envs * self.config.agent.horizon
        """Environment steps of an iteration."""

    def rollout(self) -> int:
        """Collect a rollout; return its environment steps."""
        self.simulator.collect(self.agent.act)
        return self.steps

    def iterate(self) -> int:
        """Collect a rollout and learn from it; return its environment steps."""
        self.agent.update(self.simulator.collect(self.agent.act), 0.1)
        return self.steps

    def take(self, steps: int) -> None:
        """Train for at least so many environment steps."""
        for _ in range(-(-steps // self.steps)):
            self.iterate()


def training_of(*overrides: str) -> Training:
    """Return the simulator and the agent of a run with these settings."""
    return Training(compose(overrides))
