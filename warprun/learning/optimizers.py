"""Optimisers over one flat tensor, with torch's definitions. Their state is tensors only, so that a CUDA graph can repeat a step."""

from __future__ import annotations

import torch

from warprun.learning.settings.agent import OptimizerConfig


class Adam:
    """Adam: Kingma & Ba 2015, algorithm 1."""

    def __init__(self, parameters: torch.Tensor, config: OptimizerConfig) -> None:
        self.config = config
        self.mean = torch.zeros_like(parameters)
        self.square = torch.zeros_like(parameters)
        # float64: 1 - 0.999 loses four digits in float32.
        self.steps = torch.zeros((), dtype=torch.float64, device=parameters.device)

    def step(self, parameters: torch.Tensor, gradient: torch.Tensor, rate: torch.Tensor) -> None:
        """Move `parameters` [P] in place against `gradient` [P]; `rate` is a tensor of one number."""
        beta1, beta2 = self.config.beta1, self.config.beta2
        self.steps += 1
        self.mean.lerp_(gradient, 1 - beta1)
        self.square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (self.square / (1 - beta2**self.steps)).sqrt_()
        parameters -= rate / (1 - beta1**self.steps) * self.mean / (root + self.config.eps)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the state by name."""
        return {"mean": self.mean, "square": self.square, "steps": self.steps}


class RMSprop:
    """RMSprop without momentum: Hinton's lecture 6e; eps is added to the root."""

    def __init__(self, parameters: torch.Tensor, config: OptimizerConfig) -> None:
        self.config = config
        self.square = torch.zeros_like(parameters)

    def step(self, parameters: torch.Tensor, gradient: torch.Tensor, rate: torch.Tensor) -> None:
        self.square.mul_(self.config.alpha).addcmul_(gradient, gradient, value=1 - self.config.alpha)
        parameters -= rate * gradient / (self.square.sqrt() + self.config.eps)

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"square": self.square}


class RMSpropTF:
    """RMSprop as TensorFlow has it: eps inside the root, and the mean square starts at 1."""

    def __init__(self, parameters: torch.Tensor, config: OptimizerConfig) -> None:
        self.config = config
        self.square = torch.ones_like(parameters)

    def step(self, parameters: torch.Tensor, gradient: torch.Tensor, rate: torch.Tensor) -> None:
        self.square.mul_(self.config.alpha).addcmul_(gradient, gradient, value=1 - self.config.alpha)
        parameters -= rate * gradient / (self.square + self.config.eps).sqrt()

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"square": self.square}


Optimizer = Adam | RMSprop | RMSpropTF
OPTIMIZERS: dict[str, type[Optimizer]] = {"adam": Adam, "rmsprop": RMSprop, "rmsprop_tf": RMSpropTF}


def clip_norm(gradient: torch.Tensor, max_norm: float | None) -> torch.Tensor:
    """Scale `gradient` [P] in place down to `max_norm` and return the norm it had, []; the 1e-6 is torch's."""
    norm = torch.linalg.vector_norm(gradient)
    if max_norm is not None:
        gradient *= (max_norm / (norm + 1e-6)).clamp(max=1.0)
    return norm
