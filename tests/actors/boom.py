"""Pinball, but on the rank BOOM_RANK the tenth rollout fails."""

from __future__ import annotations

import os

from tests.environments import pinball


class Boom(pinball.Pinball):
    collected = 0

    def collect(self, act, greedy=False):
        self.collected += 1
        if self.collected == 10 and os.environ.get("PMI_RANK") == os.environ.get("BOOM_RANK"):
            raise RuntimeError("the ball is lost")
        return super().collect(act, greedy)


class Game(pinball.Game):
    def make_simulator(self, *, n_envs, first_env, horizon, seed, device, exploration):
        return Boom(n_envs, horizon, seed, device)


environment = Game()
