"""Run kernels on CPU threads."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import numpy as np
import torch

from warprun.kernels.bound import Call
from warprun.kernels.mlp import Inference, Network
from warprun.kernels.simd import COLUMNS, aligned_zeros
from warprun.kernels.threads import team
from warprun.simulation.arrays import ArrayPlan
from warprun.simulation.backend import Kernel
from warprun.simulation.memory import KernelValues


class CpuBackend:
    """A `KernelBackend` whose kernels run over tiles, shared between threads."""

    def __init__(self, module: ModuleType, plan: ArrayPlan, values: KernelValues, count: int) -> None:
        self._module = module
        self._plan = plan
        self._team = team(count)
        self._tiles = -(-plan.n_envs // module.LANES)
        self._arguments = tuple(
            getattr(module, name)(**{n: v.numpy() if isinstance(v, torch.Tensor) else v for n, v in named.items()})
            for name, named in values.items()
        )
        kernels = ("reset", "sample", "greedy", "step")
        self._at = np.zeros(2, np.int64)
        """Row and offset of a single kernel. It reads them from memory, because it takes longer to change an argument than to step 100
        small environments."""
        self._single = {name: Call(getattr(module, name), self._at, *self._arguments) for name in kernels}
        self._retrace = Call(module.retrace, 0, np.uint32(0), *self._arguments)
        self._rollout: Call | None = None

    def run(self, kernel: Kernel, row: int, offset: int) -> None:
        self._at[0] = row
        self._at[1] = offset
        self._team.share(self._single[kernel], self._tiles)

    def fuse(self, networks: Mapping[str, Network], activations: Mapping[str, torch.Tensor]) -> None:
        inferences = [
            self._inference(group.size, group.action.outputs, networks[group.name], activations.get(group.name))
            for group in self._plan.environment.groups
        ]
        self._rollout = Call(self._module.rollout, 0, False, np.uint32(0), *self._arguments, *inferences)

    def rollout(self, steps: int, greedy: bool) -> None:
        assert self._rollout
        self._rollout.change(0, steps)
        self._rollout.change(1, greedy)
        self._team.share(self._rollout, self._tiles)

    def retrace(self, steps: int) -> None:
        self._retrace.change(0, steps)
        self._team.share(self._retrace, self._tiles)

    def _inference(self, actors: int, outputs: int, network: Network, activations: torch.Tensor | None) -> Inference:
        """Return a network with memory for each thread: a block of activations, and the policy outputs of a tile."""
        count = self._team.count
        blocks = aligned_zeros(count, network.rows, COLUMNS)
        logits = np.zeros((count, outputs, actors, self._module.LANES), np.float32)
        kept = np.zeros((0, 0, 0, 0), np.float32) if activations is None else activations.numpy()
        return Inference(network, blocks, logits, kept)
