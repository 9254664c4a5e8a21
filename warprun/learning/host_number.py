"""Numbers that the host decides and operations on a device read."""

from __future__ import annotations

from typing import Any

import torch


class HostNumber:
    """A number that the host sets: `value` is the number itself on CPU, and on a GPU a tensor [] that holds it, always the same one.

    A CUDA graph repeats operations with the numbers that they were given when it was captured; what lies in a tensor it reads anew.
    """

    def __init__(self, first: float, device: torch.device) -> None:
        kind = torch.int64 if isinstance(first, int) else torch.float64
        self._on_device = device.type != "cpu"
        self.value: Any = torch.full((), first, dtype=kind, device=device) if self._on_device else first

    def set(self, number: float) -> None:
        """Set the number; what the device has been told to do before still sees the former one."""
        if self._on_device:
            self.value.fill_(number)
        else:
            self.value = number
