"""Population-based training: members train in rounds; after each the worst go on as copies of the best, with perturbed settings.

Source: Jaderberg et al. 2017, Population Based Training of Neural Networks (arXiv:1711.09846), with truncation selection and perturbation.
A member is a job of the sweep folder, and a round is a part of its run. No torch.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from warprun.config.compose import derived
from warprun.errors import UserError, printable
from warprun.files import read_json, write_atomic
from warprun.runs import rundir
from warprun.sweeps.launch import TuneSettings
from warprun.sweeps.plan import Job, Plan
from warprun.sweeps.study import Space, write_best
from warprun.sweeps.table import state_of

STORE = "population.json"
"""The rounds of a population: file in the sweep folder."""
Values = dict[str, float | int | str]
"""Key -> value of a setting that is searched."""


class Exchange(NamedTuple):
    """A member that went on as a copy of another one."""

    round: int
    """The round after which, from 1 on."""
    member: int
    parent: int
    """The member whose run it has a copy of."""


class Population:
    """The members of a population, as `study.run` trains them."""

    unit = "member"

    def __init__(self, plan: Plan, space: Space, settings: TuneSettings, total_steps: int) -> None:
        """Begin the population in the folder of a plan, or continue it. Raises UserError."""
        if any(override.startswith(("seed=", "until_steps=")) for override in space.overrides(dict.fromkeys(space.distributions, 0))):
            raise UserError("tune.sampler=pbt gives each member its own seed and until_steps: leave them out")
        self._plan, self._space, self._settings = plan, space, settings
        self._every = settings.every or math.ceil(total_steps / 10)
        self._total_steps = total_steps
        self.rounds = math.ceil(total_steps / self._every)
        self.round, self.values, self.exchanges = self._read() or (1, self._drawn(), [])
        if self._planned() != [job.overrides for job in plan.jobs]:
            self._write()
            self._apply()
        self._waiting = [job for job in plan.jobs if not state_of(job).is_done]

    def next(self) -> Job | None:
        """Return the next job of this round; None if all have been started."""
        return self._waiting.pop(0) if self._waiting else None

    def watch(self, job: Job) -> bool:
        """Return False: a round is trained to its end."""
        return False

    def ended(self, job: Job) -> None:
        """Begin the next round if all members are at the end of this one."""
        states = [state_of(each) for each in self._plan.jobs]
        if not all(state.is_done or state.state == "failed" for state in states) or self.round == self.rounds:
            return
        if not any(state.is_done for state in states):
            return
        returns = [state.returned if state.is_done and state.returned is not None else -math.inf for state in states]
        self._exchange(returns)
        self._write()
        self._apply()
        self._waiting = list(self._plan.jobs)
        print(f"round {self.round} of {self.rounds}: {self._copies()}", flush=True)

    def _copies(self) -> str:
        last = [exchange for exchange in self.exchanges if exchange.round == self.round - 1]
        return ", ".join(f"{each.member} goes on as {each.parent}" for each in last) or "no member is replaced"

    @property
    def best(self) -> Job | None:
        """The member with the highest return after its last round."""
        found = {job.number: state_of(job) for job in self._plan.jobs}
        done = {n: state.returned for n, state in found.items() if state.is_done and state.returned is not None}
        return self._plan.jobs[max(done, key=lambda n: (done[n], -n))] if done and self.round == self.rounds else None

    def write_best(self, job: Job) -> Path:
        """Write the last settings of the best member as a file for conf/experiment, and return its path. Raises OSError."""
        comment = f"The last settings of member {job.number}, which changed {self._changes(job.number)} times while it trained."
        settings = [override for override in job.overrides if not override.startswith(("until_steps=", "stop_when_solved="))]
        return write_best(self._plan.folder, [*derived(settings), *settings], comment)

    def _changes(self, member: int) -> int:
        """Return how often the settings of a member changed, those of its ancestors included."""
        count = 0
        for exchange in reversed(self.exchanges):
            if exchange.member == member:
                count, member = count + 1, exchange.parent
        return count

    def _exchange(self, returns: Sequence[float]) -> None:
        """Replace the worst members by the best, and begin the next round (truncation selection)."""
        random = np.random.default_rng([self._settings.seed, self.round])
        order = sorted(range(len(returns)), key=lambda n: (-returns[n], n))
        best = [n for n in order if returns[n] > -math.inf][: max(1, round(self._settings.share * len(order)))]
        lost = [n for n in order if returns[n] == -math.inf]
        worst = dict.fromkeys([*order[-len(best) :], *lost]) if len(order) > 1 else {}
        for member in worst:
            if member not in best:
                parent = int(random.choice(best))
                self.values[member] = self._perturbed(self.values[parent], random)
                self.exchanges.append(Exchange(self.round, member, parent))
        self.round += 1

    def _perturbed(self, values: Values, random: np.random.Generator) -> Values:
        """Return settings with each number times one of `tune.factors`, and each choice drawn anew with the probability `tune.share`."""
        changed: Values = {}
        for key, distribution in self._space.distributions.items():
            value = values[key]
            if isinstance(distribution, CategoricalDistribution):
                changed[key] = _draw(distribution, random) if random.random() < self._settings.share else value
            else:
                changed[key] = _within(distribution, float(value) * float(random.choice(self._settings.factors)))
        return changed

    def _drawn(self) -> list[Values]:
        random = np.random.default_rng([self._settings.seed, 0])
        distributions = self._space.distributions
        members = [{key: _draw(each, random) for key, each in distributions.items()} for _ in range(self._settings.members)]
        return [{**members[0], **self._space.first}, *members[1:]]

    def _planned(self) -> list[tuple[str, ...]]:
        """Return the overrides of all members in this round."""
        until = min(self.round * self._every, self._total_steps)
        common = ["stop_when_solved=false", f"until_steps={until}"]
        return [(*self._space.overrides(values), f"seed={n}", *common) for n, values in enumerate(self.values)]

    def _apply(self) -> None:
        """Give the members the runs and the settings of this round. Whatever a command that was killed has done of it is done again."""
        for exchange in self.exchanges:
            if exchange.round == self.round - 1:
                _copy(self._plan.jobs[exchange.parent].run, self._plan.jobs[exchange.member].run)
        planned = self._planned()
        if not self._plan.jobs:
            self._plan.add(planned)
        for job, overrides in zip(list(self._plan.jobs), planned, strict=True):
            self._plan.jobs[job.number] = job._replace(overrides=overrides)
            status = rundir.read_status(job.folder)
            if status:
                kept = {name: value for name, value in status.items() if name != "error"}
                rundir.write_status(job.folder, kept | {"state": "interrupted", "overrides": list(overrides)})
        self._plan.write()

    def _read(self) -> tuple[int, list[Values], list[Exchange]] | None:
        path = self._plan.folder / STORE
        try:
            found = read_json(path)
            assert isinstance(found, Mapping)
            values = [{key: member[key] for key in self._space.distributions} for member in found["members"]]
            return int(found["round"]), values, [Exchange(*each) for each in found["exchanges"]]
        except FileNotFoundError:
            return None
        except (AssertionError, KeyError, TypeError, ValueError):
            raise UserError(f"{printable(path)} is damaged: begin a new population in another sweep_dir") from None

    def _write(self) -> None:
        content = {"round": self.round, "rounds": self.rounds, "every": self._every, "members": self.values, "exchanges": self.exchanges}
        write_atomic(self._plan.folder / STORE, json.dumps(content, indent=1).encode())


def _draw(distribution: BaseDistribution, random: np.random.Generator) -> float | int | str:
    """Return a value of a distribution."""
    if isinstance(distribution, CategoricalDistribution):
        return str(distribution.choices[int(random.integers(len(distribution.choices)))])
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    low, high = float(distribution.low), float(distribution.high)
    drawn = math.exp(random.uniform(math.log(low), math.log(high))) if distribution.log else float(random.uniform(low, high))
    return _within(distribution, drawn)


def _within(distribution: BaseDistribution, value: float) -> float | int:
    """Return the value of a distribution that is nearest to `value`, to four digits."""
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    low, high, step = distribution.low, distribution.high, distribution.step
    if step:
        value = low + round((value - low) / step) * step
    value = min(max(value, low), high)
    return int(value) if isinstance(distribution, IntDistribution) else float(f"{value:.4g}")


def _copy(run: Path, to: Path) -> None:
    """Replace a run folder by a copy of another."""
    unfinished = to.with_name(f"{to.name}.copy")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(run, unfinished, symlinks=True)
    shutil.rmtree(to, ignore_errors=True)
    unfinished.rename(to)
