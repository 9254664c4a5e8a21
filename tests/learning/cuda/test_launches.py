"""How many kernels an update launches on CUDA, warprun's own and those of torch's operations: small ones cost their launches."""

from types import ModuleType
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from tests.agents import build
from tests.learning.cuda import simulated
from tests.learning.helpers import environment, rollout
from tests.ptx import off_policy
from warprun.environment import Discrete
from warprun.simulation.cpu import as_numpy
from warprun.simulation.launches import NOTHING

SCHEDULES = {"learning_rate_end": 1e-5, "entropy_coef_end": 0.0}


class Launches(TorchDispatchMode):
    """Lists, while it is entered, what would be launched on a GPU; kernels of warprun do not run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.listed: list[str] = []
        for module in simulated.KERNEL_MODULES:
            monkeypatch.setattr(module, "on_device", arrays, raising=False)
            monkeypatch.setattr(module, "want", lambda *asked: None, raising=False)
            monkeypatch.setattr(module, "launch", self.launch, raising=False)

    def launch(self, module: ModuleType, name: str, *_: object) -> None:
        self.listed.append(name)

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        if not function.is_view and not str(function).startswith(NOTHING):
            self.listed.append(str(function))
        return function(*given, **(named or {}))


def arrays(value: object) -> object:
    """Return a value with arrays in the place of tensors, in NamedTuples, too."""
    return value._make(map(arrays, value)) if hasattr(value, "_make") else as_numpy(value)


def of_an_update(monkeypatch: pytest.MonkeyPatch, name: str, **settings: Any) -> list[str]:
    """Return what the third update of an agent launches."""
    launches, env = Launches(monkeypatch), environment(only=Discrete(3))
    agent = build(name, env, n_envs=40, **settings)
    (learner,) = agent.learners
    learner.operations = simulated.cuda_kernels(learner)
    taken = rollout(env, n_envs=40)
    for n in range(2):
        agent.update(taken, 0.1 * n)
    with launches:
        launches.listed.clear()
        agent.update(taken, 0.2)
    return launches.listed


def of_a_gradient_step(monkeypatch: pytest.MonkeyPatch, case: str) -> list[str]:
    """Return what a gradient step of an off-policy agent launches."""
    launches = Launches(monkeypatch)
    name, space, settings = off_policy.CASES[case]
    env = off_policy.environment_of(space)
    with off_policy.cuda_steps():
        agent = build(name, env, fused=True, **{"learning_starts": 0, "batch_size": 37, "utd_ratio": 0.1, **settings})
    agent.update(rollout(env, horizon=6, n_envs=5), 0.0)
    (learner,) = agent.learners
    while learner.updates % 2:
        learner.update()
    with launches:
        launches.listed.clear()
        learner.update()
    return launches.listed


@pytest.mark.parametrize(("settings", "most"), [({}, 11), ({"normalize_reward": False}, 10), (SCHEDULES, 13)], ids=str)
def test_an_update_of_a2c_has_few_launches(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], most: int) -> None:
    listed = of_an_update(monkeypatch, "a2c", **settings)
    assert len(listed) <= most, listed


def test_a_gradient_step_of_ppo_has_few_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    two, three = (of_an_update(monkeypatch, "ppo", epochs=1, minibatches=minibatches) for minibatches in (2, 3))
    assert len(three) - len(two) <= 4, three
    assert len(two) <= 17, two


def test_an_update_of_ppo_has_few_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = of_an_update(monkeypatch, "ppo", epochs=4, minibatches=4, desired_kl=0.1, **SCHEDULES)
    assert len(listed) <= 83, listed


@pytest.mark.parametrize("changes", [False, True])
def test_a_gradient_that_torch_has_changed_gets_new_squares(monkeypatch: pytest.MonkeyPatch, changes: bool) -> None:
    """As the mean over processes does: the norm of a step is that of the gradient that it gets."""
    launches, env = Launches(monkeypatch), environment(only=Discrete(3))
    (learner,) = build("a2c", env, n_envs=40).learners
    learner.operations = simulated.cuda_kernels(learner)
    batch = learner.batch(rollout(env, n_envs=40)).samples()
    gradient, _ = learner.gradient(batch, batch.advantage)
    if changes:
        gradient.mul_(0.5)
    with launches:
        launches.listed.clear()
        learner.step(gradient)
    assert launches.listed == (["squares", "step"] if changes else ["step"])


@pytest.mark.parametrize(("case", "most"), [("dqn", 7), ("prioritized dqn", 8), ("td3", 8), ("sac", 16)])
def test_a_gradient_step_off_policy_has_few_launches(monkeypatch: pytest.MonkeyPatch, case: str, most: int) -> None:
    """Without the actor, where it learns in every other step."""
    listed = of_a_gradient_step(monkeypatch, case)
    assert len(listed) <= most, listed
