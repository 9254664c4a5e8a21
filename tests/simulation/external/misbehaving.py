"""An environment with the interface of Gymnasium that does one thing wrong: `fault`, in the second environment of each process."""

import ctypes
import os
import signal
import time
from typing import Any

import gymnasium
import numpy as np

FAULTS = {
    "sigkill": "its process was ended by SIGKILL",
    "segfault": "its process was ended by SIGSEGV",
    "exit": "its process ended with exit code 3",
    "hang": "it takes longer than 0.5 s",
    "hang_in_c": "it takes longer than 0.5 s",
    "raise": "misbehaving.py:",
    "raise_exit": "SystemExit: 4",
    "four_values": "(observation, reward, terminated, truncated, info)",
    "shape": "in step: the observation has the shape (3,), and the observation space (2,)",
    "text": "it must return one number as the reward",
    "reward": "one number as the reward",
    "truth": "booleans",
    "nan_obs": "of misbehaving gave an observation of nan",
    "inf_reward": "gave a reward of inf",
    "mask": "at step 5 (group agent, actor 0, component 0); a mask must allow at least one action; with env.on_nan=reset",
    "none": "it returned None",
}
"""Fault -> a part of the line that the run ends with."""


class Misbehaving(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault: str = "", when: int = 5) -> None:
        self.fault, self.when, self.taken = fault, when, 0
        made.append(self)
        self.guilty = len(made) == 2
        if self.fault == "construction" and self.guilty:
            raise RuntimeError("no such machine")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.taken = self.taken if seed is None else 0
        if self.fault == "reset" and self.guilty:
            raise RuntimeError("cannot begin")
        return self._obs(), self._info()

    def step(self, action: int) -> Any:
        self.taken += 1
        if self.guilty and self.taken == self.when:
            return self._misbehave()
        return self._obs(), 1.0, bool(self.np_random.random() < 0.1), False, self._info()

    def _info(self) -> dict[str, np.ndarray]:
        return {"action_mask": np.ones(2, np.int8)} if self.fault == "mask" else {}

    def _obs(self) -> np.ndarray:
        return self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)

    def _misbehave(self) -> Any:
        right = [self._obs(), 1.0, False, False, {}]
        if self.fault == "sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.fault == "segfault":
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGSEGV)
        elif self.fault == "exit":
            os._exit(3)
        elif self.fault == "hang":
            time.sleep(1000.0)
        elif self.fault == "hang_in_c":
            ctypes.PyDLL(None).sleep(1000)  # keeps the lock of the interpreter
        elif self.fault == "raise":
            raise RuntimeError("out of order")
        elif self.fault == "raise_exit":
            raise SystemExit(4)
        elif self.fault == "none":
            return None
        replaced = {
            "four_values": right[:4],
            "shape": [np.zeros(3, np.float32), *right[1:]],
            "text": [right[0], "much", *right[2:]],
            "reward": [right[0], np.zeros(2), *right[2:]],
            "truth": [*right[:2], "no", *right[3:]],
            "nan_obs": [np.array([0.0, np.nan], np.float32), *right[1:]],
            "inf_reward": [right[0], np.inf, *right[2:]],
            "beyond": [np.array([0.0, 3.0]), *right[1:]],
            "mask": [*right[:4], {"action_mask": np.zeros(2, np.int8)}],
        }
        return tuple(replaced.get(self.fault, right))


made: list[Misbehaving] = []
environment = Misbehaving
