"""Builds one run from a config and drives it: the only file that knows all the rooms."""

from __future__ import annotations

import math
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from warprun import checkpoint, rundir
from warprun.build import capture, fuse, make_agent, make_engine
from warprun.clock import PhaseClock
from warprun.config import Config, to_dict
from warprun.engine.device import choose
from warprun.engine.engine import Engine
from warprun.errors import TrainingFailed
from warprun.evaluate import Evaluator
from warprun.records.records import Records
from warprun.sentinel import Sentinel


@dataclass(frozen=True)
class Result:
    """What came of a run."""

    folder: Path
    status: str
    """solved or finished; of a run that is interrupted only status.json tells."""
    env_steps: int
    wall_s: float
    eval_return: float | None
    """Mean return of the last evaluation; None without one."""
    best_return: float | None
    """Mean return of the best evaluation; None without one."""
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


class _Run:
    """A run from its first to its last step."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config = config
        self.folder = folder
        self.started = rundir.now()
        self.records = Records(folder, to_dict(config), config.log.live)
        try:
            device = choose(config.device)
            rundir.write_config(folder, to_dict(config))
            self.records.start({"device": f"{device.name} ({device.why})"} | rundir.write_versions(folder))
            self.agent: Any = make_agent(config, device)
            self.engine: Engine = make_engine(
                config,
                device,
                config.n_envs,
                config.agent.horizon,
                config.seed,
                self.records.message,
                exploration=self.agent.exploration,
            )
            path = fuse(config, self.engine, self.agent)
            self.records.message(f"rollout and update: {path}{capture(config, self.engine, self.agent)}")
            self.engine.compile()
            self.evaluator = Evaluator(config, device, self.agent, config.eval.episodes, config.seed)
        except BaseException:
            self.records.close()
            raise
        self.sentinel = Sentinel(self.engine, self.records.message)
        self.clock = PhaseClock(device.torch)
        self.metrics: dict[str, float] = {}
        self.stop_asked = False

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
            last("eval/return"),
            last("eval/best_return"),
            last("train/return"),
            dict(self.metrics),
        )

    def _train(self) -> str:
        config, engine, agent = self.config, self.engine, self.agent
        iterations = max(1, math.ceil(config.total_steps / (config.n_envs * config.agent.horizon)))
        deadline = time.monotonic() + config.max_minutes * 60 if config.max_minutes else math.inf
        next_log = time.monotonic() + config.log.every_s
        next_save = time.monotonic() + config.checkpoint.every_minutes * 60
        counted = (0, time.monotonic())  # env_steps and time at the last log
        for iteration in range(iterations):
            with self.clock.phase("rollout"):
                trajectory = engine.collect(agent.act)
            self.sentinel.after_rollout()
            with self.clock.phase("update"):
                losses = agent.update(trajectory, progress=iteration / iterations)
            self.sentinel.after_update(losses)
            now = time.monotonic()
            last = iteration + 1 == iterations or now >= deadline or self.stop_asked
            evaluate = (last and not self.stop_asked) or (config.eval.every > 0 and (iteration + 1) % config.eval.every == 0)
            if evaluate:
                with self.clock.phase("eval"):
                    played = self.evaluator.play(config.eval.greedy)
                self.sentinel.after_evaluation(played)
                self.metrics |= {f"eval/{name}": value for name, value in played.items()}
                if played["return"] > self.metrics.get("eval/best_return", -math.inf):
                    self.metrics["eval/best_return"] = played["return"]
                    if config.checkpoint.best:
                        self._save(keep=1, line=checkpoint.BEST)
            solved = evaluate and config.env.solved_at is not None and self.metrics["eval/return"] >= config.env.solved_at
            stop = last or (solved and config.stop_when_solved)
            if evaluate or stop or now >= next_log:
                self._log(losses, counted, evaluate)
                counted = (self.env_steps, time.monotonic())
                next_log = time.monotonic() + config.log.every_s
            if not stop and now >= next_save:
                self._save()
                self._write_status("running")
                next_save = time.monotonic() + config.checkpoint.every_minutes * 60
            if stop:
                # Who asks to stop means all that would follow, too, even where the aim was reached in the same moment.
                return "interrupted" if self.stop_asked else "solved" if solved and config.stop_when_solved else "finished"
        raise AssertionError("the last iteration stops")

    def _log(self, losses: dict[str, Any], counted: tuple[int, float], evaluated: bool) -> None:
        ended = self.engine.episodes()
        values = {name: float(value) for name, value in losses.items()}
        # The device has been waited for, so wall-clock time is right even where kernels run on their own.
        elapsed = time.monotonic() - counted[1]
        values["perf/env_steps_per_s"] = (self.env_steps - counted[0]) / max(elapsed, 1e-9)
        for phase, spent in self.clock.read().items():
            values[f"perf/{phase}_ms"] = spent.mean_ms
            values[f"perf/{phase}_share"] = spent.total_ms / max(1e3 * elapsed, 1e-6)
        values |= self.sentinel.metrics()
        values["train/episodes"] = ended.count
        if ended.count:
            values["train/episode_length"] = ended.mean_length
            values["train/return"] = sum(ended.mean_return.values()) / len(ended.mean_return)
            if len(ended.mean_return) > 1:
                values |= {f"train/{group}/return": value for group, value in ended.mean_return.items()}
        evaluation = {name: value for name, value in self.metrics.items() if evaluated and name.startswith("eval/")}
        self.metrics |= values
        with self.clock.phase("log"):
            self.records.log(self.env_steps, values | evaluation)

    def _save(self, keep: int | None = None, line: str = checkpoint.LAST) -> None:
        state = self.agent.state()
        self.sentinel.before_save(state)
        meta = {"steps": self.engine.steps, "records": self.records.mark(self.env_steps)._asdict()}
        try:
            checkpoint.save(self.folder, self.env_steps, state, meta, keep or self.config.checkpoint.keep, line)
        except OSError as error:
            self.records.message(f"no checkpoint: {error}; training goes on, the one before is still there")

    def _write_status(self, state: str, reason: str | None = None) -> None:
        status = {"state": state, "started": self.started, "env_steps": self.env_steps, "wall_s": round(self.records.wall_s, 3)}
        status |= {name: self.metrics.get(f"{name}/return") for name in ("train", "eval")}
        if reason:
            status["reason"] = reason
        try:
            rundir.write_status(self.folder, status)
        except OSError as error:
            self.records.message(f"no status.json: {error}")

    def _summary(self) -> dict[str, float | str]:
        shown = ("eval/return", "eval/best_return", "eval/return_std", "eval/episode_length", "train/return", "perf/env_steps_per_s")
        summary: dict[str, float | str] = {name: self.metrics[name] for name in shown if name in self.metrics}
        solved_at = self.config.env.solved_at
        if solved_at is not None and self.metrics.get("eval/return", -math.inf) >= solved_at:
            summary["solved"] = f"mean return of {self.config.eval.episodes} episodes is at least {solved_at:g}"
        return summary | {"env_steps": self.env_steps, "wall_s": self.records.wall_s}

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        # A second signal does not wait for the iteration to end.
        if self.stop_asked:
            raise KeyboardInterrupt
        self.stop_asked = True
