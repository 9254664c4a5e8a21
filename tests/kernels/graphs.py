"""CUDA graphs without a GPU: a record of torch's operations and of the launches of kernels, which is run again with the same numbers.

    NUMBA_ENABLE_CUDASIM=1 python -m tests.kernels.graphs FILE.npz CASE...

trains agents in the CUDA simulator, launch by launch and by such graphs, and writes their state. The code for GPUs runs here on the CPU:
replay by torch's operations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.agents import build
from tests.learning.cuda.simulated import KERNEL_MODULES, cuda_kernels, with_few_threads
from tests.learning.torch_replay import TorchReplay
from tests.simulation import rollouts
from warprun.kernels import repeat
from warprun.learning import on_policy
from warprun.learning.kernels import choose
from warprun.learning.kernels.cuda import recurrent as cuda_recurrent
from warprun.learning.settings.networks import LayersConfig, NetworkConfig
from warprun.learning.settings.off_policy import ReplayConfig
from warprun.simulation import cuda_launch
from warprun.simulation.device import Device

SIMULATOR = Device("cudasim", "a test")
ITERATIONS = 8
ON_POLICY = {"horizon": 3, "network": NetworkConfig(hidden=[8]), "learning_rate_end": 1e-4}
OFF_POLICY = {"horizon": 2, "network": LayersConfig(hidden=[8]), "learning_starts": 8, "batch_size": 8, "utd_ratio": 0.5}
OFF_POLICY |= {"learning_rate_end": 1e-4}
REMEMBERS = NetworkConfig(type="lstm", hidden=[5], units=[4], sequence=2)
SEQUENCES = {"replay": ReplayConfig(48, sequence=2, burn_in=1), "learning_starts": 12}
CASES: dict[str, tuple[str, str, bool, dict[str, Any]]] = {
    "a2c fused": ("cartpole", "a2c", True, ON_POLICY | {"entropy_coef_end": 0.0}),
    "ppo": ("cartpole", "ppo", True, ON_POLICY | {"epochs": 2, "minibatches": 2, "target_kl": 0.01}),
    "dqn": ("cartpole", "dqn", False, OFF_POLICY | {"target_update_interval": 3, "replay": ReplayConfig(50), "normalize_obs": True}),
    "sac": ("pendulum", "sac", True, OFF_POLICY | {"noise_theta": 0.5}),
    "ddpg lstm": ("pendulum", "ddpg", False, OFF_POLICY | SEQUENCES | {"network": LayersConfig(type="lstm", hidden=[5], units=[4])}),
    "td3": ("pendulum", "td3", False, OFF_POLICY | {"n_step": 3, "replay": ReplayConfig(50, prioritized=True)}),
    "ppo lstm": ("cartpole", "ppo", False, ON_POLICY | {"network": REMEMBERS, "epochs": 2, "minibatches": 2}),
    "a2c gru": ("pendulum", "a2c", False, ON_POLICY | {"network": NetworkConfig(type="gru", hidden=[], units=[4])}),
    "dqn gru": ("cartpole", "dqn", False, OFF_POLICY | SEQUENCES | {"network": LayersConfig(type="gru", hidden=[], units=[4])}),
}
"""Environment, agent, whether rollouts are fused, and settings."""
BY_KERNELS: dict[str, tuple[str, str, bool, dict[str, Any]]] = {
    "a2c by kernels": ("cartpole", "a2c", True, ON_POLICY | {"entropy_coef_end": 0.0}),
    "ppo by kernels": ("pendulum", "ppo", False, ON_POLICY | {"epochs": 1, "minibatches": 2}),
}
BY_KERNELS |= {
    f"{name} {kind} by kernels": (world, name, False, settings | {"network": config(type=kind, hidden=[], units=[16])})
    for world, name, kind, config, settings in (
        ("cartpole", "ppo", "lstm", NetworkConfig, ON_POLICY | {"epochs": 1, "minibatches": 2}),
        ("cartpole", "dqn", "gru", LayersConfig, OFF_POLICY | SEQUENCES),
    )
}
CASES |= BY_KERNELS


class Record(TorchDispatchMode):
    """What is to be run again, in order; while it is made, everything runs once."""

    current: Record | None = None

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], Any]] = []
        self.ran = False

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        result = function(*given, **(named or {}))
        taken = {x.untyped_storage()._cdata for x in tree_leaves((given, named)) if isinstance(x, torch.Tensor)}
        made = [n for n, x in enumerate(tree_leaves(result)) if isinstance(x, torch.Tensor) and x.untyped_storage()._cdata not in taken]

        def again() -> None:
            found = tree_leaves(function(*given, **(named or {})))
            for n in made:  # where a graph writes it, too: to the memory of the first time
                tree_leaves(result)[n].copy_(found[n])

        self.calls.append(again)
        return result

    def replay(self) -> None:
        """Run everything again; the first time it has run already, unlike in a capture."""
        with torch.no_grad():
            for call in self.calls if self.ran else []:
                call()
        self.ran = True


def record(work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    made = Record()
    Record.current = made
    with made:
        result = work()
    Record.current = None
    return made.replay, result


class Launches:
    def __init__(self, module: Any) -> None:
        self.module = module

    def __getattr__(self, kernel: str) -> Any:
        found = getattr(self.module, kernel)
        return found if kernel.startswith("__") else _Launches(found)


class _Launches:
    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, configuration: Any) -> Callable[..., None]:
        def launch(*arguments: Any) -> None:
            self.kernel[configuration](*arguments)
            if Record.current:
                Record.current.calls.append(lambda: self.kernel[configuration](*arguments))

        return launch


def train(case: str, captured: bool) -> dict[str, np.ndarray]:
    world, name, fused, settings = CASES[case]
    # Every rollout is cut, for whether there is anything to bootstrap from is asked on the CPU alone.
    environment = replace(rollouts.CASES[world], time_limit=settings["horizon"]).environment
    agent = build(name, environment, device=SIMULATOR.torch, n_envs=4, seed=2, captured=captured, **settings)
    for learner in agent.learners if case in BY_KERNELS and not settings["network"].remembers else ():
        learner.operations = cuda_kernels(learner)
    options = {"n_envs": 4, "horizon": settings["horizon"], "seed": 5, "exploration": agent.exploration}
    options["repeats"] = repeat.Captured if captured else None
    engine = rollouts.make(environment, world, device=SIMULATOR, networks=agent.networks() if fused else None, **options)
    engine.trajectory.remember(agent.carry)
    if captured:
        launcher = engine._kernels._launch
        launcher._module = Launches(launcher._module)
    for n in range(ITERATIONS):
        metrics = agent.update(engine.collect(agent.act), n / ITERATIONS)
    found = agent.state() | engine.arrays.by_name() | {f"metrics/{key}": value for key, value in metrics.items()}
    return {f"{case}/{'captured' if captured else 'plain'}/{key}": tensor.detach().numpy().copy() for key, tensor in found.items()}


def as_on_a_gpu() -> None:
    """Let the CPU take the code that is a GPU's."""
    choose.operations_of_replay = lambda context: TorchReplay  # type: ignore[assignment]
    repeat.record = record
    repeat.run_aside = lambda work: work()
    for place in (choose, on_policy):  # kernels leave the layers of 4 units to torch
        place.recurrence = lambda module, context: cuda_recurrent.compute_by_kernels(module)  # type: ignore[attr-defined]
    for module in (*KERNEL_MODULES, cuda_recurrent):
        module.launch = launch  # type: ignore[attr-defined]


def launch(module: Any, *given: Any) -> None:
    """Stand for `cuda_launch.launch`: the launch is recorded."""
    cuda_launch.launch(Launches(module), *given)  # type: ignore[arg-type]


if __name__ == "__main__":
    as_on_a_gpu()
    with_few_threads()
    file, *cases = sys.argv[1:]
    np.savez(file, **{key: value for case in cases for captured in (False, True) for key, value in train(case, captured).items()})
