"""Drive an underpowered car out of a valley with full throttle ahead or back; same dynamics as Gymnasium's MountainCar-v0.

Source: Moore, "Efficient memory-based learning for robot control", PhD thesis, University of Cambridge, 1990, in the form of
Sutton and Barto, "Reinforcement learning: an introduction", 2018, example 10.1. The height of the hill is sin(3 x). Time is in steps.
"""

from typing import NamedTuple

import numpy as np

from warprun.environment import Box, Discrete, float32, single_agent
from warprun.math import clip, cos, sin
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


def draw(axes, p):
    """Draw the hill, the car on its slope, the wall on the left and the flag at the goal. The height of the hill is sin(3 x) / 3."""
    x = np.linspace(p.x_min, p.x_max, 200)
    axes.fill_between(x, np.sin(3 * x) / 3, -0.42, color="#d9e6d0", linewidth=0)
    axes.plot(x, np.sin(3 * x) / 3, color="#5a7a4a", linewidth=2)
    axes.plot((p.x_min, p.x_min), (sin(3 * p.x_min) / 3, 0.35), color="0.5", linewidth=4)
    foot = sin(3 * p.goal) / 3
    axes.plot((p.goal, p.goal), (foot, foot + 0.2), color="0.2", linewidth=2)
    axes.fill((p.goal, p.goal + 0.09, p.goal), (foot + 0.2, foot + 0.165, foot + 0.13), color="#e69f00")
    (car,) = axes.fill(4 * (0.0,), 4 * (0.0,), color="#0072b2", zorder=3)
    (wheels,) = axes.plot((), (), "o", color="0.2", markersize=9, zorder=4)
    axes.set(xlim=(p.x_min - 0.05, p.x_max + 0.05), ylim=(-0.42, 0.62), aspect="equal")
    axes.axis("off")
    axes.figure.set_size_inches(6, 3.6)

    def show(state):
        ahead = np.array((1.0, cos(3 * state.x))) / np.hypot(1.0, cos(3 * state.x))
        up = np.array((-ahead[1], ahead[0]))
        place = np.array((state.x, sin(3 * state.x) / 3))
        corners = ((-0.075, 0.025), (0.075, 0.025), (0.06, 0.07), (-0.06, 0.07))
        car.set_xy([place + along * ahead + above * up for along, above in corners])
        wheels.set_data(np.transpose([place + along * ahead + 0.022 * up for along in (-0.045, 0.045)]))

    return show


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
