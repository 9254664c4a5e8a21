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
    by_torch, by_kernels = (kind(allocate(environment.spec, 12, 9, torch.device("cpu")), GROUP, limit) for kind in (Ends, KernelEnds))
    late = 0
    for row in range(12):
        reward, obs, fresh = torch.randn(9, generator=rng), torch.randn(9, 2, generator=rng), torch.randn(9, 2, generator=rng)
        terminated, truncated = torch.rand(2, 9, generator=rng) < 0.2
        given = obs, reward, terminated, truncated
        over = by_torch.account(row, *given)
        by_torch.renew(row, over, fresh)
        by_kernels.account(row, *(each.numpy() for each in given))
        by_kernels.renew(row, fresh.numpy())
        assert torch.equal(over, by_kernels.over)
        assert by_kernels.counts.tolist() == [over.sum(), by_kernels.late.sum()]
        assert torch.equal(by_kernels.late, over & ~(terminated | truncated))
        late += int(by_kernels.late.sum())
    assert (late > 0) == (limit is not None) and by_torch.cuts.max() > 2
    for name in ("obs", "final", "reward", "terminated", "truncated", "clock", "returns", "cuts"):
        torch.testing.assert_close(getattr(by_torch, name), getattr(by_kernels, name), rtol=0.0, atol=0.0)
    torch.testing.assert_close(by_torch.ended, by_kernels.ended, rtol=1e-12, atol=0.0)
