"""Environments with the interface of Gymnasium that do something unusual: `make(kind)`."""

import os
import subprocess
import sys
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Plain(gymnasium.Env):
    observation_space = Box(-1.0, 1.0, (1,), np.float32)
    action_space = Discrete(2)
    reward: Any = 1.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), self.reward, True, False, {}


class Slow(Plain):
    """A step and the reset after it take 0.8 s each."""

    resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.resets += 1
        if self.resets > 1:
            time.sleep(0.8)
        return super().reset()

    def step(self, action: Any) -> Any:
        time.sleep(0.8)
        return super().step(action)


class LeavesChild(Plain):
    """Its process ends in the first step, and one that it has forked lives on."""

    def step(self, action: Any) -> Any:
        if os.fork() == 0:
            time.sleep(1000.0)
        os._exit(3)


class StartsProgram(Plain):
    """Its reward is 1 if a program that it starts can be ended by SIGTERM."""

    def step(self, action: Any) -> Any:
        test = "import signal; raise SystemExit(int(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL))"
        self.reward = float(subprocess.run([sys.executable, "-S", "-c", test]).returncode)
        return super().step(action)


class Saves(Plain):
    """`states` are what get_state returns, one after the other."""

    def __init__(self, states: list[Any]) -> None:
        self.states = states

    def get_state(self) -> Any:
        return self.states.pop(0)

    def set_state(self, state: np.ndarray) -> None:
        self.got = state


class SavingWrapper(gymnasium.Wrapper):
    def get_state(self) -> Any:
        return np.array([7.0])

    def set_state(self, state: np.ndarray) -> None:
        pass


class Loud(Plain):
    def __init__(self) -> None:
        print("the licence is valid")


class CannotClose(Plain):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        raise RuntimeError("no such machine")

    def close(self) -> None:
        raise RuntimeError("was never open")


class Masked(Plain):
    """Its mask forbids every action from step `empty` on; a forbidden action raises."""

    empty = 3

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.taken = 0
        return np.zeros(1, np.float32), {"action_mask": self._mask()}

    def step(self, action: Any) -> Any:
        assert self._mask()[action], "a forbidden action"
        self.taken += 1
        return np.zeros(1, np.float32), 1.0, False, False, {"action_mask": self._mask()}

    def _mask(self) -> Any:
        return np.array([0, self.taken < self.empty])


class MaskedAtOnce(Masked):
    empty = 0


class Sound(Masked):
    empty = 10**9


class FourValues(Plain):
    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 1.0, True, {}


class NoSeed(Plain):
    def reset(self) -> Any:  # type: ignore[override]
        return np.zeros(1, np.float32), {}


class NoInfo(Plain):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32)


class InLibrary(Plain):
    def step(self, action: Any) -> Any:
        np.random.default_rng("seed")  # type: ignore[arg-type]


def make(kind: str, **arguments: Any) -> Any:
    return SavingWrapper(Plain()) if kind == "wrapped" else globals()[kind](**arguments)
