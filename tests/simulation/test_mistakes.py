"""What a person gets wrong in an environment, told in one line with file, line and function, and soon."""

from __future__ import annotations

import builtins
import time
from typing import NamedTuple

import numpy as np
import pytest

from tests.environments import clockwork, market
from tests.simulation.rollouts import CPU, make
from warprun.config.registry import import_environment
from warprun.environment import Box, ContractError, Discrete, Environment, Group, Phase, float32, single_agent
from warprun.errors import UserError
from warprun.simulation.arrays import ArrayPlan
from warprun.simulation.codegen import targets
from warprun.simulation.kernel_engine import KernelEngine

LINES = {
    "helper": "    return x",
    "reset": "    return State(float32(0.0), float32(0.0))",
    "step": "    y = helper(s.x) + p.dt",
    "return": "    return State(y, s.v), 0.0, False",
    "observe": "    return s.x, s.v",
}
FILE = """\
from typing import NamedTuple
import numpy as np
from warprun.environment import Box, Discrete, float32, single_agent
class State(NamedTuple):
    x: float32
    v: float32
class Params(NamedTuple):
    dt: float = 0.1
class Other(NamedTuple):
    x: float32
def helper(x):
{helper}
def reset(rng):
{reset}
def step(s, action, p):
{step}
{return}
def observe(s):
{observe}
environment = single_agent(state=State, params=Params, observation=Box(2), action=Discrete(2), reset=reset, step=step, observe=observe)
"""
HELPER, RESET, STEP, OBSERVE = 12, 14, 16, 19
"""Lines of the file: the first of each function's body."""

# What line is replaced by what; where the mistake is found; words of the message
MISTAKES = [
    ("step", "    y = velocity * 2.0", f":{STEP} in step", "name 'velocity' is not defined"),
    ("helper", "    return x * speed", f":{HELPER} in helper", "name 'speed' is not defined"),
    ("step", "    y = np.linalg.eigvalsh(s.x)", f":{STEP} in step", "kernels know no eigvalsh(float32)"),
    ("helper", "    return np.linalg.eigvalsh(x)", f":{HELPER} in helper", "kernels know no eigvalsh(float32)"),
    ("step", "    y = np.zeros(3)[0] + s.x", f":{STEP} in step", "kernels cannot make arrays"),
    ("step", "    y = s.xx + 1.0", f":{STEP} in step", "Unknown attribute 'xx' of type State"),
    ("step", "    y = p.ddt", f":{STEP} in step", "Unknown attribute 'ddt' of type Params"),
    ("helper", "    return x.real.size", f":{HELPER} in helper", "Unknown attribute 'size'"),
    ("step", "    y = s.x + (1.0, 2.0)", f":{STEP} in step", "kernels know no add(float32"),
    ("step", "    y = action[0]", f":{STEP} in step", "kernels know no getitem(int32"),
    ("step", "    y = s.x if action else (1.0, 2.0)", f":{STEP} in step", "Cannot unify float32"),
    ("step", "    y = helper(s.x, 2.0)", f":{STEP} in step", "too many positional arguments"),
    ("step", "    y = open('x')", f":{STEP} in step", "kernels cannot call open()"),
    ("return", "    return State(y, s.v), 0.0", f":{STEP - 1} in step", "must return state, reward, terminated; it returns 2 values"),
    ("return", "    return State(y, s.v), 0.0, False, 1", f":{STEP - 1} in step", "it returns 4 values"),
    ("return", "    pass", f":{STEP - 1} in step", "it returns nothing"),
    ("return", "    return State(y), 0.0, False", f":{STEP + 1} in step", "missing a required argument: 'v'"),
    ("return", "    return Other(y), 0.0, False", f":{STEP - 1} in step", "must return a State as state; it returns a Other"),
    ("return", "    return State(y, s), 0.0, False", f":{STEP + 1} in step", "must give State.v a number"),
    ("step", "    if action:\n        y = s.x", f":{STEP + 2} in step", "the variable y may have no value here"),
    ("step", "    for y in range(action):\n        pass", f":{STEP + 2} in step", "the variable y may have no value here"),
    (
        "helper",
        "    for x in range(2):\n        z = x\n        if z:\n            w = z\n    return w",
        f":{HELPER + 4} in helper",
        "the variable w",
    ),
    ("return", "    return State(y, s.v), (0.0, 1.0), False", f":{STEP - 1} in step", "a number as reward"),
    ("return", "    return State(y, s.v), 0.0, 0.5", f":{STEP - 1} in step", "True or False as terminated"),
    ("reset", "    return float32(0.0)", f":{RESET - 1} in reset", "must return a State as state; it returns float32"),
    ("observe", "    return (s.x,)", f":{OBSERVE - 1} in observe", "a tuple of numbers, 2 by its space"),
    ("observe", "    return s.x, s.v, s.v", f":{OBSERVE - 1} in observe", "it returns 3 values"),
    ("observe", "    return s.x", f":{OBSERVE - 1} in observe", "it returns float32"),
]


@pytest.mark.parametrize("part, line, where, words", MISTAKES, ids=[f"{part}: {line.strip()}" for part, line, *_ in MISTAKES])
def test_functions_that_do_not_compile(tmp_path, part, line, where, words):
    file = tmp_path / "mine.py"
    file.write_text(FILE.format(**(LINES | {part: line})))
    environment, _ = import_environment(str(file))
    start = time.perf_counter()
    with pytest.raises(UserError) as raised:
        make(environment, "mine")
    seconds = time.perf_counter() - start
    message = str(raised.value)
    assert message.startswith(f"{file}{where}")
    assert words in message
    assert "\n" not in message
    assert len(message) < 300
    assert seconds < 2


def test_the_file_without_mistakes_compiles(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(FILE.format(**LINES))
    environment, _ = import_environment(str(file))
    engine = make(environment, "mine", n_envs=3, horizon=1)
    engine.step(0)
    assert engine.trajectory.groups["agent"].obs[1, :, 0, 0].numpy() == pytest.approx([0.1] * 3)


def test_fields_with_a_default_are_filled_in(tmp_path):
    fields = "    v: float32 = 0.25\n    w: float32 = 0.5"
    text = FILE.format(**LINES).replace("    v: float32", fields).replace("return s.x, s.v", "return s.v, s.w")
    for given, seen in (("s.v", (0.75, 0.5)), ("w=2", (0.25, 2.0)), ("", (0.25, 0.5))):
        file = tmp_path / "mine.py"
        file.write_text(text.replace("State(y, s.v)", f"State(y, {given})").replace("float32(0.0), float32(0.0)", "0, 0.75"))
        engine = make(import_environment(str(file))[0], "mine", n_envs=1, horizon=1)
        engine.step(0)
        assert tuple(engine.trajectory.groups["agent"].obs[1, 0, 0].tolist()) == seen


class State(NamedTuple):
    x: float32


def reset():
    return State(float32(0.0))


def step(s):
    return s, 0.0, False


def observe(s):
    return (s.x,)


GOOD = {"state": State, "observation": Box(1), "action": Discrete(2), "reset": reset, "step": step, "observe": observe}


def with_wind(s, wind):
    return s, 0.0, False


def with_tables(s, tables):
    return s, 0.0, False


def with_action(s, action):
    return (s.x,)


class Strange(NamedTuple):
    x: str


CONTRACT = [
    ({"step": with_wind}, "in with_wind: unknown argument 'wind'"),
    ({"step": with_tables}, "in with_tables: unknown argument 'tables'"),
    ({"observe": with_action}, "in with_action: unknown argument 'action'"),
    ({"state": Strange}, "field 'x' of Strange must be float32"),
]


@pytest.mark.parametrize("changes, words", CONTRACT, ids=[words for _, words in CONTRACT])
def test_breaches_of_contract(changes, words):
    with pytest.raises(ContractError) as raised:
        single_agent(**(GOOD | changes))
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def group(name="a", **changes):
    return Group(name, 2, State, Box(1), Discrete(2), reset, observe, **changes)


@pytest.mark.parametrize(
    "groups, phases, words",
    [
        ((group("s"),), (Phase("s", step),), "group name 's' is taken"),
        ((group(sums=("x",)), group("a_sum")), (Phase("a", step), Phase("a_sum", step)), "group name 'a_sum' is taken"),
        ((group(), group()), (Phase("a", step),), "group name 'a' is taken"),
        ((group(),), (Phase("b", step),), "there is no group 'b'; groups: a"),
        ((group(),), (), "at least one phase"),
        ((group(), group("b")), (Phase("a", step),), "group 'b' takes part in no phase"),
        ((group(),), (Phase("a", step),) * 17, "at most 16 phases"),
    ],
)
def test_breaches_of_contract_by_groups(groups, phases, words):
    with pytest.raises(ContractError, match=words):
        Environment(groups, phases)


def test_a_sum_of_an_unknown_field_is_refused():
    with pytest.raises(ContractError, match="declares a sum or maximum of 'y'"):
        group(sums=("y",))


@pytest.mark.parametrize("environment", [clockwork.environment, market.environment], ids=["one group", "two groups"])
def test_too_many_environments_are_refused_before_memory_is_taken(environment, monkeypatch):
    monkeypatch.setattr("warprun.simulation.trajectory.allocate", lambda *_: pytest.fail("allocated"))
    with pytest.raises(UserError, match=r"1000000000000 environments .*GiB on cpu; .* GiB are free"):
        KernelEngine(environment, "big", device=CPU, n_envs=10**12, horizon=16, seed=0, params=environment.params())


def test_memory_estimate_is_what_is_taken():
    environment, tables = market.environment, market.tables(0.05)
    engine = KernelEngine(environment, "market", device=CPU, n_envs=37, horizon=5, seed=0, params=environment.params(), tables=tables)
    taken = [*engine.arrays.by_name().values(), engine.trajectory.terminated, engine.trajectory.truncated]
    for group in engine.trajectory.groups.values():
        taken += [tensor for tensor in vars(group).values() if tensor is not None]
    assert ArrayPlan(environment, targets.CPU, 37, 5).bytes_needed() == sum(tensor.numel() * tensor.element_size() for tensor in taken)


def test_tables_in_double_precision_become_single():
    class Tables(NamedTuple):
        numbers: np.ndarray

    def observe_table(s, tables):
        return (tables.numbers[1],)

    environment = single_agent(**(GOOD | {"observe": observe_table, "tables": lambda: Tables(np.array([0.5, 1.5]))}))
    engine = make(environment, "tables", n_envs=1)
    assert engine.trajectory.groups["agent"].obs[0].item() == 1.5


def test_a_file_is_executed_once_and_again_when_it_has_changed(tmp_path):
    file = tmp_path / "counted.py"
    for value in ("None", "0.0"):
        file.write_text(f"import builtins\nbuiltins.counted = getattr(builtins, 'counted', 0) + 1\nenvironment = {value}\n")
        for _ in range(3):
            with pytest.raises(UserError, match="environment"):
                import_environment(str(file))
    assert vars(builtins).pop("counted") == 2
