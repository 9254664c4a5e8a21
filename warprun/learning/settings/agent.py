"""Settings that all agents have, what follows from them before anything is built, and the settings of single groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, ClassVar, Self, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from warprun.errors import UserError, did_you_mean
from warprun.learning.settings import byte_counts
from warprun.learning.settings.byte_counts import AgentMemory, RunSizes
from warprun.learning.settings.checks import at_least, below_one, not_negative, one_of, positive, within
from warprun.learning.settings.networks import GATES, LayersConfig, RecurrentLayer, rows_of_recurrent
from warprun.learning.settings.plan import LOSS_ROWS, POLICY_ROWS, Fusion
from warprun.spec import GroupSpec, PolicyKind, Space, Spec

OPTIMIZERS = ("adam", "rmsprop", "rmsprop_tf")
SHARED_BY_GROUPS = ("name", "horizon", "staggered", "groups")
"""Settings that cannot differ between groups."""


@dataclass(frozen=True)
class Requirements:
    """The needs of an agent as to the groups that it acts for."""

    spaces: tuple[type[Space], ...] = (Space,)
    """Action spaces that it can act in; `Space`: all."""
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
class AgentConfig:
    """The settings that all agents have, and what follows from them before an agent is built."""

    acting: ClassVar[str] = ""
    """MODULE:FUNCTION of what makes the network that acts once it is trained, f(config, group) -> `learning.acting.Acting`; config includes
    the settings of the group. Empty: only the agent itself acts, so `warprun.load` refuses its runs."""
    policies: ClassVar[PolicyKind] = "sampled"
    """Output of its policies, and how simulators draw actions from that: by default distributions, from which actions are sampled."""
    unrolls_in_kernels: ClassVar[bool] = False
    """Whether kernels on a CPU compute rollouts and gradients of its networks with memory."""
    requirements: ClassVar[Requirements] = Requirements()
    """Needs of the groups that it acts for."""

    name: str = ""
    """Name of the agent."""
    horizon: int = 1
    """Steps of every environment between two updates."""
    learning_rate: float = 1e-3
    """Learning rate at the start."""
    learning_rate_end: float | None = None
    """Learning rate at the end of the run, reached linearly; null: constant."""
    gamma: float = 0.99
    """Discount factor per step."""
    n_step: int = 1
    """Rewards in an n-step return before it bootstraps from the value."""
    max_grad_norm: float | None = None
    """A gradient with a larger norm is scaled down to this norm; null: no clipping."""
    normalize_obs: bool = False
    """Normalize observations to running mean 0 and variance 1, and clip them at 10; `obs/clipped_share` is the clipped share."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """How the gradient moves the parameters."""
    network: LayersConfig = field(default_factory=LayersConfig)
    """The networks."""
    groups: dict[str, Any] = field(default_factory=dict)
    """Settings that differ for single groups, such as {planner: {gamma: 0.9, network: {hidden: [32]}}}."""

    def check(self, key: str) -> None:
        """Raise UserError, which begins with `key`.SETTING, for a value that cannot work; `key` is `agent` or `agent.groups.NAME`."""
        at_least(self, key, 1, "horizon", "n_step")
        within(self, key, 0, 1, "gamma")
        positive(self, key, "learning_rate", "max_grad_norm")
        not_negative(self, key, "learning_rate_end")
        self.optimizer.check(f"{key}.optimizer")
        self.network.check(f"{key}.network")

    def check_run(self, spec: Spec, n_envs: int, total_steps: int) -> None:
        """Raise UserError if a run of `total_steps` environment steps of `n_envs` environments cannot work with these settings."""

    def resized(self, times: float) -> Self:
        """Return the settings for `times` as many environments, with as many rows in each gradient step (`n_envs=auto`): here the same."""
        return self

    def of_rank(self, rank: int, size: int) -> Self:
        """Return the settings of process `rank` of `size` that learn together: here the same."""
        return self

    def work(self) -> float:
        """Return what an environment step with training takes at least, in steps of an evaluation: sets how often runs evaluate."""
        return 1.0

    def acting_outputs(self, group: GroupSpec) -> int:
        """Return the numbers that the acting network gives for one actor."""
        return group.acting_outputs

    def no_kernel_gradients(self) -> str:
        """Return why kernels cannot compute the gradients; empty if they can."""
        return ""

    def fusion(self, spec: Spec) -> Fusion:
        """Return what kernels can compute of an agent with these settings."""
        groups = [(group, group_config(self, group.name)) for group in spec.groups]
        recurrent = rows_of_recurrent(own.network for _, own in groups)
        on_gpu = next(filter(None, (own.network.no_kernels() for _, own in groups)), "")
        why_not = next(filter(None, (own.network.no_kernel_layers() for _, own in groups)), "") if self.unrolls_in_kernels else on_gpu
        if why_not:
            return Fusion(None, {}, why_not, on_gpu, *recurrent)
        reason = next(filter(None, (own.no_kernel_gradients() for _, own in groups)), "")
        rows = {group.name: own.network_rows(group) for group, own in groups}
        return Fusion(rows, {group.name: own.gradient_rows(group) for group, own in groups}, reason, on_gpu, *recurrent)

    def network_rows(self, group: GroupSpec) -> int:
        """Return the rows of a block of activations of the acting network: inputs, units, outputs and a value."""
        return group.observation.size + self.network.block_numbers() * self.network.trunks + self.acting_outputs(group) + 1

    def gradient_rows(self, group: GroupSpec) -> int:
        """Return the rows of a block on a GPU that computes a gradient, see `Fusion`."""
        return self.network_rows(group) + LOSS_ROWS + POLICY_ROWS + 2 * group.action.components

    def carry_bytes(self, spec: Spec, states: int) -> int:
        """Return the bytes of what the policies remember in so many states of an environment."""
        networks = [(group.size, group_config(self, group.name).network) for group in spec.groups]
        return states * sum(4 * actors * network.trunks * network.carry() for actors, network in networks)

    def memory(self, spec: Spec, sizes: RunSizes) -> AgentMemory:
        """Return the bytes that the agent allocates."""
        found = byte_counts.of_groups(group_config(self, group.name).memory_of(group, sizes) for group in spec.groups)
        if not sizes.recurrent_slopes:
            return found
        # Layers of the same sizes share their memory.
        kept = (byte_counts.recurrent_gradient(each.inputs, each.units, GATES[each.kind]) for each in self.recurrent_layers(spec))
        return found._replace(networks=found.networks + sum(kept))

    def recurrent_layers(self, spec: Spec) -> list[RecurrentLayer]:
        """Return the recurrent layers of all networks, those with the same sizes once."""
        groups = [(group, group_config(self, group.name)) for group in spec.groups]
        return sorted({layer for group, own in groups for n in own.network_inputs(group) for layer in own.network.recurrent_layers(n)})

    def network_inputs(self, group: GroupSpec) -> list[int]:
        """Return the inputs behind the encoder of each network of a group."""
        return [self.network.layout(group.observation).outputs]

    def memory_of(self, group: GroupSpec, sizes: RunSizes) -> AgentMemory:
        """Return the bytes that the agent allocates for a group, whose settings these are; `AgentMemory()` if they are not known."""
        return AgentMemory()


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
        network = group_config(config, group.name).network
        if network.remembers:
            of_group, is_own = f"agent.groups.{group.name}.network.type", "network" in config.groups.get(group.name, {})
            given = f"{of_group if is_own else 'agent.network.type'}={network.type}"
            found = found or given
            if group.leaves:
                other = of_group if is_own or len(spec.groups) > 1 else "agent.network.type"
                raise UserError(f"{given}: actors of group {group.name} leave episodes before they end; write {other}=mlp")
    return found


def check_networks(config: AgentConfig, spec: Spec) -> None:
    """Raise UserError if the network of a group cannot read its observations."""
    for group in spec.groups:
        key = f"agent.groups.{group.name}.network" if "network" in config.groups.get(group.name, {}) else "agent.network"
        group_config(config, group.name).network.check_observation(group.observation, key)


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


def _check_keys(settings: object, overrides: object, key: str) -> None:
    known = list(vars(settings))
    if not isinstance(overrides, Mapping):
        raise UserError(f"{key}={overrides!r}: give settings, such as {key}.{known[0]}=...")
    for name, value in overrides.items():
        if name not in known:
            raise UserError(f"{key}.{name}: there is no such setting; {did_you_mean(name, known)}")
        if is_dataclass(getattr(settings, name)):
            _check_keys(getattr(settings, name), value, f"{key}.{name}")
