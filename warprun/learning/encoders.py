"""Convolutions over the fields of observations, before the layers of a network."""

from __future__ import annotations

import math

import torch
from torch import nn

from warprun.learning.settings.networks import ENCODERS, IMPALA, LayersConfig
from warprun.spec import Box, Field

Convolution = nn.Conv1d | nn.Conv2d


class Encoder(nn.Module):
    """From rows of observations [..., F] to rows [..., E]: what convolutions give for each field, then the columns that are no field.

    nature and impala end with a layer of units. All units are rectified. Sizes: `LayersConfig.layout`.
    """

    def __init__(self, observation: Box, config: LayersConfig) -> None:
        super().__init__()
        self.fields, self.rest = observation.fields, observation.rest
        self.each = nn.ModuleList(_convolutions(field, config) for field in self.fields)
        units = ENCODERS[str(config.encoder)]
        self.units = nn.Sequential(*([nn.Linear(config.layout(observation).joined, units), nn.ReLU()] if units else []))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """Return rows [..., E] of normalised observations [..., F]."""
        rows = obs.reshape(-1, obs.shape[-1])
        seen = [each(picture(rows, field)).flatten(1) for field, each in zip(self.fields, self.each, strict=True)]
        found: torch.Tensor = self.units(torch.cat([*seen, *(rows[:, columns] for columns in self.rest)], 1))
        return found.unflatten(0, obs.shape[:-1])

    def start_orthogonal(self) -> None:
        """Begin with convolutions of orthogonal weights with gain sqrt(2), and of biases 0."""
        for layer in self.modules():
            if isinstance(layer, Convolution):
                nn.init.orthogonal_(layer.weight, math.sqrt(2))
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)


def picture(rows: torch.Tensor, field: Field) -> torch.Tensor:
    """Return a field of rows [B, F] as [B, C, L] or [B, C, H, W], the latter in memory with the channels last: CPUs compute that faster."""
    cells = rows[:, field.columns].unflatten(1, field.order)
    cells = cells.movedim(-1, 1) if field.channels_last else cells
    return cells.contiguous(memory_format=torch.channels_last) if cells.ndim == 4 else cells


class Residual(nn.Module):
    """x + what two convolutions of the same size give for x."""

    def __init__(self, filters: int, kind: type[Convolution]) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(part for _ in range(2) for part in (nn.ReLU(), kind(filters, filters, 3, padding=1))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return an array of the shape of `x`."""
        found: torch.Tensor = x + self.layers(x)
        return found


def _convolutions(field: Field, config: LayersConfig) -> nn.Sequential:
    channels, *size = field.shape
    kind: type[Convolution] = nn.Conv1d if len(size) == 1 else nn.Conv2d
    layers: list[nn.Module] = []
    if config.encoder == "impala":
        largest = nn.MaxPool1d if len(size) == 1 else nn.MaxPool2d
        for filters in IMPALA:
            layers += [kind(channels, filters, 3, padding=1), largest(3, 2, padding=1), Residual(filters, kind), Residual(filters, kind)]
            channels = filters
        return nn.Sequential(*layers, nn.ReLU())
    for filters, kernel, stride in config.kernel_sizes():
        layers += [kind(channels, filters, kernel, stride), nn.ReLU()]
        channels = filters
    return nn.Sequential(*layers)
