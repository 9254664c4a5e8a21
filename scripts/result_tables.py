"""The tables of the pages that docs/benchmarks/results.json holds the runs of: by study, its page and how its runs become the table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import DOCS, by_columns, table

from warprun.config.compose import compose
from warprun.config.schema import sized
from warprun.report.statistics import interval, mean
from warprun.runs import auto

Run = dict[str, Any]
"""Numbers of a run, by measure, and its `overrides`; or `failed`."""
Kept = Mapping[str, Mapping[str, Run]]
"""Case -> seed -> run, of a study."""
BENCHMARKS = DOCS / "benchmarks"
middle = statistics.median


class Row(NamedTuple):
    """A case of a study."""

    case: str
    runs: list[Run]
    """Those that did not fail."""
    seeds: int
    bar: float | None
    """The return to reach."""


Cell = Callable[[Row], str]


def ended(runs: Mapping[str, Run]) -> list[Run]:
    """Return the runs that did not fail, in the order of their seeds."""
    return [run for _, run in sorted(runs.items(), key=lambda item: int(item[0])) if "failed" not in run]


def rows_of(kept: Kept, bars: Mapping[str, float]) -> Iterator[Row]:
    """Yield the cases that have runs; `bars`: their order, and the returns to reach in place of `env.solved_at`."""
    for case in [case for case in bars or kept if case in kept]:
        runs = ended(kept[case])
        yield Row(case, runs, len(kept[case]), bars.get(case, runs[0].get("bar") if runs else None))


def of_cases(columns: Mapping[str, Cell], bars: Mapping[str, float] | None = None) -> Callable[[Kept], str]:
    """Return what makes a table with a line for each case; `columns`: title -> cell."""
    return lambda kept: by_columns(columns, rows_of(kept, bars or {}))


# Cells ----------------------------------------------------------------------------------------------------------------


def spread(values: Sequence[float], form: str) -> str:
    """Return the median of some values, the least and the largest; – of none."""
    return f"{middle(values):{form}} [{min(values):{form}}, {max(values):{form}}]" if values else "–"


def ranged(key: str, form: str) -> Cell:
    """Return a cell with the spread of a measure over the runs that have it."""
    return lambda row: spread([run[key] for run in row.runs if key in run], form)


def number(key: str, over: Callable[[list[Any]], float], form: str) -> Cell:
    """Return a cell with a number of a measure over all runs; – if one lacks it, and nothing without runs."""

    def cell(row: Row) -> str:
        known = [run[key] for run in row.runs if key in run]
        return ("–" if row.runs else "") if len(known) < max(1, len(row.runs)) else format(over(known), form)

    return cell


def solved(is_solved: Callable[[Row, Run], bool]) -> Cell:
    """Return a cell that counts the runs that are solved, of all; one that failed is not."""
    return lambda row: f"{sum(is_solved(row, run) for run in row.runs)}/{row.seeds}"


def at_the_bar(key: str) -> Cell:
    """Return a cell that counts the runs whose return reaches the bar."""
    return solved(lambda row, run: row.bar is not None and run[key] >= row.bar)


def with_error(run: Run) -> str:
    """Return the return of a run with its standard error."""
    return f"{run['last/return']:.1f} ± {run['last/return_stderr']:.1f}"


def ranked(place: Callable[[int], int]) -> Cell:
    """Return a cell with the run at a place (number of runs -> index) in the ascending order of returns."""
    return lambda row: with_error(sorted(row.runs, key=lambda run: run["last/return"])[place(len(row.runs))]) if row.runs else ""


def mean_of_seeds(runs: Sequence[Run], key: str, form: str) -> str:
    """Return the mean of a measure over seeds with its 95 % interval, by the bootstrap of `warprun report`."""
    found = interval(np.array([run[key] for run in runs]), mean)
    return f"{found.value:{form}} [{found.low:{form}}, {found.high:{form}}]"


def of_episodes(run: Run, form: str) -> str:
    """Return the mean return of a controller that is not trained, with its 95 % error over episodes."""
    return f"{run['return']:{form}} ± {1.96 * run['stderr']:{form}}"


def means(runs: Sequence[Run], measures: Sequence[tuple[str, float, str]], prefix: str = "") -> list[str]:
    """Return a cell for each measure (key, factor, format): the mean over runs, and the least and the largest of several.

    It is empty if a run lacks the measure. A factor of 100 makes per cent.
    """
    cells = []
    for key, factor, form in measures:
        known = [factor * run[f"{prefix}{key}"] for run in runs if run[f"{prefix}{key}"] is not None]
        shown = f"{statistics.mean(known):{form}}" if known else ""
        several = f" ({min(known):{form}} to {max(known):{form}})" if len(known) > 1 else ""
        cells.append(shown + several + " %" * (factor == 100) if len(known) == len(runs) else "")
    return cells


CASE: Cell = lambda row: row.case  # noqa: E731 - beside the other cells
SEEDS: Cell = lambda row: str(row.seeds)  # noqa: E731
BAR: Cell = lambda row: "" if row.bar is None else f"{row.bar:g}"  # noqa: E731
EVERY_SEED: Cell = lambda row: ", ".join(map(with_error, row.runs))  # noqa: E731
STEPS = number("env_steps", middle, ",.0f")

# Tables with a line for each case -------------------------------------------------------------------------------------

RESULTS = {
    "case": CASE,
    "bar": BAR,
    "solved": at_the_bar("last/return"),
    "mean return of the worst seed": ranked(lambda count: 0),
    "of the median seed": ranked(lambda count: count // 2),
    "env steps, median": STEPS,
    "wall s, median": number("wall_s", middle, ".1f"),
}
FEW = {
    "cartpole_dqn": 475.0,
    "acrobot_dqn": -100.0,
    "mountain_car_dqn": -120.0,
    "pendulum_td3": -200.0,
    "pendulum_ddpg": -200.0,
    "pendulum_sac": -160.0,
    **{f"mountain_car_continuous_{agent}": 90.0 for agent in ("td3", "ddpg", "sac")},
}
OFF_POLICY = {
    "case": CASE,
    "bar": BAR,
    "seeds at the bar": at_the_bar("best/return"),
    "best checkpoint, min": number("best/return", min, ".1f"),
    "median": number("best/return", middle, ".1f"),
    "last checkpoint, median": number("last/return", middle, ".1f"),
    "env steps": STEPS,
    "seconds, median": number("cpu_s", middle, ".1f"),
}
COMPARISONS = {"TD3": -200.0, "DDPG": -200.0, "DDPG, prioritized replay": -200.0, "A2C": 200.0, "DQN": 200.0}
EVALUATED = "curve/eval/return"


def first_at_the_bar(row: Row, run: Run) -> int | None:
    """Return the environment steps up to the first evaluation at the bar."""
    return next((steps for steps, value in zip(*run[EVALUATED], strict=True) if row.bar is not None and value >= row.bar), None)


def steps_to_the_bar(row: Row) -> str:
    """Return the environment steps up to the first evaluation at the bar; – if a run does not reach it."""
    known = [steps for run in row.runs if (steps := first_at_the_bar(row, run)) is not None]
    return spread(known if len(known) == row.seeds else [], ",.0f")


COMPARED = {
    "agent": CASE,
    "bar": BAR,
    "seeds at the bar": solved(lambda row, run: first_at_the_bar(row, run) is not None),
    "env steps to it": steps_to_the_bar,
    "last evaluation": lambda row: spread([run[EVALUATED][1][-1] for run in row.runs], ".1f"),
    "CPU s, median": number("cpu_s", middle, ".1f"),
}
MEMORY = {
    **{f"t_maze ppo {kind}": 3.8 for kind in ("lstm", "gru", "mlp")},
    **{f"t_maze dqn {kind}": 3.8 for kind in ("lstm", "gru")},
    **{f"cartpole ppo {kind}": 475.0 for kind in ("lstm", "gru", "mlp")},
    "cartpole dqn lstm": 475.0,
    **{f"pendulum ppo {kind}": -250.0 for kind in ("lstm", "gru", "mlp")},
}
REMEMBERING = {
    "environment, agent, network": CASE,
    "bar": BAR,
    "seeds at the bar": at_the_bar("last/return"),
    "mean return, least": number("last/return", min, ".2f"),
    "median": number("last/return", middle, ".2f"),
    "env steps, median": STEPS,
    "processor s, median": number("cpu_s", middle, ".0f"),
}
JUDGED = {
    "case": lambda row: f"`{row.case}`",
    "env steps": number("env_steps", max, ",.0f"),
    "mean return of every seed, 1,000 fresh episodes": EVERY_SEED,
    "wall s, median": number("wall_s", middle, ".0f"),
}
COMPETING = {
    "agent, library": CASE,
    "env steps": number("env_steps", max, ",.0f"),
    "return, mean over seeds [95 %]": lambda row: mean_of_seeds(row.runs, "last/return", ".1f"),
    "mean return of every seed, 200 fresh episodes": EVERY_SEED,
    "processor s, median": number("cpu_s", middle, ".0f"),
}
SEARCHED = {"search": CASE, "seeds": SEEDS, "best member": ranged("best", ".0f"), "middle member": ranged("middle", ".0f")}


def near_the_optimum(row: Row, run: Run) -> bool:
    """Return whether the path and the episodes of a catalysis run are good enough for its scenario."""
    good = run["last/path/share_of_optimum"] >= 0.95 and run["last/terminated"] >= 0.99
    return bool(good and (run["last/path/highest_energy"] <= 0.0 or not row.case.startswith("er")))


PATHS = {
    "scenario": CASE,
    "solved": solved(near_the_optimum),
    "share of the optimum": ranged("last/path/share_of_optimum", ".3f"),
    "success, sampled": ranged("last/terminated", ".3f"),
    "steps of the path": lambda row: ", ".join(map(str, sorted({int(run["last/path/steps"]) for run in row.runs}))),
    "highest energy above start": ranged("last/path/highest_energy", ".3f"),
    "of the straight line's elastic band": ranged("straight/highest_energy", ".3f"),
    "env steps": STEPS,
    "CPU s, median": number("cpu_s", middle, ".0f"),
}
LEARNING_WITH_MORE = {
    "scenario, environments": CASE,
    "seeds": SEEDS,
    "return of evaluations, mean over training": ranged("during/eval/return", ".1f"),
    "success, mean over training": ranged("during/eval/terminated", ".3f"),
    "CPU s, median": number("cpu_s", middle, ".0f"),
}
REGULATED = {"agent": CASE, "env steps": STEPS, "seeds": SEEDS, "return": ranged("last/return", ".2f")}
LEARNED = {
    "claim, runs": CASE,
    "return of 195": solved(lambda row, run: bool(run["last/return"] >= 195.0)),
    "mean return of training episodes": ranged("training/return", ".1f"),
    "of 100 episodes at the end": ranged("last/return", ".1f"),
    "lag": ranged("actors/lag_mean", ".1f"),
}

# Other tables ---------------------------------------------------------------------------------------------------------

ENVIRONMENTS = ("cartpole", "pendulum")


def by_environment(kept: Kept) -> str:
    """Return the table of untuned settings: number of solved seeds and the median return."""
    count, median = at_the_bar("last/return"), number("last/return", middle, ".0f")
    found = {row.case: f"{count(row)} ({median(row)})" if row.runs else count(row) for row in rows_of(kept, {})}
    settings = dict.fromkeys(case.partition(" ")[2] for case in kept)
    return table(["setting", *ENVIRONMENTS], [[each, *(found[f"{env} {each}"] for env in ENVIRONMENTS)] for each in settings])


def by_size(kept: Kept) -> str:
    """Return the table of seconds until solved; bold is what `n_envs=auto` chooses from the median throughputs."""
    rows, sizes = [], sorted({int(case.rpartition(", ")[2]) for case in kept})
    for name in dict.fromkeys(case.rpartition(", ")[0] for case in kept):
        own = {size: ended(kept[f"{name}, {size}"]) for size in sizes}
        speed = {size: middle(run["steps_per_s"] / share(run) for run in runs) for size, runs in own.items()}
        took_s = {
            size: middle(run["training_s"] * share(run) if run["state"] == "solved" else math.inf for run in runs)
            for size, runs in own.items()
        }
        env, agent = name.split(", ")
        config = compose([f"env={env}", f"agent={agent}"])
        chosen = auto.decided([auto.Tried(sized(config, size, ""), rate) for size, rate in speed.items()], config.n_envs).n_envs
        cells = [f"{took_s[size]:.2f}" if math.isfinite(took_s[size]) else "–" for size in sizes]
        cells = [f"**{cell}**" if size == chosen else cell for size, cell in zip(sizes, cells, strict=True)]
        rows.append([name, *cells, f"{took_s[chosen] / min(took_s.values()):.2f}"])
    loads = [run["load"] for runs in kept.values() for run in runs.values()]
    load = f"\nLoad average of the machine {min(loads):.1f} to {max(loads):.1f}.\n"
    return table(["", *(f"{size:,}" for size in sizes), "chosen / best"], rows) + load


def share(run: Run) -> float:
    """Return the share of a thread's time that a run had: other work took the rest, which is left out."""
    return float(min(1.0, run["cpu_s"] / run["command_s"]))


COVID_GROUPS = ("governors", "planner")
COVID_POLICIES = (
    "untrained",
    "trained",
    "trained - untrained",
    "only governors trained",
    "only planner trained",
    "trained, most probable actions",
)


def of_parts(titles: Sequence[str], parts: Mapping[str, Sequence[str]], measures: Mapping[str, tuple[str, str]]) -> Callable[[Kept], str]:
    """Return what makes a table with a line for each part of each case.

    `titles`: those of the case and of the cells of a part; `parts`: beginning of the keys of a part -> its cells; `measures`: title -> key
    after that and format.
    """

    def cells(row: Row, part: str) -> list[object]:
        return [row.case, *parts[part], *(ranged(f"{part}/{key}", form)(row) for key, form in measures.values()), row.seeds]

    return lambda kept: table([*titles, *measures, "seeds"], [cells(row, part) for row in rows_of(kept, {}) for part in parts])


SUBSIDIES = (0, 9, 10, 20)
DISCOUNTS = (0.98, 0.99, 0.998, 1.0)
LEVELS = (1, 3, 5, 6, 7, 8, 10)


def of_references(kept: Kept) -> str:
    """Return the tables of constant policies, of governors under constant subsidies, and of a month at another level."""
    found = kept["all"]["0"]
    keys = {"always open, no subsidies": "level 1", "always closed, no subsidies": "level 10"}
    keys |= {f"best governors found, subsidy level {level}": f"subsidy {level}" for level in SUBSIDIES}
    rows = [[title, *(f"{found[f'{key}/{group}']:.1f}" for group in COVID_GROUPS)] for title, key in keys.items()]
    months = [[gamma, *(f"{found[f'month {gamma}'][level - 1]:.1f}" for level in LEVELS)] for gamma in DISCOUNTS]
    written = table(["policy", *COVID_GROUPS], rows)
    return f"{written}\n{table(['gamma', f'a month at level {LEVELS[0]}', *LEVELS[1:]], months)}"


TAGGERS, RUNNERS = ("random", "pursuit", "trained"), ("random", "trained")
PAIRS = {f"{taggers}, {runners}": (taggers, runners) for taggers in TAGGERS for runners in RUNNERS}
SPACES = ("30 actions", "continuous action", "compat")


def of_regulators(kept: Kept) -> str:
    """Return the table of regulators of the booster: returns under each action space, and returns and lengths in compat mode."""
    found = {case: kept[case]["0"] for case in SPACES}
    names = dict.fromkeys(key.partition("/")[0] for key in found[SPACES[0]] if key.endswith("/return_error"))
    rows = [
        [
            name,
            *(f"{run[f'{name}/return']:.2f} ± {run[f'{name}/return_error']:.2f}" for run in found.values()),
            f"{found['compat'][f'{name}/length']:.1f}",
        ]
        for name in names
    ]
    return table(["regulator", *(f"return, {case}" for case in SPACES), "mean length, compat, steps"], rows)


WAYS = ("drawn", "most probable")
"""How a policy chooses its actions."""


FIRES = (("out", 100, ".0f"), ("time_to_out", 1, ".0f"), ("effort", 1, ".1f"))


def of_fires(kept: Kept) -> str:
    """Return the table of controllers of the Gray-Scott reaction."""
    *references, (_, seeds) = kept.items()
    rows = []
    for name, own in references:
        label = f"{name}: {own['0']['variant']}" if own["0"]["variant"] else name
        rows.append([label, of_episodes(own["0"], ".2f"), *means([own["0"]], FIRES)])
    runs = ended(seeds)
    for way in WAYS:
        reached = mean_of_seeds(runs, f"{way}/return", ".2f")
        rows.append([f"PPO, {way} actions, {len(runs)} seeds", reached, *means(runs, FIRES, f"{way}/")])
    return table(["controller", "return", "fires put out", "time until half are out", "effort"], rows)


NEAR = 0.3
"""Distance of the Kuramoto-Sivashinsky equation within which the target counts as reached; without control it is 1.3 to 2.1 on average."""
STEERED = (("near_at_end", 100, ".0f"), ("time_to_near", 1, ".1f"), ("last_distance", 1, ".2g"))
LABELS = {"SAC": "SAC, 8 sensors, {} seeds", "regulator": "regulator, whole field"}


def of_flows(kept: Kept) -> str:
    """Return the table of controllers of the Kuramoto-Sivashinsky equation."""
    rows = []
    for name, seeds in kept.items():
        target, controller = name.split(", ")
        runs = ended(seeds)
        reached = of_episodes(runs[0], ".1f") if len(runs) == 1 else means(runs, [("return", 1, ".1f")])[0]
        rows.append([target, LABELS.get(controller, controller).format(len(runs)), reached, *means(runs, STEERED)])
    return table(["target", "controller", "return", f"within {NEAR} at the end", "time to get there", "distance at the end"], rows)


# Pages ----------------------------------------------------------------------------------------------------------------


class Shown(NamedTuple):
    """Where the table of a study stands, and what makes it."""

    page: Path
    mark: str
    write: Callable[[Kept], str]


OFF_POLICY_PAGE, ENVIRONMENTS_PAGE, GALLERY = BENCHMARKS / "off_policy.md", BENCHMARKS / "environments.md", DOCS / "gallery.md"
TABLES = {
    "tuned": Shown(DOCS / "results.md", "results", of_cases(RESULTS)),
    "untuned": Shown(DOCS / "results.md", "robustness", by_environment),
    "off_policy": Shown(OFF_POLICY_PAGE, "results few", of_cases(OFF_POLICY, FEW)),
    "off_policy_many": Shown(OFF_POLICY_PAGE, "results many", of_cases(OFF_POLICY, FEW)),
    "comparisons": Shown(OFF_POLICY_PAGE, "results comparisons", of_cases(COMPARED, COMPARISONS)),
    "memory": Shown(DOCS / "agents.md", "memory", of_cases(REMEMBERING, MEMORY)),
    "external": Shown(DOCS / "external.md", "external results", of_cases(JUDGED)),
    "minatar": Shown(DOCS / "external.md", "minatar results", of_cases(COMPETING)),
    "auto": Shown(DOCS / "sweeps.md", "auto", by_size),
    "pbt": Shown(DOCS / "sweeps.md", "pbt", of_cases(SEARCHED)),
    "exarl": Shown(BENCHMARKS / "exarl.md", "exarl trainings", of_cases(LEARNED)),
    "catalysis": Shown(ENVIRONMENTS_PAGE, "tuned", of_cases(PATHS)),
    "catalysis_continuous": Shown(ENVIRONMENTS_PAGE, "continuous", of_cases(PATHS)),
    "catalysis_published": Shown(ENVIRONMENTS_PAGE, "published", of_cases(PATHS)),
    "catalysis_envs": Shown(ENVIRONMENTS_PAGE, "environments", of_cases(LEARNING_WITH_MORE)),
    "booster": Shown(GALLERY, "corrected", of_cases(REGULATED)),
    "booster_compat": Shown(GALLERY, "compat", of_cases(REGULATED | {"mean length, steps": ranged("last/episode_length", ".1f")})),
    "booster_regulators": Shown(GALLERY, "regulators", of_regulators),
    "covid": Shown(
        ENVIRONMENTS_PAGE,
        "learning",
        of_parts(
            ["settings", "policy"],
            {policy: [policy] for policy in COVID_POLICIES},
            {key: (key, ".1f") for key in (*COVID_GROUPS, "payments")},
        ),
    ),
    "covid_references": Shown(ENVIRONMENTS_PAGE, "references", of_references),
    "gray_scott": Shown(GALLERY, "gray_scott results", of_fires),
    "kuramoto_sivashinsky": Shown(GALLERY, "kuramoto_sivashinsky results", of_flows),
    "tag": Shown(
        ENVIRONMENTS_PAGE,
        "catches",
        of_parts(["game", "taggers", "runners"], PAIRS, {"caught, %": ("caught", ".1f"), "steps of an episode": ("steps", ".0f")}),
    ),
}
"""By study."""
