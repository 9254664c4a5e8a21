"""How CUDA kernels compute the layers of a network: on tensor cores, or with float32 where a GPU has none.

This is the one place that chooses. A kernel gets the functions of `Layers`, and a block of shared memory with its stride.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import torch

from warprun.kernels import mlp_cuda, mlp_cuda_backward, mlp_tensor, warp
from warprun.kernels.driver import gpu_capability, gpu_shared_bytes
from warprun.kernels.mlp import LINEAR, TANH, Layer, Network, layers_of
from warprun.kernels.mlp_cuda import BlockNetwork
from warprun.kernels.mlp_cuda_backward import BlockBackward
from warprun.simulation.cuda_launch import SIMULATED, launch, module_for, on_device, want

if TYPE_CHECKING:
    from types import ModuleType

Pack = Callable[[Sequence[Layer]], tuple[np.ndarray, np.ndarray]]

NEEDED = (8, 0)
"""Compute capability from which on tensor cores multiply bfloat16."""
THREADS = 256
"""Of a block that packs weights."""
MOST_UNITS = 256
"""Of a recurrent layer on tensor cores: a warp for 16 units, and 128 registers of a thread, are all that a multiprocessor has."""
TOLERANCE = 1e-4
"""Of the checks of tensor cores, which are at 1e-5: a wrong number or a part that is missing is at 1e-3 or more."""

PACK = '''"""Parameters in the order in which kernels read them; written by warprun."""

from numba import cuda, float32, uint64


@cuda.jit(cache=CACHE, fastmath=False)
def pack(parameters, sources, into):
    n = cuda.grid(1)
    if n < into.size:
        low, high = sources[uint64(n), uint64(0)], sources[uint64(n), uint64(1)]
        rest = low < 0
        x = parameters[uint64(-1 - low if rest else low)]
        into[uint64(n)] = split_word(x, parameters[uint64(high)], rest) if high >= 0 else x
'''

CHECK = '''"""A network, its slopes and twice its gradient; written by warprun."""

from numba import cuda, float32


@cuda.jit(cache=CACHE, fastmath=False)
def check(network, back, inputs, rows, found, slopes):
    thread = cuda.threadIdx.x
    block = cuda.shared.array(0, float32)
    for n in range(thread, rows * network.columns, THREADS):
        block[n // network.columns * network.stride + n % network.columns] = inputs[n]
    cuda.syncthreads()
    for layer in range(network.layers.shape[0]):
        compute_layer(network, layer, block, thread, THREADS)
        cuda.syncthreads()
    for backwards in range(network.layers.shape[0]):
        layer = network.layers.shape[0] - 1 - backwards
        for turn in range(2):
            add_weight_slopes(network, back, layer, block, slopes, 0, turn == 0, thread, THREADS)
            cuda.syncthreads()
        compute_slopes(network, back, layer, block, thread, THREADS)
        cuda.syncthreads()
    for n in range(thread, rows * network.columns, THREADS):
        found[n] = block[n // network.columns * network.stride + n % network.columns]
'''


class Layers(NamedTuple):
    """Functions of kernels, and the tables and blocks that they take."""

    compute_layer: Callable[..., None]
    """compute_layer(network, layer, block, thread, threads), see `mlp_cuda`."""
    compute_slopes: Callable[..., None]
    """compute_slopes(network, back, layer, block, thread, threads), see `mlp_cuda_backward`."""
    add_weight_slopes: Callable[..., None]
    """add_weight_slopes(network, back, layer, block, slopes, at, fresh, thread, threads), see `mlp_cuda_backward`."""
    pack_layers: Pack
    """Returns the source of each number of the weights, and a table of layers."""
    pack_backward: Pack
    """The same for the backward pass."""
    row_sums: Callable[[Sequence[Layer]], list[tuple[int, int]]]
    """Returns (row of a block, index in the parameters) of the biases whose slopes `add_weight_slopes` leaves out."""
    together: int
    """What the columns of a block are a multiple of."""
    padding: int
    """Stride of a block less its columns."""

    def stride(self, columns: int) -> int:
        """Return the stride of a block of so many columns."""
        return columns + self.padding

    def columns_for(self, rows: int, actors: int) -> int:
        """Return the columns of a block, so that `actors` are split evenly; 0 if `rows` rows do not fit in shared memory."""
        shared_bytes = mlp_cuda.SHARED_BYTES if self is FLOATS else most_shared_bytes()
        most = (shared_bytes // (4 * max(1, rows)) - self.padding) // self.together * self.together
        if most <= 0:
            return 0
        turns = -(-actors // most)
        return -(-actors // (turns * self.together)) * self.together


FLOATS = Layers(
    mlp_cuda.compute_narrow_layer,
    mlp_cuda_backward.compute_slopes,
    mlp_cuda_backward.add_weight_slopes,
    mlp_cuda.pack_layers,
    mlp_cuda_backward.pack_backward,
    mlp_cuda_backward.bias_rows,
    mlp_cuda.FOUR,
    0,
)
TENSOR_CORES = Layers(
    mlp_tensor.compute_layer,
    mlp_tensor.compute_slopes,
    mlp_tensor.add_weight_slopes,
    mlp_tensor.pack_layers,
    mlp_tensor.pack_backward,
    mlp_tensor.bias_rows,
    warp.COLUMNS,
    mlp_tensor.PADDING,
)


@cache
def capability() -> tuple[int, int]:
    """Return the compute capability of the GPU that kernels are compiled for; (0, 0) if there is none."""
    return gpu_capability()


@cache
def most_shared_bytes() -> int:
    """Return the shared memory that a block can have if its kernel asks for it."""
    return gpu_shared_bytes() or mlp_cuda.SHARED_BYTES


def chosen(rows: int) -> Layers:
    """Return the layers of blocks with so many rows on the GPU that kernels are compiled for."""
    if why_not() or (not TENSOR_CORES.columns_for(rows, 1) and FLOATS.columns_for(rows, 1)):
        return FLOATS
    return TENSOR_CORES


def rows_fit(rows: int) -> bool:
    """Return whether a block of shared memory holds so many rows of activations."""
    return chosen(rows).columns_for(rows, 1) > 0


def why_not() -> str:
    """Return why layers are not computed on tensor cores; empty if they are."""
    if SIMULATED:
        return "the simulator has no tensor cores"
    if capability() < NEEDED:
        return "tensor cores multiply bfloat16 from compute capability {}.{} on".format(*NEEDED)
    return _refused.get("layers", "")


def recurrent_why_not(units: int) -> str:
    """Return why recurrent layers of so many units are not computed on tensor cores; empty if they are."""
    if units > MOST_UNITS:
        return f"tensor cores compute up to {MOST_UNITS} units: more have not enough registers"
    return why_not() or _refused.get("recurrent layers", "")


Part = Literal["layers", "recurrent layers"]
_refused: dict[Part, str] = {}
"""What `verify` has found."""


@cache
def verify(part: Part, error_of: Callable[..., float], *sizes: str | int) -> None:
    """Compare the tensor cores of the GPU with float64 by `error_of(*sizes, device)`; if they compute something else, this process does not
    use them for such layers."""
    if not why_not() and not (error := error_of(*sizes, torch.device("cuda"))) < TOLERANCE:
        _refused[part] = f"the tensor cores of this GPU are {error:.0e} off, with at most {TOLERANCE:.0e} expected"


def tensor_core_error(device: torch.device) -> float:
    """Return how far a small network's gradient and the slopes of its inputs on tensor cores are from float64, relative to the largest."""
    sizes, columns, random = (36, 72, 5), 2 * warp.COLUMNS, np.random.default_rng(0)
    first, second = Layer(0, 2592, 36, 72, 0, 36, TANH), Layer(2664, 3024, 72, 5, 36, 108, LINEAR)
    parameters = random.normal(0.0, 0.2, 3029).astype(np.float32)
    inputs = np.zeros((sum(sizes), columns), np.float32)
    inputs[: sizes[0]] = random.normal(size=(sizes[0], columns))

    found, slopes = _on_tensor_cores(torch.from_numpy(parameters).to(device), (first, second), torch.from_numpy(inputs).to(device))

    # Half the sum of the squares of the outputs is the loss, so their slopes are the outputs.
    (w, b), (v, c) = (
        (parameters[n.weight : n.bias].reshape(n.n_out, n.n_in).astype(float), parameters[n.bias :][: n.n_out, None])
        for n in (first, second)
    )
    x = inputs[: sizes[0]].astype(float)
    hidden = np.tanh(w @ x + b)
    output = v @ hidden + c
    before = v.T @ output * (1.0 - hidden * hidden)
    gradients = [part.ravel() for slope, given in ((before, x), (output, hidden)) for part in (slope @ given.T, slope.sum(1))]
    pairs = (found[: sizes[0]], w.T @ before), (slopes, 2.0 * np.concatenate(gradients))
    # The maximum of NumPy is NaN if one of the errors is.
    return float(np.max([np.abs(mine - exact).max() / np.abs(exact).max() for mine, exact in pairs]))


def _on_tensor_cores(parameters: torch.Tensor, table: Sequence[Layer], inputs: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of a block [rows, columns] with the slopes in the place of the activations, and twice the gradient."""
    layers, device = TENSOR_CORES, parameters.device
    rows, columns = inputs.shape
    packed = []
    for make in (layers.pack_layers, layers.pack_backward):
        sources, numbers = make(table)
        packing = Packing(parameters, sources, layers)
        packing()
        packed.append((packing.weights, torch.from_numpy(numbers).to(device)))
    nothing, stride = torch.zeros(1, device=device), layers.stride(columns)
    network = BlockNetwork(*packed[0], columns, stride, 0, 0, -1, 0, False, nothing, nothing)
    back = BlockBackward(*packed[1], nothing.int().view(1, 1), columns, stride)
    found, slopes = torch.empty_like(inputs), torch.empty_like(parameters)
    names = {"compute_layer": layers.compute_layer, "compute_slopes": layers.compute_slopes, "add_weight_slopes": layers.add_weight_slopes}
    module = module_for("tensor_cores_cuda", CHECK, names | {"THREADS": 32})
    given = (network, back, inputs.view(-1), rows, found.view(-1), slopes)
    launch(module, "check", (1, 32), tuple(map(on_device, given)), 4 * rows * stride)
    return found.cpu().numpy(), slopes.cpu().numpy()


class Packing:
    """Writes the numbers of weights [W] from their sources [W, 2] int32.

    A source (n, -1) is parameter n; (n, m) a word of both in bfloat16, rounded, and (-1 - n, m) one of what the rounding leaves.
    """

    def __init__(self, parameters: torch.Tensor, sources: np.ndarray, layers: Layers) -> None:
        self.weights = torch.empty(len(sources), device=parameters.device)
        self._given = parameters, torch.from_numpy(sources).to(parameters.device), self.weights
        self._module = packing_module(layers)

    def __call__(self) -> None:
        """Take the parameters as they are."""
        pack(self._module, *self._given)

    def compile_ahead(self) -> None:
        """Let another process compile the kernel (`kernels.ahead`)."""
        want(self._module, "pack", tuple(map(on_device, self._given)))


def packing_module(layers: Layers) -> ModuleType:
    """Return the kernel that packs weights of such layers."""
    # Without tensor cores a GPU has no instruction that splits a number, and no weights have such words.
    return module_for("pack_weights_cuda", PACK, {"split_word": mlp_tensor.split_word if layers.padding else mlp_cuda.whole_word})


def pack(module: ModuleType, parameters: torch.Tensor, sources: torch.Tensor, into: torch.Tensor) -> None:
    """Write the numbers of weights, see `Packing`."""
    launch(module, "pack", (-(-len(into) // THREADS), THREADS), tuple(map(on_device, (parameters, sources, into))))


def block_network(network: Network, outputs: int, columns: int, layers: Layers) -> tuple[BlockNetwork, Packing]:
    """Return a BlockNetwork, and what writes its weights."""
    normalizes, parameters = len(network.mean) > 0, torch.as_tensor(network.parameters)
    sources, table = layers.pack_layers(layers_of(network))
    log_stds = network.log_std + np.arange(outputs - (network.value_row - network.policy_row))
    packing, device = Packing(parameters, np.concatenate((sources, mlp_cuda.plain(log_stds))), layers), parameters.device
    made = BlockNetwork(
        weights=packing.weights,
        layers=torch.from_numpy(table).to(device),
        columns=columns,
        stride=layers.stride(columns),
        policy_row=network.policy_row,
        logits=network.value_row - network.policy_row,
        value_row=network.value_row if any(row[5] <= network.value_row < row[5] + row[3] for row in table) else -1,
        log_std=len(sources),
        normalizes=normalizes,
        # An empty array has no address that a kernel could get.
        mean=torch.as_tensor(network.mean) if normalizes else torch.zeros(1, device=device),
        scale=torch.as_tensor(network.scale) if normalizes else torch.ones(1, device=device),
    )
    return made, packing
