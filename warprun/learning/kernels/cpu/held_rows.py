"""Rows of batches in memory that stays: binding a kernel to other memory takes longer than copying the indices of some thousand rows."""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch

from warprun.learning.batch import Batch
from warprun.learning.kernels.common import Rows, rows_of
from warprun.learning.operations import Moments


class _Minibatch(NamedTuple):
    batch: Batch
    rows: Rows
    moments: Moments


class HeldRows:
    """The rows that gradients take. A minibatch overwrites the last one if it is of the same batch and size."""

    def __init__(self) -> None:
        self._whole: WeakKeyDictionary[Batch, Rows] = WeakKeyDictionary()
        """The rows of batches that are taken whole: made once, for the same object has the same memory."""
        self._last: _Minibatch | None = None

    def rows(
        self, batch: Batch, advantage: torch.Tensor, order: torch.Tensor | None, moments: Moments | None
    ) -> tuple[Rows, Moments | None]:
        """Return the rows `order` [B] of a batch (None: all) with `advantage` [B], and the moments; see `Learner.gradient`."""
        if order is not None:
            return self._minibatch(batch, advantage, order, moments)
        if advantage is not batch.advantage:
            return rows_of(batch, advantage, None), moments
        if batch not in self._whole:
            self._whole[batch] = rows_of(batch, advantage, None)
        return self._whole[batch], moments

    def _minibatch(
        self, batch: Batch, advantage: torch.Tensor, order: torch.Tensor, moments: Moments | None
    ) -> tuple[Rows, Moments | None]:
        last = self._last
        if last is None or last.batch is not batch or len(last.rows.order) != len(order):
            rows = rows_of(batch, advantage.clone(), order.clone())
            last = self._last = _Minibatch(batch, rows, (torch.zeros(()), torch.ones(())))
        else:
            last.rows.order.copy_(order)
            last.rows.advantage.copy_(advantage)
        if moments is None:
            return last.rows, None
        for kept, moment in zip(last.moments, moments, strict=True):
            kept.copy_(moment)
        return last.rows, last.moments
