"""How a run executes, decided before anything is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Fusion:
    """What kernels can compute of an agent with given settings; asking for it changes nothing."""

    network_rows: Mapping[str, int] | None
    """Per group, the rows of a block of activations of the acting network (inputs, units, outputs); None if kernels cannot run it."""
    kernel_gradients: bool
    """Whether CPU kernels can compute the gradients."""
    reason: str = ""
    """Why something cannot be computed by kernels."""


@dataclass(frozen=True)
class Plan:
    """How a run executes, and why."""

    rollout: Literal["fused", "stepwise"]
    """fused: one kernel computes networks, actions and steps of a whole rollout; stepwise: torch runs the networks between two kernels."""
    rollout_reason: str
    gradients: Literal["kernels", "torch"]
    """What computes gradients."""
    gradients_reason: str
    captured: bool
    """Whether CUDA graphs repeat rollouts and updates."""
    captured_reason: str

    @property
    def fused(self) -> bool:
        return self.rollout == "fused"

    def __str__(self) -> str:
        """Return one line for people."""
        if not self.fused:
            path = f"stepwise ({self.rollout_reason})"
        else:
            path = "fused" if self.gradients == "kernels" else f"fused rollout, update by torch ({self.gradients_reason})"
        if self.captured:
            return f"{path}; captured in CUDA graphs"
        return f"{path}; not captured ({self.captured_reason})" if self.captured_reason else path


STEPWISE = Plan("stepwise", "torch computes everything", "torch", "torch computes everything", False, "")
"""Everything by torch and single kernels."""
