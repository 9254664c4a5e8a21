"""Report a covid run for `warprun eval`: tables of every state and policy, and figures."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from warprun.envs.covid.data import load
from warprun.envs.covid.model import BORROWING
from warprun.envs.covid.tables import (
    ECONOMY_OFFSET,
    ECONOMY_SLOPE,
    FIRST_DAY,
    FULL_SUBSIDY_DAY,
    HEALTH_ODDS,
    HEALTH_OFFSET,
    HEALTH_SLOPE,
    PER_FULL_OUTPUT,
    PLANNER,
    POPULATION,
    STATES,
    SUBSIDY_LEVELS,
    row,
)

if TYPE_CHECKING:
    from warprun.runs.recording import Player, Recording

NOTICE = (
    "A proof of concept by its authors (Trott, Srinivasa, van der Wal, Haneuse, Zheng 2021), not for real policy making: "
    "https://github.com/salesforce/ai-economist/blob/master/COVID-19_Simulation-Card.pdf"
)


class Course(NamedTuple):
    """An episode of T days under one policy; the last axis of [T + 1, 51] is the state, of [T + 1, 52] the states and the country."""

    level: np.ndarray
    """[T + 1, 51]."""
    dead: np.ndarray
    """[T + 1, 52] people, cumulative."""
    unemployed: np.ndarray
    """[T + 1, 52] percent of the population."""
    subsidy: np.ndarray
    """[T + 1, 52] USD a day."""
    health: np.ndarray
    """[T, 52] scaled index of each day."""
    economy: np.ndarray
    """[T, 52]."""
    weight: float
    """Weight of health in the planner's reward; the economy has the rest."""
    returns: tuple[float, float]
    """Sums of rewards: mean of the governors, planner."""
    state: Mapping[str, np.ndarray]
    """Fields of the governors, [T + 1, 51] each."""


def report(play: Player, folder: Path) -> dict[str, float]:
    """Write `states.csv`, `policies.csv` and figures of the learned policy and three others; return the indices of the
    learned one.
    """
    learned = play()
    days = len(learned.rewards["governors"])
    courses = {"learned": course(learned)}
    for name, level in (("always open", 1), ("always closed", 10)):
        actions = {"governors": np.full((days, STATES, 1), level, np.int32), "planner": np.zeros((days, 1, 1), np.int32)}
        courses[name] = course(play(actions))
    start = row(play.environment.options["start"], "start")
    known = min(days, len(load().level) - start)
    history = play.under(time_limit=known, replay="policies")
    nothing = {"governors": np.zeros((known, STATES, 1), np.int32), "planner": np.zeros((known, 1, 1), np.int32)}
    courses["historical"] = course(history(nothing))
    write_states(folder / "states.csv", courses["learned"], start)
    write_policies(folder / "policies.csv", courses, known)
    draw(folder, courses, start, row(play.environment.options["vaccine_start"], "vaccine_start"))
    print(NOTICE)
    health, economy = courses["learned"].health[:, PLANNER], courses["learned"].economy[:, PLANNER]
    return {"health_index": float(health.sum()), "economic_index": float(economy.sum())}


def course(recording: Recording) -> Course:
    """Return the quantities of a recorded episode that tables and figures show."""
    state, tables = recording.states["governors"], recording.tables
    actors = tables.actors.astype(float)

    def with_country(values: np.ndarray) -> np.ndarray:
        return np.concatenate([values, values.sum(1, keepdims=True)], 1, dtype=float)

    paid = recording.states["planner"]["subsidy"] / SUBSIDY_LEVELS * actors[FULL_SUBSIDY_DAY]
    output = with_country(state["output"])
    output[:, PLANNER] -= BORROWING * paid[:, PLANNER]
    relative = np.clip(output * actors[PER_FULL_OUTPUT], 0.1, 3)
    died = with_country(state["died"])
    odds = recording.params.health_priority_planner * actors[HEALTH_ODDS, PLANNER]
    return Course(
        state["level"],
        with_country(state["dead"]),
        100 * with_country(state["unemployed"]) / actors[POPULATION],
        paid,
        (actors[HEALTH_SLOPE] * died + actors[HEALTH_OFFSET])[1:],
        (actors[ECONOMY_SLOPE] * (2 - 1 / relative) + actors[ECONOMY_OFFSET])[1:],
        float(odds / (1 + odds)),
        (float(recording.rewards["governors"].mean(1).sum()), float(recording.rewards["planner"].sum())),
        state,
    )


def write_states(path: Path, shown: Course, start: int) -> None:
    """Write a row for every day and state."""
    people = ("susceptible", "infected", "removed", "dead", "vaccinated", "unemployed")
    names = [str(name) for name in load().states]
    with open(path, "w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["date", "day", "state", "stringency", "subsidy_usd", *people, "unemployed_percent", "output_usd"])
        for t in range(len(shown.level)):
            day = FIRST_DAY + timedelta(start + t)
            for i, name in enumerate(names):
                counts = [f"{shown.state[field][t, i]:.0f}" for field in people]
                money = f"{shown.subsidy[t, i]:.0f}", f"{shown.state['output'][t, i]:.0f}"
                lines.writerow([day, t, name, shown.level[t, i], money[0], *counts, f"{shown.unemployed[t, i]:.3f}", money[1]])


def write_policies(path: Path, courses: Mapping[str, Course], days: int) -> None:
    """Write a row for every policy: indices and sums over the first `days` days (those with historical data), returns over the episode."""
    with open(path, "w", newline="") as file:
        lines = csv.writer(file)
        sums = ["health_index_mean", "economic_index_mean", "planner_reward_mean", "deaths", "unemployed_percent_mean", "subsidy_usd"]
        lines.writerow(["policy", "days", *sums, "episode_days", "governors_return", "planner_return"])
        for name, shown in courses.items():
            health, economy = (float(index[:days, PLANNER].mean()) for index in (shown.health, shown.economy))
            indices = [f"{mean:.4f}" for mean in (health, economy, shown.weight * health + (1 - shown.weight) * economy)]
            unemployed = f"{shown.unemployed[1 : days + 1, PLANNER].mean():.2f}"
            counts = [f"{shown.dead[days, PLANNER]:.0f}", unemployed, f"{shown.subsidy[1 : days + 1, PLANNER].sum():.0f}"]
            lines.writerow([name, days, *indices, *counts, len(shown.health), *(f"{r:.2f}" for r in shown.returns)])


def draw(folder: Path, courses: Mapping[str, Course], start: int, vaccines: int) -> None:
    """Draw the figures if matplotlib is installed; else print what to install."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print('covid: figures need matplotlib; run: pip install "warprun[plot]"')
        return
    from warprun.envs.covid import figures

    figures.draw(folder, courses, start, vaccines)
