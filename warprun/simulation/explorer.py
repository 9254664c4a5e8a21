"""Random actions that reach more than independent draws do: some environments repeat theirs, some prefer the bounds."""

from __future__ import annotations

import numpy as np

from warprun.spec import Box, Discrete, GroupSpec, MultiDiscrete, Spec

PERSISTENCE = (0.0, 0.5, 0.9, 0.98)
"""Chance that an environment repeats its actions, in turn for every fourth environment."""

Actions = dict[str, np.ndarray]
"""Group -> [N, A, C], int32, or float32 in the units of the policy."""
Masks = dict[str, np.ndarray | None]
"""Group -> [N, A, M], whether an action is allowed; None: all are."""


class Explorer:
    """Draws actions for `n_envs` environments. The draws depend on the seed, the masks and the number of calls only."""

    def __init__(self, spec: Spec, n_envs: int, seed: int = 0) -> None:
        self.spec, self.n_envs = spec, n_envs
        self._random = np.random.default_rng(seed)
        self._scores: dict[str, np.ndarray] = {}

    def choose(self, masks: Masks) -> Actions:
        """Return one action for every actor; forbidden ones are not chosen unless all are forbidden."""
        return {group.name: self._of(group, masks[group.name]) for group in self.spec.groups}

    def _of(self, group: GroupSpec, mask: np.ndarray | None) -> np.ndarray:
        space = group.action
        width = space.size if isinstance(space, Box) else sum(sizes_of(space))
        shape = (self.n_envs, group.size, width)
        fresh = self._fresh(space, shape)
        repeats = self._random.random((self.n_envs, 1, 1)) < np.resize(PERSISTENCE, self.n_envs)[:, None, None]
        scores = np.where(repeats, self._scores[group.name], fresh) if group.name in self._scores else fresh
        self._scores[group.name] = scores
        if isinstance(space, Box):
            return scores.astype(np.float32)
        return best(space, scores, mask)

    def _fresh(self, space: Discrete | MultiDiscrete | Box, shape: tuple[int, ...]) -> np.ndarray:
        if not isinstance(space, Box):
            return self._random.random(shape)
        drawn = self._random.standard_normal(shape)
        bounded = np.arange(self.n_envs)[:, None, None] // len(PERSISTENCE) % 2 == 1
        finite = np.isfinite(space.bounds()).all(-1)
        # Where both bounds are finite, -1 and 1 are the bounds.
        return np.where(bounded & finite, np.sign(drawn), drawn)


def sizes_of(space: Discrete | MultiDiscrete) -> tuple[int, ...]:
    """Return the number of options of every choice."""
    return space.nvec if isinstance(space, MultiDiscrete) else (space.n,)


def best(space: Discrete | MultiDiscrete, scores: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Return the allowed option with the highest score for every choice, [..., C] int32."""
    scores = scores if mask is None else np.where(mask, scores, -1.0)
    choices = np.split(scores, np.cumsum(sizes_of(space))[:-1], axis=-1)
    return np.stack([choice.argmax(-1) for choice in choices], axis=-1).astype(np.int32)
