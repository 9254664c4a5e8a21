"""Environments that a caller steps: actions in, results out, one step at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np
import torch

from warprun.environment import Environment
from warprun.errors import UserError
from warprun.kernels.driver import SIMULATOR_LIMIT
from warprun.processes import usable_cores
from warprun.simulation import allocation
from warprun.simulation.allocation import Array, Step
from warprun.simulation.arrays import ArrayPlan
from warprun.simulation.codegen.targets import CPU, target_for
from warprun.simulation.cpu import CpuSteps
from warprun.simulation.device import Device
from warprun.simulation.kernel_module import draw_scalars, errors_of_kernels, load

if TYPE_CHECKING:
    from warprun.simulation.cuda import CudaSteps


class BoundStep(NamedTuple):
    """The arrays of a step, and the arguments of the kernels that fill them."""

    step: Step
    arguments: Sequence[object]


class VectorEngine:
    """Steps `n_envs` environments of kernel functions with the actions of a caller.

    Arguments are those of `KernelEngine`, and so are the episodes: the same seed and actions give the same numbers. Actions are in the
    environment's units. An environment whose episode ends begins the next one in the same step. Nothing looks for faults: numbers that are
    not finite are the caller's to find. Raises UserError for environments that do not compile.
    """

    def __init__(
        self,
        environment: Environment,
        name: str,
        *,
        device: Device,
        n_envs: int,
        params: NamedTuple,
        tables: NamedTuple | None = None,
        vary: Mapping[str, tuple[float, float]] | None = None,
        threads: int | None = None,
        announce: Callable[[str], None] = lambda line: None,
    ) -> None:
        vary = vary or {}
        if device.kind == "cudasim" and n_envs > SIMULATOR_LIMIT:
            raise UserError(f"device=cudasim takes at most {SIMULATOR_LIMIT} environments, it is slow; num_envs={n_envs}")
        self.environment = environment
        self.spec = environment.spec
        self.device = device
        self.n_envs = n_envs
        self.steps = 0
        """Steps and resets since the seed was set: the time of random draws."""
        self.plan = ArrayPlan(environment, target_for(environment, device.kind), n_envs, 1, tuple(vary), by_caller=True)
        built = load(self.plan, name, device, params=params, tables=tables, vary=vary, announce=announce)
        self.functions = built.functions
        self.arrays = allocation.allocate(self.plan, device.torch, {}, vary)
        scalars = {"n_envs": n_envs} | draw_scalars(0) | built.values
        self._kernels: CpuSteps | CudaSteps
        if self.plan.target is CPU:
            self._kernels = CpuSteps(built.module, self.plan, self.arrays, scalars, threads or usable_cores())
        else:
            from warprun.simulation.cuda import CudaSteps

            self._kernels = CudaSteps(built.module, self.plan, self.arrays, scalars)

    def new_actions(self) -> tuple[Array, ...]:
        """Return an array [N * A * C] for the actions of each group, zeroed."""
        return allocation.actions_of(self.plan, self._zeros)

    def new_step(self, actions: tuple[Array, ...]) -> BoundStep:
        """Return arrays for a step with these actions; a reset with a seed invalidates them."""
        step = allocation.allocate_step(self.plan, actions, self._zeros)
        return BoundStep(step, self._kernels.bind(step))

    def seed(self, seed: int) -> None:
        """Begin time anew with a seed; steps that were made before are invalid from now on."""
        self.steps = 0
        for name, array in self.arrays.by_name().items():
            if name != "vary_bounds":
                array.zero_()  # array fields may keep what `reset` does not write
        self._kernels.seed(draw_scalars(seed))

    def take(self, number: int, given: Array, action: Array) -> None:
        """Copy actions of a caller for group `number`, both arrays flat. Raises UserError if some do not exist."""
        if not self._kernels.take(number, given, action):
            space = self.spec.groups[number].action
            raise UserError(f"some actions are not in {space}; their least is {int(given.min())} and their greatest {int(given.max())}")

    def reset(self, bound: BoundStep) -> None:
        """Begin new episodes; write their observations and masks."""
        # As `KernelEngine.reset`: not the draws of the next step, in which episodes may begin, too.
        with errors_of_kernels(self.device, self.functions):
            self._kernels.reset(self.steps - 1, bound.arguments)
        self.steps += 1

    def advance(self, bound: BoundStep) -> bool:
        """Take a step with its actions, and write its results; return False if it is known that no episode has ended."""
        now = self.steps - 1
        self.steps += 1
        return self._kernels.advance(now, bound.arguments)

    def prepare(self) -> None:
        """Compile the kernels or load them from the cache. Call `seed` and `reset` afterwards. Raises UserError."""
        with errors_of_kernels(self.device, self.functions):
            self._kernels.prepare(self.new_step(self.new_actions()).step)

    def __reduce__(self) -> NoReturn:
        """Raise UserError: a copy's arrays would not be those that the arguments of its kernels refer to."""
        raise UserError("compiled environments cannot be copied or pickled; make another one, and reset it with the same seed")

    def _zeros(self, size: int, dtype: str) -> Array:
        if self.plan.target is CPU:
            return np.zeros(size, dtype)
        return torch.zeros(size, dtype=getattr(torch, dtype), device=self.device.torch)
