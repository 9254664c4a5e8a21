"""Run the kernels of an environment on a CUDA GPU or in the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch

from warprun.kernels.mlp import Network
from warprun.kernels.mlp_cuda import BlockInference, threads_for
from warprun.simulation.allocation import Array, Arrays, KernelValues, Step, StepArguments, kernel_arguments
from warprun.simulation.arrays import ArrayPlan
from warprun.simulation.cpu import Kernel
from warprun.simulation.cuda_launch import WARP, Launcher, grid_for, on_device
from warprun.simulation.cuda_layers import Packing, block_network, chosen
from warprun.simulation.trajectory import Trajectory

ENVIRONMENTS_PER_BLOCK = 32
"""Of a fused rollout with one thread per environment: small blocks, so that 10,000 environments reach every multiprocessor."""
THREADS_PER_ROLLOUT = (64, 128)
"""Least and most threads of a block in a fused rollout: between them as many as compute the widest layer at once. A block of
128 threads can be launched with any number of registers."""


class FusedLaunch(NamedTuple):
    """Networks, grid and memory of the launch of a fused rollout."""

    packed: tuple[Packing, ...]
    """For each group what writes its weights before every rollout."""
    grid: tuple[int, int]
    shared_bytes: int
    inferences: tuple[object, ...]


class CudaBackend:
    """The kernels of training, launched on torch's current stream; see `cpu.CpuBackend`."""

    def __init__(self, module: ModuleType, plan: ArrayPlan, values: KernelValues) -> None:
        self._launch = Launcher(module, plan)
        self._plan = plan
        self._values = values
        self._arguments = kernel_arguments(module, values, on_device)
        self._fused: FusedLaunch | None = None

    def run(self, kernel: Kernel, row: int, offset: int) -> None:
        self._launch.each(kernel, (row, np.uint32(offset & 0xFFFFFFFF), *self._arguments))

    def fuse(self, networks: Mapping[str, Network], taken: Trajectory) -> None:
        assert not (taken.activations or taken.carries)
        self._fused = self._fused_launch(networks)

    def rollout(self, steps: int, greedy: bool) -> None:
        assert self._fused is not None
        for pack in self._fused.packed:
            pack()
        arguments = (steps, greedy, np.uint32(0), *self._arguments, *self._fused.inferences)
        self._launch.on("rollout", self._fused.grid, arguments, self._fused.shared_bytes)

    def retrace(self, steps: int) -> None:
        self._launch.each("retrace", (steps, np.uint32(0), *self._arguments))

    def _fused_launch(self, networks: Mapping[str, Network]) -> FusedLaunch:
        """Return how `rollout` is launched."""
        groups = self._plan.environment.groups
        one_actor = all(group.size == 1 for group in groups)
        actors = {group.name: ENVIRONMENTS_PER_BLOCK if one_actor else group.size for group in groups}
        layers = chosen(self._plan.network_rows)
        columns = {name: layers.columns_for(networks[name].rows, count) for name, count in actors.items()}
        if one_actor:
            columns = dict.fromkeys(columns, min(columns.values()))
        packed, inferences = [], []
        for group in groups:
            network, policy_output = networks[group.name], self._values[f"{group.name}_Arrays"]["policy_output"]
            assert isinstance(policy_output, torch.Tensor)
            made, packing = block_network(network, group.action.outputs, columns[group.name], layers)
            packed.append(packing)
            inferences.append(on_device(BlockInference(made, policy_output.flatten())))
        least, most = THREADS_PER_ROLLOUT
        useful = max(threads_for(networks[name], count) for name, count in columns.items())
        blocks, of_actors = self._plan.n_envs, grid_for(self._plan)[1]
        if one_actor:
            blocks, of_actors = -(-self._plan.n_envs // min(columns.values())), least
        grid = (blocks, min(most, max(least, of_actors, -(-useful // WARP) * WARP)))
        shared_bytes = max(4 * networks[name].rows * layers.stride(count) for name, count in columns.items())
        return FusedLaunch(tuple(packed), grid, shared_bytes, tuple(inferences))


class CudaSteps:
    """The kernels for callers with actions of their own, launched on torch's current stream; see `cpu.CpuSteps`."""

    def __init__(self, module: ModuleType, plan: ArrayPlan, arrays: Arrays, scalars: Mapping[str, object]) -> None:
        self._launcher = Launcher(module, plan)
        device = arrays.common["began"].device
        self._counts = [torch.tensor(group.action.choices, device=device) for group in plan.environment.groups]
        """Of each group the number of values of each choice."""
        self._arguments = StepArguments(module, arrays, scalars, on_device)

    def seed(self, words: Mapping[str, np.uint32]) -> None:
        self._arguments.change(words)

    def prepare(self, step: Step) -> None:
        """Compile the kernels."""
        bound = self.bind(step)
        self.reset(0, bound)
        self.advance(0, bound)

    def bind(self, step: Step) -> list[object]:
        return self._arguments.of(step)

    def take(self, number: int, given: Array, action: Array) -> bool:
        assert isinstance(given, torch.Tensor) and isinstance(action, torch.Tensor)
        action.copy_(given)
        counts = self._counts[number]
        if not len(counts):
            return True
        choices = given.view(-1, len(counts))
        return bool(((choices >= 0) & (choices < counts)).all())

    def reset(self, now: int, bound: Sequence[object]) -> None:
        self._launch("reset", now, bound)

    def advance(self, now: int, bound: Sequence[object]) -> bool:
        self._launch("advance", now, bound)
        return True

    def _launch(self, kernel: str, now: int, bound: Sequence[object]) -> None:
        self._launcher.each(kernel, (0, np.uint32(now & 0xFFFFFFFF), *bound))
