"""Signs in the curves of a run that did not learn, each with one thing to try. No torch."""

from __future__ import annotations

import math
import re
import shlex
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from warprun.config.schema import Config
from warprun.errors import program
from warprun.learning.settings.agent import SHARED_BY_GROUPS, group_config
from warprun.runs.paired import DOUBT
from warprun.spec import GroupSpec, Space, Spec

LEAST_RECORDS = 4
"""A curve with fewer records gets no note."""
LOW_ENTROPY = 0.05
"""Share of the entropy of a uniform choice below which a policy has practically stopped exploring."""
HIGH_ENTROPY = 0.99
"""Share of it above which a policy prefers no action."""
LOW_STD, HIGH_STD = 0.01, 3.0
"""Standard deviation of Box actions, in units of the policy, below which it has too, and above which most actions are at their bounds."""
LOW_EXPLAINED_VARIANCE = 0.1
"""Share of the variance of the returns below which a value function explains practically nothing."""
LOW_KL, HIGH_KL = 1e-5, 0.1
"""Divergence of an update: of a policy that hardly moves, and of one that leaves what its rollout says. Usual are 0.003 to 0.03."""
USUAL_KL = "usual are 0.003 to 0.03"
HIGH_ENTROPY_COEF = 0.1
"""Weight of the entropy above which it may outweigh normalized advantages, which are about 1."""
TINY_RATE = 1e-3
"""Share of the agent's own learning rate below which a given one explains that nothing changes."""
MUCH_CLIPPED = 0.002
"""Share of clipped observations that shows outliers: of a stationary number at most 1 % are beyond 10 standard deviations (Chebyshev)."""
OF_THIS_RUN = ("run_dir", "until_steps", "resume")
"""Overrides that a command for another run leaves out."""
HIGH_VALUE_LOSS = 100.0
"""Value loss, in units of the variance of returns or of those of the rewards, that comes of returns far from 0 and 1."""


@dataclass(frozen=True)
class Curves:
    """The records of a run, for one group; signs are those of its last half."""

    rows: Sequence[Mapping[str, float]]
    group: GroupSpec
    config: Config
    spec: Spec

    def of(self, tag: str) -> list[float]:
        """Return the finite values of KIND/NAME, of several groups KIND/GROUP/NAME."""
        return self.shared(self._named(tag))

    def shared(self, tag: str) -> list[float]:
        """Return the finite values of a metric that all groups share."""
        return finite(self.rows[len(self.rows) // 2 :], tag)

    def first(self, tag: str) -> list[float]:
        """Return the finite values of the first quarter of the records, at least of one."""
        return finite(self.rows[: max(1, len(self.rows) // 4)], self._named(tag))

    def median(self, tag: str) -> float:
        """Return the median of a curve; NaN if it has few records, so that no comparison with it is true."""
        values = self.of(tag)
        return statistics.median(values) if len(values) >= LEAST_RECORDS else math.nan

    @property
    def limit(self) -> int | None:
        """Time limit of the environment."""
        return self.spec.time_limit

    @property
    def several(self) -> bool:
        """Whether there are other groups, so that tags have the group's name in them."""
        return len(self.spec.groups) > 1

    @property
    def improved(self) -> bool:
        """Whether training episodes or evaluations got better beyond doubt."""
        return rose(self.trained) or self._evaluations_rose

    @property
    def trained(self) -> list[float]:
        """The returns of training episodes, of all records."""
        return finite(self.rows, self._named("train/return"))

    @property
    def evaluated(self) -> list[float]:
        """The returns of all evaluations."""
        return finite(self.rows, self._named("eval/return"))

    @property
    def _evaluations_rose(self) -> bool:
        """Whether the later half of the evaluations is above the first one by more than the doubt in both."""
        first, *others = self.evaluated or [math.nan]
        error, *errors = finite(self.rows, self._named("eval/return_stderr")) or [math.nan]
        if not others or len(errors) != len(others):  # of one episode each, which tell no error
            return rose(self.evaluated)
        later, doubts = others[len(others) // 2 :], errors[len(others) // 2 :]
        return statistics.fmean(later) - first > DOUBT * math.hypot(error, math.hypot(*doubts) / len(doubts))

    @property
    def is_level(self) -> bool:
        """Whether no evaluation was better than the first one, and records of training are enough to show that nothing got better."""
        first, *others = self.evaluated or [math.nan]
        enough = len(others) >= LEAST_RECORDS - 1 and len(self.trained) >= 2 * LEAST_RECORDS
        return enough and max(others) <= first and not self.improved

    def _named(self, tag: str) -> str:
        kind, name = tag.split("/")
        return f"{kind}/{self.group.name}/{name}" if self.several else tag

    @property
    def settings(self) -> Mapping[str, object]:
        """Settings of the group's agent, by name."""
        return vars(group_config(self.config.agent, self.group.name))

    def changed(self, setting: str) -> str:
        """Return the command of a run like this one with another setting, in the place of one that was given."""
        return self._command(key_of(setting), setting)

    def _command(self, without: str, *more: str) -> str:
        own = [override for override in self.config.origin.overrides if key_of(override) not in (*OF_THIS_RUN, without)]
        return f"{program()} {' '.join(map(shlex.quote, [*own, *more]))}"

    def _key(self, name: str) -> str:
        """Return the key of a setting of the agent, of this group if several have their own."""
        own = self.several and name not in SHARED_BY_GROUPS
        return f"agent.groups.{self.group.name}.{name}" if own else f"agent.{name}"

    def agent(self, name: str, value: object) -> str:
        """Return the command with another setting of the agent."""
        return self.changed(f"{self._key(name)}={value}")

    def _ratio(self, name: str) -> float:
        """Return a setting of the agent in units of its default; 1 if one of them is no number above 0."""
        value, usual = self.settings.get(name), getattr(type(self.config.agent)(), name, None)
        return value / usual if isinstance(value, int | float) and isinstance(usual, int | float) and min(value, usual) > 0.0 else 1.0

    def nearer(self, name: str, factor: float, otherwise: float) -> str:
        """Return the command without a setting that was given and is beyond its default, else with a multiple of it."""
        given = [key_of(override) for override in self.config.origin.overrides]
        beyond = self._ratio(name) > 1.0 if factor < 1.0 else self._ratio(name) < 1.0
        for key in (self._key(name), f"agent.{name}"):
            if beyond and key in given:
                return self._command(key)
        return self.times(name, factor, otherwise)

    @property
    def stands(self) -> bool:
        """Whether updates do not move the policy, or a setting keeps them from it."""
        return self.median("loss/approx_kl") < LOW_KL or self._ratio("learning_rate") < TINY_RATE

    @property
    def random_by_setting(self) -> bool:
        """Whether the weight of the entropy may be what keeps the policy random."""
        coef = self.settings.get("entropy_coef")
        return isinstance(coef, int | float) and coef > HIGH_ENTROPY_COEF

    def times(self, name: str, factor: float, otherwise: float) -> str:
        """Return the command with a multiple of a setting of the agent; with `otherwise` if it is 0 or null."""
        value = self.settings.get(name)
        wanted = value * factor if isinstance(value, int | float) and value else otherwise
        return self.agent(name, f"{wanted:.2g}" if isinstance(wanted, float) else wanted)

    def checked(self) -> str:
        """Return the command that checks the environment."""
        own = [each for each in self.config.origin.overrides if re.match(r"(env|experiment)\b", each)]
        named = any(each.startswith(("env=", "experiment=")) for each in own)
        return f"{program()} check {' '.join(map(shlex.quote, own if named else [f'env={self.config.env.name}', *own]))}"


def key_of(override: str) -> str:
    """Return the setting that an override gives."""
    return override.lstrip("+~").partition("=")[0]


def finite(rows: Sequence[Mapping[str, float]], tag: str) -> list[float]:
    """Return the finite values of a tag, in the order of the records."""
    return [row[tag] for row in rows if math.isfinite(row.get(tag, math.nan))]


def rose(values: Sequence[float]) -> bool:
    """Return whether the last quarter of a curve is above both of its first two values by more than the values of this quarter vary.

    The first two differ by chance, or because they rise as fast as they can, so their difference is no measure of chance.
    """
    last = values[len(values) - len(values) // 4 :]
    return len(last) >= 2 and statistics.fmean(last) - max(values[:2]) > DOUBT * statistics.stdev(last)


Sign = Callable[[Curves], tuple[str, str] | None]
"""Curves -> what they show, and what to try; None: they do not show it."""


def no_episodes(curves: Curves) -> tuple[str, str] | None:
    """Find episodes that have no end; with a time limit they may only be longer than the run."""
    ended = curves.shared("train/episodes")
    if curves.limit or len(ended) < LEAST_RECORDS or any(ended):
        return None
    return "no training episode has ended recently", curves.changed("env.time_limit=1000")


def same_returns(curves: Curves) -> tuple[str, str] | None:
    """Find episodes that return the same, whatever the actions are."""
    got, length = curves.of("train/return"), curves.shared("train/episode_length")
    if curves.improved or len(got) < LEAST_RECORDS or max(got) - min(got) > 1e-6 * abs(got[0]):
        return None
    returned = f"all recent training episodes returned {got[0]:.4g}"
    if not any(got):
        return f"{returned}: rewards are always 0, whatever the action, or no episode met what gives another", curves.checked()
    found = f"{returned}: rewards do not favor any action"
    if length and length[-1] == curves.limit and not any(curves.shared("eval/terminated")):
        longer = curves.changed(f"env.time_limit={4 * curves.limit:.0f}")
        return f"{found}, and all episodes were cut at the time limit, {curves.limit:,} steps", longer
    return found, curves.checked()


def constant_observations(curves: Curves) -> tuple[str, str] | None:
    """Find observations of which no number varies."""
    share = curves.median("obs/constant_share")
    return ("no number of the observations varies, so the policy sees nothing", curves.checked()) if share >= 1.0 else None


def clipped_observations(curves: Curves) -> tuple[str, str] | None:
    """Find observations that normalisation cuts off."""
    share = curves.median("obs/clipped_share")
    if not share > MUCH_CLIPPED:
        return None
    found = f"{share:.1%} of the observed numbers are clipped: take logarithms of rare, large ones in `observe`"
    return found, curves.agent("normalize_obs", "false")


def undecided(curves: Curves) -> tuple[str, str] | None:
    """Find a policy that prefers no action after all its updates."""
    if curves.improved or not is_random(curves):
        return None
    found = "the policy still prefers no action"
    if curves.random_by_setting:
        coef = curves.settings["entropy_coef"]
        return f"{found}: entropy_coef={coef:g} favors that, usual are 0 to 0.01", curves.nearer("entropy_coef", 0.01, 0.01)
    if curves.stands:
        return None if small_steps(curves) else (found, curves.nearer("learning_rate", 10.0, 1e-3))
    return f"{found}: rewards do not depend on actions, or only much later", curves.checked()


def is_random(curves: Curves) -> bool:
    """Return whether a policy chooses at random."""
    uniform = uniform_entropy(curves.group)
    return uniform > 0.0 and curves.median("loss/entropy") > HIGH_ENTROPY * uniform


def stopped_exploring(curves: Curves) -> tuple[str, str] | None:
    """Find a policy whose actions hardly vary, and not because of its first updates."""
    if "entropy_coef" not in curves.settings or large_steps(curves):  # after which it falls by chance
        return None
    return narrow(curves)


def narrow(curves: Curves) -> tuple[str, str] | None:
    """Find actions that hardly vary, whatever the cause is."""
    entropy, uniform = curves.of("loss/entropy"), uniform_entropy(curves.group)
    tries = curves.times("entropy_coef", 5.0, 0.01)
    # A mask that leaves little to choose lowers the entropy of any policy.
    if entropy and uniform and not curves.group.masked and entropy[-1] < LOW_ENTROPY * uniform:
        fell = f"the entropy of the policy fell to {entropy[-1]:.2g} of at most {uniform:.2g}"
        return f"{fell}: it has stopped exploring", tries
    if entropy and deviation(entropy[-1], curves.group.action) < LOW_STD:
        fell = f"the standard deviation of the actions fell to {deviation(entropy[-1], curves.group.action):.2g} of 1"
        return f"{fell}: the policy has stopped exploring", tries
    return None


def actions_at_bounds(curves: Curves) -> tuple[str, str] | None:
    """Find a policy that draws nearly all actions beyond their bounds."""
    entropy, action = curves.of("loss/entropy"), curves.group.action
    if not entropy or not curves.settings.get("entropy_coef"):
        return None
    bounded = all(math.isfinite(bound) for pair in action.bounds() for bound in pair)
    if not bounded or not deviation(entropy[-1], action) >= HIGH_STD:
        return None
    rose = f"the standard deviation of the actions rose to {deviation(entropy[-1], action):.2g}, and bounds are at 1"
    return f"{rose}: nearly all actions are cut off", curves.agent("entropy_coef", 0)


def uniform_entropy(group: GroupSpec) -> float:
    """Return the entropy of a uniform choice among a group's actions, in nats; 0 for a Box, whose entropy has no such bound."""
    return sum(math.log(n) for n in group.action.choices)


def deviation(entropy: float, action: Space) -> float:
    """Return the standard deviation of a normal policy, the geometric mean over components, by its entropy in nats; NaN of choices."""
    return math.exp(entropy / action.reals - 0.5 * math.log(2.0 * math.pi * math.e)) if action.reals else math.nan


def large_steps(curves: Curves) -> tuple[str, str] | None:
    """Find updates after which the policy is another one, also those before its actions hardly varied, after which none can move it."""
    if curves.settings.get("desired_kl"):
        return None
    tries, kl = curves.nearer("learning_rate", 0.2, 1e-4), curves.median("loss/approx_kl")
    if kl > HIGH_KL:
        return f"an update moves the policy by a KL divergence of {kl:.2g}, {USUAL_KL}", tries
    first = max(curves.first("loss/approx_kl"), default=math.nan)
    if not first > HIGH_KL or not (fell := narrow(curves)):
        return None
    return f"an early update moved the policy by a KL divergence of {first:.2g}, {USUAL_KL}, and {fell[0].partition(':')[0]}", tries


def small_steps(curves: Curves) -> tuple[str, str] | None:
    """Find updates that hardly move a policy which could still move."""
    kl = curves.median("loss/approx_kl")
    if curves.settings.get("desired_kl") or not kl < LOW_KL or narrow(curves) or (curves.random_by_setting and is_random(curves)):
        return None
    return f"an update moves the policy by a KL divergence of {kl:.2g}, {USUAL_KL}", curves.nearer("learning_rate", 10.0, 1e-3)


def large_values(curves: Curves) -> tuple[str, str] | None:
    """Find returns whose size the value function cannot reach."""
    loss = curves.median("loss/value")
    if not loss > HIGH_VALUE_LOSS or curves.settings.get("normalize_reward") is not False:
        return None
    return f"the value loss is {loss:.2g}: returns are far from 1", curves.agent("normalize_reward", "true")


def blind_values(curves: Curves) -> tuple[str, str] | None:
    """Find a value function that explains nothing of the returns; those of a policy that improves may not depend on the state."""
    explained = curves.of("loss/explained_variance")
    if (
        curves.improved
        or curves.stands
        or curves.random_by_setting
        or len(explained) < LEAST_RECORDS
        or max(explained) >= LOW_EXPLAINED_VARIANCE
    ):
        return None
    share = f"the value function explains at most {max(0.0, max(explained)):.0%} of the variance of returns"
    return f"{share}: advantages are mostly noise", curves.times("horizon", 4, 64)


SIGNS: tuple[Sign, ...] = (
    no_episodes,
    constant_observations,
    same_returns,
    clipped_observations,
    large_values,
    large_steps,
    small_steps,
    stopped_exploring,
    actions_at_bounds,
    undecided,
    blind_values,
)
"""Those first whose cause is nearer: a run whose observations say nothing shows the later signs, too."""


OF_A_RUN_THAT_IMPROVED = (no_episodes, constant_observations, clipped_observations, large_values, large_steps, small_steps)
"""Signs that say something of it while it goes on: it may explore less because it has learned."""


def notes(curves: Curves, signs: Sequence[Sign] = SIGNS) -> Iterator[str]:
    """Yield a note for each of the signs."""
    who = f"group {curves.group.name}: " if curves.several else ""
    for sign in signs:
        found = sign(curves)
        if found:
            yield f"{who}{found[0]}; try: {found[1]}"
