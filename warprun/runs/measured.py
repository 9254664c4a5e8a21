"""The numbers of a run on the host: the last value of every metric, and the records so far."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch

from warprun.learning.interfaces import Metrics
from warprun.runs.checkpoint import Meta
from warprun.runs.diagnosis import LEAST_RECORDS
from warprun.runs.paired import Paired
from warprun.runs.summary import Course, notes_halfway
from warprun.simulation.simulator import Episodes
from warprun.simulation.trajectory import Trajectory

BEST = ("eval/best_return", "eval/best_env_steps")
"""Metrics that later evaluations keep."""


class Measured:
    """The metrics of a run. `returns` names, below `train/` and `eval/`, the return that decides which checkpoint is best."""

    def __init__(self, returns: str, metrics: Mapping[str, float], losses: Mapping[str, float]) -> None:
        """Begin with the `metrics` and `losses` of an earlier process of the run, if there was one."""
        self.returns = returns
        self.group = returns.rpartition("/")[0] or None
        """Of several groups the one that `returns` is of."""
        self.paired: Paired | None = None
        """The best checkpoint beside the last policy, if they were compared in the last evaluation."""
        self.metrics = dict(metrics)
        """The last value of every metric."""
        self.losses: dict[str, torch.Tensor | float] = dict(losses)
        """The metrics of the last update, perhaps still on the device."""
        self.history: list[dict[str, float]] = []
        """All records, also of earlier processes, for notes on the learning curve and the summary at the end."""

    def evaluate(self, results: Mapping[str, float], env_steps: int, paired: Paired | None) -> bool:
        """Keep the results of an evaluation after `env_steps`; return whether it is the best so far."""
        self.paired = paired
        self.metrics = {name: value for name, value in self.metrics.items() if name in BEST or not name.startswith("eval/")}
        self.metrics |= {f"eval/{name}": value for name, value in results.items()}
        if results[self.returns] <= self.metrics.get("eval/best_return", -math.inf):
            return False
        self.metrics |= {"eval/best_return": results[self.returns], "eval/best_env_steps": env_steps}
        return True

    def forget_best(self) -> None:
        """Forget the best evaluation: another return decides from now on."""
        self.metrics = {name: value for name, value in self.metrics.items() if name not in BEST}

    def record(self, values: Mapping[str, float], evaluated: bool) -> dict[str, float]:
        """Keep the values of a log interval; return them with those of the evaluation at its end, if there was one."""
        evaluation = {name: value for name, value in self.metrics.items() if evaluated and name.startswith("eval/")}
        self.metrics |= values
        self.history.append({**values, **evaluation})
        return self.history[-1]

    @property
    def described(self) -> Meta:
        """The last evaluation for the header of a checkpoint, as far as there is one."""
        tags = {"mean": f"eval/{self.returns}", "stderr": f"eval/{self.returns}_stderr"}
        found = {name: self.metrics[tag] for name, tag in tags.items() if tag in self.metrics}
        more = self.paired.more(self.group) if self.paired else None
        if self.paired and more:
            found |= {"more": more.mean, "more_stderr": more.stderr, "best_env_steps": self.paired.env_steps}
        return {"evaluation": found, "group": self.group} if self.group else {"evaluation": found}

    @property
    def returned(self) -> dict[str, float | str | None]:
        """The returns for status.json, of several groups with the name of theirs."""
        tags = {"train": f"train/{self.returns}", "eval": f"eval/{self.returns}", "eval_stderr": f"eval/{self.returns}_stderr"}
        return {name: self.metrics.get(tag) for name, tag in tags.items()} | ({"group": self.group} if self.group else {})


def on_host(metrics: Metrics) -> dict[str, float]:
    """Return metrics as numbers (waits for the device)."""
    return {name: float(value) for name, value in metrics.items()}


def of_episodes(ended: Episodes) -> dict[str, float]:
    """Return the metrics of the training episodes that ended in a log interval."""
    if not ended.count:
        return {"train/episodes": 0}
    names = {group: "train/return" if len(ended.mean_return) == 1 else f"train/{group}/return" for group in ended.mean_return}
    returns = {names[group]: mean for group, mean in ended.mean_return.items()}
    return {"train/episodes": ended.count, "train/episode_length": ended.mean_length} | returns


def of_phases(spent: Mapping[str, Spent], env_steps: int, elapsed_s: float) -> dict[str, float]:
    """Return the mean time of every phase of an iteration, its share of `elapsed_s`, and the speed.

    The speed is `env_steps` over the time of rollouts and updates, and over `elapsed_s`.
    """
    found = {f"perf/{phase}_ms": each.mean_ms for phase, each in spent.items()}
    found |= {f"perf/{phase}_share": each.total_ms / max(1e3 * elapsed_s, 1e-6) for phase, each in spent.items()}
    if env_steps:  # none if a run continues with the record of an iteration before
        found["perf/env_steps_per_s"] = 1e3 * env_steps / (spent["rollout"].total_ms + spent["update"].total_ms)
        found["perf/wall_env_steps_per_s"] = env_steps / max(elapsed_s, 1e-9)
    return found


class Spent(NamedTuple):
    """The time of a phase."""

    mean_ms: float
    """Mean over the runs of the phase."""
    total_ms: float


class HostPhase:
    """A phase of an iteration: the time of its runs, each a `with` block."""

    def __init__(self) -> None:
        self.runs, self._spent_s, self._began_s = 0, 0.0, 0.0

    def __enter__(self) -> None:
        self._began_s = time.perf_counter()

    def __exit__(self, failure: type[BaseException] | None, *where: object) -> None:
        if not failure:
            self._spent_s += time.perf_counter() - self._began_s
            self.runs += 1

    def total_ms(self) -> float:
        return 1e3 * self._spent_s


class GpuPhase:
    """The same on a GPU, by events on its stream: when the host gets to one, the kernels before it may not have run yet."""

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []

    def __enter__(self) -> None:
        self._record()

    def __exit__(self, failure: type[BaseException] | None, *where: object) -> None:
        if failure:  # of the GPU, perhaps
            self._events.pop()
        else:
            self._record()

    def _record(self) -> None:
        self._events.append(torch.cuda.Event(enable_timing=True))
        self._events[-1].record()

    @property
    def runs(self) -> int:
        return len(self._events) // 2

    def total_ms(self) -> float:
        """Return the time of all runs, which have ended."""
        return sum(began.elapsed_time(ended) for began, ended in zip(self._events[::2], self._events[1::2], strict=True))


class PhaseClock:
    """Clock of the phases of an iteration; it does not make the host wait for the device."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._phases: defaultdict[str, HostPhase | GpuPhase] = defaultdict(GpuPhase if self._on_gpu else HostPhase)

    def phase(self, name: str) -> HostPhase | GpuPhase:
        """Return a context that adds the time of its block to phase `name`."""
        return self._phases[name]

    def read(self) -> dict[str, Spent]:
        """Return the time of every phase since the last call (waits for the device)."""
        if self._on_gpu:
            torch.cuda.synchronize()
        found = {name: Spent(phase.total_ms() / phase.runs, phase.total_ms()) for name, phase in self._phases.items() if phase.runs}
        self._phases.clear()
        return found


MUCH_CLIPPED = 0.01
"""Share of clipped observations above which a note is shown."""
LONG_ITERATION_S = 10.0
"""Seconds of an iteration above which a note is shown."""


class Notes:
    """Notes for the user, each shown once in a run, also if it is resumed; `told` has the topics that were shown
    before.
    """

    def __init__(self, message: Callable[[str], None], told: Iterable[str]) -> None:
        self._message = message
        self.told = list(told)
        self._clipped: dict[str, int] = {}
        """Metric -> records in which it was high, one after the other."""

    def once(self, topic: str, text: str) -> None:
        """Show `text` unless there was a note on `topic`."""
        if topic not in self.told:
            self.told.append(topic)
            self._message(text)

    def on_lost(self, lost: Iterable[str]) -> None:
        """Show a note for every process that the run goes on without, with the reason."""
        for each in lost:
            self.once(each, f"the run goes on without {each}")

    def on_duration(self, iteration_s: float) -> None:
        """Show a note if an iteration is long: the run reacts to nothing until its end."""
        if iteration_s > LONG_ITERATION_S:
            self.once(
                "long iteration",
                f"an iteration takes {iteration_s:.0f} s: limits, evaluations, checkpoints and Ctrl-C wait for its end;"
                " a smaller n_envs or agent.horizon makes it shorter",
            )

    def on_endless(self, course: Course, taken: Trajectory) -> None:
        """Show a note before an evaluation that may have episodes without end: no time limit, and none has ended so far."""
        if course.spec.time_limit or any(row.get("train/episodes") for row in course.history) or (taken.terminated | taken.truncated).any():
            return
        self.once(
            "no time limit",
            "no episode ended in the last rollout, and there is no time limit: an evaluation plays each episode until it ends, at most"
            f" eval.max_steps={course.config.eval.max_steps:,} steps; set env.time_limit=N if episodes may never end",
        )

    def halfway(self, progress: float, course: Callable[[], Course]) -> None:
        """Show, once, what the curves of a run that does not learn show when half of it is over, or when there are curves."""
        if progress >= 0.5 and "halfway" not in self.told and len((now := course()).history) >= 2 * LEAST_RECORDS:
            self.told.append("halfway")
            for text in notes_halfway(now):
                self._message(f"halfway: {text}")

    def on_clipping(self, values: Mapping[str, float]) -> None:
        """Show a note if many observations of a group are clipped in several records one after the other: at first all is unusual."""
        for name, value in values.items():
            if name.endswith("clipped_share"):
                self._clipped[name] = self._clipped.get(name, 0) + 1 if value > MUCH_CLIPPED else 0
                if self._clipped[name] >= LEAST_RECORDS:
                    share = f"{value:.1%} of the observed numbers are clipped at 10 standard deviations"
                    self.once(name, f"{name}: {share}; scale them in `observe` or set agent.normalize_obs=false")
