"""The dynamics of the surrogate: a linear plant, what disturbs it, the signals that are seen, and rewards.

With delta = VIMIN - SETTING and e = IMINER, a step is one sample of 1/15 s:

    e[t] = c0 delta[t] + c1 delta[t-1] + c2 delta[t-2] + b1 e[t-1] + b2 e[t-2] + offset + d[t]
    d[t] = noise z[t] + (amplitude + burst in the first samples of a super-cycle) sin(angle[t]),   z standard normal

The coefficients were identified from 14 published rendered episodes (full: R2 0.90, simple: R2 0.87). `noise` is what is left of the
residual after the part common to all episodes is removed. `amplitude` is the least-squares fit of the autocorrelation of e under the
recorded regulator, delta[t+1] = -0.0908 e[t], to the published one at lags 1 to 5 and 10, and `burst` is such that e then swings by 0.75.

LINFRQ, IB and MDAT40 have the published ranges, medians and interquartile ranges; their courses are inventions. LINFRQ follows the periodic
part of d under noise. IB and MDAT40 rise and fall with twice its period, one sample apart. They act on nothing.
"""

from collections import namedtuple
from typing import Annotated, NamedTuple

import numpy as np

from warprun.environment import float32, int32
from warprun.envs.booster.published import CYCLE, GAIN, SETTING, SIGNALS
from warprun.math import clip, pi, power, sin, sqrt, where
from warprun.random import normal, randint, uniform

SEEN = 5
"""Signals of a sample."""
SETTLE = 20
"""Samples after which a step response of the plant has settled."""


def doubled(low, high):
    """Return the ends of a range that is twice as wide about the same centre."""
    return 1.5 * low - 0.5 * high, 1.5 * high - 0.5 * low


# So that nothing diverges in float32, whatever the parameters.
LOWEST, HIGHEST = (end - SETTING for end in doubled(SIGNALS["VIMIN"].low, SIGNALS["VIMIN"].high))
LEAST, MOST = doubled(SIGNALS["IMINER"].low, SIGNALS["IMINER"].high)
LINE_LOW, LINE_HIGH, LINE_MEDIAN = SIGNALS["LINFRQ"].low, SIGNALS["LINFRQ"].high, SIGNALS["LINFRQ"].median
IB_LOW, IB_SPAN = SIGNALS["IB"].low, SIGNALS["IB"].high - SIGNALS["IB"].low
MDAT_LOW, MDAT_SPAN = SIGNALS["MDAT40"].low, SIGNALS["MDAT40"].high - SIGNALS["MDAT40"].low


class Sample(NamedTuple):
    """Everything but what has been seen."""

    delta: float32
    delta_1: float32
    iminer: float32
    iminer_1: float32
    ramp: float32
    line: float32
    place: int32
    disturbance: float32


class State(NamedTuple):
    delta: float32  # VIMIN - SETTING in the last sample
    delta_1: float32  # one sample before
    iminer: float32
    iminer_1: float32
    ramp: float32  # angle of the currents of neighbouring machines, rad; that of the periodic disturbance is twice as large
    line: float32  # random part of LINFRQ, variance 1
    place: int32  # samples since the super-cycle began
    disturbance: float32  # d of the last sample
    seen: Annotated[np.ndarray, SEEN]  # the signals of the last samples, scaled, the oldest first


class Params(NamedTuple):
    vimin_0: float = -5.92  # change of IMINER per change of VIMIN in the same sample
    vimin_1: float = 6.47  # one sample before
    vimin_2: float = -2.40  # two samples before
    iminer_1: float = 1.15  # per IMINER one sample before
    iminer_2: float = -0.49  # two samples before
    offset: float = -0.013
    noise: float = 0.033  # standard deviation of the random disturbance
    amplitude: float = 0.0118  # of the periodic disturbance
    period: float = 10.0  # of the periodic disturbance, samples
    burst: float = 0.122  # added to the amplitude in a burst
    burst_length: int = 78  # samples; a burst begins with each super-cycle
    cycle: int = CYCLE  # samples of a super-cycle
    gain: float = GAIN  # of the regulator that is at work before an episode begins
    line_swing: float = 10.0  # amplitude of the periodic part of LINFRQ
    line_noise: float = 12.0  # standard deviation of its random part
    line_memory: float = 0.9  # correlation of its random part from one sample to the next
    skew: float = 1.37  # exponent of the currents: more time below the middle than above
    edge_cost: float = 0.5  # of a step at the edge of the window; mode=corrected
    trip: float = 2.0  # |IMINER| that ends an episode; mode=compat
    trip_cost: float = 5.0  # of each step that is left then


SIMPLE = {"vimin_0": -5.87, "vimin_1": 4.76, "vimin_2": 0.0, "iminer_1": 0.787, "iminer_2": 0.0, "offset": -0.008}
SIMPLE |= {"amplitude": 0.0405, "burst": 0.2375}
SimpleParams = namedtuple("SimpleParams", Params._fields, defaults=Params(**SIMPLE))
"""Parameters of `plant=simple`."""


class Tables(NamedTuple):
    changes: np.ndarray  # [30] of VIMIN, by action
    shift: np.ndarray  # [SEEN]: an observation is (signal - shift) scale
    scale: np.ndarray  # [SEEN]
    low: float32  # edges of the window of VIMIN - SETTING
    high: float32
    compat: int32  # whether leaving the window ends the episode
    steps: int32  # of an episode
    start: np.ndarray  # [history, SEEN] signals before the start of mode=compat, scaled
    start_delta: float32
    start_delta_1: float32
    start_iminer: float32
    start_iminer_1: float32
    start_ramp: float32
    start_line: float32
    start_place: int32


def respond(delta, delta_1, delta_2, iminer_1, iminer_2, p):
    """Return IMINER without disturbance."""
    return p.vimin_0 * delta + p.vimin_1 * delta_1 + p.vimin_2 * delta_2 + p.iminer_1 * iminer_1 + p.iminer_2 * iminer_2 + p.offset


def follow(now, delta, shock, line_shock, p):
    """Return the sample after `now`, a `Sample` or a `State`, with VIMIN at `delta`; the shocks are standard normal."""
    ramp = now.ramp + pi / p.period
    ramp = where(ramp >= 2.0 * pi, ramp - 2.0 * pi, ramp)
    place = int32(now.place + 1)
    place = where(place >= p.cycle, int32(0), place)
    strength = p.amplitude + where(place < p.burst_length, p.burst, 0.0)
    disturbance = p.noise * shock + strength * sin(2.0 * ramp)
    iminer = clip(respond(delta, now.delta, now.delta_1, now.iminer, now.iminer_1, p) + disturbance, LEAST, MOST)
    line = p.line_memory * now.line + sqrt(1.0 - p.line_memory * p.line_memory) * line_shock
    return Sample(delta, now.delta, iminer, now.iminer, ramp, line, place, disturbance)


def rise(ramp, p):
    """Return the current of a neighbouring machine, 0..1."""
    return power(0.5 + 0.5 * sin(ramp), p.skew)


def note(seen, first, now, p, tables):
    """Write the scaled signals of a sample to `seen` from entry `first` on."""
    line = clip(LINE_MEDIAN + p.line_swing * sin(2.0 * now.ramp) + p.line_noise * now.line, LINE_LOW, LINE_HIGH)
    seen[first] = (now.delta - tables.shift[0]) * tables.scale[0]
    seen[first + 1] = (now.iminer - tables.shift[1]) * tables.scale[1]
    seen[first + 2] = (line - tables.shift[2]) * tables.scale[2]
    seen[first + 3] = (IB_LOW + IB_SPAN * rise(now.ramp, p) - tables.shift[3]) * tables.scale[3]
    seen[first + 4] = (MDAT_LOW + MDAT_SPAN * rise(now.ramp - pi / p.period, p) - tables.shift[4]) * tables.scale[4]


def reset_anywhere(s, rng, p, tables):
    """Begin anywhere in a super-cycle, after the recorded regulator has been at work for a while."""
    history = s.seen.shape[0] // SEEN
    place = int32(randint(rng, 1, int32(p.cycle)))
    now = Sample(float32(0.0), float32(0.0), float32(0.0), float32(0.0), uniform(rng, 0, 0.0, 2.0 * pi), float32(0.0), place, float32(0.0))
    for n in range(SETTLE + history):
        now = follow(now, -p.gain * now.iminer, normal(rng, 2 * n + 1), normal(rng, 2 * n + 2), p)
        if n >= SETTLE:
            note(s.seen, SEEN * (n - SETTLE), now, p, tables)
    return State(now.delta, now.delta_1, now.iminer, now.iminer_1, now.ramp, now.line, now.place, now.disturbance, s.seen)


def reset_fixed(s, tables):
    """Begin where every episode of mode=compat begins."""
    history = s.seen.shape[0] // SEEN
    for n in range(history):
        for k in range(SEEN):
            s.seen[SEEN * n + k] = tables.start[n, k]
    return State(
        tables.start_delta,
        tables.start_delta_1,
        tables.start_iminer,
        tables.start_iminer_1,
        tables.start_ramp,
        tables.start_line,
        tables.start_place,
        float32(0.0),
        s.seen,
    )


def step_discrete(s, action, rng, t, p, tables):
    return regulate(s, tables.changes[action], rng, t, p, tables)


def step_continuous(s, action, rng, t, p, tables):
    return regulate(s, action[0], rng, t, p, tables)


def regulate(s, change, rng, t, p, tables):
    """Change VIMIN and return what a step returns."""
    wanted = s.delta + change
    edge = (wanted <= tables.low) | (wanted >= tables.high)
    left = (wanted < tables.low) | (wanted > tables.high)
    delta = where(tables.compat, clip(wanted, LOWEST, HIGHEST), clip(wanted, tables.low, tables.high))
    now = follow(s, delta, normal(rng, 0), normal(rng, 1), p)
    for n in range(s.seen.shape[0] - SEEN):
        s.seen[n] = s.seen[n + SEEN]
    note(s.seen, s.seen.shape[0] - SEEN, now, p, tables)
    tripped = abs(now.iminer) >= p.trip
    cost = where(tables.compat, where(tripped, p.trip_cost * float32(tables.steps - t - 1), 0.0), where(edge, p.edge_cost, 0.0))
    after = State(now.delta, now.delta_1, now.iminer, now.iminer_1, now.ramp, now.line, now.place, now.disturbance, s.seen)
    return after, -abs(now.iminer) - cost, tables.compat & (left | tripped)


def observe(s, out):
    for n in range(s.seen.shape[0]):
        out[n] = s.seen[n]
