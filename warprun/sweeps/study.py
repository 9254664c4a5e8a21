"""A study of Optuna over the settings of a run: every trial is a job of the sweep folder. No torch."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol, Self

import optuna
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, RangeSweep, Sweep
from omegaconf import OmegaConf
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import RandomSampler, TPESampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.engine import URL

from warprun.config.compose import derived
from warprun.config.overrides import GROUPS, rewrite, searched
from warprun.config.schema import Config
from warprun.errors import UserError, printable, require, shown
from warprun.files import write_atomic
from warprun.runs import rundir, signals
from warprun.runs.summary import measured
from warprun.sweeps.launch import TuneSettings
from warprun.sweeps.launcher import Running
from warprun.sweeps.plan import Job, Plan
from warprun.sweeps.spaces import value_of
from warprun.sweeps.table import Board, evaluations, state_of
from warprun.sweeps.view import DRAW_S, LOOK_S, View

LOG = "log"
"""The tag of an interval that is searched on a logarithmic scale: tag(log,interval(1e-5,1e-2))."""
OWN = ("seed", "name", "output_root", "run_dir")
"""Settings of single runs, which are not part of the best settings."""
GROUPS_OF_FILE = ("env", "agent", "concurrency", "tuned")
"""Groups that an experiment can choose."""


class Space(NamedTuple):
    """A search space."""

    fixed: list[str]
    """Overrides that all trials have."""
    distributions: dict[str, BaseDistribution]
    """Key -> distribution of its values."""
    text: dict[str, str]
    """Key -> its value or range as the user wrote it."""
    first: Mapping[str, float | int | str]
    """Key -> its value in the first trial; keys that it lacks are drawn."""

    def beginning_with(self, config: Config) -> Self:
        """Return the space with a first trial that has the values of a config, as far as the ranges have them."""
        found = {key: _among(key, self.distributions[key], value_of(config, key)) for key in self.distributions}
        return self._replace(first={key: values[0] for key, values in found.items() if values})

    def overrides(self, values: Mapping[str, object]) -> list[str]:
        """Return the overrides of a trial with these values."""
        return [*self.fixed, *(f"{key}={values[key]}" for key in self.distributions)]

    def corners(self) -> list[list[str]]:
        """Return overrides in which every key has each of its extreme values, or choices, once."""
        ends = {key: _ends(distribution) for key, distribution in self.distributions.items()}
        first = {key: values[0] for key, values in ends.items()}
        return [self.overrides(first | {key: value}) for key, values in ends.items() for value in values]


def read_space(overrides: Sequence[str]) -> Space:
    """Return the search space that overrides describe, of which at least one is a sweep. Raises UserError."""
    fixed, space = searched(overrides)
    for override in fixed:
        require(not override.startswith("~"), f"{shown(override)}: a study writes its best settings to a file, which cannot remove a key")
    text = dict(override.partition("=")[::2] for override in fixed)
    distributions = {}
    for key, (given, values) in space.items():
        distributions[key] = _distribution(given, values)
        text[key] = given.partition("=")[2]
    return Space(fixed, distributions, text, {})


def _among(key: str, distribution: BaseDistribution, value: object) -> list[float | int | str]:
    """Return the values of the distribution of a key that are `value`, which choices have as text; there may be none."""
    if isinstance(distribution, CategoricalDistribution):
        parser = OverridesParser.create()
        return [str(choice) for choice in distribution.choices if parser.parse_override(rewrite(f"{key}={choice}")).value() == value]
    assert isinstance(distribution, FloatDistribution) and isinstance(value, int | float)
    return [value] if distribution.low <= value <= distribution.high else []


def _distribution(given: str, values: Sweep | list[str]) -> BaseDistribution:
    if isinstance(values, IntervalSweep):
        return _of_interval(given, values)
    if isinstance(values, RangeSweep):
        return _of_range(values)
    assert isinstance(values, list)
    return CategoricalDistribution([value.partition("=")[2] for value in values])


def _of_interval(given: str, interval: IntervalSweep) -> BaseDistribution:
    low, high = interval.start, interval.end
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UserError(f"{shown(given)}: write interval(low,high) with finite numbers, the lower first")
    unknown = set(interval.tags) - {LOG}
    if unknown:
        raise UserError(f"{shown(given)}: unknown tag {min(unknown)!r} (there is: {LOG})")
    log = LOG in interval.tags
    if log and low <= 0:
        raise UserError(f"{shown(given)}: an interval with the tag log begins above 0")
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(float(low), float(high), log=log)


def _of_range(values: RangeSweep) -> BaseDistribution:
    start, stop, step = values.start, values.stop, values.step
    assert start is not None and stop is not None
    count = math.ceil((stop - start) / step)
    low, high = sorted((start, start + (count - 1) * step))
    if isinstance(low, int) and isinstance(high, int) and isinstance(step, int):
        return IntDistribution(low, high, step=abs(step))
    return FloatDistribution(float(low), float(high), step=abs(float(step)))


def _ends(distribution: BaseDistribution) -> list[object]:
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    return [distribution.low, distribution.high]


def as_file(overrides: Sequence[str], comment: str) -> str:
    """Return settings as a file for conf/experiment, with a comment of one line."""
    groups, keys = [], OmegaConf.create({})
    parser = OverridesParser.create()
    for parsed in parser.parse_overrides([rewrite(override) for override in overrides]):
        key = parsed.key_or_group
        if key in GROUPS_OF_FILE:
            groups.append(f"  - override /{key}: {parsed.value()}")
        elif key not in (*OWN, *GROUPS):
            OmegaConf.update(keys, key, parsed.value(), force_add=True)
    lines = ["# @package _global_", f"# {comment}", *(["defaults:", *groups, ""] if groups else [])]
    return "\n".join([*lines, OmegaConf.to_yaml(keys)])


STORE, BEST = "study.db", "best.yaml"
EVERY_TENTH = "eval.every=10%"
"""Of trials that do not say when they evaluate: an interval that followed from their settings would compare them at different steps."""
NAME = "warprun"
LEAST_TRIALS, LEAST_EVALUATIONS = 5, 2
"""Finished trials, and evaluations of a trial, before the pruner `median` ends a trial."""


class Study:
    """The trials of a study. The number of a trial is that of its job; a trial that was interrupted is continued."""

    unit = "trial"

    def __init__(self, plan: Plan, space: Space, settings: TuneSettings, group: str | None) -> None:
        """Open the study in the folder of a plan, or begin it; `group`: `eval.group` of its runs."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._plan = plan
        self._space = space
        self._group = group
        self._most = settings.trials
        address = URL.create("sqlite", database=str(plan.folder.absolute() / STORE)).render_as_string()
        self._study = optuna.create_study(
            storage=RDBStorage(address), study_name=NAME, load_if_exists=True, direction="maximize", pruner=_pruner(settings.pruner)
        )
        begun = len(self._study.get_trials(deepcopy=False))
        # A sampler that continues must not draw what it drew before.
        seed = (settings.seed + begun) % 2**32
        learns = TPESampler(n_startup_trials=settings.startup, multivariate=True, constant_liar=True, seed=seed)
        self._study.sampler = learns if settings.sampler == "tpe" else RandomSampler(seed)
        self._open = {found.number: Trial(self._study, found._trial_id) for found in self._trials(TrialState.RUNNING)}
        self._pruned: dict[int, int] = {}
        for number in sorted(self._open):
            self._plan_job(number)
        self._unstarted = sorted(self._open)
        if begun == 0 and space.first:
            self._study.enqueue_trial(dict(space.first))

    def next(self) -> Job | None:
        """Return the job that starts next: one of an interrupted trial, or of a new one; None if there are enough."""
        if self._unstarted:
            return self._plan.jobs[self._unstarted.pop(0)]
        if len(self._plan.jobs) >= self._most:
            return None
        trial = self._study.ask(self._space.distributions)
        self._open[trial.number] = trial
        return self._plan_job(trial.number)

    def _plan_job(self, number: int) -> Job:
        if number == len(self._plan.jobs):
            self._plan.add([self._space.overrides(self._open[number].params)])
            self._plan.write()
        return self._plan.jobs[number]

    def watch(self, job: Job) -> bool:
        """Tell the study the evaluations of a running job; return whether the job should end now."""
        trial = self._open[job.number]
        if job.number in self._pruned:
            return False
        found = evaluations(job, self._group)
        for step, (_, value) in enumerate(found, 1):
            if step > self._told(job) and math.isfinite(value):
                trial.report(value, step)
        if not found or not trial.should_prune():
            return False
        self._pruned[job.number] = len(found)
        return True

    def _told(self, job: Job) -> int:
        values = self._study._storage.get_trial(self._open[job.number]._trial_id).intermediate_values
        return max(values, default=0)

    def ended(self, job: Job) -> None:
        """Tell the study how a job has ended. An interrupted one stays open."""
        state, number = state_of(job), job.number
        if number in self._pruned and not state.is_done:
            self._study.tell(number, state=TrialState.PRUNED)
            status = rundir.read_status(job.folder) | {"state": "interrupted", "error": f"pruned after {self._pruned[number]} evaluations"}
            with suppress(OSError):
                rundir.write_status(job.folder, status)
        elif state.is_done and state.returned is not None and math.isfinite(state.returned):
            self._study.tell(number, state.returned)
        elif state.state != "interrupted":
            self._study.tell(number, state=TrialState.FAIL)
        else:
            return
        del self._open[number]

    @property
    def best(self) -> Job | None:
        """The job of the finished trial with the highest return."""
        done = self._trials(TrialState.COMPLETE)
        return self._plan.jobs[max(done, key=lambda trial: (trial.value or 0.0, -trial.number)).number] if done else None

    def write_best(self, job: Job) -> Path:
        """Write the settings of the best job as a file for conf/experiment, and return its path. Raises OSError."""
        state = state_of(job)
        count = len(self._trials(TrialState.COMPLETE))
        value = "" if state.returned is None else f"eval/return {measured(state.returned, state.stderr)}"
        comment = (
            f"Trial {job.number}, the best of {count} finished ones: {value}. A best of many is biased upwards: repeat it with other seeds."
        )
        return write_best(self._plan.folder, [*derived(job.overrides), *job.overrides], comment)

    def _trials(self, *wanted: TrialState) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=wanted)


def write_best(folder: Path, overrides: Sequence[str], comment: str) -> Path:
    """Write the best settings of a study into its folder, and return the path of the file. Raises OSError.

    `overrides` begin with what followed from the run: nothing follows where an experiment is given.
    """
    path = folder / BEST
    write_atomic(path, as_file([override for override in overrides if override != EVERY_TENTH], comment).encode())
    return path


class Search(Protocol):
    """A search for good settings: `Study`, whose trials are independent, or `pbt.Population`."""

    unit: str
    """The word for a job of it."""

    def next(self) -> Job | None:
        """Return the job that starts next; None if there is none at present."""

    def watch(self, job: Job) -> bool:
        """Look at a running job; return whether it should end now."""

    def ended(self, job: Job) -> None:
        """Take note of a job that has ended."""

    @property
    def best(self) -> Job | None:
        """The best finished job."""

    def write_best(self, job: Job) -> Path:
        """Write the settings of a job as a file for conf/experiment, and return its path. Raises OSError."""


def run(study: Search, board: Board, running: Running, minutes: float = math.inf) -> None:
    """Train trials until there are enough; none starts after so many minutes.

    After a signal all running ones save a checkpoint; then KeyboardInterrupt is raised.
    """
    stopped, next_s, end_s = False, 0.0, time.monotonic() + 60.0 * minutes
    with View(board).open() as view, signals.flagged(), signals.requests.deferred():
        while True:
            number = signals.requests.number
            if number is not None and not stopped:
                stopped = True
                view.message(f"{signals.explain(number)}: {len(running.jobs)} {study.unit}s save checkpoints and end")
                running.stop(number)
            if not stopped and time.monotonic() < end_s:
                _start(study, board, running)
            if not stopped and time.monotonic() >= next_s:
                running.stop(signal.SIGINT, [job for job in running.jobs if study.watch(job)])
                next_s = time.monotonic() + DRAW_S
            if not running.jobs:
                break
            view.draw(running.jobs)
            for job in running.ended(LOOK_S):
                study.ended(job)
                view.ended(job)
        if stopped:
            raise KeyboardInterrupt


def _start(study: Search, board: Board, running: Running) -> None:
    """Start trials in all free slots."""
    while not running.is_full and (job := study.next()):
        running.start(job)
        board.begun(job)


def _pruner(name: str) -> BasePruner:
    pruners: dict[str, BasePruner] = {
        "median": MedianPruner(n_startup_trials=LEAST_TRIALS, n_warmup_steps=LEAST_EVALUATIONS),
        "asha": SuccessiveHalvingPruner(),
        "none": NopPruner(),
    }
    return pruners[name]


def closing(study: Search) -> Sequence[str]:
    """Return lines about the best trial and the file with its settings."""
    best = study.best
    if best is None:
        return [f"no {study.unit} has finished"]
    state = state_of(best)
    value = "" if state.returned is None else measured(state.returned, state.stderr)
    of_group = f" of group {printable(state.group)} (eval.group)" if state.group else ""
    return [
        f"best: {study.unit} {best.number}, return {value}{of_group}, the highest of all and so biased upwards: {' '.join(best.overrides)}",
        f"its settings: {study.write_best(best)}",
    ]
