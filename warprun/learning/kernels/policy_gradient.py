"""The gradient of a policy and its value by kernels, as on-policy learning takes it (`Operations.gradient`)."""

from __future__ import annotations

from itertools import zip_longest
from weakref import WeakKeyDictionary

import torch

from warprun.learning.batch import Batch
from warprun.learning.kernels.arguments import ParameterRows, Rows
from warprun.learning.kernels.policy_loss import COMPONENTS, DISTRIBUTIONS, Policy, policy_loss
from warprun.learning.kernels.rows import example, rows_of
from warprun.learning.kernels.tile_loss import UNKNOWN, Gradient, Layout, TileLoss
from warprun.learning.operations import Moments, RowLoss
from warprun.spec import Space


def tile_loss_of(space: Space, loss: RowLoss, entropy_coef: torch.Tensor, log_std: int, parameter: int) -> TileLoss:
    """Return the loss of a policy on a tile: log standard deviations are found from `log_std` on, their slopes belong to `parameter`."""
    nvec = torch.tensor(space.choices or (1,), dtype=torch.int32, device=entropy_coef.device)
    return TileLoss(
        policy_loss(DISTRIBUTIONS[space.kind], loss.formula, len(loss.terms)),
        scratch=COMPONENTS + 2 * space.components,
        settings=(Policy(nvec, space.components, log_std), loss.coefficients, entropy_coef),
        terms=len(loss.terms) + 1,
        parameter_rows=ParameterRows(COMPONENTS, parameter, space.reals),
    )


class PolicyGradient:
    """Computes gradients of one policy by kernels."""

    def __init__(self, gradient: Gradient, space: Space, device: torch.device) -> None:
        self._gradient, self._space, self._device = gradient, space, device
        self._whole: WeakKeyDictionary[Batch, tuple[Moments | tuple[()], Rows, Layout]] = WeakKeyDictionary()
        """The rows of batches that are taken whole: made once, for the same object has the same memory."""

    def compile_ahead(self) -> None:
        """Let another process compile the kernels (`kernels.ahead`)."""
        self._gradient.compile_ahead(example(self._space, self._device))

    def __call__(
        self, batch: Batch, advantage: torch.Tensor, order: torch.Tensor | None, moments: Moments | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the flat gradient [P] of the mean loss over rows, and means of its terms; the next call overwrites both."""
        if order is not None:
            return self._gradient(rows_of(batch, advantage, order, moments), len(advantage), UNKNOWN)
        if advantage is not batch.advantage:
            return self._gradient(rows_of(batch, advantage, None, moments), len(advantage), layout_of(batch))
        known = self._whole.get(batch)
        if known is None or any(new is not former for new, former in zip_longest(moments or (), known[0])):
            self._whole[batch] = known = moments or (), rows_of(batch, advantage, None, moments), layout_of(batch)
        return self._gradient(known[1], len(advantage), known[2])


def layout_of(batch: Batch) -> Layout:
    """Return how the rows of a batch that is taken whole lie in memory."""
    return Layout(batch.step_rows or 0, UNKNOWN.activations if batch.activations is None else batch.activations)
