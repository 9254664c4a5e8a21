"""What the tests of environments share."""

from pathlib import Path

import pytest

from warprun.envs.covid.data import fetch_data
from warprun.errors import UserError


@pytest.fixture(scope="session")
def covid_data() -> Path:
    """Return where the data of the COVID-19 economy are; skip the test where they are not, and there is no network to fetch them."""
    try:
        return fetch_data()
    except UserError as error:
        pytest.skip(str(error))
