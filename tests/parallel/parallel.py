"""A parallel program whose observation tells what its ranks did: their number, and the steps that each of them has taken."""

import time

import numpy as np
from gymnasium.spaces import Box


class Parallel:
    """The ranks add up their steps, so the observation is right only if all of them make every call. Rank `who` fails in `where`."""

    observation_space = Box(-np.inf, np.inf, (3,), np.float32)
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, comm, where="", who=1, after=12):
        self.comm, self.where, self.who, self.after = comm, where, who, after
        self.steps = self.resets = 0
        self.fail("init")

    def fail(self, where):
        if self.where == where and self.comm.rank == self.who:
            raise RuntimeError(f"rank {self.who} of the solver fails in {where}")

    def reset(self, seed=None):
        self.resets += 1
        self.fail("reset")
        return self.observe(0.0), {}

    def step(self, action):
        self.steps += 1
        if self.steps > self.after:
            self.fail("step")
        # Only what the first rank returns counts.
        reward = 1.0 if self.comm.rank == 0 else 1e6
        return self.observe(float(action[0])), reward, False, self.comm.rank > 0, {}

    def observe(self, action):
        own = np.array([1.0, self.steps, self.resets, action])
        found = np.zeros(4)
        self.wait(self.comm.Iallreduce(own, found))
        np.testing.assert_array_equal(found, self.comm.size * own)
        return found[:3].astype(np.float32)

    def wait(self, request):
        while not request.Test():
            time.sleep(1e-4)

    def close(self):
        self.wait(self.comm.Ibarrier())


environment = Parallel
