"""Drive an underpowered car out of a valley with full throttle ahead or back; same dynamics as Gymnasium's MountainCar-v0.

Source: Moore, "Efficient memory-based learning for robot control", PhD thesis, University of Cambridge, 1990, in the form of
Sutton and Barto, "Reinforcement learning: an introduction", 2018, example 10.1. The height of the hill is sin(3 x). Time is in steps.
"""

from typing import NamedTuple

from warprun.environment import Box, Discrete, float32, single_agent
from warprun.math import clip, cos
from warprun.random import uniform


class State(NamedTuple):
    x: float32  # position; the valley's floor is at -pi/6
    v: float32  # velocity, position per step


class Params(NamedTuple):
    force: float = 0.001  # per step^2
    gravity: float = 0.0025  # per step^2
    x_min: float = -1.2  # a wall
    x_max: float = 0.6
    v_max: float = 0.07  # per step
    goal: float = 0.5  # position
    goal_v: float = 0.0  # minimum velocity at the goal, per step
    start_low: float = -0.6  # position at reset
    start_high: float = -0.4


def reset(rng, p):
    return State(uniform(rng, 0, p.start_low, p.start_high), float32(0.0))


def step(s, action, p):
    v = clip(s.v + (float32(action) - 1.0) * p.force - p.gravity * cos(3.0 * s.x), -p.v_max, p.v_max)
    x = clip(s.x + v, p.x_min, p.x_max)
    v = float32(0.0) if x <= p.x_min and v < 0.0 else v
    terminated = x >= p.goal and v >= p.goal_v
    return State(x, v), -1.0, terminated


def observe(s):
    return s.x, s.v


environment = single_agent(
    state=State,
    params=Params,
    observation=Box(2, (Params().x_min, -Params().v_max), (Params().x_max, Params().v_max)),
    action=Discrete(3),
    reset=reset,
    step=step,
    observe=observe,
    time_limit=200,
)
