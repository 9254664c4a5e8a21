"""Rollouts of policies with memory in one kernel, and steps by kernels, against steps by torch."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from tests.agents import build
from tests.simulation.rollouts import CASES, make
from warprun.environment import Environment
from warprun.learning.kernels.cpu.acting import CpuActing
from warprun.learning.kernels.cpu.returns import CpuReturns
from warprun.learning.settings.agent import OptimizerConfig
from warprun.learning.settings.networks import NetworkConfig
from warprun.simulation.kernel_engine import KernelEngine
from warprun.simulation.trajectory import Trajectory
from warprun.state import copied, restore


@dataclass(frozen=True)
class Case:
    """A policy with memory in an environment whose episodes often end and are often cut off."""

    environment: str
    network: NetworkConfig
    n_envs: int
    groups: dict[str, Any] = field(default_factory=dict)
    staggered: bool = False
    greedy: bool = False
    algorithm: str = "a2c"
    settings: dict[str, Any] = field(default_factory=dict)

    def made(self) -> Environment:
        return replace(CASES[self.environment].environment, time_limit=6)

    def agent(self, fused: bool, threads: int = 2) -> Any:
        settings: dict[str, Any] = {"network": self.network, "groups": self.groups, "normalize_obs": True, **self.settings}
        agent = build(self.algorithm, self.made(), n_envs=self.n_envs, threads=threads, fused=fused, **settings)
        for learner in agent.learners:
            generator, policy = torch.Generator().manual_seed(1), learner.policy
            policy.normalizer.shift.copy_(0.1 * torch.randn(policy.normalizer.shift.shape, generator=generator))
            policy.normalizer.scale.fill_(1.3)
            policy.parameters += 0.2 * torch.randn(policy.parameters.shape, generator=generator)
        return agent

    def engine(self, agent: Any, fused: bool, **options: Any) -> KernelEngine:
        given: dict[str, Any] = {"n_envs": self.n_envs, "horizon": 8, "threads": 2, "staggered": self.staggered, **options}
        engine = make(self.made(), self.environment, networks=agent.networks() if fused else None, **given)
        engine.trajectory.remember(agent.carry)
        return engine


LSTM = NetworkConfig(type="lstm", hidden=[13], units=[16, 12], after=[7])
GRU = NetworkConfig(type="gru", hidden=[], units=[20], shared=False, activation="relu")
POLICIES = {
    "a choice": Case("t_maze", LSTM, 70),
    "real numbers, two trunks": Case("pendulum_positions", GRU, 100),
    "masks and five actors, one group without memory": Case("market", GRU, 70, {"regulator": {"network": {"type": "mlp"}}}, True),
    "sequences": Case("t_maze", replace(GRU, sequence=3), 20),
    "two trunks that forget": Case("market", replace(LSTM, sequence=4, shared=False), 9, {"regulator": {"network": {"type": "mlp"}}}, True),
    "one environment, the best actions": Case("t_maze", LSTM, 1, greedy=True),
}


def compare(taken: Trajectory, other: Trajectory) -> None:
    """Raise AssertionError unless two rollouts, what policies remember included, are the same but for rounding."""
    assert torch.equal(taken.terminated, other.terminated)
    assert torch.equal(taken.truncated, other.truncated)
    for name, group in taken.groups.items():
        for tensor in ("action", "obs", "value", "log_prob", "reward", "final_obs"):
            torch.testing.assert_close(getattr(group, tensor), getattr(other.groups[name], tensor), rtol=1e-5, atol=3e-5)
    assert taken.carries.keys() == other.carries.keys()
    for name, carry in taken.carries.items():
        known = taken.truncated.clone()
        known[-1] = True
        torch.testing.assert_close(carry.first, other.carries[name].first, rtol=1e-5, atol=3e-5)
        torch.testing.assert_close(carry.after[known], other.carries[name].after[known], rtol=1e-5, atol=3e-5)


@pytest.mark.parametrize("policy", POLICIES)
def test_rollouts_are_those_of_torch(policy: str) -> None:
    case = POLICIES[policy]
    by_torch, by_kernels = case.agent(False), case.agent(True)
    for learner in by_kernels.learners:
        assert isinstance(learner.operations.advantages, CpuReturns)
        assert learner.config.network_rows(learner.reference.group) == learner.policy.kernel_network().rows
    reference, fused, stepwise = case.engine(by_torch, False), case.engine(by_kernels, True), case.engine(by_kernels, False)
    ends = torch.zeros(2, dtype=torch.bool)
    for _ in range(3):  # the second begins where the first ended
        expected = reference.collect(by_torch.act, case.greedy)
        for engine in (fused, stepwise):
            found = engine.collect(by_kernels.act, case.greedy)
            compare(expected, found)
            for learner in by_kernels.learners:
                reward = found.groups[learner.name].reward
                known, wanted = learner.operations.advantages(found, reward, None), learner.reference.advantages(found, reward, None)
                torch.testing.assert_close(known.advantage, wanted.advantage, rtol=1e-5, atol=1e-4)
                torch.testing.assert_close(known.returns, wanted.returns, rtol=1e-5, atol=1e-4)
        ends |= torch.stack((expected.terminated.any(), expected.truncated.any()))
    assert ends[1] and (ends[0] or policy == "real numbers, two trunks" or case.n_envs == 1)
    for engine in (reference, fused):
        engine.reset()  # forgets everything
    compare(reference.collect(by_torch.act, case.greedy), fused.collect(by_kernels.act, case.greedy))


def test_steps_between_kernels_are_those_of_a_kernel() -> None:
    agent = POLICIES["a choice"].agent(True)
    assert isinstance(agent.learners[0].operations.remember.__self__, CpuActing)


@pytest.mark.parametrize("settings", [{"minibatches": 2, "epochs": 2}, {"minibatches": 2, "epochs": 1, "advantage": "vtrace"}])
def test_updates_are_those_of_torch(settings: dict[str, Any]) -> None:
    """With rewards and observations normalised; eps is large, since Adam takes a step of full size on a gradient of mere rounding."""
    case = replace(POLICIES["a choice"], algorithm="ppo", settings={**settings, "optimizer": OptimizerConfig(eps=1.0)})
    agents = [case.agent(fused) for fused in (False, True)]
    engines = [case.engine(agent, fused) for fused, agent in enumerate(agents)]
    for _ in range(3):
        for agent, engine in zip(agents, engines, strict=True):
            shown = agent.update(engine.collect(agent.act), 0.0)
        assert shown["loss/grad_norm"] > 0.0
    state = agents[0].state()
    for name, tensor in agents[1].state().items():
        torch.testing.assert_close(tensor, state[name], rtol=1e-4, atol=1e-5, msg=name)
    assert (agents[0].learners[0].policy.parameters - case.agent(False).learners[0].policy.parameters).abs().max() > 1e-3


def rollouts(case: Case, threads: int = 2, **options: Any) -> list[torch.Tensor]:
    """Return what three rollouts leave behind."""
    agent = case.agent(True, threads)
    engine, found = case.engine(agent, True, threads=threads, **options), []
    for _ in range(3):
        taken = engine.collect(agent.act)
        found += copied(taken.state()).values()
        found += [tensor.clone() for group in taken.groups.values() for tensor in (group.obs, group.action, group.value, group.log_prob)]
    return found


def test_any_number_of_threads_and_the_mode_for_mistakes_take_the_same_bits() -> None:
    case = replace(POLICIES["masks and five actors, one group without memory"], n_envs=200)
    expected = rollouts(case)
    for others in (rollouts(case, threads=1), rollouts(case, threads=3), rollouts(case, debug=True)):
        assert all(map(torch.equal, expected, others))


def test_a_rollout_goes_on_from_a_checkpoint() -> None:
    case = POLICIES["sequences"]
    agent = case.agent(True)
    engine, other = case.engine(agent, True), case.engine(agent, True)
    for _ in range(2):
        engine.collect(agent.act)
    saved = copied(engine.state()), copied(engine.trajectory.state())
    restore(other.state(), saved[0])
    restore(other.trajectory.state(), saved[1])
    for _ in range(2):
        taken, again = engine.collect(agent.act).groups["agent"], other.collect(agent.act).groups["agent"]
        assert torch.equal(taken.value, again.value) and torch.equal(taken.action, again.action)
