"""Drive an underpowered car out of a valley with little fuel; same dynamics as Gymnasium's MountainCarContinuous-v0.

Source: Moore, "Efficient memory-based learning for robot control", PhD thesis, University of Cambridge, 1990, with a continuous
throttle. The reward is 100 at the goal minus a tenth of the squared throttle in each step. The height of the hill is sin(3 x). The unit of
time is a step. As in Gymnasium, a throttle beyond -1..1 has the force of the bound and the cost of its full value. In a run this does not
occur, because warprun clips actions to the bounds.
"""

from typing import NamedTuple

from warprun.environment import Box, float32, single_agent
from warprun.envs import mountain_car
from warprun.math import clip, cos
from warprun.random import uniform


class State(NamedTuple):
    x: float32  # position; the valley's floor is at -pi/6
    v: float32  # velocity, position per step


class Params(NamedTuple):
    force: float = 0.0015  # at full throttle, per step^2
    gravity: float = 0.0025  # per step^2
    x_min: float = -1.2  # a wall
    x_max: float = 0.6
    v_max: float = 0.07  # per step
    goal: float = 0.45  # position
    goal_v: float = 0.0  # minimum velocity at the goal, per step
    prize: float = 100.0  # reward at the goal
    fuel: float = 0.1  # cost of one step at full throttle
    start_low: float = -0.6  # position at reset
    start_high: float = -0.4


def reset(rng, p):
    return State(uniform(rng, 0, p.start_low, p.start_high), float32(0.0))


def step(s, action, p):
    throttle = action[0]
    v = clip(s.v + clip(throttle, -1.0, 1.0) * p.force - p.gravity * cos(3.0 * s.x), -p.v_max, p.v_max)
    x = clip(s.x + v, p.x_min, p.x_max)
    v = float32(0.0) if x <= p.x_min and v < 0.0 else v
    terminated = x >= p.goal and v >= p.goal_v
    reward = (p.prize if terminated else 0.0) - p.fuel * throttle * throttle
    return State(x, v), reward, terminated


def observe(s):
    return s.x, s.v


draw = mountain_car.draw

environment = single_agent(
    state=State,
    params=Params,
    observation=Box(2, (Params().x_min, -Params().v_max), (Params().x_max, Params().v_max)),
    action=Box(1, -1.0, 1.0),
    reset=reset,
    step=step,
    observe=observe,
    time_limit=999,
)
