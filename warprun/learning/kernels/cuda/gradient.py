"""The gradient of a loss of tiles in two kernels (CUDA): a tile of rows after the other in the shared memory of a block, then the sum.

A tile of rows, one per column, stays in shared memory from its observations to its slopes. A block computes every tile whose number is its
own modulo the number of blocks, and adds to a gradient of its own; the second kernel adds these. Nothing is atomic, so the same rows give
the same bits on the same kind of GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import FunctionType, ModuleType
from typing import NamedTuple

import numpy as np
import torch

from warprun.kernels.mlp import Layer, Network, layers_of
from warprun.kernels.mlp_cuda import columns_for, pack_layers, write
from warprun.kernels.mlp_cuda_backward import BlockBackward, bias_rows, pack_backward
from warprun.learning.kernels.cuda.sums import BlockSums
from warprun.learning.kernels.cuda.tiles import (
    Net,
    Tile,
    Weights,
    add_gradient,
    clear_kept,
    clear_rest,
    clear_terms,
    for_cuda,
    words,
)
from warprun.learning.kernels.layers import Outputs
from warprun.learning.kernels.tile_loss import UNKNOWN, Layout, TileLoss, settings_for
from warprun.learning.settings.byte_counts import GRADIENT_THREADS, cuda_blocks
from warprun.learning.settings.plan import LOSS_ROWS
from warprun.simulation.codegen.templates import fill
from warprun.simulation.cuda_launch import SIMULATED, launch, module_for, multiprocessors, on_device, want

COLUMNS = 32
"""Most rows of a tile: a warp's."""
REGISTERS = 65536 // GRADIENT_THREADS
"""Most registers of a thread with which so many threads fit on a multiprocessor."""
BOUND = {} if SIMULATED else {"max_registers": REGISTERS}
"""Option of kernels that compute networks for many rows."""

float32 = np.float32

KERNEL = '''"""The gradient of the loss $name on CUDA; written by warprun."""

from numba import cuda, float32

COLUMNS, THREADS, TERMS = $columns, $threads, $terms


@cuda.jit(cache=CACHE, fastmath=False, **BOUND)
def gradient(weights, sums, settings, batch, parameter_rows, count, rows, width, columns, partial):
    thread = cuda.threadIdx.x
    block = cuda.shared.array(0, float32)
    for m in range(thread, rows * COLUMNS, THREADS):
        write(block, m, float32(0.0))
    at, weight = cuda.blockIdx.x * width, float32(1.0) / float32(count)
    # Sums over columns have their number as a variable: unrolled, they would keep 32 addresses in registers.
    nets = ($nets)
    fresh = True
    for begin in range(cuda.blockIdx.x * COLUMNS, count, cuda.gridDim.x * COLUMNS):
        cuda.syncthreads()
        tile = Tile(begin, min(COLUMNS, count - begin), block, COLUMNS, thread, THREADS, $first_term, $first_term + TERMS, weight)
        clear_terms(tile, TERMS)
        clear_kept(tile, parameter_rows)
        loss(tile, nets, settings, batch)
        clear_rest(tile, nets[$trained])
        add_gradient(tile, nets[$trained], partial, at, fresh)
        fresh = False
'''
NET = """
        Net(
            weights[$k].weights, weights[$k].layers, BlockBackward(weights[$k].weights_back, weights[$k].back, sums, columns),
            weights[$k].outputs, weights[$k].first, weights[$k].slopes, COLUMNS,
            weights[$k].normalizes, weights[$k].mean, weights[$k].scale,
        ),"""


class Packed:
    """The weights of a network in the orders in which kernels read them, and its place in the shared array."""

    def __init__(
        self,
        parameters: torch.Tensor,
        table: Iterable[Layer],
        outputs: Outputs,
        first: int,
        slopes: int,
        beside: Sequence[int] = (),
        statistics: tuple[torch.Tensor, torch.Tensor] | None = None,
    ) -> None:
        """`table` and `outputs` have the rows of the shared array; `slopes` is the row of the first input's slope. `beside` are parameters
        of no layer, which follow the weights; `statistics` are mean and 1 / standard deviation of observations."""
        device, self.parameters, self.table = parameters.device, parameters, list(table)
        forward, layers = pack_layers(self.table)
        backward, back = pack_backward(self.table)
        back[:, 4] = np.where(back[:, 4] == first, slopes, back[:, 4])
        self.beside, beside_end = len(forward), len(forward) + len(beside)
        """Where `beside` begins in the weights."""
        self._index = torch.from_numpy(np.concatenate((forward, np.array(beside, np.int64), backward))).to(device)
        self._packed = torch.empty(len(self._index), device=device)
        # An empty array has no address that a kernel could get.
        mean, scale = statistics or (torch.zeros(1, device=device), torch.ones(1, device=device))
        self.weights = Weights(
            weights=self._packed[:beside_end],
            weights_back=self._packed[beside_end:],
            layers=torch.from_numpy(layers).to(device),
            back=torch.from_numpy(back).to(device),
            outputs=outputs,
            first=first,
            slopes=slopes,
            normalizes=statistics is not None,
            mean=mean,
            scale=scale,
        )

    @staticmethod
    def of(network: Network) -> Packed:
        """Return a policy with its value; its log standard deviations lie beside the weights."""
        parameters, mean, scale = (torch.as_tensor(each) for each in (network.parameters, network.mean, network.scale))
        outputs = Outputs(network.value_row - network.policy_row + 1, network.policy_row, 1)
        beside = range(network.log_std, len(parameters))
        return Packed(parameters, layers_of(network), outputs, 0, 0, beside, (mean, scale) if len(mean) else None)

    def refresh(self) -> None:
        """Copy the parameters."""
        torch.index_select(self.parameters, 0, self._index, out=self._packed)


class CudaGradient:
    """Computes the gradients of a loss by the last of the networks that it takes; allocates its memory once."""

    def __init__(
        self,
        nets: Sequence[Packed],
        end: int,
        loss: TileLoss,
        columns: Callable[[int], int],
        registers: int | None = None,
        most_rows: int | None = None,
    ) -> None:
        """`end` is the row behind all networks; `columns(rows)` returns those of a tile; `registers` are the most of a thread; `most_rows`
        those of a batch, if they are known."""
        self._nets, trained, self._rows = nets, nets[-1], gradient_rows(end, loss.scratch, loss.terms)
        device, size = trained.parameters.device, len(trained.parameters)
        self._columns = columns(self._rows)
        kept = loss.parameter_rows
        sums = [*bias_rows(trained.table), *((end + k, size + k) for k in range(loss.terms))]
        sums += [(end + loss.terms + kept.row + d, kept.parameter + d) for d in range(kept.number)]
        self._sums = torch.tensor(sums, dtype=torch.int32, device=device)
        self._kept, self._width = kept, size + loss.terms
        self._threads = threads_of([layer for net in nets for layer in net.table])
        blocks = cuda_blocks(self._width, self._threads, multiprocessors(device))
        self._blocks = blocks if most_rows is None else min(blocks, -(-most_rows // self._columns))
        self._sum = self.sums = BlockSums(self._width, self._blocks, device)
        self._settings = settings_for(loss.settings, lambda tensor: on_device(tensor.view(-1)), words)
        self._results = self._sum.total[:size], self._sum.total[size:]
        self.module = _module(loss.loss, len(nets), self._columns, self._threads, loss.terms, end, registers)

    def __call__(self, batch: NamedTuple, count: int, layout: Layout = UNKNOWN) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the flat gradient [P] of the mean loss over `count` rows, and means of its terms; the next call overwrites both."""
        for net in self._nets:
            net.refresh()
        blocks = min(self._blocks, -(-count // self._columns))
        launch(self.module, "gradient", (blocks, self._threads), self._arguments(batch, count), 4 * self._rows * self._columns)
        self._sum.add(blocks)
        return self._results

    def compile_ahead(self, batch: NamedTuple) -> None:
        """Let another process compile the kernels for batches of such tensors (`kernels.ahead`)."""
        want(self.module, "gradient", self._arguments(batch, 1))
        self._sum.compile_ahead()

    def _arguments(self, batch: NamedTuple, count: int) -> tuple[object, ...]:
        weights = tuple(on_device(net.weights) for net in self._nets)
        given = (weights, on_device(self._sums), self._settings, on_device(batch), self._kept, count)
        return (*given, self._rows, self._width, self._columns, on_device(self._sum.partial))


def _module(
    loss: Callable[..., None], networks: int, columns: int, threads: int, terms: int, first_term: int, registers: int | None
) -> ModuleType:
    """Return the kernel of a loss on tiles of so many networks."""
    assert isinstance(loss, FunctionType)
    nets = "".join(fill(NET, k=str(k)) for k in range(networks))
    numbers = {"columns": columns, "threads": threads, "terms": terms, "first_term": first_term, "trained": networks - 1}
    source = fill(KERNEL, name=loss.__name__, nets=nets, **{name: str(number) for name, number in numbers.items()})
    named = {f.__name__: f for f in (write, clear_terms, clear_kept, clear_rest, add_gradient, Tile, Net, BlockBackward)}
    bound = {} if SIMULATED or registers is None else {"max_registers": registers}
    return module_for(f"{loss.__name__}_cuda", source, {**named, "loss": for_cuda(loss), "BOUND": bound})


def gradient_rows(end: int, scratch: int, terms: int) -> int:
    """Return the rows of a block for networks of `end` rows; the backward pass may read LOSS_ROWS behind a layer."""
    return end + terms + max(scratch, LOSS_ROWS)


def policy_columns(rows: int) -> int:
    """Return the columns of a tile of a rollout: as many as fit."""
    return columns_for(rows, COLUMNS)


def threads_of(layers: Iterable[Layer]) -> int:
    """Return the threads of a block: as many as the widest layer has units, for a thread computes an eighth of them in a quarter of the
    columns."""
    widest = max(max(layer.n_in, layer.n_out) for layer in layers)
    return min(256, -(-widest // 32) * 32)
