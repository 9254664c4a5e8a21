"""Recorded kernel calls on CPU: the same training as without them, and what is not repeated."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from warprun.algorithms.a2c import A2C
from warprun.algorithms.settings import A2CConfig
from warprun.config.compose import compose
from warprun.errors import UserError
from warprun.kernels.bound import Call
from warprun.kernels.compile import BOUND, load_module
from warprun.kernels.repeat import CHECKED, TRIES, Repeated
from warprun.learning.batch import Batch
from warprun.learning.on_policy import Learner
from warprun.runs.build import make_agent, make_training_simulator, prepare, set_up
from warprun.state import restore

ON_POLICY = ["agent=a2c", "agent.horizon=4", "tuned=none", "device=cpu"]
PLAIN = ["agent.normalize_obs=false", "agent.normalize_reward=false"]
OFF_POLICY = ["n_envs=2", "agent.learning_starts=8", "agent.batch_size=70", "agent.replay.capacity=80", "tuned=none", "device=cpu"]
CASES = {
    "A2C": ["env=cartpole", "n_envs=70", *ON_POLICY],
    "DQN": ["env=cartpole", "agent=dqn", *OFF_POLICY, "agent.target_update_interval=3"],
    "A2C, activations kept": ["env=cartpole", "n_envs=70", *ON_POLICY, *PLAIN],
    "DQN, priorities": ["env=cartpole", "agent=dqn", *OFF_POLICY, "agent.replay.prioritized=true", "agent.n_step=2"],
    "TD3": ["env=pendulum", "agent=td3", *OFF_POLICY],
    "SAC": ["env=pendulum", "agent=sac", *OFF_POLICY],
    "PPO": ["env=cartpole", "n_envs=5", "agent=ppo", *ON_POLICY[1:], "agent.minibatches=3", "agent.desired_kl=0.01"],
    "PPO, updates that stop": ["env=cartpole", "n_envs=5", "agent=ppo", *ON_POLICY[1:], "agent.minibatches=2", "agent.target_kl=0.02"],
}
NOT_REPEATED = ("PPO, updates that stop",)
UPDATES = 40


class Training:
    def __init__(self, case: str, captured: bool, threads: int) -> None:
        self.setup = setup = set_up(compose([*CASES[case], f"engine.capture={str(captured).lower()}", f"concurrency.threads={threads}"]))
        self.agent = make_agent(setup)
        self.simulator = make_training_simulator(setup, self.agent)
        prepare(setup, self.simulator)
        self.metrics: dict[str, torch.Tensor] = {}

    def update(self, times: int) -> None:
        for n in range(times):
            self.metrics = self.agent.update(self.simulator.collect(self.agent.act), n / times)

    def numbers(self) -> dict[str, np.ndarray]:
        found = self.agent.state() | self.simulator.state() | {f"metrics/{name}": value for name, value in self.metrics.items()}
        return {name: torch.as_tensor(tensor).numpy().copy() for name, tensor in found.items()}

    @property
    def repeats(self) -> bool:
        agent: Any = self.agent
        works = [agent.device_work] if hasattr(agent, "device_work") else [learner.device_work for learner in agent.learners]
        return all(isinstance(work, Repeated) and work.repeats for table in works for work in table)


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.by_default(1)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("threads", [1, 2])
def test_training_is_that_without_recording(case: str, threads: int) -> None:
    recorded, plain = Training(case, True, threads), Training(case, False, 1)
    for training in (recorded, plain):
        training.update(UPDATES)
    assert recorded.repeats == (case not in NOT_REPEATED)
    same(recorded.numbers(), plain.numbers())


def test_two_updates_are_enough_to_repeat_the_third() -> None:
    training = Training("PPO", True, 1)
    training.update(2)
    assert training.repeats


def test_a_restored_agent_goes_on_as_recorded() -> None:
    """A checkpoint writes to the memory that recorded calls use."""
    going_on, plain = Training("A2C", True, 1), Training("A2C", False, 1)
    plain.update(UPDATES)
    going_on.update(UPDATES + 1)
    assert going_on.repeats
    for part in ("agent", "simulator"):
        restore(getattr(going_on, part).state(), getattr(plain, part).state())
    for training in (going_on, plain):
        training.update(UPDATES)
    same(going_on.numbers(), plain.numbers())


def test_two_trajectories_take_turns() -> None:
    """Each is recorded on its own, and neither is mistaken for the other."""
    recorded, plain = Training("A2C, activations kept", True, 1), Training("A2C, activations kept", False, 1)
    for training in (recorded, plain):
        others = make_training_simulator(training.setup, training.agent)
        prepare(training.setup, others)
        for n in range(3 * CHECKED):
            simulator = training.simulator if n // 7 % 2 else others
            training.metrics = training.agent.update(simulator.collect(training.agent.act), 0.5)
    assert recorded.repeats
    same(recorded.numbers(), plain.numbers())


def test_an_agent_that_derives_from_another_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it adds may compute something in Python, which machine code would leave out."""

    class Decaying(A2C):
        def learn_group(self, learner: Learner[A2CConfig], batch: Batch) -> dict[str, torch.Tensor]:
            found = super().learn_group(learner, batch)
            learner.policy.parameters.numpy()[:] *= 0.9
            return found

    monkeypatch.setattr("warprun.runs.build.agent_class", lambda name: Decaying)
    training = Training("A2C", True, 1)
    training.update(3 * UPDATES)
    assert float(training.agent.learners[0].policy.parameters.abs().max()) < 0.1  # type: ignore[attr-defined]


# Work of a single kernel -----------------------------------------------------------------------------------------------------------------

SOURCE = """
from numba import njit


@njit(cache=True, **BOUND)
def add(first, last, thread, numbers, more):
    for n in range(first, last):
        numbers[n] += more
"""


class Adding:
    """Work that adds to numbers by a kernel, and what else `besides` does."""

    def __init__(self, besides: Callable[[int], object] = lambda n: None) -> None:
        self.numbers = torch.zeros(3)
        self.runs = 0
        self.call = Call(load_module("adding", SOURCE, {"BOUND": BOUND}).add, self.numbers.numpy(), 1.0)
        self.besides = besides
        self.work = Repeated(self._run, 1)

    def _run(self) -> torch.Tensor:
        self.besides(self.runs)
        self.runs += 1
        self.call(0, 3, 0)
        return self.numbers

    def run(self, times: int) -> list[float]:
        return [float(self.work()[0]) for _ in range(times)]


def test_the_same_calls_are_repeated_and_looked_at_now_and_then() -> None:
    adding = Adding()
    assert adding.run(3 * CHECKED) == list(range(1, 3 * CHECKED + 1))
    assert adding.runs == 2 + 3  # two that were recorded, and one in CHECKED of the others


@pytest.mark.parametrize("besides", ["torch computes", "torch computes in every other run", "other numbers", "reads a number"])
def test_other_work_is_not_repeated(besides: str) -> None:
    total = torch.zeros(())
    adding = Adding(
        {
            "torch computes": lambda n: total.add_(1.0),
            "torch computes in every other run": lambda n: None if n % 2 else total.add_(1.0),
            "other numbers": lambda n: adding.call.change(more=float(n)),
            "reads a number": lambda n: float(total),
        }[besides]
    )
    found = adding.run(2 * TRIES)
    assert adding.runs == 2 * TRIES
    assert found == (list(np.cumsum(np.arange(2 * TRIES))) if besides == "other numbers" else list(range(1, 2 * TRIES + 1)))


def test_every_combination_of_arguments_is_looked_at() -> None:
    """Though they take turns, as gradient steps of TD3 with and without the actor."""
    calls = {True: Adding(), False: Adding()}
    work = Repeated(lambda which: calls[which]._run(), 1)
    for n in range(2 * CHECKED):
        work(n % 2 == 0)
    assert [adding.runs for adding in calls.values()] == [3, 3]
    calls[False].call.change(more=2.0)
    with pytest.raises(UserError, match="other kernel calls"):
        for n in range(2 * CHECKED):
            work(n % 2 == 0)


def test_repeated_work_within_other_work_is_part_of_it() -> None:
    inner = Adding()
    outer = Repeated(lambda: inner.work(), 1)
    for _ in range(30):
        outer()
    assert float(inner.numbers[0]) == 30.0


def test_what_does_not_repeat_keeps_nothing() -> None:
    adding = Adding()
    adding.besides = lambda n, call=adding.call: call.change(more=float(n))
    adding.run(TRIES + 1)
    numbers = weakref.ref(adding.numbers)
    (known,) = adding.work._known.values()
    assert known.last is None and known.repeat is None
    del adding, known
    gc.collect()
    assert numbers() is None


def test_work_that_changes_later_ends_in_an_error() -> None:
    adding = Adding(lambda n: adding.call.change(more=1.0 if n < 2 else 2.0))
    with pytest.raises(UserError, match=r"other kernel calls than the same update before it; run with engine.capture=false"):
        adding.run(CHECKED + 5)


def test_changed_arguments_do_not_change_what_is_recorded() -> None:
    """The same kernel may serve other work in between."""
    adding = Adding()
    adding.run(4)
    other = torch.zeros(3)
    adding.call.change(numbers=other.numpy())
    assert adding.run(2) == [5.0, 6.0]
    assert float(other[0]) == 0.0
