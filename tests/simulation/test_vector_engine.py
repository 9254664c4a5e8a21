"""Single steps for callers against the engine of training: every feature of environments, on CPU threads and in the CUDA simulator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.simulation.rollouts import CASES, CPU, ROOT, Case, make
from warprun.environment import Box, MultiDiscrete
from warprun.simulation.device import Device
from warprun.simulation.vector_engine import VectorEngine

N, STEPS = 70, 24
NAMES = ["market", "crane", "acrobot", "catalysis"]
MORE_CASES = {**CASES, "clockwork": Case("tests.environments.clockwork", time_limit=3, vary=(("weight", (0.0, 1.0)),))}


def engine_of(name: str, case: Case, device: Device, n_envs: int, threads: int = 2) -> VectorEngine:
    environment = case.environment
    tables = environment.tables(**environment.options) if environment.tables else None
    given = {"n_envs": n_envs, "params": environment.params(), "tables": tables, "vary": dict(case.vary)}
    engine = VectorEngine(environment, name, device=device, threads=threads, **given)
    engine.prepare()
    engine.seed(11)
    return engine


def random_actions(space, shape, mask, draw):
    """Return actions [*shape, C] in the space's units, of those allowed."""
    if isinstance(space, Box):
        return draw.normal(size=(*shape, space.size)).astype(np.float32)
    counts = space.nvec if isinstance(space, MultiDiscrete) else (space.n,)
    scores = draw.random((*shape, sum(counts)))
    scores = scores if mask is None else np.where(np.reshape(mask, scores.shape), scores, -1.0)
    return np.stack([part.argmax(-1) for part in np.split(scores, np.cumsum(counts)[:-1], -1)], -1)


@pytest.mark.by_default(0)
@pytest.mark.parametrize("name", NAMES[:1] + [pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:]])
def test_steps_are_those_of_training(name):
    case = CASES[name]
    reference = make(case.environment, name, n_envs=N, horizon=1, seed=11, vary=dict(case.vary), threads=1)
    engine = engine_of(name, case, CPU, N)
    engine._kernels._alone = False
    bound = engine.new_step(engine.new_actions())
    engine.reset(bound)
    draw, ends = np.random.default_rng(0), 0
    for _ in range(STEPS):
        for number, group in enumerate(case.environment.groups):
            taken, given = reference.trajectory.groups[group.name], bound.step.groups[number]
            actions = random_actions(group.action, (N, group.size), given.mask, draw)
            if isinstance(group.action, Box):
                low, high = np.array(group.action.bounds(), np.float32).T
                bounded = np.isfinite(low) & np.isfinite(high)
                units = np.where(bounded, np.clip(np.round(actions * 4) / 4, -1, 1), actions).astype(np.float32)
                with np.errstate(invalid="ignore"):
                    actions = np.where(bounded, low + (units + 1) * (high - low) / 2, units).astype(np.float32)
                taken.action[0] = torch.from_numpy(units)
            else:
                taken.action[0] = torch.from_numpy(actions.astype(np.int32))
            engine.take(number, actions.reshape(-1), given.action)
        reference.step(0)
        engine.advance(bound)
        over = (reference.trajectory.terminated[0] | reference.trajectory.truncated[0]).numpy()
        np.testing.assert_array_equal(bound.step.terminated | bound.step.truncated, over)
        for number, group in enumerate(case.environment.groups):
            taken, given = reference.trajectory.groups[group.name], bound.step.groups[number]
            np.testing.assert_array_equal(given.obs, taken.obs[1].numpy().ravel())
            np.testing.assert_array_equal(given.reward, taken.reward[0].numpy().ravel())
            if given.mask is not None:
                np.testing.assert_array_equal(given.mask, taken.mask[1].numpy().ravel())
            cut = reference.trajectory.truncated[0].numpy()
            np.testing.assert_array_equal(given.final_obs.reshape(N, -1)[cut], taken.final_obs[0].numpy().reshape(N, -1)[cut])
        ends += int(over.sum())
    assert ends or case.time_limit is None


SIMULATED = """
import numpy as np, torch
from tests.simulation.rollouts import CPU
from tests.simulation.test_vector_engine import MORE_CASES as CASES, engine_of, random_actions
from warprun.simulation.device import choose
for name in ("clockwork", "market"):
    engines = [engine_of(name, CASES[name], device, 3) for device in (choose("cudasim"), CPU)]
    steps = [engine.new_step(engine.new_actions()) for engine in engines]
    for engine, step in zip(engines, steps):
        engine.reset(step)
    draw, ends = np.random.default_rng(0), 0
    for _ in range(10):
        for number, group in enumerate(engines[0].environment.groups):
            actions = random_actions(group.action, (3, group.size), steps[1].step.groups[number].mask, draw).reshape(-1)
            engines[0].take(number, torch.from_numpy(actions), steps[0].step.groups[number].action)
            engines[1].take(number, actions, steps[1].step.groups[number].action)
        for engine, step in zip(engines, steps):
            engine.advance(step)
        ours, theirs = (step.step for step in steps)
        over = np.asarray(theirs.terminated) | np.asarray(theirs.truncated)
        ends += int(over.sum())
        np.testing.assert_array_equal(ours.terminated, theirs.terminated)
        np.testing.assert_array_equal(ours.truncated, theirs.truncated)
        for a, b in zip(ours.groups, theirs.groups):
            for field in ("obs", "reward", "mask"):
                one, other = getattr(a, field), getattr(b, field)
                if other is not None:
                    np.testing.assert_allclose(np.asarray(one, np.float32), np.asarray(other, np.float32), rtol=1e-4, atol=1e-5)
            final, expected = (np.asarray(group.final_obs).reshape(3, -1)[over] for group in (a, b))
            np.testing.assert_allclose(final, expected, rtol=1e-4, atol=1e-5)
            if b.final_mask is not None:
                np.testing.assert_array_equal(*(np.asarray(group.final_mask).reshape(3, -1)[over] for group in (a, b)))
    assert ends
    print(name)
"""


@pytest.mark.by_default(0)
def test_the_cuda_kernels_give_the_same():
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run([sys.executable, "-c", SIMULATED], cwd=Path(ROOT), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["clockwork", "market"]
