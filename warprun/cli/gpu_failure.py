"""What to tell of a GPU that fails. Neither numba nor torch."""

from __future__ import annotations

from warprun.errors import TrainingFailed, UserError
from warprun.kernels.driver import gpu_error


def gpu_failure(error: BaseException, environment: str) -> TrainingFailed | None:
    """Return what to tell of an error of the GPU, which may show long after the kernel that caused it; None for other errors."""
    reason = None if isinstance(error, UserError) else gpu_error(error)
    if reason is None:
        return None
    if "out of memory" in reason:
        return TrainingFailed(f"the memory of the GPU is full in a run of {environment}: {reason}; lower n_envs or agent.horizon")
    return TrainingFailed(
        f"the GPU fails in a run of {environment}: {reason}; run again with CUDA_LAUNCH_BLOCKING=1 and engine.capture=false, which names"
        " the kernel"
    )
