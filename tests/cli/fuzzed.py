"""Command lines that no user should need to write, made from a seed."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import TypeVar

from tests.words import words
from warprun.algorithms import AGENTS, config_class
from warprun.config.registry import options
from warprun.config.schema import Config

T = TypeVar("T")
GROUPS = ("env", "agent", "concurrency", "experiment", "tuned")
NAMES = [name for group in ("env", "agent", "experiment", "tuned") for name in options(group)] + words(
    "single none null PPO latest outputs"
)
CHARACTERS = "abcxyzXYZ0189_-.,:;=+~*?!@#$%^&|/\\ \t'\"`()[]{}<>äß€中😀\u202e\u0301\u2028\udc80\x1b\x00\x07\n"
INTERPOLATIONS = words(r"""
    ${oc.env:HOME} ${oc.env:SECRET,x} ${n_envs} ${agent.horizon} ${.name} ${..seed} ${hydra:job.num} ${now:%Y} ${ ${}
    ${env} ${agent} ${launcher} ${concurrency} ${eval} ${engine} ${log} ${checkpoint} ${origin}
    ${agent.network} ${agent.groups} ${env.kwargs} ${sweep} ${tune} ${oc.env:NOPE} ${seed
    ${oc.${name}:HOME} ${oc.decode:'${oc.env:HOME}'} \${seed} ${a.b.c} ${name} ${env.params}
    ${oc.create:{a:1}} ${hydra.runtime.cwd} ${agent.${name}} ${seed}${seed} $HOME ${run_dir}
""")
WORDS = [
    "",
    " ",
    "a b",
    "1e6 steps",
    *words("""
    0 1 -1 2 1e3 1e4 1e99 1e400 -1e999 nan inf -inf NaN .5 0.5 1_0 0x10 1e-320 9223372036854775807 9223372036854775808
    18446744073709551616 -9223372036854775809 true False null none None yes [] {} [64,64] [[64]] {a:1} {length:0.7}
    {length:[0.4,0.6]} [,] {a:} {:1} [1,2 1] } ' " 'a "b" '' a=b == ../.. / . .. ~ ~/x /dev/null /proc/self/mem file
    file/x x/ ./x.py math os.path [/usr] [bold]x[/bold] :smile: 5% 10s never -5% 0s nan% 1e999s tanh adam cpu cuda auto
    gae nstep ou mlp a:b reset stop a.b:c
"""),
]
LONG = "x" * 300
PLACES = [
    *(start + name for start in ("", "new/", "new/new/", "folder/", "../", "./") for name in (LONG, "a\0b", ".", "file", "folder", "x")),
    *words("""
    file/x file/x/y folder/ folder/file .. ~ ~/x link link/x loop loop/x x/../../y x:y x;y -x --x x=y
    """),
    "/".join(["x" * 200] * 30),
    "ß" * 150,
]
"""Names and paths that no file can have, or that something else has."""
SYSTEM = words("/proc /proc/x /proc/self/fd/0 /dev/null /dev/null/x /dev/full")
ENDINGS = ("", ".onnx", ".csv", ".gif", ".yaml", ".py", ".npz", ".html", ".pt2", ".tar")
NAMED = words("""
    experiment env agent launcher tuned concurrency name run_dir output_root sweep_dir resume env.module agent.network.module log.project
""")
"""Settings that are names of files or become some."""
PLACED = words("""
    eval,checkpoint= eval,output_root= eval, play,record= play,record=[ play,env= play,checkpoint= play, export,latest export,checkpoint=
    report,out= report, status, new, data, scripts, check,env= check, job, bench,out=
""")
"""Verbs, and what stands before a place that they take."""
FUNCTIONS = words("""
    range choice interval glob shuffle sort tag int float str bool extend_list list exec __import__
""")
VERBS = ("train", "eval", "bench", "data", "envs")
FLAGS = words("""
    -m --multirun --cfg -c job hydra all --info -i searchpath config defaults --resolve --package -p agent _global_
    env.params --shell-completion -sc install=bash query=bash --hydra-help --help -h --version -- - --cfg=job --info=all
    --config-path --config-name=x --config-dir=/ --run -r -mm --experimental-rerun=x --- -m=1
""")


def setting_keys(agent: str) -> list[str]:
    """Return the key of every setting of a run with an agent."""
    return [*_keys(Config, ""), *(f"agent.{key}" for key in _keys(config_class(agent), ""))]


def _keys(schema: type, prefix: str) -> Iterator[str]:
    made = schema()
    for field in fields(schema):
        if field.name in ("origin", "agent"):
            continue
        value = getattr(made, field.name)
        if is_dataclass(value):
            yield from _keys(type(value), f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"


KEYS = sorted({key for agent in AGENTS for key in setting_keys(agent)})
FREE = [
    *words("""
    env.params.length env.randomize.length env.params env.randomize env.options env.size env.options.size agent.groups
    agent.groups.agent agent.groups.agent.gamma agent.groups.agent.network.hidden agent.network.options
    agent.network.options.x hydra.run.dir hydra.sweep.dir hydra.launcher._target_ hydra/launcher hydra.searchpath hydra
    hydra.job.chdir hydra.verbose agent@x agent@agent.groups.a env@_global_ defaults _target_ env._name_ /env
    env/cartpole tuned@:x env:agent . env. .env env..params agent.network.hidden[0] agent.network.hidden.0 origin
    origin.tuned origin.overrides env agent
"""),
    "",
]


class Fuzzer:
    """Make lists of arguments; the same seed gives the same lists."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.mild = self.random.random() < 0.7
        """Keep to the syntax, so that the values are reached."""

    def arguments(self) -> list[str]:
        """Return the arguments of one command."""
        roll = self.random.random()
        found = [self.override() for _ in range(self.random.choice((0, 1, 1, 1, 2, 2, 3, 5)))]
        if roll < 0.08:
            found = [
                "eval",
                *self.some((self.text, lambda: f"{self.pick(('episodes', 'greedy', 'device', 'seed'))}={self.value()}")),
                *found,
            ]
        elif roll < 0.14:
            found = ["bench", *found, *self.some((lambda: f"{self.pick(('sizes', 'threads', 'out'))}={self.value()}",))]
        elif roll < 0.17:
            found = ["data", *self.some((self.text, lambda: self.mutated(self.pick(("cartpole", "pendulum")))))]
        elif roll < 0.19:
            found = ["envs", *self.some((self.text,))[:1], *found]
        elif roll < 0.22:
            found = [self.mutated(self.pick(VERBS)), *found]
        elif roll < 0.26:
            found = ["train", *found]
        elif roll < 0.34:
            verb, _, before = self.pick(PLACED).partition(",")
            found = [verb, *([f"{before}{self.place()}"] if before[-1:] in ("", "=", "[") else [before, self.place()])]
        if self.random.random() < 0.12:
            found.insert(self.random.randint(0, len(found)), "-m")
        while self.random.random() < 0.1:
            found.insert(self.random.randint(0, len(found)), self.pick(FLAGS))
        return found

    def override(self) -> str:
        """Return one override, or something near to one."""
        roll = self.random.random()
        if roll < 0.03 and not self.mild:
            return self.text()
        if roll < 0.2:
            group = self.pick(GROUPS)
            return f"{self.prefix()}{group}={self.pick((self.value, lambda: self.pick(NAMES), lambda: self.mutated(self.pick(NAMES))))()}"
        if roll > 0.9:
            return f"{self.prefix()}{self.pick(NAMED)}={self.place()}"
        if self.mild:
            return f"{self.pick(KEYS if roll < 0.8 else FREE[:14])}={self.value()}"
        key = self.pick(KEYS) if roll < 0.75 else self.pick(FREE) if roll < 0.9 else self.mutated(self.pick(KEYS))
        return f"{self.prefix()}{key}{self.pick(('=',) * 12 + ('==', '', ' = ', '=,'))}{self.value()}"

    def prefix(self) -> str:
        return "" if self.mild else self.pick(("",) * 12 + ("+", "++", "~", "+++", " ", "-", "~~"))

    def value(self, depth: int = 0) -> str:
        """Return the value of an override."""
        if self.mild and self.random.random() < 0.8:
            return self.pick((self.word, self.word, self.word, self.sweep, lambda: self.pick(INTERPOLATIONS)))()
        choices = [self.word, self.word, self.word, lambda: self.pick(INTERPOLATIONS), self.text, self.big, self.deep, self.sweep]
        if depth < 3:
            choices += [
                lambda: "[" + ",".join(self.some((lambda: self.value(depth + 1),))) + "]",
                lambda: "{" + ",".join(f"{self.pick(('length', 'a', '1', 'gamma'))}:{self.value(depth + 1)}" for _ in range(2)) + "}",
                lambda: f"{self.pick(FUNCTIONS)}({','.join(self.some((lambda: self.value(depth + 1),)))})",
                lambda: ",".join(self.some((lambda: self.value(depth + 1),))),
                lambda: self.pick("'\"") + self.value(depth + 1) + self.pick("'\""),
            ]
        return self.pick(choices)()

    def place(self) -> str:
        """Return a path, or something near to one."""
        return self.pick(SYSTEM) if self.random.random() < 0.1 else self.pick(PLACES) + self.pick(ENDINGS)

    def word(self) -> str:
        return self.pick(WORDS)

    def text(self) -> str:
        return "".join(self.pick(CHARACTERS) for _ in range(self.random.choice((1, 2, 3, 5, 8, 20, 300))))

    def big(self) -> str:
        digits = self.random.choice((18, 20, 39, 41, 400, 5000))
        return self.pick(("", "-", "0.", "1e", "[", "x")) + self.pick("19") * digits

    def deep(self) -> str:
        left, right = self.pick(("[]", "{}", "()", ("{a:", "}"), ("int(", ")"), ("[1,", "]"), ("${", "}")))
        depth = self.random.choice((5, 9, 11, 50, 300, 2000))
        return left * depth + self.pick(("", "1", "a")) + right * self.random.choice((depth, depth, depth - 1, 0))

    def sweep(self) -> str:
        numbers = [self.pick(("0", "1", "2", "-1", "0.5", "1e3", "1000000000000", "1e-9", "nan", "inf", "a")) for _ in range(3)]
        low, high, step = numbers
        return self.pick(
            words(f"""
            range({",".join(numbers[: self.random.randint(1, 3)])}) shuffle(range({low},{high},{step})) sort(range({low},{high}))
            interval({low},{high}) glob(*) glob(x*,exclude=y) choice(1,2) choice(range(1,2),3) 1,2 1,[2],{{a:3}}
            choice([/usr],a) shuffle(3,1,2) sort(b,1) tag(a,range(1,3)) ppo,a2c 1,range(0,3) [range(0,3)] {{a:glob(*)}}
            {",".join("1" * 300)}
        """)
        )

    def mutated(self, name: str) -> str:
        """Return a name with one to three edits."""
        for _ in range(self.random.randint(1, 3)):
            name = edited(name, self.random, CHARACTERS)
        return name

    def some(self, makers: Sequence[Callable[[], str]]) -> list[str]:
        """Return up to three texts."""
        return [self.pick(makers)() for _ in range(self.random.randint(0, 3))]

    def pick(self, choices: Sequence[T]) -> T:
        return self.random.choice(choices)


def edited(name: str, chance: random.Random, characters: str) -> str:
    """Return a name after one edit: a character inserted, deleted or replaced, or two neighbours exchanged."""
    place = chance.randrange(max(len(name), 1))
    kind = chance.choice(("insert", "delete", "replace", "transpose"))
    if kind == "transpose" and place + 1 < len(name):
        return name[:place] + name[place + 1] + name[place] + name[place + 2 :]
    return name[:place] + ("" if kind == "delete" else chance.choice(characters)) + name[place + (kind != "insert") :]
