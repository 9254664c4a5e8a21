"""An environment whose step sleeps, and a network whose gradient step sleeps, so that many ranks are honest on few cores."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn


class Sleepy(gymnasium.Env[np.ndarray, np.int64]):
    """Nothing happens in it; episodes have ten steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, step_ms: float = 20.0) -> None:
        """`step_ms`: milliseconds of sleep in a step."""
        self.step_s = step_ms / 1e3

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(self.step_s)
        self.steps += 1
        return np.full(4, 0.1 * self.steps, np.float32), 1.0, self.steps == 10, False, {}


class SleepyNetwork(nn.Module):
    """A linear layer that sleeps in gradient steps: `agent.network.module=./sleepy.py:SleepyNetwork`."""

    def __init__(self, inputs: int, outputs: int, train_ms: float = 0.0) -> None:
        """`train_ms`: milliseconds of sleep in a gradient step."""
        super().__init__()
        self.layer, self.train_s = nn.Linear(inputs, outputs), train_ms / 1e3

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the outputs [B, outputs] of rows [B, inputs]."""
        if self.training and torch.is_grad_enabled():
            time.sleep(self.train_s)
        return self.layer(rows)


environment = Sleepy
