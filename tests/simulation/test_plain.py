"""What stands on plain Python: the trial before compiling, the comparison in a training, and the same episodes as compiled kernels."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.environments.broken import SOUND
from tests.gliders import glider
from tests.selection import few
from tests.simulation.rollouts import CASES, RandomPolicies, engine_of, make
from warprun.config.registry import import_environment
from warprun.errors import UserError
from warprun.simulation import comparison, trial
from warprun.simulation.codegen.bodies import Bodies
from warprun.simulation.device import choose
from warprun.simulation.kernel_engine import KernelEngine, first_cuts
from warprun.simulation.kernel_module import read_only, typed, typed_tables
from warprun.simulation.plain import PlainEnvironment
from warprun.simulation.trial import Explorer
from warprun.state import restore

STEPS = 12


@pytest.mark.by_default(2)
@pytest.mark.parametrize("name", few(CASES, "cartpole", "market", "crane", "conditional", "leaving", "market_staggered"))
def test_episodes_are_the_same(name):
    case = replace(CASES[name], horizon=STEPS)
    environment, seed = case.environment, 2**40 + 3
    engine = engine_of(case, name, choose("cpu"))
    tables = environment.tables(**environment.options) if environment.tables else None
    of_run = {"params": typed(environment.params()), "tables": read_only(typed_tables(tables)), "vary": dict(case.vary), "seed": seed}
    cuts = first_cuts(environment.time_limit, 0, case.n_envs).tolist() if case.staggered else [None] * case.n_envs
    played = [PlainEnvironment(environment, number, cut_at=cut_at, **of_run) for number, cut_at in enumerate(cuts)]
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


def engine(tmp_path, next: str = "s.x", reward: str = "1.0") -> KernelEngine:
    """Return an engine of an environment with one number, and what it becomes and brings in a step."""
    file, imports = tmp_path / "mine.py", "import math\nfrom warprun.random import uniform"
    file.write_text(glider(imports, reward=reward, after=next, reset="rng", start="uniform(rng, 0, 0.25, 0.75)", limit=50))
    return make(import_environment(str(file))[0], "mine", n_envs=70, horizon=8, compares=True)


@pytest.fixture
def patient(monkeypatch):
    """Compare all steps, however slow this machine is."""
    monkeypatch.setattr(comparison, "SECONDS", 1e9)


@pytest.mark.long
def test_what_agrees_goes_on(patient):
    """With two groups, of which the second acts in the middle of a step."""
    case = CASES["market"]
    made = make(case.environment, "market", n_envs=5, horizon=8, vary=dict(case.vary), compares=True)
    for _ in range(4):
        made.collect(RandomPolicies(made))


@pytest.fixture
def mistaken(monkeypatch):
    """The code generator makes rewards half as large again."""
    written = Bodies._phase
    monkeypatch.setattr(Bodies, "_phase", lambda *given, **named: written(*given, **named).replace("] = reward0", "] = 1.5 * reward0"))


def test_a_mistake_of_the_kernels_ends_the_run(tmp_path, mistaken, patient):
    made = engine(tmp_path)
    with pytest.raises(
        UserError, match=r"mine.py:\d+ in step: in step 1 of environment 0 compiled kernels give 1.5 as agent.reward and plain"
    ):
        made.collect(RandomPolicies(made))


def test_a_resumed_training_was_compared_before(tmp_path, mistaken, patient):
    made = engine(tmp_path)
    restore(made.state(), {name: tensor + 1 if name == "steps" else tensor.clone() for name, tensor in made.state().items()})
    made.collect(RandomPolicies(made))


@pytest.mark.long
def test_rounding_that_decides_is_no_mistake(tmp_path, patient, monkeypatch):
    """The logistic map doubles a difference in each step: after some 20 steps the last digit is the first."""
    monkeypatch.setattr(comparison, "STEPS", 48)
    made = engine(tmp_path, next="s.x * 3.9 * (1.0 - s.x)", reward="1.0 if s.x > 0.5 else 0.0")
    for _ in range(6):
        made.collect(RandomPolicies(made))


def test_what_only_plain_python_refuses_is_told(tmp_path, patient):
    made = engine(tmp_path, reward="1.0 if math.sqrt(s.x - 2.0) > 0.0 else 0.0")
    with pytest.raises(UserError, match=r"mine.py:\d+ in step fails as plain Python, not compiled: ValueError"):
        made.collect(RandomPolicies(made))


STEPS_OF_TRIAL = trial.STEPS
"""The fixture of all tests lets it end early."""


def written(folder: Path, line: str, lasts: int = 20) -> Path:
    """Write the sound environment with one more line in its step; return the file."""
    file = folder / "mine.py"
    head = "def step(s, action, rng, p, tables):\n"
    file.write_text(SOUND.replace(head, f"{head}    {line}\n").replace("time_limit=20", f"time_limit={lasts}").replace("x > 4.0", "False"))
    return file


@pytest.mark.long
def test_an_index_that_is_wrong_after_thousands_of_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "SECONDS", 1e9)
    monkeypatch.setattr(trial, "STEPS", STEPS_OF_TRIAL)
    file = written(tmp_path, "y = tables.rain[s.n // 700]", lasts=4000)
    with pytest.raises(UserError, match=r":31 in step: index 4 is out of bounds for axis 0 with size 4"):
        make(import_environment(str(file))[0], "mine")


@pytest.mark.long
def test_negative_indices_count_from_the_end(tmp_path):
    """As in NumPy and in Numba; they are no mistake."""
    make(import_environment(str(written(tmp_path, "y = tables.rain[-4]")))[0], "mine")


@pytest.mark.long
@pytest.mark.parametrize("target", [{"NUMBA_DISABLE_JIT": "1"}, {"NUMBA_ENABLE_CUDASIM": "1"}], ids=["plain", "cudasim"])
def test_tables_are_read_only_uncompiled(tmp_path, target):
    file = written(tmp_path, "tables.rain[0] = 1.0")
    device = "cudasim" if "NUMBA_ENABLE_CUDASIM" in target else "cpu"
    lines = [
        "from tests.simulation.rollouts import make",
        "from warprun.simulation.device import choose",
        "from warprun.config.registry import import_environment",
        f"make(import_environment({str(file)!r})[0], 'mine', n_envs=1, device=choose({device!r})).step(0)",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, env=os.environ | target)
    assert done.returncode == 1
    assert "read-only" in done.stderr
