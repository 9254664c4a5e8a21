"""The device of a run, and the reason for its choice."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch

from warprun.errors import UserError
from warprun.kernels.driver import launch_problem, why_no_cuda


@dataclass(frozen=True)
class Device:
    """A device and the reason for it."""

    kind: Literal["cpu", "cuda", "cudasim"]
    why: str

    @property
    def torch(self) -> torch.device:
        return torch.device("cuda" if self.kind == "cuda" else "cpu")

    @property
    def name(self) -> str:
        """Name for messages: that of the GPU, else `kind`."""
        return torch.cuda.get_device_name() if self.kind == "cuda" else self.kind


def choose(wanted: str) -> Device:
    """Return the device for `device=wanted` (auto, cpu, cuda or cudasim).

    Raises UserError if device=cuda is requested and CUDA does not work. auto then chooses the CPU and gives the reason.
    """
    if wanted == "cpu":
        return Device("cpu", "requested")
    if wanted == "cudasim":
        if "numba" in sys.modules and os.environ.get("NUMBA_ENABLE_CUDASIM") != "1":
            raise UserError(
                "device=cudasim: Numba is already loaded without its simulator; set NUMBA_ENABLE_CUDASIM=1 before Python starts"
            )
        os.environ["NUMBA_ENABLE_CUDASIM"] = "1"
        return Device("cudasim", "requested; slow, for tests of CUDA kernels without a GPU")
    problem = cuda_problem()
    if wanted == "cuda":
        if problem:
            raise UserError(f"device=cuda: {problem}")
        return Device("cuda", "requested")
    if problem:
        return Device("cpu", f"no CUDA: {problem}")
    return Device("cuda", "a kernel has run on it")


@cache
def cuda_problem() -> str | None:
    """Return why CUDA cannot be used, and what to do; None if it can: a kernel has run."""
    problem = why_no_cuda()
    if problem:
        return problem
    return launch_problem()
