"""Measurements of the speed of an environment and an agent, and of the share of the machine that they use."""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from warprun.config.memory_estimate import simulator_bytes
from warprun.config.schema import Config
from warprun.kernels import peak
from warprun.kernels.repeat import WARM_UP
from warprun.runs import rundir
from warprun.runs.build import make_agent, make_training_simulator, prepare, set_up, threads
from warprun.runs.measured import PhaseClock
from warprun.simulation.kernel_engine import KernelEngine

SECONDS = 0.3
"""Least time of one measurement."""
ROUNDS = 5
"""Measurements of each size, one of every size in turn; the median counts."""


@dataclass(frozen=True)
class Measurement:
    """The speed with one number of environments and of threads."""

    n_envs: int
    threads: int
    path: str
    """fused or stepwise, and captured if CUDA graphs repeat it."""
    simulation_steps_per_s: float | None
    """Environment steps without a policy, with the actions of the last rollout; None if the environment is not made of kernels."""
    rollout_steps_per_s: float
    """Environment steps in rollouts alone."""
    training_steps_per_s: float
    """Environment steps with updates."""
    training_rounds: tuple[float, ...]
    """The same in every round; their median is `training_steps_per_s`."""
    update_share: float
    """Share of the time of training that updates take."""
    bytes_per_env: int
    peak_memory_bytes: int
    """Largest memory of the process so far."""
    limit_share: float | None
    """Arithmetic of training as a share of what the machine computes in products of 64 x 64 matrices in the same time;
    None on the stepwise path and on GPUs."""


def bench(configs: Sequence[Config], thread_counts: Sequence[int]) -> list[Measurement]:
    """Measure every config with every number of threads, interleaved; what does not fit in memory raises UserError."""
    threaded = [(config, replace(config.concurrency, threads=count)) for count in thread_counts for config in configs]
    cells = [_Cell(replace(config, concurrency=concurrency)) for config, concurrency in threaded]
    try:
        for _ in range(ROUNDS):
            for cell in cells:
                cell.measure()
        return [cell.result() for cell in cells]
    finally:
        for cell in cells:
            cell.simulator.close()


def training_rate(config: Config, seconds: float) -> float:
    """Return the environment steps per second of training, of a new agent for `seconds` or one iteration if that takes longer."""
    cell = _Cell(config)
    try:
        return cell.training_rate(seconds)
    finally:
        cell.simulator.close()


def report(found: Sequence[Measurement], folder: Path, title: str) -> None:
    """Print a table, and write bench.json and, with matplotlib installed, bench.png to `folder`."""
    table = Table(title=f"{title}, M environment steps/s", title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    for heading in ("n_envs", "threads", "simulation", "rollout", "training", "update", "bytes/env", "limit"):
        table.add_column(heading, justify="right", no_wrap=True)
    for m in found:
        share = "-" if m.limit_share is None else f"{m.limit_share:.0%}"
        rates = (
            "-" if rate is None else f"{rate / 1e6:.3g}"
            for rate in (m.simulation_steps_per_s, m.rollout_steps_per_s, m.training_steps_per_s)
        )
        table.add_row(f"{m.n_envs:,}", str(m.threads), *rates, f"{m.update_share:.0%}", f"{m.bytes_per_env:,}", share)
    peak_memory = max(m.peak_memory_bytes for m in found) / 2**20
    table.caption = f"{found[0].path} path; peak memory {peak_memory:,.0f} MiB; no transfer between host and device"
    console = Console()
    console.print(table)
    content = {"title": title, "versions": rundir.versions(), "measurements": [asdict(m) for m in found]}
    (folder / "bench.json").write_text(json.dumps(content, indent=2) + "\n")
    written = [str(folder / "bench.json")]
    try:
        _draw(found, folder / "bench.png", title)
        written.append(str(folder / "bench.png"))
    except ImportError:
        written.append("no picture: pip install matplotlib")
    console.print("\n".join(written), soft_wrap=True, highlight=False)


class _Cell:
    """One size with one number of threads."""

    def __init__(self, config: Config) -> None:
        self.config, self.setup = config, set_up(config)
        self.agent = make_agent(self.setup)
        self.simulator = make_training_simulator(self.setup, self.agent)
        prepare(self.setup, self.simulator)
        self.simulations: list[float] = []
        self.rollouts: list[float] = []
        self.trainings: list[float] = []
        self.shares: list[float] = []
        for _ in range(WARM_UP + 1):  # compiles, fills the caches, captures
            self.agent.update(self.simulator.collect(self.agent.act), 0.0)
        while self.simulator.steps * config.n_envs < self.agent.learning_starts:  # no gradient step until then
            self.agent.update(self.simulator.collect(self.agent.act), 0.0)

    def measure(self) -> None:
        if isinstance(self.simulator, KernelEngine):
            self.simulations.append(self._rate(self.simulator.retrace, SECONDS))
        self.rollouts.append(self._rate(lambda: self.simulator.collect(self.agent.act), SECONDS))
        clock = PhaseClock(self.setup.device.torch)

        def train() -> None:
            with clock.phase("rollout"):
                trajectory = self.simulator.collect(self.agent.act)
            with clock.phase("update"):
                self.agent.update(trajectory, 0.0)

        self.trainings.append(self._rate(train, SECONDS))
        spent = clock.read()
        self.shares.append(spent["update"].total_ms / (spent["update"].total_ms + spent["rollout"].total_ms))

    def result(self) -> Measurement:
        config = self.config
        training = statistics.median(self.trainings)
        flops, limit = self.agent.flops_per_env_step(), None
        if self.setup.plan.fused and self.setup.device.kind == "cpu" and flops is not None:
            limit = training * flops / peak.measure(threads(config))
        return Measurement(
            config.n_envs,
            threads(config),
            self.setup.plan.rollout.by + (", captured" if self.setup.plan.repeated.by == "graphs" else ""),
            statistics.median(self.simulations) if self.simulations else None,
            statistics.median(self.rollouts),
            training,
            tuple(self.trainings),
            statistics.median(self.shares),
            simulator_bytes(config, self.setup.environment, self.setup.device.kind == "cuda", config.n_envs, config.agent.horizon)
            // config.n_envs,
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),  # bytes, or kB
            limit,
        )

    def training_rate(self, seconds: float) -> float:
        """Return the environment steps per second of training."""
        return self._rate(lambda: self.agent.update(self.simulator.collect(self.agent.act), 0.0), seconds)

    def _rate(self, run: Callable[[], object], seconds: float) -> float:
        steps, elapsed, began = 0, 0.0, time.perf_counter()
        while elapsed < seconds:
            run()
            steps += self.config.n_envs * self.config.agent.horizon
            if self.setup.device.kind == "cuda":
                torch.cuda.synchronize()
            elapsed = time.perf_counter() - began
        return steps / elapsed


def _draw(found: Sequence[Measurement], path: Path, title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4.6), layout="constrained")
    for number, count in enumerate(sorted({m.threads for m in found})):
        rows = sorted((m for m in found if m.threads == count), key=lambda m: m.n_envs)
        n_envs = np.array([m.n_envs for m in rows])
        for work, style in (("simulation", "o:"), ("rollout", "o--"), ("training", "o-")):
            rates = [getattr(m, f"{work}_steps_per_s") or np.nan for m in rows]
            axes.loglog(n_envs, rates, style, color=f"C{number}", label=f"{work}, threads={count}")
    axes.set_xlabel("environments")
    axes.set_ylabel("environment steps per second")
    axes.set_title(title, fontsize=10)
    axes.grid(True, which="both", alpha=0.25)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
