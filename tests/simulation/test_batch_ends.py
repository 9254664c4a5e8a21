"""Ends of episodes of a batch: the kernels do what torch does."""

import pytest
import torch

from tests.simulation.batches import Numpy
from warprun.config.batched import GROUP, batched_environment
from warprun.config.external import External
from warprun.simulation.batch_ends import Ends, KernelEnds
from warprun.simulation.trajectory import allocate


@pytest.mark.parametrize("limit", [None, 3])
def test_kernels_do_what_torch_does(limit: int | None) -> None:
    """Terminations and truncations, both at once, at the time limit and before, several in one environment."""
    environment, rng = batched_environment(Numpy, External(kwargs={}), limit, "walk", "./walk.py"), torch.Generator().manual_seed(0)
    made = [kind(allocate(environment.spec, 12, 9, torch.device("cpu")), GROUP, limit) for kind in (Ends, KernelEnds)]
    late = 0
    for row in range(12):
        reward, obs, fresh = torch.randn(9, generator=rng), torch.randn(9, 2, generator=rng), torch.randn(9, 2, generator=rng)
        terminated, truncated = torch.rand(2, 9, generator=rng) < 0.2
        found = []
        for ends in made:
            ends.obs[row + 1], ends.reward[row], ends.terminated[row], ends.truncated[row] = obs, reward, terminated, truncated
            over = ends.account(row)
            found.append(over.clone())
            if isinstance(ends, KernelEnds):
                assert ends.counts.tolist() == [over.sum(), ends.late.sum()]
                assert torch.equal(ends.late, over & ~(terminated | truncated))
                late += int(ends.late.sum())
            ends.renew(row, over, fresh)
        assert torch.equal(*found)
    assert (late > 0) == (limit is not None) and made[0].cuts.max() > 2
    for name in ("obs", "final", "terminated", "truncated", "clock", "returns", "cuts"):
        torch.testing.assert_close(*(getattr(ends, name) for ends in made), rtol=0.0, atol=0.0)
    torch.testing.assert_close(made[0].ended, made[1].ended, rtol=1e-12, atol=0.0)
