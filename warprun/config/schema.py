"""The schema of the settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

from omegaconf import MISSING, OmegaConf

from warprun.algorithms.defaults import settings_of
from warprun.config import environment_copy
from warprun.config.concurrency import CONCURRENCY
from warprun.config.external import ALONE, External, Parallel
from warprun.config.registry import Defined, import_environment
from warprun.config.saved import UNFIT, agent_class, fitted
from warprun.environment import Environment
from warprun.errors import UserError, shown
from warprun.learning.settings.on_policy import OnPolicyConfig
from warprun.user_code import errors_of_user

S = TypeVar("S")

MAX_DEPTH = 10
"""Of dicts and lists inside each other in a config."""


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
    """With env=gymnasium, env=gymnax, env=brax or env=jumanji: the id of the environment, such as LunarLander-v3."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of `gymnasium.make`, or of the class of an environment that Python steps: env.kwargs.NAME=value."""
    register: list[str] = field(default_factory=list)
    """With env=gymnasium: what registers environments: modules to import, such as [ale_py], or MODULE:FUNCTION to call, such as
    ["minatar.gym:register_envs"]."""
    vector: bool = False
    """The environment is a `gymnasium.vector.VectorEnv`, which steps many environments at once."""
    timeout_s: float = 60.0
    """Seconds that one reset or step of an environment in a worker process may take."""
    mask: bool = True
    """If the info of a reset or a class of arrays has an `action_mask`, agents choose only what it allows; false: it is ignored."""
    channels: str | None = None
    """Axis of the channels of observations with two or three axes: first or last; null: of three the smaller one, of two the first."""

    @property
    def label(self) -> str:
        """Name in the default name of a run: the id, without characters that a folder cannot have."""
        return self.name if self.id is None else re.sub(r"[^\w.-]", "-", self.id)

    def external(self, parallel: Parallel) -> External:
        """Return the settings of environments with the interface of Gymnasium."""
        return External(self.id, self.kwargs, tuple(self.register), self.vector, self.timeout_s, self.mask, self.channels, parallel)


@dataclass
class EngineConfig:
    fused: bool = True
    """Compute inference, sampling, steps and gradients in fused kernels if possible; false: networks run in torch."""
    gradients: str = "auto"
    """What computes gradients: kernels (or an error), torch, or auto: kernels if possible."""
    keep_activations: bool = True
    """CPU, A2C without memory: the gradient takes what the rollout computed, up to 128 MiB a thread; false: it computes that again."""
    capture: bool = True
    """CUDA: after a few iterations repeat rollouts and updates as CUDA graphs. CPU: repeat the kernel calls of updates without Python."""
    compare: bool = True
    """Compare the first steps of some environments with plain Python, for up to 0.2 s, and end the run if they differ."""
    debug: bool = False
    """Fill with NaN and large integers, before each rollout, what it has to write: a number that nobody wrote then shows. Results stay."""
    tf32: bool = False
    """CUDA: torch multiplies matrices and convolves on tensor cores in TF32 (10 bits after the point). Kernels compute in float32."""


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
    """Services that get the records too: [wandb], [mlflow] or both; see docs/sweeps.md."""
    project: str = "warprun"
    """The project of Weights & Biases, or the experiment of MLflow."""


@dataclass
class OriginConfig:
    """How the settings of a run were composed. These are not settings: `compose` writes them."""

    tuned: str | None = None
    """The file of conf/tuned that applies."""
    overrides: list[str] = field(default_factory=list)
    """The overrides that the user gave."""
    n_envs: str | None = None
    """How n_envs was chosen; MEASURE: it still has to be, beginning from the number in the config; null: the config says it."""

    derived: list[str] = field(default_factory=list)
    """Settings of the agent, as key=value, that nobody gave, so that they follow from the run, see docs/defaults.md."""

    replacing: list[str] = field(default_factory=list)
    """The files of config groups that stand in the place of warprun's own."""

    MEASURE: ClassVar[str] = "to be measured"


@dataclass
class Config:
    env: EnvConfig = field(default_factory=EnvConfig)
    """The environment: a file of conf/env."""
    agent: Any = MISSING
    """The agent: a file of conf/agent (see warprun/learning/settings/)."""
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
    until_steps: int | None = None
    """Environment steps after which this command ends, before total_steps, which schedules refer to; a larger number continues the run.
    null: total_steps."""
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

    @property
    def staggered(self) -> bool:
        """Whether one of the first episodes of every environment is cut off, see `OnPolicyConfig`."""
        return isinstance(self.agent, OnPolicyConfig) and self.agent.staggered


def to_dict(config: Config) -> dict[str, Any]:
    """Return `config` as plain dicts and lists, the form in which a run folder stores it."""
    return {setting.name: _plain(getattr(config, setting.name)) for setting in fields(config)}


def _plain(value: object) -> object:
    """Return dataclasses as dicts, and sequences as lists. OmegaConf would check all values once more, which takes longer than a build."""
    if is_dataclass(value):
        return {setting.name: _plain(getattr(value, setting.name)) for setting in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def from_dict(saved: Mapping[str, object]) -> Config:
    """Make a config from a result of `to_dict`, also of an earlier version: newer settings get their defaults. Raises UserError."""
    agent = agent_class(saved)()
    given = saved.get("concurrency", {"name": "single"})
    mode = given.get("name") if isinstance(given, Mapping) else None
    if mode not in CONCURRENCY:
        raise UserError(f"{UNFIT}: concurrency.name is {shown(mode)}")
    config = fitted(OmegaConf.structured(Config(agent=agent, concurrency=CONCURRENCY[mode]())), saved)
    assert isinstance(config, Config)
    return config


def from_saved(saved: Mapping[str, object], similar: Config) -> Config:
    """Return what `from_dict` does, much sooner if `saved` differs from a similar config, of the same agent and concurrency, in values
    of the same types only."""
    try:
        return _like(similar, saved)
    except TypeError:
        return from_dict(saved)


def _like(settings: S, saved: object) -> S:
    """Return `settings` with the values of `saved`. Raises TypeError for other settings, and values of other types."""
    if is_dataclass(settings) and not isinstance(settings, type):
        names = [each.name for each in fields(settings)]
        if isinstance(saved, Mapping) and set(names) == set(saved):
            return replace(settings, **{name: _like(getattr(settings, name), saved[name]) for name in names})
    elif isinstance(settings, Mapping):
        if isinstance(saved, Mapping) and settings.keys() == saved.keys():
            return cast(S, {key: _like(settings[key], saved[key]) for key in settings})
    elif isinstance(settings, list):
        if isinstance(saved, list) and {*map(type, saved)} <= {*map(type, settings)} & {bool, int, float, str}:
            return cast(S, saved)
    elif type(settings) is type(saved):
        return saved
    raise TypeError


def is_open(config: Config) -> bool:
    """Return whether the number of environments still has to be chosen, as `n_envs=auto` asks for."""
    return config.origin.n_envs == OriginConfig.MEASURE


def sized(config: Config, n_envs: int, how: str) -> Config:
    """Return a config for `n_envs` environments, with the settings of the agent that belong to them; `how` they were chosen is kept."""
    agent = config.agent.resized(n_envs / config.n_envs)
    return replace(config, n_envs=n_envs, agent=agent, origin=replace(config.origin, n_envs=how))


def as_before(config: Config, before: Config) -> Config:
    """Return a config for a run that continues, with the `n_envs=auto` and the defaults that it has had `before`."""
    config = sized(config, before.n_envs, before.origin.n_envs or "") if is_open(config) else config
    given = {each.partition("=")[0].removeprefix("agent.") for each in config.origin.overrides}
    gone = [name for name in free(before) if free(config) and name not in settings_of(config.agent, stated=False) and name not in given]
    kept = {name: getattr(before.agent, name) for name in [*free(config), *gone]}  # also what has no rule any more
    own = [each for each in before.origin.derived if each.startswith("agent.groups.")]
    groups = {name: dict(settings) for name, settings in config.agent.groups.items()}
    for group, name in ((each.partition("=")[0].split(".")[2:4]) for each in own):
        groups.setdefault(group, {}).setdefault(name, before.agent.groups[group][name])
    derived = [*(written(name, value) for name, value in kept.items()), *own]
    if config.agent.network.hidden is None:  # earlier versions had sizes in its place
        kept["network"] = replace(config.agent.network, hidden=before.agent.network.hidden)
    return replace(config, agent=replace(config.agent, **kept, groups=groups), origin=replace(config.origin, derived=derived))


def written(name: str, value: object) -> str:
    """Return a setting of the agent as it is typed."""
    text = str(value).lower() if isinstance(value, bool) else value
    return f"agent.{name}={'null' if value is None else text}"


def free(config: Config) -> list[str]:
    """Return the names of the settings of the agent that nobody gave, of those that follow from the run."""
    names = [each.partition("=")[0].removeprefix("agent.") for each in config.origin.derived]
    return [name for name in names if not name.startswith("groups.")]


def load_environment(env: EnvConfig, parallel: Parallel = ALONE) -> tuple[Defined, ModuleType]:
    """Return the environment, with the options and the time limit of the config, and the module that defines it.

    `parallel`: that of the settings `concurrency`. If several ranks step an environment, every rank of a run calls this.
    """
    own = environment_copy.find(env.module)
    load = own.environment if own else partial(import_environment, env.module)
    return load(env.options, env.time_limit, env.external(parallel))


def make_tables(environment: Environment, env: EnvConfig) -> NamedTuple | None:
    """Return the environment's tables, or None if it has none; if `env.module` is the copy in a run folder, the tables of that run."""
    own = environment_copy.find(env.module)
    if not environment.tables:
        return None
    if own:
        return own.make_tables(environment, env.options, env.time_limit)
    with errors_of_user(f"the tables of {env.module} cannot be made"):
        return environment.make_tables()


def parameters(environment: Environment, env: EnvConfig) -> NamedTuple:
    """Return the environment's parameters with the values of the config, each in the type of its default."""
    defaults = environment.params._field_defaults
    given = {name: type(defaults[name])(value) for name, value in env.params.items()}
    return environment.params._make(defaults.values())._replace(**given)
