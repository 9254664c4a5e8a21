"""Converts torch networks to the form that fused kernels take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
import torch
from torch import nn

from warprun.kernels.memory import GRU, LSTM, rows_of
from warprun.kernels.mlp import LINEAR, RELU, TANH, Carry, Layer, Network, Outputs
from warprun.learning.networks import ActorCritic
from warprun.learning.normalization import ObservationNormalizer
from warprun.learning.recurrent import Recurrent, parts

CODES: dict[type, int] = {nn.Tanh: TANH, nn.ReLU: RELU, nn.LSTMCell: LSTM, nn.GRUCell: GRU}


def layer_rows(parts: Iterable[nn.Module], parameters: torch.Tensor, row: int) -> list[Layer]:
    """Return the table of layers and their activations. Outputs begin at row `row` of a block; the first layer reads row 0.

    `parameters` is the flat tensor that the layers are views of. Activations are those of
    `settings.networks.KERNEL_ACTIVATIONS`.
    """
    table: list[Layer] = []
    in_row, parts = 0, list(parts)
    for n, layer in enumerate(parts):
        if isinstance(layer, nn.LSTMCell | nn.GRUCell):
            code, weight, bias, sizes = CODES[type(layer)], layer.weight_ih, layer.bias_ih, (layer.input_size, layer.hidden_size)
        elif isinstance(layer, nn.Linear):
            after = parts[n + 1] if n + 1 < len(parts) else None
            code = LINEAR if after is None or isinstance(after, nn.Linear | nn.LSTMCell | nn.GRUCell) else CODES[type(after)]
            weight, bias, sizes = layer.weight, layer.bias, (layer.in_features, layer.out_features)
        else:
            continue
        at = [(p.data_ptr() - parameters.data_ptr()) // parameters.element_size() for p in (weight, bias)]
        table.append(Layer(at[0], at[1], *sizes, in_row, row, code))
        in_row, row = row, row + (rows_of(code, sizes[1]) if code in (LSTM, GRU) else sizes[1])
    return table


def stacked_rows(stacks: Sequence[Sequence[nn.Module]], parameters: torch.Tensor) -> tuple[list[Layer], Outputs]:
    """Return the table of networks that share the first rows of a block, their inputs, and the rows of their outputs.

    Several networks are alike, and have one output each.
    """
    table: list[Layer] = []
    outputs: list[int] = []
    row = next(layer.in_features for layer in stacks[0] if isinstance(layer, nn.Linear))
    for layers in stacks:
        table += layer_rows(layers, parameters, row)
        row = table[-1].out_row + table[-1].n_out
        outputs += range(table[-1].out_row, row)
    apart = outputs[1] - outputs[0] if len(outputs) > 1 else 1
    return table, Outputs(len(outputs), outputs[0], apart)


def policy_layers(network: ActorCritic, parameters: torch.Tensor) -> list[Layer]:
    """Return the table of a policy and its value. Their outputs are the last rows of a block, the value at the end."""
    policy = layer_rows(parts(network.policy), parameters, network.inputs)
    if network.value is None:
        return policy
    value = layer_rows(parts(network.value), parameters, policy[-1].out_row)
    row = value[-1].out_row
    heads = [policy[-1]._replace(out_row=row), value[-1]._replace(out_row=row + network.outputs)]
    return [*policy[:-1], *value[:-1], *heads]


def carry_numbers(network: ActorCritic) -> Carry:
    """Return where the numbers of a policy's carry are, which are followed by those of its value."""
    ends = [end for end, size in zip(accumulate(network.carries), network.carries, strict=True) if size]
    sequence = network.policy.sequence if isinstance(network.policy, Recurrent) else None
    ages = [end - 1 for end in ends] if sequence else []
    return Carry(sum(network.carries), np.array(network.carry_places(), np.int64), np.array(ages, np.int64), sequence or 0)


def fused_layers(parts: Sequence[nn.Module], parameters: torch.Tensor, normalizer: ObservationNormalizer | None) -> Network:
    """Return a network without a value."""
    first = next(part for part in parts if isinstance(part, nn.Linear))
    table = layer_rows(parts, parameters, first.in_features)
    outputs = table[-1].out_row
    rows = outputs + table[-1].n_out + 1  # a row of zeros stands for the value
    flat, mean, scale = for_kernels(parameters, normalizer)
    return Network(flat, np.array(table, np.int64), outputs, rows - 1, rows, 0, mean, scale)


def for_kernels(parameters: torch.Tensor, normalizer: ObservationNormalizer | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return parameters, and mean and scale of observations, as arrays on the memory of torch; on a GPU return the tensors."""
    none = torch.zeros(0, device=parameters.device)
    tensors = (parameters, normalizer.shift, normalizer.scale) if normalizer else (parameters, none, none)
    return tuple(t.numpy() if t.device.type == "cpu" else t for t in tensors)  # type: ignore[return-value]
