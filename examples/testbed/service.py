"""Choose how fast a server works on a queue, whose customers arrive in calm and in busy times; faster costs more."""

from typing import NamedTuple

from warprun.environment import Box, Discrete, float32, int32, single_agent
from warprun.random import randint, uniform

SPEEDS, ROOM = 4, 30


class State(NamedTuple):
    waiting: int32  # customers, 0 to ROOM
    busy: int32  # 1 in a busy time


class Params(NamedTuple):
    calm: float = 0.2  # probability of an arrival in a step
    rush: float = 0.7
    change: float = 0.05  # probability that a busy or calm time ends
    serve: float = 0.3  # probability that a service ends in a step, for each unit of speed
    wait: float = 0.1  # cost of a customer who waits, per step
    work: float = 0.3  # cost of the square of the speed, per step


def reset(rng):
    return State(int32(randint(rng, 0, 6)), int32(randint(rng, 1, 2)))


def step(s, action, rng, p):
    speed = float32(action)
    left = 1 if s.waiting > 0 and uniform(rng, 0, 0.0, 1.0) < p.serve * speed else 0
    arrival = 1 if uniform(rng, 1, 0.0, 1.0) < (p.rush if s.busy == 1 else p.calm) else 0
    changes = uniform(rng, 2, 0.0, 1.0) < p.change
    waiting = min(s.waiting - left + arrival, ROOM)
    cost = p.wait * float32(s.waiting) + p.work * speed * speed
    return State(int32(waiting), int32(1 - s.busy if changes else s.busy)), -cost, False


def observe(s):
    return float32(s.waiting), float32(s.busy)


environment = single_agent(
    state=State, params=Params, observation=Box(2), action=Discrete(SPEEDS), reset=reset, step=step, observe=observe, time_limit=200
)
