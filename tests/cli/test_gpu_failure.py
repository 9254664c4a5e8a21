"""What is told of a GPU that fails in the middle of a run."""

import pytest
import torch

from warprun.cli.train import gpu_failure
from warprun.errors import UserError

ILLEGAL = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported"
CASES = {
    "illegal address": (RuntimeError(ILLEGAL), ["an illegal memory access", "run of cartpole", "CUDA_LAUNCH_BLOCKING=1"]),
    "memory": (
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        ["run of cartpole", "Tried to allocate", "lower n_envs"],
    ),
}


@pytest.mark.parametrize(("error", "told"), CASES.values(), ids=CASES)
def test_an_error_of_the_gpu_is_one_line_with_the_environment_and_what_to_do(error: Exception, told: list[str]) -> None:
    message = str(gpu_failure(error, "cartpole"))
    assert all(words in message for words in told)
    assert "\n" not in message


@pytest.mark.parametrize("error", [UserError("the GPU refuses the kernel: CUDA error"), ValueError("shapes"), KeyboardInterrupt()])
def test_other_errors_are_left_alone(error: BaseException) -> None:
    assert gpu_failure(error, "cartpole") is None
