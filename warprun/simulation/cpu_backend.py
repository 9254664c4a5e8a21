"""Run kernels on CPU threads."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import numpy as np
import torch

from warprun.kernels.mlp import Inference, Network
from warprun.kernels.simd import COLUMNS, NARROW
from warprun.kernels.threads import threads
from warprun.simulation.arrays import ArrayPlan
from warprun.simulation.backend import Kernel
from warprun.simulation.memory import KernelValues


class CpuBackend:
    """A `KernelBackend` whose kernels run over tiles, shared between threads."""

    def __init__(self, module: ModuleType, plan: ArrayPlan, values: KernelValues, count: int) -> None:
        self._module = module
        self._plan = plan
        self._threads = threads(count)
        self._tiles = -(-plan.n_envs // module.LANES)
        self._arguments = tuple(
            getattr(module, name)(**{n: v.numpy() if isinstance(v, torch.Tensor) else v for n, v in named.items()})
            for name, named in values.items()
        )
        self._inferences: tuple[Inference, ...] = ()

    def run(self, kernel: Kernel, row: int, offset: int) -> None:
        function, now = getattr(self._module, kernel), np.uint32(offset & 0xFFFFFFFF)
        self._threads.share(lambda begin, end, _: function(begin, end, row, now, *self._arguments), self._tiles)

    def fuse(self, networks: Mapping[str, Network]) -> None:
        self._inferences = tuple(
            self._inference(group.size, group.action.outputs, networks[group.name]) for group in self._plan.environment.groups
        )

    def rollout(self, steps: int, greedy: bool) -> None:
        function, given, now = self._module.rollout, (*self._arguments, *self._inferences), np.uint32(0)
        self._threads.share(lambda begin, end, thread: function(begin, end, thread, steps, greedy, now, *given), self._tiles)

    def retrace(self, steps: int) -> None:
        function, now = self._module.retrace, np.uint32(0)
        self._threads.share(lambda begin, end, _: function(begin, end, steps, now, *self._arguments), self._tiles)

    def _inference(self, actors: int, outputs: int, network: Network) -> Inference:
        """Return a network with memory for each thread: a block of activations, and the policy outputs of a tile."""
        width = self._module.LANES
        # Empty columns take as long as others.
        few = self._plan.n_envs <= NARROW < width or width * actors <= NARROW
        columns = NARROW if few else COLUMNS
        together = max(1, columns // width)
        padded = -(-actors // together) * together
        blocks = np.zeros((self._threads.count, network.rows, columns), np.float32)
        logits = np.zeros((self._threads.count, outputs, padded, width), np.float32)
        return Inference(network, blocks, logits)
