"""The project on the machine: its own code makes engines, learners and arguments; only launches go to the machine.

Memory that the host allocates and nobody writes is filled with bytes of POISON, by which the machine knows it.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from tests.ptx.build import CAPABILITY
from tests.ptx.machine import Array, Launches, Machine
from tests.ptx.mistakes import Mistake
from warprun.kernels import compile as kernels
from warprun.kernels.driver import available_memory
from warprun.learning.kernels.cuda.tiles import for_cuda
from warprun.simulation import allocation, cuda_launch, cuda_layers
from warprun.simulation.device import Device

POISON = 0xA5


class OnMachine(Device):
    """For engines a GPU, for torch the CPU."""

    @property
    def torch(self) -> torch.device:
        return torch.device("cpu")

    @property
    def name(self) -> str:
        return "a machine"


DEVICE = OnMachine("cuda", "a test")


class Poisoned(TorchFunctionMode):
    """Fills what torch allocates without a value."""

    def __torch_function__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        made = function(*given, **(named or {}))
        if getattr(function, "__name__", "") in ("empty", "empty_like", "new_empty"):
            poison([made])
        return made


def poison(tensors: Iterable[torch.Tensor]) -> None:
    for tensor in tensors:
        if tensor.is_contiguous():
            tensor.view(-1).view(torch.uint8).fill_(POISON)
        else:
            one = torch.full((tensor.element_size(),), POISON, dtype=torch.uint8).view(tensor.dtype)
            tensor.copy_(one.expand(tensor.shape))


@contextmanager
def on(machine: Machine, mistake: Mistake | None = None) -> Iterator[None]:
    """Let kernels that are made from now on run on a machine, with a mistake in them if there is one."""
    load_module = kernels.load_module

    def load(name: str, source: str, functions: Mapping[str, object], *build: Any) -> Any:
        if "CACHE" not in functions:  # kernels of the CPU
            return load_module(name, source, functions, *build)
        source = mistake.in_source(source) if mistake else source
        return Launches(load_module(name, source, functions, *build), machine)

    with pytest.MonkeyPatch.context() as patch, Poisoned():
        patch.setattr(kernels, "load_module", load)
        # Environments that compile for the CPU need no trial here.
        patch.setattr(kernels, "is_tried", lambda module: True)
        stand_in = SimpleNamespace(as_cuda_array=lambda tensor, sync: Array(tensor), external_stream=lambda stream: 0)
        patch.setattr(cuda_launch, "cuda", stand_in)
        patch.setattr(allocation, "_fill", poison)
        patch.setattr(torch.cuda, "current_stream", lambda device=None: SimpleNamespace(cuda_stream=0))
        patch.setattr(torch.cuda, "mem_get_info", lambda device=None: (available_memory(), available_memory()))
        patch.setattr(cuda_layers, "capability", lambda: CAPABILITY)
        patch.setattr(cuda_launch, "allow", lambda *_: None)
        patch.setattr(machine, "mistake", mistake)
        if mistake:
            mistake.in_function(patch)
            for_cuda.forget()  # copies of the function without the mistake
        try:
            yield
        finally:
            if mistake:
                for_cuda.forget()
