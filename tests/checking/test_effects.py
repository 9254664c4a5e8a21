"""What each action changes, by trial: options that are never allowed together are not alike."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.simulation.rollouts import make
from warprun.checking.effects import actions
from warprun.environment import Box, Discrete, int32, single_agent


class State(NamedTuple):
    last: int32


def reset():
    return State(0)


def step(s, action):
    return State(action), 1.0 if action > 1 else 0.0, False


def observe(s):
    return (s.last,)


def mask(s, k):
    """Allow 2, and 0 or 1: never both of these."""
    return k == 2 or (k == 0) == (s.last == 2)


def alone(s, k):
    return k == (s.last + 1) % 3


def told(allowed):
    environment = single_agent(
        state=State, observation=Box(1), action=Discrete(3), reset=reset, step=step, observe=observe, mask=allowed, time_limit=9
    )
    return [problem.message for problem in actions(make(environment, allowed.__name__, n_envs=8, horizon=1, seed=1))]


@pytest.mark.long
def test_masks_are_no_reason_for_doubt():
    assert told(mask) == []
    assert told(alone) == []
