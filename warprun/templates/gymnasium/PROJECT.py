"""Move a carriage to a target and hold it there: a class with the methods of a Gymnasium environment.

Newton's law with friction, m dv/dt = F - friction v; semi-implicit Euler steps. `step` may call any simulator.
"""

import numpy as np
from gymnasium.spaces import Box


class Carriage:
    """One environment; every worker process makes its own."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, mass=1.0, friction=0.5, force=2.0, band=0.1, dt=0.1):
        """Arguments are set by `warprun env=PROJECT env.kwargs.mass=2`: kg, N s/m, N at full power, m, s."""
        self.mass, self.friction, self.force, self.band, self.dt = mass, friction, force, band, dt
        self.rng = np.random.default_rng()

    def reset(self, seed=None):
        """Return the first observation of an episode and an info; `seed` is given once, for the first episode."""
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.distance, self.speed = self.rng.uniform(-2.0, 2.0), 0.0  # m, m/s
        return self._observation(), {}

    def step(self, action):
        """Return observation, reward, terminated, truncated and info; `time_limit` of conf/env truncates."""
        force = self.force * float(action[0])
        self.speed += self.dt * (force - self.friction * self.speed) / self.mass
        self.distance += self.dt * self.speed
        lost = abs(self.distance) > 5.0
        return self._observation(), 1.0 if abs(self.distance) < self.band else 0.0, lost, False, {}

    def _observation(self):
        return np.array([self.distance, self.speed], np.float32)


def draw(axes, observation):
    """Draw the carriage; warprun calls this for every frame of a film."""
    axes.axvline(0.0, color="0.6", linestyle="--")
    axes.plot(observation[0], 0.0, "s", color="#0072b2", markersize=30)
    axes.set(xlim=(-3.0, 3.0), ylim=(-1.0, 1.0), yticks=(), xlabel="distance to the target (m)")


environment = Carriage  # the class, not an object of it
