import math

import pytest

from warprun.runs.records.terminal import duration, number, si


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7.0, "7"),
        (12.345, "12.3"),
        (999.0, "999"),
        (999.7, "1.00 k"),
        (1234567, "1.23 M"),
        (99_960_000, "100 M"),
        (999_600_000, "1.00 G"),
        (-4.5e12, "-4.50 T"),
        (math.nan, "nan"),
    ],
)
def test_si_has_three_digits_and_a_prefix(value, text):
    assert si(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (195.3321, "195.3"),
        (195.0, "195.0"),
        (999.96, "1,000"),
        (-0.01234567, "-0.01235"),
        (15234.2, "15,234"),
        (2.5e6, "2.50 M"),
        (12, "12"),
        (0.0, "0.000"),
        (math.inf, "inf"),
    ],
)
def test_number_has_four_digits(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.6, "1:00"), (187, "3:07"), (7387, "2:03:07"), (93_787, "1 d 2:03:07"), (math.inf, "inf")]
)
def test_duration_reads_as_a_clock(seconds, text):
    assert duration(seconds) == text
