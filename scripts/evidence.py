"""The rule of docs/reproductions.md: from the raw numbers of this repository to the verdict of a published claim.

An interval reaches from the least to the largest value of at least five runs or rounds. Of speeds only what was measured quietly counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from result_tables import Run, ended

Raw = dict[str, Any]
"""Numbers by file, see `reproduce.raw`."""
REPRODUCED, IN_KIND, CONTRADICTED = "reproduced", "reproduced in kind", "contradicted"
UNDECIDED, UNTESTABLE, NOT_YET = "undecided", "cannot be tested here", "not measured yet"
LEAST = 5
"""Runs or rounds of an interval."""
CAMPAIGN = "`python scripts/reproduce.py --only {}`: "
STUDY = "[{}]({}): "
"""The section that has the commands."""


class Interval(NamedTuple):
    """The median of some values, the least and the largest."""

    median: float
    low: float
    high: float
    runs: int

    def text(self, form: str) -> str:
        """Return it as text, with a format for each number."""
        return f"{self.median:{form}} [{self.low:{form}}, {self.high:{form}}]"

    def scaled(self, by: float) -> Interval:
        """Return it in another unit."""
        return Interval(by * self.median, by * self.low, by * self.high, self.runs)


class Found(NamedTuple):
    """The number of a row, and its verdict."""

    number: str
    verdict: str


def interval(values: Sequence[float]) -> Interval | None:
    """Return the interval of enough values, else None."""
    return Interval(statistics.median(values), min(values), max(values), len(values)) if len(values) >= LEAST else None


def quiet(raw: Raw, name: str, *starts: str) -> dict[str, Any]:
    """Return the values of the quiet parts of a measurement whose titles begin with one of `starts`."""
    parts = raw["reproduce"].get(name, {}).get("parts", {})
    return {title: part["values"] for title, part in parts.items() if part["quiet"] and title.startswith(starts or ("",))}


def of_rounds(raw: Raw, name: str, *keys: str) -> Interval | None:
    """Return the interval over rounds of a value that is found by keys."""
    found = []
    for values in quiet(raw, name).values():
        value: Any = values
        for key in keys:
            value = value[key]
        found.append(value)
    return interval(found)


def ratios(raw: Raw, name: str, above: tuple[str, ...], below: tuple[str, ...]) -> Interval | None:
    """Return the interval over rounds of the ratio of two values of a round."""
    found = []
    for values in quiet(raw, name).values():
        both: list[Any] = [values, values]
        for place, keys in enumerate((above, below)):
            for key in keys:
                both[place] = both[place][key]
        found.append(both[0] / both[1])
    return interval(found)


def verdict(shown: bool, opposite: bool) -> str:
    """Return the verdict of intervals that show the published direction, or the opposite one."""
    return IN_KIND if shown else CONTRADICTED if opposite else UNDECIDED


def kept_runs(raw: Raw, study: str, case: str) -> list[Run]:
    """Return the runs of a case of a study that did not fail."""
    return ended(raw["results"].get(study, {}).get(case, {}))


def over_seeds(raw: Raw, study: str, case: str, key: str) -> Interval | None:
    """Return the interval of a number over the seeds of a case."""
    return interval([run[key] for run in kept_runs(raw, study, case) if key in run])


def missing(verdict: str = NOT_YET) -> Callable[[Raw], Found]:
    """Return the answer of a claim that nothing is measured for."""
    return lambda raw: Found("–", verdict)


class Claim(NamedTuple):
    """A published claim, what is done here, and how it is answered."""

    name: str
    text: str
    done: str
    answer: Callable[[Raw], Found]
