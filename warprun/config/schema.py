"""The schema of the settings, and the checks of their values. Neither numba nor torch."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from warprun.algorithms import agent_names, config_class
from warprun.commands import program, typed
from warprun.config import kept
from warprun.config.cadence import AUTO, parse
from warprun.config.external import ALONE, External, Parallel
from warprun.config.memory import check_memory
from warprun.config.registry import Defined, import_environment
from warprun.config.run_folder import CONFIG, is_free
from warprun.environment import Box, Environment
from warprun.errors import UserError, nearest, printable, require, shown
from warprun.kernels.driver import DEVICES, SIMULATOR_LIMIT, check_cuda
from warprun.learning import settings as agent_settings
from warprun.learning.settings import Requirements
from warprun.processes import started, starter
from warprun.renamed import with_new_keys
from warprun.simulation.external.recipe import ExternalEnvironment
from warprun.spec import GroupSpec, Spec
from warprun.user_code import errors_of_user

MAX_DEPTH = 10
"""Of dicts and lists inside each other in a config."""
MAX_NAME = 100
"""Bytes of a name. A folder name has at most 255, and that of a run also has the time."""
ON_NAN = ("stop", "reset")
NAME = re.compile(r"\w[\w .,=+-]{0,99}")
"""Names become parts of the names of folders."""
NAME_RULE = "first a letter or digit, then at most 99 letters, digits, spaces and characters of .,=+-_"
SERVICES = {"wandb": "wandb", "mlflow": "mlflow-skinny"}
"""Names in `log.services`, which are those of the modules -> the packages to install."""
WINDOWS = ("queue", "range", "random")
MOST_PLACES = 1024
"""Rollouts in the queue of an actor."""
MOST_PATIENCE_US = 1_000_000
"""Microseconds that a learner waits for further observations."""
MOST_RANKS = 65536
"""Processes of a run."""
MOST = {"total_steps": 2**63 - 1, "concurrency.threads": 4096, "concurrency.workers": 1024}
"""Largest values of counts; of others 2^31 - 1, because kernels count with 32 bits."""


@dataclass
class EnvConfig:
    name: str = MISSING
    """Name of the environment; part of the default name of a run."""
    module: str = MISSING
    """Module of the environment: a dotted name, "warprun.envs.cartpole", or a path, "./myenv.py"."""
    time_limit: int | None = None
    """Steps after which an episode is truncated; null: the environment's own limit."""
    solved_at: float | None = None
    """The environment counts as solved if the mean return of fresh episodes reaches this value; null: never."""
    on_nan: str = "stop"
    """If an environment gives NaN, infinity or a mask that forbids every action: stop (fail the run) or reset (reset and count it)."""
    params: dict[str, Any] = field(default_factory=dict)
    """Parameters that differ from the environment's defaults: env.params.NAME=value."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options that the environment or its tables are built with: env.NAME=value, short for env.options.NAME=value."""
    randomize: dict[str, Any] = field(default_factory=dict)
    """Parameters that each environment draws uniformly at the start of every episode: env.randomize.NAME=[low,high]."""
    id: str | None = None
    """With env=gymnasium: the id of the environment, such as LunarLander-v3."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of `gymnasium.make`, or of the class of an environment with the interface of Gymnasium: env.kwargs.NAME=value."""
    register: list[str] = field(default_factory=list)
    """With env=gymnasium: modules to import first, because they register environments, such as [ale_py]."""
    vector: bool = False
    """The environment is a `gymnasium.vector.VectorEnv`, which steps many environments at once."""
    timeout_s: float = 60.0
    """Seconds that one reset or step of an environment in a worker process may take."""
    mask: bool = True
    """If the info of a reset has an `action_mask`, agents choose only actions that it allows; false: the mask is ignored."""

    @property
    def label(self) -> str:
        """Name in the default name of a run: the id, without characters that a folder cannot have."""
        return self.name if self.id is None else re.sub(r"[^\w.-]", "-", self.id)

    def external(self, parallel: Parallel) -> External:
        """Return the settings of environments with the interface of Gymnasium."""
        return External(self.id, self.kwargs, tuple(self.register), self.vector, self.timeout_s, self.mask, parallel)


@dataclass
class ConcurrencyConfig:
    """What all modes have."""

    name: str = MISSING
    """Name of the mode."""
    threads: int | None = None
    """CPU threads of each process; null: all cores that it may use."""
    workers: int | None = None
    """Processes that step environments with the interface of Gymnasium; null: as many as cores; 0: the process itself steps them."""

    @property
    def parallel(self) -> Parallel:
        """Who steps environments that are parallel programs."""
        return ALONE


@dataclass
class SingleConfig(ConcurrencyConfig):
    name: str = "single"
    """One process, one device."""


@dataclass
class SyncConfig(ConcurrencyConfig):
    name: str = "sync"
    """Learners and actors in processes of their own, see docs/actors.md: learners wait for the rollouts of all actors."""
    processes: int | None = None
    """Start as many processes on this machine, with mpiexec; null: the processes that mpiexec or srun has started."""
    learners: int = 1
    """Processes that learn; the others act."""
    ranks_per_env: int = 1
    """Processes that step an environment together, for environments that are MPI programs: the first of them is the actor."""
    threads: int | None = 1
    """CPU threads of each process; null: all cores that it may use."""
    workers: int | None = 0
    """Processes with which each actor steps environments with the interface of Gymnasium; 0: the actor itself steps them."""
    timeout_s: float = 60.0
    """A process that gives no sign of life for so many seconds is lost, and ends the run."""

    @property
    def parallel(self) -> Parallel:
        """Who steps environments that are parallel programs."""
        return Parallel(self.learners, self.ranks_per_env)


@dataclass
class SeedConfig(SyncConfig):
    name: str = "seed"
    """As `sync`, but learners act: actors send observations and get what the policy gives for them."""
    batch_us: float = 200.0
    """Microseconds that a learner waits for the observations of further actors after the first one, to act for all in one batch."""


@dataclass
class AsyncConfig(SyncConfig):
    name: str = "async"
    """As `sync`, but a learner takes rollouts in the order of their arrival."""
    max_lag: int | None = None
    """Drop rollouts of an actor whose weights were older by more than so many updates, and count them; null: learn from all."""
    tolerate_actors: int = 0
    """With `async`: up to so many actors whose environment, one with the interface of Gymnasium, fails or hangs are left out."""


@dataclass
class RmaConfig(AsyncConfig):
    name: str = "rma"
    """As `async`, but through one-sided memory: no actor waits for a learner's code."""
    window: str = "queue"
    """How learners take rollouts: queue (each once, in order), range (the newest of their own actors, perhaps more than once) or random
    (the newest of any actor)."""
    queue: int = 2
    """window=queue: rollouts of an actor that wait to be taken; while there are as many, the actor waits."""


@dataclass
class DdpConfig(ConcurrencyConfig):
    name: str = "ddp"
    """Data-parallel learners, see docs/parallel.md: every process steps its share of the environments, and gradients are averaged."""
    processes: int | None = None
    """Start as many processes on this machine; null: those that srun or torchrun has started."""
    workers: int | None = 0
    """Processes with which each rank steps environments with the interface of Gymnasium; 0: the rank itself steps them."""
    timeout_s: float = 60.0
    """A process that gives no sign of life, or keeps the others waiting, for so many seconds is lost, and ends the run."""


CONCURRENCY: dict[str, type[ConcurrencyConfig]] = {
    "single": SingleConfig,
    "ddp": DdpConfig,
    "sync": SyncConfig,
    "seed": SeedConfig,
    "async": AsyncConfig,
    "rma": RmaConfig,
}
"""The modes: the files of conf/concurrency."""


GRADIENTS = ("auto", "kernels", "torch")
"""Values of engine.gradients."""


@dataclass
class EngineConfig:
    fused: bool = True
    """Compute inference, sampling, steps and gradients of mlp networks in fused kernels if possible; false: networks run in torch."""
    gradients: str = "auto"
    """What computes gradients: kernels (or an error), torch, or auto: kernels if possible."""
    keep_activations: bool = True
    """CPU, A2C: the gradient takes what the rollout computed, up to 128 MiB for each thread; false: it computes the same again."""
    capture: bool = True
    """CUDA: after a few iterations repeat rollouts and updates as CUDA graphs. CPU: repeat the kernel calls of updates without Python."""
    compare: bool = True
    """Compare the first steps of some environments with plain Python, for up to 0.2 s, and end the run if they differ."""
    debug: bool = False
    """Fill with NaN and large integers, before each rollout, what it has to write: a number that nobody wrote then shows. Results stay."""
    tf32: bool = False
    """CUDA: torch multiplies matrices on tensor cores in TF32 (10 bits after the point). Kernels of warprun always compute in float32."""


@dataclass
class EvalConfig:
    every: str = "auto"
    """Interval between evaluations during training: 10s, 5min, '1e6 steps', '20 iterations', 5% (of the run), never, or auto: so that they
    take at most 5 % as many steps as training, see docs/reliability.md."""
    episodes: int = 20
    """Episodes of an evaluation during training."""
    final_episodes: int | None = None
    """Fresh episodes of the evaluation at the end of a run, which also confirms that env.solved_at is reached; null: 10 x eval.episodes."""
    greedy: bool = True
    """Take the most probable action instead of sampling."""
    max_steps: int = 10_000
    """An episode without a time limit is cut after this many steps; the number of cut episodes is reported."""
    group: str | None = None
    """With several groups: the group whose return decides what is best and what is solved; null: the environment's first group."""

    @property
    def episodes_at_end(self) -> int:
        """Episodes of the evaluation that is reported."""
        return self.final_episodes or 10 * self.episodes


@dataclass
class CheckpointConfig:
    every: str = "5min"
    """Interval between checkpoints, written like eval.every; a run always saves one at its end."""
    keep: int = 2
    """Number of newest checkpoints to keep."""
    best: bool = True
    """Also keep the checkpoint with the best evaluation, in the folder `best`."""


@dataclass
class LogConfig:
    every: str = "0.5%"
    """Interval between records of metrics, written like eval.every. Every evaluation and 10 s without a record also cause one."""
    tensorboard: bool = True
    """Write TensorBoard events beside metrics.jsonl."""
    live: bool | None = None
    """Show the live view; null: if the output is a terminal."""
    services: list[str] = field(default_factory=list)
    """Services that get the records too: [wandb], [mlflow] or both; see docs/services.md."""
    project: str = "warprun"
    """The project of Weights & Biases, or the experiment of MLflow."""


@dataclass
class OriginConfig:
    """How the settings of a run were composed. These are not settings: `compose.build` writes them."""

    tuned: str | None = None
    """The file of conf/tuned that applies."""
    overrides: list[str] = field(default_factory=list)
    """The overrides that the user gave."""
    n_envs: str | None = None
    """How n_envs was chosen; MEASURE: it still has to be, beginning from the number in the config; null: the config says it."""

    in_sequences: list[str] = field(default_factory=list)
    """Settings, with their values, that have defaults of their own because policies have memory, see `OffPolicyConfig.in_sequences`."""

    MEASURE: ClassVar[str] = "to be measured"


@dataclass
class Config:
    env: EnvConfig = field(default_factory=EnvConfig)
    """The environment: a file of conf/env."""
    agent: Any = MISSING
    """The agent: a file of conf/agent (see warprun/learning/settings.py)."""
    concurrency: Any = MISSING
    """The processes and devices that train together: a file of conf/concurrency."""
    n_envs: int = 1024
    """Number of environments that run in parallel; on the command line also auto: the run measures which number learns fastest."""
    seed: int = 0
    """Seed of all random numbers; the same seed gives the same result."""
    device: str = "auto"
    """auto (CUDA if it works, else CPU), cpu, cuda or cudasim (the CUDA kernels in Numba's simulator, for tests)."""
    total_steps: int = 10_000_000
    """Environment steps, summed over the environments, after which training ends."""
    max_minutes: float | None = None
    """Wall-clock minutes of the run, compilation included, after which training ends; null: no limit."""
    stop_when_solved: bool = True
    """End training when the environment is solved: an evaluation reaches env.solved_at, and fresh episodes confirm it."""
    name: str | None = None
    """Name of the run, part of the name of its folder; null: environment and agent."""
    run_dir: str | None = None
    """Folder of the run, new or empty; null: a new one under output_root."""
    output_root: str = "outputs"
    """Folder in which run folders are made."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """How rollouts and updates are computed."""
    eval: EvalConfig = field(default_factory=EvalConfig)
    """Evaluations during training and at its end."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Checkpoints of the run."""
    log: LogConfig = field(default_factory=LogConfig)
    """Records and display of the run."""
    origin: OriginConfig = field(default_factory=OriginConfig)
    """How these settings were composed."""


def check(config: Config) -> None:
    """Raise UserError, in one line, for the first thing in `config` that cannot work."""
    if config.concurrency.parallel.ranks_per_env > 1 and starts_processes(config):
        return  # the processes check it: this one has no communicator
    environment = check_settings(config)
    for key, folder in {"run_dir": config.run_dir, "output_root": config.output_root}.items():
        if folder is not None:
            _check_folder(key, folder)
    for name in config.log.services:
        require(find_spec(name) is not None, f"log.services=[{name}] needs a library that is not installed: pip install {SERVICES[name]}")
    if config.device == "cuda":
        check_cuda()
    check_memory(config, environment)


def check_settings(config: Config) -> Defined:
    """Check all that depends neither on this machine nor on the folder of the run; return the environment. Raises UserError."""
    _check_values(config)
    agent, mode = config.agent, config.concurrency.name
    known = CONCURRENCY.get(mode) is type(config.concurrency)
    require(known, f"concurrency.name={mode} does not match the chosen mode; write concurrency={mode}")
    require(type(agent) is config_class(agent.name), f"agent.name={agent.name} does not match the chosen agent; write agent={agent.name}")
    measured = config.origin.n_envs == OriginConfig.MEASURE
    require(mode == "single" or not measured, f"n_envs=auto measures one process, and concurrency={mode} has several; write a number")
    agent_settings.check_settings(agent)
    environment, _ = load_environment(config.env, config.concurrency.parallel)
    if isinstance(environment, Environment):
        check_parameters(config.env, environment)
    else:
        _check_no_kernels(config, isinstance(environment, ExternalEnvironment))
    ranks, lost = config.concurrency.parallel.ranks_per_env, getattr(config.concurrency, "tolerate_actors", 0)
    require(
        not lost or isinstance(environment, ExternalEnvironment),
        f"concurrency.tolerate_actors={lost}: only actors of an environment with the interface of Gymnasium are left out",
    )
    require(
        ranks == 1 or isinstance(environment, ExternalEnvironment),
        f"concurrency.ranks_per_env={ranks}: {config.env.name} is no parallel program; the first argument of one is `comm`",
    )
    workers = config.concurrency.workers
    require(
        not workers or isinstance(environment, ExternalEnvironment),
        f"concurrency.workers={workers}: workers step environments with the interface of Gymnasium, and {config.env.name} is none",
    )
    spec = environment.spec
    names = [group.name for group in spec.groups]
    agent_settings.check_groups(agent, names)
    agent.check_run(spec, config.n_envs, config.total_steps)
    remembers = agent_settings.with_memory(agent, spec)
    without = f", or tuned=none if tuned/{config.origin.tuned} chose the network" if config.origin.tuned else ""
    require(
        not remembers or not isinstance(config.concurrency, SyncConfig),
        f"{remembers}: rollouts of actors do not carry what a policy remembers; write concurrency=single or concurrency=ddp{without}",
    )
    check_requirements(agent.name, spec, "; env.mask=false ignores it" if isinstance(environment, ExternalEnvironment) else "")
    decides = config.eval.group
    require(decides is None or decides in names, f"eval.group={decides} is not a group of {config.env.name}; groups: {', '.join(names)}")
    require(
        config.device != "cudasim" or config.n_envs <= SIMULATOR_LIMIT,
        f"n_envs={config.n_envs}: the CUDA simulator is slow and takes at most {SIMULATOR_LIMIT} environments",
    )
    return environment


def starts_processes(config: Config) -> bool:
    """Return whether this command has to start the processes of the run."""
    concurrency = config.concurrency
    if isinstance(concurrency, DdpConfig):
        return (concurrency.processes or 1) > 1 and started() == 1 and starter() != "torchrun"
    return isinstance(concurrency, SyncConfig) and concurrency.processes is not None and started() == 1


def to_dict(config: Config) -> dict[str, Any]:
    """Return `config` as plain dicts and lists, the form in which a run folder stores it."""
    container = OmegaConf.to_container(OmegaConf.structured(config))
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def from_dict(saved: Mapping[str, object]) -> Config:
    """Make a config from a result of `to_dict`, also of an earlier version: newer settings get their defaults. Raises UserError."""
    agent = saved.get("agent")
    name = agent.get("name") if isinstance(agent, Mapping) else None
    if not isinstance(name, str):
        raise UserError("the saved config does not fit this version of warprun: it has no agent.name")
    given = saved.get("concurrency", {"name": "single"})
    mode = given.get("name") if isinstance(given, Mapping) else None
    if mode not in CONCURRENCY:
        raise UserError(f"the saved config does not fit this version of warprun: concurrency.name is {shown(mode)}")
    try:
        schema = OmegaConf.structured(Config(agent=config_class(name)(), concurrency=CONCURRENCY[mode]()))
        config = OmegaConf.to_object(OmegaConf.merge(schema, with_new_keys(saved, schema)))
    except (OmegaConfBaseException, ValueError, TypeError, OverflowError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"the saved config does not fit this version of warprun: {printable(reason)}") from error
    assert isinstance(config, Config)
    return config


def load_environment(env: EnvConfig, parallel: Parallel = ALONE) -> tuple[Defined, ModuleType]:
    """Return the environment, with the options and the time limit of the config, and the module that defines it.

    `parallel`: that of the settings `concurrency`. If several ranks step an environment, every rank of a run calls this.
    """
    own = kept.find(env.module)
    load = own.environment if own else partial(import_environment, env.module)
    return load(env.options, env.time_limit, env.external(parallel))


def make_tables(environment: Environment, env: EnvConfig) -> Any:
    """Return the environment's tables, or None if it has none; if `env.module` is the copy in a run folder, the tables of that run."""
    own = kept.find(env.module)
    if not environment.tables:
        return None
    if own:
        return own.make_tables(environment, env.options, env.time_limit)
    with errors_of_user(f"the tables of {env.module} cannot be made"):
        return environment.make_tables()


def parameters(environment: Environment, env: EnvConfig) -> Any:
    """Return the environment's parameters with the values of the config, each in the type of its default."""
    defaults = environment.params._field_defaults
    given = {name: type(defaults[name])(value) for name, value in env.params.items()}
    return environment.params._make(defaults.values())._replace(**given)


def _check_leaf(key: str, value: object, depth: int = 0) -> None:
    """Check what holds for every value: whole numbers of 64 bits, text that can be printed and stored, no deep nesting."""
    require(depth <= MAX_DEPTH, f"{key} is nested too deeply (at most {MAX_DEPTH} levels)")
    if isinstance(value, str):
        require(value.isprintable(), f"{key}={shown(value)} has a control character or one that is no text")
        require("${" not in value, f"{key}={shown(value)}: a value cannot contain ${{")
    elif isinstance(value, int):
        require(abs(value) < 2**64, f"{key}={value:.4g} is too large")
    elif isinstance(value, Mapping):
        for name, item in value.items():
            _check_leaf(key, name, depth)
            _check_leaf(f"{key}.{name}", item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check_leaf(key, item, depth + 1)
    elif is_dataclass(value):
        for setting in fields(value):
            name, item = f"{key}.{setting.name}" if key else setting.name, getattr(value, setting.name)
            # A reference to another key can put anything in place of a dict or list.
            wanted = type(setting.default_factory()) if setting.default_factory is not NO_DEFAULT else object
            is_left_out = item is None and "None" in str(setting.type)
            require(wanted not in (dict, list) or isinstance(item, wanted) or is_left_out, f"{name}={item} must be a {wanted.__name__}")
            _check_leaf(name, item, depth + 1)


def _check_values(config: Config) -> None:
    _check_leaf("", replace(config, origin=OriginConfig()))
    require(config.device in DEVICES, f"device={config.device} is not one of {', '.join(DEVICES)}{nearest(config.device, DEVICES)}")
    by = config.engine.gradients
    require(by in GRADIENTS, f"engine.gradients={by} is not one of {', '.join(GRADIENTS)}{nearest(by, GRADIENTS)}")
    on_nan = config.env.on_nan
    require(on_nan in ON_NAN, f"env.on_nan={on_nan} is not one of {', '.join(ON_NAN)}{nearest(on_nan, ON_NAN)}")
    require(0 <= config.seed < 2**64, f"seed={config.seed} must be from 0 to 2^64 - 1")
    counts = {
        "n_envs": config.n_envs,
        "total_steps": config.total_steps,
        "concurrency.threads": config.concurrency.threads,
        "env.time_limit": config.env.time_limit,
        "eval.episodes": config.eval.episodes,
        "eval.final_episodes": config.eval.final_episodes,
        "eval.max_steps": config.eval.max_steps,
        "checkpoint.keep": config.checkpoint.keep,
    }
    for key, count in counts.items():
        most = MOST.get(key, 2**31 - 1)
        require(count is None or count >= 1, f"{key}={count} must be at least 1")
        require(count is None or count <= most, f"{key}={count} must be at most {most:,}")
    for key, text in {"eval": config.eval.every, "checkpoint": config.checkpoint.every, "log": config.log.every}.items():
        if (key, text) != ("eval", AUTO):
            parse(f"{key}.every", text)
    for service in config.log.services:
        require(service in SERVICES, f"log.services={service} is not one of {', '.join(SERVICES)}{nearest(service, SERVICES)}")
    require(bool(config.log.project.strip()), "log.project: write a name")
    workers = config.concurrency.workers
    most_workers = MOST["concurrency.workers"]
    require(workers is None or 0 <= workers <= most_workers, f"concurrency.workers={workers} must be from 0 to {most_workers:,}")
    timeout_s = config.env.timeout_s
    require(math.isfinite(timeout_s) and timeout_s > 0, f"env.timeout_s={timeout_s} must be a number above 0")
    if isinstance(config.concurrency, SyncConfig | DdpConfig):
        _check_processes(config.concurrency)
    if isinstance(config.concurrency, SyncConfig):
        _check_actors(config.concurrency)
    if isinstance(config.concurrency, DdpConfig):
        _check_shares(config.concurrency, config.n_envs)
    minutes = config.max_minutes
    require(minutes is None or (math.isfinite(minutes) and minutes > 0), f"max_minutes={minutes} must be a number above 0")
    solved_at = config.env.solved_at
    require(solved_at is None or math.isfinite(solved_at), f"env.solved_at={solved_at} must be a finite number")
    for key, name in {"name": config.name, "env.name": config.env.name}.items():
        usable = name is None or (NAME.fullmatch(name) is not None and len(os.fsencode(name)) <= MAX_NAME)
        require(usable, f"{key}={shown(name or '')} must be usable as a folder name: {NAME_RULE}")


def _check_processes(concurrency: SyncConfig | DdpConfig) -> None:
    """Raise UserError for settings of several processes that cannot work."""
    count, seconds = concurrency.processes, concurrency.timeout_s
    require(count is None or 1 <= count <= MOST_RANKS, f"concurrency.processes={count} must be from 1 to {MOST_RANKS}")
    require(math.isfinite(seconds) and seconds >= 2, f"concurrency.timeout_s={seconds} must be a number of seconds, 2 or more")


def _check_shares(concurrency: DdpConfig, n_envs: int) -> None:
    """Raise UserError if there are more processes than environments."""
    count = concurrency.processes
    require(count is None or count <= n_envs, f"concurrency.processes={count}: n_envs={n_envs} gives some of them no environment")


def _check_actors(concurrency: SyncConfig) -> None:
    """Raise UserError for settings of learners and actors that cannot work."""
    for key, count in {"learners": concurrency.learners, "ranks_per_env": concurrency.ranks_per_env}.items():
        require(1 <= count <= MOST_RANKS, f"concurrency.{key}={count} must be from 1 to {MOST_RANKS}")
    workers, ranks = concurrency.workers, concurrency.ranks_per_env
    require(not workers or ranks == 1, f"concurrency.workers={workers}: the ranks of a group step its environments; write workers=0")
    if isinstance(concurrency, RmaConfig):
        window = concurrency.window
        require(window in WINDOWS, f"concurrency.window={window} is not one of {', '.join(WINDOWS)}{nearest(window, WINDOWS)}")
        require(1 <= concurrency.queue <= MOST_PLACES, f"concurrency.queue={concurrency.queue} must be from 1 to {MOST_PLACES}")
    if isinstance(concurrency, SeedConfig):
        patience = concurrency.batch_us
        require(0 <= patience <= MOST_PATIENCE_US, f"concurrency.batch_us={patience} must be from 0 to {MOST_PATIENCE_US:,}")
    if isinstance(concurrency, AsyncConfig):
        lost = concurrency.tolerate_actors
        require(0 <= lost <= MOST_RANKS, f"concurrency.tolerate_actors={lost} must be from 0 to {MOST_RANKS}")
        alone = concurrency.name == "async" and concurrency.learners == 1 and ranks == 1
        require(not lost or alone, f"concurrency.tolerate_actors={lost} needs concurrency=async, learners=1 and ranks_per_env=1")
    lag = concurrency.max_lag if isinstance(concurrency, AsyncConfig) else None
    require(lag is None or 0 <= lag < 2**31, f"concurrency.max_lag={lag} must be 0 or more")


def _check_no_kernels(config: Config, external: bool) -> None:
    """Raise UserError for settings that only an environment made of kernel functions has."""
    env = config.env
    for key, given in {"env.params": env.params, "env.randomize": env.randomize}.items():
        require(not given, f"{key}.{min(given, default='')}: {env.name} has no parameters; it is not made of kernel functions")
    why_not = "" if external and not env.vector else "is not made of kernel functions" if not external else "resets no single environments"
    require(env.on_nan == "stop" or not why_not, f"env.on_nan={env.on_nan}: {env.name} {why_not}; write env.on_nan=stop")
    require(config.device != "cudasim", f"device=cudasim: {env.name} is not made of kernel functions")


def check_parameters(env: EnvConfig, environment: Environment) -> None:
    """Raise UserError for parameters of the config that the environment does not have, or values that do not fit them."""
    defaults: dict[str, Any] = environment.params._field_defaults
    listed = f"; it has {', '.join(defaults)}" if defaults else "; it has no parameters"
    for key, given in {"params": env.params, "randomize": env.randomize}.items():
        for name in given:
            require(name in defaults, f"env.{key}.{name}: {env.name} has no parameter {name!r}{nearest(name, defaults) or listed}")
    for name, value in env.params.items():
        require(
            _fits(value, defaults[name]),
            f"env.params.{name}={value} must be {_KINDS[type(defaults[name])]}, as its default {defaults[name]}",
        )
    for name, bounds in env.randomize.items():
        pair = isinstance(bounds, list) and len(bounds) == 2 and all(_fits(bound, 0.0) for bound in bounds)
        require(pair and bounds[0] <= bounds[1], f"env.randomize.{name}={bounds} must be two numbers, [low,high], the lower first")
        require(name not in env.params, f"env.randomize.{name} and env.params.{name} exclude each other")


def _fits(value: Any, default: Any) -> bool:
    if isinstance(value, bool) or isinstance(default, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(default, int):
        return isinstance(value, int) and -(2**31) <= value < 2**31
    return isinstance(value, int | float) and abs(value) < 3.4e38  # the range of float32; excludes NaN


def check_requirements(agent: str, spec: Spec, without_mask: str = "") -> None:
    """Raise UserError if the agent called `agent` cannot act for a group of an environment; the message names the agents that can.

    `without_mask` ends the message about a mask.
    """
    for group in spec.groups:
        why_not = _why_not(config_class(agent).requirements, group)
        if why_not:
            able = [name for name in agent_names() if not _why_not(config_class(name).requirements, group)]
            ending = without_mask if group.masked and not config_class(agent).requirements.masks else ""
            raise UserError(f"agent={agent} {why_not}; agents that can: {', '.join(able)}{ending}")


def _why_not(needs: Requirements, group: GroupSpec) -> str:
    """Return why an agent cannot act for a group; empty if it can."""
    if not isinstance(group.action, needs.spaces):
        return f"cannot choose the {type(group.action).__name__} actions of group {group.name!r}"
    if needs.bounded and isinstance(group.action, Box):
        for n, (low, high) in enumerate(group.action.bounds()):
            if not (math.isfinite(low) and math.isfinite(high)):
                return f"needs a Box with a finite low and high, and action {n} of group {group.name!r} goes from {low:g} to {high:g}"
    if group.masked and not needs.masks:
        return f"does not support action masks, which group {group.name!r} has"
    if group.leaves and not needs.leaving:
        return f"does not support actors that leave an episode before it ends, as those of group {group.name!r} do"
    return ""


def _check_folder(key: str, folder: str) -> None:
    """Raise UserError if a folder cannot be made or used at a place."""
    what = f"{key}={shown(folder)}"
    require(folder.strip() != "", f"{what} must be the path of a folder; . is the working folder")
    require(not folder.startswith("~") and "$" not in folder, f"{what}: the shell has not replaced ~ or $; write the whole path")
    path = Path(folder)
    try:
        there = next(place for place in (path, *path.absolute().parents) if place.exists())
        require(there.is_dir(), f"{what}: {there} is not a folder")
        require(os.access(there, os.W_OK | os.X_OK), f"{what}: no permission to write into {there}")
        begun = f"; `{program()} resume={typed(path)}` continues its run" if (path / CONFIG).is_file() else ""
        require(key != "run_dir" or is_free(path), f"{what} exists and is not empty{begun}")
    except OSError as error:
        raise UserError(f"{what}: {error.strerror}") from None


_KINDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a finite number"}
