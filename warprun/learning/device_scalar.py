"""Numbers that the host sets and operations on a device read."""

from __future__ import annotations

from collections.abc import Callable

import torch


class DeviceScalar:
    """A number in a tensor [] on a device, int64 or float64 as `value` is int or float.

    The tensor stays the same one: a CUDA graph repeats operations with the Python numbers of its capture, but reads tensors again.
    """

    def __init__(self, value: float, device: torch.device) -> None:
        self.tensor = torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64, device=device)
        # NumPy needs a tenth of torch's time to write one number.
        self.set: Callable[[float], object] = self.tensor.numpy().fill if device.type == "cpu" else self.tensor.fill_
        """Set the number for the operations that are launched from now on."""
