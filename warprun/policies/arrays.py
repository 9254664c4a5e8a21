"""A policy of fully connected layers as numpy arrays; docs/policies.md has their names and the program that uses them."""

from __future__ import annotations

import numpy as np
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
    linear = [n for n, layer in enumerate(module.layers) if isinstance(layer, nn.Linear)]
    for number, n in enumerate(linear):
        layer = module.layers[n]
        assert isinstance(layer, nn.Linear)
        # Behind the policy's outputs a shared network has the value.
        rows = _outputs(module) if n == linear[-1] else layer.out_features
        found[f"weight_{number}"] = layer.weight[:rows].cpu().numpy()
        found[f"bias_{number}"] = layer.bias[:rows].cpu().numpy()
    found["activation"] = np.array(NAMES[type(module.layers[linear[0] + 1])])
    found["output_activation"] = np.array("linear" if linear[-1] == len(module.layers) - 1 else "tanh")
    if isinstance(action, Box):
        low, high = np.array(action.bounds(), np.float32).T
        return found | {"low": low, "high": high}
    return found | {"nvec": np.array(choices(module.group))}


def _outputs(module: GroupPolicy) -> int:
    """Return how many numbers choose an action: means or actions of a Box, else a number for each action."""
    return sum(choices(module.group)) or module.group.action.components
