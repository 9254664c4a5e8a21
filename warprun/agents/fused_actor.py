"""Networks as the fused kernels take them; those of the off-policy agents wholly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from warprun.agents.normalization import ObservationNormalizer
from warprun.engine.mlp import LINEAR, RELU, TANH, Layer, Network

CODES: dict[type, int] = {nn.Tanh: TANH, nn.ReLU: RELU}


def layer_rows(parts: Sequence[nn.Module], parameters: torch.Tensor, row: int) -> list[Layer] | None:
    """Return the table of linear layers, each followed by its activation or none, whose outputs begin at `row`; the first reads row 0.

    `parameters` is the flat tensor that the layers are views of. None where a kernel does not know an activation.
    """
    table: list[Layer] = []
    in_row = 0
    for n, linear in enumerate(parts):
        if not isinstance(linear, nn.Linear):
            continue
        after = parts[n + 1] if n + 1 < len(parts) else None
        if after is not None and not isinstance(after, nn.Linear) and type(after) not in CODES:
            return None
        at = [(p.data_ptr() - parameters.data_ptr()) // parameters.element_size() for p in (linear.weight, linear.bias)]
        code = CODES.get(type(after), LINEAR)
        table.append(Layer(at[0], at[1], linear.in_features, linear.out_features, in_row, row, code, 0))
        in_row, row = row, row + linear.out_features
    return table


def fused_layers(parts: Sequence[nn.Module], parameters: torch.Tensor, normalizer: ObservationNormalizer | None) -> Network | None:
    """Return a network that gives outputs and no value, or None where the kernels cannot run it."""
    linear = next(part for part in parts if isinstance(part, nn.Linear))
    table = layer_rows(parts, parameters, linear.in_features)
    if table is None:
        return None
    outputs = table[-1].out_row
    rows = outputs + table[-1].n_out + 1  # a row of zeros stands for the value
    flat, mean, scale = for_kernels(parameters, normalizer)
    return Network(flat, np.array(table, np.int64), outputs, rows - 1, rows, 0, mean, scale)


def for_kernels(parameters: torch.Tensor, normalizer: ObservationNormalizer | None) -> tuple[Any, Any, Any]:
    """Return parameters, and mean and scale of observations, on the memory of torch: arrays for kernels on CPU, tensors elsewhere."""
    none = torch.zeros(0, device=parameters.device)
    tensors = (parameters, normalizer.shift, normalizer.scale) if normalizer else (parameters, none, none)
    return tuple(t.numpy() if t.device.type == "cpu" else t for t in tensors)  # type: ignore[return-value]
