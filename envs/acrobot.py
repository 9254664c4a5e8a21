"""Swing the tip of a two-link pendulum up by a motor between the links; same dynamics as Gymnasium's Acrobot-v1.

Source: Sutton, "Generalization in reinforcement learning: successful examples using sparse coarse coding", NIPS 8, 1996;
equations of motion: Sutton and Barto, "Reinforcement learning: an introduction", 1998, section 11.3.
"""

from typing import NamedTuple

from warprun.environment import Box, Discrete, float32, single_agent
from warprun.math import clip, cos, sin, wrap_angle
from warprun.random import uniform


class State(NamedTuple):
    theta1: float32  # angle of the first link from hanging down, rad in -pi .. pi
    theta2: float32  # angle of the second link from the first, rad in -pi .. pi
    omega1: float32  # rad/s
    omega2: float32  # rad/s


class Params(NamedTuple):
    gravity: float = 9.8  # m/s^2
    length1: float = 1.0  # of the first link, m
    center1: float = 0.5  # from the joint to the center of mass, m
    center2: float = 0.5  # m
    mass1: float = 1.0  # kg
    mass2: float = 1.0  # kg
    inertia: float = 1.0  # of each link about its center of mass, kg m^2
    torque: float = 1.0  # N m
    dt: float = 0.2  # s
    omega1_limit: float = 12.566370614359172  # 4 pi, rad/s
    omega2_limit: float = 28.274333882308138  # 9 pi, rad/s
    goal: float = 1.0  # height of the tip above the fixed joint for links of 1 m, m
    start: float = 0.1  # bound of every state variable at reset


def reset(rng, p):
    return State(
        uniform(rng, 0, -p.start, p.start),
        uniform(rng, 1, -p.start, p.start),
        uniform(rng, 2, -p.start, p.start),
        uniform(rng, 3, -p.start, p.start),
    )


def acceleration(theta1, theta2, omega1, omega2, torque, p):
    sin2, cos2 = sin(theta2), cos(theta2)
    coupling = p.mass2 * p.length1 * p.center2
    inertia2 = p.mass2 * p.center2 * p.center2 + p.inertia
    d1 = p.mass1 * p.center1 * p.center1 + p.mass2 * p.length1 * p.length1 + 2.0 * coupling * cos2 + inertia2 + p.inertia
    d2 = inertia2 + coupling * cos2
    phi2 = p.mass2 * p.center2 * p.gravity * sin(theta1 + theta2)
    weight1 = (p.mass1 * p.center1 + p.mass2 * p.length1) * p.gravity * sin(theta1)
    phi1 = weight1 + phi2 - coupling * omega2 * (omega2 + 2.0 * omega1) * sin2
    acc2 = (torque + d2 / d1 * phi1 - coupling * omega1 * omega1 * sin2 - phi2) / (inertia2 - d2 * d2 / d1)
    return -(d2 * acc2 + phi1) / d1, acc2


def step(s, action, p):
    torque = (float32(action) - 1.0) * p.torque
    # Fourth-order Runge-Kutta: (u, v) are the velocities and (a, b) the accelerations at the four points.
    dt, half = p.dt, 0.5 * p.dt
    u1, v1 = s.omega1, s.omega2
    a1, b1 = acceleration(s.theta1, s.theta2, u1, v1, torque, p)
    u2, v2 = u1 + half * a1, v1 + half * b1
    a2, b2 = acceleration(s.theta1 + half * u1, s.theta2 + half * v1, u2, v2, torque, p)
    u3, v3 = u1 + half * a2, v1 + half * b2
    a3, b3 = acceleration(s.theta1 + half * u2, s.theta2 + half * v2, u3, v3, torque, p)
    u4, v4 = u1 + dt * a3, v1 + dt * b3
    a4, b4 = acceleration(s.theta1 + dt * u3, s.theta2 + dt * v3, u4, v4, torque, p)
    sixth = dt / 6.0
    theta1 = wrap_angle(s.theta1 + sixth * (u1 + 2.0 * (u2 + u3) + u4))
    theta2 = wrap_angle(s.theta2 + sixth * (v1 + 2.0 * (v2 + v3) + v4))
    omega1 = clip(u1 + sixth * (a1 + 2.0 * (a2 + a3) + a4), -p.omega1_limit, p.omega1_limit)
    omega2 = clip(v1 + sixth * (b1 + 2.0 * (b2 + b3) + b4), -p.omega2_limit, p.omega2_limit)
    terminated = -cos(theta1) - cos(theta1 + theta2) > p.goal
    return State(theta1, theta2, omega1, omega2), 0.0 if terminated else -1.0, terminated


def observe(s):
    return cos(s.theta1), sin(s.theta1), cos(s.theta2), sin(s.theta2), s.omega1, s.omega2


def draw(axes, p):
    """Draw both links and the height of the goal; as in the goal, links are 1 m long."""
    axes.axhline(p.goal, color="#009e73", linestyle="--", linewidth=1.5)
    axes.text(-2.2, p.goal + 0.05, "goal of the tip", color="#009e73", fontsize=9)
    (upper,) = axes.plot((), (), color="#0072b2", linewidth=9, solid_capstyle="round")
    (lower,) = axes.plot((), (), color="#56b4e9", linewidth=9, solid_capstyle="round")
    (joints,) = axes.plot((), (), "o", color="white", markersize=4)
    (end,) = axes.plot((), (), "o", color="#d55e00", markersize=8)
    axes.set(xlim=(-2.3, 2.3), ylim=(-2.2, 2.2), aspect="equal")
    axes.axis("off")
    axes.figure.set_size_inches(4, 4)

    def show(state):
        elbow = (sin(state.theta1), -cos(state.theta1))
        tip = (elbow[0] + sin(state.theta1 + state.theta2), elbow[1] - cos(state.theta1 + state.theta2))
        for line in (upper, joints):
            line.set_data((0.0, elbow[0]), (0.0, elbow[1]))
        lower.set_data((elbow[0], tip[0]), (elbow[1], tip[1]))
        end.set_data((tip[0],), (tip[1],))

    return show


FARTHEST = (1.0, 1.0, 1.0, 1.0, Params().omega1_limit, Params().omega2_limit)

environment = single_agent(
    state=State,
    params=Params,
    observation=Box(6, tuple(-x for x in FARTHEST), FARTHEST),
    action=Discrete(3),
    reset=reset,
    step=step,
    observe=observe,
    time_limit=500,
)
