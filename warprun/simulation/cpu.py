"""Run the kernels of an environment on CPU threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Literal

import numpy as np
import torch

from warprun.environment import Group
from warprun.kernels.bound import SPAN, Call, signature
from warprun.kernels.fingerprint import is_jitted
from warprun.kernels.memory import memory_of
from warprun.kernels.mlp import Inference, Network, width_of
from warprun.kernels.simd import COLUMNS, aligned_zeros
from warprun.kernels.threads import team, threads
from warprun.simulation import allocation
from warprun.simulation.allocation import Array, Arrays, KernelValues, Step, StepArguments
from warprun.simulation.arrays import ArrayPlan
from warprun.simulation.trajectory import Trajectory

Kernel = Literal["reset", "sample", "greedy", "step"]
ROUNDS = 5
"""Steps with which one thread and all are timed."""


class CpuBackend:
    """The kernels of training on CPU threads, which share tiles, with their arrays bound; `cuda.CudaBackend` has the same methods.

    Time counts from the array `began`, which the engine writes: the launches of two rollouts are then the same, as CUDA graphs need it.
    """

    def __init__(self, module: ModuleType, plan: ArrayPlan, values: KernelValues, count: int) -> None:
        self._module = module
        self._plan = plan
        self._team = team(count)
        self._tiles = -(-plan.n_envs // module.LANES)
        self._arguments = allocation.kernel_arguments(module, values, as_numpy)
        self._at = np.zeros(2, np.int64)
        """Row and offset of a single kernel. It reads them from memory, because it takes longer to change an argument than to step 100
        small environments."""
        self._single = {name: Call(getattr(module, name), self._at, *self._arguments) for name in ("reset", "sample", "greedy", "step")}
        self._retrace = Call(module.retrace, 0, np.uint32(0), *self._arguments)
        self._rollout: Call | None = None

    def run(self, kernel: Kernel, row: int, offset: int) -> None:
        """Run a kernel over all environments, on row `row` of the trajectory, `offset` steps after `began`."""
        self._at[0] = row
        self._at[1] = offset
        self._team.share(self._single[kernel], self._tiles)

    def fuse(self, networks: Mapping[str, Network], taken: Trajectory) -> None:
        """Prepare `rollout` with these networks, one for each group, which must fit (`cuda_layers.rows_fit`).

        A rollout fills `Trajectory.activations` and `Trajectory.carries`, which only kernels on CPU do.
        """
        inferences = [self._inference(group, networks[group.name], taken) for group in self._plan.environment.groups]
        self._rollout = Call(self._module.rollout, 0, False, np.uint32(0), *self._arguments, *inferences)

    def rollout(self, steps: int, greedy: bool) -> None:
        """Run `steps` steps from row 0 and `began` on, with actions of the networks of `fuse`: sampled or the best ones."""
        assert self._rollout
        self._rollout.change(steps=steps, deterministic=greedy)
        self._team.share(self._rollout, self._tiles)

    def retrace(self, steps: int) -> None:
        """Run `steps` steps from row 0 and `began` on, with the actions that are in the trajectory."""
        self._retrace.change(steps=steps)
        self._team.share(self._retrace, self._tiles)

    def _inference(self, group: Group, network: Network, taken: Trajectory) -> Inference:
        """Return a network with memory for each thread: blocks of activations, and the policy outputs of a tile."""
        count, lanes, size = self._team.count, self._module.LANES, network.carry.size
        parts = -(-group.size // (COLUMNS // width_of(lanes))) if size else 1
        blocks = aligned_zeros(count, parts, network.rows * COLUMNS)
        logits = np.zeros((count, group.action.outputs, group.size, lanes), np.float32)
        activations, carry = taken.activations.get(group.name), taken.carries.get(group.name)
        kept = np.zeros((0, 0, 0, 0), np.float32) if activations is None else activations.numpy()
        first = np.zeros((0, 0), np.float32) if carry is None else carry.first.flatten(0, 1).numpy()
        after = np.zeros((0, 0, 0), np.float32) if carry is None else carry.after.flatten(1, 2).numpy()
        return Inference(network, blocks, logits, kept, first, after, memory_of(network, count, parts))


class CpuSteps:
    """The kernels for callers with actions of their own on CPU threads; `cuda.CudaSteps` has the same methods.

    Threads share the tiles if that is faster: to wake another thread of Python takes 20 to 50 microseconds, as long as a step of 10,000
    small environments.
    """

    def __init__(self, module: ModuleType, plan: ArrayPlan, arrays: Arrays, scalars: Mapping[str, object], count: int) -> None:
        self._tiles = -(-plan.n_envs // module.LANES)
        self._threads = threads(min(count, self._tiles))
        self._alone = self._threads.count == 1
        self._reset, self._advance, self._begin = module.reset, module.advance, module.begin
        groups = plan.environment.groups
        self._takes = [getattr(module, f"take_{group.name}") if group.action.choices else _copy for group in groups]
        self._arguments = StepArguments(module, arrays, scalars, as_numpy)
        self._envs = np.zeros(self._tiles * module.LANES, np.int32)
        """Environments whose episode has ended: each thread lists its own, beginning at its first one."""
        # A tile for each thread.
        batch = replace(plan, n_envs=self._threads.count * module.LANES)
        in_batch = allocation.allocate(batch, torch.device("cpu"), {})
        in_batch.common.update({name: array for name, array in arrays.common.items() if name == "vary_bounds"})
        self._batch = StepArguments(module, in_batch, scalars, as_numpy)
        self._batch_step = allocation.allocate_step(batch, allocation.actions_of(batch, np.zeros), np.zeros)
        self._batches = self._batch.of(self._batch_step)

    def prepare(self, step: Step) -> None:
        """Compile the kernels and find out whether one thread is faster than all."""
        bound, none = self.bind(step), np.uint32(0)
        self.reset(0, bound)
        self._advance = _compiled_for(self._advance, 0, 0, 0, none, *bound)
        self._begin = _compiled_for(self._begin, 0, 0, 0, none, *bound)
        if self._alone:
            return
        spent = {}
        for self._alone in (True, False):
            times = []
            for now in range(ROUNDS):
                began = time.perf_counter()
                self.advance(now, bound)
                times.append(time.perf_counter() - began)
            spent[self._alone] = min(times)
        self._alone = spent[True] <= spent[False]

    def seed(self, words: Mapping[str, np.uint32]) -> None:
        """Draw random numbers with another seed from now on. Arguments that were bound before keep the old one."""
        for changed in (self._arguments, self._batch):
            changed.change(words)
        self._batches = self._batch.of(self._batch_step)

    def bind(self, step: Step) -> tuple[object, ...]:
        """Return the arguments of the kernels for the arrays of a step."""
        return (self._envs, *self._arguments.of(step), *self._batches)

    def take(self, number: int, given: Array, action: Array) -> bool:
        """Copy actions of a caller for group `number`, both arrays flat; return False if some do not exist, which then must not be used."""
        return bool(self._takes[number](given, action))

    def reset(self, now: int, bound: Sequence[object]) -> None:
        """Begin an episode in every environment with the random numbers of step `now`; write `obs` and `mask`."""
        Call(self._reset, np.array([0, now], np.int64), *bound[1 : 1 + len(self._batches)])(0, self._tiles, 0)

    def advance(self, now: int, bound: Sequence[object]) -> bool:
        """Take step `now`, and begin the next episode where one ends; return False if the host knows that none has ended."""
        number = np.uint32(now & 0xFFFFFFFF)
        if self._alone:
            return self._work(0, self._tiles, 0, number, bound)
        ends = [False] * self._threads.count

        def work(begin: int, end: int, thread: int) -> None:
            ends[thread] = self._work(begin, end, thread, number, bound)

        self._threads.share(work, self._tiles)
        return any(ends)

    def _work(self, begin: int, end: int, thread: int, now: np.uint32, bound: Sequence[object]) -> bool:
        over = self._advance(begin, end, thread, now, *bound)
        if over:
            self._begin(begin, over, thread, now, *bound)
        return over > 0


def _compiled_for(kernel: Callable[..., int], *arguments: object) -> Callable[..., int]:
    """Return a function that calls `kernel` with arguments of the types of these, which it does not check again.

    Numba looks at the types of all arguments in every call, which takes longer than many kernels. Calls `kernel` once.
    """
    kernel(*arguments)
    if not is_jitted(kernel):
        return kernel
    entry: Callable[..., int] = kernel.overloads[tuple(signature(arguments[SPAN:]))].entry_point
    return entry


def _copy(given: Array, action: Array) -> bool:
    assert isinstance(given, np.ndarray) and isinstance(action, np.ndarray)
    np.copyto(action, given, casting="same_kind")
    return True


def as_numpy(value: object) -> object:
    """Return tensors as numpy arrays on the same memory, other values as they are."""
    return value.numpy() if isinstance(value, torch.Tensor) else value
