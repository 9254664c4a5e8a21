"""What a CUDA graph can hold of an update, checked without a GPU: tensors of the device `meta` have shapes and no numbers.

So a number that the host would read is an error, a tensor on the CPU shows, and two updates can be compared operation by operation.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.agents import build
from tests.learning.helpers import SPACES, environment
from tests.learning.test_off_policy import single
from tests.selection import few
from warprun.environment import Environment
from warprun.learning import capture
from warprun.learning.network_settings import LayersConfig, NetworkConfig
from warprun.learning.off_policy_settings import ReplayConfig
from warprun.simulation.trajectory import allocate

META = torch.device("meta")
SCHEDULES = {"learning_rate_end": 1e-5, "entropy_coef_end": 0.0, "network": NetworkConfig(hidden=[8])}
LATE = {"learning_rate_end": 1e-5, "learning_starts": 20, "batch_size": 16, "utd_ratio": 0.2, "network": LayersConfig(hidden=[8])}
RMSPROPS = {"one": {"optimizer": {"name": "rmsprop"}}, "real": {"optimizer": {"name": "rmsprop_tf"}}}
PRIORITIZED = ReplayConfig(capacity=200, prioritized=True)
REMEMBERS = {
    "network": LayersConfig(type="lstm", hidden=[5], units=[4], sequence=3),
    "replay": ReplayConfig(capacity=200, prioritized=True, sequence=2, burn_in=1),
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "a2c": ("a2c", SCHEDULES),
    "a2c nstep": ("a2c", SCHEDULES | {"advantage": "nstep", "max_grad_norm": None}),
    "a2c plain": ("a2c", SCHEDULES | {"normalize_obs": False, "normalize_reward": False, "normalize_advantage": False}),
    "a2c rmsprop": ("a2c", SCHEDULES | {"groups": RMSPROPS}),
    "ppo": ("ppo", SCHEDULES | {"epochs": 2, "minibatches": 3}),
    "ppo target_kl": ("ppo", SCHEDULES | {"epochs": 2, "minibatches": 2, "target_kl": 0.01, "clip_value": 0.2}),
    "a2c memory": ("a2c", SCHEDULES | {"network": NetworkConfig(type="gru", hidden=[], units=[4]), "advantage": "vtrace"}),
    "ppo memory": ("ppo", SCHEDULES | {"network": NetworkConfig(type="lstm", hidden=[5], units=[4], sequence=3), "minibatches": 2}),
    "dqn": ("dqn", LATE | {"target_update_interval": 3}),
    "dqn prioritized": ("dqn", LATE | {"replay": PRIORITIZED, "n_step": 3, "double": False, "normalize_obs": True}),
    "dqn dueling": ("dqn", LATE | {"dueling": True}),
    "dqn quantiles": ("dqn", LATE | {"quantiles": 5, "dueling": True, "replay": PRIORITIZED}),
    "sac": ("sac", LATE | {"target_update_interval": 2, "max_grad_norm": 1.0, "normalize_obs": True}),
    "dqn memory": ("dqn", LATE | REMEMBERS | {"n_step": 2, "normalize_obs": True, "dueling": True}),
    "ddpg memory": ("ddpg", LATE | REMEMBERS | {"network": LayersConfig(type="gru", hidden=[5], units=[4])}),
    "td3 memory": ("td3", LATE | REMEMBERS | {"policy_delay": 2}),
    "sac memory": ("sac", LATE | REMEMBERS),
    "ddpg": ("ddpg", LATE | {"replay": PRIORITIZED, "noise": "ou"}),
    "td3": ("td3", LATE | {"policy_delay": 2, "target_update_interval": 2, "max_grad_norm": 1.0}),
}


class Watch(TorchDispatchMode):
    """Keeps a list of all operations; each must have all of its tensors on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        result = function(*given, **(named or {}))
        leaves = tree_leaves((given, named, result))
        for leaf in leaves:
            assert not isinstance(leaf, torch.Tensor) or leaf.device == META, f"{function} with a tensor on the {leaf.device}"
        shown = (f"{tuple(x.shape)} {x.stride()} {x.dtype}" if isinstance(x, torch.Tensor) else repr(x) for x in leaves)
        self.operations.append((str(function), *shown))
        return result


class NothingBrought(TorchFunctionMode):
    """Refuses tensors that are made of what lies in the host's memory, for which the host would wait."""

    def __torch_function__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        makes = function in (torch.tensor, torch.as_tensor, torch.from_numpy)
        assert not makes or isinstance(given[0], torch.Tensor), f"{function} of {given[0]}"
        return function(*given, **(named or {}))


class Watched:
    """Stands for `Captured`: the same arguments must mean the same operations with the same numbers, from the second run on."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self.work = work
        self.runs: dict[Any, list[list[tuple[Any, ...]]]] = defaultdict(list)

    def __call__(self, *arguments: Any) -> Any:
        with Watch() as watch, NothingBrought():
            result = self.work(*arguments)
        runs = self.runs[arguments]
        runs.append(watch.operations)
        assert len(runs) < 3 or runs[-1] == runs[-2]
        return result


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> list[Watched]:
    """Return all work that agents built from now on let CUDA graphs repeat."""
    made: list[Watched] = []

    def watched(work: Callable[..., Any]) -> Watched:
        made.append(Watched(work))
        return made[-1]

    monkeypatch.setattr(capture, "Captured", watched)
    return made


def world(name: str) -> Environment:
    """Return an environment for an agent: of three groups and masks where it can have them."""
    return environment(**SPACES) if name in ("a2c", "ppo") else single(name)


@pytest.mark.by_default(3)
@pytest.mark.parametrize("case", few(CASES, *(case for case in CASES if case != "sac memory")))
def test_updates_are_the_same_work_on_the_device_alone(case: str, works: list[Watched]) -> None:
    name, settings = CASES[case]
    env = world(name)
    agent = build(name, env, device=META, captured=True, **settings)
    taken = allocate(env.spec, 6, 5, META)
    taken.remember(agent.carry)
    of_rollouts = name in ("a2c", "ppo")
    if of_rollouts:
        agent._has_updated = True  # its first update reads from the device whether the agent is a restored one
    for update in range(4 if of_rollouts else 12):
        metrics = agent.update(taken, update / 12)
    act = Watched(lambda: agent.act(taken, 2))
    for _ in range(3):
        act()
    assert {value.device for value in metrics.values()} == {META}
    counts = [len(runs) for work in works for runs in work.runs.values()]
    assert min(counts) > 2, "nothing was compared"
    assert sum(counts) == (4 if of_rollouts else 12 + int((12 * 30 - 20) * 0.2))
    assert all(len(runs[-1]) > 5 for work in works for runs in work.runs.values())


def test_what_a_graph_cannot_hold_is_seen() -> None:
    """A number that the host reads or sets, and tensors on the CPU."""
    numbers = iter(range(10))
    here = torch.zeros(3, device=META)
    wrong: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: float(here[0]), RuntimeError, "item"),
        (lambda: here[here > 0], NotImplementedError, "nonzero"),
        (lambda: here + torch.ones(()), AssertionError, "on the cpu"),
        (lambda: torch.tensor(1.0, device=META), AssertionError, "of 1.0"),
    ]
    for work, error, words in wrong:
        with pytest.raises(error, match=words):
            Watched(work)()
    counting = Watched(lambda: here + next(numbers))
    counting()
    counting()
    with pytest.raises(AssertionError):
        counting()
