"""Keep the level of the lower one of two tanks at a target with a pump that fills the upper one.

Water runs from the upper tank into the lower one and out of it, by Torricelli's law; explicit Euler steps:

    A dh1/dt = u pump - a sqrt(2 g h1)
    A dh2/dt = a sqrt(2 g h1) - a sqrt(2 g h2)
"""

from typing import NamedTuple

from warprun.environment import Box, float32, single_agent
from warprun.math import maximum, sqrt
from warprun.random import uniform


class State(NamedTuple):
    """The numbers that an environment keeps from step to step, all in metres."""

    upper: float32
    lower: float32
    target: float32  # level of the lower tank, another one in each episode


class Params(NamedTuple):
    """Constants that a run can set: `warprun env=PROJECT env.params.pump=2e-4`."""

    area: float = 0.01  # m^2, of a tank
    hole: float = 4e-5  # m^2, of the opening at the bottom of a tank
    pump: float = 1.5e-4  # m^3/s, at full power
    height: float = 0.6  # m, of a tank; the episode ends if one overflows
    gravity: float = 9.81  # m/s^2
    band: float = 0.01  # m, a step within target +- band is worth 1
    dt: float = 1.0  # s


def outflow(level, p):
    """Return the flow out of a tank in m^3/s. Functions may call others."""
    return p.hole * sqrt(2.0 * p.gravity * level)


def reset(rng):
    """Return the state at the start of an episode."""
    return State(uniform(rng, 0, 0.1, 0.4), uniform(rng, 1, 0.1, 0.4), uniform(rng, 2, 0.15, 0.35))


def step(s, action, p):
    """Return the state after dt, the reward, and whether the episode has ended. The action is a tuple of numbers."""
    between = outflow(s.upper, p)
    upper = maximum(s.upper + p.dt * (action[0] * p.pump - between) / p.area, 0.0)
    lower = maximum(s.lower + p.dt * (between - outflow(s.lower, p)) / p.area, 0.0)
    overflows = upper > p.height or lower > p.height
    return State(upper, lower, s.target), 1.0 if abs(lower - s.target) < p.band else 0.0, overflows


def observe(s):
    """Return what the policy sees, in units of about 1."""
    return 5.0 * s.upper, 5.0 * s.lower, 10.0 * (s.lower - s.target)


def draw(axes, state, p):
    """Draw the tanks; warprun calls this for every frame of a film."""
    axes.bar(("upper tank", "lower tank"), (state.upper, state.lower), color="#56b4e9", width=0.6)
    axes.axhspan(state.target - p.band, state.target + p.band, xmin=0.5, color="0.6", alpha=0.6)
    axes.set(ylim=(0.0, p.height), ylabel="level (m)")


environment = single_agent(
    state=State,
    params=Params,
    observation=Box(3),
    action=Box(1, 0.0, 1.0),  # one number, from pump off to full power
    reset=reset,
    step=step,
    observe=observe,
    time_limit=200,
)
