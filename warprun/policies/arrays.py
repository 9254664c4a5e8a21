"""A policy of fully connected layers as numpy arrays; docs/policies.md has their names and the program that uses them."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from warprun.errors import UserError
from warprun.learning.networks import ACTIVATIONS
from warprun.learning.normalization import CLIP
from warprun.policies.group_policy import GroupPolicy, choices
from warprun.policies.policy import Policy
from warprun.spec import Box

NAMES = {kind: name for name, kind in ACTIVATIONS.items()}


def arrays(policy: Policy) -> dict[str, np.ndarray]:
    """Return all arrays by name; of several groups the names begin with `GROUP_`. Raises UserError for a network of the user."""
    found: dict[str, np.ndarray] = {}
    for name, module in policy.modules.items():
        prefix = f"{name}_" if len(policy.modules) > 1 else ""
        found |= {f"{prefix}{key}": array for key, array in _of_group(name, module).items()}
    return found


def _of_group(name: str, module: GroupPolicy) -> dict[str, np.ndarray]:
    if not module.layers:
        raise UserError(f"the network of group {name!r} is a module of yours (agent.network.module), not layers: export .onnx or .pt2")
    features, action = module.group.observation.size, module.group.action
    clip = CLIP if module.shift is not None else np.inf
    found: dict[str, np.ndarray] = {
        "obs_shift": np.zeros(features, np.float32) if module.shift is None else module.shift.cpu().numpy(),
        "obs_scale": np.ones(features, np.float32) if module.scale is None else module.scale.cpu().numpy(),
        "obs_clip": np.array(clip, np.float32),
    }
    weighted = [layer for layer in module.layers if isinstance(layer, nn.Linear | nn.LSTMCell | nn.GRUCell)]
    for number, layer in enumerate(weighted):
        found |= {f"{name}_{number}": tensor.cpu().numpy() for name, tensor in _weights(layer).items()}
    # Behind the policy's outputs a shared network has the value.
    for name in ("weight", "bias"):
        found[f"{name}_{len(weighted) - 1}"] = found[f"{name}_{len(weighted) - 1}"][: _outputs(module)]
    ends_linear = module.layers[-1] is weighted[-1]
    hidden = [NAMES[type(layer)] for layer in (module.layers if ends_linear else module.layers[:-1]) if type(layer) in NAMES]
    found["activation"] = np.array(next(iter(hidden), "linear"))
    found["output_activation"] = np.array("linear" if ends_linear else "tanh")
    cells = [layer for layer in weighted if not isinstance(layer, nn.Linear)]
    if cells:
        states = sum(layer.hidden_size * (2 if isinstance(layer, nn.LSTMCell) else 1) for layer in cells)
        found["carry"] = np.zeros(states + (module.sequence is not None), np.float32)
        found["sequence"] = np.array(np.inf if module.sequence is None else module.sequence)
    if isinstance(action, Box):
        low, high = np.array(action.bounds(), np.float32).T
        return found | {"low": low, "high": high}
    return found | {"nvec": np.array(choices(module.group))}


def _weights(layer: nn.Linear | nn.LSTMCell | nn.GRUCell) -> dict[str, torch.Tensor]:
    if isinstance(layer, nn.Linear):
        return {"weight": layer.weight, "bias": layer.bias}
    own = {"state_weight": layer.weight_hh, "state_bias": layer.bias_hh}
    return {"weight": layer.weight_ih, "bias": layer.bias_ih} | own


def _outputs(module: GroupPolicy) -> int:
    """Return how many numbers choose an action: means or actions of a Box, else a number for each action."""
    return sum(choices(module.group)) or module.group.action.components
