"""Off-policy agents whose gradient steps are CUDA kernels, beside the same agents by torch in float32.

    NUMBA_ENABLE_CUDASIM=1 python -m tests.learning.cuda.off_policy_cases FILE.npz

runs the kernels in the simulator and writes what a few updates leave behind.
"""

import sys
from typing import Any
from unittest.mock import patch

import numpy as np

from tests.agents import build
from tests.learning.helpers import environment, rollout
from warprun.environment import Box, Discrete, Environment, Space
from warprun.learning.kernels import choose
from warprun.learning.kernels.cuda import optimizer, sums
from warprun.learning.kernels.cuda.updates import CudaSteps
from warprun.learning.network_settings import LayersConfig
from warprun.learning.off_policy_settings import ReplayConfig

CASES: dict[str, tuple[str, Space, dict[str, Any]]] = {
    "dqn": ("dqn", Discrete(3), {}),
    "plain dqn": ("dqn", Discrete(3), {"double": False, "max_grad_norm": None, "n_step": 3, "normalize_obs": True}),
    "prioritized dqn": ("dqn", Discrete(3), {"replay": ReplayConfig(200, prioritized=True), "target_update_interval": 2, "tau": 0.3}),
    "ddpg": ("ddpg", Box(2), {"learning_rate_end": 1e-5}),
    "td3": ("td3", Box(2), {"network": LayersConfig(hidden=[24, 17], activation="tanh"), "max_grad_norm": 0.1}),
    "sac": ("sac", Box(2), {"network": LayersConfig(hidden=[24, 17], activation="tanh"), "max_grad_norm": 0.1}),
    "sac prioritized": ("sac", Box(1), {"replay": ReplayConfig(200, prioritized=True), "target_update_interval": 2, "n_step": 2}),
    "sac constant": ("sac", Box(1), {"temperature_learning_rate": None, "temperature": 0.2, "normalize_obs": True}),
}


def environment_of(space: Space) -> Environment:
    """Return an environment of one group with an action space."""
    env = environment(one=Box(1))
    object.__setattr__(env.groups[0], "action", space)
    return env


def updates(case: str, by_kernels: bool, batch_size: int = 37, steps: int = 2) -> dict[str, np.ndarray]:
    """Return the state of an agent after two updates, and its metrics."""
    name, space, settings = CASES[case]
    env = environment_of(space)
    given = {"learning_starts": 0, "batch_size": batch_size, "replay": ReplayConfig(capacity=200), "network": LayersConfig(hidden=[9, 8])}
    given |= {"utd_ratio": steps / 30, **settings}
    if by_kernels:
        with patch.object(choose, "gradient_steps", CudaSteps):
            agent = build(name, env, fused=False, **given)
    else:
        agent = build(name, env, fused=False, **given)
    for update in range(2):
        metrics = agent.update(rollout(env, horizon=6, n_envs=5, seed=update), update / 2)
    found = agent.state() | {f"metrics/{key}": value for key, value in metrics.items()}
    return {key: np.array(float(value)) if isinstance(value, float) else value.numpy().copy() for key, value in found.items()}


if __name__ == "__main__":
    optimizer.THREADS, sums.PARTS = 32, 2  # in the simulator, Python starts every thread
    results: dict[str, np.ndarray] = {}
    for case in CASES:
        for way in ("torch", "kernels"):
            results |= {f"{case}/{way}/{key}": array for key, array in updates(case, way == "kernels").items()}
    np.savez(sys.argv[1], **results)
