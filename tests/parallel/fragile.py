"""An environment whose steps fail in the actor of rank 2: it raises, hangs or dies, as `how` says.

Its steps are counted over resets, with the one that is tried before a run.
"""

import os
import signal
import time

import numpy as np
from gymnasium.spaces import Box


class Fragile:
    observation_space = Box(-np.inf, np.inf, (1,), np.float32)
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, how="raise", after=20):
        self.how, self.after, self.steps = how, after, 0

    def reset(self, seed=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps > self.after and os.environ.get("PMI_RANK") == "2":
            if self.how == "hang":
                time.sleep(1e4)
            if self.how == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("the solver did not converge")
        return np.zeros(1, np.float32), 1.0, False, False, {}


environment = Fragile
