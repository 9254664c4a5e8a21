"""Other processes compile the CUDA kernels of a learner, without a GPU."""

from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
import torch
from numba import typeof

from tests.agents import build
from tests.learning.cuda import simulated
from tests.learning.helpers import SPACES, environment, rollout
from tests.ptx import off_policy
from warprun.checking.machine_code import nvvm_problem
from warprun.kernels import ahead, cache
from warprun.kernels.without_gpu import compiling_for

pytestmark = pytest.mark.skipif(nvvm_problem() != "", reason=nvvm_problem())

GPU = ((13, 0), (9, 0))
"""Version of the CUDA runtime and compute capability."""
Asked = list[tuple[str, str, tuple[object, ...]]]


def arrays(value: object) -> object:
    """Return a value with arrays in the place of tensors, in NamedTuples, too."""
    if isinstance(value, torch.Tensor):
        return value.numpy()
    return value._make(map(arrays, value)) if isinstance(value, tuple) and hasattr(value, "_make") else value


@pytest.fixture(autouse=True)
def nothing_else_is_wanted() -> Iterator[None]:
    """Neither of what others have left, nor by others of what a test leaves."""
    ahead.dismiss()
    cache.awaited.clear()
    yield
    ahead.dismiss()
    cache.awaited.clear()


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> tuple[Asked, Asked]:
    """Return what is wanted and what is launched by learners from now on: module, kernel, types. Nothing runs."""
    wanted, launched = Asked(), Asked()

    def note(found: Asked, module: ModuleType, name: str, arguments: tuple[object, ...]) -> None:
        found.append((module.__name__, name, tuple(map(typeof, arguments))))

    for module in simulated.KERNEL_MODULES:
        monkeypatch.setattr(module, "on_device", arrays, raising=False)
        monkeypatch.setattr(module, "want", lambda *asked: note(wanted, *asked), raising=False)
        monkeypatch.setattr(
            module, "launch", lambda module, name, grid, given, shared=0: note(launched, module, name, given), raising=False
        )
    return wanted, launched


@pytest.mark.parametrize("case", simulated.UPDATES)
def test_learners_want_what_their_updates_launch(case: str, launches: tuple[Asked, Asked]) -> None:
    wanted, launched = launches
    name, settings = simulated.UPDATES[case]
    env = environment(**SPACES)
    agent = build(name, env, n_envs=8, normalize_reward=True, **settings)
    for learner in agent.learners:
        learner.operations = simulated.cuda_kernels(learner)
    agent.learn(rollout(env, n_envs=8))
    assert {"gradient", "reduce", "moments", "merge"} < {kernel for _, kernel, _ in launched}
    # Only minibatches of many rows need more than one block.
    assert set(launched) == {each for each in wanted if each[1] != "part_moments"}


@pytest.mark.parametrize("case", ["dueling dqn", "quantiles", "td3", "sac"])
def test_gradient_steps_off_policy_want_what_they_launch(case: str, launches: tuple[Asked, Asked]) -> None:
    wanted, launched = launches
    name, space, settings = off_policy.CASES[case]
    env = off_policy.environment_of(space)
    with off_policy.cuda_steps():
        agent = build(name, env, fused=True, **{"learning_starts": 0, "batch_size": 37, "utd_ratio": 0.1, **settings})
    agent.update(rollout(env, horizon=6, n_envs=5), 0.0)
    steps = {each for each in launched if each[1] in ("gradient", "reduce", "step")}
    assert len({module for module, kernel, _ in steps if kernel == "gradient"}) == len(agent.learners[0].trained.keys() - {"temperature"})
    assert steps <= set(wanted)


def test_a_kernel_for_a_gpu_is_compiled_by_a_process_without_one(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("WARPRUN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(simulated.cuda_optimizer, "THREADS", 64)  # a module that this process has not loaded
    learner = build("a2c", environment(**SPACES), n_envs=2).learners[0]
    made = simulated.cuda_optimizer.CudaAdam(learner.optimizer, learner.policy.parameters, learner.learning_rate, 0.5)
    types = tuple(typeof(arrays(each)) for each in (made.state.parameters, made.begun, made.state, np.float32(0.0), made.shown, 1))
    with compiling_for(*GPU):
        ahead.want(made.module, "step", types)
        ahead.begin()
        (path,) = cache.awaited
        cache.awaited[path]()
        kernel = made.module.step.compile(types)
    assert sum(made.module.step.stats.cache_hits.values()) == 1
    assert b"step" in bytes(kernel.library.get_cubin((9, 0, "a")).code)
