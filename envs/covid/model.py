"""The functions of the COVID-19 economy: one governor or the planner, one day. Units: people, USD, days."""

from typing import NamedTuple

from warprun.environment import Box, Discrete, Environment, Group, Phase, float32, int32
from warprun.envs.covid.tables import (
    BETA_INTERCEPT,
    BETA_SLOPE,
    COOLDOWN,
    DELIVERY,
    ECONOMY_OFFSET,
    ECONOMY_SLOPE,
    ELAPSED,
    FILTER_WEIGHT,
    FULL_SUBSIDY_DAY,
    HEALTH_ODDS,
    HEALTH_OFFSET,
    HEALTH_SLOPE,
    INFECTED,
    LEVEL,
    PER_FULL_OUTPUT,
    PER_PERSON,
    PLANNER,
    POPULATION,
    RECOVERED,
    STATES,
    SUBSIDY_INTERVAL,
    SUBSIDY_LEVELS,
    SUSCEPTIBLE,
    TOO_SICK,
    UNEMPLOYED,
    UNEMPLOYMENT_BIAS,
    UNTIL_SUBSIDY,
    VACCINATED,
    VACCINE_CLOCK,
    WAGE,
    WORKING_AGE,
    check,
    tables,
)
from warprun.math import clip, floor, softplus

GAMMA = 1 / 14  # share of the infected that is removed in a day
MORTALITY = 0.02  # share of the removed that is dead
BORROWING = 1.03  # what a dollar of subsidy costs in the end
# What a change of level does to unemployment fades with five time constants (days; the data have the same numbers): exp(-1/T).
FADE_1, FADE_2, FADE_3, FADE_4, FADE_5 = 0.96457328, 0.98423225, 0.99229183, 0.99622545, 0.99815689
SUBSIDY_STEP = 1 / SUBSIDY_LEVELS
SEEN = 13  # what a governor sees besides which one it is
LEVELS = 10
EPISODE = 540


class Governor(NamedTuple):
    susceptible: float32
    infected: float32
    removed: float32  # recovered, dead or vaccinated
    dead: float32
    vaccinated: float32
    unemployed: float32
    output: float32  # production and subsidy of the day, USD
    died: float32  # of the dead, those of the day
    change_1: float32  # changes of level since the start, faded with the first of five time constants
    change_2: float32
    change_3: float32
    change_4: float32
    change_5: float32
    level: int32  # stringency, 1 to 10
    bound_until: int32  # the day from which the level may be chosen again
    past_1: int32  # the levels of the last 8 days, 4 bits each, today's lowest; then three times 8 days before
    past_2: int32
    past_3: int32
    past_4: int32


class Planner(NamedTuple):
    subsidy: int32  # level, 0 to 20


class Params(NamedTuple):
    health_priority: float = 0.3  # factor on the odds of health in the governors' reward
    health_priority_planner: float = 0.45  # the same of the planner's
    vaccines_per_million: float = 3000.0  # people that a day's delivery is enough for
    reward_normalization_factor: float = 1.0  # rewards are divided by it
    beta_intercept_factor: float = 1.0  # sensitivity: of transmission without measures,
    beta_slope_factor: float = 1.0  # of what a level does to transmission,
    unemployment_factor: float = 1.0  # and to unemployment


def begin_term(tables, i):
    return Governor(
        tables.actors[SUSCEPTIBLE, i],
        tables.actors[INFECTED, i],
        tables.actors[RECOVERED, i],
        MORTALITY * tables.actors[RECOVERED, i],
        tables.actors[VACCINATED, i],
        tables.actors[UNEMPLOYED, i],
        float32(0.0),
        float32(0.0),
        float32(0.0),
        float32(0.0),
        float32(0.0),
        float32(0.0),
        float32(0.0),
        int32(tables.actors[LEVEL, i]),
        int32(0),
        tables.packed[0, i],
        tables.packed[1, i],
        tables.packed[2, i],
        tables.packed[3, i],
    )


def take_office():
    return Planner(int32(0))


def decide(s, action, t):
    return Planner(int32(action if t % SUBSIDY_INTERVAL == 0 else s.subsidy)), 0.0, False


def decide_as_in_history(t, tables):
    return Planner(tables.real_subsidy[t + 1]), 0.0, False


def lagged_level(s):
    """Return the level of 28 days ago, which drives transmission on the next day."""
    return float32((s.past_4 >> 16) & 15)


def govern(s, action, p, tables, t, i, planner):
    level = int32(action if action > 0 else s.level)
    bound_until = s.bound_until
    if bound_until == t:
        bound_until = int32(t + COOLDOWN if action > 0 else t + 1)
    return pass_day(s, level, bound_until, p, tables, t, i, planner)


def govern_as_in_history(s, p, tables, t, i, planner):
    return pass_day(s, tables.real_level[t + 1, i], s.bound_until, p, tables, t, i, planner)


def pass_day(s, level, bound_until, p, tables, t, i, planner):
    """Return a governor's state after a day with a new level, the reward, and that the episode goes on."""
    people, per_person = tables.actors[POPULATION, i], tables.actors[PER_PERSON, i]
    doses = floor(tables.calendar[t + 1, DELIVERY] * p.vaccines_per_million * (people * 1e-6))
    intercept, slope = tables.actors[BETA_INTERCEPT, i], tables.actors[BETA_SLOPE, i]
    beta = p.beta_intercept_factor * intercept + p.beta_slope_factor * slope * lagged_level(s)
    vaccinated = min(doses, s.susceptible)
    unprotected = 1.0 - min(1.0, doses / (s.susceptible + 1e-10))
    infections = beta * (s.susceptible * per_person) * s.infected * unprotected
    removals = GAMMA * s.infected
    susceptible = max(0.0, s.susceptible - infections - vaccinated)
    infected = max(0.0, s.infected + infections - removals)
    removed = max(0.0, s.removed + removals + vaccinated)
    vaccinated = s.vaccinated + vaccinated
    dead = MORTALITY * (removed - vaccinated)
    died = dead - s.dead

    change = float32(level - s.level)
    change_1 = FADE_1 * s.change_1 + change
    change_2 = FADE_2 * s.change_2 + change
    change_3 = FADE_3 * s.change_3 + change
    change_4 = FADE_4 * s.change_4 + change
    change_5 = FADE_5 * s.change_5 + change
    response = tables.before[t + 1, i]
    response += tables.actors[FILTER_WEIGHT, i] * change_1
    response += tables.actors[FILTER_WEIGHT + 1, i] * change_2
    response += tables.actors[FILTER_WEIGHT + 2, i] * change_3
    response += tables.actors[FILTER_WEIGHT + 3, i] * change_4
    response += tables.actors[FILTER_WEIGHT + 4, i] * change_5
    percent = softplus(p.unemployment_factor * response) + tables.actors[UNEMPLOYMENT_BIAS, i]
    unemployed = percent * people * 0.01

    able = max(0.0, WORKING_AGE * people - WORKING_AGE * (TOO_SICK * infected + dead) - unemployed)
    subsidy = float32(planner.subsidy) * SUBSIDY_STEP * tables.actors[FULL_SUBSIDY_DAY, i]
    output = able * tables.actors[WAGE, i] + subsidy

    reward = welfare(died, output * tables.actors[PER_FULL_OUTPUT, i], p.health_priority, tables, i)
    state = Governor(
        susceptible,
        infected,
        removed,
        dead,
        vaccinated,
        unemployed,
        output,
        died,
        change_1,
        change_2,
        change_3,
        change_4,
        change_5,
        level,
        bound_until,
        int32((s.past_1 << 4) | level),
        int32((s.past_2 << 4) | ((s.past_1 >> 28) & 15)),
        int32((s.past_3 << 4) | ((s.past_2 >> 28) & 15)),
        int32((s.past_4 << 4) | ((s.past_3 >> 28) & 15)),
    )
    return state, reward / p.reward_normalization_factor, False


def account(s, p, tables, t, governors_sum):
    cost = BORROWING * float32(s.subsidy) * SUBSIDY_STEP * tables.actors[FULL_SUBSIDY_DAY, PLANNER]
    output = (governors_sum.output - cost) * tables.actors[PER_FULL_OUTPUT, PLANNER]
    reward = welfare(governors_sum.died, output, p.health_priority_planner, tables, PLANNER)
    # The last day is an end, not a cut: what would follow is worth nothing to anybody.
    return s, reward / p.reward_normalization_factor, t + 2 >= tables.calendar.shape[0]


def welfare(died, relative_output, priority, tables, i):
    """Return the weighted mean of the scaled health and economic index of a day."""
    health = tables.actors[HEALTH_SLOPE, i] * died + tables.actors[HEALTH_OFFSET, i]
    utility = 2.0 - 1.0 / clip(relative_output, 0.1, 3.0)  # constant relative risk aversion of 2
    economy = tables.actors[ECONOMY_SLOPE, i] * utility + tables.actors[ECONOMY_OFFSET, i]
    odds = priority * tables.actors[HEALTH_ODDS, i]
    return (odds * health + economy) / (1.0 + odds)


def may_set(k, s, t):
    return (k == 0) | (t >= s.bound_until)


def may_subsidize(k, t):
    return (k == 0) | (t % SUBSIDY_INTERVAL == 0)


def look(s, out, tables, t, i, planner):
    per_person = tables.actors[PER_PERSON, i]
    out[0] = s.susceptible * per_person
    out[1] = s.infected * per_person
    out[2] = s.removed * per_person
    out[3] = s.dead * per_person
    out[4] = s.vaccinated * per_person
    out[5] = s.unemployed * per_person
    out[6] = s.output * tables.actors[PER_FULL_OUTPUT, i]
    out[7] = lagged_level(s) * 0.1
    out[8] = float32(s.level) * 0.1
    out[9] = tables.calendar[t, ELAPSED]
    out[10] = tables.calendar[t, UNTIL_SUBSIDY]
    out[11] = float32(planner.subsidy) * SUBSIDY_STEP
    out[12] = tables.calendar[t, VACCINE_CLOCK]
    out[SEEN + i] = 1.0  # the others of the one-hot code stay 0


def survey(s, out, tables, t, governors):
    for j in range(STATES):
        per_person = tables.actors[PER_PERSON, j]
        out[j] = governors.susceptible[j] * per_person
        out[STATES + j] = governors.infected[j] * per_person
        out[2 * STATES + j] = governors.removed[j] * per_person
        out[3 * STATES + j] = governors.dead[j] * per_person
        out[4 * STATES + j] = governors.vaccinated[j] * per_person
        out[5 * STATES + j] = governors.unemployed[j] * per_person
        out[6 * STATES + j] = governors.output[j] * tables.actors[PER_FULL_OUTPUT, j]
        out[7 * STATES + j] = float32((governors.past_4[j] >> 16) & 15) * 0.1
        out[8 * STATES + j] = float32(governors.level[j]) * 0.1
    out[9 * STATES] = tables.calendar[t, ELAPSED]
    out[9 * STATES + 1] = tables.calendar[t, UNTIL_SUBSIDY]
    out[9 * STATES + 2] = float32(s.subsidy) * SUBSIDY_STEP
    out[9 * STATES + 3] = tables.calendar[t, VACCINE_CLOCK]


def environment(start="2020-03-22", vaccine_start="2021-01-12", vaccine_interval=1, real_policies=False, time_limit=EPISODE) -> Environment:
    """Make the environment: dates, days between two deliveries of vaccines, and whether history decides instead of the actors."""
    governors = Group(
        "governors",
        STATES,
        Governor,
        observation=Box(SEEN + STATES),
        action=Discrete(1 + LEVELS),  # 0 keeps the level
        reset=begin_term,
        observe=look,
        mask=None if real_policies else may_set,
        sums=("died", "output"),
    )
    planner = Group(
        "planner",
        1,
        Planner,
        observation=Box(9 * STATES + 4),
        action=Discrete(1 + SUBSIDY_LEVELS),
        reset=take_office,
        observe=survey,
        mask=None if real_policies else may_subsidize,
    )
    day = (Phase("planner", decide), Phase("governors", govern))
    history = (Phase("planner", decide_as_in_history), Phase("governors", govern_as_in_history))
    options = {
        "start": start,
        "vaccine_start": vaccine_start,
        "vaccine_interval": vaccine_interval,
        "real_policies": real_policies,
        "time_limit": time_limit,
    }
    check(**options)
    return Environment(
        groups=(governors, planner),
        phases=(*(history if real_policies else day), Phase("planner", account)),
        params=Params,
        time_limit=time_limit,
        tables=tables,
        options=options,
    )
