"""Which cases of a test run by default: a few that together use all of the code. The others are `slow`, most of them to compile."""

from collections.abc import Iterable
from typing import Any

import pytest


def few(cases: Iterable[Any], *kept: str) -> list[Any]:
    """Return the cases as parameters of a test, all but those named in `kept` marked as slow."""
    given = list(cases)
    assert set(kept) <= set(map(str, given)), kept
    return [case if str(case) in kept else pytest.param(case, marks=pytest.mark.slow) for case in given]


def selected(request: pytest.FixtureRequest, test: str, parameter: str) -> list[str]:
    """Return the values of a parameter that a test of the module runs with, in their order, each once."""
    own = [
        item
        for item in request.session.items
        if isinstance(item, pytest.Function) and (item.path, item.originalname) == (request.path, test)
    ]
    return list(dict.fromkeys(item.callspec.params[parameter] for item in own))
