"""The policy and value of one group: network, log standard deviations, parameters in one flat tensor, observation normaliser."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from warprun.kernels.mlp import Network
from warprun.learning.kernels.layers import carry_numbers, for_kernels, policy_layers
from warprun.learning.networks import StochasticPolicy, buffers, flatten_parameters, seeded, training
from warprun.learning.normalization import ObservationNormalizer, moments, moments_over_processes
from warprun.learning.settings.networks import NetworkConfig
from warprun.learning.slices import Slices
from warprun.spec import GroupSpec


class ActorCriticPolicy:
    """The policy and value of one group. Rows are actors: [B, F] stands for [..., N, A, F] flattened."""

    def __init__(
        self,
        group: GroupSpec,
        config: NetworkConfig,
        normalizer: ObservationNormalizer | None,
        device: torch.device,
        slices: Slices,
        seed: int,
    ) -> None:
        self.space = group.action
        self.slices = slices
        self.module = seeded(seed, lambda: StochasticPolicy(group, config).eval())
        # Rows change what a network keeps, such as running statistics: in the same order for any number of threads.
        self.slices_of_gradient = slices.undivided() if any(True for _ in self.module.buffers()) else slices
        self.network, self.log_std = self.module.network, self.module.log_std
        self.parameters = flatten_parameters(self.module.to(device))
        """[P]; order: the network's parameters as it lists them, then, for Box, the log standard deviations."""
        self.layer_parameters = list(self.module.parameters())
        """The parameters by layer, views of `parameters`."""
        self.normalizer = normalizer
        self.carry = self.module.carry
        """Numbers H that it remembers of an episode, for each actor; 0: it has no memory."""

    def __call__(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (policy_output [B, P] as in the Trajectory, value [B]) of raw observations [B, F]; only without memory."""
        if self.normalizer:
            obs = self.normalizer(obs)
        found: tuple[torch.Tensor, torch.Tensor] = self.module(obs)
        return found

    def unroll(self, obs: torch.Tensor, carry: torch.Tensor, begins: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (policy_output [T, B, P], value [T, B], carry [B, H]) of raw observations [T, B, F] of steps that follow `carry` [B, H].

        `begins` [T, B] bool: an episode begins with this step, and what was remembered is forgotten.
        """
        return self.module.unroll(self.normalizer(obs) if self.normalizer else obs, carry, begins)

    def along(self, obs: torch.Tensor, carry: torch.Tensor, begins: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (policy_output [B*T, P], value [B*T]) of sequences of raw observations [B, T, F]; `begins` [B, T], else as `unroll`."""
        output, value, _ = self.unroll(obs.transpose(0, 1), carry, begins.T)
        return output.transpose(0, 1).flatten(0, 1), value.T.flatten()

    def act_along(
        self, obs: torch.Tensor, carry: torch.Tensor, begins: torch.Tensor, policy_output: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Write policy outputs [T*B, P] and values [T*B] of the steps [T, B, F] that follow `carry` [B, H], see `unroll`."""
        steps, actors = begins.shape
        outputs, values = policy_output.view(steps, actors, -1), value.view(steps, actors)

        def act_on(part: slice) -> None:
            with torch.no_grad():
                outputs[:, part], values[:, part], _ = self.unroll(obs[:, part], carry[part], begins[:, part])

        self.slices.of_samples(steps).map(act_on, actors)

    def act_with_memory(
        self, obs: torch.Tensor, policy_output: torch.Tensor, value: torch.Tensor, before: torch.Tensor, after: torch.Tensor
    ) -> None:
        """Write policy outputs [B, P], values [B] and the carry `after` [B, H] a step with observations `obs` [B, F] and carry `before`."""
        begins = torch.zeros(1, len(obs), dtype=torch.bool, device=obs.device)

        def act_on(part: slice) -> None:
            with torch.no_grad():
                (policy_output[part],), (value[part],), after[part] = self.unroll(obs[None, part], before[part], begins[:, part])

        self.slices.map(act_on, len(obs))

    def act(self, obs: torch.Tensor, policy_output: torch.Tensor, value: torch.Tensor) -> None:
        """Write policy outputs [B, P] and values [B] of `obs` [B, F] in place."""

        def act_on(part: slice) -> None:
            with torch.no_grad():
                policy_output[part], value[part] = self(obs[part])

        self.slices.map(act_on, len(obs))

    def values(self, obs: torch.Tensor, carry: torch.Tensor | None = None) -> torch.Tensor:
        """Return the values [B] of `obs` [B, F] after `carry` [B, H] (None: it has no memory), without gradients."""
        none = obs.new_zeros((len(obs), 0)) if carry is None else carry
        begins = torch.zeros(1, len(obs), dtype=torch.bool, device=obs.device)

        def values_of(part: slice) -> torch.Tensor:
            with torch.no_grad():
                return self.unroll(obs[None, part], none[part], begins[:, part])[1][0]

        return torch.cat(self.slices.map(values_of, len(obs)))

    def gradient(self, terms: Callable[[slice], tuple[torch.Tensor, ...]], samples: int, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the flat gradient [P] of a loss over samples of `steps` rows each, and its terms [K], see `Slices.gradient`."""
        with training(self.module):
            return self.slices_of_gradient.of_samples(steps).gradient(terms, self.layer_parameters, samples)

    def observe(self, obs: torch.Tensor) -> None:
        """Add `obs` [B, F] to the statistics of the normaliser, if there is one, and normalise by them from now on."""
        if not self.normalizer:
            return
        statistics = self.normalizer.statistics
        parts = self.slices.cut(len(obs))
        found = self.slices.map(lambda part: moments(obs[part]), len(obs))
        statistics.merge([(*own, part.stop - part.start) for part, own in zip(parts, found, strict=True)])
        self.normalizer.refresh()

    def normalize_by(self, obs: torch.Tensor) -> None:
        """Normalise by the mean and variance of `obs` [B, F] from now on; the running statistics do not include them."""
        if self.normalizer:
            mean, variance, _ = moments_over_processes(self.normalizer.statistics.communicator, *moments(obs), len(obs))
            self.normalizer.use(mean, variance)

    def kernel_network(self) -> Network:
        """Return the network as kernels take it, sharing its parameters; only if it has no `no_kernel_layers`."""
        network = self.network
        layers = policy_layers(network, self.parameters)
        rows, outputs = layers[-1].out_row + layers[-1].n_out, network.outputs
        log_std = self.parameters.numel() - self.space.reals
        flat, mean, scale = for_kernels(self.parameters, self.normalizer)
        table, carry = np.array(layers, np.int64), carry_numbers(network)
        return Network(flat, table, rows - outputs - 1, rows - 1, rows, log_std, mean, scale, carry)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the state by name."""
        tensors = {"parameters": self.parameters} | buffers(self.network)
        if self.normalizer:
            tensors |= {f"obs/{name}": tensor for name, tensor in self.normalizer.tensors().items()}
        return tensors
