"""Heat a row of rooms, each with a heater and an agent of its own; neighbours share walls, and all share a boiler.

Energy balance of a room, where u is 1 if its heater is on; explicit Euler steps:

    dT_i/dt = (outside - T_i) / loss + (T_(i-1) + T_(i+1) - 2 T_i) / wall + heating u_i min(1, boiler / sum of u)
"""

from typing import NamedTuple

from warprun.environment import Box, Discrete, Environment, Group, Phase, float32
from warprun.random import uniform

ROOMS = 5


class Room(NamedTuple):
    """The numbers that a room keeps from step to step."""

    temperature: float32  # degrees Celsius
    target: float32  # degrees Celsius, another one in each episode
    heats: float32  # 1 if the heater is on


class Params(NamedTuple):
    """Constants that a run can set: `warprun env=PROJECT env.params.outside=-10`."""

    outside: float = 5.0  # degrees Celsius
    loss: float = 120.0  # min, through the outer wall
    wall: float = 60.0  # min, to a neighbour
    heating: float = 0.25  # K/min, of one heater
    boiler: float = 4.0  # heaters that it can serve at full power
    band: float = 0.5  # K, a step within target +- band is worth 1
    dt: float = 2.0  # min


def reset(rng):
    """Return the state of a room at the start of an episode."""
    return Room(uniform(rng, 0, 14.0, 20.0), uniform(rng, 1, 18.0, 22.0), 0.0)


def switch(s, action):
    """Phase 1: every agent switches its heater. Return the state, the reward, and whether the episode has ended."""
    return Room(s.temperature, s.target, float32(action)), 0.0, False


def warm(s, p, i, rooms, rooms_sum):
    """Phase 2: the temperatures change. `rooms` has all rooms before this phase, `rooms_sum` the sums over them."""
    left = rooms.temperature[i - 1 if i > 0 else i]
    right = rooms.temperature[i + 1 if i < ROOMS - 1 else i]
    share = min(1.0, p.boiler / max(1.0, rooms_sum.heats))
    losses = (s.temperature - p.outside) / p.loss + (2.0 * s.temperature - left - right) / p.wall
    temperature = s.temperature + p.dt * (p.heating * s.heats * share - losses)
    return Room(temperature, s.target, s.heats), 1.0 if abs(temperature - s.target) < p.band else 0.0, False


def observe(s, i, rooms, rooms_sum):
    """Return what an agent sees, in units of about 1: its room, its neighbours, and how many heaters are on."""
    left = rooms.temperature[i - 1 if i > 0 else i]
    right = rooms.temperature[i + 1 if i < ROOMS - 1 else i]
    own = s.temperature
    return own - s.target, s.target - 20.0, left - own, right - own, rooms_sum.heats / float32(ROOMS)


def draw(axes, state, p):
    """Draw the rooms; warprun calls this for every frame of a film."""
    colors = ["#d55e00" if heats else "#56b4e9" for heats in state.heats]
    axes.bar(range(ROOMS), state.temperature, color=colors, width=0.8)
    axes.errorbar(range(ROOMS), state.target, p.band, fmt="none", color="0.2", capsize=8)
    axes.set(ylim=(10.0, 25.0), xlabel="room", ylabel="temperature (degrees Celsius)")


environment = Environment(
    groups=(Group("rooms", ROOMS, Room, Box(5), Discrete(2), reset, observe, sums=("heats",)),),
    phases=(Phase("rooms", switch), Phase("rooms", warm)),
    params=Params,
    time_limit=200,
)
