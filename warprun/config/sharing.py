"""How many environments the processes of a run can share. No MPI, no torch."""

from __future__ import annotations

from warprun.config.schema import DdpConfig, SyncConfig
from warprun.processes import fit


def shareable(n_envs: int, concurrency: object, size: int) -> int:
    """Return the number nearest to `n_envs` that `size` processes can share. Raises UserError if there are too few processes.

    Learners that compute together (ddp) need an environment each; actors have the same number each.
    """
    if isinstance(concurrency, SyncConfig) and min(concurrency.learners, concurrency.ranks_per_env) >= 1:
        actors = fit(size, concurrency.learners, concurrency.ranks_per_env).actors
        return max(1, round(n_envs / actors)) * actors
    return max(n_envs, size) if isinstance(concurrency, DdpConfig) else n_envs
