"""Pinball whose step takes 20 ms of sleep, for measurements of many ranks on few cores."""

from __future__ import annotations

import time

from tests.environments import pinball

STEP_S = 0.02


class Sleepy(pinball.Pinball):
    def collect(self, act, greedy=False):
        def slow(taken, row):
            act(taken, row)
            time.sleep(STEP_S)

        return super().collect(slow, greedy)


class Game(pinball.Game):
    def make_simulator(self, *, n_envs, first_env, horizon, seed, device, exploration):
        kind = Sleepy if n_envs == 1 else pinball.Pinball  # evaluations do not sleep
        return kind(n_envs, horizon, seed, device)


environment = Game()
