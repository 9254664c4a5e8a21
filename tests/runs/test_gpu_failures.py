"""A GPU that fails in the middle of a run: what is told, the exit code, and that the checkpoint stays good. Nothing here needs a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.finished import QUIET, weights
from warprun.cli.main import run
from warprun.config.compose import compose
from warprun.errors import TrainingFailed, UserError
from warprun.learning.on_policy import OnPolicyAgent
from warprun.runs import checkpoint, gpu_failures
from warprun.runs.gpu_failures import failure_of
from warprun.simulation.kernel_engine import KernelEngine

ILLEGAL = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported"
FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
CASES = {
    "illegal address": (RuntimeError(ILLEGAL), ["an illegal memory access", "run of cartpole", "CUDA_LAUNCH_BLOCKING=1"]),
    "memory": (FULL, ["run of cartpole", "Tried to allocate", "lower n_envs, 5,000 may fit"]),
}
CONFIG = ["env=cartpole", "tuned=none", "agent=a2c", "n_envs=10000", "device=cpu"]


@pytest.mark.parametrize(("error", "told"), CASES.values(), ids=CASES)
def test_an_error_of_the_gpu_is_one_line_with_the_environment_and_what_to_do(error: Exception, told: list[str]) -> None:
    message = str(failure_of(error, compose(CONFIG)))
    assert all(words in message for words in told)
    assert "\n" not in message


@pytest.mark.parametrize(
    "error",
    [UserError("the GPU refuses the kernel: CUDA error"), TrainingFailed("CUDA error"), ValueError("shapes"), KeyboardInterrupt()],
)
def test_other_errors_are_left_alone(error: BaseException) -> None:
    assert failure_of(error, compose(CONFIG)) is (error if isinstance(error, TrainingFailed) else None)


@pytest.mark.parametrize(
    ("free_gib", "told"), [(1, r"1\.9 GiB are there for it: lower n_envs, \d+,000 may fit"), (70, "lower n_envs, 500,000 may fit")]
)
def test_what_would_fit_depends_on_what_others_leave(free_gib: int, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes on one GPU: what the other one has taken counts."""
    config = compose([*CONFIG, "agent.horizon=64"])
    config.n_envs = 1_000_000
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free_gib << 30, 80 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 300 << 20)
    with pytest.raises(AssertionError, match=told):
        raise AssertionError(gpu_failures.what_fits(config))


SMALL = [*QUIET, "env=cartpole", "agent=a2c", "n_envs=4", "agent.horizon=5", "agent.network.hidden=[3]", "engine.fused=false"]
SMALL += ["total_steps=200", "checkpoint.every=2 iterations", "log.every=1 iterations"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run on a GPU that does not fail."""
    folder = tmp_path_factory.mktemp("runs") / "alone"
    assert run([*SMALL, f"run_dir={folder}"]) == 0
    return folder


def fails_at(call: int, method: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    """Return `method` as it is on a GPU that fails in one of its calls, and in all later ones."""
    calls = iter(range(1, 1000))

    def failing(*given: Any, **named: Any) -> Any:
        if next(calls) >= call:
            raise error
        return method(*given, **named)

    return failing


PLACES = {
    "rollout": (KernelEngine, "collect", 6),
    "update": (OnPolicyAgent, "update", 6),
    # The third checkpoint, when some of its tensors are written.
    "checkpoint": (checkpoint, "_add", 130),
}


@pytest.mark.by_default(3)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["illegal address", "memory"])
def test_the_checkpoint_stays_good(
    kind: str, place: str, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    owner, name, call = PLACES[place]
    folder = tmp_path / "run"
    with monkeypatch.context() as broken:
        broken.setattr(owner, name, fails_at(call, getattr(owner, name), CASES[kind][0]))
        capsys.readouterr()
        assert run([*SMALL, f"run_dir={folder}"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    saved = checkpoint.load(folder)
    assert all(words in line for words in ("run of cartpole", f"the last good checkpoint is {saved.path}"))
    status = json.loads((folder / "status.json").read_text())
    assert status["state"] == "failed" and status["reason"] in line
    assert 0 < saved.env_steps < 200
    assert {path.suffix for path in saved.path.parent.iterdir()} == {".ckpt", ".json"}  # no part of a file is left
    assert run([f"resume={folder}"]) == 0
    expected, resumed = weights(alone), weights(folder)
    assert expected.keys() == resumed.keys() and all(torch.equal(resumed[key], tensor) for key, tensor in expected.items())
