"""What the ranks of a data-parallel run save, in one checkpoint: the state of rank 0, and of the others what differs from it.

A tensor NAME of rank 3 is saved as `rank/3/NAME`. `ranks` is the number of ranks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

import numpy as np
import torch

from warprun.learning.communicator import Communicator
from warprun.parallel.distributed import Distributed
from warprun.runs.crew import RANKS
from warprun.state import State


def digest(tensors: Iterable[torch.Tensor]) -> int:
    """Return a hash of 64 bits of the contents of tensors."""
    found = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        found.update(_bytes(tensor).numpy().data)
    return int.from_bytes(found.digest(), "little")


def send_state(communicator: Communicator, own: State) -> None:
    """Send rank 0 the tensors that differ from its own; it calls `receive_states`."""
    assert isinstance(communicator, Distributed)
    names = sorted(own)
    differs = (_digests(communicator, own, names)[communicator.rank] != 0).tolist()
    chosen = [name for name, other in zip(names, differs, strict=True) if other]
    header = [(name, str(own[name].dtype).removeprefix("torch."), list(own[name].shape)) for name in chosen]
    text = torch.frombuffer(bytearray(json.dumps(header).encode()), dtype=torch.uint8)
    communicator.send(torch.tensor([len(text)]))
    communicator.send(text)
    for name in chosen:
        if own[name].numel():
            communicator.send(_bytes(own[name]))


def receive_states(communicator: Communicator, own: State) -> State:
    """Return what the other ranks send, by the names that it has in a checkpoint."""
    assert isinstance(communicator, Distributed)
    _digests(communicator, own, sorted(own))
    found = {RANKS: torch.tensor(communicator.size)}
    for rank in range(1, communicator.size):
        length = torch.zeros(1, dtype=torch.int64)
        communicator.receive(length, rank)
        text = torch.zeros(int(length), dtype=torch.uint8)
        communicator.receive(text, rank)
        for name, dtype, shape in json.loads(bytes(text.numpy())):
            tensor = torch.zeros(shape, dtype=getattr(torch, dtype))
            if tensor.numel():
                communicator.receive(_bytes(tensor), rank)
            found[f"rank/{rank}/{name}"] = tensor
    return found


def _digests(communicator: Communicator, own: State, names: list[str]) -> torch.Tensor:
    """Return how the contents of the tensors of each rank differ from those of rank 0, [ranks, tensors]: 0 if they are the same."""
    table = torch.zeros((communicator.size, len(names), 2), dtype=torch.float64)
    parts = [divmod(digest([own[name]]), 2**32) for name in names]
    table[communicator.rank] = torch.tensor(parts, dtype=torch.float64)
    communicator.sum_(table)
    return (table != table[0]).any(-1)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the content of a tensor as bytes on the CPU, on the same memory if it lies there in one piece."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return torch.from_numpy(flat.numpy().view(np.uint8)) if flat.numel() else torch.zeros(0, dtype=torch.uint8)
