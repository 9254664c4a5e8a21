"""Defaults that follow from a run: what nobody has set, for an environment that nobody has tuned the agent for.

RULES is the table. A rule sees the settings that are given and those of the rules before it; what it finds is the setting of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from warprun.learning.settings.agent import SHARED_BY_GROUPS, AgentConfig, group_config
from warprun.learning.settings.off_policy import OffPolicyConfig
from warprun.spec import GroupSpec, Spec

C = TypeVar("C", bound=AgentConfig)


class Size(NamedTuple):
    """The size of a run."""

    n_envs: int
    learned: int
    """Environments that an update of one learner learns from."""
    steps: int
    """Environment steps, of all environments."""
    batched: bool
    """Whether kernels of warprun or a class of arrays step all environments; where others do, steps are dear."""
    time_limit: int | None = None
    """Steps after which an episode is truncated; None: none is, or it is not known."""
    cut_by_kernels: bool = False
    """Whether kernels truncate it there."""


@dataclass(frozen=True)
class Facts:
    """The facts that rules know of a run, for one group of actors."""

    agent: Any
    """Settings of the group, as far as they are known."""
    group: GroupSpec
    size: Size
    free: Collection[str]
    """Names of the settings that nobody has given."""

    @property
    def actors(self) -> int:
        """Actors that an update learns from: rows of a step."""
        return self.size.learned * self.group.size

    @property
    def rows(self) -> int:
        """Rows that an update learns from."""
        return self.agent.horizon * self.actors


Rule = Callable[[Facts], float | None]


def within(low: int, value: float, high: int) -> int:
    """Return a value, rounded down, or the bound that it is beyond."""
    return int(min(max(value, low), high))


def horizon(run: Facts) -> int:
    """Return 64 steps; more where a rollout has few rows, fewer where it has more than 65,536; at most a tenth of the run.

    At least 16. Few are 8,192, and a 256th of the run where that is less, but not below 2,048. If steps are dear, as many as have 4,096
    rows, and at least 8.
    """
    rows, least, most = (8192, 16, 64) if run.size.batched else (4096, 8, 8)
    few = within(2048, run.size.steps / 256, rows)
    steps = max(few / run.actors, min(most, 65_536 / run.actors))
    return within(least, min(steps, run.size.steps / run.size.n_envs / 10), few)


def minibatches(run: Facts) -> int:
    """Return how many minibatches of 512 rows a rollout has, 4 to 64, of 64 rows where these are fewer than 4, of 4,096 where more than 64.

    If steps are dear, of 256 rows instead of 512. Of networks with memory there is at most one for each sequence.
    """
    many = min(run.rows // (512 if run.size.batched else 256), 64)
    of_rows = max(1, many, min(4, run.rows // 64), run.rows // 4096)
    return min(of_rows, run.actors) if run.agent.network.remembers else of_rows


def staggered(run: Facts) -> bool:
    """Return whether episodes that begin together would be in the same part of their length in every rollout."""
    size = run.size
    return size.n_envs > 1 and size.cut_by_kernels and size.time_limit is not None and size.time_limit > run.agent.horizon


def gamma(run: Facts) -> float:
    """Return the discount that looks a tenth of the time limit ahead, 100 to 1,000 steps."""
    return round(1.0 - 1.0 / within(100, (run.size.time_limit or 0) / 10, 1000), 4)


def desired_kl(run: Facts) -> float | None:
    """Return 0.01 if the learning rate may follow the policy: nobody has given it, a schedule, or another use of the divergence."""
    agent = run.agent
    fixed = "learning_rate" not in run.free or agent.learning_rate_end is not None or agent.target_kl is not None
    return None if fixed or agent.epochs * agent.minibatches == 1 else 0.01


PPO: dict[str, Rule] = {
    "gamma": gamma,
    "horizon": horizon,
    "staggered": staggered,
    "minibatches": minibatches,
    "epochs": lambda run: within(1, 327_680 / run.rows, 5 if run.size.batched else 10),
    "learning_rate": lambda run: 3e-4,
    "desired_kl": desired_kl,
    "learning_rate_max": lambda run: run.agent.learning_rate_max if run.agent.desired_kl is None else 1e-3,
    "return_window": lambda run: within(3, 20_480 / run.rows, 10),
}
A2C: dict[str, Rule] = {
    "gamma": gamma,
    # One gradient step for each rollout: few rows are noise, and short rollouts many steps.
    "horizon": lambda run: within(16, min(1024, run.size.steps / 256) / run.actors, 1024),
    "staggered": staggered,
}
OFF_POLICY: dict[str, Rule] = {
    # A step of many environments has rows for many gradient steps, but these take all the time, and rows of one moment are much alike.
    "utd_ratio": lambda run: float(f"{min(1.0, 32 / run.size.n_envs):.3g}"),
    "learning_starts": lambda run: int(min(max(1000, 10 * run.size.n_envs), run.size.steps / 10)),
}
IN_SEQUENCES: dict[str, Rule] = {
    # A gradient step learns from sequences, so a few of them are many rows, and targets follow after each of few steps.
    "batch_size": lambda run: 32,
    "utd_ratio": lambda run: float(f"{20.0 / (run.agent.batch_size * run.agent.replay.sequence):.3g}"),  # learns 20 times from a step
    "learning_starts": lambda run: max(1000, run.size.n_envs * run.agent.steps_drawn()),
    "target_update_interval": lambda run: 1,
    "tau": lambda run: 0.01 if run.agent.target_update_interval == 1 else run.agent.tau,
}
"""For networks with memory, also if tuned settings or an experiment are for networks without."""
RULES: dict[str, dict[str, Rule]] = {"ppo": PPO, "a2c": A2C} | dict.fromkeys(("dqn", "ddpg", "td3", "sac"), OFF_POLICY)
"""By the name of the agent; others, such as agents of users, have no rules."""


def settings_of(agent: AgentConfig, stated: bool) -> list[str]:
    """Return the settings that may follow from the run; if `stated`, tuned settings or an experiment state what the others are."""
    rules = rules_of(agent)
    return [] if stated and rules is not IN_SEQUENCES else list(rules)


def may_follow(name: str, settings: type[AgentConfig]) -> list[str]:
    """Return all settings of an agent of this name that may follow from a run."""
    return list(RULES.get(name, {}) | (IN_SEQUENCES if issubclass(settings, OffPolicyConfig) else {}))


def rules_of(agent: AgentConfig) -> dict[str, Rule]:
    """Return the rules for an agent; there may be none."""
    return IN_SEQUENCES if isinstance(agent, OffPolicyConfig) and agent.has_memory() else RULES.get(agent.name, {})


def derive(config: C, free: Collection[str], spec: Spec, size: Size) -> C:
    """Return the settings of an agent in which those that `free` names follow from the run; groups that differ have their own."""
    rules = rules_of(config)
    base = _found(rules, config, free, spec.groups[0], size)
    fitted, groups = _with(config, base), dict(config.groups)
    shared = _with(config, {"horizon": fitted.horizon})
    for group in spec.groups:
        given = groups.get(group.name, {})
        left = [name for name in free if name not in given and name not in SHARED_BY_GROUPS]
        own = _found(rules, group_config(shared, group.name), left, group, size)
        differs = {name: value for name, value in own.items() if value != base[name]}
        if differs:
            groups[group.name] = {**given, **differs}
    return _with(fitted, {"groups": groups})


def _found(rules: Mapping[str, Rule], agent: AgentConfig, free: Collection[str], group: GroupSpec, size: Size) -> dict[str, float | None]:
    """Return the settings of one group that `free` names, each by what is known before it."""
    for name, rule in rules.items():
        if name in free and (agent.network.remembers or rules is not IN_SEQUENCES):
            agent = _with(agent, {name: rule(Facts(agent, group, size, free))})
    return {name: getattr(agent, name) for name in free}


def _with(agent: C, values: Mapping[str, object]) -> C:
    """Return settings with other values, by name."""
    changed = copy(agent)
    for name, value in values.items():
        setattr(changed, name, value)
    return changed
