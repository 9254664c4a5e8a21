"""The gradient of a policy in two kernels (CUDA): forward, derivatives of the loss and backward of tiles of rows, then the sum over blocks.

A tile of rows, one per column, stays in the shared memory of a block from its observations to its slopes. A block computes every tile whose
number is its own modulo the number of blocks, and adds to a gradient of its own. The second kernel adds these. Nothing is atomic, so the
same rows give the same bits on the same kind of GPU.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from warprun.kernels.mlp import Network, layers_of, normalized
from warprun.kernels.mlp_cuda import BlockNetwork, block_network, columns_for, compute_layer, read, write
from warprun.kernels.mlp_cuda_backward import (
    BlockBackward,
    add_row_sums,
    add_weight_slopes,
    bias_rows,
    compute_slopes,
    pack_backward,
)
from warprun.kernels.sampling import FORBIDDEN, gaussian_derivatives, gaussian_entropy, gaussian_log_density, logit_derivative
from warprun.learning.batch import Batch, normalize_advantage
from warprun.learning.formulas import Row
from warprun.learning.kernels.cuda.sums import BlockSums
from warprun.learning.kernels.rows import gradient_rows, rows_of
from warprun.learning.operations import Moments, RowLoss
from warprun.learning.settings.byte_counts import GRADIENT_THREADS, cuda_blocks
from warprun.math import exp, log
from warprun.simulation.codegen.templates import fill
from warprun.simulation.cuda_launch import SIMULATED, launch, module_for, multiprocessors, on_device, want
from warprun.spec import Box, Space, choices

COLUMNS = 32
"""Most rows of a tile: a warp's."""
BOUND = {} if SIMULATED else {"max_registers": 65536 // GRADIENT_THREADS}
"""Option of kernels that compute networks: most registers of a thread, with which so many threads fit on a multiprocessor."""

float32 = np.float32


class Tiles(NamedTuple):
    """The rows of a gradient in the form that the kernel takes, flat; kernels get device arrays in place of the tensors."""

    order: torch.Tensor
    """[B] int64, or [1] unless `ordered`."""
    obs: torch.Tensor
    mask: torch.Tensor
    """[R * M] bool, or [1] unless `masked`."""
    action: torch.Tensor
    log_prob: torch.Tensor
    value: torch.Tensor
    advantage: torch.Tensor
    returns: torch.Tensor
    ordered: bool
    masked: bool
    batch: int
    """B."""
    features: int
    components: int


def row_of(rows, n):
    """Return where row `n` of the batch is."""
    return read(rows.order, n) if rows.ordered else np.int64(n)


def load_rows(network, rows, begin, n, block, thread, threads):
    """Load the observations of `n` rows, from `begin` on, into the block, normalised as in `mlp.normalize`; the other columns are 0."""
    features = rows.features
    for m in range(thread, features * network.columns, threads):
        column, f = m // features, m % features
        x = float32(0.0)
        if column < n:
            x = read(rows.obs, row_of(rows, begin + column) * features + f)
            if network.normalizes:
                x = normalized(x, read(network.mean, f), read(network.scale, f))
        write(block, f * network.columns + column, x)


def choices_forward(network, nvec, rows, row, block, column, own):
    """Turn the logits of a column into log-probabilities; return those of the action and the entropy.

    The entropies of the choices are written to the rows of the block from `own` on.
    """
    columns, first = network.columns, network.policy_row
    log_prob, entropy = float32(0.0), float32(0.0)
    for j in range(rows.components):
        n, chosen = nvec[j], read(rows.action, row * rows.components + j)
        at, allowed = first * columns + column, row * network.logits + first - network.policy_row
        largest = FORBIDDEN
        for k in range(n):
            x = read(block, at + k * columns)
            if rows.masked and not read(rows.mask, allowed + k):
                x = FORBIDDEN
                write(block, at + k * columns, x)
            largest = max(largest, x)
        total = float32(0.0)
        for k in range(n):
            total += exp(read(block, at + k * columns) - largest)
        total = log(total)
        of_choice = float32(0.0)
        for k in range(n):
            log_p = (read(block, at + k * columns) - largest) - total
            write(block, at + k * columns, log_p)
            of_choice -= exp(log_p) * log_p
            log_prob += log_p if k == chosen else float32(0.0)
        write(block, (own + j) * columns + column, of_choice)
        entropy += of_choice
        first += n
    return log_prob, entropy


def choices_backward(network, nvec, rows, row, block, column, own, d_log_prob, entropy_weight):
    """Replace the log-probabilities of a column by the slopes of the logits."""
    columns, first = network.columns, network.policy_row
    for j in range(rows.components):
        n, chosen = nvec[j], read(rows.action, row * rows.components + j)
        entropy = read(block, (own + j) * columns + column)
        for k in range(n):
            at = (first + k) * columns + column
            picked = float32(1.0) if k == chosen else float32(0.0)
            write(block, at, logit_derivative(read(block, at), picked, entropy, d_log_prob, entropy_weight))
        first += n


def gaussian_forward(network, nvec, rows, row, block, column, own):
    """Turn the means of a column into (action - mean) / standard deviation; return the log-density of the action and the entropy."""
    log_prob, entropy = float32(0.0), float32(0.0)
    for d in range(rows.components):
        log_std, at = read(network.weights, network.log_std + d), (network.policy_row + d) * network.columns + column
        z = (read(rows.action, row * rows.components + d) - read(block, at)) * exp(-log_std)
        write(block, at, z)
        log_prob += gaussian_log_density(z, log_std)
        entropy += gaussian_entropy(log_std)
    return log_prob, entropy


def gaussian_backward(network, nvec, rows, row, block, column, own, d_log_prob, entropy_weight):
    """Replace what `gaussian_forward` left in a column by the slopes of the means; those of the log standard deviations go to `own`."""
    for d in range(rows.components):
        at, scale = (network.policy_row + d) * network.columns + column, exp(-read(network.weights, network.log_std + d))
        d_mean, d_log_std = gaussian_derivatives(read(block, at), scale, d_log_prob, entropy_weight)
        write(block, at, d_mean)
        write(block, (own + d) * network.columns + column, d_log_std)


def clear_column(network, block, column, own, end):
    """Set the slopes of the outputs and the terms of a column without a row to 0."""
    for r in range(network.policy_row, network.policy_row + network.logits):
        write(block, r * network.columns + column, float32(0.0))
    write(block, network.value_row * network.columns + column, float32(0.0))
    for r in range(own, end):
        write(block, r * network.columns + column, float32(0.0))


KERNEL = '''"""The gradient of $name by the parameters of a policy ($actions) on CUDA; written by warprun."""

from numba import cuda, float32

COLUMNS, THREADS, TERMS = $columns, $threads, $terms


@cuda.jit(cache=CACHE, fastmath=False, **BOUND)
def gradient(given, back, nvec, rows, coefficients, entropy_coef, own, end, width, partial):
    thread = cuda.threadIdx.x
    block = cuda.shared.array(0, float32)
    # With the number of columns as a constant.
    network = BlockNetwork(
        given.weights, given.layers, COLUMNS, given.policy_row, given.logits, given.value_row, given.log_std,
        given.normalizes, given.mean, given.scale,
    )
    layers, at = network.layers.shape[0], cuda.blockIdx.x * width
    weight = float32(1.0) / float32(rows.batch)
    entropy_weight = entropy_coef[0] * weight
    fresh = True
    for begin in range(cuda.blockIdx.x * COLUMNS, rows.batch, cuda.gridDim.x * COLUMNS):
        n = min(COLUMNS, rows.batch - begin)
        load_rows(network, rows, begin, n, block, thread, THREADS)
        cuda.syncthreads()
        for layer in range(layers):
            compute_layer(network, layer, block, thread, THREADS)
            cuda.syncthreads()
        # One thread for each column: log-probability, entropy, derivatives of the loss by the outputs, and the terms of the loss.
        for column in range(thread, COLUMNS, THREADS):
            if column < n:
                at_row = row_of(rows, begin + column)
                log_prob, entropy = ${actions}_forward(network, nvec, rows, at_row, block, column, own + TERMS)
                value_at = network.value_row * COLUMNS + column
                row = Row(
                    read(rows.log_prob, at_row), read(rows.value, at_row), read(rows.advantage, begin + column), read(rows.returns, at_row)
                )
                d_log_prob, d_value, shown = loss(log_prob, read(block, value_at), row, coefficients)
                ${actions}_backward(network, nvec, rows, at_row, block, column, own + TERMS, float32(d_log_prob) * weight, entropy_weight)
                write(block, value_at, float32(d_value) * weight)
                $write_terms
                write(block, (own + TERMS - 1) * COLUMNS + column, entropy * weight)
            else:
                clear_column(network, block, column, own, end)
        cuda.syncthreads()
        for backwards in range(layers):
            layer = layers - 1 - backwards
            add_weight_slopes(network, back, layer, block, partial, at, fresh, thread, THREADS)
            if back.layers[layer, 4] > 0:  # the observations need no slopes
                cuda.syncthreads()
                compute_slopes(network, back, layer, block, thread, THREADS)
                cuda.syncthreads()
        cuda.syncthreads()
        # With the number of columns as a variable: an unrolled sum would keep 32 addresses in registers.
        add_row_sums(given, back, block, partial, at, fresh, thread, THREADS)
        fresh = False
        cuda.syncthreads()

'''
"""The kernel of an action distribution and a loss."""


class CudaGradient:
    """Computes gradients of one network; allocates its memory once, but for what is as large as the number of blocks."""

    def __init__(self, network: Network, space: Space, loss: RowLoss, entropy_coef: torch.Tensor) -> None:
        """`entropy_coef` [] is read in every gradient."""
        device, terms = entropy_coef.device, len(loss.terms) + 1
        self.entropy_coef, self.coefficients, self.terms = entropy_coef, loss.coefficients, terms
        self.parameters = torch.as_tensor(network.parameters)
        outputs, components = space.outputs, space.components
        self.own = network.rows
        """First of the rows of a block that hold the terms of the loss, then what each component of an action needs."""
        self.end = network.rows + terms + components
        rows = gradient_rows(network.rows, components, terms)
        columns = columns_for(rows, COLUMNS)
        made, forward_index = block_network(network, outputs, columns, device)
        backward_index, layers = pack_backward(layers_of(network))
        self.index = torch.cat((forward_index, torch.from_numpy(backward_index).to(device)))
        self.packed = torch.empty(len(self.index), device=device)
        self.network = made._replace(weights=self.packed[: len(forward_index)])
        self.width = len(self.parameters) + terms
        sums = bias_rows(layers_of(network)) + [(self.own + k, len(self.parameters) + k) for k in range(terms)]
        if isinstance(space, Box):
            sums += [(self.own + terms + d, network.log_std + d) for d in range(components)]
        self.back = BlockBackward(
            self.packed[len(forward_index) :],
            torch.from_numpy(layers).to(device),
            torch.tensor(sums, dtype=torch.int32, device=device),
        )
        self.threads = threads_of(layers)
        self.blocks = cuda_blocks(self.width, self.threads, multiprocessors(device))
        self.sums = BlockSums(self.width, self.blocks, device)
        self.shared_bytes = 4 * rows * columns
        self.chooses = not isinstance(space, Box)
        self.nvec = torch.tensor(choices(space) or (1,), dtype=torch.int32, device=device)
        self.none = {dtype: torch.zeros(1, dtype=dtype, device=device) for dtype in (torch.int64, torch.bool)}
        actions = "gaussian" if isinstance(space, Box) else "choices"
        heads = (gaussian_forward, gaussian_backward) if isinstance(space, Box) else (choices_forward, choices_backward)
        write_terms = (f"write(block, (own + {k}) * COLUMNS + column, float32(shown[{k}]) * weight)" for k in range(terms - 1))
        numbers = {"columns": columns, "threads": self.threads, "terms": terms}
        texts = {"name": loss.formula.__name__, "actions": actions, "write_terms": "\n".join(write_terms)}
        source = fill(KERNEL, **texts, **{name: str(number) for name, number in numbers.items()})
        names = {f.__name__: f for f in (*heads, *FUNCTIONS)} | {"BlockNetwork": BlockNetwork, "Row": Row, "BOUND": BOUND}
        self.module = module_for(f"{loss.formula.__name__}_cuda", source, names | {"loss": loss.formula})

    def __call__(
        self, batch: Batch, advantage: torch.Tensor, order: torch.Tensor | None, moments: Moments | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the flat gradient [P] of the mean loss over rows, and means of its terms; the next call overwrites both."""
        rows = rows_of(batch, advantage, order)
        torch.index_select(self.parameters, 0, self.index, out=self.packed)
        count = len(rows.advantage)
        tiles = Tiles(
            order=rows.order if len(rows.order) else self.none[torch.int64],
            obs=rows.obs.view(-1),
            mask=rows.mask.view(-1) if rows.mask.numel() else self.none[torch.bool],
            action=rows.action.view(-1),
            log_prob=rows.log_prob,
            value=rows.value,
            advantage=normalize_advantage(rows.advantage, *moments) if moments else rows.advantage,
            returns=rows.returns,
            ordered=len(rows.order) > 0,
            masked=rows.mask.numel() > 0,
            batch=count,
            features=rows.obs.shape[1],
            components=rows.action.shape[1],
        )
        blocks = min(self.blocks, -(-count // self.network.columns))
        launch(self.module, "gradient", (blocks, self.threads), self._of_gradient(tiles), self.shared_bytes)
        self.sums.add(blocks)
        return self.sums.total[: -self.terms], self.sums.total[-self.terms :]

    def compile_ahead(self) -> None:
        """Let another process compile the kernels (`kernels.ahead`)."""
        number, row, flag = self.sums.total[:1], self.none[torch.int64], self.none[torch.bool]
        action = self.nvec if self.chooses else number
        tiles = Tiles(row, number, flag, action, number, number, number, number, False, False, 1, 1, 1)
        want(self.module, "gradient", self._of_gradient(tiles))
        self.sums.compile_ahead()

    def _of_gradient(self, tiles: Tiles) -> tuple[object, ...]:
        """Return the arguments of the kernel for rows."""
        whole = (self.network, self.back, self.nvec, tiles)
        numbers = (self.coefficients, on_device(self.entropy_coef.view(1)), self.own, self.end, self.width)
        return (*map(on_device, whole), *numbers, on_device(self.sums.partial))


FUNCTIONS = (
    row_of,
    load_rows,
    compute_layer,
    clear_column,
    add_weight_slopes,
    compute_slopes,
    add_row_sums,
    read,
    write,
)
"""Functions that the kernels of all losses call."""


def threads_of(layers: np.ndarray) -> int:
    """Return the threads of a block: as many as the widest layer has units, for a thread computes an eighth of them in a quarter of the
    columns."""
    widest = int(max(layers[:, 2].max(), layers[:, 3].max()))
    return min(256, -(-widest // 32) * 32)
