"""Agents whose CUDA kernels run in the simulator, beside the same agents by torch.

    NUMBA_ENABLE_CUDASIM=1 python -m tests.learning.cuda.simulated FILE.npz

writes gradients with those of autograd in float64, and what two updates leave behind.
"""

import pkgutil
import sys
from importlib import import_module
from typing import Any

import numpy as np
import torch

from tests.agents import build
from tests.learning.cpu.test_gradient import SPACES, exact_gradient, learner_for, rows_for
from tests.learning.helpers import SPACES as GROUPS
from tests.learning.helpers import environment, rollout
from tests.learning.test_leaving import agent_and_rollout
from warprun.learning.kernels import cuda
from warprun.learning.kernels.choose import on_cuda
from warprun.learning.kernels.cuda import minibatches as cuda_minibatches
from warprun.learning.kernels.cuda import optimizer as cuda_optimizer
from warprun.learning.kernels.cuda import returns as cuda_returns
from warprun.learning.kernels.cuda import statistics as cuda_statistics
from warprun.learning.kernels.cuda import sums as cuda_sums
from warprun.learning.on_policy import Learner
from warprun.learning.operations import Operations
from warprun.learning.settings.agent import OptimizerConfig
from warprun.learning.settings.networks import NetworkConfig
from warprun.simulation import cuda_layers

NETWORKS = {
    "tanh": NetworkConfig(hidden=[9, 8]),
    "relu": NetworkConfig(hidden=[5], activation="relu", shared=False),
}
ROWS = 37
"""A tile that is full, and one that is not."""
GRADIENTS = [
    ("a2c", "discrete", False, "tanh"),
    ("ppo", "multi", True, "relu"),
    ("ppo", "box", False, "tanh"),
]
"""Algorithm, action space, whether there is a mask, and network."""
UPDATES: dict[str, tuple[str, dict[str, Any]]] = {
    "a2c": ("a2c", {}),
    "ppo": ("ppo", {"epochs": 1, "minibatches": 2, "target_kl": 0.5, "max_grad_norm": None}),
    "a2c of n-step returns": ("a2c", {"advantage": "nstep", "n_step": 3}),
    "ppo, parts by torch": ("ppo", {"epochs": 1, "minibatches": 1, "advantage": "vtrace", "optimizer": OptimizerConfig("rmsprop")}),
}


KERNEL_MODULES = [import_module(f"{cuda.__name__}.{each.name}") for each in pkgutil.iter_modules(cuda.__path__)]
KERNEL_MODULES.append(cuda_layers)
"""All modules with kernels of a learner."""


def with_few_threads() -> None:
    """Let blocks have few threads from now on: in the simulator, Python starts every one of them."""
    cuda_sums.PARTS, cuda_minibatches.SORTING = 2, 32
    for module in (cuda_minibatches, cuda_optimizer, cuda_returns, cuda_statistics, cuda_layers):
        module.THREADS = 32  # type: ignore[attr-defined]


def cuda_kernels(learner: Learner[Any]) -> Operations:
    """Return the operations that the learner would have on a GPU."""
    return on_cuda(learner.reference)


def gradient(algorithm: str, space: str, masked: bool, network: str) -> dict[str, np.ndarray]:
    """Return the gradient and the terms of rows that `order` picks out of twice as many, and the exact ones."""
    learner = learner_for(algorithm, SPACES[space], NETWORKS[network])
    rows = rows_for(learner, ROWS, masked)
    exact, terms = exact_gradient(algorithm, learner, rows)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))
    twice = rows.each(lambda tensor: torch.cat((tensor[order], tensor[order] * 0)))
    found, means = cuda_kernels(learner).gradient(twice, rows.advantage, torch.argsort(order), None)
    return {
        "gradient": found.numpy(),
        "exact gradient": exact,
        "terms": means.numpy(),
        "exact terms": np.array(terms),
    }


def updates(case: str, by_kernels: bool) -> dict[str, np.ndarray]:
    """Return the state of an agent of three groups after two updates, and its metrics."""
    name, settings = UPDATES[case]
    env = environment(**GROUPS)
    agent = build(name, env, n_envs=3, network=NetworkConfig(hidden=[8]), **settings)
    for learner in agent.learners if by_kernels else ():
        learner.operations = cuda_kernels(learner)
    for seed in range(2):
        metrics = agent.update(rollout(env, horizon=4, n_envs=3, seed=seed), 0.5 * seed)
    found = agent.state() | {f"metrics/{key}": value for key, value in metrics.items()}
    return {key: tensor.numpy().copy() for key, tensor in found.items()}


def leaving(by_kernels: bool) -> dict[str, np.ndarray]:
    """Return the state of an agent after an update on episodes that actors leave, and its metrics."""
    agent, taken, _ = agent_and_rollout("a2c", False)
    for learner in agent.learners if by_kernels else ():
        learner.operations = cuda_kernels(learner)
    found = agent.update(taken, 0.0) | agent.state()
    return {key: tensor.numpy().copy() for key, tensor in found.items()}


if __name__ == "__main__":
    with_few_threads()
    results = {f"{'/'.join(map(str, case))}/{key}": array for case in GRADIENTS for key, array in gradient(*case).items()}
    for case in UPDATES:
        for way in ("torch", "kernels"):
            results |= {f"{case}/{way}/{key}": array for key, array in updates(case, way == "kernels").items()}
    for way in ("torch", "kernels"):
        results |= {f"leaving/{way}/{key}": array for key, array in leaving(way == "kernels").items()}
    np.savez(sys.argv[1], **results)
