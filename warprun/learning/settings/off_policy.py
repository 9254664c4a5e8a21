"""Settings that off-policy agents share, and what follows from them before anything is built."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from warprun.errors import UserError
from warprun.learning.settings import byte_counts
from warprun.learning.settings.agent import AgentConfig, OptimizerConfig, Requirements, group_config
from warprun.learning.settings.byte_counts import AgentMemory, RunSizes
from warprun.learning.settings.checks import at_least, positive, within
from warprun.learning.settings.plan import LOSS_ROWS
from warprun.spec import GroupSpec, PolicyKind, Spec


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


@dataclass
class OffPolicyConfig(AgentConfig):
    """Settings that all off-policy agents have."""

    policies: ClassVar[PolicyKind] = "explored"
    """Networks give values or actions, around which actions are explored."""
    requirements: ClassVar[Requirements] = Requirements(leaving=False)
    critics: ClassVar[int] = 0
    """Critics that judge the actions of the acting network; 0: it gives values itself."""

    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(eps=1e-8))
    utd_ratio: float = 1.0
    """Gradient steps per environment step, for any number of environments: 0.01 is one gradient step per 100 environment steps."""
    learning_starts: int = 1000
    """Environment steps with random actions before the first gradient step."""
    batch_size: int = 256
    """Transitions in a gradient step; of networks with memory, sequences of transitions."""
    target_update_interval: int = 1
    """Gradient steps between two updates of the target networks."""
    tau: float = 0.005
    """Step size of an update of the target networks towards the trained ones: 1 copies them."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """Replay memory."""

    def check(self, key: str) -> None:
        super().check(key)
        at_least(self, key, 1, "batch_size", "target_update_interval")
        at_least(self, key, 0, "learning_starts")
        positive(self, key, "utd_ratio")
        within(self, key, 0, 1, "tau")
        self.replay.check(f"{key}.replay")
        if self.batch_size > self.replay.capacity:
            raise UserError(f"{key}.batch_size={self.batch_size}: the buffer holds only {key}.replay.capacity={self.replay.capacity}")
        if self.critics and not self.network.last_hidden:  # the action comes after encoder and memory
            name = "after" if self.network.remembers else "hidden"
            raise UserError(f"{key}.network.{name}=[]: values would be linear in the action; give hidden layers, such as [64]")

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

    def of_rank(self, rank: int, size: int) -> Self:
        """Return the settings of a process, with its parts of a batch and of replay memory."""

        def parts(own: OffPolicyConfig) -> tuple[int, int]:
            return share_of(own.batch_size, rank, size), share_of(own.replay.capacity, rank, size)

        groups = {}
        for name, changes in self.groups.items():
            batch_size, capacity = parts(group_config(self, name))
            groups[name] = {**changes, "batch_size": batch_size, "replay": {**changes.get("replay", {}), "capacity": capacity}}
        batch_size, capacity = parts(self)
        return replace(self, batch_size=batch_size, replay=replace(self.replay, capacity=capacity), groups=groups)

    def work(self) -> float:
        """Return the rows that gradient steps learn from for every environment step, at least 1."""
        return max(1.0, self.utd_ratio * self.batch_size * self.steps_drawn())

    def no_kernel_gradients(self) -> str:
        return "" if self.optimizer.name == "adam" else f"agent.optimizer.name={self.optimizer.name}"

    def network_inputs(self, group: GroupSpec) -> list[int]:
        return [inputs for inputs, _ in self.trained_networks(group)]

    def trained_networks(self, group: GroupSpec) -> list[tuple[int, int]]:
        """Return, for every network that is trained for a group, its inputs behind the encoder, and its outputs."""
        inputs = self.network.layout(group.observation).outputs
        return [(inputs, self.acting_outputs(group)), *[(inputs + group.action.components, 1)] * self.critics]

    def gradient_rows(self, group: GroupSpec) -> int:
        # The acting network and the critics, their inputs twice, for the slopes; two terms; what the loss keeps of a transition.
        (inputs, outputs), *critics = self.trained_networks(group)
        units = sum(self.network.first_hidden)
        rows = 2 * inputs + units + outputs
        if critics:
            rows += 2 * critics[0][0] + len(critics) * (units + 1)
        return rows + 2 + max(self.loss_rows(group), LOSS_ROWS)

    def loss_rows(self, group: GroupSpec) -> int:
        """Return how many rows of a block on a GPU the losses keep of a transition at most."""
        return 1 + self.acting_outputs(group)

    def loss_numbers(self) -> int:
        """Return how many numbers the loss of a transition has, if there are more than a few."""
        return 0

    def memory_of(self, group: GroupSpec, sizes: RunSizes) -> AgentMemory:
        features, components = group.observation.size, group.action.components
        network, remembered = self.network, self.network.carry()
        seen = 2 * features * (1 if group.observation.bytes else byte_counts.FLOAT)
        replay = byte_counts.ring(self.replay.capacity, seen + byte_counts.FLOAT * remembered, components, self.replay.prioritized)
        rows = self.batch_size * self.steps_drawn()
        batch = rows * 4 * (2 * features + components + 8)
        kept = n_parameters = 0
        checked = max(0 if group.observation.bytes else features, remembered)  # bytes are finite
        phases: list[byte_counts.Phase] = [byte_counts.finite_check(self.replay.capacity * checked)]
        encoder = network.layout(group.observation)  # counted for each critic, as a memory is
        for inputs, outputs in self.trained_networks(group):
            count = encoder.parameters + network.parameters(inputs, outputs)
            units = encoder.numbers + inputs + network.numbers() + outputs
            kept += 4 * count * (2 + byte_counts.optimizer_tensors(self.optimizer.name))
            phases.append(byte_counts.finite_check(count))
            if sizes.kernel_gradients and sizes.on_gpu:
                blocks = byte_counts.cuda_blocks(count, 64, byte_counts.MULTIPROCESSORS)
                kept += 4 * count * (min(blocks, -(-self.batch_size // 4)) + 5)  # weights in two orders, twice, and the sum
            elif sizes.kernel_gradients:
                kept += (
                    byte_counts.shares_of(self.batch_size, byte_counts.OFF_POLICY_TILES) * 4 * count
                    + sizes.threads * 4 * units * byte_counts.COLUMNS * 4
                )
            else:
                of_loss = [4 * rows * self.loss_numbers()] * byte_counts.LOSS_TENSORS
                phases += [[rows * units * 4] * 3 + [4 * count] * 2 + of_loss, byte_counts.optimizer_step(count)]
            n_parameters += count
        phases.append(byte_counts.making(2 * n_parameters, network.first_hidden if network.module is None else [], False))
        if self.normalize_obs:
            stored = self.horizon * sizes.n_envs * group.size
            phases += [byte_counts.moments(stored, features), [4 * stored * features] * 2]  # statistics; the share that is clipped
        return AgentMemory(kept + batch, replay, tuple(phases))


def share_of(total: int, rank: int, size: int) -> int:
    """Return the share that process `rank` of `size` has of `total`: the first ones have one more if it does not come out even."""
    return total // size + (rank < total % size)
