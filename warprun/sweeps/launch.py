"""The settings of a sweep, which are not those of its runs: where it lies and what starts its jobs."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import hydra
from omegaconf import MISSING, OmegaConf

from warprun.config.compose import own_hydra, register, store
from warprun.config.hydra_errors import explained
from warprun.config.overrides import read
from warprun.errors import check_one_of, check_range, require, shown

PRIMARY = "sweep"
"""The primary config of these settings, conf/sweep.yaml."""
MOST_WORKERS = 1024
PRUNERS = ("median", "asha", "none")
SAMPLERS = ("tpe", "random", "pbt")
TIME = re.compile(r"(\d+-)?\d{1,2}(:\d{2}){0,2}|\d+(:\d{2})?")
"""The times that sbatch reads: MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS:MINUTES:SECONDS."""


@dataclass
class LauncherConfig:
    """Settings that all launchers have."""

    name: str = MISSING
    """Name of the launcher."""

    @property
    def at_a_time(self) -> int | None:
        """Jobs that it has at a time, while the command waits for them; None: it takes all at once, and the command returns."""
        return None


@dataclass
class LocalConfig(LauncherConfig):
    name: str = "local"
    """Processes on this machine, until all jobs have ended."""
    workers: int | None = None
    """Jobs at a time, which share the cores and, as far as their memory allows, the GPUs; null: all together on GPUs, and one without."""


@dataclass
class SlurmConfig(LauncherConfig):
    name: str = "slurm"
    """One SLURM job array, with a task for each job; the command returns at once."""
    partition: str | None = None
    """Partition; null: that of the cluster."""
    account: str | None = None
    """Account that is charged; null: that of the user."""
    time: str = "04:00:00"
    """Time limit of a task, as sbatch reads it. A job that takes longer is queued again and continues from its checkpoint."""
    cpus: int = 8
    """Cores of a task."""
    gres: str | None = None
    """Other resources of a task, such as gpu:1."""
    mem: str | None = None
    """Memory of a task, such as 16G; null: that of the cluster."""
    array_limit: int | None = None
    """Most tasks at a time; null: no limit."""
    signal_s: int = 120
    """Seconds before the time limit at which a job is told to save a checkpoint and to queue again."""
    options: list[str] = field(default_factory=list)
    """Further options of sbatch, such as ['--qos=long','--constraint=a100']."""
    setup: list[str] = field(default_factory=list)
    """Lines of shell before a job, such as ['module load cuda','source /path/to/venv/bin/activate']."""


@dataclass
class BatchConfig(LauncherConfig):
    """Settings of submitit and of PSI/J, which both know batch systems, and processes of this machine."""

    executor: str = "local"
    """Where jobs run: local, processes of this machine; slurm; with psij also pbs, pbs_classic, lsf, cobalt and flux."""
    workers: int | None = None
    """Jobs at a time, for which the command waits; null: 1 with executor=local, else all at once, and the command returns."""
    queue: str | None = None
    """Queue, or partition; null: that of the cluster."""
    account: str | None = None
    """Account, or project, that is charged; null: that of the user."""
    minutes: float = 240.0
    """Time limit of a job. One that takes longer continues from its checkpoint: submitit queues it again, psij with the same command."""
    cpus: int = 1
    """Cores of a job."""
    gpus: int = 0
    """GPUs of a job."""
    options: dict[str, int | float | str] = field(default_factory=dict)
    """Further parameters of submitit, such as {mem_gb: 16}; with psij of the batch system, with its name before each: {pbs.k: oe}."""

    @property
    def is_local(self) -> bool:
        """Whether jobs are processes of this machine."""
        return self.executor == "local"

    @property
    def at_a_time(self) -> int | None:
        """Jobs for which the command waits; None: all at once."""
        return self.workers or (1 if self.is_local else None)


@dataclass
class RayConfig(LauncherConfig):
    name: str = "ray"
    """Tasks of a Ray cluster that runs, for which the command waits."""
    address: str = "auto"
    """Address of the cluster, such as 10.0.0.1:6379; auto: the one of this machine."""
    cpus: int = 1
    """Cores of a job."""
    gpus: float = 0.0
    """GPUs of a job; 0.5: two jobs share one."""


@dataclass
class SweepSettings:
    yes: bool = False
    """Allow more than 10,000 jobs."""


@dataclass
class TuneSettings:
    sampler: str = "tpe"
    """Where settings come from: tpe (Optuna's, learns from finished trials), random, or pbt (population-based training)."""
    trials: int = 50
    """Trials of the study, those of earlier commands over the same folder included."""
    minutes: float | None = None
    """No trial starts after so many minutes of this command; those that run end as usual; null: no limit. Not with pbt."""
    pruner: str = "median"
    """When a trial ends early, by its evaluations: median (below the median of the others at the same step), asha (successive halving) or
    none."""
    startup: int = 10
    """Trials with random settings, before the sampler learns from their results."""
    seed: int = 0
    """Seed of the sampler."""
    members: int = 16
    """With pbt: members of the population, which train in rounds."""
    every: int | None = None
    """With pbt: env_steps of a round; null: a tenth of total_steps."""
    share: float = 0.25
    """With pbt: the share of the members that goes on as copies of the same share of the best, after each round."""
    factors: list[float] = field(default_factory=lambda: [0.8, 1.2])
    """With pbt: a copy's numbers are multiplied by one of these."""


@dataclass
class LaunchConfig:
    launcher: Any = MISSING
    """What starts the jobs: a file of conf/launcher."""
    population: int | None = None
    """Train each combination with so many seeds, 0 and following, on all cores."""
    sweep_dir: str | None = None
    """Folder of the sweep; one that exists is continued; null: a new one in OUTPUT_ROOT/sweeps."""
    trust: bool = False
    """Continue a sweep that this user did not begin; its jobs can run any code."""
    sweep: SweepSettings = field(default_factory=SweepSettings)
    """The sweep."""
    tune: TuneSettings = field(default_factory=TuneSettings)
    """The study of `warprun tune`."""


LAUNCHERS: dict[str, LauncherConfig] = {
    "local": LocalConfig(),
    "slurm": SlurmConfig(),
    "submitit": BatchConfig("submitit"),
    "psij": BatchConfig("psij"),
    "ray": RayConfig(),
}
"""Name of a launcher -> its settings by default."""
TRUST = "trust"
KEYS = ("launcher", "population", "sweep_dir", "sweep", "tune")
"""First parts of the keys of these settings."""


def is_of_sweep(override: str) -> bool:
    """Return whether an override sets a sweep, and not its runs."""
    return override.partition("=")[0].lstrip("+").partition(".")[0] in KEYS


def taken_launch(overrides: Sequence[str]) -> tuple[LaunchConfig, list[str]]:
    """Return the settings of a sweep that `overrides` give, checked, and the other overrides. Raises UserError."""
    own = [override for override in overrides if is_of_sweep(override) or override.partition("=")[0] == TRUST]
    return compose_launch(own), [override for override in overrides if override not in own]


def compose_launch(overrides: Sequence[str]) -> LaunchConfig:
    """Compose the settings of a sweep and check them. Raises UserError."""
    register([])
    store("sweep_schema", "", LaunchConfig)
    for name, defaults in LAUNCHERS.items():
        store(f"{name}_schema", "launcher", defaults)
    with explained(), own_hydra():
        composed = OmegaConf.to_object(hydra.compose(PRIMARY, read(overrides)))
    assert isinstance(composed, LaunchConfig)
    _check(composed)
    return composed


def _check(config: LaunchConfig) -> None:
    launcher, tune = config.launcher, config.tune
    require(isinstance(launcher, LauncherConfig), "launcher: its file must begin with a schema, such as /slurm_schema@_here_")
    require(config.sweep_dir is None or bool(config.sweep_dir.strip()), "sweep_dir must be the path of a folder")
    if isinstance(launcher, LocalConfig | BatchConfig):
        check_range("launcher.workers", launcher.workers, 1, MOST_WORKERS, f"{MOST_WORKERS:,}")
    if isinstance(launcher, BatchConfig | RayConfig):
        check_range("launcher.cpus", launcher.cpus, 1, 4096, "4,096")
        require(0 <= launcher.gpus <= 64, f"launcher.gpus={launcher.gpus:g} must be from 0 to 64")
    if isinstance(launcher, BatchConfig):
        require(1 <= launcher.minutes <= 525_600, f"launcher.minutes={launcher.minutes:g} must be from 1 to 525,600, a year")
    if launcher.name == "submitit":
        check_one_of("launcher.executor", launcher.executor, ("local", "slurm"))
    if isinstance(launcher, SlurmConfig):
        _check_slurm(launcher)
    check_range("population", config.population, 1, 1_000_000, "1,000,000")
    check_range("tune.trials", tune.trials, 1, 1_000_000, "1,000,000")
    require(tune.minutes is None or 0 < tune.minutes < math.inf, f"tune.minutes={tune.minutes} must be above 0")
    require(tune.minutes is None or tune.sampler != "pbt", "tune.minutes: a population trains in rounds; shorten them with total_steps")
    check_range("tune.startup", tune.startup, 1, 1_000_000, "1,000,000")
    check_range("tune.seed", tune.seed, 0, 2**32 - 1, "2^32 - 1")
    check_one_of("tune.pruner", tune.pruner, PRUNERS)
    check_one_of("tune.sampler", tune.sampler, SAMPLERS)
    check_range("tune.members", tune.members, 2, 100_000, "100,000")
    check_range("tune.every", tune.every, 1, 2**63 - 1, "2^63 - 1")
    require(0 < tune.share <= 0.5, f"tune.share={tune.share} must be above 0 and at most 0.5")
    require(bool(tune.factors) and all(0 < factor < 100 for factor in tune.factors), "tune.factors: write numbers between 0 and 100")


def _check_slurm(launcher: SlurmConfig) -> None:
    for key, count, most in (
        ("cpus", launcher.cpus, 4096),
        ("array_limit", launcher.array_limit, 10**6),
        ("signal_s", launcher.signal_s, 65535),
    ):
        check_range(f"launcher.{key}", count, 1, most, f"{most:,}")
    require(TIME.fullmatch(launcher.time) is not None, f"launcher.time={shown(launcher.time)}: write HOURS:MINUTES:SECONDS, in quotes")
    for key in ("partition", "account", "gres", "mem"):
        value = getattr(launcher, key)
        require(value is None or re.fullmatch(r"[\w.:,=+-]+", value) is not None, f"launcher.{key}={shown(value)} is no name")
    for option in launcher.options:
        require(option.startswith("-") and option.isprintable(), f"launcher.options: {shown(option)} is no option of sbatch")
    require(all(line.isprintable() for line in launcher.setup), "launcher.setup: write one line of shell in each item")
