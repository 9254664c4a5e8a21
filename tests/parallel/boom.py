"""Pinball, but on the rank BOOM_RANK the tenth rollout fails, or with BOOM_AFTER_S the first one after so many seconds of them."""

from __future__ import annotations

import os
import time

from tests.environments import pinball


class Boom(pinball.Pinball):
    collected, began_s = 0, 0.0

    def collect(self, act, greedy=False):
        self.collected += 1
        self.began_s = self.began_s or time.monotonic()
        after_s = os.environ.get("BOOM_AFTER_S")
        is_time = time.monotonic() - self.began_s > float(after_s) if after_s else self.collected == 10
        if is_time and os.environ.get("PMI_RANK") == os.environ.get("BOOM_RANK"):
            raise RuntimeError("the ball is lost")
        return super().collect(act, greedy)


class Game(pinball.Game):
    def make_simulator(self, *, n_envs, first_env, horizon, seed, device, exploration):
        return Boom(n_envs, horizon, seed, device)


environment = Game()
