"""What the processes of a run check before it begins."""

from __future__ import annotations

import pytest

from warprun.errors import UserError
from warprun.processes import Layout, fit

pytest.importorskip("mpi4py")


def test_learners_with_one_gpu_are_refused() -> None:
    from warprun.parallel.actors import refuse_shared_gpu

    layout = Layout(2, 2)
    refuse_shared_gpu(["GPU-a", "GPU-b", "", ""], layout.name)
    refuse_shared_gpu(["", "", "", ""], layout.name)
    with pytest.raises(UserError, match=r"rank 1 \(learner 1\) has the GPU of rank 0 \(learner 0\)"):
        refuse_shared_gpu(["GPU-a", "GPU-a", "", ""], layout.name)


def test_processes_have_the_roles_of_the_layout() -> None:
    """L + A P processes: learners, then groups of P."""
    layout = fit(8, 2, 3)
    assert layout == Layout(2, 2, 3)
    assert layout.size == 8
    assert [layout.serves(process) for process in range(8)] == [False, False, False, True, True, False, True, True]
    assert [layout.leader(actor) for actor in range(2)] == [2, 5]
    assert layout.servers(1) == [6, 7]
    assert [layout.actor_of(process) for process in range(2, 8)] == [0, 0, 0, 1, 1, 1]
    assert layout.name(7) == "rank 7 (serves the environment of actor 1)"
    assert [layout.rank(actor) for actor in range(2)] == [2, 3]  # among those that exchange rollouts


@pytest.mark.parametrize(("size", "learners", "ranks"), [(2, 1, 2), (4, 1, 2), (3, 2, 1), (7, 2, 3)])
def test_sizes_that_do_not_fit_are_refused(size: int, learners: int, ranks: int) -> None:
    with pytest.raises(UserError, match="concurrency"):
        fit(size, learners, ranks)
