"""A training begins with a comparison of compiled kernels and plain Python."""

from __future__ import annotations

import pytest

from tests.simulation.rollouts import CASES, RandomPolicies, make
from warprun.config.registry import import_environment
from warprun.errors import UserError
from warprun.simulation import comparison
from warprun.simulation.codegen.bodies import Bodies
from warprun.simulation.kernel_engine import KernelEngine
from warprun.state import restore

MODULE = """\
import math
from typing import NamedTuple
from warprun.environment import Box, Discrete, float32, single_agent
from warprun.random import uniform

class State(NamedTuple):
    x: float32

def reset(rng):
    return State(uniform(rng, 0, 0.25, 0.75))

def step(s):
    x = {next}
    return State(x), {reward}, False

environment = single_agent(
    state=State, observation=Box(1), action=Discrete(2), reset=reset, step=step, observe=lambda s: (s.x,), time_limit=50
)
"""


def engine(tmp_path, **lines: str) -> KernelEngine:
    file = tmp_path / "mine.py"
    file.write_text(MODULE.format(**({"next": "s.x", "reward": "1.0"} | lines)))
    return make(import_environment(str(file))[0], "mine", n_envs=70, horizon=8, compares=True)


@pytest.fixture
def patient(monkeypatch):
    """Compare all steps, however slow this machine is."""
    monkeypatch.setattr(comparison, "SECONDS", 1e9)


@pytest.mark.parametrize("name", ["cartpole", "market"])
def test_what_agrees_goes_on(name, patient):
    case = CASES[name]
    made = make(case.environment, name, n_envs=5, horizon=8, vary=dict(case.vary), compares=True)
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
