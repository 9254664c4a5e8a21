"""Groups and functions can be called anything: no name of theirs is another's in the kernels."""

from __future__ import annotations

import ast
import types
from typing import NamedTuple

import pytest

from tests.simulation.rollouts import make
from warprun.environment import Box, Discrete, Environment, Group, Phase, float32, int32
from warprun.simulation.arrays import ArrayPlan
from warprun.simulation.codegen.program import write
from warprun.simulation.codegen.targets import BLOCK, CPU, THREAD

GROUPS = ("agent", "clock", "first", "lane", "count", "agent_mask", "agent_final", "agent_ended", "agent_obs", "a", "a_b", "a_sum_State")
TARGETS = (CPU, THREAD, BLOCK)


class State(NamedTuple):
    x: float32
    n: int32


def reset():
    return State(float32(1.0), int32(0))


def step(s, action):
    return State(s.x, s.n + action), s.x, False


def observe(s):
    return s.x, float32(s.n)


def mask(k, s):
    return k != 1 or s.n < 3


def named(function, name):
    return types.FunctionType(function.__code__, function.__globals__, name)


def environment(groups, *, size=1, names=None):
    """Return an environment of these groups whose functions are called `names` (reset, step, observe, mask)."""
    given = names or ("reset", "step", "observe", "mask")
    r, p, o, m = (named(f, n) for f, n in zip((reset, step, observe, mask), given, strict=True))
    made = [Group(g, size, State, Box(2), Discrete(2), r, o, m, sums=("x",) if g == "a" else ()) for g in groups]
    return Environment(tuple(made), tuple(Phase(g, p) for g in groups), time_limit=5)


def sources(env, policies="sampled"):
    targets = [t for t in TARGETS if t is not THREAD or env.groups[0].size == 1]
    return [write(ArrayPlan(env, target, 1, 1, policies=policies)) for target in targets]


def locals_of(source: str) -> set[str]:
    """Return every name that some function of a module takes or assigns."""
    found = set()
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            found |= {argument.arg for argument in function.args.args}
            found |= {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return found


def constants_of(source: str) -> list[str]:
    """Return the names that a module defines: constants, classes and kernels."""
    found = []
    for statement in ast.parse(source).body:
        found += [target.id for target in statement.targets] if isinstance(statement, ast.Assign) else []
        found += [statement.name] if isinstance(statement, ast.FunctionDef) else []
    return found


NAMES = sorted({name for p in sources(environment(("agent",))) for name in locals_of(p.source)})
STEMS = sorted({name.removeprefix("agent_") for name in NAMES} | {"tile", "env", "uniform", "Rng", "draw", "choose", "State", "<lambda>"})


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_functions_called_as_what_kernels_use(size):
    """Every name of the kernels in turn is the name of all functions, and of a function of another group."""
    for stem in STEMS:
        for program in sources(environment(("agent", "a"), size=size, names=(stem,) * 4)):
            assert not locals_of(program.source) & program.functions.keys(), stem
            assert len(set(constants_of(program.source))) == len(constants_of(program.source)), stem
            assert not set(constants_of(program.source)) & (locals_of(program.source) | program.functions.keys()), stem


def test_groups_called_as_what_kernels_use():
    for program in sources(environment(GROUPS)):
        assert not locals_of(program.source) & program.functions.keys()
        assert len(set(constants_of(program.source))) == len(constants_of(program.source))
        assert not set(constants_of(program.source)) & (locals_of(program.source) | program.functions.keys())


@pytest.mark.by_default(1)
@pytest.mark.parametrize("names", [("action", "reward", "obs", "mask"), ("f", "i", "noise", "log_prob")])
def test_they_run(names):
    engine = make(environment(("agent",), names=names), "names", n_envs=3, horizon=2)
    engine.trajectory.groups["agent"].action[:] = 1
    engine.step(0)
    assert engine.trajectory.groups["agent"].obs[1].flatten().tolist() == [1.0, 1.0] * 3


@pytest.mark.by_default(0)
def test_groups_of_such_names_run():
    engine = make(environment(("clock", "agent", "agent_final", "agent_ended", "agent_mask")), "groups", n_envs=2, horizon=6)
    for row in range(5):
        for taken in engine.trajectory.groups.values():
            taken.action[row] = 1
        engine.step(row)
    assert set(engine.episodes().mean_return.values()) == {5.0}
