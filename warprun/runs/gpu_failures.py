"""Reports of a GPU that fails in the middle of a run. No torch before it fails."""

from __future__ import annotations

from warprun.config.memory_estimate import CUDA_CONTEXT, fitting, size_text
from warprun.config.schema import Config, load_environment
from warprun.errors import TrainingFailed, UserError
from warprun.kernels.driver import gpu_error, memory_is_full


def failure_of(error: BaseException, config: Config) -> TrainingFailed | None:
    """Return the failure to report for an error that ends a run: itself, or that of the GPU, which may show long after its cause.

    None if the error is of another kind.
    """
    if isinstance(error, TrainingFailed):
        return error
    reason = None if isinstance(error, UserError) else gpu_error(error)
    if reason is None:
        return None
    if memory_is_full(error):
        return TrainingFailed(f"the memory of the GPU is full in a run of {config.env.name}: {reason}; {what_fits(config)}")
    return TrainingFailed(
        f"the GPU fails in a run of {config.env.name}: {reason}; run again with CUDA_LAUNCH_BLOCKING=1 and engine.capture=false, which"
        " names the kernel"
    )


def what_fits(config: Config) -> str:
    """Return what to lower so that a run fits into the memory that other processes leave on the GPU."""
    import torch

    there = None
    if torch.cuda.is_initialized():
        free, _ = torch.cuda.mem_get_info()
        there = free + torch.cuda.memory_reserved() + CUDA_CONTEXT
    environment = load_environment(config.env, config.concurrency.parallel)[0]
    most = config.n_envs // 2
    fits = most if there is None else fitting("n_envs", config, environment, True, there) or 0
    # A run is estimated before it begins, so if the estimate fits after all, it was too low, or somebody had the memory for a moment.
    advice = f"lower n_envs, {min(fits, most):,} may fit, or agent.horizon" if min(fits, most) else "lower agent.horizon"
    return advice if there is None else f"{size_text(there)} are there for it: {advice}"
