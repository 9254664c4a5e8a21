"""Settings that on-policy agents share, and what follows from them before anything is built."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from warprun.errors import UserError
from warprun.learning.settings import byte_counts
from warprun.learning.settings.agent import AgentConfig, group_config
from warprun.learning.settings.byte_counts import AgentMemory, RunSizes
from warprun.learning.settings.checks import not_negative, one_of, positive, within
from warprun.learning.settings.networks import NetworkConfig
from warprun.spec import GroupSpec, Spec

ADVANTAGES = ("gae", "nstep", "vtrace", "exarl_vtrace")


@dataclass
class OnPolicyConfig(AgentConfig):
    """Settings that all on-policy agents have."""

    acting: ClassVar[str] = "warprun.learning.acting:distribution"
    unrolls_in_kernels: ClassVar[bool] = True
    one_gradient: ClassVar[bool] = False
    """Whether an update is one gradient step, on all rows of a rollout in their order."""

    horizon: int = 16
    n_step: int = 5
    max_grad_norm: float | None = 0.5
    normalize_obs: bool = True
    network: NetworkConfig = field(default_factory=NetworkConfig)
    """The network of policy and value."""
    staggered: bool = False
    """Cut off one of the first episodes of every environment, each at another step, so that later ones do not begin and end together."""
    gae_lambda: float = 0.95
    """Lambda of generalised advantage estimation: 0 is the one-step advantage (most bias), 1 the Monte Carlo one (most variance)."""
    advantage: str = "gae"
    """How returns and advantages are computed: gae, nstep, vtrace (corrects for a policy that has learned since it acted), exarl_vtrace."""
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
    normalize_reward: bool = True
    """Shift and scale rewards so that discounted returns have mean 0 and variance 1, by running statistics."""
    return_window: int | None = None
    """With `normalize_reward`: rollouts over which older returns lose their weight in the statistics; null: all have the same weight."""
    normalize_advantage: bool = True
    """Normalize the advantages of each gradient step to mean 0 and variance 1."""

    def check(self, key: str) -> None:
        super().check(key)
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
        """Return the bytes of the activations that a rollout on CPU keeps for the gradient; 0: it keeps none.

        `units` are the numbers of a row in all layers, inputs and outputs included.
        """
        if not self.one_gradient or group.size > 1 or group.leaves:
            return 0
        return byte_counts.activations(n_envs, self.horizon, units, threads)

    def memory_of(self, group: GroupSpec, sizes: RunSizes) -> AgentMemory:
        features, components, outputs = group.observation.size, group.action.components, group.acting_outputs
        network = self.network
        rows = self.horizon * sizes.n_envs * group.size
        step_rows = -(-rows // self.steps_per_pass())
        heads = [outputs + 1] if network.shared else [outputs, 1]
        encoder = network.layout(group.observation)
        n_parameters = sum(encoder.parameters + network.parameters(encoder.outputs, head) for head in heads)
        n_parameters += group.action.reals
        units = features + network.trunks * (encoder.numbers + network.numbers()) + outputs + 1
        most = byte_counts.SLICE_ROWS * (byte_counts.SEQUENCES if network.remembers else 1)
        in_kernels = sizes.kernel_networks and not sizes.on_gpu
        if network.remembers and in_kernels and sizes.kernel_gradients:
            sequences = -(-step_rows // self.horizon)
            kept, computing = byte_counts.sequence_gradient(n_parameters, self.network_rows(group), sequences, self.horizon, sizes.threads)
        else:
            kept, computing = byte_counts.on_policy_gradient(n_parameters, units, step_rows, most, sizes)
        kept += 4 * n_parameters * (1 + byte_counts.optimizer_tensors(self.optimizer.name))
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
        if sizes.keeps and not network.remembers:
            kept += self.kept_activations(group, sizes.n_envs, units, sizes.threads)
        if self.advantage == "vtrace":
            # Policy outputs, then ratios and their intermediate results.
            phases.append([4 * rows * group.action.outputs * byte_counts.EVALUATION_TENSORS[group.action.kind], *[4 * rows] * 12])
        if self.normalize_obs:
            phases += [byte_counts.moments(rows, features), [4 * rows * features] * 2]  # of the first rollout; the share that is clipped
        return AgentMemory(kept, 0, tuple(phases))
