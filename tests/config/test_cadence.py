"""How often something happens."""

import pytest

from warprun.config.cadence import Moment, Recurring, parse
from warprun.errors import UserError


def moments(n: int, steps: int = 100, seconds: float = 1.0) -> list[Moment]:
    return [Moment(i * seconds, i * steps, i, i / n) for i in range(n + 1)]


def due(text: str, passed: list[Moment]) -> list[int]:
    recurring = Recurring(parse("eval.every", text), passed[0])
    return [moment.iterations for moment in passed[1:] if recurring.due(moment)]


@pytest.mark.parametrize(
    ("text", "iterations"),
    [
        ("2 iterations", [2, 4, 6, 8, 10]),
        ("1 iteration", list(range(1, 11))),
        ("250 steps", [3, 5, 8, 10]),
        ("2.5e2steps", [3, 5, 8, 10]),
        ("50 steps", list(range(1, 11))),  # more often than there are iterations
        ("30%", [3, 6, 9]),
        ("3s", [3, 6, 9]),
        ("0.05min", [3, 6, 9]),
        ("never", []),
    ],
)
def test_an_interval(text, iterations):
    assert due(text, moments(10)) == iterations


def test_steps_count_from_the_start_of_the_run_and_seconds_from_the_last_time():
    assert due("100 steps", [Moment(0, 0, 0, 0), Moment(1, 150, 1, 0), Moment(2, 190, 2, 0), Moment(3, 200, 3, 0)]) == [1, 3]
    assert due("10s", [Moment(5, 0, 0, 0), Moment(14, 0, 1, 0), Moment(19, 0, 2, 0), Moment(27, 0, 3, 0), Moment(29, 0, 4, 0)]) == [2, 4]


def test_a_tenth_of_a_percent_is_not_lost_to_rounding():
    assert due("0.1%", moments(1000)) == list(range(1, 1001))


@pytest.mark.parametrize("text", ["10", "0", "", "often", "-5s", "0s", "nan s", "inf steps", "1e400 steps", "5 days", "s", "1.2.3s"])
def test_what_says_not_how_often(text):
    with pytest.raises(UserError, match=r"log\.every=.*: write 10s, 5min") as error:
        parse("log.every", text)
    assert "\n" not in str(error.value)
