"""A CUDA device on a machine without one, and what makes its work wait, impossible to capture, or other from run to run.

`Pretended` gives tensors that say that they are on `cuda` and have shapes but no numbers (torch's FakeTensorMode); tensors of the CPU stay
what they are. It refuses what the host would wait for. `Ordered` looks at work on the CPU, where there are numbers, for writes whose result
depends on which of them comes last, and for sums whose terms a GPU adds in no order of its own.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch._subclasses.fake_tensor import unset_fake_temporarily as real
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CUDA = torch.device("cuda", 0)
"""The device: with its number, for which torch would ask."""
NO_WORK = ("aten.detach", "aten.alias", "aten.lift_fresh", "prim.device")
"""Operations that are nothing to a device."""


class OnDevice(AssertionError):
    """Work of the device that a CUDA graph cannot hold, or that gives other results when it is repeated."""


class Pretended(TorchDispatchMode):
    """Computes shapes of tensors on `cuda`. While it `watches`, it notes their operations and refuses those that involve the host."""

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.watches = False
        self.operations: list[tuple[str, ...]] = []

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        named = named or {}
        leaves = tree_leaves((given, named))
        if not any(isinstance(leaf, FakeTensor) or (isinstance(leaf, torch.device) and leaf.type == "cuda") for leaf in leaves):
            with real():
                return function(*given, **named)
        try:
            with self.fake:
                result = SHAPES.get(str(function), function)(*given, **named)
        except (DataDependentOutputException, DynamicOutputShapeException):
            raise OnDevice(f"{function}: the host would wait for a number of the device") from None
        if self.watches and not str(function).startswith(NO_WORK):
            self._look(function, [*leaves, *tree_leaves(result)], given)
        return result

    def _look(self, function: Any, leaves: Sequence[Any], given: Sequence[Any]) -> None:
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if any(tensor.device.type == "cpu" for tensor in tensors):
            raise OnDevice(f"{function} with a tensor on the cpu: the host would copy it, or wait for it")
        if "index_put" in str(function) and any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in given[1]):
            raise OnDevice(f"{function} by truths: the host would wait for their number")
        if "cumsum" in str(function) and given[0].is_floating_point() and given[0].numel() == given[0].shape[given[1]]:
            raise OnDevice(f"{function} of one row: blocks of a GPU add what others have so far")
        self.operations.append((str(function), *(shown(leaf) for leaf in leaves)))


def shown(leaf: object) -> str:
    """Return what an argument or result of an operation is, without its numbers."""
    if isinstance(leaf, torch.Tensor):
        return f"{tuple(leaf.shape)} {leaf.stride()} {leaf.dtype}"
    return repr(leaf)


@contextmanager
def pretended() -> Iterator[Pretended]:
    """Make tensors on `cuda` possible in this context."""
    mode = Pretended()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # it is 0
        with _guarded(), patch.object(torch.autograd, "grad", gradients), mode.fake, mode:
            yield mode


@contextmanager
def _guarded() -> Iterator[None]:
    """Let a build of torch without CUDA index tensors on `cuda`: it asks a guard for the device, and has none. That of the CPU does."""
    (path,) = (Path(torch.__file__).parent / "lib").glob("*c10.[sd]*")
    guards = (ctypes.c_void_p * 2).in_dll(ctypes.CDLL(str(path)), "_ZN3c104impl26device_guard_impl_registryE")
    before = guards[1]
    guards[1] = before or guards[0]
    try:
        yield
    finally:
        guards[1] = before


@torch.no_grad()
def gradients(
    loss: torch.Tensor, leaves: Sequence[torch.Tensor], allow_unused: bool = True, materialize_grads: bool = True
) -> list[torch.Tensor]:
    """Do what torch.autograd.grad does for a loss []: its engine waits for the stream of each device, and there is none."""
    order, seen = [], set()

    def visit(node: Node) -> None:
        if node not in seen:
            seen.add(node)
            for following, _ in node.next_functions:
                if following is not None:
                    visit(following)
            order.append(node)

    assert allow_unused and materialize_grads and loss.grad_fn is not None
    visit(loss.grad_fn)
    found: dict[Node, dict[int, torch.Tensor]] = {loss.grad_fn: {0: torch.ones_like(loss)}}
    reached: dict[torch.Tensor, torch.Tensor] = {}
    for node in reversed(order):
        given = found.pop(node, {})
        if hasattr(node, "variable"):
            reached |= {node.variable: given[0]} if given else {}
            continue
        slopes = [given.get(n) for n in range(len(node._input_metadata))]
        if not given:
            back: Any = ()
        elif isinstance(node, BackwardCFunction):  # one of Python's, which has no edge for its first arguments, those that are no tensors
            back = node.apply(*slopes)[-len(node.next_functions) :]
        else:
            back = node(*slopes)
        for (following, n), part in zip(node.next_functions, back if isinstance(back, tuple) else (back,), strict=False):
            if following is not None and part is not None:
                own = found.setdefault(following, {})
                part = part.sum_to_size(following._input_metadata[n].shape)
                own[n] = own[n] + part if n in own else part
    return [reached[leaf] if leaf in reached else torch.zeros_like(leaf) for leaf in leaves]


def _gru(gates: torch.Tensor, hidden: torch.Tensor, before: torch.Tensor, *biases: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(before), before.new_empty(len(before), 5 * before.shape[1])


def _gru_backward(grad: torch.Tensor, workspace: torch.Tensor, has_bias: bool) -> tuple[torch.Tensor, ...]:
    gates = grad.new_empty(len(grad), 3 * grad.shape[1])
    return gates, torch.empty_like(gates), torch.empty_like(grad), torch.empty_like(gates[0]), torch.empty_like(gates[0])


SHAPES: dict[str, Callable[..., tuple[torch.Tensor, ...]]] = {
    "aten._thnn_fused_gru_cell.default": _gru,
    "aten._thnn_fused_gru_cell_backward.default": _gru_backward,
}
"""What operations of a GPU give whose shapes torch does not know without one."""


class Ordered(TorchDispatchMode):
    """Refuses writes to the same place that differ, and float sums of several terms in one place, in work on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = 0
        """Writes to a place that another one had as well."""

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        named = named or {}
        name = function.overloadpacket.__name__.rstrip("_")
        if name in PLACES:
            target, places, values, adds = PLACES[name](*given, **named)
            if places is not None:
                self._look(str(function), places.flatten(), values.expand(places.shape).flatten(), adds and target.is_floating_point())
        return function(*given, **named)

    def _look(self, function: str, places: torch.Tensor, values: torch.Tensor, adds: bool) -> None:
        order = places.argsort(stable=True)
        places, values = places[order], values[order]
        again = places[1:] == places[:-1]
        self.twice += int(again.sum())
        matters = again if adds else again & (values[1:] != values[:-1])
        if bool(matters.any()):
            raise OnDevice(f"{function}: a place gets several values, and the result depends on their order")


Writes = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, bool]
"""The target; the flat place of each value, None if no order matters; the values; whether they are added."""


def _numbered(target: torch.Tensor) -> torch.Tensor:
    return torch.arange(target.numel()).view(target.shape)


def _put(target: torch.Tensor, index: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False) -> Writes:
    places = _numbered(target)[tuple(slice(None) if one is None else one for one in index)]
    return target, None if accumulate else places, values, False  # sums are sorted first


def _copy(target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, adds: bool = False) -> Writes:
    return target, _numbered(target).index_select(dim, index.view(-1)).view(source.shape), source, adds


def _scatter(target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor | float, adds: bool = False) -> Writes:
    if not isinstance(source, torch.Tensor):
        return target, None, target, False
    return target, _numbered(target).gather(dim, index), source[tuple(slice(0, size) for size in index.shape)], adds


def _reduce(target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True) -> Writes:
    target, places, values, _ = _scatter(target, dim, index, source)
    return target, None if reduce in ("amax", "amin") else places, values, True


PLACES: dict[str, Callable[..., Writes]] = {
    "index_put": _put,
    "_index_put_impl": lambda target, index, values, accumulate=False, unsafe=False: _put(target, index, values, accumulate),
    "index_copy": _copy,
    "index_add": lambda target, dim, index, source, alpha=1: _copy(target, dim, index, source, True),
    "scatter": _scatter,
    "scatter_add": lambda target, dim, index, source: _scatter(target, dim, index, source, True),
    "scatter_reduce": _reduce,
}
"""By the name of an operation: what it writes."""
