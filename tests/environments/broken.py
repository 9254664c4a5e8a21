# ruff: noqa: E501
"""Environment files with one mistake each: what is changed in a sound file, and what the error message must name."""

from __future__ import annotations

import re
from dataclasses import dataclass

SOUND = '''\
"""A heated room and its neighbours."""
import functools
from typing import Annotated, NamedTuple
import numpy as np
from warprun.environment import Box, Discrete, Environment, Group, MultiDiscrete, Phase, float32, int32, single_agent
from warprun.math import clip, exp, log, sqrt
from warprun.random import normal, randint, uniform
NUMBERS = [1.0, 2.0]
NAMED = {"a": 1.0}
WEIGHTS = np.ones(3, np.float32)
TEXT = "text"
class State(NamedTuple):
    x: float32
    n: int32
    h: Annotated[np.ndarray, 3]
class Params(NamedTuple):
    gain: float = 0.1
    limit: int = 5
    cold: bool = True
class Tables(NamedTuple):
    rain: np.ndarray
    scale: float
def tables(factor=1.0):
    return Tables(np.full(4, 0.5, np.float32), factor)
def helper(x):
    return x * 0.5
def reset(s, rng):
    s.h[0] = 0.0
    return State(uniform(rng, 0, -1.0, 1.0), int32(0), s.h)
def step(s, action, rng, p, tables):
    x = s.x + p.gain * helper(tables.rain[action])
    s.h[1] = x
    return State(x, s.n + 1, s.h), -abs(x), x > 4.0
def observe(s, p):
    return s.x, s.h[1]
def mask(k, s):
    return k != 1 or s.n < 3
# Partials have no lines of their own, so errors name the line of the call.
group = functools.partial(Group, name="agent", size=1, state=State, observation=Box(2), action=Discrete(3), reset=reset, observe=observe)
grouped = functools.partial(
    Environment, phases=(Phase("agent", step),), params=Params, tables=tables, options={"factor": 1.0}, time_limit=20
)
make = functools.partial(
    single_agent, state=State, params=Params, observation=Box(2), action=Discrete(3), reset=reset, step=step, observe=observe,
    mask=mask, tables=tables, options={"factor": 1.0}, time_limit=20
)
environment = make()
'''


@dataclass(frozen=True)
class Case:
    """One mistake. The line that the message must name ends with `#@`; without one the message need not name a line."""

    id: str
    changes: tuple[tuple[str, str], ...]
    """(old, new) parts of SOUND; an empty `old` stands for the whole file."""
    words: tuple[str, ...]
    """Words of the message, which is compared without regard to case."""
    function: str | None = None
    """The function that the message must name."""

    @property
    def text(self) -> str:
        text = SOUND
        for old, new in self.changes:
            assert not old or text.count(old) == 1, (self.id, old)
            text = text.replace(old, new) if old else new
        return text

    @property
    def line(self) -> int | None:
        """The line that the message must name."""
        found = [number for number, line in enumerate(self.text.splitlines(), 1) if line.endswith("#@")]
        assert len(found) <= 1, self.id
        return found[0] if found else None


def _made(id: str, changes: str, *words: str) -> Case:
    """Return a case in which `make(...)` or the expression `changes` defines the environment."""
    call = changes if re.match(r"\w+\(", changes) else f"make({changes})"
    return Case(id, (("environment = make()", f"environment = {call}  #@"),), words)


HEADS = {
    "helper": "def helper(x):",
    "reset": "def reset(s, rng):",
    "step": "def step(s, action, rng, p, tables):",
    "observe": "def observe(s, p):",
    "mask": "def mask(k, s):",
}


def _taking(function: str, id: str, arguments: str, *words: str) -> Case:
    """Return a case in which a function has other arguments."""
    return Case(id, ((HEADS[function], f"def {function}({arguments}):  #@"),), words)


def _inside(function: str, id: str, line: str, *words: str, marked: bool = True) -> Case:
    """Return a case with one more line (`#@` is added) at the begin of a function."""
    first, *rest = line.split("\n")
    mark = "  #@" if marked and "#@" not in line else ""
    body = "".join(f"    {part}\n" for part in (f"{first}{mark}", *rest))
    return Case(id, ((f"{HEADS[function]}\n", f"{HEADS[function]}\n{body}"),), words, function)


def _defined(id: str, old: str, new: str, *words: str, function: str | None = None) -> Case:
    return Case(id, ((old, new),), words, function)


def _file(id: str, text: str, *words: str, function: str | None = None) -> Case:
    return Case(id, (("", text),), words, function)


FIELDS = "    x: float32\n    n: int32\n    h: Annotated[np.ndarray, 3]\n"
BODY = """    x = s.x + p.gain * helper(tables.rain[action])
    s.h[1] = x
    return State(x, s.n + 1, s.h), -abs(x), x > 4.0"""
ONE_NUMBER = ("environment = make()", "environment = make(action=Box(1, -1.0, 1.0), mask=None)")
STEP = "    return State(x, s.n + 1, s.h), -abs(x), x > 4.0"
OBSERVE = "    return s.x, s.h[1]"
RESET = "    return State(uniform(rng, 0, -1.0, 1.0), int32(0), s.h)"
HALF = "    return x * 0.5"
MASK = "    return k != 1 or s.n < 3"
TABLES = "    return Tables(np.full(4, 0.5, np.float32), factor)"

SPACES = (
    _made("Discrete zero", "action=Discrete(0)", "Discrete", "whole number"),
    _made("Discrete whole float", "action=Discrete(3.0)", "Discrete", "3.0"),
    _made("Discrete bool", "action=Discrete(True)", "Discrete", "True"),
    _made("Discrete huge", "action=Discrete(10**12)", "Discrete", "1000000000000"),
    _made("MultiDiscrete list", "action=MultiDiscrete([3, 2])", "MultiDiscrete", "tuple"),
    _made("MultiDiscrete zero", "action=MultiDiscrete((3, 0))", "MultiDiscrete", "0"),
    _made("Box fraction", "observation=Box(2.0)", "Box", "2.0"),
    _made("Box low array", "action=Box(2, np.zeros(2), 1.0), mask=None", "Box", "low", "tuple"),
    _made("Box NaN", "action=Box(1, float('nan'), 1.0), mask=None", "Box", "nan"),
    _made("Box inverted", "action=Box(1, 1.0, -1.0), mask=None", "Box", "bounds 1 to -1"),
    _made("Box too few bounds", "action=Box(3, (0.0, 0.0), 1.0), mask=None", "Box", "3 components", "2"),
    _made("Box overflow", "action=Box(1, -1e39, 1.0), mask=None", "Box", "float32"),
    _made("Box mask", "action=Box(1, -1.0, 1.0)", "mask", "choices", "Box"),
    _made("Box unknown argument", "action=Box(1, lowest=0.0)", "lowest"),
    _made("observation Discrete", "observation=Discrete(2)", "observation", "Box", "Discrete"),
    _made("observation class", "observation=Box", "observation", "Box"),
    _made("action number", "action=3", "action", "Discrete", "3"),
)

GROUPS = (
    _made("group name is no identifier", "grouped(groups=(group(name='my group'),))", "group name", "'my group'"),
    _made("group name keyword", "grouped(groups=(group(name='class'),))", "group name", "'class'"),
    _made("group name an argument", "grouped(groups=(group(name='action'),))", "group name", "'action'"),
    _made("group name twice", "grouped(groups=(group(), group()))", "group name", "'agent'"),
    _made("group name of a sum", "grouped(groups=(group(sums=('x',)), group(name='agent_sum')))", "group name", "'agent_sum'"),
    _made("group size zero", "grouped(groups=(group(size=0),))", "size", "'agent'", "0"),
    _made("groups too many actors", "grouped(groups=(group(size=10**7), group(name='b', size=10**7)))", "actors", "20000000"),
    _made("no groups", "grouped(groups=())", "at least one group"),
    _made("groups one group", "grouped(groups=group())", "groups", "tuple"),
    _made("phases empty", "grouped(groups=(group(),), phases=())", "at least one phase"),
    _made("phases a function", "grouped(groups=(group(),), phases=(step,))", "phases", "Phase(group, function)"),
    _made("phase of unknown group", "grouped(groups=(group(),), phases=(Phase('agents', step),))", "no group 'agents'", "agent"),
    _made("group without phase", "grouped(groups=(group(), group(name='b')))", "'b'", "phase"),
    _made("too many phases", "grouped(groups=(group(),), phases=(Phase('agent', step),) * 17)", "16 phases", "17"),
    _made("sums text", "grouped(groups=(group(sums='x'),))", "sums", "tuple"),
    _made("sums unknown field", "grouped(groups=(group(sums=('y',)),))", "sum", "'y'"),
    _made("sums array field", "grouped(groups=(group(sums=('h',)),))", "sum", "'h'"),
    _taking("step", "sums forgotten", "s, action, rng, p, tables, agent_sum", "'agent_sum'", "write sums=(field, ...) in group('agent'"),
    _taking("observe", "maxima forgotten", "s, p, agent_max", "'agent_max'", "write maxima=(field, ...) in group('agent', ...)"),
    _taking("reset", "sums in a reset", "s, rng, agent_sum", "'agent_sum'", "it can have i, p, rng, s"),
    _made("sums twice", "grouped(groups=(group(sums=('x', 'x')),))", "sum", "'x'", "twice"),
    _made("lengths unknown field", "grouped(groups=(group(lengths={'y': 2}),))", "length", "'y'"),
    _made("lengths no dict", "grouped(groups=(group(lengths=3),))", "lengths", "dict"),
    _made("length of zero", "grouped(groups=(group(lengths={'h': 0}),))", "'h'", "LENGTH"),
    _made("state of a group twice", "grouped(groups=(group(state=(State, State)),))", "state", "NamedTuple"),
)

STATES = (
    _made("state instance", "state=State(0.0, 0, None)", "state", "NamedTuple"),
    _made("state tuple class", "state=tuple", "state", "NamedTuple"),
    _defined("state without fields", FIELDS, "    pass\n", "State", "at least one field"),
    _defined("field text", "    n: int32\n", "    n: str\n", "'n'", "State", "float32"),
    _defined("field array without length", "Annotated[np.ndarray, 3]", "np.ndarray", "'h'", "LENGTH"),
    _defined("field float64", "    x: float32\n", "    x: np.float64\n", "'x'", "float32"),
    _defined("field length huge", "Annotated[np.ndarray, 3]", "Annotated[np.ndarray, 10**12]", "'h'", "1000000000000"),
    _defined("field array of float64", "Annotated[np.ndarray, 3]", "Annotated[np.ndarray, 3, np.float64]", "'h'", "LENGTH"),
    _defined("field unknown name", "    n: int32\n", "    n: 'int16'\n", "'int16'", "State"),
    _defined("field unhashable", "    n: int32\n", "    n: {}\n", "State"),
    _made("params dict", "params={'gain': 0.1}", "params", "NamedTuple"),
    _defined("params without default", "    gain: float = 0.1", "    gain: float", "'gain'", "Params", "default"),
    _defined("params array", "    limit: int = 5", "    limit: int = np.ones(2)", "'limit'", "Params", "array"),
    _defined("params NaN", "    gain: float = 0.1", "    gain: float = float('nan')", "'gain'", "nan"),
    _defined("params overflow of float32", "    gain: float = 0.1", "    gain: float = 1e300", "'gain'", "1e+300"),
    _defined("params overflow of int32", "    limit: int = 5", "    limit: int = 2**31", "'limit'", "2147483648"),
)

LIMITS = (
    _made("time limit of 0", "time_limit=0", "time_limit", "0"),
    _made("time limit with a point", "time_limit=100.0", "time_limit", "100.0"),
)

TABLE = (
    _made("tables a value", "tables=Tables(np.ones(3), 1.0)", "tables", "function"),
    _made("tables of unknown option", "options={'factor': 1.0, 'scale': 2.0}", "option", "'scale'", "tables"),
    _made("tables without option", "tables=lambda factor, year: None", "'year'", "option"),
    _made("options without tables", "tables=None, step=lambda s: (s, 0.0, False)", "options", "tables"),
    _defined("tables return a dict", TABLES, "    return {'rain': np.ones(4)}", "{'rain'", "NamedTuple", function="tables"),
    _defined("tables return their class", TABLES, "    return Tables", "NamedTuple", function="tables"),
    _defined("tables raise", TABLES, "    raise RuntimeError('no rain')  #@", "RuntimeError", "no rain", function="tables"),
    _defined("table of objects", TABLES, "    return Tables(np.array([{}, None]), factor)", "rain", "object", function="tables"),
    _defined("table big-endian", TABLES, "    return Tables(np.ones(4, '>f4'), factor)", "rain", ">f4", function="tables"),
    _defined("table masked", TABLES, "    return Tables(np.ma.array(np.ones(4)), factor)", "rain", "MaskedArray", function="tables"),
    _defined("table overflow", TABLES, "    return Tables(np.full(4, 1e300), factor)", "rain", "1e+300", function="tables"),
    _defined("table NaN", TABLES, "    return Tables(np.array([1.0, np.nan]), factor)", "rain", "nan", function="tables"),
    _defined("table empty", TABLES, "    return Tables(np.ones(0), factor)", "rain", "empty", function="tables"),
    _defined("table without axes", TABLES, "    return Tables(np.array(1.0), factor)", "rain", "number", function="tables"),
    _defined("table a list", TABLES, "    return Tables([1.0, 2.0], factor)", "rain", "list", function="tables"),
    _defined("table number overflow", TABLES, "    return Tables(np.ones(4), 10**30)", "scale", "10000", function="tables"),
)

FUNCTIONS = (
    _made("step None", "step=None", "step", "function", "None"),
    _made("observe a class", "observe=State", "observe", "function", "type"),
    _made("step partial", "step=functools.partial(step, tables=None)", "step", "function", "partial"),
    _defined("step async", "def step(", "async def step(", "async", function="step"),
    _defined("step generator", STEP, f"{STEP}\n    yield", "yield", function="step"),
    _taking("step", "step with *args", "s, action, rng, p, tables, *rest", "*rest", " in step"),
    _taking("step", "step keyword-only", "s, action, *, rng, p, tables", "rng", "*", " in step"),
    _taking("step", "step unknown argument", "state, action, rng, p, tables", "'state'", "argument", " in step"),
    _taking("observe", "observe with rng", "s, p, rng", "'rng'", "argument", " in observe"),
    _taking("reset", "reset with action", "s, rng, action", "'action'", "argument", " in reset"),
    _taking("mask", "mask with out", "k, s, out", "'out'", "argument", " in mask"),
    _defined("step decorated", "def step(s, action, rng, p, tables):", "def logged(f):\n    @functools.wraps(f)\n    def call(*given):\n        return f(*given)\n    return call\n@logged  #@\ndef step(s, action, rng, p, tables):", "decorat", function="step"),
    _defined("step decorated without a name", "def step(s, action, rng, p, tables):", "def logged(f):\n    def call(*given):  #@\n        return f(*given)\n    return call\n@logged\ndef step(s, action, rng, p, tables):", "*given", function="call"),
    _made("step missing", "params=Params, **{'step': step} | {'observation': Box(2), 'rewards': 3}", "'rewards'"),
    Case("observe missing", (("environment = make()", "environment = single_agent(state=State, observation=Box(2), action=Discrete(2), reset=reset, step=step)  #@"),), ("observe", "missing")),
)  # fmt: skip

BODIES = (
    _inside("helper", "global in a helper", "global calls\ncalls = 1  #@", "global", "calls"),
    _inside("step", "raise", "if s.x > 3.0:\n    raise ValueError('too hot')  #@", "raise"),
    _inside("step", "assert", "assert s.x < 100.0", "assert"),
    _inside("step", "try", "try:\n    y = 1.0 / s.x  #@\nexcept ZeroDivisionError:\n    y = 0.0", "try"),
    _inside("step", "with", "with s:  #@\n    pass", "with"),
    _inside("step", "print", "print(s.x)", "print"),
    _inside("step", "import", "import math", "import"),
    _inside("step", "assignment to s.x", "s.x = 1.0", "s.x", "return"),
    _inside("step", "addition to s.x", "s.x += 1.0", ".x", "return"),
    _inside("step", "assignment to a table", "tables.rain[0] = 1.0", "read-only"),
    _inside("step", "assignment to an array of the file", "WEIGHTS[0] = 1.0", "read-only"),
    _inside("step", "del of an element", "del s.h[0]", "del"),
    _inside("step", "list", "y = [s.x, s.x]", "list"),
    _inside("step", "dict", "y = {'x': s.x}", "dict"),
    _inside("step", "set", "y = {s.x, 1.0}", "set"),
    _inside("step", "list comprehension", "y = [s.x * float32(n) for n in range(3)]", "list"),
    _inside("step", "sum of a generator", "y = sum(s.x for n in range(3))", "generator"),
    _inside("step", "list of the file", "y = NUMBERS[0]", "NUMBERS", "list"),
    _inside("step", "f-string", "y = f'{s.x}'", "text"),
    _inside("step", "class", "class Inner: pass", "class"),
    _inside("step", "call of list()", "y = list(range(3))", "list"),
    _inside("step", "call of str()", "y = str(s.x)", "text"),
    _inside("step", "random of NumPy", "y = np.random.rand()", "warprun.random"),
    _inside("step", "NumPy array", "y = np.zeros(3)", "cannot make arrays"),
    _inside("step", "NumPy clip", "y = np.clip(s.x, 0.0, 1.0)", "write clip of warprun.math"),
    _inside("step", "misspelt parameter", "y = p.gian", "Params has no 'gian'; did you mean 'gain'?"),
    _inside("step", "state with fewer fields", "y = State(s.x, s.n)", "needs each of its fields once, x, n, h: missing", "'h'"),
    _inside("step", "state with more fields", "y = State(s.x, s.n, s.h, s.x)", "needs each of its fields once, x, n, h: too many"),
    _inside("step", "replaced field", "y = s._replace(x=s.x)", "kernels know no _replace; write State(x, n, h) with all fields"),
    _inside("step", "NumPy linalg", "y = np.linalg.norm(s.h)", "does not compile"),
    _inside("step", "NumPy of no such name", "y = np.sinus(s.x)", "sinus"),
    _inside("step", "array arithmetic", "y = 2.0 * s.h", "whole arrays", marked=False),
    _inside("step", "unknown name", "y = velocity * 2.0", "'velocity'", "not defined"),
    _inside("step", "unbound variable", "y = total + 1.0  #@\ntotal = 0.0", "total"),
    _inside("step", "variable of one case", "match s.n:\n    case 0:\n        y = 1.0\nz = y  #@", "the variable y"),
    _defined("keyword-only argument of a helper", "def helper(x):", "def helper(x, *, y=1.0):  #@", "keyword-only", function="helper"),
    _inside("step", "unknown field", "y = s.velocity", "'velocity'", "State"),
    _inside("step", "index of a number", "y = s.x[0]", "getitem"),
    _inside("step", "text of the file", "y = s.x + TEXT", "TEXT", "str"),
    _inside("step", "two types", "y = s.x if action else (s.x, s.x)", "unify"),
    *(
        Case(id, (ONE_NUMBER, (BODY, f"    return State({given}, s.n, s.h), 0.0, False  #@")), ("write action[0]",), "step")
        for id, given in (("action of one number", "action"), ("sum of a field and an action", "s.x + action"))
    ),
    _inside("step", "None and number", "y = None if action else s.x\nz = y + 1.0  #@", "None"),
    _inside("step", "too many arguments", "y = helper(s.x, 1.0)", "too many"),
    _inside("step", "unknown keyword", "y = helper(y=s.x)", "'y'"),
    _inside("step", "division by the constant zero", "y = s.n // 0", "division by zero"),
    _inside("step", "index beyond an array field", "s.h[7] = 1.0", "out of bounds"),
    _inside("step", "index beyond a table after steps", "y = tables.rain[s.n // 4]", "out of bounds"),
    _inside("observe", "index beyond in observe", "y = s.h[3]", "out of bounds"),
    _inside("step", "huge literal", f"y = s.n + {10**30}", "64 bits"),
    _inside("step", "uniform in wrong order", "y = uniform(0, rng, 0.0, 1.0)", "environment"),
    _inside("step", "normal with text", "y = normal(rng, 'a')", "text"),
    _inside("step", "rng as a number", "y = rng + 1.0", "add"),
    _defined("await", STEP, f"    await s  #@\n{STEP}", "await"),
    _inside("step", "matrix product", "y = s.h @ s.h", "does not compile"),
    _defined("recursion", HALF, "    return helper(x - 1.0) if x > 0.0 else x", "themselves", function="helper"),
    _defined("recursion in a circle", HALF, "    return other(x)\ndef other(x):\n    return helper(x)", "themselves", function="helper"),
)

RETURNS = (
    _defined("step returns nothing", STEP, "    pass", "state, reward, terminated", "nothing", function="step"),
    _defined("step returns five", STEP, "    return State(x, s.n, s.h), 0.0, False, False, 1", "5 values", function="step"),
    _defined("step returns a tuple as state", STEP, "    return (x, s.n, s.h), 0.0, False", "State", function="step"),
    _defined("step returns a tuple as reward", STEP, "    return s, (0.0, 1.0), False", "number as reward", function="step"),
    _defined("step returns a float as terminated", STEP, "    return s, 0.0, 0.5", "True or False", function="step"),
    _defined("step returns None at times", STEP, f"    if x > 1.0:\n        return None\n{STEP}", "nothing", function="step"),
    _defined("step misses a field", STEP, "    return State(x, s.n), 0.0, False", "'h'", function="step"),
    _defined("step gives a number for an array", STEP, "    return State(x, s.n, 1.0), 0.0, False", "State.h", function="step"),
    _defined("step gives an array for a number", STEP, "    return State(s.h, s.n, s.h), 0.0, False", "State.x", function="step"),
    _defined("step gives a real number for an integer", STEP, "    return State(x, s.n + 0.6, s.h), 0.0, False  #@", "State.n", "real number", function="step"),
    _defined("step gives a constant beyond 32 bits", STEP, "    return State(x, 3_000_000_000, s.h), 0.0, False  #@", "3000000000", "32 bits", function="step"),
    _defined("step converts a constant beyond 32 bits", STEP, "    return State(x, int32(3_000_000_000), s.h), 0.0, False  #@", "3000000000", "32 bits", function="step"),
    _defined("step gives a complex reward", STEP, "    return s, 1j, False", "reward", "complex", function="step"),
    _defined("step returns _replace", STEP, "    return s._replace(x=x), 0.0, False", "_replace", function="step"),
    _defined("reset returns a tuple", RESET, "    return 0.0, 0, s.h", "State", function="reset"),
    _defined("observe returns a number", OBSERVE, "    return s.x", "tuple of numbers", function="observe"),
    _defined("observe returns too many", OBSERVE, "    return s.x, s.x, s.x", "3 values", function="observe"),
    _defined("observe returns an array within", OBSERVE, "    return s.x, s.h", "tuple of numbers", function="observe"),
    _defined("observe returns text", OBSERVE, "    return s.x, 'a'", "text", function="observe"),
    Case("observe fills too much", (("def observe(s, p):\n    return s.x, s.h[1]", "def observe(s, out):\n    out[2] = s.x  #@"),), ("out of bounds",), "observe"),
    Case("observe fills and returns", (("def observe(s, p):\n    return s.x, s.h[1]", "def observe(s, out):\n    out[0] = s.x\n    return s.x, s.x"),), ("out", "return nothing"), "observe"),
    _defined("mask returns nothing", MASK, "    pass", "True or False", "nothing", function="mask"),
    _defined("mask returns a float", MASK, "    return 0.5", "True or False", function="mask"),
)  # fmt: skip

FILES = (
    _file("empty file", "", "does not define `environment`"),
    _defined("environment a number", "environment = make()", "environment = 3", "environment", "int"),
    _defined("environment a group", "environment = make()", "environment = group()", "environment", "Group"),
    _defined("environment misspelt", "environment = make()", "enviroment = make()", "environment"),
    _defined("function returns None", "environment = make()", "def environment():\n    make()", "None", function="environment"),
    _defined("function raises", "environment = make()", "def environment():\n    raise KeyError('a')  #@", "KeyError", function="environment"),
    _defined("function needs an argument", "environment = make()", "def environment(years):\n    return make()", "'years'", "default", function="environment"),
    _defined("function exits", "environment = make()", "import sys\ndef environment():\n    sys.exit(0)  #@", "SystemExit", function="environment"),
    _defined("function makes a bad space", "environment = make()", "def environment():\n    return make(action=Discrete(0))  #@", "Discrete", function="environment"),
    _defined("function with *args", "environment = make()", "def environment(*years):\n    return make(time_limit=years)  #@", "time_limit", function="environment"),
    _defined("function async", "environment = make()", "async def environment():\n    return make()", "async", function="environment"),
    _defined("exit 0", "NUMBERS =", "import sys\nsys.exit(0)  #@\nNUMBERS =", "SystemExit"),
    _defined("quit()", "NUMBERS =", "raise KeyboardInterrupt  #@\nNUMBERS =", "KeyboardInterrupt"),
    _defined("error at import", "NUMBERS =", "1 / 0  #@\nNUMBERS =", "ZeroDivisionError"),
    _defined("error of many lines", "NUMBERS =", "raise ValueError('a\\n\\nb')  #@\nNUMBERS =", "a b"),
    _defined("error that cannot be shown", "NUMBERS =", "class Odd(Exception):\n    def __str__(self): raise self\nraise Odd  #@\nNUMBERS =", "Odd"),
    _defined("recursion at import", "NUMBERS =", "def deep(): deep()  #@\ndeep()\nNUMBERS =", "RecursionError", function="deep"),
    _defined("memory at import", "NUMBERS =", "np.ones(10**15)  #@\nNUMBERS =", "allocate"),
    _defined("missing package", "import functools", "import no_such_package  #@", "no_such_package"),
    _defined("missing name of warprun", "import functools", "from warprun.environment import Boxes  #@", "Boxes"),
    _defined("relative import beyond", "import functools", "from .. import neighbour  #@", "import"),
    _defined("import of itself", "import functools", "import mine\nmine.State  #@", "State"),
    _defined("syntax", "def helper(x):", "def helper(x)  #@", "expected ':'"),
    _defined("indentation", HALF, "  return x\n    return x  #@", "indent"),
    _defined("null byte", "NUMBERS =", "\0NUMBERS =", "null byte"),
)  # fmt: skip

FACTORY = """\
import torch
from warprun.simulation.simulator import Episodes
from warprun.simulation.trajectory import Trajectory, allocate
from warprun.spec import Box, Discrete, GroupSpec, Spec
from warprun.state import Counter
SPEC = Spec((GroupSpec("walker", 1, Box(1), Discrete(2)),), time_limit=40)
class Corridor:
    def __init__(self, n_envs, horizon, device):
        self.spec, self.n_envs, self.device, self.steps = SPEC, n_envs, device, 0
        self.trajectory = allocate(SPEC, horizon, n_envs, device.torch)
    def prepare(self): pass
    def reset(self): pass
    def collect(self, act, greedy=False): raise RuntimeError("the mistake was not found")
    def episodes(self): return Episodes(0, 0.0, {"walker": 0.0})
    def fault(self, wait=False): return None
    def close(self): pass
    def state(self): return {}
class Corridors:
    spec = SPEC
    def make_simulator(self, *, n_envs, first_env, horizon, seed, device, exploration):
        return Corridor(n_envs, horizon, device)
environment = Corridors()
"""


def _factory(id: str, old: str, new: str, *words: str, function: str | None = None) -> Case:
    assert FACTORY.count(old) == 1, id
    return Case(id, (("", FACTORY.replace(old, new)),), words, function)


FACTORIES = (
    _factory("factory without make_simulator", "def make_simulator", "def make", "environment", "Corridors"),
    _factory("factory with a wrong spec", "    spec = SPEC\n", "    spec = {'walker': 1}\n", "spec", "{'walker': 1}"),
    _factory("factory whose spec raises", "    spec = SPEC\n", "    @property\n    def spec(self): raise OSError('no spec')  #@\n", "no spec", function="spec"),
    _factory("spec name with a slash", '"walker", 1,', '"wal/ker", 1,', "group name", "wal/ker"),
    _factory("make_simulator raises", "        return Corridor(n_envs, horizon, device)", "        raise OSError('no corridor')  #@", "no corridor", function="make_simulator"),
    _factory("make_simulator with fewer arguments", ", device, exploration):\n        return", ", device):\n        return", "exploration"),
    _factory("make_simulator returns None", "        return Corridor(n_envs, horizon, device)", "        pass", "None", "trajectory", function="make_simulator"),
    _factory("simulator without collect", "    def collect(", "    def gather(", "collect", function="make_simulator"),
    _factory("simulator with a number for reset", "    def reset(self): pass", "    reset = 3", "reset", function="make_simulator"),
    _factory("trajectory None", "self.trajectory = allocate(SPEC, horizon, n_envs, device.torch)", "self.trajectory = None", "trajectory", function="make_simulator"),
    _factory("trajectory of another group", "allocate(SPEC, ", "allocate(Spec((GroupSpec('runner', 1, Box(1), Discrete(2)),)), ", "walker", function="make_simulator"),
    _factory("trajectory in double precision", "allocate(SPEC, horizon, n_envs, device.torch)", "allocate(SPEC, horizon, n_envs, device.torch)\n        object.__setattr__(self.trajectory.groups['walker'], 'obs', self.trajectory.groups['walker'].obs.double())", "obs", "float64", function="make_simulator"),
    _factory("trajectory in numpy", "allocate(SPEC, horizon, n_envs, device.torch)", "allocate(SPEC, horizon, n_envs, device.torch)\n        object.__setattr__(self.trajectory.groups['walker'], 'reward', self.trajectory.groups['walker'].reward.numpy())", "reward", "ndarray", function="make_simulator"),
    _factory("trajectory of every second environment", "allocate(SPEC, horizon, n_envs, device.torch)", "allocate(SPEC, horizon, n_envs, device.torch)\n        object.__setattr__(self.trajectory.groups['walker'], 'value', allocate(SPEC, horizon, 2 * n_envs, device.torch).groups['walker'].value[:, ::2])", "value", "contiguous", function="make_simulator"),
    _factory("another n_envs", "self.spec, self.n_envs, self.device, self.steps = SPEC, n_envs,", "self.spec, self.n_envs, self.device, self.steps = SPEC, n_envs + 1,", "n_envs", function="make_simulator"),
    _factory("prepare raises", "    def prepare(self): pass", "    def prepare(self): raise OSError('not ready')  #@", "not ready", function="prepare"),
)  # fmt: skip

CASES = (*SPACES, *GROUPS, *STATES, *LIMITS, *TABLE, *FUNCTIONS, *BODIES, *RETURNS, *FILES, *FACTORIES)
