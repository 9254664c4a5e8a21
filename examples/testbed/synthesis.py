"""Make a product in a stirred tank by a feed of up to 1e-3 m^3/s, a dose of up to 1e-4 mol/s of catalyst, and 2e5 W of cooling to
1e5 W of heating.

Too cold, nothing reacts; too hot, the product decays and heats the tank further.

The temperature at which the product is worth most is unstable: Aris and Amundson, "An analysis of chemical reactor stability and control",
Chemical Engineering Science 7, 1958. The numbers of this file are its own.
"""

from typing import NamedTuple

from warprun.environment import Box, float32, single_agent
from warprun.math import clip, exp
from warprun.random import normal, uniform


class State(NamedTuple):
    raw: float32  # mol/m^3
    product: float32  # mol/m^3
    catalyst: float32  # mol/m^3
    temperature: float32  # K
    strength: float32  # raw in the feed, mol/m^3


class Params(NamedTuple):
    volume: float = 1.0  # m^3
    make: float = 0.1  # raw to product at 350 K, m^3/mol/s, of catalyst
    make_barrier: float = 8000.0  # K
    decay: float = 2.0e-4  # of product at 350 K, 1/s
    decay_barrier: float = 14000.0  # K
    warms: float = 0.02  # K m^3/mol, by both reactions
    heat: float = 5.0e-7  # K m^3/J
    feed: float = 300.0  # temperature of the feed, K
    strength: float = 4000.0  # mean of that of the feed, mol/m^3
    keep: float = 0.95  # share of its distance from the mean that is left after a step
    vary: float = 200.0  # mol/m^3
    cost: float = 0.25  # of a mol of raw; that of product is worth 1
    catalyst: float = 4.0e3  # cost of a mol
    energy: float = 5.0e-7  # cost of a J
    dt: float = 10.0  # s


def reset(rng, p):
    return State(uniform(rng, 0, 2000.0, 4000.0), 0.0, 0.01, uniform(rng, 1, 310.0, 350.0), p.strength)


def step(s, action, rng, p):
    feed, dose, power = action  # m^3/s, mol/s, W
    flow = p.dt * feed / p.volume
    over = 1.0 / 350.0 - 1.0 / s.temperature  # 1/K
    made = p.dt * p.make * s.catalyst * exp(p.make_barrier * over)
    lost = p.dt * p.decay * exp(p.decay_barrier * over)
    # Implicit in what reacts, so that nothing gets negative however hot it is.
    raw = (s.raw + flow * s.strength) / (1.0 + flow + made)
    product = (s.product + made * raw) / (1.0 + flow + lost)
    catalyst = (s.catalyst + p.dt * dose / p.volume) / (1.0 + flow)
    warmer = p.warms * (made * raw + lost * product) + flow * (p.feed - s.temperature) + p.heat * p.dt * power / p.volume
    strength = p.strength + p.keep * (s.strength - p.strength) + p.vary * normal(rng, 0)
    earned = p.volume * flow * (product - p.cost * s.strength) - p.dt * (p.catalyst * dose + p.energy * abs(power))
    return State(raw, product, catalyst, clip(s.temperature + warmer, 280.0, 500.0), strength), earned, False


def observe(s):
    return s.raw, s.product, s.catalyst, s.temperature, s.strength


environment = single_agent(
    state=State,
    params=Params,
    observation=Box(5),
    action=Box(3, (0.0, 0.0, -2.0e5), (1.0e-3, 1.0e-4, 1.0e5)),
    reset=reset,
    step=step,
    observe=observe,
    time_limit=400,
)
