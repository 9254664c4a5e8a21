"""Point an antenna, whose mast sways in the wind, in two axes: errors of a thousandth of a radian cost, and so do the motors."""

from typing import NamedTuple

from warprun.environment import Box, float32, single_agent
from warprun.random import normal, uniform


class State(NamedTuple):
    x: float32  # errors of the two axes, rad
    y: float32
    x_rate: float32  # rad/s
    y_rate: float32
    x_wind: float32  # what the wind does, rad/s^2
    y_wind: float32


class Params(NamedTuple):
    stiffness: float = 2.25  # of the mast, 1/s^2
    damping: float = 0.4  # 1/s
    turn: float = 0.3  # of each axis by the rate of the other, 1/s
    motor: float = 1.0e-3  # rad/s^2/V
    keep: float = 0.98  # share of the wind that is left after a step
    gust: float = 2.0e-4  # rad/s^2
    error: float = 1.0e6  # cost of a squared rad
    power: float = 0.1  # cost of a squared V
    dt: float = 0.05  # s


def reset(rng):
    return State(uniform(rng, 0, -2.0e-3, 2.0e-3), uniform(rng, 1, -2.0e-3, 2.0e-3), 0.0, 0.0, 0.0, 0.0)


def step(s, action, rng, p):
    cost = p.error * (s.x * s.x + s.y * s.y) + p.power * (action[0] * action[0] + action[1] * action[1])
    x_force = p.motor * action[0] + s.x_wind - p.stiffness * s.x - p.damping * s.x_rate + p.turn * s.y_rate
    y_force = p.motor * action[1] + s.y_wind - p.stiffness * s.y - p.damping * s.y_rate - p.turn * s.x_rate
    x_rate, y_rate = s.x_rate + p.dt * x_force, s.y_rate + p.dt * y_force
    x_wind, y_wind = p.keep * s.x_wind + p.gust * normal(rng, 0), p.keep * s.y_wind + p.gust * normal(rng, 1)
    return State(s.x + p.dt * x_rate, s.y + p.dt * y_rate, x_rate, y_rate, x_wind, y_wind), -cost, False


def observe(s):
    return s.x, s.y, s.x_rate, s.y_rate, s.x_wind, s.y_wind


environment = single_agent(
    state=State, params=Params, observation=Box(6), action=Box(2, -10.0, 10.0), reset=reset, step=step, observe=observe, time_limit=500
)
