"""Settings of agents, what follows from them before anything is built, and the settings of single groups; no torch.

`off_policy_settings` has those of off-policy agents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, ClassVar, Protocol, Self, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from warprun.errors import UserError, did_you_mean
from warprun.learning import byte_counts
from warprun.learning.byte_counts import AgentMemory, RunSizes
from warprun.learning.network_settings import LayersConfig, NetworkConfig, rows_of_recurrent
from warprun.learning.plan import Fusion
from warprun.learning.setting_checks import at_least, below_one, not_negative, one_of, positive, within
from warprun.spec import Box, Discrete, GroupSpec, MultiDiscrete, PolicyKind, Spec

OPTIMIZERS = ("adam", "rmsprop", "rmsprop_tf")
ADVANTAGES = ("gae", "nstep", "vtrace", "exarl_vtrace")
SHARED_BY_GROUPS = ("name", "horizon", "staggered", "groups")
"""Settings that cannot differ between groups."""


@dataclass(frozen=True)
class Requirements:
    """The needs of an agent as to the groups that it acts for."""

    spaces: tuple[type, ...] = (Discrete, MultiDiscrete, Box)
    """Action spaces that it can act in."""
    masks: bool = True
    """Whether it keeps to action masks; if not, it cannot act for a group that has one."""
    bounded: bool = False
    """Whether the bounds of a Box must be finite, because the agent acts within -1..1."""
    leaving: bool = True
    """Whether it learns right where actors leave episodes before they end."""


@dataclass
class OptimizerConfig:
    """The optimizer."""

    name: str = "adam"
    """adam, rmsprop, or rmsprop_tf (eps inside the root, mean square starts at 1, as in TensorFlow and Stable-Baselines' A2C)."""
    beta1: float = 0.9
    """Adam: decay of the mean of the gradients."""
    beta2: float = 0.999
    """Adam: decay of the mean of their squares."""
    alpha: float = 0.99
    """RMSprop: decay of the mean of the squared gradients."""
    eps: float = 1e-5
    """Added to the root of the mean square."""

    def check(self, key: str) -> None:
        """Raise UserError for a value that cannot work; `key` is the key of these settings."""
        one_of(self, key, "name", OPTIMIZERS)
        below_one(self, key, "beta1", "beta2", "alpha")
        positive(self, key, "eps")


@dataclass
class OnPolicyConfig:
    """Settings that all on-policy agents have."""

    acting: ClassVar[str] = "warprun.learning.acting:distribution"
    """Maker of the network that acts, see `AgentConfig`."""
    policies: ClassVar[PolicyKind] = "sampled"
    """Policies give distributions, from which actions are sampled."""
    requirements: ClassVar[Requirements] = Requirements()
    """Needs of the groups that the agent acts for."""
    one_gradient: ClassVar[bool] = False
    """Whether an update is one gradient step, on all rows of a rollout in their order."""

    name: str = ""
    """Name of the agent."""
    horizon: int = 16
    """Steps of every environment between two updates."""
    staggered: bool = False
    """Cut off one of the first episodes of every environment, each at another step, so that later ones do not begin and end together."""
    learning_rate: float = 1e-3
    """Learning rate at the start."""
    learning_rate_end: float | None = None
    """Learning rate at the end of the run, reached linearly; null: constant."""
    gamma: float = 0.99
    """Discount factor per step."""
    gae_lambda: float = 0.95
    """Lambda of generalised advantage estimation: 0 is the one-step advantage (most bias), 1 the Monte Carlo one (most variance)."""
    advantage: str = "gae"
    """How returns and advantages are computed: gae, nstep, vtrace (corrects for a policy that has learned since it acted), exarl_vtrace."""
    n_step: int = 5
    """Rewards in an n-step return before it bootstraps from the value."""
    rho_bar: float = 1.0
    """V-trace: largest ratio of probabilities that weights an error; the smaller, the closer values are to the policy that acted."""
    c_bar: float = 1.0
    """V-trace: largest ratio of probabilities in a trace; the smaller, the less variance. `gae_lambda` multiplies it."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    entropy_coef_end: float | None = None
    """Weight of the entropy bonus at the end of the run, reached linearly; null: constant."""
    value_coef: float = 0.5
    """Weight of the value loss, which each agent defines."""
    max_grad_norm: float | None = 0.5
    """A gradient with a larger norm is scaled down to this norm; null: no clipping."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """How the gradient moves the parameters."""
    normalize_obs: bool = True
    """Normalize observations to running mean 0 and variance 1, and clip them at 10; `obs/clipped_share` is the clipped share."""
    normalize_reward: bool = True
    """Shift and scale rewards so that discounted returns have mean 0 and variance 1, by running statistics."""
    return_window: int | None = None
    """With `normalize_reward`: rollouts over which older returns lose their weight in the statistics; null: all have the same weight."""
    normalize_advantage: bool = True
    """Normalize the advantages of each gradient step to mean 0 and variance 1."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """The network of policy and value."""
    groups: dict[str, Any] = field(default_factory=dict)
    """Settings that differ for single groups, such as {planner: {entropy_coef: 0.5, network: {hidden: [32]}}}."""

    def check(self, key: str) -> None:
        """Raise UserError for a value that cannot work; `key` is `agent` or `agent.groups.NAME`."""
        check_shared(self, key)
        self.optimizer.check(f"{key}.optimizer")
        self.network.check(f"{key}.network")
        within(self, key, 0, 1, "gae_lambda")
        not_negative(self, key, "entropy_coef", "entropy_coef_end", "value_coef")
        one_of(self, key, "advantage", ADVANTAGES)
        positive(self, key, "rho_bar", "c_bar", "return_window")

    def check_run(self, spec: Spec, n_envs: int, total_steps: int) -> None:
        """Raise UserError if a rollout has too few rows for the gradient steps that share it."""
        for group in spec.groups:
            own = group_config(self, group.name)
            parts = own.steps_per_pass()
            rows, least = self.horizon * n_envs * group.size, 2 if own.normalize_advantage else 1
            if own.network.remembers and n_envs * group.size < parts:
                raise UserError(
                    f"n_envs={n_envs} x {group.size} actors give {n_envs * group.size} sequences, and each of {parts} gradient steps needs"
                    " one or more: raise n_envs, or lower agent.minibatches"
                )
            if rows < least * parts:
                fewer = ", or lower agent.minibatches" if parts > 1 else ""
                given = f"agent.horizon={self.horizon} x n_envs={n_envs} x {group.size} actors give {rows} rows"
                raise UserError(f"{given}, and each of {parts} gradient steps needs {least} or more: raise n_envs or agent.horizon{fewer}")

    def learning_rates(self) -> tuple[float, float]:
        """Return the lowest and the highest learning rate to which updates may change it; the same if it follows a schedule."""
        return self.learning_rate, self.learning_rate

    @property
    def adapts_learning_rate(self) -> bool:
        """Whether updates change the learning rate, so that it has no schedule."""
        return False

    def passes(self) -> int:
        """Return how often an update goes through the rows of a rollout."""
        return 1

    def steps_per_pass(self) -> int:
        """Return into how many gradient steps a pass is cut."""
        return 1

    def kept_activations(self, group: GroupSpec, n_envs: int, units: int, threads: int) -> int:
        """Return the bytes of the activations that a fused rollout on CPU keeps for the gradient; 0: it keeps none.

        `units` are the numbers of a row in all layers, inputs and outputs included.
        """
        if not self.one_gradient or group.size > 1 or group.leaves:
            return 0
        return byte_counts.activations(n_envs, self.horizon, units, threads)

    def resized(self, times: float) -> Self:
        """Return the settings for `times` as many environments, with as many rows in each gradient step; as they are by default."""
        return self

    def work(self) -> float:
        """Return 1: the simulator may take most of the time."""
        return 1.0

    def fusion(self, spec: Spec) -> Fusion:
        """Return what kernels can compute of an agent with these settings."""
        rows: dict[str, int] = {}
        for group in spec.groups:
            own = group_config(self, group.name)
            if not own.network.runs_in_kernels:
                recurrent = rows_of_recurrent(group_config(self, each.name).network for each in spec.groups)
                return Fusion(None, False, own.network.no_kernels(), recurrent=recurrent)
            trunks = 1 if own.network.shared else 2
            rows[group.name] = group.observation.size + sum(own.network.first_hidden) * trunks + group.acting_outputs + 1
        return Fusion(rows, True)

    def memory(self, spec: Spec, sizes: RunSizes) -> AgentMemory:
        """Return the bytes that the agent allocates."""
        return byte_counts.of_groups(group_config(self, group.name)._memory_of(group, sizes) for group in spec.groups)

    def _memory_of(self, group: GroupSpec, sizes: RunSizes) -> AgentMemory:
        features, components, outputs = group.observation.size, group.action.components, group.acting_outputs
        network = self.network
        rows = self.horizon * sizes.n_envs * group.size
        step_rows = -(-rows // self.steps_per_pass())
        trunks = 1 if network.shared else 2
        heads = [outputs + 1] if network.shared else [outputs, 1]
        encoder = network.layout(group.observation)
        n_parameters = sum(encoder.parameters + network.parameters(encoder.outputs, head) for head in heads)
        n_parameters += components if isinstance(group.action, Box) else 0
        units = features + trunks * (encoder.numbers + network.numbers()) + outputs + 1
        kept, computing = byte_counts.on_policy_gradient(n_parameters, units, step_rows, sizes)
        kept += 4 * n_parameters * (1 + byte_counts.optimizer_tensors(self.optimizer.name))
        in_kernels = sizes.kernel_networks and not sizes.on_gpu
        if in_kernels:
            kept += byte_counts.on_policy_results(rows, group.size, self.normalize_reward)
        # Advantages and returns are kept while gradient steps are taken, and the order of the rows of minibatches.
        results, minibatches = [] if in_kernels else [4 * rows, 4 * rows], self.steps_per_pass() > 1
        if group.leaves:
            results = [*results, *byte_counts.rows_of_alive(rows, features, group.masked_actions, components)]
        phases = [
            byte_counts.making(n_parameters, network.first_hidden if network.module is None else [], network.orthogonal),
            [] if in_kernels else [4 * rows, *byte_counts.moments(rows, 1)],  # rewards
            [*results, *[4 * rows] * (1 if sizes.kernel_networks else 6)],  # returns
            [*results, *(byte_counts.shuffling(rows) if minibatches else [])],
            [*results, *([8 * rows] if minibatches else []), *[4 * step_rows] * 3, *computing],
            byte_counts.optimizer_step(n_parameters),
            byte_counts.finite_check(n_parameters),
        ]
        if network.remembers:
            kept += 4 * trunks * network.carry() * (rows + sizes.n_envs * group.size)
        if sizes.keeps:
            kept += self.kept_activations(group, sizes.n_envs, units, sizes.threads)
        if self.advantage == "vtrace":
            # Policy outputs, then ratios and their intermediate results.
            phases.append([4 * rows * group.action.outputs * (3 if isinstance(group.action, Box) else 2), *[4 * rows] * 12])
        if self.normalize_obs:
            phases += [byte_counts.moments(rows, features), [4 * rows * features] * 2]  # of the first rollout; the share that is clipped
        return AgentMemory(kept, 0, tuple(phases))


class AgentConfig(Protocol):
    """The settings of an agent, a dataclass, and what follows from them before the agent is built."""

    name: str
    """Name of the agent."""
    horizon: int
    """Steps of every environment between two updates."""
    groups: dict[str, Any]
    """Settings that differ for single groups."""
    acting: ClassVar[str]
    """MODULE:FUNCTION of what makes the network that acts once it is trained, f(config, group) -> `learning.acting.Acting`; config includes
    the settings of the group. Empty: only the agent itself acts, so `warprun.load` refuses its runs."""
    policies: ClassVar[PolicyKind]
    """Output of its policies, and how simulators draw actions from that."""
    requirements: ClassVar[Requirements]
    """Needs of the groups that it acts for."""

    def check(self, key: str) -> None:
        """Raise UserError, which begins with `key`.SETTING, for a value that cannot work; `key` is `agent` or `agent.groups.NAME`."""

    def check_run(self, spec: Spec, n_envs: int, total_steps: int) -> None:
        """Raise UserError if a run of `total_steps` environment steps of `n_envs` environments cannot work with these settings."""

    def resized(self, times: float) -> Self:
        """Return the settings that belong to `times` as many environments: those of its gradient steps, see `n_envs=auto`."""

    def work(self) -> float:
        """Return what an environment step with training takes at least, in steps of an evaluation: sets how often runs evaluate."""

    def fusion(self, spec: Spec) -> Fusion:
        """Return what kernels can compute of an agent with these settings."""

    def memory(self, spec: Spec, sizes: RunSizes) -> AgentMemory:
        """Return the bytes that the agent allocates; `AgentMemory()` if they are not known."""


C = TypeVar("C", bound=AgentConfig)


def group_config(config: C, group_name: str) -> C:
    """Return the settings of one group: `config` with the changes in `config.groups[group_name]`."""
    overrides = config.groups.get(group_name)
    if not overrides:
        return config
    key = f"agent.groups.{group_name}"
    _check_keys(config, overrides, key)
    for name in SHARED_BY_GROUPS:
        if name in overrides:
            raise UserError(f"{key}.{name}: all groups share agent.{name}")
    try:
        merged = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(config), overrides))
    except OmegaConfBaseException as error:
        raise UserError(f"{key}.{error.full_key}: {str(error.msg or error).splitlines()[0]}") from error
    assert isinstance(merged, type(config))
    return merged


def with_memory(config: AgentConfig, spec: Spec) -> str:
    """Return the first setting by which the policy of a group has memory, such as `agent.network.type=lstm`; empty if none has.

    Raises UserError if the actors of such a group leave episodes before they end.
    """
    found = ""
    for group in spec.groups:
        network = getattr(group_config(config, group.name), "network", None)
        if isinstance(network, LayersConfig) and network.remembers:
            found = found or f"agent.network.type={network.type}"
            if group.leaves:
                raise UserError(f"{found}: actors of group {group.name!r} leave episodes before they end; write agent.network.type=mlp")
    return found


def check_networks(config: AgentConfig, spec: Spec) -> None:
    """Raise UserError if the network of a group cannot read its observations."""
    for group in spec.groups:
        network = getattr(group_config(config, group.name), "network", None)
        if isinstance(network, LayersConfig):
            own = "network" in config.groups.get(group.name, {})
            network.check_observation(group.observation, f"agent.groups.{group.name}.network" if own else "agent.network")


def check_settings(config: AgentConfig) -> None:
    """Raise UserError for a value that cannot work, in the settings of all groups or of one."""
    config.check("agent")
    for name in config.groups:
        group_config(config, name).check(f"agent.groups.{name}")


def check_groups(config: AgentConfig, names: Iterable[str]) -> None:
    """Raise UserError if `agent.groups` names a group that the environment, with groups `names`, does not have."""
    names = list(names)
    for name in config.groups:
        if name not in names:
            raise UserError(f"agent.groups.{name}: the environment has no such group; {did_you_mean(name, names)}")


def check_shared(config: object, key: str) -> None:
    """Raise UserError for a number that cannot work, among those that on-policy and off-policy agents have."""
    at_least(config, key, 1, "horizon", "n_step")
    within(config, key, 0, 1, "gamma")
    positive(config, key, "learning_rate", "max_grad_norm")
    not_negative(config, key, "learning_rate_end")


def _check_keys(settings: object, overrides: object, key: str) -> None:
    known = list(vars(settings))
    if not isinstance(overrides, Mapping):
        raise UserError(f"{key}={overrides!r}: give settings, such as {key}.{known[0]}=...")
    for name, value in overrides.items():
        if name not in known:
            raise UserError(f"{key}.{name}: there is no such setting; {did_you_mean(name, known)}")
        if is_dataclass(getattr(settings, name)):
            _check_keys(getattr(settings, name), value, f"{key}.{name}")
