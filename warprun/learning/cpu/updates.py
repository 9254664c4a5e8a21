"""Gradient steps of DQN, DDPG and TD3 in kernels (CPU), equal to the torch of `dqn` and `deterministic`.

Batches of replay are small and so are the networks: torch would spend its time between operations. A batch is cut into shares by a rule
that knows only its size, a thread computes one share after the other in blocks of COLUMNS transitions (`fused_losses`), and one kernel adds
the gradients in the order of the shares, clips them, moves the parameters by Adam and the target after them.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from warprun.kernels import compile as kernels  # sets up Numba, so it comes before numba itself
from warprun.kernels.mlp import Layer, backward
from warprun.kernels.simd import COLUMNS
from warprun.kernels.threads import threads as threads_of_process
from warprun.learning.cpu import losses as fused_losses
from warprun.learning.cpu.losses import LOSS, VALUE, Memory, Net
from warprun.learning.critics import Trained
from warprun.learning.replay.ring import Transitions
from warprun.math import sqrt

SHARE_BLOCKS = 2
"""Blocks in a share: every share has a gradient of its own, which has to be added."""
HAND_OFF = 8_000_000
"""Parameters times transitions from which on it pays to wake a second thread; 64-64 units are done by then."""

float32 = np.float32


class Adam(NamedTuple):
    """What Adam moves and remembers, as arrays, and its settings."""

    parameters: Any
    target: Any
    mean: Any
    square: Any
    squares: Any
    """[16]: partial sums of the squares of a gradient."""
    steps: Any
    beta1: float
    beta2: float
    eps: float


def bounds(share, shares, count):
    """Return the first and the last transition (exclusive) of a share."""
    blocks = -(-count // COLUMNS)
    return blocks * share // shares * COLUMNS, min(count, blocks * (share + 1) // shares * COLUMNS)


def backward_share(net, thread, used, memory, gradient):
    """Fill the gradient of a share from its blocks."""
    gradient[:] = float32(0.0)
    blocks, slopes = net.blocks[thread, :used], net.slopes[thread, :used]
    backward(net.parameters, net.layers, blocks, slopes, memory.zeros, gradient)


def adam_step(gradients, adam, rate, max_norm, tau):
    """Add the gradients of the shares [share, P], clip, move the parameters by Adam and the target after them; return the norm."""
    total = gradients[0]
    for share in range(1, gradients.shape[0]):
        more = gradients[share]
        for m in range(total.size):
            total[m] += more[m]
    # Sixteen partial sums: a single one would wait for each addition.
    squares = adam.squares
    squares[:] = float32(0.0)
    whole = total.size // 16 * 16
    for m in range(0, whole, 16):
        for lane in range(16):
            squares[lane] += total[m + lane] * total[m + lane]
    for m in range(whole, total.size):
        squares[0] += total[m] * total[m]
    norm = sqrt(float32(np.sum(squares)))
    scale = min(float32(1.0), float32(max_norm) / (norm + float32(1e-6)))
    adam.steps[0] += 1.0
    correction1 = np.float64(1.0) - np.float64(adam.beta1) ** adam.steps[0]
    correction2 = np.float64(1.0) - np.float64(adam.beta2) ** adam.steps[0]
    step, spread = float32(rate / correction1), float32(1.0 / correction2)
    keep1, keep2, beta2 = float32(1.0 - adam.beta1), float32(1.0 - adam.beta2), float32(adam.beta2)
    eps, follow = float32(adam.eps), float32(tau)
    parameters, target, mean, square = adam.parameters, adam.target, adam.mean, adam.square
    for m in range(total.size):
        g = total[m] * scale
        mean[m] += keep1 * (g - mean[m])
        square[m] = beta2 * square[m] + keep2 * g * g
        parameters[m] -= step * mean[m] / (np.sqrt(square[m] * spread) + eps)
        target[m] += follow * (parameters[m] - target[m])
    return norm


KERNEL = """
@njit(nogil=True, cache=True, **FLAGS)
def {name}(first, last, thread, shares, nets, settings, batch, memory):
    net = nets[-1]  # the one that is trained
    for share in range(first, last):
        begin, end = bounds(share, shares, batch.reward.size)
        memory.terms[share] = 0.0
        used = 0
        for row in range(begin, end, COLUMNS):
            {name}_block(nets, settings, batch, row, min(COLUMNS, end - row), thread, used, memory, memory.terms[share])
            used += 1
        backward_share(net, thread, used, memory, net.gradient[share])

"""
LOSSES = ("choices", "critics", "actor")
SOURCE = f'''"""Gradient steps of DQN, DDPG and TD3; written by warprun."""

from numba import njit

{"".join(KERNEL.format(name=name) for name in LOSSES)}
@njit(nogil=True, cache=True, **FLAGS)
def adam(*given):
    return adam_step(*given)
'''


@cache
def module() -> ModuleType:
    """Return the compiled kernels."""
    functions: dict[str, Any] = {f"{name}_block": getattr(fused_losses, name) for name in LOSSES}
    functions |= {f.__name__: f for f in (bounds, backward_share, adam_step)}
    return kernels.load_module("fused_updates", SOURCE, functions | {"FLAGS": kernels.FLAGS, "COLUMNS": COLUMNS})


class FusedUpdates:
    """The kernels for one batch size, networks of up to `rows` rows in a block and `parameters` numbers, and what they write on."""

    def __init__(self, batch_size: int, rows: int, parameters: int, threads: int) -> None:
        self.threads = threads_of_process(threads if batch_size * parameters > HAND_OFF else 1)
        self.shares = -(-batch_size // (COLUMNS * SHARE_BLOCKS))
        count = self.threads.count
        self.memory = Memory(
            target=np.zeros((count, COLUMNS), np.float32),
            choice=np.zeros((count, COLUMNS), np.int64),
            zeros=np.zeros(rows, np.float32),
            terms=np.zeros((self.shares, 2)),
            error=np.zeros(batch_size, np.float32),
        )
        self.error = torch.from_numpy(self.memory.error)
        """[B]: the temporal-difference errors of the last batch."""

    def net(self, parameters: torch.Tensor, table: list[Layer], outputs: list[int]) -> Net:
        """Return a network for the kernels, over the same parameters [P] and with memory of its own."""
        rows = max(layer.out_row + layer.n_out for layer in table)
        blocks, slopes = np.zeros((2, self.threads.count, SHARE_BLOCKS, rows, COLUMNS), np.float32)
        gradient = np.zeros((self.shares, len(parameters)), np.float32)
        return Net(parameters.numpy(), np.array(table, np.int64), np.array(outputs, np.int64), blocks, slopes, gradient)

    def run(self, loss: str, nets: tuple[Net, ...], settings: Any, batch: Transitions) -> None:
        """Compute the gradient of a loss (a function of `fused_losses`) for the last of `nets`, share by share."""
        function, shares, memory = getattr(module(), loss), self.shares, self.memory
        arrays = Transitions(*(part.numpy() for part in batch))  # type: ignore[arg-type]
        self.threads.share(lambda first, last, n: function(first, last, n, shares, nets, settings, arrays, memory), shares)

    def means(self) -> tuple[float, float]:
        """Return the means over the last batch of the value and the loss."""
        sums = self.memory.terms.sum(0) / len(self.memory.error)
        return float(sums[VALUE]), float(sums[LOSS])


def adam_of(trained: Trained) -> Adam:
    """Return the optimiser, an Adam, of what is trained for `adam_step`."""
    optimizer, settings = trained.optimizer, trained.optimizer.config
    moments = (optimizer.mean, optimizer.square, optimizer.steps.view(1))  # type: ignore[union-attr]
    mean, square, steps = (tensor.numpy() for tensor in moments)
    parameters, target = trained.parameters.numpy(), trained.target_parameters.numpy()
    return Adam(parameters, target, mean, square, np.zeros(16, np.float32), steps, settings.beta1, settings.beta2, settings.eps)


def step(net: Net, adam: Adam, rate: float, max_norm: float | None, tau: float) -> float:
    """Move a network by the gradients of the shares, and its target by `tau`; return the norm of the gradient."""
    return module().adam(net.gradient, adam, rate, np.inf if max_norm is None else max_norm, tau)
