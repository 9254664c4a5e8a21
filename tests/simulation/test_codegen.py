"""The text of kernel modules: names of which none is another's, and the table of arrays in the docs."""

import ast
import types
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.simulation.rollouts import ROOT, make
from warprun.environment import Box, Discrete, Environment, Group, Phase, float32, int32
from warprun.simulation.arrays import ArrayPlan, describe
from warprun.simulation.codegen.program import write
from warprun.simulation.codegen.targets import BLOCK, CPU, THREAD


def test_the_docs_have_the_table_of_arrays():
    text = Path(ROOT / "docs" / "architecture.md").read_text()
    between = text.partition("<!-- arrays -->\n")[2].partition("\n<!-- end -->")[0]
    assert between == describe(), "python -c 'from warprun.simulation.arrays import describe; print(describe())' writes it"


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
    targets = [t for t in (CPU, THREAD, BLOCK) if t is not THREAD or env.groups[0].size == 1]
    return [write(ArrayPlan(env, target, 1, 1, policies=policies)) for target in targets]


def test_another_time_limit_has_the_same_kernels() -> None:
    env = environment("ab")
    assert sources(replace(env, time_limit=7)) == sources(env) != sources(replace(env, time_limit=None))


class Params(NamedTuple):
    time_limit: float = 1.0
    tables: float = 2.0


def step_with_params(p, s, action):
    return State(p.time_limit * p.tables * s.x, s.n + action), s.x, False


def test_parameters_may_have_the_names_of_what_an_environment_lacks() -> None:
    env = environment("a")
    env = replace(env, time_limit=None, params=Params, phases=(Phase("a", step_with_params),))
    for target in (CPU, THREAD, BLOCK):
        source = write(ArrayPlan(env, target, 1, 1, vary=("tables",))).source
        assert "p.time_limit" in source and "common.time_limit" not in source and "common.tables" not in source


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


def check_names(groups, **options):
    """Assert that no name of a module is another's."""
    for program in sources(environment(groups, **options)):
        local, constants, given = locals_of(program.source), constants_of(program.source), program.functions.keys()
        assert not local & given, options
        assert len(set(constants)) == len(constants), options
        assert not set(constants) & (local | given), options


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_functions_called_as_what_kernels_use(size):
    """Every name of the kernels in turn is the name of all functions, and of a function of another group."""
    stems = {name.removeprefix("agent_") for p in sources(environment(("agent",))) for name in locals_of(p.source)}
    for stem in sorted(stems | {"tile", "env", "uniform", "Rng", "draw", "choose", "State", "<lambda>"}):
        check_names(("agent", "a"), size=size, names=(stem,) * 4)


def test_groups_called_as_what_kernels_use():
    names = ("agent", "clock", "first", "lane", "count", "agent_mask", "agent_final", "agent_ended", "agent_obs", "a", "a_b", "a_sum_State")
    check_names(names)


@pytest.mark.by_default(0)
def test_environments_of_such_names_run():
    groups = ("clock", "agent", "agent_final", "agent_ended", "agent_mask")
    engine = make(environment(groups, names=("action", "reward", "obs", "mask")), "groups", n_envs=2, horizon=6)
    for row in range(5):
        for taken in engine.trajectory.groups.values():
            taken.action[row] = 1
        engine.step(row)
    assert set(engine.episodes().mean_return.values()) == {5.0}
