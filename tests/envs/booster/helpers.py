"""What the tests of the booster surrogate share: engines, and episodes that were stepped with given changes of VIMIN."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from tests.simulation.rollouts import make
from warprun.config.registry import import_environment
from warprun.envs.booster.control import Episodes
from warprun.simulation.kernel_engine import KernelEngine

MODULE = "warprun.envs.booster"
QUIET = {"noise": 0.0, "amplitude": 0.0, "burst": 0.0}
"""Parameters of a plant without disturbance."""
STEPS = 100


def environment(**options: Any) -> Any:
    return import_environment(MODULE, options)[0]


def engine(n_envs: int = 4, params: dict[str, float] | None = None, seed: int = 0, **options: Any) -> KernelEngine:
    """Return an engine of some options, reset, that stops where an episode ends."""
    made = environment(**options)
    return make(made, "booster", n_envs=n_envs, horizon=1, seed=seed, params=made.params(**(params or {})), auto_reset=False)


class Stepped(NamedTuple):
    """N episodes of T steps."""

    episodes: Episodes
    delta: np.ndarray
    """[N, T]; after the end of an episode the last value."""
    iminer: np.ndarray
    rewards: np.ndarray
    """[N, T]; 0 after the end of an episode."""
    length: np.ndarray
    """[N]."""
    seen: np.ndarray
    """[N, T + 1, F]."""


def step_all(stepped: KernelEngine, actions: np.ndarray) -> Stepped:
    """Take the actions [N, T] of the policy, an index or -1..1, from the current state on."""
    group, taken = stepped.trajectory.groups["agent"], stepped.trajectory

    def state(*names: str) -> list[np.ndarray]:
        values = stepped.state_of("agent")
        return [values[name].double().numpy().reshape(stepped.n_envs) for name in names]

    start = state("delta", "delta_1", "iminer", "iminer_1")
    seen, courses, rewards, going = [group.obs[0, :, 0].numpy().copy()], [], [], [np.ones(stepped.n_envs, bool)]
    for chosen in actions.T:
        group.action[0, :, 0, 0] = torch.from_numpy(chosen.copy())
        stepped.step(0)
        courses.append(state("delta", "iminer", "disturbance"))
        rewards.append(group.reward[0, :, 0].double().numpy() * going[-1])
        going.append(going[-1] & ~taken.terminated[0].numpy())
        stepped.carry_over()
        seen.append(group.obs[0, :, 0].numpy().copy())
    delta, iminer, disturbance = np.moveaxis(np.array(courses), 0, 2)
    return Stepped(Episodes(*start, disturbance), delta, iminer, np.stack(rewards, 1), np.array(going[:-1]).sum(0), np.stack(seen, 1))


def held(stepped: KernelEngine, steps: int = STEPS) -> Stepped:
    """Take steps that do not change VIMIN; the actions are continuous."""
    low, high = stepped.spec.groups[0].action.bounds()[0]
    return step_all(stepped, np.full((stepped.n_envs, steps), -(low + high) / (high - low), np.float32))
