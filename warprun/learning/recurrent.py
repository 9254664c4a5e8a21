"""Networks with memory: recurrent layers between fully connected ones, computed over sequences of steps.

A *carry* is all that a network remembers of an episode: a row of numbers for each actor, zeros when an episode begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import nn

Cell: TypeAlias = nn.LSTMCell | nn.GRUCell
LayerOverSteps: TypeAlias = Callable[[Cell, torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, list[torch.Tensor]]]
"""f(cell, x [T, B, I], keeps [T, B], first [B, H]) computes one recurrent layer over all steps.

It returns outputs [T, B, U] and the parts of the layer's carry after each step, [T, B, U] each. Before a step for which
`keeps` is 0, not 1, the carry becomes zeros. All are float32; no gradient goes to `first`.
"""
LayersOverRows: TypeAlias = Callable[[nn.Sequential, torch.Tensor], torch.Tensor]
"""f(layers, x [..., I]) returns what layers give for rows of float32 numbers."""
CELLS: dict[str, type[nn.LSTMCell] | type[nn.GRUCell]] = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}
"""LSTM: Hochreiter & Schmidhuber 1997, with the forget gates of Gers et al. 2000. GRU: Cho et al. 2014. The formulas are those of torch."""
KEEPING = {"lstm": 1, "gru": 1}
"""Which of a cell's gates, in the order of torch, keeps what is remembered: the forget gate, the update gate."""


class Recurrent(nn.Module):
    """Layers, recurrent layers, layers. `sequence`: steps after which all is forgotten; None: never within an episode."""

    def __init__(self, kind: str, before: nn.Sequential, sizes: Sequence[int], after: nn.Sequential, sequence: int | None) -> None:
        """`sizes`: the inputs of the first recurrent layer, then the units of each. `after` gives the outputs."""
        super().__init__()
        self.kind, self.sequence = kind, sequence
        self.before, self.after = before, after
        self.cells = nn.ModuleList([CELLS[kind](inputs, units) for inputs, units in pairwise(sizes)])
        states = 2 if kind == "lstm" else 1
        self.parts = [size for size in sizes[1:] for _ in range(states)] + ([] if sequence is None else [1])
        """Sizes of the parts of a carry: for each layer its output, for an LSTM its cell; with `sequence` the steps since it forgot."""
        self.units = tuple(sizes[1:])
        """Units of each recurrent layer."""
        self.carry = sum(self.parts)
        """Numbers of a carry."""
        self.over_steps: LayerOverSteps | None = None
        """What computes recurrent layers of float32 numbers; None: torch, step by step."""
        self.over_rows: LayersOverRows = nn.Sequential.__call__
        """What computes the other layers where `over_steps` computes the recurrent ones."""

    def unroll(self, x: torch.Tensor, carry: torch.Tensor, begins: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return outputs [T, B, O] and the carry [B, H] after steps `x` [T, B, I] that follow `carry` [B, H].

        Before a step for which `begins` [T, B] bool is true, an episode begins and the carry becomes zeros.
        """
        rows, after = self._scan(x, carry, begins)
        return rows, torch.cat([part[-1] for part in after], -1)

    def places(self) -> list[int]:
        """Return where the numbers of each recurrent layer begin in a carry."""
        states = 2 if self.kind == "lstm" else 1
        return [states * sum(self.units[:n]) for n in range(len(self.units))]

    def trace(self, x: torch.Tensor, carry: torch.Tensor, begins: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return outputs [T, B, O] and the carries after each step [T, B, H], see `unroll`."""
        rows, after = self._scan(x, carry, begins)
        return rows, torch.cat(after, -1)

    def start_orthogonal(self) -> None:
        """Begin with orthogonal weights and gates that keep what is remembered: their biases are 1 (Jozefowicz et al. 2015), others 0."""
        for cell in self._cells():
            for weights in (cell.weight_ih, cell.weight_hh):
                for gate in weights.data.split(cell.hidden_size):
                    nn.init.orthogonal_(gate)
            nn.init.zeros_(cell.bias_ih)
            nn.init.zeros_(cell.bias_hh)
            cell.bias_hh.data.split(cell.hidden_size)[KEEPING[self.kind]].fill_(1.0)

    def _cells(self) -> Iterator[Cell]:
        for cell in self.cells:
            assert isinstance(cell, nn.LSTMCell | nn.GRUCell)
            yield cell

    def _scan(self, x: torch.Tensor, carry: torch.Tensor, begins: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return outputs [T, B, O] and the parts of the carry after each step, see `unroll`."""
        if self.over_steps is None or x.dtype != torch.float32:
            seen, carries = zip(*self._steps(x, carry, begins), strict=True)
            return self.after(torch.stack(seen)), [torch.stack(carries)]
        keeps, ages = self.keeps(carry, begins)
        rows, after = self.over_rows(self.before, x), []
        sizes = [(2 if self.kind == "lstm" else 1) * units for units in self.units]
        for cell, first in zip(self._cells(), carry[:, : sum(sizes)].split(sizes, -1), strict=True):
            rows, own = self.over_steps(cell, rows, keeps, first)
            after += own
        return self.over_rows(self.after, rows), after + ages

    def keeps(self, carry: torch.Tensor, begins: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return 0 where the carry becomes zeros before a step, else 1, [T, B] float32, and with `sequence` the ages [T, B, 1]."""
        if self.sequence is None:
            return (~begins).to(torch.float32), []
        age, keeps, ages = carry[:, -1], [], []
        for begun in begins:
            keeps.append((~begun & (age < self.sequence)).to(torch.float32))
            age = age * keeps[-1] + 1.0
            ages.append(age)
        return torch.stack(keeps), [torch.stack(ages)[..., None]]

    def _steps(self, x: torch.Tensor, carry: torch.Tensor, begins: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the outputs of the last recurrent layer [B, U] and the carry [B, H] after each step, see `unroll`."""
        for row, begun in zip(self.before(x), begins[..., None], strict=True):
            forgets = begun if self.sequence is None else begun | (carry[:, -1:] >= self.sequence)
            row, carry = self._step(row, carry.masked_fill(forgets, 0.0))
            yield row, carry

    def _step(self, x: torch.Tensor, carry: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output [B, U] of the last recurrent layer for `x` [B, I], and the next carry [B, H]."""
        parts, after = list(carry.split(self.parts, -1)), []
        for cell in self._cells():
            if isinstance(cell, nn.LSTMCell):
                x, state = cell(x, (parts.pop(0), parts.pop(0)))
                after += [x, state]
            else:
                x = cell(x, parts.pop(0))
                after.append(x)
        return x, torch.cat((*after, *(age + 1.0 for age in parts)), -1)


def unroll(network: nn.Module, x: torch.Tensor, carry: torch.Tensor, begins: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what `Recurrent.unroll` does, for any network of rows: one without memory leaves the carry, [B, 0], as it is."""
    if isinstance(network, Recurrent):
        return network.unroll(x, carry, begins)
    return network(x.flatten(0, 1)).unflatten(0, x.shape[:2]), carry


def parts(network: nn.Module) -> list[nn.Module]:
    """Return the linear layers, activations and recurrent layers of a network of these, in their order."""
    if isinstance(network, Recurrent):
        return [*network.before, *network.cells, *network.after]
    return list(network.children())


def carry_of(network: nn.Module | None) -> int:
    """Return the numbers of a network's carry: 0 without memory."""
    return network.carry if isinstance(network, Recurrent) else 0
