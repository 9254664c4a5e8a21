"""The rule of docs/reproductions.md: from the raw numbers of this repository to the verdict of a published claim.

An interval reaches from the least to the largest value of at least five runs or rounds. Of speeds only what was measured quietly counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any, NamedTuple

from common import described
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

    def text(self, form: str) -> str:
        """Return it as text, with a format for each number."""
        return f"{self.median:{form}} [{self.low:{form}}, {self.high:{form}}]"

    def scaled(self, by: float) -> Interval:
        """Return it in another unit."""
        return Interval(by * self.median, by * self.low, by * self.high)

    def within(self, least: float, most: float) -> bool:
        """Return whether all of it lies between two numbers."""
        return least <= self.low and self.high <= most

    def beyond(self, least: float, most: float) -> bool:
        """Return whether nothing of it lies between two numbers."""
        return self.high < least or self.low > most


class Found(NamedTuple):
    """The number of a row, and its verdict."""

    number: str
    verdict: str


NOTHING = Found("–", NOT_YET)


def interval(values: Sequence[float]) -> Interval | None:
    """Return the interval of enough values, else None."""
    return Interval(statistics.median(values), min(values), max(values)) if len(values) >= LEAST else None


def quiet(raw: Raw, name: str, *starts: str) -> dict[str, Any]:
    """Return the values of the quiet parts of a measurement whose titles begin with one of `starts`."""
    parts = raw["reproduce"].get(name, {}).get("parts", {})
    return {title: part["values"] for title, part in parts.items() if part["quiet"] and title.startswith(starts or ("",))}


def value_of(values: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """Return the value that is found by keys, one within the other."""
    return reduce(getitem, keys, values)


def of_rounds(raw: Raw, name: str, *keys: str) -> Interval | None:
    """Return the interval over rounds of a value that is found by keys."""
    return interval([value_of(values, keys) for values in quiet(raw, name).values()])


def ratios(raw: Raw, name: str, above: Sequence[str], below: Sequence[str]) -> Interval | None:
    """Return the interval over rounds of the ratio of two values of a round."""
    return interval([value_of(values, above) / value_of(values, below) for values in quiet(raw, name).values()])


def verdict(shown: bool, opposite: bool) -> str:
    """Return the verdict of intervals that show the published direction, or the opposite one."""
    return IN_KIND if shown else CONTRADICTED if opposite else UNDECIDED


def kept_runs(raw: Raw, study: str, case: str) -> list[Run]:
    """Return the runs of a case of a study that did not fail."""
    return ended(raw["results"].get(study, {}).get(case, {}))


def over_seeds(raw: Raw, study: str, case: str, key: str) -> Interval | None:
    """Return the interval of a number over the seeds of a case."""
    return interval([run[key] for run in kept_runs(raw, study, case) if key in run])


def untestable(raw: Raw) -> Found:
    """Return the answer of a claim that nothing is measured for."""
    return Found("–", UNTESTABLE)


class Claim(NamedTuple):
    """A published claim, what is done here, and how it is answered."""

    name: str
    text: str
    done: str
    answer: Callable[[Raw], Found]


def conditions(raw: Raw, name: str) -> str:
    """Return where a measurement of scripts/reproduce.py was made, and beside which load."""
    own = raw["reproduce"][name]
    parts = own["parts"].values()
    most = max((part["foreign_cores"] for part in parts if part["quiet"]), default=0.0)
    return (
        f"{described(own['machine'])}. Load average before at most "
        f"{max(own['load_before'])}, other processes at most {most:.2f} of a core; {sum(not part['quiet'] for part in parts)} of "
        f"{len(parts)} parts not quiet and left out.\n"
    )
