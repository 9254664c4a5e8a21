"""What a CUDA graph can hold of the work of agents, and whether it gives the same when it is repeated, checked without a GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.agents import build
from tests.learning.helpers import SPACES, environment, rollout
from tests.learning.test_off_policy import single
from tests.learning.torch_replay import TorchReplay
from tests.pretended import CUDA, OnDevice, Ordered, Pretended, gradients, pretended
from warprun.environment import Box, Environment
from warprun.learning import capture
from warprun.learning.interfaces import Context
from warprun.learning.kernels import choose
from warprun.learning.replay import Replay
from warprun.learning.settings.networks import LayersConfig, NetworkConfig
from warprun.learning.settings.off_policy import OffPolicyConfig, ReplayConfig
from warprun.simulation.trajectory import allocate
from warprun.spec import Field, GroupSpec

SCHEDULES = {"learning_rate_end": 1e-5, "entropy_coef_end": 0.0, "network": NetworkConfig(hidden=[8])}
LATE = {"learning_rate_end": 1e-5, "learning_starts": 20, "batch_size": 16, "utd_ratio": 0.2, "network": LayersConfig(hidden=[8])}
RMSPROPS = {"one": {"optimizer": {"name": "rmsprop"}}, "real": {"optimizer": {"name": "rmsprop_tf"}}}
PRIORITIZED = {"replay": ReplayConfig(capacity=200, prioritized=True)}
REMEMBERS = {
    "network": LayersConfig(type="lstm", hidden=[5], units=[4], sequence=3),
    "replay": ReplayConfig(capacity=200, prioritized=True, sequence=2, burn_in=1),
}
GRU = {"network": LayersConfig(type="gru", hidden=[5], units=[4])}
UNIFORM = {"replay": ReplayConfig(capacity=200, sequence=2, burn_in=1)}
SEES = Box(2 * 6 * 5 + 3, fields=(Field(0, (2, 6, 5)),))
"""A picture of two channels, and three numbers."""
CONV = {"encoder": "conv", "filters": [3], "kernels": [3], "strides": [2], "hidden": [8]}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dqn": ("dqn", LATE | {"target_update_interval": 3}),
    "a2c plain": ("a2c", SCHEDULES | {"normalize_obs": False, "normalize_reward": False, "normalize_advantage": False}),
    "dqn memory": ("dqn", LATE | REMEMBERS | {"n_step": 2, "normalize_obs": True, "dueling": True}),
    "td3 prioritized": ("td3", LATE | PRIORITIZED | {"policy_delay": 2, "target_update_interval": 2, "max_grad_norm": 1.0}),
    "a2c": ("a2c", SCHEDULES),
    "dqn prioritized": ("dqn", LATE | PRIORITIZED | {"n_step": 3, "double": False, "normalize_obs": True}),
    "ddpg memory": ("ddpg", LATE | REMEMBERS | GRU),
    "a2c nstep": ("a2c", SCHEDULES | {"advantage": "nstep", "max_grad_norm": None}),
    "a2c rmsprop": ("a2c", SCHEDULES | {"groups": RMSPROPS}),
    "a2c memory": ("a2c", SCHEDULES | {"network": NetworkConfig(type="gru", hidden=[], units=[4]), "advantage": "vtrace"}),
    "a2c pictures": ("a2c", SCHEDULES | {"network": NetworkConfig(**CONV)}),
    "ppo": ("ppo", SCHEDULES | {"epochs": 2, "minibatches": 3}),
    "ppo target_kl": ("ppo", SCHEDULES | {"epochs": 2, "minibatches": 2, "target_kl": 0.01, "clip_value": 0.2}),
    "ppo desired_kl": ("ppo", SCHEDULES | {"learning_rate_end": None, "desired_kl": 0.01, "epochs": 1}),
    "ppo memory": ("ppo", SCHEDULES | {"network": NetworkConfig(type="lstm", hidden=[5], units=[4], sequence=3), "minibatches": 2}),
    "ppo pictures": ("ppo", SCHEDULES | {"network": NetworkConfig(encoder="impala", hidden=[]), "epochs": 1, "minibatches": 2}),
    "dqn dueling": ("dqn", LATE | {"dueling": True}),
    "dqn quantiles": ("dqn", LATE | PRIORITIZED | {"quantiles": 5, "dueling": True}),
    "dqn gru": ("dqn", LATE | UNIFORM | GRU),
    "dqn pictures": ("dqn", LATE | PRIORITIZED | {"network": LayersConfig(**CONV)}),
    "ddpg": ("ddpg", LATE | PRIORITIZED | {"noise": "ou"}),
    "td3": ("td3", LATE | {"policy_delay": 2, "target_update_interval": 2}),
    "td3 memory": ("td3", LATE | REMEMBERS | {"policy_delay": 2}),
    "sac": ("sac", LATE | {"target_update_interval": 2, "max_grad_norm": 1.0, "normalize_obs": True}),
    "sac prioritized": ("sac", LATE | PRIORITIZED | {"n_step": 2}),
    "sac memory": ("sac", LATE | REMEMBERS),
    "sac pictures": ("sac", LATE | {"network": LayersConfig(**CONV)}),
}
UPDATES = 4
"""Of rollouts of 6 steps of 5 environments."""


def world(case: str) -> Environment:
    """Return an environment for a case: of three groups and masks where the agent can have them."""
    name, _ = CASES[case]
    seen = SEES if case.endswith("pictures") else Box(3)
    return environment(seen, **SPACES) if name in ("a2c", "ppo") else single(name, seen.size, seen.fields)


class Watched:
    """Stands for `Captured`: the same arguments must mean the same operations with the same numbers, from the second run on."""

    def __init__(self, device: Pretended, work: Callable[..., Any]) -> None:
        self.device, self.work = device, work
        self.runs: dict[Any, list[list[tuple[str, ...]]]] = defaultdict(list)

    def __call__(self, *arguments: Any) -> Any:
        first = len(self.device.operations)
        result = self.work(*arguments)
        runs = self.runs[arguments]
        runs.append(self.device.operations[first:])
        assert len(runs) < 3 or runs[-1] == runs[-2]
        return result


def by_torch(config: OffPolicyConfig, group: GroupSpec, context: Context, seed: int) -> Replay:
    return Replay(config, group, context.device, context.n_envs, seed, context.sources, TorchReplay)


@pytest.mark.by_default(3)
@pytest.mark.parametrize("case", CASES)
def test_the_work_of_agents_is_the_same_and_on_the_device_alone(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, settings = CASES[case]
    env, works = world(case), []

    def watched(work: Callable[..., Any]) -> Watched:
        works.append(Watched(device, work))
        return works[-1]

    monkeypatch.setattr(capture, "Captured", watched)
    monkeypatch.setattr(choose, "replay_memory", by_torch)  # kernels cannot run
    with pretended() as device:
        agent = build(name, env, device=CUDA, captured=True, **settings)
        taken = allocate(env.spec, 6, 5, CUDA)
        taken.remember(agent.carry)
        of_rollouts = name in ("a2c", "ppo")
        if of_rollouts:
            agent._has_updated = True  # its first update reads from the device whether the agent is a restored one
        device.watches = True
        for update in range(UPDATES):
            metrics = agent.update(taken, update / UPDATES)
        act = Watched(device, lambda: agent.act(taken, 2))
        for _ in range(3):
            act()
        found = [*metrics.values(), *(value for value in agent.diagnostics(taken).values() if isinstance(value, torch.Tensor))]
    assert {value.device for value in found} == {CUDA}
    counts = [len(runs) for work in works for runs in work.runs.values()]
    assert min(counts) > 2, "nothing was compared"
    assert sum(counts) == (UPDATES if of_rollouts else UPDATES + int((UPDATES * 30 - 20) * 0.2))
    assert all(len(runs[-1]) > 5 for work in works for runs in work.runs.values())


@pytest.mark.by_default(4)
@pytest.mark.parametrize("case", CASES)
def test_no_result_depends_on_an_order(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers on the CPU, computed as a GPU does: by torch."""
    monkeypatch.setattr(choose, "replay_memory", by_torch)
    name, settings = CASES[case]
    env = world(case)
    agent = build(name, env, **settings)
    with Ordered() as writes:
        for update in range(UPDATES):
            taken = rollout(env, seed=update)
            taken.remember(agent.carry)
            for memory in taken.carries.values():
                memory.first.normal_()
                memory.after.normal_()
            agent.update(taken, update / UPDATES)
    assert writes.twice or not getattr(settings.get("replay"), "prioritized", False), "no row was drawn twice"


def test_what_a_device_cannot_do_is_seen() -> None:
    """Numbers that the host reads, sets or brings, and tensors on the CPU."""
    with pretended() as device:
        there, rows = torch.zeros(3, device=CUDA), torch.zeros(2, dtype=torch.int64, device=CUDA)
        wrong: list[tuple[str, Callable[[], object]]] = [
            ("wait", lambda: float(there[0])),
            ("index.Tensor", lambda: there[there > 0]),
            ("truths", lambda: there.__setitem__(there > 0, there[:1])),
            ("equal", lambda: torch.equal(there, there)),
            ("_to_copy", lambda: there.cpu()),
            ("copy_", lambda: there.__setitem__(0, 1.0)),
            ("index_put_", lambda: there.__setitem__(rows, 1.0)),
            ("fill_", lambda: there.__setitem__(slice(1, 2), 1.0)),
            ("add", lambda: there + torch.ones(())),
            ("_to_copy.default", lambda: torch.tensor(1.0, device=CUDA)),
            ("index.Tensor", lambda: there[torch.tensor([0])]),
            ("of one row", lambda: there.cumsum(0)),
        ]
        device.watches = True
        for words, work in wrong:
            with pytest.raises(OnDevice, match=words):
                work()
        there[0].fill_(1.0)
        there[rows].copy_(there[1:])
        numbers = iter(range(10))
        counting = Watched(device, lambda: there + next(numbers))
        counting()
        counting()
        with pytest.raises(AssertionError):
            counting()


def test_what_depends_on_an_order_is_seen() -> None:
    twice, once = torch.tensor([1, 1]), torch.tensor([2, 1])
    values, same = torch.tensor([1.0, 2.0]), torch.ones(2)
    wrong: list[Callable[[], object]] = [
        lambda: torch.zeros(3).__setitem__(twice, values),
        lambda: torch.zeros(3).index_copy_(0, twice, values),
        lambda: torch.zeros(3).scatter_(0, twice, values),
        lambda: torch.zeros(3).index_add_(0, twice, same),
        lambda: torch.zeros(3).scatter_add_(0, twice, same),
        lambda: torch.zeros(3).scatter_reduce_(0, twice, same, "sum"),
    ]
    with Ordered() as writes:
        torch.zeros(3)[once] = values
        torch.zeros(3)[twice] = same
        torch.zeros(3, dtype=torch.int64).index_add_(0, twice, twice)
        torch.zeros(3).scatter_reduce_(0, twice, values, "amax")
        assert writes.twice == 2
        for work in wrong:
            with pytest.raises(OnDevice, match="order"):
                work()


def test_gradients_without_an_engine_are_those_of_torch() -> None:
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2))
    leaves = [*network.parameters(), torch.zeros(2, requires_grad=True)]
    output = network(torch.ones(5, 3))
    loss = output.square().sum() + (output * torch.randn(5, 1)).log_softmax(-1).mean()
    expected = torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True, materialize_grads=True)
    for own, theirs in zip(gradients(loss, leaves), expected, strict=True):
        torch.testing.assert_close(own, theirs)
