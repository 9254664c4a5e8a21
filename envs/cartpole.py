"""Balance a pole on a cart by pushing the cart left or right; same dynamics as Gymnasium's CartPole-v1.

`env.velocity=false` observes the positions only. Which push is right then depends on former observations.

Source: Barto, Sutton and Anderson, "Neuronlike adaptive elements that can solve difficult learning control problems",
IEEE Transactions on Systems, Man, and Cybernetics 13(5), 1983; equations of motion: Florian, "Correct equations for the dynamics
of the cart-pole system", 2007, without friction.
"""

from typing import NamedTuple

import numpy as np

from warprun.environment import Box, Discrete, Environment, float32, single_agent
from warprun.errors import UserError
from warprun.math import cos, sin
from warprun.random import uniform


class State(NamedTuple):
    x: float32  # cart position, m
    x_dot: float32  # cart velocity, m/s
    theta: float32  # pole angle from upright, rad
    theta_dot: float32  # rad/s


class Params(NamedTuple):
    gravity: float = 9.8  # m/s^2
    cart_mass: float = 1.0  # kg
    pole_mass: float = 0.1  # kg
    length: float = 0.5  # half the pole's length, m
    force: float = 10.0  # N
    dt: float = 0.02  # s
    x_limit: float = 2.4  # m
    theta_limit: float = 0.20943951023931953  # 12 degrees, rad
    start: float = 0.05  # bound of every state variable at reset


def reset(rng, p):
    return State(
        uniform(rng, 0, -p.start, p.start),
        uniform(rng, 1, -p.start, p.start),
        uniform(rng, 2, -p.start, p.start),
        uniform(rng, 3, -p.start, p.start),
    )


def step(s, action, p):
    force = p.force if action == 1 else -p.force
    mass = p.cart_mass + p.pole_mass
    sin_theta, cos_theta = sin(s.theta), cos(s.theta)
    push = (force + p.pole_mass * p.length * s.theta_dot * s.theta_dot * sin_theta) / mass
    theta_acc = (p.gravity * sin_theta - cos_theta * push) / (p.length * (4.0 / 3.0 - p.pole_mass * cos_theta * cos_theta / mass))
    x_acc = push - p.pole_mass * p.length * theta_acc * cos_theta / mass
    x = s.x + p.dt * s.x_dot
    theta = s.theta + p.dt * s.theta_dot
    terminated = abs(x) > p.x_limit or abs(theta) > p.theta_limit
    return State(x, s.x_dot + p.dt * x_acc, theta, s.theta_dot + p.dt * theta_acc), 1.0, terminated


def observe(s):
    return s.x, s.x_dot, s.theta, s.theta_dot


def observe_positions(s):
    return s.x, s.theta


def draw(axes, p):
    """Draw the cart on its track and the pole, in meters."""
    axle, tip = 0.3, 2.0 * p.length
    axes.plot((-p.x_limit, p.x_limit), (0.0, 0.0), color="0.75", linewidth=3)
    axes.plot((-p.x_limit, p.x_limit), (0.0, 0.0), "|", color="0.75", markersize=14)  # beyond them the episode ends
    (wheels,) = axes.plot((), (), "o", color="0.2", markersize=9)
    (cart,) = axes.fill(4 * (0.0,), 4 * (0.0,), color="#0072b2")
    (pole,) = axes.plot((), (), color="#d55e00", linewidth=7, solid_capstyle="round")
    (joint,) = axes.plot((), (), "o", color="white", markersize=4)
    axes.set(xlim=(-1.25 * p.x_limit, 1.25 * p.x_limit), ylim=(-0.15, axle + 1.1 * tip), aspect="equal")
    axes.axis("off")
    axes.figure.set_size_inches(6, 2)

    def show(state):
        wheels.set_data((state.x - 0.15, state.x + 0.15), (0.06, 0.06))
        cart.set_xy(np.transpose((state.x + 0.3 * np.array((-1, 1, 1, -1)), (0.08, 0.08, axle, axle))))
        pole.set_data((state.x, state.x + tip * sin(state.theta)), (axle, axle + tip * cos(state.theta)))
        joint.set_data((state.x,), (axle,))

    return show


FARTHEST = (4.8, float("inf"), 0.41887902047863906, float("inf"))  # twice the limits of the positions


def environment(velocity: bool = True) -> Environment:
    if not isinstance(velocity, bool):
        raise UserError(f"env.velocity={velocity} must be true or false")
    farthest = FARTHEST if velocity else FARTHEST[::2]
    return single_agent(
        state=State,
        params=Params,
        observation=Box(len(farthest), tuple(-x for x in farthest), farthest),
        action=Discrete(2),
        reset=reset,
        step=step,
        observe=observe if velocity else observe_positions,
        time_limit=500,
    )
