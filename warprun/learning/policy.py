"""The policy and value of one group: network, log standard deviations, parameters in one flat tensor, observation normaliser."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from warprun.kernels.mlp import Network
from warprun.learning.cpu.actor import for_kernels, policy_layers
from warprun.learning.networks import Mlp, flatten_parameters, make_network
from warprun.learning.normalization import ObservationNormalizer, moments, moments_over_processes
from warprun.learning.settings import NetworkConfig
from warprun.learning.slices import Slices
from warprun.spec import Box, GroupSpec


class Policy:
    """What acts for one group. Rows are actors: [B, F] stands for [..., N, A, F] flattened. `normalizer` None: observations as they are."""

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
        features = group.observation.size
        # Made on the CPU whatever the device, so that a seed means the same first parameters everywhere.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            outputs = group.action.components if isinstance(group.action, Box) else group.action.outputs
            self.network = make_network(features, outputs, config)
        self.log_std = nn.ParameterList([torch.full((outputs,), config.log_std_init)] if isinstance(group.action, Box) else [])
        """Logarithms of the standard deviations of Box actions, one tensor [C]; none for discrete ones."""
        modules = nn.ModuleList([self.network, self.log_std])
        self.parameters = flatten_parameters(modules.to(device))
        """[P]; order: the network's parameters as it lists them, then, for Box, the log standard deviations."""
        self.leaves = list(modules.parameters())
        """The parameters by layer, views of `parameters`."""
        self.normalizer = normalizer

    def __call__(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (policy_output [B, P] as in the Trajectory, value [B]) of raw observations [B, F]."""
        if self.normalizer:
            obs = self.normalizer(obs)
        output, value = self.network(obs)
        if isinstance(self.space, Box):
            output = torch.cat((output, self.log_std[0].expand_as(output)), -1)
        return output, value

    def act(self, obs: torch.Tensor, policy_output: torch.Tensor, value: torch.Tensor) -> None:
        """Write policy outputs [B, P] and values [B] of `obs` [B, F] in place."""

        def act_on(part: slice) -> None:
            with torch.no_grad():
                policy_output[part], value[part] = self(obs[part])

        self.slices.map(act_on, len(obs))

    def values(self, obs: torch.Tensor) -> torch.Tensor:
        """Return the values [B] of `obs` [B, F], without gradients."""

        def values_of(part: slice) -> torch.Tensor:
            with torch.no_grad():
                return self(obs[part])[1]

        return torch.cat(self.slices.map(values_of, len(obs)))

    def observe(self, obs: torch.Tensor) -> None:
        """Add `obs` [B, F] to the statistics of the normaliser, if there is one, and normalise by them from now on."""
        if not self.normalizer:
            return
        statistics = self.normalizer.statistics
        parts = self.slices.cut(len(obs))
        for part, (mean, variance) in zip(parts, self.slices.map(lambda part: moments(obs[part]), len(obs)), strict=True):
            statistics.merge(mean, variance, part.stop - part.start)
        self.normalizer.refresh()

    def normalize_by(self, obs: torch.Tensor) -> None:
        """Normalise by the mean and variance of `obs` [B, F] from now on; the running statistics do not include them."""
        if self.normalizer:
            self.normalizer.use(*moments_over_processes(self.normalizer.statistics.communicator, *moments(obs)))

    def kernel_network(self) -> Network:
        """Return the network as kernels take it, sharing its parameters; only if `NetworkConfig.runs_in_kernels`."""
        network = self.network
        assert isinstance(network, Mlp)
        layers = policy_layers(network, self.parameters)
        rows, outputs = layers[-1].out_row + layers[-1].n_out, network.outputs
        log_std = self.parameters.numel() - (outputs if isinstance(self.space, Box) else 0)
        flat, mean, scale = for_kernels(self.parameters, self.normalizer)
        return Network(flat, np.array(layers, np.int64), rows - outputs - 1, rows - 1, rows, log_std, mean, scale)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the state by name."""
        tensors = {"parameters": self.parameters}
        tensors |= {f"buffers/{name}": buffer for name, buffer in self.network.named_buffers()}
        if self.normalizer:
            tensors |= {f"obs/{name}": tensor for name, tensor in self.normalizer.tensors().items()}
        return tensors
