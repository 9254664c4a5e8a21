"""Actions of the environment from what a network gives, a module for each kind of action space."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from warprun.learning.acting import Gives
from warprun.learning.distributions import squashed
from warprun.spec import ActionKind, Space


class ChoiceActions(nn.Module):
    """Choices by their logits or values. Actions are int64, [B] if the space's `shape` has no axes, else [B, C]."""

    start: torch.Tensor

    def __init__(self, space: Space, gives: Gives) -> None:
        super().__init__()
        self.choices, self.shape = list(space.choices), space.shape
        self.register_buffer("start", torch.tensor(space.starts))

    def best(self, output: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return the choices with the largest of their outputs [B, P] that `mask` [B, P] allows."""
        return self._joined([part.argmax(-1) for part in self._allowed(output, mask)])

    def sampled(self, output: torch.Tensor, mask: torch.Tensor | None, rng: torch.Generator | None) -> torch.Tensor:
        """Return choices drawn by their logits [B, P]."""
        chances = [part.softmax(-1) for part in self._allowed(output, mask)]
        return self._joined([torch.multinomial(part, 1, generator=rng).squeeze(-1) for part in chances])

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what another program needs to compute actions."""
        return {"nvec": np.array(self.choices), "start": self.start.cpu().numpy()}

    def _allowed(self, output: torch.Tensor, mask: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """Return the numbers of each choice, -inf where the mask forbids it."""
        if mask is not None:
            output = torch.where(mask, output, -torch.inf)
        return output.split(self.choices, -1)

    def _joined(self, chosen: list[torch.Tensor]) -> torch.Tensor:
        counted = torch.stack(chosen, -1) + self.start
        return counted if self.shape else counted[..., 0]


class RealActions(nn.Module):
    """Real numbers within their bounds (see `spec.Box`), float32 [B, C], computed as `kernels.sampling.to_bounds` does."""

    low: torch.Tensor
    high: torch.Tensor
    finite: torch.Tensor
    from_low: torch.Tensor
    to_high: torch.Tensor

    def __init__(self, space: Space, gives: Gives) -> None:
        super().__init__()
        self.reals, self.squashes = space.reals, gives == "squashed"
        low, high = torch.tensor(space.bounds(), dtype=torch.float32).unbind(-1)
        finite = low.isfinite() & high.isfinite()
        self.register_buffer("low", low.clone())
        self.register_buffer("high", high.clone())
        self.register_buffer("finite", finite)
        # Of the others, numbers that are never used: infinity times 0 would be NaN.
        self.register_buffer("from_low", torch.where(finite, low, 0.0))
        self.register_buffer("to_high", torch.where(finite, high, 0.0))

    def best(self, output: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return the means or actions that begin `output` [B, P], of a squashed policy their tanh."""
        best = output[..., : self.reals]
        return self._bounded(best.tanh() if self.squashes else best)

    def sampled(self, output: torch.Tensor, mask: torch.Tensor | None, rng: torch.Generator | None) -> torch.Tensor:
        """Return draws from the normal distributions of means and log standard deviations [B, P], squashed or not."""
        mean, log_std = output.chunk(2, -1)
        noise = torch.randn(mean.shape, generator=rng, device=mean.device)
        return self._bounded(squashed(output, noise)[0] if self.squashes else mean + log_std.exp() * noise)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what another program needs to compute actions."""
        return {"low": self.low.cpu().numpy(), "high": self.high.cpu().numpy()}

    def _bounded(self, action: torch.Tensor) -> torch.Tensor:
        share = (action.clamp(-1.0, 1.0) + 1.0) * 0.5
        mapped = self.from_low * (1.0 - share) + self.to_high * share
        return torch.minimum(torch.maximum(torch.where(self.finite, mapped, action), self.low), self.high)


ACTIONS: dict[ActionKind, type[ChoiceActions | RealActions]] = {"choices": ChoiceActions, "reals": RealActions}
