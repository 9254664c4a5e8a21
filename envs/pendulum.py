"""Swing a rod up and hold it there with a motor too weak to lift it at once; same dynamics as Gymnasium's Pendulum-v1.

Source: the equation of motion of a uniform rod about its end, moment of inertia m l^2 / 3; as a learning task: Doya, "Reinforcement
learning in continuous time and space", Neural Computation 12(1), 2000. Semi-implicit Euler steps. An episode never terminates.

`env.velocity=false` observes the angle only. Which torque is right then depends on former observations.
"""

from typing import NamedTuple

import numpy as np

from warprun.environment import Box, Environment, float32, single_agent
from warprun.errors import UserError
from warprun.math import clip, cos, pi, sin, wrap_angle
from warprun.random import uniform


class State(NamedTuple):
    theta: float32  # angle from upright, rad; not wrapped
    omega: float32  # rad/s


class Params(NamedTuple):
    gravity: float = 10.0  # m/s^2
    mass: float = 1.0  # kg
    length: float = 1.0  # m
    dt: float = 0.05  # s
    omega_limit: float = 8.0  # rad/s
    omega_cost: float = 0.1  # s^2/rad^2
    torque_cost: float = 0.001  # 1/(N m)^2
    theta_start: float = pi  # bound of the angle at reset, rad
    omega_start: float = 1.0  # bound of the velocity at reset, rad/s


def reset(rng, p):
    return State(uniform(rng, 0, -p.theta_start, p.theta_start), uniform(rng, 1, -p.omega_start, p.omega_start))


def step(s, action, p):
    torque = action[0]
    angle = wrap_angle(s.theta)
    cost = angle * angle + p.omega_cost * s.omega * s.omega + p.torque_cost * torque * torque
    acceleration = 1.5 * p.gravity / p.length * sin(s.theta) + 3.0 / (p.mass * p.length * p.length) * torque
    omega = clip(s.omega + acceleration * p.dt, -p.omega_limit, p.omega_limit)
    return State(s.theta + omega * p.dt, omega), -cost, False


def observe(s):
    return cos(s.theta), sin(s.theta), s.omega


def observe_angle(s):
    return cos(s.theta), sin(s.theta)


def draw(axes, p):
    """Draw the rod, and the torque as an arrow around its joint; angles and torques are positive counterclockwise."""
    turn = np.linspace(0.0, 2.0 * pi, 100)
    axes.plot(p.length * np.cos(turn), p.length * np.sin(turn), color="0.9", linewidth=1)
    (rod,) = axes.plot((), (), color="#d55e00", linewidth=16, solid_capstyle="round")
    axes.plot(0.0, 0.0, "o", color="0.2", markersize=7)
    (torque,) = axes.plot((), (), color="#0072b2", linewidth=2)
    head = axes.annotate("", (0.0, 0.0), (0.0, 0.0), arrowprops={"arrowstyle": "-|>", "color": "#0072b2", "mutation_scale": 14})
    axes.set(xlim=(-1.2 * p.length, 1.2 * p.length), ylim=(-1.2 * p.length, 1.2 * p.length), aspect="equal")
    axes.axis("off")
    axes.figure.set_size_inches(4, 4)

    def show(state, action):
        rod.set_data((0.0, -p.length * sin(state.theta)), (0.0, p.length * cos(state.theta)))
        share = 0.0 if action is None else action[0]
        angles = pi * (0.5 + np.linspace(-0.4, 0.4, 30) * share)  # 144 degrees at the largest torque
        arc = 0.33 * p.length * np.array((np.cos(angles), np.sin(angles)))
        torque.set_data(arc)
        head.set_position(arc[:, -2])
        head.xy = arc[:, -1]
        for artist in (torque, head):
            artist.set_visible(abs(share) >= 0.02)

    return show


FARTHEST = (1.0, 1.0, Params().omega_limit)


def environment(velocity: bool = True) -> Environment:
    if not isinstance(velocity, bool):
        raise UserError(f"env.velocity={velocity} must be true or false")
    farthest = FARTHEST if velocity else FARTHEST[:2]
    return single_agent(
        state=State,
        params=Params,
        observation=Box(len(farthest), tuple(-x for x in farthest), farthest),
        action=Box(1, -2.0, 2.0),
        reset=reset,
        step=step,
        observe=observe if velocity else observe_angle,
        time_limit=200,
    )
