"""How a run executes, decided before anything is built."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Fusion:
    """The part of an agent's work that kernels can compute, by its settings; asking for it changes nothing."""

    network_rows: Mapping[str, int] | None
    """Per group, the rows of a block of activations of the acting network (inputs, units, outputs); None if kernels cannot run it."""
    kernel_gradients: bool
    """Whether kernels can compute the gradients, at least on CPU."""
    reason: str = ""
    """Why something cannot be computed by kernels."""
    reason_on_gpu: str = ""
    """Why the gradients cannot be computed by kernels on a GPU, although they can on CPU."""
    recurrent: int = 0
    """Rows of a block on a GPU for recurrent layers that kernels can compute within networks that torch computes; 0: there are none."""


@dataclass(frozen=True)
class Plan:
    """How a run executes, and why."""

    rollout: Literal["fused", "stepwise"]
    """fused: one kernel computes networks, actions and steps of a whole rollout; stepwise: the agent acts between two steps."""
    rollout_reason: str
    networks: Literal["kernels", "torch"]
    """Implementation of networks without gradients: to act, and for the values of observations."""
    networks_reason: str
    gradients: Literal["kernels", "torch"]
    """Implementation of gradients."""
    gradients_reason: str
    keeps: bool
    """Whether gradients take the activations of rollouts that fit into the memory for them, instead of computing them again."""
    captured: Literal["graphs", "calls"] | None
    """How recorded work is repeated: rollouts and updates as CUDA graphs, updates as lists of kernel calls (CPU); None: not at all."""
    captured_reason: str
    """Why a GPU does not repeat CUDA graphs."""
    recurrent: Literal["kernels", "torch"] = "torch"
    """Implementation of recurrent layers, with their gradients."""
    steps: Literal["kernels", "torch"] = "torch"
    """Implementation of clipping and Adam on CPU, also where torch computes gradients."""
    recurrent_reason: str = ""
    """Why a GPU leaves recurrent layers to torch that kernels of a CPU would compute."""

    @property
    def fused(self) -> bool:
        return self.rollout == "fused"

    def __str__(self) -> str:
        """Return one line for people."""
        parts = ["fused" if self.fused else f"stepwise ({self.rollout_reason})"]
        if self.networks == "torch" and self.networks_reason != self.rollout_reason:
            parts.append(f"networks by torch ({self.networks_reason})")
        elif self.networks == "kernels" and self.gradients == "torch":
            parts.append(f"update by torch ({self.gradients_reason})")
        elif self.networks == "kernels" and not self.fused:
            parts.append("networks and gradients by kernels")
        if self.recurrent == "kernels":
            parts.append("recurrent layers by kernels")
        elif self.recurrent_reason:
            parts.append(f"recurrent layers by torch ({self.recurrent_reason})")
        path = ", ".join(parts).replace("fused, ", "fused rollout, ")
        if self.captured == "graphs":
            return f"{path}; captured in CUDA graphs"
        return f"{path}; not captured ({self.captured_reason})" if self.captured_reason else path


def no_kernel_networks(fused: bool, fusion: Fusion) -> str:
    """Return why kernels cannot compute the networks of an agent; empty if they can. `fused`: the setting `engine.fused`."""
    if not fused:
        return "engine.fused=false"
    if os.environ.get("NUMBA_DISABLE_JIT") == "1":
        return "NUMBA_DISABLE_JIT=1: everything runs as plain Python"
    return fusion.reason if fusion.network_rows is None else ""


_TORCH = "torch computes everything"
STEPWISE = Plan("stepwise", _TORCH, "torch", _TORCH, "torch", _TORCH, False, None, "")
"""Everything by torch and single kernels."""
