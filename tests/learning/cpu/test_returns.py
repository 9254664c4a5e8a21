"""Next values and advantages of the fused kernels against torch's, which the golden numbers hold."""

from __future__ import annotations

import pytest
import torch

from tests.learning.helpers import SPACES, close, environment, rollout
from tests.learning.test_agents import make
from warprun.kernels.simd import COLUMNS
from warprun.learning.batch import Spread, explained_variance


@pytest.mark.parametrize("n_envs", [1, 5, COLUMNS + 3, 5 * COLUMNS])
@pytest.mark.parametrize("normalize_obs", [False, True])
@pytest.mark.parametrize(("threads", "advantage"), [(1, "gae"), (2, "gae"), (2, "vtrace"), (1, "exarl_vtrace")])
def test_rows_of_a_rollout_are_those_of_torch(n_envs: int, normalize_obs: bool, threads: int, advantage: str) -> None:
    """Several actors, and more truncations in an environment than one; all ends are drawn at random."""
    env = environment(**SPACES)
    fused = make("a2c", env, threads, n_envs=n_envs, fused=True, normalize_obs=normalize_obs, advantage=advantage)
    plain = make("a2c", env, n_envs=n_envs, normalize_obs=normalize_obs, advantage=advantage)
    trajectory = rollout(env, horizon=6, n_envs=n_envs)
    trajectory.terminated.copy_(torch.rand(trajectory.terminated.shape) < 0.2)
    # At most one truncation in every three steps, as the rollout has room for.
    trajectory.truncated.zero_()
    trajectory.truncated[1::3] = torch.rand(trajectory.truncated[1::3].shape) < 0.5
    trajectory.truncated.logical_and_(~trajectory.terminated)
    for ours, theirs in zip(fused.learners, plain.learners, strict=True):
        close(ours.operations.next_value(trajectory), theirs.operations.next_value(trajectory), 1e-6)
        found, expected = ours.batch(trajectory), theirs.batch(trajectory)
        close(found.advantage, expected.advantage, 1e-6)
        close(found.returns, expected.returns, 1e-6)
        spread = torch.stack(found.spread[:4]), torch.stack(Spread.of(expected.advantage.double(), expected.returns.double())[:4])
        close(*spread, 1e-6)
        if advantage == "gae":
            assert found.spread.explained is not None
            close(found.spread.explained, explained_variance(Spread(*spread[1])), 1e-6)
