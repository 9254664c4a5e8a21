"""Define the dynamics of the COVID-19 economy for one day of one governor or the planner. Units: people, USD, days."""

from typing import NamedTuple

from warprun.environment import Box, Discrete, Environment, Group, Phase, float32, int32
from warprun.envs.covid.tables import (
    BETA_INTERCEPT,
    BETA_SLOPE,
    COOLDOWN,
    DEAD,
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
    MORTALITY,
    PER_FULL_OUTPUT,
    PER_PERSON,
    PERCENT,
    PLANNER,
    POPULATION,
    RECOVERED,
    REPLAYS_LEVELS,
    REPLAYS_SUBSIDIES,
    STATES,
    SUBSIDY_INTERVAL,
    SUBSIDY_LEVELS,
    SUSCEPTIBLE,
    TOO_SICK,
    UNEMPLOYED,
    UNEMPLOYMENT_BIAS,
    UNTIL_SUBSIDY,
    VACCINATED,
    VACCINATING,
    VACCINE_CLOCK,
    WAGE,
    WORKING_AGE,
    check,
    tables,
)
from warprun.math import clip, floor, softplus

GAMMA = 1 / 14  # share of the infected that recover or die per day
BORROWING = 1.03  # cost of a dollar of subsidy, with interest
# Decay factors exp(-1/T) of the effect of a level change on unemployment, for five time constants T (days, as in the data).
FADE_1, FADE_2, FADE_3, FADE_4, FADE_5 = 0.96457328, 0.98423225, 0.99229183, 0.99622545, 0.99815689
SUBSIDY_STEP = 1 / SUBSIDY_LEVELS
SEEN = 13  # size of a governor's observation without its one-hot code
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
    died: float32  # deaths of the day
    change_1: float32  # decayed sum of level changes since the start, first of five time constants
    change_2: float32
    change_3: float32
    change_4: float32
    change_5: float32
    level: int32  # stringency, 1 to 10
    bound_until: int32  # first day on which the level may be chosen again
    past_1: int32  # levels of the last 8 days, 4 bits each, today in the lowest; past_2 to past_4 hold the 24 days before
    past_2: int32
    past_3: int32
    past_4: int32


class Planner(NamedTuple):
    subsidy: int32  # level, 0 to 20
    paid: float32  # the level as a share of the top level
    elapsed: float32  # elapsed share of the episode; this and the next four are observed by all actors
    until_subsidy: float32  # share of an interval until the subsidy may be chosen again
    vaccine_clock: float32  # share of the interval until the next delivery of vaccines
    vaccination_rate: float32  # vaccines per person and day; 0 before the first delivery
    delivery: float32  # vaccines per person delivered tomorrow


class Params(NamedTuple):
    health_priority: float = 0.3  # factor on the odds of health in the governors' reward
    health_priority_planner: float = 0.45  # the same for the planner
    vaccines_per_million: float = 3000.0  # inhabitants per million that a day's delivery is enough for
    reward_normalization_factor: float = 1.0  # divisor of all rewards
    beta_intercept_factor: float = 1.0  # sensitivity: factor on transmission without measures
    beta_slope_factor: float = 1.0  # factor on the effect of a level on transmission
    unemployment_factor: float = 1.0  # factor on the effect of level changes on unemployment


def begin_term(tables, i):
    return Governor(
        tables.actors[SUSCEPTIBLE, i],
        tables.actors[INFECTED, i],
        tables.actors[RECOVERED, i],
        tables.actors[DEAD, i],
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


def take_office(p, tables):
    return begin_day(int32(0), 0, p, tables)


def begin_day(subsidy, t, p, tables):
    """Return the planner's state at the beginning of day `t`."""
    rate = p.vaccines_per_million * 1e-6
    return Planner(
        subsidy,
        float32(subsidy) * SUBSIDY_STEP,
        tables.calendar[t, ELAPSED],
        tables.calendar[t, UNTIL_SUBSIDY],
        tables.calendar[t, VACCINE_CLOCK],
        tables.calendar[t, VACCINATING] * rate,
        tables.calendar[t, DELIVERY] * rate,
    )


def decide(s, action, p, tables, t):
    return begin_day(int32(action if t % SUBSIDY_INTERVAL == 0 else s.subsidy), t, p, tables), 0.0, False


def decide_as_in_history(p, tables, t):
    return begin_day(tables.real_subsidy[t + 1], t, p, tables), 0.0, False


def lagged_level(s):
    """Return the level of 28 days ago, which determines transmission on the next day."""
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
    """Simulate one day of a governor with a given level; return state, reward and False (not terminated)."""
    doses = floor(planner.delivery * tables.actors[POPULATION, i])
    slope = p.beta_slope_factor * tables.actors[BETA_SLOPE, i]
    beta = p.beta_intercept_factor * tables.actors[BETA_INTERCEPT, i] + slope * lagged_level(s)
    given = min(doses, s.susceptible)
    # People who are vaccinated on a day are not infected on that day.
    infections = beta * ((s.susceptible - given) * tables.actors[PER_PERSON, i]) * s.infected
    removals = GAMMA * s.infected
    susceptible = max(0.0, s.susceptible - infections - given)
    infected = max(0.0, s.infected + infections - removals)
    removed = max(0.0, s.removed + removals + given)
    vaccinated = s.vaccinated + given

    change = float32(level - s.level)
    changes = (
        FADE_1 * s.change_1 + change,
        FADE_2 * s.change_2 + change,
        FADE_3 * s.change_3 + change,
        FADE_4 * s.change_4 + change,
        FADE_5 * s.change_5 + change,
    )
    response = tables.before[t + 1, i]
    response += tables.actors[FILTER_WEIGHT, i] * changes[0]
    response += tables.actors[FILTER_WEIGHT + 1, i] * changes[1]
    response += tables.actors[FILTER_WEIGHT + 2, i] * changes[2]
    response += tables.actors[FILTER_WEIGHT + 3, i] * changes[3]
    response += tables.actors[FILTER_WEIGHT + 4, i] * changes[4]
    percent = softplus(p.unemployment_factor * response) + tables.actors[UNEMPLOYMENT_BIAS, i]
    unemployed = percent * tables.actors[PERCENT, i]
    dead = MORTALITY * (removed - vaccinated)
    return close_day(s, (susceptible, infected, removed, dead, vaccinated, unemployed), changes, level, bound_until, p, tables, i, planner)


def relive_day(s, p, tables, t, i, planner):
    """Return state, reward and False after a day whose people and levels are those of the data."""
    people = (
        tables.real_people[t + 1, 0, i],
        tables.real_people[t + 1, 1, i],
        tables.real_people[t + 1, 2, i],
        tables.real_people[t + 1, 3, i],
        tables.real_people[t + 1, 4, i],
        tables.real_people[t + 1, 5, i],
    )
    changes = (s.change_1, s.change_2, s.change_3, s.change_4, s.change_5)
    return close_day(s, people, changes, tables.real_level[t + 1, i], s.bound_until, p, tables, i, planner)


def close_day(s, people, changes, level, bound_until, p, tables, i, planner):
    """Compute the economy of the day; return state, reward and False."""
    susceptible, infected, removed, dead, vaccinated, unemployed = people
    died = dead - s.dead
    able = max(0.0, WORKING_AGE * (tables.actors[POPULATION, i] - TOO_SICK * infected - dead) - unemployed)
    output = able * tables.actors[WAGE, i] + planner.paid * tables.actors[FULL_SUBSIDY_DAY, i]
    reward = welfare(died, output, p.health_priority, p, tables, i)
    state = Governor(
        susceptible,
        infected,
        removed,
        dead,
        vaccinated,
        unemployed,
        output,
        died,
        changes[0],
        changes[1],
        changes[2],
        changes[3],
        changes[4],
        level,
        bound_until,
        int32((s.past_1 << 4) | level),
        int32((s.past_2 << 4) | ((s.past_1 >> 28) & 15)),
        int32((s.past_3 << 4) | ((s.past_2 >> 28) & 15)),
        int32((s.past_4 << 4) | ((s.past_3 >> 28) & 15)),
    )
    return state, reward, False


def account(s, p, tables, t, governors_sum):
    cost = BORROWING * s.paid * tables.actors[FULL_SUBSIDY_DAY, PLANNER]
    reward = welfare(governors_sum.died, governors_sum.output - cost, p.health_priority_planner, p, tables, PLANNER)
    # The last day terminates the episode (no truncation): nothing after it is bootstrapped.
    return begin_day(s.subsidy, t + 1, p, tables), reward, t + 2 >= tables.calendar.shape[0]


def welfare(died, output, priority, p, tables, i):
    """Return the reward of a day: the weighted mean of the scaled health and economic indices."""
    health = tables.actors[HEALTH_SLOPE, i] * died + tables.actors[HEALTH_OFFSET, i]
    relative = clip(output * tables.actors[PER_FULL_OUTPUT, i], 0.1, 3.0)
    # The utility is 2 - 1 / relative (constant relative risk aversion of 2). One division computes it and the weighted mean.
    slope, odds = tables.actors[ECONOMY_SLOPE, i], priority * tables.actors[HEALTH_ODDS, i]
    gain = odds * health + 2.0 * slope + tables.actors[ECONOMY_OFFSET, i]
    return (gain * relative - slope) / (relative * (1.0 + odds) * p.reward_normalization_factor)


def may_set(k, s, t):
    return (k == 0) | (t >= s.bound_until)


def may_subsidize(k, t):
    return (k == 0) | (t % SUBSIDY_INTERVAL == 0)


def look(s, out, tables, i, planner):
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
    out[9] = planner.elapsed
    out[10] = planner.until_subsidy
    out[11] = planner.paid
    out[12] = planner.vaccine_clock
    out[SEEN + i] = 1.0  # the other entries of the one-hot code stay 0


def look_at_vaccines_too(s, out, tables, i, planner):
    look(s, out, tables, i, planner)
    out[SEEN + STATES] = planner.vaccination_rate


def write_shares(out, first, people, tables):
    """Write counts of people per state, divided by the population, to out[first] and the following entries."""
    for j in range(STATES):
        out[first + j] = people[j] * tables.actors[PER_PERSON, j]


def survey(s, out, tables, governors):
    # One loop per feature, so that neighbouring entries of the observation are written as vectors.
    write_shares(out, 0, governors.susceptible, tables)
    write_shares(out, STATES, governors.infected, tables)
    write_shares(out, 2 * STATES, governors.removed, tables)
    write_shares(out, 3 * STATES, governors.dead, tables)
    write_shares(out, 4 * STATES, governors.vaccinated, tables)
    write_shares(out, 5 * STATES, governors.unemployed, tables)
    for j in range(STATES):
        out[6 * STATES + j] = governors.output[j] * tables.actors[PER_FULL_OUTPUT, j]
    for j in range(STATES):
        out[7 * STATES + j] = float32((governors.past_4[j] >> 16) & 15) * 0.1
    for j in range(STATES):
        out[8 * STATES + j] = float32(governors.level[j]) * 0.1
    out[9 * STATES] = s.elapsed
    out[9 * STATES + 1] = s.until_subsidy
    out[9 * STATES + 2] = s.paid
    out[9 * STATES + 3] = s.vaccine_clock


def survey_vaccines_too(s, out, tables, governors):
    survey(s, out, tables, governors)
    out[9 * STATES + 4] = s.vaccination_rate


def environment(
    start="2020-03-22",
    vaccine_start="2021-01-12",
    vaccine_interval=1,
    observe_vaccination_rate=False,
    replay="none",
    time_limit=EPISODE,
) -> Environment:
    """Make the environment; docs/gallery.md describes the options."""
    options = {
        "start": start,
        "vaccine_start": vaccine_start,
        "vaccine_interval": vaccine_interval,
        "observe_vaccination_rate": observe_vaccination_rate,
        "replay": replay,
        "time_limit": time_limit,
    }
    check(**options)
    rate = int(observe_vaccination_rate)
    past_levels, past_subsidies = replay in REPLAYS_LEVELS, replay in REPLAYS_SUBSIDIES
    governors = Group(
        "governors",
        STATES,
        Governor,
        observation=Box(SEEN + STATES + rate),
        action=Discrete(1 + LEVELS),  # 0 keeps the level
        reset=begin_term,
        observe=look_at_vaccines_too if rate else look,
        mask=None if past_levels else may_set,
        sums=("died", "output"),
    )
    planner = Group(
        "planner",
        1,
        Planner,
        observation=Box(9 * STATES + 4 + rate),
        action=Discrete(1 + SUBSIDY_LEVELS),
        reset=take_office,
        observe=survey_vaccines_too if rate else survey,
        mask=None if past_subsidies else may_subsidize,
    )
    day = relive_day if replay == "data" else govern_as_in_history if past_levels else govern
    return Environment(
        groups=(governors, planner),
        phases=(
            Phase("planner", decide_as_in_history if past_subsidies else decide),
            Phase("governors", day),
            Phase("planner", account),
        ),
        params=Params,
        time_limit=time_limit,
        tables=tables,
        options=options,
    )
