"""Environments with the interface of Gymnasium, each with one mistake that `fault` chooses."""

from typing import Any

import gymnasium
import numpy as np

FAULTS: dict[str, tuple[str, ...]] = {
    "dtype": ("has dtype float64, and the observation space float32",),
    "shape": ("has the shape (3,), and the observation space (2,)",),
    "bounds": ("number 1 of the observation of step is", "beyond its bounds -1 to 1"),
    "nan_always": ("number 0 of the observation of step is nan",),
    "nan_rarely": ("observation of nan", "component 0"),
    "unseeded": ("reset(seed=0) gives another observation",),
    "unseeded_steps": ("twice with the same seed", "rewards"),
    "same_seed": ("two seeds give the same rollouts",),
    "never_ends": ("no episode ended", "time_limit"),
    "ends_at_once": ("terminated in their first step",),
    "reward_text": ("the reward must be a number",),
    "reward_array": ("the reward must be a number", "(1,)"),
    "reward_constant": ("the reward", "always 0"),
    "reward_huge": ("reward", "is large"),
    "four_values": ("(observation, reward, terminated, truncated, info)",),
    "constant_feature": ("observation 1", "always 0"),
    "raises": ("misbehaving.py", "ZeroDivisionError"),
    "state": ("another environment gave another", "random generators are part of it"),
    "terminated_number": ("terminated must be True or False",),
}
"""Fault -> words of the line that tells it."""


class Misbehaving(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.taken = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=7 if self.fault == "same_seed" else None if self.fault == "unseeded" else seed)
        self.taken = 0
        return self._seen("reset"), {}

    def step(self, action: int) -> Any:
        self.taken += 1
        if self.fault == "raises" and self.taken == 9:
            action = 1 // 0
        terminated: Any = bool(self.np_random.random() < 0.1)
        terminated = {"never_ends": False, "ends_at_once": True, "terminated_number": 0.5}.get(self.fault, terminated)
        if self.fault == "four_values":
            return self._seen("step"), 1.0, terminated, {}
        return self._seen("step"), self._reward(action), terminated, False, {}

    def _reward(self, action: int) -> Any:
        drawn = float(self.np_random.random()) + action
        unseeded = float(np.random.default_rng().random())
        given = {
            "reward_text": "much",
            "reward_array": np.array([drawn]),
            "reward_constant": 0.0,
            "reward_huge": 1e7 * drawn,
            "unseeded_steps": unseeded,
        }
        return given.get(self.fault, drawn)

    def _seen(self, method: str) -> np.ndarray:
        seen = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        if self.fault == "dtype":
            return seen.astype(np.float64)
        if self.fault == "shape":
            return np.zeros(3, np.float32)
        if self.fault == "constant_feature":
            seen[1] = 0.0
        if method == "step":
            seen[0] = np.nan if self.fault == "nan_always" else seen[0]
            seen[0] = np.nan if self.fault == "nan_rarely" and self.np_random.random() < 1e-3 else seen[0]
            seen[1] = 3.0 * seen[1] if self.fault == "bounds" else seen[1]
        return seen


class Saves(Misbehaving):
    """Its state lacks the generator with the fault `state`."""

    def get_state(self) -> np.ndarray:
        words = self.np_random.bit_generator.state
        numbers = [words["state"][name] >> shift & 2**64 - 1 for name in ("state", "inc") for shift in (64, 0)]
        return np.array([self.taken, *(numbers if self.fault != "state" else [])], np.uint64)

    def set_state(self, state: np.ndarray) -> None:
        self.taken, *numbers = map(int, state)
        if numbers:
            high, low, inc_high, inc_low = numbers
            own = {"state": high << 64 | low, "inc": inc_high << 64 | inc_low}
            self.np_random.bit_generator.state = self.np_random.bit_generator.state | {"state": own, "has_uint32": 0, "uinteger": 0}


def environment(fault: str = "", saves: bool = False) -> Misbehaving:
    return Saves(fault) if saves or fault == "state" else Misbehaving(fault)
