"""Gradient steps of the off-policy agents in CUDA kernels, equal to those by torch in `algorithms.dqn`, `td3` and `sac`.

A block computes a tile of transitions after the other in its shared memory, from the observations to the slopes of the trained network
(`cuda.tiles`), and adds to a gradient of its own; a second kernel adds these. Batches are small, so tiles are as narrow as can be if that
occupies more multiprocessors. Nothing is atomic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FunctionType, ModuleType

import numpy as np
import torch

from warprun.kernels.mlp import Layer
from warprun.kernels.mlp_cuda import FOUR, columns_for, pack_layers, write
from warprun.kernels.mlp_cuda_backward import bias_rows, pack_backward
from warprun.learning import optimizers
from warprun.learning.communicator import mean_
from warprun.learning.descent import AnyOptimized, Due, Taken, Trained
from warprun.learning.interfaces import Context
from warprun.learning.kernels.cuda.gradient import threads_of
from warprun.learning.kernels.cuda.optimizer import CudaAdam
from warprun.learning.kernels.cuda.sums import BlockSums
from warprun.learning.kernels.cuda.tiles import Backward, Net, Tile, Weights, add_gradient, clear_rest, clear_terms, for_cuda, words
from warprun.learning.kernels.layers import Outputs, stacked_rows
from warprun.learning.kernels.losses import LOSS, VALUE
from warprun.learning.kernels.tile_loss import MeanLoss, TileLoss, settings_for, stacks, with_layers
from warprun.learning.replay import TransitionBatch
from warprun.learning.settings.byte_counts import cuda_blocks
from warprun.learning.settings.off_policy import OffPolicyConfig
from warprun.learning.settings.plan import LOSS_ROWS
from warprun.simulation.codegen.templates import fill
from warprun.simulation.cuda_launch import launch, module_for, multiprocessors, on_device

MOST_COLUMNS = 32
TERMS = 2
"""Terms of a loss, whose means are shown."""

float32 = np.float32

KERNEL = '''"""The gradient step of $name on CUDA; written by warprun."""

from numba import cuda, float32

COLUMNS, THREADS = $columns, $threads


@cuda.jit(cache=CACHE, fastmath=False)
def $name(weights, sums, settings, batch, error, rows, terms, width, partial):
    thread = cuda.threadIdx.x
    block = cuda.shared.array(0, float32)
    for m in range(thread, rows * COLUMNS, THREADS):
        write(block, m, float32(0.0))
    count = batch.reward.shape[0]
    at, weight = cuda.blockIdx.x * width, float32(1.0) / float32(count)
    nets = ($nets)
    fresh = True
    for begin in range(cuda.blockIdx.x * COLUMNS, count, cuda.gridDim.x * COLUMNS):
        cuda.syncthreads()
        tile = Tile(begin, min(COLUMNS, count - begin), block, COLUMNS, thread, THREADS, terms, terms + $n_terms, weight)
        clear_terms(tile)
        loss(tile, nets, settings, batch, error)
        clear_rest(tile, nets[-1])
        add_gradient(tile, nets[-1], partial, at, fresh)
        fresh = False
'''
NET = """
        Net(
            weights[$k].weights, weights[$k].layers, Backward(weights[$k].weights_back, weights[$k].back, sums), weights[$k].outputs,
            weights[$k].first, weights[$k].slopes, COLUMNS,
        ),"""
MEAN_KERNEL = '''"""The slope of $name on CUDA; written by warprun."""

from numba import cuda


@cuda.jit(cache=CACHE, fastmath=False)
def slope(parameter, mean, number, into):
    formula(parameter, mean, number, into)
'''


class Packed:
    """The weights of a network in the orders in which kernels read them, and its place in the shared array."""

    def __init__(self, parameters: torch.Tensor, table: Iterable[Layer], outputs: Outputs, first: int, slopes: int) -> None:
        """`table` and `outputs` have the rows of the shared array; `slopes` is the row of the first input's slope."""
        device, self._parameters, self.table = parameters.device, parameters, list(table)
        forward, layers = pack_layers(self.table)
        backward, back = pack_backward(self.table)
        back[:, 4] = np.where(back[:, 4] == first, slopes, back[:, 4])
        self._index = torch.from_numpy(np.concatenate((forward, backward))).to(device)
        self._packed = torch.empty(len(self._index), device=device)
        self.weights = Weights(
            weights=self._packed[: len(forward)],
            weights_back=self._packed[len(forward) :],
            layers=torch.from_numpy(layers).to(device),
            back=torch.from_numpy(back).to(device),
            outputs=outputs,
            first=first,
            slopes=slopes,
        )

    def refresh(self) -> None:
        """Copy the parameters."""
        torch.index_select(self._parameters, 0, self._index, out=self._packed)


class CudaSteps:
    """Makes the gradient steps of one learner."""

    def __init__(self, trained: Iterable[AnyOptimized], config: OffPolicyConfig, context: Context) -> None:
        """`trained`: what the learner trains."""
        self.rows, self.tau, self.communicator = config.batch_size, config.tau, context.communicator
        self.parameters: dict[object, torch.Tensor] = {}
        self.followed: dict[object, object] = {}
        """A target network -> the network that it follows."""
        for each in with_layers(trained):
            self.parameters[each.network] = each.parameters
            if isinstance(each, Trained):
                self.parameters[each.target] = each.target_parameters
                self.followed[each.target] = each.network

    def step(self, trained: AnyOptimized, loss: TileLoss | MeanLoss) -> CudaStep | MeanStep:
        """Return a gradient step of `trained`."""
        return CudaStep(self, trained, loss) if isinstance(loss, TileLoss) else MeanStep(trained, loss)


class CudaStep:
    """A gradient step of one network in kernels, with that of its target network: the same as `descent.TorchStep`."""

    def __init__(self, of: CudaSteps, trained: AnyOptimized, loss: TileLoss) -> None:
        parameters, device = trained.parameters, trained.parameters.device
        self._of = of
        networks = (*loss.reads, trained.network)
        self._nets, end = packed(networks, of)
        self._terms, self._rows = end, end + TERMS + max(loss.scratch, LOSS_ROWS)
        columns = tile_columns(self._rows, of.rows, multiprocessors(device))
        last = self._nets[-1]
        biases = bias_rows(last.table)
        sums = [*biases, *((end + k, len(parameters) + k) for k in range(TERMS))]
        self._sums = torch.tensor(sums, dtype=torch.int32, device=device)
        self._width = len(parameters) + TERMS
        self._threads = threads_of(np.array([layer for net in self._nets for layer in net.table]))
        self._blocks = min(cuda_blocks(self._width, self._threads, multiprocessors(device)), -(-of.rows // columns))
        self._sum = BlockSums(self._width, self._blocks, device)
        self._shared_bytes = 4 * self._rows * columns
        self._settings = settings_for(loss.settings, lambda tensor: on_device(tensor.view(-1)), words)
        self._error = torch.zeros(of.rows, device=device)
        self._module = _module(loss.loss, len(networks), columns, self._threads)
        self._name = loss.loss.__name__
        assert isinstance(trained.optimizer, optimizers.Adam)
        target = trained.target_parameters if isinstance(trained, Trained) else None
        self._adam = CudaAdam(trained.optimizer, parameters, trained.learning_rate.tensor, trained.max_norm, target)

    def __call__(self, due: Due, batch: TransitionBatch, *_: object) -> Taken:
        """Take a step on the loss of a batch; what more a loss by torch takes is of networks with memory, which kernels do not compute."""
        total = self.gradient(batch)
        mean_(self._of.communicator, self._of.rows, total)
        norm = self._adam.step(total[:-TERMS], self._of.tau if due.target else 0.0)
        return Taken(total[LOSS - TERMS], total[VALUE - TERMS], self._error, norm)

    def gradient(self, batch: TransitionBatch) -> torch.Tensor:
        """Return the gradient of the loss of a batch, and the means of its terms, [P + TERMS]; the next call overwrites it."""
        for net in self._nets:
            net.refresh()
        weights = tuple(on_device(net.weights) for net in self._nets)
        given = (weights, on_device(self._sums), self._settings, on_device(batch), on_device(self._error))
        numbers = (self._rows, self._terms, self._width, on_device(self._sum.partial))
        launch(self._module, self._name, (self._blocks, self._threads), (*given, *numbers), self._shared_bytes)
        self._sum.add(self._blocks)
        return self._sum.total


class MeanStep:
    """A gradient step of one parameter by the mean that the step before has found."""

    def __init__(self, trained: AnyOptimized, loss: MeanLoss) -> None:
        assert isinstance(trained.optimizer, optimizers.Adam)
        self._parameter, self._number = trained.parameters, loss.number
        self._adam = CudaAdam(trained.optimizer, self._parameter, trained.learning_rate.tensor, trained.max_norm)
        self._gradient = torch.zeros(1, device=self._parameter.device)
        source = fill(MEAN_KERNEL, name=loss.slope.__name__)
        self._module = module_for(f"{loss.slope.__name__}_cuda", source, {"formula": loss.slope})

    def __call__(self, due: Due, before: Taken) -> Taken:
        """Take a step and return `before`: this one has no numbers to show."""
        arrays = (on_device(self._parameter), on_device(before.value.view(1)), float32(self._number), on_device(self._gradient))
        launch(self._module, "slope", (1, 1), arrays)
        self._adam.step(self._gradient)
        return before


def packed(networks: Iterable[object], of: CudaSteps) -> tuple[list[Packed], int]:
    """Return networks with rows in the shared array, a target network those of the network that it follows, and the first row behind."""
    nets: list[Packed] = []
    firsts: dict[object, int] = {}
    end = 0
    *_, trained = networks = tuple(networks)
    for network in networks:
        table, outputs = stacked_rows(stacks(network), of.parameters[network])  # type: ignore[arg-type]
        place = of.followed.get(network, network)
        first = firsts.setdefault(place, end)
        inputs, rows = table[0].n_in, table[-1].out_row + table[-1].n_out
        moved = [layer._replace(in_row=layer.in_row + first, out_row=layer.out_row + first) for layer in table]
        slopes = first if network is trained else first + rows
        nets.append(Packed(of.parameters[network], moved, outputs._replace(first=first + outputs.first), first, slopes))
        end = max(end, first + rows + inputs)
    return nets, end


def tile_columns(rows: int, batch: int, multiprocessors: int) -> int:
    """Return the columns of a tile, a multiple of FOUR: as many as fit, but no more than give every multiprocessor a tile."""
    enough = -(-batch // (multiprocessors * FOUR)) * FOUR
    return min(columns_for(rows, MOST_COLUMNS), max(enough, FOUR))


def _module(loss: Callable[..., None], networks: int, columns: int, threads: int) -> ModuleType:
    """Return the kernel of a loss on tiles of so many networks."""
    assert isinstance(loss, FunctionType)
    nets = "".join(fill(NET, k=str(k)) for k in range(networks))
    numbers = {"columns": columns, "threads": threads, "n_terms": TERMS}
    source = fill(KERNEL, name=loss.__name__, nets=nets, **{name: str(number) for name, number in numbers.items()})
    named = {f.__name__: f for f in (write, clear_terms, clear_rest, add_gradient, Tile, Net, Backward)}
    return module_for(f"{loss.__name__}_cuda", source, {**named, "loss": for_cuda(loss)})
