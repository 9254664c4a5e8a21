"""Policy outputs and values of a batch of observations in one kernel (CPU): torch needs a dozen small operations for them."""

from __future__ import annotations

import numpy as np
import torch

from warprun.kernels.bound import Call, kernel_module
from warprun.kernels.compile import merged_function
from warprun.kernels.mlp import Network, compute
from warprun.kernels.simd import COLUMNS, aligned_zeros
from warprun.kernels.threads import team
from warprun.kernels.vectors import NARROW

NO_VALUE = torch.zeros(0)


def act_on_part(part, thread, network, obs, policy_output, value, blocks, kept, step):
    """Write policy outputs [R, P], and values [R] unless `value` is empty, of the rows of a part, one row per column of a block.

    The block stays in `kept`, if that is not empty: `Trajectory.activations`, flat. `step` [2]: which one of how many.
    """
    begin = part * COLUMNS
    count = min(COLUMNS, obs.shape[0] - begin)
    width = -(-count // NARROW) * NARROW
    memory = blocks[thread]
    if kept.size > 0:
        memory = kept[(part * step[1] * COLUMNS + step[0] * width) * network.rows :]
    block = memory[: network.rows * width].reshape(network.rows, width)
    for c in range(count):
        for f in range(obs.shape[1]):
            block[f, c] = obs[begin + c, f]
    compute(network, block, blocks[thread][:0])
    outputs = network.value_row - network.policy_row
    for c in range(count):
        for k in range(outputs):
            policy_output[begin + c, k] = block[network.policy_row + k, c]
    if network.log_std > 0:
        for c in range(count):
            for k in range(outputs, policy_output.shape[1]):
                policy_output[begin + c, k] = network.parameters[network.log_std + k - outputs]
    if value.size > 0:
        for c in range(count):
            value[begin + c] = block[network.value_row, c]


class CpuActing:
    """Computes what one network gives for observations."""

    def __init__(self, network: Network, threads: int) -> None:
        self.network = network
        self.team = team(threads)
        self.module = kernel_module("acting", {"act": [act_on_part]}, merged_function)
        self._blocks = aligned_zeros(self.team.count, network.rows * COLUMNS)
        """[thread, row * COLUMNS]: activations of a block, as wide as its rows need."""
        self._step = np.array([0, 1])
        self._call: Call | None = None
        self._places: dict[str, tuple[int, int]] = {}
        """Addresses and lengths of the tensors that `_call` has."""

    def __call__(self, obs: torch.Tensor, policy_output: torch.Tensor, value: torch.Tensor | None = None) -> None:
        """Write policy outputs [R, P] of `obs` [R, F], and values [R]; `value` None: the network has none. All are contiguous."""
        self._act({"obs": obs, "policy_output": policy_output, "value": NO_VALUE if value is None else value, "kept": NO_VALUE})

    def keep(self, obs: torch.Tensor, policy_output: torch.Tensor, value: torch.Tensor, kept: torch.Tensor, row: int) -> None:
        """Do the same for row `row` of a trajectory, and keep what is computed in `kept`, see `Trajectory.activations`."""
        self._step[:] = row, kept.shape[1]
        self._act({"obs": obs, "policy_output": policy_output, "value": value, "kept": kept.view(-1)})

    def _act(self, tensors: dict[str, torch.Tensor]) -> None:
        places = {name: (tensor.data_ptr(), len(tensor)) for name, tensor in tensors.items()}
        if self._call is None:
            obs, policy_output, value, kept = (tensor.numpy() for tensor in tensors.values())
            self._call = Call(self.module.act, self.network, obs, policy_output, value, self._blocks, kept, self._step)
        else:
            self._call.change(**{name: tensors[name].numpy() for name, place in places.items() if place != self._places[name]})
        self._places = places
        rows = len(tensors["obs"])
        self.team.share(self._call, -(-rows // COLUMNS), 2.0 * self.network.parameters.size * rows)
