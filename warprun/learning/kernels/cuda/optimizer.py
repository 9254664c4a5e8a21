"""Clipping and a step of Adam (CUDA): torch needs a dozen small operations for them.

The kernel that makes a gradient leaves sums of squares of its parts (`sums.Begun`); of another gradient `squares` does. Every block of the
step adds these sums, in the same order, so that no block waits for another.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from warprun.kernels.mlp_cuda import read, write
from warprun.learning.formulas import adam, averaged, between
from warprun.learning.kernels.cuda.sums import Begun, BlockSums, add_up
from warprun.learning.optimizers import Adam
from warprun.math import sqrt
from warprun.simulation.cuda_launch import launch, module_for, on_device, want

THREADS = 256
PART = 4096
"""Numbers of a gradient whose squares a block adds."""

float32, float64 = np.float32, np.float64


class State(NamedTuple):
    """The tensors that a step changes, and the settings of Adam; kernels get device arrays in place of the tensors."""

    parameters: torch.Tensor
    """[P]."""
    target: torch.Tensor
    """[P]: parameters that follow, or any if none do."""
    mean: torch.Tensor
    """[P]."""
    square: torch.Tensor
    """[P]."""
    steps: torch.Tensor
    """[1] float64: steps so far."""
    learning_rate: torch.Tensor
    """[1] float64."""
    shown: torch.Tensor
    """[K+1]: means over gradient steps, of terms of the loss and, last, of the norm of the gradient before clipping."""
    max_norm: np.float32
    beta1: float
    beta2: float
    eps: float


def sum_of_squares(numbers, first, end, step):
    """Return the sum of the squares of the numbers `first`, `first` + `step`, ... before `end`."""
    total = float32(0.0)
    for m in range(first, end, step):
        x = read(numbers, m)
        total += x * x
    return total


def sum_of(numbers, first, step):
    """Return the sum of the numbers `first`, `first` + `step`, ..."""
    total = float32(0.0)
    for m in range(first, numbers.size, step):
        total += read(numbers, m)
    return total


def power(base, exponent):
    """Return `base` to a whole `exponent`, in the precision of `base`, by squaring."""
    result = base / base
    while exponent > 0:
        if exponent % 2 == 1:
            result *= base
        base *= base
        exponent //= 2
    return result


def corrections(state, t):
    """Return the learning rate over 1 - beta1^t, and 1 over 1 - beta2^t, of step t."""
    correction1 = float64(1.0) - power(float64(state.beta1), t)
    correction2 = float64(1.0) - power(float64(state.beta2), t)
    return float32(state.learning_rate[0] / correction1), float32(float64(1.0) / correction2)


def move(state, m, g, step, square_scale, tau):
    """Take the step of parameter `m` by its element `g` of the clipped gradient, and move its target by `tau`."""
    keep1, keep2 = float32(float64(1.0) - state.beta1), float32(float64(1.0) - state.beta2)
    mean, square, change = adam(
        g, read(state.mean, m), read(state.square, m), keep1, float32(state.beta2), keep2, step, square_scale, float32(state.eps)
    )
    write(state.mean, m, mean)
    write(state.square, m, square)
    parameter = read(state.parameters, m) - change
    write(state.parameters, m, parameter)
    if tau > float32(0.0):
        write(state.target, m, between(read(state.target, m), parameter, tau))


KERNEL = '''"""Clipping and a step of Adam on CUDA; written by warprun."""

from numba import cuda, float32

THREADS, PART = {threads}, {part}


@cuda.jit(cache=CACHE, fastmath=False)
def squares(gradient, begun):
    thread, first = cuda.threadIdx.x, cuda.blockIdx.x * PART
    sums = cuda.shared.array(THREADS, float32)
    sums[thread] = sum_of_squares(gradient, first + thread, min(first + PART, gradient.size), THREADS)
    add_up(sums, 0, thread, THREADS)
    if thread == 0:
        begun.squares[cuda.blockIdx.x] = sums[0]
        if cuda.blockIdx.x == 0:
            begun.number[0] = begun.steps[0] + 1.0


@cuda.jit(cache=CACHE, fastmath=False)
def step(gradient, begun, state, tau, terms, number):
    thread = cuda.threadIdx.x
    sums = cuda.shared.array(THREADS, float32)
    sums[thread] = sum_of(begun.squares, thread, THREADS)
    add_up(sums, 0, thread, THREADS)
    if thread == 0:
        norm = sqrt(sums[0])
        scale = state.max_norm / (norm + float32(1e-6))
        # From here on the sums are numbers for all threads.
        sums[0] = scale if scale < float32(1.0) else float32(1.0)
        sums[1], sums[2] = corrections(state, int(begun.number[0]))
        if cuda.blockIdx.x == 0:
            state.steps[0] = begun.number[0]
            last = state.shown.size - 1
            for k in range(last):
                state.shown[k] = averaged(state.shown[k], terms[k], number)
            state.shown[last] = averaged(state.shown[last], norm, number)
    cuda.syncthreads()
    m = cuda.blockIdx.x * THREADS + thread
    if m < gradient.size:
        move(state, m, read(gradient, m) * sums[0], sums[1], sums[2], tau)
'''


class CudaAdam:
    """Moves the parameters of one network; allocates its memory once."""

    def __init__(
        self,
        optimizer: Adam,
        parameters: torch.Tensor,
        learning_rate: torch.Tensor,
        max_norm: float | None,
        target: torch.Tensor | None = None,
        sums: BlockSums | None = None,
        terms: int = 0,
    ) -> None:
        """`learning_rate` is a float64 tensor [], which every step reads; `max_norm` None: gradients are not clipped. `target` [P] follows
        the parameters; `sums` make the gradients, with so many `terms` of which `step_of_many` returns means."""
        config, steps = optimizer.config, optimizer.steps.view(1)
        self.shown, self._zeros = torch.zeros(2, terms + 1, device=parameters.device)
        self.state = State(
            parameters=parameters,
            target=parameters if target is None else target,
            mean=optimizer.mean,
            square=optimizer.square,
            steps=steps,
            learning_rate=learning_rate.view(1),
            shown=self.shown,
            max_norm=np.float32(math.inf if max_norm is None else max_norm),
            beta1=config.beta1,
            beta2=config.beta2,
            eps=config.eps,
        )
        self.begun = Begun(self.shown.new_empty(-(-len(parameters) // PART)), steps, torch.zeros_like(steps), len(parameters))
        self._sums = sums
        if sums:
            sums.begun = sums.begun._replace(steps=steps, size=len(parameters))
        functions = (add_up, averaged, sum_of, sum_of_squares, corrections, move, read, sqrt)
        source = KERNEL.format(threads=THREADS, part=PART)
        self.module = module_for("optimizer_cuda", source, {function.__name__: function for function in functions})

    def compile_ahead(self) -> None:
        """Let another process compile the kernel (`kernels.ahead`)."""
        gradient, begun = on_device(self.state.parameters), on_device(self.begun)
        if not self._sums:
            want(self.module, "squares", (gradient, begun))
        want(self.module, "step", (gradient, begun, on_device(self.state), float32(0.0), on_device(self.shown), 1))

    def step(self, gradient: torch.Tensor, tau: float = 0.0) -> torch.Tensor:
        """Move the parameters against `gradient` [P], clipped, and the target by `tau` to them.

        Return the norm before clipping, [], which the next call overwrites.
        """
        self._step(gradient, tau, self._zeros, 1)
        return self.shown[-1]

    def step_of_many(self, gradient: torch.Tensor, terms: torch.Tensor, mean: torch.Tensor | None, number: int) -> torch.Tensor:
        """Do `step` and return means over `number` gradient steps, [K+1], see `Operations`, always in the same memory."""
        if mean is not None and mean is not self.shown:
            self.shown.copy_(mean)
        self._step(gradient, 0.0, terms, number)
        return self.shown

    def _step(self, gradient: torch.Tensor, tau: float, terms: torch.Tensor, number: int) -> None:
        numbers, begun = on_device(gradient), self.begun
        if self._sums and self._sums.hold(gradient):
            begun = self._sums.begun
        else:
            launch(self.module, "squares", (len(begun.squares), THREADS), (numbers, on_device(begun)))
        grid = (-(-len(gradient) // THREADS), THREADS)
        given = (numbers, on_device(begun), on_device(self.state), float32(tau), on_device(terms), number)
        launch(self.module, "step", grid, given)
