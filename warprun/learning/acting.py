"""The network that acts for a group once it is trained, made from the settings alone. Nothing here needs kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn

from warprun.learning.networks import StochasticPolicy, buffers, flatten_parameters
from warprun.learning.recurrent import parts
from warprun.learning.settings.on_policy import OnPolicyConfig
from warprun.spec import GroupSpec
from warprun.state import State

Gives = Literal["distribution", "values", "actions", "squashed"]


@dataclass(frozen=True)
class Acting:
    """The network of one group, untrained."""

    module: nn.Module
    """From normalised observations [B, F] to the policy output [B, P], or to a tuple that begins with it; with memory by its
    `unroll`, which gives the policy output first and the carry last."""
    gives: Gives
    """Kind of the policy output: logits, or means and log standard deviations; values of actions; actions within -1..1; or means and log
    standard deviations of a normal distribution that tanh squashes."""
    layers: list[nn.Module]
    """Linear layers, activations and recurrent layers, whose first outputs choose the best action: the policy output, or its squashed
    means; empty for a network of the user."""
    tensors: State
    """The live tensors, by their names in a checkpoint after those of agent and group."""
    carry: int = 0
    """Numbers that the network remembers of an episode; 0: it has no memory."""
    sequence: int | None = None
    """Steps after which it forgets them; None: never."""


def distribution(config: OnPolicyConfig, group: GroupSpec) -> Acting:
    """Return the policy of an agent whose policies are distributions; `config` includes the settings of the group."""
    module = StochasticPolicy(group, config.network)
    network = module.network
    layers = [] if config.network.module is not None else parts(network.policy)
    tensors = {"parameters": flatten_parameters(module)} | buffers(network)
    return Acting(module, "distribution", layers, tensors, module.carry, config.network.sequence)
