"""Build one run from a config and drive it from its first to its last iteration."""

from __future__ import annotations

import math
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from warprun.config import kept
from warprun.config.cadence import Moment, Recurring, parse
from warprun.config.compose import note_on_tuned
from warprun.config.schema import Config, to_dict
from warprun.errors import TrainingFailed
from warprun.learning.interfaces import Metrics
from warprun.runtime import checkpoint, rundir
from warprun.runtime.build import make_agent, make_simulator, set_up
from warprun.runtime.clock import PhaseClock
from warprun.runtime.evaluate import Evaluator
from warprun.runtime.records.records import Records
from warprun.runtime.sentinel import Sentinel
from warprun.runtime.summary import summarize
from warprun.seeds import derived_seed

MUCH_CLIPPED = 0.01
"""Share of clipped observations above which a run says so."""


@dataclass(frozen=True)
class Result:
    """The outcome of a run."""

    folder: Path
    status: str
    """solved or finished; an interrupted run raises KeyboardInterrupt, and its status.json says interrupted."""
    env_steps: int
    wall_s: float
    eval_return: float | None
    """Mean return of the last evaluation, of several groups that of `eval.group`; None if there was none."""
    eval_stderr: float | None
    """Its standard error; None for a single episode."""
    best_return: float | None
    """Mean return of the best evaluation, biased upwards because it is the best of many; None if there was none."""
    train_return: float | None
    """Mean return of the training episodes in the last record that has any; None if no episode ended."""
    metrics: dict[str, float]
    """The last value of every metric."""

    @property
    def solved(self) -> bool:
        return self.status == "solved"


def train(config: Config) -> Result:
    """Train one run.

    If a mistake of the user is found before training begins, UserError is raised and nothing is left behind: a folder that existed is
    empty again, one that was made for the run is removed. An interrupted run saves a checkpoint and raises KeyboardInterrupt.
    """
    wanted = Path(config.run_dir or config.output_root)
    made = [place for place in (wanted, *wanted.parents) if not place.exists()]
    if config.run_dir:
        folder = rundir.claim(wanted)
    else:
        folder = rundir.create(wanted, config.name or f"{config.env.name}_{config.agent.name}")
        made = [folder, *made]
    with _handling(signal.default_int_handler, signal.SIGTERM):
        try:
            run = _Run(config, folder)
        except BaseException:
            _take_back(folder, made)
            raise
    result = run.drive()
    if run.stop_asked:  # also if the run had just ended: a stop request also ends the remaining runs of a sweep
        raise KeyboardInterrupt
    return result


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], object], *signals: signal.Signals) -> Iterator[None]:
    """Handle `signals` with `handler` in this context. Python delivers signals to the main thread only; elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def _take_back(folder: Path, made: list[Path]) -> None:
    """Remove what was written into `folder`, then the folders `made` for the run, innermost first, unless other files are in them."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    with suppress(OSError):
        for place in made:
            place.rmdir()


BEST = ("eval/best_return", "eval/best_env_steps")
"""Metrics that later evaluations keep."""
SILENCE_S = 10.0
"""Longest time between two records, so that a user sees progress."""
LONG_ITERATION_S = 10.0
"""An iteration that takes longer than this is announced."""


@dataclass(frozen=True)
class Limits:
    """The limits of a run, and its progress towards them."""

    total_steps: int
    max_minutes: float | None
    began_s: float
    """Wall-clock time from which progress counts: the end of compilation."""

    def moment(self, seconds: float, env_steps: int, iterations: int) -> Moment:
        """Return the state of the run; its progress is the larger of the progress in steps and in time."""
        progress = env_steps / self.total_steps
        if self.max_minutes is not None:
            progress = max(progress, (seconds - self.began_s) / max(60.0 * self.max_minutes - self.began_s, 1e-9))
        return Moment(seconds, env_steps, iterations, min(progress, 1.0))

    def reached(self, now: Moment, iteration_s: float) -> bool:
        """Return whether the run ends now: all steps are taken, or half of another iteration would exceed the time limit."""
        in_time = self.max_minutes is None or now.seconds + 0.5 * iteration_s < 60.0 * self.max_minutes
        return now.env_steps >= self.total_steps or not in_time


class _Run:
    """A run from its first to its last iteration."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self.started = rundir.now()
        self.records = Records(folder, to_dict(config), config.log.live)
        try:
            self.setup = set_up(config)
            device, environment, env = self.setup.device, self.setup.environment, config.env
            rundir.write_config(folder, to_dict(config))
            self.records.start({"device": f"{device.name} ({device.why})"} | rundir.write_versions(folder))
            note = note_on_tuned(config)
            if note:
                self.records.message(note)
            self.records.message(f"rollout and update: {self.setup.plan}")
            self.agent = make_agent(self.setup)
            self.simulator = make_simulator(self.setup, config.n_envs, config.agent.horizon, config.seed, self.agent, self.records.message)
            self.simulator.prepare()
            self.evaluator = self._evaluator(config.eval.episodes, "evaluation")
            self.final_evaluator = self._evaluator(config.eval.episodes_at_end, "final evaluation")
            kept.keep(folder, env.module, env.options, env.time_limit, environment, self.setup.tables)
        except BaseException:
            self.records.close()
            raise
        names = list(self.simulator.trajectory.groups)
        self.returns = "return" if len(names) == 1 else f"{config.eval.group or names[0]}/return"
        """Name, below `train/` and `eval/`, of the return that decides which checkpoint is best and whether the run is solved."""
        self.sentinel = Sentinel(self.simulator, self.records.message, config.env.on_nan == "reset")
        self.clock = PhaseClock(self.setup.device.torch)
        self.metrics: dict[str, float] = {}
        self.history: list[dict[str, float]] = []
        """All records, for the summary of the learning curve at the end."""
        self.solved = False
        self.stop_asked = False
        self.announced = False
        self.clipping_told = False

    @property
    def env_steps(self) -> int:
        return self.simulator.steps * self.config.n_envs

    def drive(self) -> Result:
        """Train until a limit is reached, the environment is solved, or a signal asks the run to stop."""
        with _handling(self._ask_to_stop, signal.SIGINT, signal.SIGTERM):
            try:
                self._write_status("running")
                status = self._train()
                self._save()
                self._write_status(status)
                self.records.finish(self._summary(), status)
            except TrainingFailed as error:
                failure = TrainingFailed(f"{error}; {checkpoint.newest(self.folder)}")
                self._write_status("failed", str(failure))
                self.records.finish(self._summary() | {"failed": str(failure)}, "failed")
                raise failure from None
            except BaseException:
                self._write_status("failed")
                raise
            finally:
                self.records.close()
        last = self.metrics.get
        return Result(
            self.folder,
            status,
            self.env_steps,
            self.records.wall_s,
            last(f"eval/{self.returns}"),
            last(f"eval/{self.returns}_stderr"),
            last("eval/best_return"),
            last(f"train/{self.returns}"),
            dict(self.metrics),
        )

    def _train(self) -> str:
        config, simulator, agent, processes = self.config, self.simulator, self.agent, self.setup.communicator
        limits = Limits(config.total_steps, config.max_minutes, self.records.wall_s)
        now = limits.moment(self.records.wall_s, 0, 0)
        evaluation, checkpoint_, log = (
            Recurring(parse(f"{name}.every", settings.every), now)
            for name, settings in (("eval", config.eval), ("checkpoint", config.checkpoint), ("log", config.log))
        )
        logged = now
        while True:
            began_s = self.records.wall_s
            with self.clock.phase("rollout"):
                trajectory = simulator.collect(agent.act)
            self.sentinel.after_rollout()
            with self.clock.phase("update"):
                losses = agent.update(trajectory, progress=now.progress)
            self.sentinel.after_update(losses)
            now = limits.moment(self.records.wall_s, self.env_steps, now.iterations + 1)
            if now.iterations == 1:
                # The first iteration compiles the kernels of the update. Schedules and time limits count from its end.
                limits = replace(limits, began_s=now.seconds)
                now, began_s = limits.moment(now.seconds, now.env_steps, 1), now.seconds
            self._announce(now.seconds - began_s)
            last = processes.any(limits.reached(now, now.seconds - began_s))
            stop_asked = processes.any(self.stop_asked)
            evaluates = (last or evaluation.due(now)) and not stop_asked
            if evaluates:
                self._evaluate(last)
            stop = last or stop_asked or processes.any(self.solved and config.stop_when_solved)
            if log.due(now) or evaluates or stop or now.seconds - logged.seconds > SILENCE_S:
                self._log(losses, now, logged, evaluates)
                logged = now._replace(seconds=self.records.wall_s)
            if stop:
                # A stop request also ends the remaining runs of a sweep, so it counts even if the run has just been solved.
                return "interrupted" if stop_asked or self.stop_asked else "solved" if self.solved else "finished"
            if checkpoint_.due(now):
                self._save()
                self._write_status("running")

    def _evaluate(self, last: bool) -> None:
        """Evaluate the policy. If it seems to solve the environment, and at the end of the run, evaluate it again with fresh episodes.

        The evaluation that reaches the bar first is the best of many, so its mean is biased upwards. The run is solved only if the mean of
        the fresh episodes minus two standard errors reaches the bar.
        """
        config, bar = self.config, self.config.env.solved_at
        with self.clock.phase("eval"):
            found = self.evaluator.play(config.eval.greedy).metrics()
            seems_solved = bar is not None and found[self.returns] >= bar
            confirms = (seems_solved or last) and not self.stop_asked
            if confirms:
                self._save()  # first, because the evaluation can fail
                found = self.final_evaluator.play(config.eval.greedy).metrics()
        self.sentinel.after_evaluation(found)
        lowest = found[self.returns] - 2.0 * found.get(f"{self.returns}_stderr", 0.0)
        self.solved = confirms and bar is not None and lowest >= bar
        self.metrics = {name: value for name, value in self.metrics.items() if name in BEST or not name.startswith("eval/")}
        self.metrics |= {f"eval/{name}": value for name, value in found.items()}
        if found[self.returns] > self.metrics.get("eval/best_return", -math.inf):
            self.metrics |= {"eval/best_return": found[self.returns], "eval/best_env_steps": self.env_steps}
            if self.config.checkpoint.best:
                self._save(keep=1, line=checkpoint.BEST)

    def _evaluator(self, episodes: int, purpose: str) -> Evaluator:
        return Evaluator(self.setup, self.agent, episodes, derived_seed(self.config.seed, purpose))

    def _announce(self, iteration_s: float) -> None:
        """Tell the user once that iterations are long: the run reacts to nothing during one."""
        if iteration_s > LONG_ITERATION_S and not self.announced:
            self.announced = True
            self.records.message(
                f"an iteration takes {iteration_s:.0f} s: limits, evaluations, checkpoints and Ctrl-C wait for its end;"
                " a smaller n_envs or agent.horizon makes it shorter"
            )

    def _log(self, losses: Metrics, now: Moment, before: Moment, evaluated: bool) -> None:
        ended = self.simulator.episodes()
        values = {name: float(value) for name, value in ({**losses, **self.agent.diagnostics(self.simulator.trajectory)}).items()}
        clipped = [name for name, value in values.items() if name.endswith("clipped_share") and value > MUCH_CLIPPED]
        if clipped and not self.clipping_told:
            self.clipping_told = True
            share = f"{values[clipped[0]]:.1%} of the observed numbers are clipped at 10 standard deviations"
            self.records.message(f"{clipped[0]}: {share}; scale them in `observe` or set agent.normalize_obs=false")
        # The device has been waited for, so wall-clock time is right even where kernels run on their own.
        elapsed = self.records.wall_s - before.seconds
        values["perf/env_steps_per_s"] = (now.env_steps - before.env_steps) / max(elapsed, 1e-9)
        for phase, spent in self.clock.read().items():
            values[f"perf/{phase}_ms"] = spent.mean_ms
            values[f"perf/{phase}_share"] = spent.total_ms / max(1e3 * elapsed, 1e-6)
        values |= self.sentinel.metrics(ended)
        values |= {"train/progress": now.progress, "train/episodes": ended.count}
        if ended.count:
            values["train/episode_length"] = ended.mean_length
            for group, mean in ended.mean_return.items():
                values["train/return" if len(ended.mean_return) == 1 else f"train/{group}/return"] = mean
        evaluation = {name: value for name, value in self.metrics.items() if evaluated and name.startswith("eval/")}
        self.metrics |= values
        self.history.append(values | evaluation)
        with self.clock.phase("log"):
            self.records.log(self.env_steps, values | evaluation)

    def _save(self, keep: int | None = None, line: str = checkpoint.LAST) -> None:
        """Write a checkpoint, in the first process only."""
        if self.setup.communicator.rank != 0:
            return
        state = self.agent.state()
        self.sentinel.before_save(state)
        tags = {"mean": f"eval/{self.returns}", "stderr": f"eval/{self.returns}_stderr"}
        evaluation = {name: self.metrics[tag] for name, tag in tags.items() if tag in self.metrics}
        meta: checkpoint.Meta = {"steps": self.simulator.steps, "evaluation": evaluation}
        try:
            checkpoint.save(self.folder, self.env_steps, state, meta, keep or self.config.checkpoint.keep, line)
        except OSError as error:
            self.records.message(f"no checkpoint: {error}; training goes on, the one before is still there")

    def _write_status(self, state: str, reason: str | None = None) -> None:
        """Write status.json, in the first process only."""
        if self.setup.communicator.rank != 0:
            return
        status = {"state": state, "started": self.started, "env_steps": self.env_steps, "wall_s": round(self.records.wall_s, 3)}
        status |= {name: self.metrics.get(f"{name}/{self.returns}") for name in ("train", "eval")}
        if reason:
            status["reason"] = reason
        try:
            rundir.write_status(self.folder, status)
        except OSError as error:
            self.records.message(f"no status.json: {error}")

    def _summary(self) -> dict[str, float | str]:
        groups = self.simulator.spec.groups
        return summarize(self.metrics, self.history, groups, self.returns, self.config.env.solved_at, self.solved) | {
            "env_steps": self.env_steps,
            "wall_s": self.records.wall_s,
        }

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        # A second signal does not wait for the iteration to end.
        if self.stop_asked:
            raise KeyboardInterrupt
        self.stop_asked = True
