"""Members of a population on the stand-in for the CUDA driver, beside the same runs alone.

    python -m tests.ptx.members FILE.json CASE...

writes by case what of a member is not, bit for bit, what it is alone, and how many launches an iteration of each has.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from tests.agents import plan_for
from tests.ptx.hosted import Driver
from tests.ptx.off_policy import cuda_steps
from tests.ptx.project import DEVICE
from tests.simulation import rollouts
from tests.simulation.rollouts import Arrays
from warprun.algorithms import agent_class
from warprun.learning.communicator import SingleProcess
from warprun.learning.interfaces import Context
from warprun.learning.kernels import choose
from warprun.learning.settings.networks import LayersConfig, NetworkConfig
from warprun.learning.settings.off_policy import ReplayConfig
from warprun.learning.settings.plan import Choice
from warprun.simulation.members import Joined, Members, inside

ITERATIONS = 7
N_ENVS = 5
ON_POLICY = {"horizon": 4, "network": NetworkConfig(hidden=[9, 8])}
OFF_POLICY = {"horizon": 3, "network": LayersConfig(hidden=[9]), "learning_starts": 20, "batch_size": 16, "utd_ratio": 0.2}
OFF_POLICY |= {"replay": ReplayConfig(60)}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a2c": ("cartpole", "a2c", ON_POLICY | {"normalize_reward": True, "entropy_coef_end": 0.0}),
    "ppo": ("pendulum", "ppo", ON_POLICY | {"epochs": 2, "minibatches": 2, "desired_kl": 0.01}),
    "dqn": ("cartpole", "dqn", OFF_POLICY | {"replay": ReplayConfig(60, prioritized=True), "target_update_interval": 2}),
    "sac": ("pendulum", "sac", OFF_POLICY),
}
"""Environment, agent and settings."""


def settings_of(member: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a member: numbers that may differ within a set."""
    on_policy = {"entropy_coef": 0.01 * member, "gae_lambda": 0.9 + 0.001 * member, "max_grad_norm": 0.5 + 0.01 * member}
    return settings | {"learning_rate": 1e-3 * (1 + member), "gamma": 0.99 - 0.001 * member} | (on_policy if "epochs" in settings else {})


def state_after(case: str, member: int, iterations: int = ITERATIONS) -> Arrays:
    """Train a member, alone or as one of a set, and return all of its tensors."""
    world, name, settings = CASES[case]
    environment = replace(rollouts.CASES[world], time_limit=6).environment
    config = agent_class(name).Config(**settings_of(member, settings))
    plan = replace(plan_for(config, environment.spec, fused=True), repeated=Choice("members" if inside() else "Python"))
    agent = agent_class(name)(config, environment.spec, Context(torch.device("cpu"), N_ENVS, 1, member, plan, SingleProcess()))
    repeats = partial(Joined, device=torch.device("cpu")) if inside() else None
    given = {"n_envs": N_ENVS, "horizon": config.horizon, "seed": 5 + member, "exploration": agent.exploration}
    engine = rollouts.make(environment, world, device=DEVICE, networks=agent.networks(), repeats=repeats, **given)
    for n in range(iterations):
        metrics = agent.update(engine.collect(agent.act), n / iterations)
    found = agent.state() | engine.arrays.by_name() | {f"metrics/{key}": torch.as_tensor(value) for key, value in metrics.items()}
    return {key: tensor.detach().numpy().copy() for key, tensor in found.items()}


def differences(case: str, numbers: range, driver: Driver) -> tuple[list[str], list[int]]:
    """Return what differs between members alone and together, and the launches of both."""
    counts = [driver.number("launches")]
    alone = [state_after(case, member) for member in numbers]
    counts.append(driver.number("launches"))
    together: dict[int, Arrays] = {}
    members = Members()
    for member in numbers:
        # The last member ends early, and another one begins then.
        members.begin(lambda member=member: together.update({member: state_after(case, member)}))  # type: ignore[misc]
    while members:
        members.go_on()
    counts.append(driver.number("launches"))
    wrong = [
        f"{member}/{name}"
        for member, expected in zip(numbers, alone, strict=True)
        for name, array in expected.items()
        if array.tobytes() != together[member][name].tobytes()
    ]
    return wrong, list(np.diff(counts))


@contextmanager
def on_a_gpu() -> Iterator[None]:
    """Let agents on the CPU have the operations of a GPU."""
    operations: Callable[..., Any] = lambda reference, context: choose.on_cuda(reference)  # noqa: E731
    from warprun.learning import on_policy

    with patch.object(on_policy, "operations", operations), cuda_steps():
        yield


def main(file: str, *cases: str) -> None:
    driver = Driver()
    with on_a_gpu():
        found = {case: differences(case.partition(" ")[0], range(int(case.partition(" ")[2] or 3)), driver) for case in cases}
    Path(file).write_text(json.dumps({case: (wrong, [int(n) for n in counts]) for case, (wrong, counts) in found.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
