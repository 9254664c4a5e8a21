"""Settings that several agents share, what follows from them before anything is built, and the settings of single groups. No torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, ClassVar, Protocol, Self, TypeVar

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from warprun.errors import UserError, did_you_mean
from warprun.learning import memory
from warprun.learning.memory import AgentMemory, RunSizes
from warprun.learning.network_settings import LayersConfig, NetworkConfig
from warprun.learning.plan import Fusion
from warprun.learning.setting_checks import at_least, below_one, not_negative, one_of, positive, within
from warprun.renamed import new_name
from warprun.spec import Box, Discrete, GroupSpec, MultiDiscrete, PolicyKind, Spec

OPTIMIZERS = ("adam", "rmsprop", "rmsprop_tf")
ADVANTAGES = ("gae", "nstep", "vtrace", "exarl_vtrace")
SHARED_BY_GROUPS = ("name", "horizon", "groups")
"""Settings that cannot differ between groups."""


@dataclass(frozen=True)
class Requirements:
    """What an agent needs of the groups that it acts for."""

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
    """What makes the network that acts, see `AgentConfig`."""
    policies: ClassVar[PolicyKind] = "sampled"
    """Policies give distributions, from which actions are sampled."""
    requirements: ClassVar[Requirements] = Requirements()
    """What the agent needs of the groups that it acts for."""
    one_gradient: ClassVar[bool] = False
    """Whether an update is one gradient step, on all rows of a rollout in their order."""

    name: str = ""
    """Name of the agent."""
    horizon: int = 16
    """Steps of every environment between two updates."""
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
    """Divide rewards by the running standard deviation of the discounted return, and subtract its running mean from values."""
    normalize_advantage: bool = True
    """Normalize the advantages of each gradient step to mean 0 and variance 1."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """The network of policy and value."""
    groups: dict[str, Any] = field(default_factory=dict)
    """Settings that differ for single groups, such as {planner: {entropy_coef: 0.5, network: {hidden: [32]}}}."""

    def check(self, key: str) -> None:
        """Raise UserError for a value that cannot work; `key` is `agent` or `agent.groups.NAME`."""
        _check_shared(self, key)
        within(self, key, 0, 1, "gae_lambda")
        not_negative(self, key, "entropy_coef", "entropy_coef_end", "value_coef")
        one_of(self, key, "advantage", ADVANTAGES)
        positive(self, key, "rho_bar", "c_bar")

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
        return memory.activations(n_envs, self.horizon, units, threads)

    def resized(self, times: float) -> Self:
        """Return the settings for `times` as many environments, with as many rows in each gradient step; as they are by default."""
        return self

    def work(self) -> float:
        """Return 1: the simulator may take most of the time."""
        return 1.0

    def no_kernel_gradients(self) -> str:
        """Return why kernels cannot compute the gradients; empty if the agent gives the derivatives of its loss."""
        return "the agent gives no derivatives of its loss"

    def fusion(self, spec: Spec) -> Fusion:
        """Return what kernels can compute of an agent with these settings."""
        rows: dict[str, int] = {}
        reason = ""
        for group in spec.groups:
            own = group_config(self, group.name)
            if not own.network.runs_in_kernels:
                return Fusion(None, False, own.network.no_kernels())
            trunks = 1 if own.network.shared else 2
            rows[group.name] = group.observation.size + sum(own.network.hidden) * trunks + _acting_outputs(group) + 1
            reason = reason or own.no_kernel_gradients()
        return Fusion(rows, not reason, reason)

    def memory(self, spec: Spec, sizes: RunSizes) -> AgentMemory:
        """Return the bytes that the agent allocates."""
        return memory.of_groups(group_config(self, group.name)._memory_of(group, sizes) for group in spec.groups)

    def _memory_of(self, group: GroupSpec, sizes: RunSizes) -> AgentMemory:
        features, components, outputs = group.observation.size, group.action.components, _acting_outputs(group)
        network = self.network
        rows = self.horizon * sizes.n_envs * group.size
        step_rows = -(-rows // self.steps_per_pass())
        trunks = 1 if network.shared else 2
        heads = [outputs + 1] if network.shared else [outputs, 1]
        n_parameters = sum(network.parameters(features, head) for head in heads)
        n_parameters += components if isinstance(group.action, Box) else 0
        units = features + trunks * network.numbers() + outputs + 1
        kept, computing = memory.on_policy_gradient(n_parameters, units, step_rows, sizes)
        kept += 4 * n_parameters * (1 + memory.optimizer_tensors(self.optimizer.name))
        in_kernels, gae = sizes.kernel_networks and not sizes.on_gpu, self.advantage == "gae"
        if in_kernels:
            kept += memory.on_policy_results(rows, group.size, gae, self.normalize_reward)
        # Advantages and returns are kept while gradient steps are taken, and the order of the rows of minibatches.
        results, minibatches = [] if in_kernels and gae else [4 * rows, 4 * rows], self.steps_per_pass() > 1
        if group.leaves:
            results = [*results, *memory.rows_of_alive(rows, features, group.masked_actions, components)]
        phases = [
            memory.making(n_parameters, network.hidden if network.module is None else [], network.orthogonal),
            [] if in_kernels else [4 * rows, *memory.moments(rows, 1)],  # rewards
            [*results, *[4 * rows] * (1 if sizes.kernel_networks else 6)],  # returns
            [*results, *(memory.shuffling(rows) if minibatches else [])],
            [*results, *([8 * rows] if minibatches else []), *[4 * step_rows] * 3, *computing],
            memory.optimizer_step(n_parameters),
            memory.finite_check(n_parameters),
        ]
        if network.remembers:
            kept += 4 * trunks * network.carry() * (rows + sizes.n_envs * group.size)
        if sizes.keeps:
            kept += self.kept_activations(group, sizes.n_envs, units, sizes.threads)
        if self.advantage == "vtrace":
            # Policy outputs, then ratios and their intermediate results.
            phases.append([4 * rows * group.action.outputs * (3 if isinstance(group.action, Box) else 2), *[4 * rows] * 12])
        if self.normalize_obs:
            phases += [memory.moments(rows, features), [4 * rows * features] * 2]  # of the first rollout; the share that is clipped
        return AgentMemory(kept, 0, tuple(phases))


@dataclass
class ReplayConfig:
    """Replay memory: the transitions that gradient steps draw from."""

    capacity: int = 100_000
    """Most transitions, of all actors, that are stored; new ones replace the oldest."""
    prioritized: bool = False
    """Draw transitions in proportion to their priority (their last temporal-difference error); false: uniformly."""
    alpha: float = 0.6
    """Exponent of the priorities: 0 draws uniformly, 1 in proportion to the error."""
    beta: float = 0.4
    """Exponent of the importance-sampling weights at the start: 0 corrects none of the bias of priorities, 1 all of it."""
    beta_end: float = 1.0
    """The exponent at the end of the run, reached linearly."""
    eps: float = 1e-6
    """Added to the error, so that every transition can be drawn."""
    sequence: int = 40
    """Networks with memory: steps of a sequence; a gradient step learns from all of them."""
    burn_in: int = 20
    """Networks with memory: steps before each sequence, from which memory is brought up to date without learning."""
    eta: float = 0.9
    """Networks with memory: weight of the largest error of a sequence in its priority; the mean of its errors has the rest."""

    def check(self, key: str) -> None:
        """Raise UserError for a value that cannot work; `key` is the key of these settings."""
        at_least(self, key, 1, "capacity", "sequence")
        at_least(self, key, 0, "burn_in")
        within(self, key, 0, 1, "alpha", "beta", "beta_end", "eta")
        positive(self, key, "eps")


IN_SEQUENCES = ("batch_size", "utd_ratio", "learning_starts", "target_update_interval", "tau")
"""Settings that count other things for policies with memory, which learn from sequences, and so have other defaults for these."""
SEQUENCES = 32
"""Of a batch."""
TIMES_LEARNED = 20.0
"""How often a gradient step learns from a transition, on average over the run."""
LEAST_START = 1000
"""Environment steps before the first gradient step; more if the sequences of a batch have more steps."""


@dataclass
class OffPolicyConfig:
    """Settings that all off-policy agents have."""

    acting: ClassVar[str] = ""
    """What makes the network that acts, see `AgentConfig`."""
    policies: ClassVar[PolicyKind] = "explored"
    """Networks give values or actions, around which actions are explored."""
    requirements: ClassVar[Requirements] = Requirements()
    """What the agent needs of the groups that it acts for."""

    name: str = ""
    """Name of the agent."""
    horizon: int = 1
    """Steps of every environment between two updates."""
    utd_ratio: float = 1.0
    """Gradient steps per environment step, for any number of environments: 0.01 is one gradient step per 100 environment steps."""
    learning_starts: int = 1000
    """Environment steps with random actions before the first gradient step."""
    batch_size: int = 256
    """Transitions in a gradient step; of networks with memory, sequences of transitions."""
    learning_rate: float = 1e-3
    """Learning rate at the start."""
    learning_rate_end: float | None = None
    """Learning rate at the end of the run, reached linearly; null: constant."""
    gamma: float = 0.99
    """Discount factor per step."""
    n_step: int = 1
    """Rewards in an n-step target before it bootstraps from the value."""
    target_update_interval: int = 1
    """Gradient steps between two updates of the target networks."""
    tau: float = 0.005
    """Step size of an update of the target networks towards the trained ones: 1 copies them."""
    max_grad_norm: float | None = None
    """A gradient with a larger norm is scaled down to this norm; null: no clipping."""
    normalize_obs: bool = False
    """Normalize observations to running mean 0 and variance 1, and clip them at 10; `obs/clipped_share` is the clipped share."""
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(eps=1e-8))
    """How the gradient moves the parameters."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """Replay memory."""
    network: LayersConfig = field(default_factory=LayersConfig)
    """The networks."""
    groups: dict[str, Any] = field(default_factory=dict)
    """Settings that differ for single groups, such as {planner: {gamma: 0.9, network: {hidden: [32]}}}."""

    def check(self, key: str) -> None:
        """Raise UserError for a value that cannot work; `key` is `agent` or `agent.groups.NAME`."""
        _check_shared(self, key)
        at_least(self, key, 1, "batch_size", "target_update_interval")
        at_least(self, key, 0, "learning_starts")
        positive(self, key, "utd_ratio")
        within(self, key, 0, 1, "tau")
        self.replay.check(f"{key}.replay")
        if self.batch_size > self.replay.capacity:
            raise UserError(f"{key}.batch_size={self.batch_size}: the buffer holds only {key}.replay.capacity={self.replay.capacity}")

    def check_run(self, spec: Spec, n_envs: int, total_steps: int) -> None:
        """Raise UserError if nothing would be learned, or if a step has more transitions than replay memory holds."""
        if self.learning_starts >= total_steps:
            raise UserError(
                f"agent.learning_starts={self.learning_starts}: the run has only total_steps={total_steps}, so nothing would be learned"
            )
        for group in spec.groups:
            own, actors = group_config(self, group.name), n_envs * group.size
            capacity, steps = own.replay.capacity, own.steps_drawn()
            if actors > capacity:
                raise UserError(f"agent.replay.capacity={capacity}: a single step of n_envs={n_envs} has {actors} transitions")
            sum_of = f"burn_in + sequence + n_step - 1 = {steps} steps"
            if actors * steps > capacity:
                raise UserError(f"agent.replay.capacity={capacity}: give {actors * steps} or more, {sum_of} of {actors} actors")
            if own.network.remembers and own.learning_starts < n_envs * steps:
                given = own.learning_starts
                raise UserError(f"agent.learning_starts={given}: give {n_envs * steps} or more, {sum_of} of n_envs={n_envs}")

    def steps_drawn(self) -> int:
        """Return the steps in a row that a batch has of an actor; 1 without memory."""
        return self.replay.burn_in + self.replay.sequence + self.n_step - 1 if self.network.remembers else 1

    def has_memory(self) -> bool:
        """Return whether the policy of a group has memory."""
        return any(own.network.remembers for own in (self, *(group_config(self, name) for name in self.groups)))

    def in_sequences(self, n_envs: int, free: Collection[str]) -> Self:
        """Return the settings with those of `free`, names of IN_SEQUENCES, as policies with memory need them, for every group that has one.

        A batch is SEQUENCES sequences, and there are as few of them as it takes to learn from a transition TIMES_LEARNED times. Target
        networks follow after each of these few gradient steps, by a part of 0.01 as in `conf/tuned/t_maze_dqn.yaml`.
        """
        groups = {}
        for name, changes in self.groups.items():
            own, left = group_config(self, name), [key for key in free if key not in changes]
            groups[name] = {**changes, **own._fitted(n_envs, left)}
        return replace(self, groups=groups, **self._fitted(n_envs, free))

    def _fitted(self, n_envs: int, free: Collection[str]) -> dict[str, Any]:
        """Return the settings `free` of one group."""
        if not self.network.remembers:
            return {name: getattr(self, name) for name in free}
        batch = SEQUENCES if "batch_size" in free else self.batch_size
        found = {
            "batch_size": batch,
            "utd_ratio": float(f"{TIMES_LEARNED / (batch * self.replay.sequence):.3g}"),
            "learning_starts": max(LEAST_START, n_envs * self.steps_drawn()),
            "target_update_interval": 1,
            "tau": 0.01 if "target_update_interval" in free else self.tau,
        }
        return {name: found[name] for name in free}

    def resized(self, times: float) -> Self:
        """Return the settings for `times` as many environments, of which gradient steps do not depend: `batch_size` sets their rows."""
        return self

    def work(self) -> float:
        """Return the rows that gradient steps learn from for every environment step, at least 1."""
        return max(1.0, self.utd_ratio * self.batch_size * self.steps_drawn())

    def no_kernel_gradients(self) -> str:
        """Return why CPU kernels cannot compute the gradients; empty if they can."""
        return "" if self.optimizer.name == "adam" else f"agent.optimizer.name={self.optimizer.name}"

    def fusion(self, spec: Spec) -> Fusion:
        """Return what kernels can compute of an agent with these settings."""
        rows: dict[str, int] = {}
        reason = ""
        for group in spec.groups:
            own = group_config(self, group.name)
            if not own.network.runs_in_kernels:
                return Fusion(None, False, own.network.no_kernels())
            rows[group.name] = group.observation.size + sum(own.network.hidden) + own.acting_outputs(group) + 1
            reason = reason or own.no_kernel_gradients()
        return Fusion(rows, not reason, reason, "kernels compute gradients of off-policy agents on CPU only")

    def acting_outputs(self, group: GroupSpec) -> int:
        """Return the numbers that the acting network gives for one actor: values of actions, or an action."""
        return _acting_outputs(group)

    def trained_networks(self, group: GroupSpec) -> list[tuple[int, int]]:
        """Return, for every network that is trained for a group, its inputs and outputs."""
        return [(group.observation.size, self.acting_outputs(group))]

    def loss_numbers(self) -> int:
        """Return how many numbers the loss of a transition has, if there are more than a few."""
        return 0

    def memory(self, spec: Spec, sizes: RunSizes) -> AgentMemory:
        """Return the bytes that the agent allocates."""
        return memory.of_groups(group_config(self, group.name)._memory_of(group, sizes) for group in spec.groups)

    def _memory_of(self, group: GroupSpec, sizes: RunSizes) -> AgentMemory:
        features, components = group.observation.size, group.action.components
        network, remembered = self.network, self.network.carry()
        replay = memory.ring(self.replay.capacity, 2 * features + remembered, components, self.replay.prioritized)
        rows = self.batch_size * self.steps_drawn()
        batch = rows * 4 * (2 * features + components + 8)
        kept = n_parameters = 0
        phases: list[memory.Phase] = [memory.finite_check(self.replay.capacity * max(features, remembered))]
        for inputs, outputs in self.trained_networks(group):
            count, units = network.parameters(inputs, outputs), inputs + network.numbers() + outputs
            kept += 4 * count * (2 + memory.optimizer_tensors(self.optimizer.name))
            phases.append(memory.finite_check(count))
            if sizes.kernel_gradients:
                kept += -(-self.batch_size // memory.OFF_POLICY_SHARE_ROWS) * 4 * count + sizes.threads * 4 * units * memory.COLUMNS * 4
            else:
                of_loss = [4 * rows * self.loss_numbers()] * memory.LOSS_TENSORS
                phases += [[rows * units * 4] * 3 + [4 * count] * 2 + of_loss, memory.optimizer_step(count)]
            n_parameters += count
        phases.append(memory.making(2 * n_parameters, network.hidden if network.module is None else [], False))
        if self.normalize_obs:
            stored = self.horizon * sizes.n_envs * group.size
            phases += [memory.moments(stored, features), [4 * stored * features] * 2]  # statistics; the share that is clipped
        return AgentMemory(kept + batch, replay, tuple(phases))


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
    """What its policies give, and how simulators draw actions from that."""
    requirements: ClassVar[Requirements]
    """What it needs of the groups that it acts for."""

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
    overrides = config.groups.get(group_name, {})
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


def share_of(total: int, rank: int, size: int) -> int:
    """Return the share that process `rank` of `size` has of `total`: the first ones have one more if it does not come out even."""
    return total // size + (rank < total % size)


def shared(config: C, rank: int, size: int) -> C:
    """Return the settings of process `rank` of `size` that learn together, with its parts of a batch and of replay memory."""
    if not isinstance(config, OffPolicyConfig) or size == 1:
        return config

    def of(batch_size: int, capacity: int) -> tuple[int, int]:
        return share_of(batch_size, rank, size), share_of(capacity, rank, size)

    groups = {}
    for name, changes in config.groups.items():
        own = group_config(config, name)
        batch_size, capacity = of(own.batch_size, own.replay.capacity)
        groups[name] = {**changes, "batch_size": batch_size, "replay": {**changes.get("replay", {}), "capacity": capacity}}
    batch_size, capacity = of(config.batch_size, config.replay.capacity)
    return replace(config, batch_size=batch_size, replay=replace(config.replay, capacity=capacity), groups=groups)


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


def _check_shared(config: OnPolicyConfig | OffPolicyConfig, key: str) -> None:
    """Raise UserError for a value that cannot work, among the settings that on-policy and off-policy agents share."""
    at_least(config, key, 1, "horizon", "n_step")
    within(config, key, 0, 1, "gamma")
    positive(config, key, "learning_rate", "max_grad_norm")
    not_negative(config, key, "learning_rate_end")
    config.optimizer.check(f"{key}.optimizer")
    config.network.check(f"{key}.network")


def _acting_outputs(group: GroupSpec) -> int:
    """Return the numbers that the acting network gives for one actor: logits, values of actions, means or actions."""
    return group.action.components if isinstance(group.action, Box) else group.action.outputs


def _check_keys(settings: object, overrides: object, key: str) -> None:
    known = list(vars(settings))
    if not isinstance(overrides, Mapping):
        raise UserError(f"{key}={overrides!r}: give settings, such as {key}.{known[0]}=...")
    for name, value in overrides.items():
        setting = key.split(".", 3)[3:]  # below agent.groups.GROUP
        new = None if name in known else new_name(".".join(["agent", *setting, str(name)]), known)
        if new:
            raise UserError(f"{key}.{name} is now {key}.{new.rpartition('.')[2]}")
        if name not in known:
            raise UserError(f"{key}.{name}: there is no such setting; {did_you_mean(name, known)}")
        if is_dataclass(getattr(settings, name)):
            _check_keys(getattr(settings, name), value, f"{key}.{name}")
