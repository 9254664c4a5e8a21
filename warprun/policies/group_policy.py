"""The policy of one group as a torch module: from the observations of the environment to its actions."""

from __future__ import annotations

import torch
from torch import nn

from warprun.learning.acting import Acting
from warprun.learning.distributions import squashed
from warprun.learning.normalization import normalized
from warprun.spec import Box, Discrete, GroupSpec, MultiDiscrete


class GroupPolicy(nn.Module):
    """Normalises observations, computes the network, and chooses actions.

    `shift` and `scale` [F] normalise observations; None: the network gets them as they are.
    """

    shift: torch.Tensor | None
    scale: torch.Tensor | None

    def __init__(self, group: GroupSpec, acting: Acting, shift: torch.Tensor | None, scale: torch.Tensor | None) -> None:
        super().__init__()
        self.group = group
        self.gives = acting.gives
        self.layers = acting.layers
        self.carry, self.sequence = acting.carry, acting.sequence
        """See `Acting`."""
        self.network = acting.module
        self.register_buffer("shift", shift)
        self.register_buffer("scale", scale)
        self.choices = choices(group)
        """Number of actions of each choice; empty for a Box."""
        if isinstance(group.action, Box):
            self.bounds = Bounds(group.action)

    def forward(
        self, obs: torch.Tensor, mask: torch.Tensor | None = None, carry: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the best actions, the policy outputs [B, P] and the next carry [B, H] for `obs` [B, F], `mask` [B, M] bool and `carry`.

        A carry is what the policy remembers of an episode, H = 0 numbers without memory; None: the episode begins.

        Actions are [B] int64 for Discrete, [B, C] int64 for MultiDiscrete, and [B, C] float32 within the bounds for Box. An action that
        the mask forbids is never the best, unless it forbids all of a choice: then it is the first one.
        """
        output, carry = self.step(obs, obs.new_zeros((obs.shape[0], self.carry)) if carry is None else carry)
        return self.best(output, mask), output, carry

    def step(self, obs: torch.Tensor, carry: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the network gives, see `Acting.gives`, [B, P], and the next carry [B, H]."""
        if self.shift is not None and self.scale is not None:
            obs = normalized(obs, self.shift, self.scale)
        if self.carry:
            begins = torch.zeros_like(obs[None, :, 0], dtype=torch.bool)
            output, *_, carry = self.network.unroll(obs[None], carry, begins)  # type: ignore[operator]
            return output[0], carry
        given = self.network(obs)
        return given[0] if isinstance(given, tuple) else given, carry

    def policy_output(self, obs: torch.Tensor) -> torch.Tensor:
        """Return what the network gives at the beginning of an episode, see `Acting.gives`, [B, P]."""
        return self.step(obs, obs.new_zeros((obs.shape[0], self.carry)))[0]

    def best(self, output: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return the most probable actions, those of the largest value, the actions of the network, or the tanh of the means."""
        if not self.choices:
            best = output[..., : self.group.action.components]
            bounded: torch.Tensor = self.bounds(best.tanh() if self.gives == "squashed" else best)
            return bounded
        return self._joined([part.argmax(-1) for part in self._allowed(output, mask)])

    def sampled(self, output: torch.Tensor, mask: torch.Tensor | None, rng: torch.Generator | None) -> torch.Tensor:
        """Return actions drawn from the distribution, squashed or not; only if `gives` is one."""
        if not self.choices:
            mean, log_std = output.chunk(2, -1)
            noise = torch.randn(mean.shape, generator=rng, device=mean.device)
            drawn = squashed(output, noise)[0] if self.gives == "squashed" else mean + log_std.exp() * noise
            bounded: torch.Tensor = self.bounds(drawn)
            return bounded
        chances = [part.softmax(-1) for part in self._allowed(output, mask)]
        return self._joined([torch.multinomial(part, 1, generator=rng).squeeze(-1) for part in chances])

    def _allowed(self, output: torch.Tensor, mask: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """Return the numbers of each choice, -inf where the mask forbids it."""
        if mask is not None:
            output = torch.where(mask, output, -torch.inf)
        return output.split(list(self.choices), -1)

    def _joined(self, chosen: list[torch.Tensor]) -> torch.Tensor:
        return chosen[0] if isinstance(self.group.action, Discrete) else torch.stack(chosen, -1)


class Bounds(nn.Module):
    """Maps the actions of a policy to those of the environment, see `spec.Box`; the same arithmetic as `kernels.sampling.to_bounds`."""

    low: torch.Tensor
    high: torch.Tensor
    finite: torch.Tensor
    from_low: torch.Tensor
    to_high: torch.Tensor

    def __init__(self, space: Box) -> None:
        super().__init__()
        low, high = torch.tensor(space.bounds(), dtype=torch.float32).unbind(-1)
        finite = low.isfinite() & high.isfinite()
        self.register_buffer("low", low.clone())
        self.register_buffer("high", high.clone())
        self.register_buffer("finite", finite)
        # Of the others, numbers that are never used: infinity times 0 would be NaN.
        self.register_buffer("from_low", torch.where(finite, low, 0.0))
        self.register_buffer("to_high", torch.where(finite, high, 0.0))

    def forward(self, action: torch.Tensor) -> torch.Tensor:
        """Return actions of the environment [B, C] for those of a policy [B, C]."""
        share = (action.clamp(-1.0, 1.0) + 1.0) * 0.5
        mapped = self.from_low * (1.0 - share) + self.to_high * share
        return torch.minimum(torch.maximum(torch.where(self.finite, mapped, action), self.low), self.high)


def choices(group: GroupSpec) -> tuple[int, ...]:
    """Return the number of actions of each choice of a group; none for a Box."""
    if isinstance(group.action, Discrete):
        return (group.action.n,)
    return group.action.nvec if isinstance(group.action, MultiDiscrete) else ()
