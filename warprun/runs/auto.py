"""`n_envs=auto`: choose the number of environments with which training probably reaches a return first.

More environments give more environment steps per second, until the machine is full. But an agent takes one batch of gradient steps per
rollout, and from a larger batch it learns little more than from a smaller one. McCandlish et al. ("An Empirical Model of Large-Batch
Training", 2018, section 2) find that the data to reach a loss grow as 1 + B / B_critical with the batch B. So the time to a return is

    T(n) = (1 + n / CRITICAL) / throughput(n)

up to a factor that does not depend on n. The throughput is measured; CRITICAL is SHARE of the number of environments that the settings
of the agent are made for. That is a rule of thumb, so among sizes that are about equal the one nearest to that number is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from warprun.config.checks import check
from warprun.config.defaults import with_defaults
from warprun.config.schema import Config, sized
from warprun.errors import UserError
from warprun.runs.bench import training_rate
from warprun.runs.records.terminal import si

SHARE = 0.25
"""CRITICAL as a share of the number of environments that settings are made for; at CRITICAL, training needs twice the
data of the smallest batch. Chosen by the measured times of CartPole and Acrobot, see docs/sweeps.md."""
NEAR = 1.2
"""Ratio to the least cost up to which sizes are about equal."""
LADDER = tuple(round(10 ** (exponent / 2)) for exponent in range(1, 15))
"""Numbers of environments that are tried: 3, 10, 32, 100, ... 10 million."""
SECONDS = 1.0
"""Least time of the measurement of one size."""
WORSE = 1.5
"""Ratio to the least cost at which larger sizes are not tried any more."""
BETTER = 0.95
"""Two larger sizes that do not reach this ratio to the least cost before them end the search."""
LONGEST_S = 5.0
"""Time of an iteration beyond which larger sizes are not tried: a run answers once in an iteration."""


@dataclass(frozen=True)
class Tried:
    """A size that was measured."""

    config: Config
    throughput: float
    """Environment steps per second of training."""

    @property
    def iteration_s(self) -> float:
        """Seconds of a rollout and its update."""
        return self.config.n_envs * self.config.agent.horizon / self.throughput


def choose(config: Config, say: Callable[[str], None]) -> Config:
    """Return `config` with the number of environments that is expected to learn fastest, and the batch settings that
    belong to it.

    Kernels are compiled first; then each size takes a second or two. `say` gets a line. Raises UserError if no size can
    work.
    """
    say(f"n_envs=auto: measures the speed of training with {LADDER[0]} environments and more, a second or two each")
    tried: list[Tried] = []
    for candidate in candidates(config):
        tried.append(Tried(candidate, training_rate(candidate, SECONDS)))
        if is_enough(tried, config.n_envs):
            break
    return decided(tried, config.n_envs)


def candidates(config: Config) -> Iterator[Config]:
    """Yield configs with more and more environments, of those that can work and fit into memory. Raises UserError if none does."""
    refused: list[UserError] = []
    for n_envs in LADDER:
        try:
            candidate = with_defaults(sized(config, n_envs, ""))
            check(candidate)
        except UserError as error:
            refused.append(error)
        else:
            yield candidate
    if len(refused) == len(LADDER):
        raise refused[0]


def cost(tried: Tried, usual: int) -> float:
    """Return the expected time to a return, up to a factor; `usual` is the number of environments that the settings are made for."""
    return (1.0 + tried.config.n_envs / (SHARE * usual)) / tried.throughput


def is_enough(tried: list[Tried], usual: int) -> bool:
    """Return whether larger sizes need not be tried: they cost more, or their iterations take long."""
    costs = [cost(each, usual) for each in tried]
    # Beyond the critical batch a size can at best cost as much as one that is half as large.
    flat = len(costs) > 2 and tried[-1].config.n_envs > usual and min(costs[-2:]) > BETTER * min(costs[:-2])
    return costs[-1] > WORSE * min(costs) or flat or tried[-1].iteration_s > LONGEST_S


def decided(tried: list[Tried], usual: int) -> Config:
    """Return the config with the best size; its `origin.n_envs` gives the reason in one line."""
    least = min(cost(each, usual) for each in tried)
    equal = [each for each in tried if cost(each, usual) <= NEAR * least]
    best = min(equal, key=lambda each: abs(math.log(each.config.n_envs / usual)))
    sizes = f"{tried[0].config.n_envs:,} to {tried[-1].config.n_envs:,}"
    fastest = max(tried, key=lambda each: each.throughput)
    more = "" if fastest is best else f"; {fastest.config.n_envs:,} make {si(fastest.throughput)}, but learn less from each step"
    how = f"n_envs={best.config.n_envs} chosen of {sizes}: training makes {si(best.throughput)} env_steps/s{more}"
    return replace(best.config, origin=replace(best.config.origin, n_envs=how))
