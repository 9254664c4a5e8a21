"""Keep a stirred tank at its temperature with a heater that is on or off, while the inflow becomes warmer and colder.

Energy balances of the tank and of its heater, which is slow; explicit Euler steps:

    dT/dt = (T_in - T) / residence + (H - T) / exchange
    dH/dt = power u - (H - T) / storage
"""

from typing import NamedTuple

from warprun.environment import Box, Discrete, float32, single_agent
from warprun.math import sqrt
from warprun.random import normal, uniform


class State(NamedTuple):
    """The numbers that an environment keeps from step to step, all in kelvin."""

    tank: float32
    heater: float32
    inflow: float32


class Params(NamedTuple):
    """Constants that a run can set: `warprun env=PROJECT env.params.power=3`."""

    target: float = 330.0  # K
    band: float = 1.0  # K, a step within target +- band is worth 1
    residence: float = 120.0  # s, volume of the tank over its inflow
    exchange: float = 60.0  # s, from the heater to the water
    storage: float = 20.0  # s, the same for the heater
    power: float = 2.0  # K/s, of the heater
    inflow: float = 300.0  # K, mean
    spread: float = 5.0  # K, standard deviation of the inflow
    memory: float = 100.0  # s, correlation time of the inflow
    dt: float = 5.0  # s


def reset(rng, p):
    """Return the state at the start of an episode."""
    start = uniform(rng, 0, 300.0, 340.0)
    return State(start, start, p.inflow + p.spread * normal(rng, 1))


def step(s, action, rng, p):
    """Return the state after dt, the reward, and whether the episode has ended (never; the time limit truncates it)."""
    power = p.power if action == 1 else 0.0
    tank = s.tank + p.dt * ((s.inflow - s.tank) / p.residence + (s.heater - s.tank) / p.exchange)
    heater = s.heater + p.dt * (power - (s.heater - s.tank) / p.storage)
    keep = 1.0 - p.dt / p.memory
    inflow = p.inflow + keep * (s.inflow - p.inflow) + p.spread * sqrt(1.0 - keep * keep) * normal(rng, 0)
    return State(tank, heater, inflow), 1.0 if abs(tank - p.target) < p.band else 0.0, False


def observe(s, p):
    """Return what the policy sees, in units of about 1."""
    return (s.tank - p.target) / 10.0, (s.heater - s.tank) / 50.0, (s.inflow - p.inflow) / 10.0


def draw(axes, past, p):
    """Draw the temperatures until now; warprun calls this for every frame of a film."""
    minutes = [p.dt * n / 60.0 for n in range(len(past.tank))]
    axes.axhspan(p.target - p.band, p.target + p.band, color="0.85")
    axes.plot(minutes, past.tank, color="#d55e00", label="tank")
    axes.plot(minutes, past.inflow, color="#0072b2", label="inflow")
    axes.set(xlim=(0.0, 200 * p.dt / 60.0), ylim=(280.0, 345.0), xlabel="time (min)", ylabel="temperature (K)")
    axes.legend(loc="lower right")


environment = single_agent(
    state=State,
    params=Params,
    observation=Box(3),
    action=Discrete(2),
    reset=reset,
    step=step,
    observe=observe,
    time_limit=200,
)
