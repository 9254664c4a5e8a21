"""Make the read-only tables of the COVID-19 economy: the data of a start date in the units of the kernels."""

from datetime import date, timedelta
from typing import NamedTuple

import numpy as np

from warprun.envs.covid.data import Data, load
from warprun.errors import UserError

STATES = 51
PLANNER = STATES
"""Column of the planner in `Tables.actors`."""
COOLDOWN = 28
"""Days between two choices of a governor."""
SUBSIDY_INTERVAL = 90
"""Days between two choices of the subsidy."""
SUBSIDY_LEVELS = 20
DAYS_PER_YEAR = 365
FULL_SUBSIDY = 20_000
"""USD per person and year at the top level."""
WORKING_AGE = 0.6
"""Share of the population."""
TOO_SICK = 0.1
"""Share of the infected."""
MORTALITY = 0.02
"""Share of the removed that are dead."""
FIRST_DAY = date(2020, 1, 1)
"""First day of the data."""
REPLAYS = ("none", "subsidy", "stringency", "policies", "data")
"""Parts that follow the historical data: nothing, the subsidy, the levels, both, or both and the numbers of people."""
REPLAYS_SUBSIDIES = ("subsidy", "policies", "data")
REPLAYS_LEVELS = ("stringency", "policies", "data")
FILTER_DAYS = 600
"""Days for which a level change acts on unemployment."""
PACKED_DAYS = 32
"""Days of levels in four integers with 4 bits per day."""

# Rows of Tables.actors; nan or 0 if the planner has no such value.
(
    POPULATION,
    PER_PERSON,  # 1 / population
    BETA_INTERCEPT,
    BETA_SLOPE,
    FILTER_WEIGHT,  # the first of five
    UNEMPLOYMENT_BIAS,
    WAGE,  # production of one worker, USD per day
    PER_FULL_OUTPUT,  # 1 / production without a pandemic, day/USD
    FULL_SUBSIDY_DAY,  # USD per day at the top level
    HEALTH_SLOPE,  # scaled health index = slope * deaths of the day + offset
    HEALTH_OFFSET,
    ECONOMY_SLOPE,  # scaled economic index = slope * (2 - 1 / relative output) + offset
    ECONOMY_OFFSET,
    HEALTH_ODDS,  # alpha / (1 - alpha)
    SUSCEPTIBLE,  # people at the start, like the next five
    INFECTED,
    RECOVERED,
    DEAD,
    VACCINATED,
    UNEMPLOYED,
    LEVEL,  # at the start
    PERCENT,  # population / 100
) = (*range(5), *range(9, 26))
ROWS = PERCENT + 1
FILTERS = 5

# Columns of Tables.calendar.
ELAPSED, UNTIL_SUBSIDY, VACCINE_CLOCK, VACCINATING, DELIVERY = range(5)


class Tables(NamedTuple):
    """The tables of an episode of T days."""

    actors: np.ndarray  # [row, 52]
    packed: np.ndarray  # [4, 51] int32: the levels of the 32 days up to the start, 4 bits each, the latest lowest
    before: np.ndarray  # [T + 1, 51] contribution of level changes before the start to the unemployment filter, percent of the population
    calendar: np.ndarray  # [T + 1, 5] observed features of the day, and days of vaccines that are delivered on the next day
    real_level: np.ndarray  # [T + 1, 51] int32: the level of a day in a replay; one row without a replay, like the next two
    real_subsidy: np.ndarray  # [T + 1] int32: the same for the subsidy
    real_people: np.ndarray  # [T + 1, 6, 51] susceptible, infected, removed, dead, vaccinated, unemployed in a replay of the data


def check(start, vaccine_start, vaccine_interval, observe_vaccination_rate, replay, time_limit) -> None:
    """Raise UserError for invalid options."""
    row(start, "start")
    row(vaccine_start, "vaccine_start")
    if isinstance(vaccine_interval, bool) or not isinstance(vaccine_interval, int) or vaccine_interval < 1:
        raise UserError(f"env.options.vaccine_interval={vaccine_interval} must be a whole number of days, at least 1")
    if not isinstance(observe_vaccination_rate, bool):
        raise UserError(f"env.options.observe_vaccination_rate={observe_vaccination_rate} must be true or false")
    if replay not in REPLAYS:
        raise UserError(f"env.options.replay={replay} must be one of {', '.join(REPLAYS)}")
    if time_limit > FILTER_DAYS:
        raise UserError(f"env.time_limit={time_limit}: an episode of covid has at most {FILTER_DAYS} days, the memory of its unemployment")


def row(text, option: str) -> int:
    """Return the row of a date YYYY-MM-DD in the data; it may be outside of them."""
    try:
        return (date.fromisoformat(str(text)) - FIRST_DAY).days
    except ValueError:
        raise UserError(f"env.options.{option}={text} is no date; write it as 2020-03-22") from None


def tables(start, vaccine_start, vaccine_interval, observe_vaccination_rate, replay, time_limit):
    """Make the tables. Raises UserError if the data do not cover the start or the replay."""
    data, first = load(), row(start, "start")
    _check_start(data, first)
    known = replayable(data, first, replay)
    if replay != "none" and known < time_limit:
        raise UserError(f"env.time_limit={time_limit}: with replay={replay} from {start} the data have {known} days")
    replayed = time_limit if replay != "none" else 0
    # The level of a day is that of the day before in the data; row 0 is not read. Numbers of people are those of the day itself.
    policies, people = slice(first - 1, first + replayed), slice(first, first + 1 + (replayed if replay == "data" else 0))
    rows = actor_rows(data, first)
    if replay == "data":
        rows[DEAD, :STATES] = data.deaths[first]
    return Tables(
        rows.astype(np.float32),
        packed_levels(data, first),
        before_start(data, first, time_limit).astype(np.float32),
        calendar(np.arange(time_limit + 1), row(vaccine_start, "vaccine_start") - first, vaccine_interval).astype(np.float32),
        np.ascontiguousarray(data.level[policies], np.int32),
        real_subsidy(data)[policies].astype(np.int32),
        real_people(data)[people].astype(np.float32),
    )


def replayable(data: Data, first: int, replay: str) -> int:
    """Return the number of days from row `first` on for which a replay has data."""
    if replay != "data":
        return len(data.level) - first
    unknown = np.flatnonzero(np.isnan(real_people(data)[first:]).any((1, 2)))
    return int(unknown[0]) - 1 if len(unknown) else len(data.level) - first - 1


def real_people(data: Data) -> np.ndarray:
    """Return [D, 6, 51]: susceptible, infected, removed, dead (as reported), vaccinated, unemployed."""
    return np.stack([data.susceptible, data.infected, data.recovered, data.deaths, data.vaccinated, data.unemployed], 1)


def calendar(days: np.ndarray, vaccines: int, interval: int) -> np.ndarray:
    """Return [T + 1, 5]: share of the episode, time to the next subsidy decision, the vaccine clock, whether deliveries have
    begun (including tomorrow), and days of vaccines delivered tomorrow."""
    first = -(-max(vaccines, 0) // interval) * interval
    ahead = days + 1 <= first
    clock = np.where(ahead, np.minimum(1, (first - days - 1) / interval) / interval, (interval - (days + 1) % interval) / interval)
    delivered = interval * ((days + 1 >= vaccines) & ((days + 1) % interval == 0))
    wait = 1 - days % SUBSIDY_INTERVAL / SUBSIDY_INTERVAL
    return np.stack([days / days[-1], wait, clock, ~ahead, delivered], 1)


def actor_rows(data: Data, first: int) -> np.ndarray:
    """Return [row, 52], float64, for an episode from row `first` of the data."""
    rows = np.zeros((ROWS, STATES + 1))
    people = data.population.astype(float)
    per_head, full = output(data)
    rows[POPULATION] = [*people, people.sum()]
    rows[PER_PERSON] = 1 / rows[POPULATION]
    rows[PERCENT] = rows[POPULATION] / 100
    rows[BETA_INTERCEPT, :STATES], rows[BETA_SLOPE, :STATES] = data.beta_intercept, data.beta_slope
    rows[FILTER_WEIGHT : FILTER_WEIGHT + FILTERS, :STATES] = data.filter_weight
    rows[UNEMPLOYMENT_BIAS, :STATES] = data.unemployment_bias
    rows[WAGE] = per_head
    full = np.array([*full, full.sum()])
    rows[PER_FULL_OUTPUT] = 1 / full
    rows[FULL_SUBSIDY_DAY] = rows[POPULATION] * FULL_SUBSIDY / DAYS_PER_YEAR
    least, greatest = data.health_bounds
    scale = 1 / (greatest - least + 1e-10)
    rows[HEALTH_SLOPE] = -float(data.value_of_life) / (DAYS_PER_YEAR * full) * scale
    rows[HEALTH_OFFSET] = -least * scale
    least, greatest = data.economy_bounds
    scale = 1 / (greatest - least + 1e-10)
    rows[ECONOMY_SLOPE] = scale / DAYS_PER_YEAR
    rows[ECONOMY_OFFSET] = -least * scale
    rows[HEALTH_ODDS] = data.alpha / (1 - data.alpha)
    rows[DEAD, :STATES] = MORTALITY * data.recovered[first]
    for row, name in ((SUSCEPTIBLE, "susceptible"), (INFECTED, "infected"), (RECOVERED, "recovered"), (VACCINATED, "vaccinated")):
        rows[row, :STATES] = getattr(data, name)[first]
    rows[UNEMPLOYED, :STATES], rows[LEVEL, :STATES] = data.unemployed[first], data.level[first]
    return rows


def output(data: Data) -> tuple[float, np.ndarray]:
    """Return the production of a worker, USD per day, and that of the states without a pandemic, [51] USD per day."""
    people, total = data.population, int(data.us_population)
    idle = (np.log(2) + data.unemployment_bias) * people / 100  # at level 1
    workers = int(WORKING_AGE * total - idle.sum())
    per_head = float(data.gdp_per_head) / (workers / total) / DAYS_PER_YEAR
    return per_head, per_head * (WORKING_AGE * people - idle)


def before_start(data: Data, first: int, time_limit: int) -> np.ndarray:
    """Return [T + 1, 51], percent: the response of the filter to level changes before the start, up to FILTER_DAYS after each."""
    changes = np.diff(data.level[: first + 1].astype(float), axis=0, prepend=1.0)
    age = first + np.arange(time_limit + 1)[:, None] - np.arange(first + 1)
    total = np.zeros((time_limit + 1, STATES))
    for time, weight in zip(data.filter_time, data.filter_weight, strict=True):
        total += weight * (np.where(age < FILTER_DAYS, np.exp(-age / time), 0) @ changes)
    return total


def packed_levels(data: Data, first: int) -> np.ndarray:
    """Return [4, 51] int32: the level of the start in the lowest 4 bits of row 0, that of 31 days before in the highest of row 3."""
    rows = first - np.arange(PACKED_DAYS)
    levels = np.where(rows[:, None] >= 0, data.level[np.maximum(rows, 0)], 1).astype(np.uint32)
    shifts = 4 * np.arange(8, dtype=np.uint32)
    return (levels.reshape(4, 8, STATES) << shifts[:, None]).sum(1, dtype=np.uint32).view(np.int32)


def real_subsidy(data: Data) -> np.ndarray:
    """Return [D] the subsidy level nearest to each federal payment, spread over the days of an interval."""
    step = float(data.us_population) * FULL_SUBSIDY / SUBSIDY_LEVELS * SUBSIDY_INTERVAL / DAYS_PER_YEAR
    level = np.zeros(len(data.payment))
    for day in np.flatnonzero(data.payment):
        level[day : day + SUBSIDY_INTERVAL] += np.round(data.payment[day] / step)
    return level


def _check_start(data: Data, first: int) -> None:
    columns = (data.susceptible, data.infected, data.recovered, data.vaccinated, data.unemployed)
    known = np.flatnonzero(~np.isnan(np.concatenate(columns, 1)).any(1))
    if first not in known:
        start, *ends = (FIRST_DAY + timedelta(int(n)) for n in (first, known[0], known[-1]))
        raise UserError(f"env.options.start={start}: the data can begin an episode from {ends[0]} to {ends[1]}")
