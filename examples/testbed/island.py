"""Hold the frequency of an island's grid with eight slow generators and six quick batteries: two groups of actors, and one reward for all.

A battery that is full cannot charge, and an empty one cannot give. Generators choose real numbers, batteries one of three actions.

Control of frequency: Kundur, "Power System Stability and Control", McGraw-Hill, 1994, chapter 11. The numbers of this file are its own.
"""

from typing import NamedTuple

from warprun.environment import Box, Discrete, Environment, Group, Phase, float32
from warprun.random import normal, uniform

GENERATORS, BATTERIES = 8, 6


class Generator(NamedTuple):
    output: float32  # MW, above the mean of all episodes, as is all in MW
    valve: float32  # where the output goes, MW
    load: float32  # of its place, MW
    usual: float32  # load that the load returns to, MW; not observed
    frequency: float32  # Hz, above 50; the same for all
    rate: float32  # change of it in the last step, Hz


class Battery(NamedTuple):
    charge: float32  # MW s
    power: float32  # MW


class Params(NamedTuple):
    """A step is 1 s."""

    follow: float = 0.05  # share of the way to its set point that a valve goes in a step, and an output to its valve
    keep: float = 0.9  # share of the distance of a load from the usual one that is left after a step
    gust: float = 0.2  # MW
    inertia: float = 0.02  # Hz/MW, in a step
    damping: float = 0.05  # share of the frequency that is lost in a step
    power: float = 0.5  # of a battery, MW
    room: float = 10.0  # of a battery, MW s
    cost: float = 10.0  # of a Hz
    work: float = 0.1  # of a squared MW, mean of the generators


def reset_generator(rng):
    usual = uniform(rng, 0, -0.5, 0.5)
    return Generator(0.0, 0.0, usual, usual, 0.0, 0.0)


def reset_battery(rng):
    return Battery(uniform(rng, 0, 3.0, 7.0), 0.0)


def generate(s, action, rng, p):
    output, valve = s.output + p.follow * (s.valve - s.output), s.valve + p.follow * (action[0] - s.valve)
    load = s.usual + p.keep * (s.load - s.usual) + p.gust * normal(rng, 0)
    return Generator(output, valve, load, s.usual, s.frequency, s.rate), 0.0, False


def store(s, action, p):
    power = p.power * (float32(action) - 1.0)  # 0 charges, 2 gives
    return Battery(s.charge - power, power), 0.0, False


def swing(s, p, generators_sum, batteries_sum):
    rate = p.inertia * (generators_sum.output + batteries_sum.power - generators_sum.load) - p.damping * s.frequency
    return Generator(s.output, s.valve, s.load, s.usual, s.frequency + rate, rate), 0.0, False


def score(s, p, generators):
    work = 0.0
    for n in range(GENERATORS):
        work += generators.output[n] * generators.output[n]
    cost = p.cost * abs(generators.frequency[0]) + p.work * work / float32(GENERATORS)
    return s, -cost, False


def mask(k, s, p):
    charge = s.charge - p.power * (float32(k) - 1.0)
    return k == 1 or abs(charge - 0.5 * p.room) <= 0.5 * p.room


def see_generator(s):
    return s.output, s.valve, s.load, s.frequency, s.rate


def see_battery(s, i, generators):
    return s.charge, float32(i), generators.frequency[0], generators.rate[0]


environment = Environment(
    groups=(
        Group("generators", GENERATORS, Generator, Box(5), Box(1, -1.5, 1.5), reset_generator, see_generator, sums=("output", "load")),
        Group("batteries", BATTERIES, Battery, Box(4), Discrete(3), reset_battery, see_battery, mask=mask, sums=("power",)),
    ),
    phases=(
        Phase("generators", generate),
        Phase("batteries", store),
        Phase("generators", swing),
        Phase("generators", score),
        Phase("batteries", score),
    ),
    params=Params,
    time_limit=200,
)
