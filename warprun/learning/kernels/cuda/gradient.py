"""The gradient of a loss of tiles in two kernels (CUDA): a tile of rows after the other in the shared memory of a block, then the sum.

A tile of rows, one per column, stays in shared memory from its observations to its slopes. A block computes every tile whose number is its
own modulo the number of blocks, and adds to a gradient of its own; the second kernel adds these. Nothing is atomic, so the same rows give
the same bits on the same kind of GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import FunctionType, ModuleType
from typing import NamedTuple, cast

import numpy as np
import torch

from warprun.kernels.mlp import Layer, Network, Outputs, layers_of
from warprun.kernels.mlp_cuda import write
from warprun.kernels.mlp_cuda_backward import BlockBackward
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
from warprun.learning.kernels.tile_loss import UNKNOWN, Layout, TileLoss, settings_for
from warprun.learning.settings.byte_counts import GRADIENT_THREADS, cuda_blocks
from warprun.learning.settings.plan import LOSS_ROWS
from warprun.simulation import cuda_layers
from warprun.simulation.codegen.templates import fill
from warprun.simulation.cuda_launch import SIMULATED, launch, module_for, multiprocessors, on_device, want
from warprun.simulation.cuda_layers import Layers, Packing

COLUMNS = 32
"""Most rows of a tile: a warp's."""
REGISTERS = {(7, 5): 128, (8, 0): 184, (9, 0): 168}
"""Most registers of a thread of a kernel that computes networks for many rows, from a compute capability on: as few as it has without
spills, so that many threads fit on a multiprocessor."""
MOST_THREADS, TOGETHER = 256, GRADIENT_THREADS // 2
"""Most threads of a block, where few run at once and where at least two should on a multiprocessor."""

float32 = np.float32

KERNEL = '''"""The gradient of the loss $name on CUDA; written by warprun."""

from numba import cuda, float32

COLUMNS, STRIDE, THREADS, TERMS = $columns, $stride, $threads, $terms


@cuda.jit(cache=CACHE, fastmath=False, **BOUND)
def gradient(weights, sums, settings, batch, parameter_rows, count, rows, width, columns, stride, partial):
    thread = cuda.threadIdx.x
    block = cuda.shared.array(0, float32)
    for m in range(thread, rows * STRIDE, THREADS):
        write(block, m, float32(0.0))
    at, weight = cuda.blockIdx.x * width, float32(1.0) / float32(count)
    # Sums over columns have their number as a variable: unrolled, they would keep 32 addresses in registers.
    nets = ($nets)
    fresh = True
    for begin in range(cuda.blockIdx.x * COLUMNS, count, cuda.gridDim.x * COLUMNS):
        cuda.syncthreads()
        tile = Tile(begin, min(COLUMNS, count - begin), block, COLUMNS, STRIDE, thread, THREADS, $first_term, $first_term + TERMS, weight)
        clear_terms(tile, TERMS)
        clear_kept(tile, parameter_rows)
        loss(tile, nets, settings, batch)
        clear_rest(tile, nets[$trained])
        add_gradient(tile, nets[$trained], partial, at, fresh)
        fresh = False
'''
NET = """
        Net(
            weights[$k].weights, weights[$k].beside, weights[$k].layers,
            BlockBackward(weights[$k].weights_back, weights[$k].back, sums, columns, stride),
            weights[$k].outputs, weights[$k].first, weights[$k].slopes, COLUMNS, STRIDE,
            weights[$k].normalizes, weights[$k].mean, weights[$k].scale,
        ),"""


class Placed(NamedTuple):
    """A network, or several that share their inputs, and its place in the shared array."""

    parameters: torch.Tensor
    table: Sequence[Layer]
    """With the rows of the shared array, as `outputs`."""
    outputs: Outputs
    first: int
    """Row of the first input."""
    slopes: int
    """Row of the first input's slope."""
    beside: int = 0
    """First of the parameters that belong to no layer."""
    statistics: tuple[torch.Tensor, torch.Tensor] | None = None
    """Mean and 1 / standard deviation of observations."""

    @staticmethod
    def of(network: Network) -> Placed:
        """Return a policy with its value; its log standard deviations belong to no layer."""
        parameters, mean, scale = (torch.as_tensor(each) for each in (network.parameters, network.mean, network.scale))
        outputs = Outputs(network.value_row - network.policy_row + 1, network.policy_row, 1)
        return Placed(parameters, layers_of(network), outputs, 0, 0, network.log_std, (mean, scale) if len(mean) else None)


class Packed:
    """The weights of a network in the orders in which kernels read them."""

    def __init__(
        self,
        parameters: torch.Tensor,
        table: Sequence[Layer],
        outputs: Outputs,
        first: int,
        slopes: int,
        beside: int,
        statistics: tuple[torch.Tensor, torch.Tensor] | None,
        layers: Layers,
    ) -> None:
        """The arguments are those of `Placed`, and the layers of the kernels."""
        device, self.parameters, self.table = parameters.device, parameters, table
        forward, of_forward = layers.pack_layers(table)
        backward, back = layers.pack_backward(table)
        back[:, 4] = np.where(back[:, 4] == first, slopes, back[:, 4])
        self._packing = Packing(parameters, np.concatenate((forward, backward)), layers)
        # An empty array has no address that a kernel could get.
        mean, scale = statistics or (torch.zeros(1, device=device), torch.ones(1, device=device))
        self.weights = Weights(
            weights=self._packing.weights[: len(forward)],
            weights_back=self._packing.weights[len(forward) :],
            beside=parameters[beside:] if beside < len(parameters) else parameters,
            layers=torch.from_numpy(of_forward).to(device),
            back=torch.from_numpy(back).to(device),
            outputs=outputs,
            first=first,
            slopes=slopes,
            normalizes=statistics is not None,
            mean=mean,
            scale=scale,
        )

    def refresh(self) -> None:
        """Copy the parameters."""
        self._packing()

    def compile_ahead(self) -> None:
        """Let another process compile the kernel of `refresh` (`kernels.ahead`)."""
        self._packing.compile_ahead()


class CudaGradient:
    """Computes the gradients of a loss by the last of the networks that it takes; allocates its memory once."""

    def __init__(
        self,
        nets: Sequence[Packed],
        end: int,
        loss: TileLoss,
        layers: Layers,
        columns: int,
        bounded: bool = False,
        most_rows: int | None = None,
    ) -> None:
        """`end` is the row behind all networks; `columns` are those of a tile; `bounded`: threads have at most REGISTERS; `most_rows`
        those of a batch, if they are known."""
        self._nets, trained, self._rows = nets, nets[-1], gradient_rows(end, loss.scratch, loss.terms)
        device, size = trained.parameters.device, len(trained.parameters)
        self._columns, self._stride = columns, layers.stride(columns)
        kept = loss.parameter_rows
        sums = [*layers.row_sums(trained.table), *((end + k, size + k) for k in range(loss.terms))]
        sums += [(end + loss.terms + kept.row + d, kept.parameter + d) for d in range(kept.number)]
        # Even, so that two numbers are added at a time; what fills it up is no part of the results.
        self._width = size + loss.terms + (size + loss.terms) % 2
        sums += [(end, n) for n in range(size + loss.terms, self._width)]
        self._sums = torch.tensor(sums, dtype=torch.int32, device=device)
        self._kept = kept
        self._threads = threads_of([layer for net in nets for layer in net.table], TOGETHER if bounded else MOST_THREADS)
        blocks = cuda_blocks(self._width, self._threads, multiprocessors(device))
        self._blocks = blocks if most_rows is None else min(blocks, -(-most_rows // self._columns))
        self._sum = self.sums = BlockSums(self._width, self._blocks, device)
        self._settings = settings_for(loss.settings, lambda tensor: on_device(tensor.view(-1)), words)
        self._results = self._sum.total[:size], self._sum.total[size : size + loss.terms]
        self.module = _module(layers, loss.loss, len(nets), self._columns, self._threads, loss.terms, end, bounded)

    def __call__(self, batch: NamedTuple, count: int, layout: Layout = UNKNOWN) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the flat gradient [P] of the mean loss over `count` rows, and means of its terms; the next call overwrites both."""
        for net in self._nets:
            net.refresh()
        blocks = min(self._blocks, -(-count // self._columns))
        launch(self.module, "gradient", (blocks, self._threads), self._arguments(batch, count), 4 * self._rows * self._stride)
        self._sum.add(blocks)
        return self._results

    def compile_ahead(self, batch: NamedTuple) -> None:
        """Let another process compile the kernels for batches of such tensors (`kernels.ahead`)."""
        want(self.module, "gradient", self._arguments(batch, 1))
        self._nets[-1].compile_ahead()
        self._sum.compile_ahead()

    def _arguments(self, batch: NamedTuple, count: int) -> tuple[object, ...]:
        weights = tuple(on_device(net.weights) for net in self._nets)
        given = (weights, on_device(self._sums), self._settings, on_device(batch), self._kept, count)
        return (*given, self._rows, self._width, self._columns, self._stride, on_device(self._sum.partial))


def _module(
    layers: Layers, loss: Callable[..., None], networks: int, columns: int, threads: int, terms: int, first_term: int, bounded: bool
) -> ModuleType:
    """Return the kernel of a loss on tiles of so many networks."""
    assert isinstance(loss, FunctionType)
    nets = "".join(fill(NET, k=str(k)) for k in range(networks))
    numbers = {
        "columns": columns,
        "stride": layers.stride(columns),
        "threads": threads,
        "terms": terms,
        "first_term": first_term,
        "trained": networks - 1,
    }
    source = fill(KERNEL, name=loss.__name__, nets=nets, **{name: str(number) for name, number in numbers.items()})
    named = {f.__name__: f for f in (write, clear_terms, clear_kept, clear_rest, Tile, Net, BlockBackward)}
    named |= {"loss": for_cuda(loss, layers), "add_gradient": for_cuda(cast(FunctionType, add_gradient), layers)}
    return module_for(f"{loss.__name__}_cuda", source, {**named, "BOUND": bound() if bounded else {}})


def bound() -> dict[str, int]:
    """Return the options of a kernel that computes networks for many rows."""
    capability = max(each for each in REGISTERS if each <= max(cuda_layers.capability(), min(REGISTERS)))
    return {} if SIMULATED else {"max_registers": REGISTERS[capability]}


def gradient_rows(end: int, scratch: int, terms: int) -> int:
    """Return the rows of a block for networks of `end` rows; the backward pass may read LOSS_ROWS behind a layer."""
    return end + terms + max(scratch, LOSS_ROWS)


def threads_of(layers: Iterable[Layer], most: int) -> int:
    """Return the threads of a block, at most so many: one for each unit of the widest layer."""
    widest = max(max(layer.n_in, layer.n_out) for layer in layers)
    return min(most, -(-widest // 32) * 32)
