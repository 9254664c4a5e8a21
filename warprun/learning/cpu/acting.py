"""Policy outputs and values of a batch of observations in one kernel (CPU): torch needs a dozen small operations for them."""

from __future__ import annotations

import numpy as np
import torch

from warprun.kernels import compile as kernels  # sets up Numba, so it comes before numba itself
from warprun.kernels.mlp import Network, forward, normalize
from warprun.kernels.simd import COLUMNS, NARROW
from warprun.kernels.threads import threads as threads_of_process

NO_VALUE = np.zeros(0, np.float32)


def act_on_part(part, thread, network, obs, policy_output, value, blocks):
    """Write policy outputs [R, P], and values [R] unless `value` is empty, of the rows of a part, one row per column of a block."""
    block = blocks[thread]
    columns = block.shape[1]
    begin = part * columns
    count = min(columns, obs.shape[0] - begin)
    for c in range(count):
        for f in range(obs.shape[1]):
            block[f, c] = obs[begin + c, f]
    normalize(network.mean, network.scale, block)
    forward(network.parameters, network.layers, block)
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


SOURCE = '''"""Policy outputs and values; written by warprun."""

from numba import njit


@njit(nogil=True, cache=True, **FLAGS)
def act(first, last, thread, network, obs, policy_output, value, blocks):
    for part in range(first, last):
        act_on_part(part, thread, network, obs, policy_output, value, blocks)
'''


class FusedActing:
    """Computes what one network gives for observations."""

    def __init__(self, network: Network, threads: int) -> None:
        self.network = network
        self.threads = threads_of_process(threads)
        self.module = kernels.load_module("acting", SOURCE, {"act_on_part": act_on_part, "FLAGS": kernels.FLAGS}, kernels.merged_function)
        self.blocks = np.zeros((0, 0, 0), np.float32)
        """[thread, row, column]: activations, allocated for the first batch."""

    def __call__(self, obs: torch.Tensor, policy_output: torch.Tensor, value: torch.Tensor | None = None) -> None:
        """Write policy outputs [R, P] of `obs` [R, F], and values [R]; `value` None: the network has none. All are contiguous."""
        columns = min(COLUMNS, -(-len(obs) // NARROW) * NARROW)
        if self.blocks.shape[2] != columns:
            self.blocks = np.zeros((self.threads.count, self.network.rows, columns), np.float32)
        values = NO_VALUE if value is None else value.numpy()
        given = (self.network, obs.numpy(), policy_output.numpy(), values, self.blocks)
        self.threads.share(lambda first, last, n: self.module.act(first, last, n, *given), -(-len(obs) // columns))
