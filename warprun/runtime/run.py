"""Builds one run from a config and drives it: the only file that knows all the rooms."""

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
from typing import Any

from warprun.config import kept
from warprun.config.compose import note_on_tuned
from warprun.config.schema import Config, to_dict
from warprun.errors import TrainingFailed
from warprun.runtime import checkpoint, rundir
from warprun.runtime.build import capture, fuse, make_agent, make_engine
from warprun.runtime.cadence import Moment, Recurring, parse
from warprun.runtime.clock import PhaseClock
from warprun.runtime.evaluate import Evaluator
from warprun.runtime.records.records import Records
from warprun.runtime.sentinel import Sentinel
from warprun.runtime.summary import summarize
from warprun.seeds import derived_seed
from warprun.simulation.device import choose
from warprun.simulation.kernel_engine import Engine

MUCH_CLIPPED = 0.01
"""Share of clipped observations above which a run says so."""


@dataclass(frozen=True)
class Result:
    """What came of a run."""

    folder: Path
    status: str
    """solved or finished; of a run that is interrupted only status.json tells."""
    env_steps: int
    wall_s: float
    eval_return: float | None
    """Mean return of the last evaluation, of several groups that of `eval.group`; None without one."""
    eval_stderr: float | None
    """Its standard error; None where it has none."""
    best_return: float | None
    """Mean return of the best evaluation, which reads high, for it was chosen among many; None without one."""
    train_return: float | None
    """Mean return of the training episodes that ended last; None where none did."""
    metrics: dict[str, float]
    """The last value of every metric."""

    @property
    def solved(self) -> bool:
        return self.status == "solved"


def train(config: Config) -> Result:
    """Train one run.

    Where a mistake of the user shows before training begins (UserError) nothing is left behind: a folder that was there is empty
    again, one that was made for the run is gone. A run that is interrupted saves what it has and then raises KeyboardInterrupt.
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
    if run.stop_asked:  # also where it was on its last lines: who asked means a sweep's other runs, too
        raise KeyboardInterrupt
    return result


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], Any], *signals: signal.Signals) -> Iterator[None]:
    """Give `signals` to `handler` meanwhile; Python gives them to the main thread, a run on another is stopped by whoever started it."""
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
    """Remove what was written into `folder`, then the folders `made` for the run, innermost first; others may use them by now."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    with suppress(OSError):
        for place in made:
            place.rmdir()


BEST = ("eval/best_return", "eval/best_env_steps")
"""Metrics that last longer than an evaluation."""
SILENCE_S = 10.0
"""Longest time without a record, so that somebody who watches sees the run move."""
LONG_ITERATION_S = 10.0
"""An iteration that takes longer than this is announced."""


@dataclass(frozen=True)
class Limits:
    """What ends a run, and how much of it is over."""

    total_steps: int
    max_minutes: float | None
    began_s: float
    """Wall-clock time from which progress counts, compilation being over."""

    def moment(self, seconds: float, env_steps: int, iterations: int) -> Moment:
        """Return where the run stands; its progress is that of the limit that comes first, as steps and time went so far."""
        progress = env_steps / self.total_steps
        if self.max_minutes is not None:
            progress = max(progress, (seconds - self.began_s) / max(60.0 * self.max_minutes - self.began_s, 1e-9))
        return Moment(seconds, env_steps, iterations, min(progress, 1.0))

    def reached(self, now: Moment, iteration_s: float) -> bool:
        """Tell whether the run ends now: one more iteration would end later than the time limit by more than half of itself."""
        in_time = self.max_minutes is None or now.seconds + 0.5 * iteration_s < 60.0 * self.max_minutes
        return now.env_steps >= self.total_steps or not in_time


class _Run:
    """A run from its first to its last step."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self.started = rundir.now()
        self.records = Records(folder, to_dict(config), config.log.live)
        try:
            self.device = choose(config.device)
            rundir.write_config(folder, to_dict(config))
            self.records.start({"device": f"{self.device.name} ({self.device.why})"} | rundir.write_versions(folder))
            note = note_on_tuned(config)
            if note:
                self.records.message(note)
            self.agent: Any = make_agent(config, self.device)
            self.engine: Engine = make_engine(
                config,
                self.device,
                config.n_envs,
                config.agent.horizon,
                config.seed,
                self.records.message,
                exploration=self.agent.exploration,
            )
            path = fuse(config, self.engine, self.agent)
            self.records.message(f"rollout and update: {path}{capture(config, self.engine, self.agent)}")
            self.engine.compile()
            self.evaluator = self._evaluator(config.eval.episodes, "evaluation")
            self.judge = self._evaluator(config.eval.episodes_at_end, "final evaluation")
            env, engine = config.env, self.engine
            kept.keep(folder, env.module, env.options, env.time_limit, engine.environment, engine.tables)
        except BaseException:
            self.records.close()
            raise
        names = list(self.engine.trajectory.groups)
        self.returns = "return" if len(names) == 1 else f"{config.eval.group or names[0]}/return"
        """Name, below `train/` and `eval/`, of the return that decides what is best and what is solved."""
        self.sentinel = Sentinel(self.engine, self.records.message)
        self.clock = PhaseClock(self.device.torch)
        self.metrics: dict[str, float] = {}
        self.history: list[dict[str, float]] = []
        """Every record, for what is said of the curves at the end."""
        self.solved = False
        self.stop_asked = False
        self.announced = False
        self.clipping_told = False

    @property
    def env_steps(self) -> int:
        return self.engine.steps * self.config.n_envs

    def drive(self) -> Result:
        """Train until a limit is reached, the environment is solved, or somebody asks to stop."""
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
        config, engine, agent = self.config, self.engine, self.agent
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
                trajectory = engine.collect(agent.act)
            self.sentinel.after_rollout()
            with self.clock.phase("update"):
                losses = agent.update(trajectory, progress=now.progress)
            self.sentinel.after_update(losses)
            now = limits.moment(self.records.wall_s, self.env_steps, now.iterations + 1)
            if now.iterations == 1:
                # The first one compiles what an update needs: that is no part of the schedules, nor a sign of how long others take.
                limits = replace(limits, began_s=now.seconds)
                now, began_s = limits.moment(now.seconds, now.env_steps, 1), now.seconds
            self._announce(now.seconds - began_s)
            last = limits.reached(now, now.seconds - began_s)
            evaluates = (last or evaluation.due(now)) and not self.stop_asked
            if evaluates:
                self._evaluate(last)
            stop = last or self.stop_asked or (self.solved and config.stop_when_solved)
            if log.due(now) or evaluates or stop or now.seconds - logged.seconds > SILENCE_S:
                self._log(losses, now, logged, evaluates)
                logged = now._replace(seconds=self.records.wall_s)
            if stop:
                # Who asks to stop means all that would follow, too, even where the aim was reached in the same moment.
                return "interrupted" if self.stop_asked else "solved" if self.solved else "finished"
            if checkpoint_.due(now):
                self._save()
                self._write_status("running")

    def _evaluate(self, last: bool) -> None:
        """Evaluate the policy; if it seems to solve the environment, and at the end of the run, by more and fresh episodes.

        An evaluation that ends the run is chosen among many, so by itself it reads too high. Solved is what fresh episodes show beyond
        doubt: their mean less two standard errors reaches the bar.
        """
        config, bar = self.config, self.config.env.solved_at
        with self.clock.phase("eval"):
            found = self.evaluator.play(config.eval.greedy).metrics()
            seems_solved = bar is not None and found[self.returns] >= bar
            confirms = (seems_solved or last) and not self.stop_asked
            if confirms:
                self._save()  # what was trained is kept, whatever the evaluation meets
                found = self.judge.play(config.eval.greedy).metrics()
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
        return Evaluator(self.config, self.device, self.agent, episodes, derived_seed(self.config.seed, purpose))

    def _announce(self, iteration_s: float) -> None:
        """Say so, once, where an iteration takes long: nothing happens while it goes on."""
        if iteration_s > LONG_ITERATION_S and not self.announced:
            self.announced = True
            self.records.message(
                f"an iteration takes {iteration_s:.0f} s: limits, evaluations, checkpoints and Ctrl-C wait for its end;"
                " a smaller n_envs or agent.horizon makes it shorter"
            )

    def _log(self, losses: dict[str, Any], now: Moment, before: Moment, evaluated: bool) -> None:
        ended = self.engine.episodes()
        values = {name: float(value) for name, value in (losses | self.agent.diagnostics(self.engine.trajectory)).items()}
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
        values |= self.sentinel.metrics()
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
        state = self.agent.state()
        self.sentinel.before_save(state)
        tags = {"mean": f"eval/{self.returns}", "stderr": f"eval/{self.returns}_stderr"}
        evaluation = {name: self.metrics[tag] for name, tag in tags.items() if tag in self.metrics}
        meta = {"steps": self.engine.steps, "records": self.records.mark(self.env_steps)._asdict(), "evaluation": evaluation}
        try:
            checkpoint.save(self.folder, self.env_steps, state, meta, keep or self.config.checkpoint.keep, line)
        except OSError as error:
            self.records.message(f"no checkpoint: {error}; training goes on, the one before is still there")

    def _write_status(self, state: str, reason: str | None = None) -> None:
        status = {"state": state, "started": self.started, "env_steps": self.env_steps, "wall_s": round(self.records.wall_s, 3)}
        status |= {name: self.metrics.get(f"{name}/{self.returns}") for name in ("train", "eval")}
        if reason:
            status["reason"] = reason
        try:
            rundir.write_status(self.folder, status)
        except OSError as error:
            self.records.message(f"no status.json: {error}")

    def _summary(self) -> dict[str, float | str]:
        groups = self.engine.environment.groups
        return summarize(self.metrics, self.history, groups, self.returns, self.config.env.solved_at, self.solved) | {
            "env_steps": self.env_steps,
            "wall_s": self.records.wall_s,
        }

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        # A second signal does not wait for the iteration to end.
        if self.stop_asked:
            raise KeyboardInterrupt
        self.stop_asked = True
