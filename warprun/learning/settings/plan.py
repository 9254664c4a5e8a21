"""How a run executes, decided before anything is built."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

LOSS_ROWS = 8
"""Rows of a block on a GPU that the loss of a gradient has at least: the backward pass may read so many behind a layer."""

POLICY_ROWS = 8
"""Rows that the loss of a policy has beside its terms and two rows for each component of an action (`kernels.policy_loss.COMPONENTS`)."""


@dataclass(frozen=True)
class Fusion:
    """The part of an agent's work that kernels can compute, by its settings; asking for it changes nothing."""

    network_rows: Mapping[str, int] | None
    """Per group, the rows of a block of activations of the acting network (inputs, units, outputs); None if kernels cannot run it."""
    gradient_rows: Mapping[str, int]
    """Per group, the rows of a block on a GPU that computes a gradient: the networks of the loss, and what the loss keeps of a row."""
    why_not: str = ""
    """Why kernels cannot compute the gradients, or with `network_rows` None the networks; empty if they can."""
    why_not_on_gpu: str = ""
    """Why kernels on a GPU cannot compute the networks that those on a CPU can."""
    recurrent_rows: int = 0
    """Rows of a block on a GPU for recurrent layers that kernels can compute within networks that torch computes; 0: there are none."""
    recurrent_units: int = 0
    """Units of the widest of these layers."""

    def on_gpu(self) -> Fusion:
        """Return the part that kernels on a GPU can compute."""
        return replace(self, network_rows=None, gradient_rows={}, why_not=self.why_not_on_gpu) if self.why_not_on_gpu else self


class Choice(NamedTuple):
    """Who computes an operation, and why it is not who would be faster."""

    by: str
    """kernels or torch."""
    why: str = ""
    """Empty if it is the faster one."""


@dataclass(frozen=True)
class Plan:
    """Who computes each operation of a run, and why: `make_plan` in config/planning.py decides, learning/kernels/choose.py follows."""

    rollout: Choice
    """fused: one kernel computes networks, actions and steps of a whole rollout; stepwise: the agent acts between two steps."""
    networks: Choice
    """Networks without gradients: to act, and for the values of observations."""
    gradients: Choice
    """Gradients, with the losses."""
    recurrent: Choice
    """Recurrent layers within networks that torch computes, with their gradients; of kernels on a GPU why they compute in float32. Where
    kernels compute networks, V-trace still takes the way of torch through a rollout."""
    optimizer: Choice
    """Clipping and Adam; torch computes other optimizers."""
    repeated: Choice
    """How recorded work is repeated. graphs: rollouts and updates as CUDA graphs; members: together with those of other runs, as
    `simulation.members` says; calls: updates as lists of kernel calls (CPU); Python: not at all."""
    keeps: bool
    """Whether gradients take the activations of rollouts that fit into the memory for them, instead of computing them again."""
    no_tensor_cores: str = ""
    """Why kernels on a GPU compute layers in float32; empty if tensor cores do, or if there is no GPU."""

    @property
    def fused(self) -> bool:
        return self.rollout.by == "fused"

    def __str__(self) -> str:
        """Return one line for people."""
        parts = ["fused" if self.fused else f"stepwise ({self.rollout.why})"]
        by_kernels = self.networks.by == "kernels"
        if not by_kernels and self.networks.why != self.rollout.why:
            parts.append(f"networks by torch ({self.networks.why})")
        elif by_kernels and self.gradients.by == "torch":
            parts.append(f"update by torch ({self.gradients.why})")
        elif by_kernels and not self.fused:
            parts.append("networks and gradients by kernels")
        if self.recurrent.by == "kernels" and not by_kernels:
            parts.append(f"recurrent layers by kernels{self.recurrent.why and f' in float32 ({self.recurrent.why})'}")
        elif self.recurrent.why:
            parts.append(f"recurrent layers by torch ({self.recurrent.why})")
        if self.no_tensor_cores:
            parts.append(f"layers in float32 ({self.no_tensor_cores})")
        path = ", ".join(parts).replace("fused, ", "fused rollout, ")
        if self.repeated.by == "graphs":
            return f"{path}; captured in CUDA graphs"
        if self.repeated.by == "members":
            return f"{path}; launched together with other runs"
        return f"{path}; not captured ({self.repeated.why})" if self.repeated.why else path


def no_kernel_networks(fused: bool, fusion: Fusion) -> str:
    """Return why kernels cannot compute the networks of an agent; empty if they can. `fused`: the setting `engine.fused`."""
    if not fused:
        return "engine.fused=false"
    if os.environ.get("NUMBA_DISABLE_JIT") == "1":
        return "NUMBA_DISABLE_JIT=1: everything runs as plain Python"
    return fusion.why_not if fusion.network_rows is None else ""


_BY_TORCH = Choice("torch", "torch computes everything")
STEPWISE = Plan(Choice("stepwise", _BY_TORCH.why), _BY_TORCH, _BY_TORCH, Choice("torch"), Choice("torch"), Choice("Python"), keeps=False)
"""Everything by torch and single kernels."""
