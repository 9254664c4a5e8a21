"""Arguments of losses in kernels: NamedTuples of tensors, or of arrays on the same memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    import torch

    from warprun.learning.replay import TransitionBatch

A = TypeVar("A")


class Rows(NamedTuple):
    """R rows, of which `order` selects B, unless all are taken. Tensors, or the arrays of kernels; without elements they have one."""

    order: torch.Tensor
    """[B] int64 if `ordered`."""
    obs: torch.Tensor
    """[R, F] float32."""
    mask: torch.Tensor
    """[R, M] bool if `masked`."""
    action: torch.Tensor
    """[R, C] int32 or float32."""
    log_prob: torch.Tensor
    """[R] float32: under the policy of the rollout."""
    value: torch.Tensor
    """[R] float32: by the network of the rollout."""
    advantage: torch.Tensor
    """[B] float32: already selected by `order`."""
    returns: torch.Tensor
    """[R] float32."""
    mean: torch.Tensor
    """[1] float32: of the advantages, which are normalized by it and by `variance`; 0 and 1 leave them as they are."""
    variance: torch.Tensor
    """[1] float32."""
    ordered: bool
    masked: bool


class ParameterRows(NamedTuple):
    """Rows of scratch memory whose sums over a batch are slopes of parameters that belong to no layer."""

    row: int
    parameter: int
    """First of the parameters."""
    number: int


class Drawn(NamedTuple, Generic[A]):
    """A batch of transitions as losses take it: `replay.Transitions`, and where they leave the temporal-difference errors."""

    obs: A
    action: A
    reward: A
    discount: A
    next_obs: A
    weight: A
    error: A
    """[B]."""

    @staticmethod
    def of(batch: TransitionBatch, error: torch.Tensor) -> Drawn[torch.Tensor]:
        """Return a batch with the memory of its errors."""
        return Drawn(batch.obs, batch.action, batch.reward, batch.discount, batch.next_obs, batch.weight, error)
