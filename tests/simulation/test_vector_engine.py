"""Single steps for callers: the CUDA kernels in the simulator against those on CPU, which tests/interop compares with training."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.simulation.rollouts import CASES, ROOT, Case
from warprun.environment import Box, MultiDiscrete
from warprun.simulation.device import Device
from warprun.simulation.vector_engine import VectorEngine

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
