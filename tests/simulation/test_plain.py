"""Compiled kernels and plain Python, which shares no plan with them, play the same episodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.selection import few
from tests.simulation.rollouts import CASES, engine_of
from warprun.simulation.device import choose
from warprun.simulation.kernel_module import read_only, typed, typed_tables
from warprun.simulation.plain import PlainEnvironment
from warprun.simulation.trial import Explorer

STEPS = 12


@pytest.mark.parametrize("name", few(CASES, "cartpole", "market", "crane", "conditional", "leaving"))
def test_episodes_are_the_same(name):
    case = replace(CASES[name], horizon=STEPS)
    environment, seed = case.environment, 2**40 + 3
    engine = engine_of(case, name, choose("cpu"))
    tables = environment.tables(**environment.options) if environment.tables else None
    of_run = {"params": typed(environment.params()), "tables": read_only(typed_tables(tables)), "vary": dict(case.vary), "seed": seed}
    played = [PlainEnvironment(environment, number, **of_run) for number in range(case.n_envs)]
    seen = [each.reset() for each in played]
    explorer, taken = Explorer(environment.spec, case.n_envs), engine.trajectory
    for row in range(STEPS):
        for name, group in taken.groups.items():
            for n, each in enumerate(seen):
                np.testing.assert_allclose(group.obs[row, n], each.observation[name], case.tolerance, case.tolerance)
                assert group.mask is None or (group.mask[row, n].numpy() == each.mask[name]).all()
                assert group.alive is None or (group.alive[row, n].numpy() == each.alive[name]).all()
        masks = {name: None if group.mask is None else group.mask[row].numpy() for name, group in taken.groups.items()}
        actions = explorer.choose(masks)
        for name, chosen in actions.items():
            taken.groups[name].action[row].numpy()[...] = chosen
        engine.step(row)
        given = [each.step({name: rows[n] for name, rows in actions.items()}) for n, each in enumerate(played)]
        seen = [each.seen for each in given]
        assert [each.terminated for each in given] == taken.terminated[row].tolist()
        assert [each.truncated for each in given] == taken.truncated[row].tolist()
        for name, group in taken.groups.items():
            np.testing.assert_allclose(group.reward[row], [each.reward[name] for each in given], case.tolerance, case.tolerance)
            for n, each in enumerate(given):
                if each.truncated:
                    slot = taken.final_slot()[row, n]
                    np.testing.assert_allclose(group.final_obs[slot, n], each.final.observation[name], case.tolerance, case.tolerance)
