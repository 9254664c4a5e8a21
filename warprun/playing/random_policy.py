"""A policy that knows nothing: uniform actions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from warprun.simulation.exploration import Exploration
from warprun.simulation.trajectory import Trajectory
from warprun.spec import Box, Spec


class RandomPolicy:
    """Draws each action uniformly: of a choice among the allowed ones, of a real number within its bounds.

    A component with an infinite bound is standard normal, clipped at the other bound. The policy is the drawn action, so take its most
    probable one (greedy).
    """

    exploration: Exploration | None = None

    def __init__(self, spec: Spec, seed: int) -> None:
        self.carry: Mapping[str, int] = {}
        self._groups = spec.groups
        self._draws = np.random.default_rng(seed)

    def act(self, trajectory: Trajectory, row: int) -> None:
        """Write the outputs of a policy that takes the actions drawn now."""
        for group in self._groups:
            arrays = trajectory.groups[group.name]
            # Of random logits the largest is any of them, with the same probability.
            outputs = self._draws.random(tuple(arrays.policy_output.shape), np.float32)
            if isinstance(group.action, Box):
                outputs[..., : group.action.size] = self._real(group.action, outputs.shape[:-1])
            elif arrays.mask is not None:
                outputs[~arrays.mask[row].cpu().numpy()] = -np.inf
            arrays.policy_output.copy_(torch.from_numpy(outputs))

    def _real(self, space: Box, actors: tuple[int, ...]) -> np.ndarray:
        """Return actions [..., size] in the units of a policy."""
        bounded = np.isfinite(space.bounds()).all(1)
        shape = (*actors, space.size)
        drawn: np.ndarray = np.where(bounded, self._draws.uniform(-1.0, 1.0, shape), self._draws.standard_normal(shape))
        return drawn
