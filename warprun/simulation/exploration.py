"""How a simulator draws actions if the outputs of a policy are values of actions, or actions. Light to import: no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from warprun.spec import PolicyKind

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Exploration:
    """The rule and the numbers of an agent that explores; the agent changes the numbers in place, so they are read at every step."""

    policies: PolicyKind
    """"explored" or "squashed"."""
    numbers: Mapping[str, torch.Tensor]
    """Per group, [3] float32: share of uniform actions; standard deviation and reversion of the noise on actions that are explored."""
