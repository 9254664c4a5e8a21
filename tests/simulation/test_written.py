"""An entry of `out` that a call does not write is 0, whatever the calls before have written, and numbers of a state have its types."""

from __future__ import annotations

import numpy as np
import pytest

from tests.environments.conditional import environment
from tests.simulation.rollouts import make
from warprun.kernels.flow import unassigned, writes_the_same


def seen(x: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Return the observations of states."""
    high = x > 0.5
    return np.stack([x, high, np.where(~high & (n < 3), n, 0), np.maximum(n, 0)], -1).astype(np.float32)


def test_rows_that_are_used_again() -> None:
    engine = make(environment, "conditional", n_envs=5, horizon=4)
    taken = engine.trajectory.groups["agent"]
    x, n, t = np.zeros(5), np.zeros(5, int), 0
    cut = 0
    for rollout in range(6):
        for row in range(4):
            actions = (np.arange(5) + rollout * row) % 2
            taken.action[row, :, 0, 0] = taken.action.new_tensor(actions)
            engine.step(row)
            over = x > 0.7
            before = x
            x = np.where(over, 0.0, x + np.where(actions == 0, 0.25, 0.125))
            n = np.where(over, 1, n + actions)
            reward = np.where(over, 1.0, np.where(actions == 0, 0.5, 1.0))
            assert (taken.reward[row, :, 0].numpy() == reward).all(), before
            t += 1
            if t == 7:
                assert (taken.final_obs[0, :, 0].numpy() == seen(x, n)).all()
                x, n, t, cut = np.zeros(5), np.zeros(5, int), 0, cut + 1
            assert (taken.obs[row + 1, :, 0].numpy() == seen(x, n)).all(), (rollout, row)
        engine.carry_over()
    assert cut == 3


CELLS = 4


def by_condition(s, out):
    out[0] = s.x
    if s.x > 0.5:
        out[1] = 1.0
    else:
        out[2] = 1.0


def in_another_order(s, out):
    if s.x > 0.5:
        out[0] = 1.0
        out[1] = 2.0
    else:
        out[1] = 0.0
        out[0] = 3.0


def of_actor(s, i, out):
    for n in range(CELLS):
        out[n] = s.x
    out[CELLS + i] = 1.0


def some_turns(s, out):
    for n in range(CELLS):
        if s.x > 0.5:
            break
        out[n] = s.x


def ends_early(s, out):
    out[0] = s.x
    if s.x > 0.5:
        return
    out[1] = 1.0


def adds(s, out):
    out[0] = s.x
    out[1] += 1.0


def of_parameter(s, p, out):
    n = 0
    while n < p.n:
        out[n] = s.x
        n += 1


def at_place(s, out):
    out[int(s.x)] = 1.0


@pytest.mark.parametrize(
    ("function", "same"),
    [(by_condition, False), (in_another_order, True), (of_actor, True), (some_turns, False)]
    + [(ends_early, False), (adds, False), (of_parameter, False), (at_place, False)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_rows_are_cleared_only_where_they_have_to_be(function, same: bool) -> None:
    assert writes_the_same(function) is same


def always_set(s, p):
    while True:
        a = 1
        if s.x > 0:
            break
    for n in range(CELLS):
        if s.x > n:
            continue
    for m in range(2):
        c = m
    if s.x > 1:
        d = 1
    elif s.x > 0:
        d = 2
    else:
        return 0
    if CELLS == 4:
        e = 1
    return a + c + d + e + n + p


def sometimes_set(s, p):
    for n in range(p):
        a = n
    if s.x > 0 and (b := s.x):
        pass
    while s.x < 3:
        c = 1
    return a, b, c, n


def test_variables_without_a_value() -> None:
    assert unassigned(always_set) == {}
    assert sorted(unassigned(sometimes_set)) == ["a", "b", "c", "n"]
