"""Policy outputs and values of a batch of observations in one kernel (CPU): torch needs a dozen small operations for them."""

from __future__ import annotations

import numpy as np
import torch

from warprun.kernels.bound import Call, Function, kernel_module
from warprun.kernels.compile import merged_function
from warprun.kernels.memory import memory_of, step_after, store_carry
from warprun.kernels.mlp import Network, compute, width_of
from warprun.kernels.simd import COLUMNS, aligned_zeros
from warprun.kernels.threads import team

NO_VALUE = torch.zeros(0)


def act_on_part(part, thread, network, obs, policy_output, value, blocks, kept, step):
    """Write policy outputs [R, P], and values [R] unless `value` is empty, of the rows of a part, one row per column of a block.

    The block stays in `kept`, if that is not empty: `Trajectory.activations`, flat. `step` [2]: which one of how many.
    """
    begin = part * COLUMNS
    count = min(COLUMNS, obs.shape[0] - begin)
    width = width_of(count)
    memory = blocks[thread]
    if kept.size > 0:
        memory = kept[(part * step[1] * COLUMNS + step[0] * width) * network.rows :]
    block = memory[: network.rows * width].reshape(network.rows, width)
    load(obs, begin, count, block)
    compute(network, block, blocks[thread][:0])
    store(network, block, begin, count, policy_output, value)


def remember_on_part(part, thread, network, obs, policy_output, value, blocks, before, after, memory):
    """Do the same for a network with memory: what the rows remember is `before` [R, C], and `after` the step."""
    begin = part * COLUMNS
    count = min(COLUMNS, obs.shape[0] - begin)
    width = width_of(count)
    block = blocks[thread][: network.rows * width].reshape(network.rows, width)
    load(obs, begin, count, block)
    step_after(network, block, before, begin, count, memory, thread)
    store(network, block, begin, count, policy_output, value)
    for c in range(count):
        store_carry(network, block, c, memory.ages[thread, c], after[begin + c])


def load(obs, begin, count, block):
    """Write observations to the columns of a block."""
    for c in range(count):
        for f in range(obs.shape[1]):
            block[f, c] = obs[begin + c, f]


def store(network, block, begin, count, policy_output, value):
    """Write what the columns of a block give to rows, see `act_on_part`."""
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
        kernel: dict[str, list[Function]] = {"remember": [remember_on_part]} if network.carry.size else {"act": [act_on_part]}
        self.module = kernel_module("acting", kernel, merged_function)
        self._memory = memory_of(network, self.team.count, 1)
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

    def remember(
        self, obs: torch.Tensor, policy_output: torch.Tensor, value: torch.Tensor, before: torch.Tensor, after: torch.Tensor
    ) -> None:
        """Do the same for a policy with memory, which writes its carries `after` [R, C] from those `before` [R, C]."""
        self._act({"obs": obs, "policy_output": policy_output, "value": value, "before": before, "after": after})

    def _act(self, tensors: dict[str, torch.Tensor]) -> None:
        places = {name: (tensor.data_ptr(), len(tensor)) for name, tensor in tensors.items()}
        if self._call is None:
            obs, policy_output, value, *rest = (tensor.numpy() for tensor in tensors.values())
            given = self.network, obs, policy_output, value, self._blocks, *rest
            remembers = self.network.carry.size > 0
            self._call = Call(self.module.remember, *given, self._memory) if remembers else Call(self.module.act, *given, self._step)
        else:
            self._call.change(**{name: tensors[name].numpy() for name, place in places.items() if place != self._places[name]})
        self._places = places
        rows = len(tensors["obs"])
        self.team.share(self._call, -(-rows // COLUMNS), 2.0 * self.network.parameters.size * rows)
