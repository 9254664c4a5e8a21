"""Specs, on which agents and simulators agree: spaces, groups of actors, masks, the time limit. No numba, no torch.

All classes check their values and raise ContractError.
"""

from __future__ import annotations

import keyword
import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import numpy as np

from warprun.errors import ContractError, shown

MAX_SIZE = 2**24
"""Largest size of a space and of an array field, and largest number of actors: random streams number the actors in 24 bits."""
MAX_STEPS = 2**31 - 1
"""Largest time limit: kernels count steps in 32 bits."""
FLOAT32_MAX = float(np.finfo(np.float32).max)
BYTE = 255.0
"""The largest number of a byte, which stands for 1 in images and in replay memory."""


def whole_number(what: str, value: object, largest: int = MAX_SIZE) -> int:
    """Return `value`, a Python or NumPy integer from 1 to `largest`, as an int. Raises ContractError, which begins with `what`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value <= largest:
        raise ContractError(f"{what} must be a whole number from 1 to {largest:,}, not {shown(value)}")
    return int(value)


def _start(what: str, value: object, n: int) -> int:
    """Return the number of the first of `n` actions as an int. Raises ContractError, which begins with `what`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not -(2**31) <= value <= 2**31 - n:
        raise ContractError(f"{what} must be a whole number such that actions fit into 32 bits, not {shown(value)}")
    return int(value)


def is_name(value: object) -> bool:
    """Return whether kernels can use `value` in the names of variables."""
    return isinstance(value, str) and value.isidentifier() and not keyword.iskeyword(value)


ActionKind = Literal["choices", "reals"]
"""The numbers of an action. choices: whole numbers, each drawn from the categorical distribution of its logits. reals: each drawn from a
normal distribution. What needs torch or writes kernels has one table by kind in its room; all else follows from what a `Space` says."""


@dataclass(frozen=True)
class Space:
    """Actions of choices, which a policy counts from 0 and the environment from `starts`, and of real numbers within `bounds`."""

    kind: ClassVar[ActionKind]
    dtype: ClassVar[str]
    """Of the actions of a policy."""
    choices: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Number of values of each choice; none for real numbers."""
    starts: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The number that the environment counts each choice from."""
    reals: int = field(init=False, repr=False, compare=False)
    """Components that are real numbers."""
    shape: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Shape of one action for environments and for programs with a policy: () is a number, (C,) a row or a tuple of the components."""

    @property
    def components(self) -> int:
        """Numbers that make one action."""
        return len(self.choices) + self.reals

    @property
    def outputs(self) -> int:
        """Numbers that a policy gives for one actor: the logits of all choices, or the means and then the log standard deviations."""
        return sum(self.choices) + 2 * self.reals

    @property
    def mask_entries(self) -> int:
        """Entries of an action mask, one for each logit; 0: there can be none."""
        return sum(self.choices)

    def bounds(self) -> tuple[tuple[float, float], ...]:
        """Return (low, high) of every real number."""
        return ()

    def _know(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Discrete(Space):
    """One of `n` actions. A policy counts them from 0, the environment from `start`."""

    kind = "choices"
    dtype = "int32"

    n: int
    start: int = 0

    def __post_init__(self) -> None:
        n = whole_number("n of Discrete(n)", self.n)
        start = _start("start of Discrete(n, start)", self.start, n)
        self._know(n=n, start=start, choices=(n,), starts=(start,), reals=0, shape=())


@dataclass(frozen=True)
class MultiDiscrete(Space):
    """Several choices at once, choice j one of `nvec[j]`. A policy counts them from 0, the environment from `start[j]`."""

    kind = "choices"
    dtype = "int32"

    nvec: tuple[int, ...]
    start: tuple[int, ...] = ()
    """Empty: 0 for each."""

    def __post_init__(self) -> None:
        what = "nvec of MultiDiscrete(nvec)"
        if not isinstance(self.nvec, tuple) or not self.nvec:
            raise ContractError(f"{what} must be a tuple of at least one whole number, such as (3, 2), not {shown(self.nvec)}")
        nvec = tuple(whole_number(f"each number in {what}", n) for n in self.nvec)
        whole_number(f"the sum of {what}", sum(self.nvec))
        first = self.start or (0,) * len(self.nvec)
        if not isinstance(first, tuple) or len(first) != len(self.nvec):
            raise ContractError(f"start of MultiDiscrete(nvec, start) must be a tuple of {len(self.nvec)} numbers, not {shown(self.start)}")
        each = (_start("each number in start of MultiDiscrete(nvec, start)", *pair) for pair in zip(first, self.nvec, strict=True))
        start = tuple(each)
        self._know(nvec=nvec, start=start, choices=nvec, starts=start, reals=0, shape=(len(nvec),))


@dataclass(frozen=True)
class Part:
    """An observation, or a part of one, as the environment gives it: an array of numbers, of choices, or several parts."""

    shape: tuple[int, ...] = ()
    """Of an array."""
    choices: tuple[int, ...] = ()
    """Number of values of each choice of an array of choices: a row has each as a one-hot vector."""
    start: tuple[int, ...] = ()
    """The smallest value of each choice."""
    image: bool = False
    """Whether it is an array of bytes: a row has them divided by 255."""
    names: tuple[str, ...] = ()
    """Of the parts of a dict; those of a tuple have none."""
    parts: tuple[Part, ...] = ()
    """A row has one after the other."""

    def __post_init__(self) -> None:
        for number in (*self.shape, *self.choices):
            whole_number("each number of an observation's shape", number)
        if self.choices and not len(self.choices) == len(self.start) == math.prod(self.shape):
            raise ContractError(f"an observation has {math.prod(self.shape)} choices, and {len(self.choices)} numbers of values")
        if self.names and len(self.names) != len(self.parts):
            raise ContractError(f"an observation has {len(self.parts)} parts and {len(self.names)} names")

    @property
    def size(self) -> int:
        """Columns of a row that it takes."""
        return sum(part.size for part in self.parts) if self.parts else sum(self.choices) or math.prod(self.shape)

    @property
    def arrays(self) -> tuple[Part, ...]:
        """The arrays that it consists of, in the order of the columns."""
        return tuple(array for part in self.parts for array in part.arrays) if self.parts else (self,)


FieldKind = Literal["real", "image", "binary"]


@dataclass(frozen=True)
class Field:
    """Columns of an observation that are the cells of a line or a picture, with channels: what convolutions read."""

    first: int
    """The first column; the others follow it."""
    shape: tuple[int, ...]
    """(channels, length) or (channels, height, width)."""
    channels_last: bool = False
    """Whether the order in the columns is that of (height, width, channels)."""
    kind: FieldKind = "real"
    """real: any numbers. image: whole numbers / 255, as of a picture of uint8. binary: 0 and 1. Replay memory holds both in bytes."""

    def __post_init__(self) -> None:
        if isinstance(self.first, bool) or not isinstance(self.first, int) or not 0 <= self.first < MAX_SIZE:
            raise ContractError(f"first of a Field must be the number of a column, not {shown(self.first)}")
        if not isinstance(self.shape, tuple) or len(self.shape) not in (2, 3):
            raise ContractError(f"shape of a Field must be (channels, length) or (channels, height, width), not {shown(self.shape)}")
        object.__setattr__(self, "shape", tuple(whole_number("each number in the shape of a Field", n) for n in self.shape))
        if self.kind not in get_args(FieldKind):
            raise ContractError(f"kind of a Field must be {', '.join(get_args(FieldKind))}, not {shown(self.kind)}")

    @property
    def columns(self) -> slice:
        """The columns of a row that it takes."""
        return slice(self.first, self.first + math.prod(self.shape))

    @property
    def order(self) -> tuple[int, ...]:
        """The shape in the order of the columns."""
        return (*self.shape[1:], self.shape[0]) if self.channels_last else self.shape

    @property
    def cell_axes(self) -> tuple[int, ...]:
        """The axes of `order` beside that of the channels."""
        return tuple(range(len(self.shape) - 1) if self.channels_last else range(1, len(self.shape)))


@dataclass(frozen=True, init=False)
class Box(Space):
    """`size` real numbers between `low` and `high` (numbers for all components, or a tuple with one each).

    Of an observation some columns can be `fields`. Box((C, L)) and Box((C, H, W)) are short for one field of all columns.

    A policy acts in its own units. Of a component whose two bounds are finite, -1..1 maps linearly to low..high; what lies outside is
    clipped. Where a bound is infinite the units are those of the environment: the action is passed through, and clipped at the
    other bound if that is finite.
    """

    kind = "reals"
    dtype = "float32"

    size: int
    low: float | tuple[float, ...]
    high: float | tuple[float, ...]
    fields: tuple[Field, ...]
    """The columns that are fields, in their order."""

    def __init__(
        self,
        size: int | tuple[int, ...],
        low: float | tuple[float, ...] = -np.inf,
        high: float | tuple[float, ...] = np.inf,
        fields: tuple[Field, ...] = (),
    ) -> None:
        if isinstance(size, tuple):
            if fields:
                raise ContractError(f"Box({size}) is one field; with other fields give the number of columns")
            fields = (Field(0, size),)
            size = math.prod(fields[0].shape)
        size = whole_number("size of Box(size, low, high)", size)
        self._know(size=size, low=low, high=high, fields=fields, choices=(), starts=(), reals=size, shape=(size,))
        if not isinstance(self.fields, tuple) or not all(isinstance(field, Field) for field in self.fields):
            raise ContractError(f"fields of a Box must be a tuple of Field, such as (Field(0, (3, 10, 10)),), not {shown(self.fields)}")
        ends = [0, *(part.columns.stop for part in self.fields)]
        for part, end in zip(self.fields, ends, strict=False):
            if part.first < end or part.columns.stop > self.size:
                where = f"{part.first} to {part.columns.stop - 1}"
                raise ContractError(f"a field takes the columns {where} of a Box of {self.size}, after {end} that others take")
        for name, bound in (("low", self.low), ("high", self.high)):
            for number in bound if isinstance(bound, tuple) else (bound,):
                if isinstance(number, bool) or not isinstance(number, int | float | np.integer | np.floating):
                    raise ContractError(f"{name} of Box(size, low, high) must be a number or a tuple of numbers, not {shown(bound)}")
            if isinstance(bound, tuple) and len(bound) != self.size:
                raise ContractError(f"a Box has {_count(self.size, 'component')} and {_count(len(bound), 'bound')} in {name}")
        for low, high in dict.fromkeys(self.bounds()):
            if not low <= high or low == np.inf or high == -np.inf or any(FLOAT32_MAX < abs(b) < np.inf for b in (low, high)):
                raise ContractError(f"a Box has bounds {low:g} to {high:g}; float32 has no numbers between them")

    @property
    def bytes(self) -> bool:
        """Whether a byte can hold each number of a row, x as the whole number 255 x."""
        return not self.rest and all(field.kind != "real" for field in self.fields)

    @property
    def rest(self) -> tuple[slice, ...]:
        """The columns that are no field."""
        ends = [0, *(field.columns.stop for field in self.fields)]
        begins = [*(field.first for field in self.fields), self.size]
        return tuple(slice(*pair) for pair in zip(ends, begins, strict=True) if pair[0] < pair[1])

    def bounds(self) -> tuple[tuple[float, float], ...]:
        """Return (low, high) of every component."""
        if not isinstance(self.low, tuple) and not isinstance(self.high, tuple):
            return ((float(self.low), float(self.high)),) * self.size  # one pair, since images have many components
        low = self.low if isinstance(self.low, tuple) else (self.low,) * self.size
        high = self.high if isinstance(self.high, tuple) else (self.high,) * self.size
        return tuple((float(a), float(b)) for a, b in zip(low, high, strict=True))


PolicyKind = Literal["sampled", "explored", "squashed"]
"""How actions come from what the policies of an agent give. sampled: from a distribution. explored: around the values of actions, or around
actions within -1..1. squashed: from a normal distribution, means and then log standard deviations, whose draws tanh takes to -1..1."""
OBS_LIMIT = 10.0
"""Normalized observations stay within -OBS_LIMIT .. OBS_LIMIT."""
SQUASHED_LOG_STD = (-20.0, 2.0)
"""Limits of the log standard deviations of squashed policies, those of the authors of SAC (github.com/rail-berkeley/softlearning)."""


@dataclass(frozen=True)
class GroupSpec:
    """Actors that share their spaces and one policy."""

    name: str
    size: int
    """Number of actors."""
    observation: Box
    action: Space
    masked: bool = False
    """Whether the simulator gives an action mask with every observation."""
    leaves: bool = False
    """Whether an actor can leave an episode before it ends; the simulator then says who is in it (`GroupTrajectory.alive`)."""
    given: Part | None = None
    """What the environment gives in the place of a row, which the simulator makes of it; None: it gives rows."""

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise ContractError(f"group name {shown(self.name)} is not a Python identifier; use letters, digits and underscores")
        object.__setattr__(self, "size", whole_number(f"size of group {self.name!r}", self.size))
        if not isinstance(self.observation, Box):
            raise ContractError(f"observation of group {self.name!r} must be a Box, such as Box(2), not {shown(self.observation)}")
        if self.given is not None and self.given.size != self.observation.size:
            raise ContractError(f"observation of group {self.name!r} has {self.observation.size} numbers, and its parts {self.given.size}")
        if not isinstance(self.action, Space):
            given = shown(self.action)
            raise ContractError(
                f"action of group {self.name!r} must be a Discrete, a MultiDiscrete or a Box, such as Discrete(2), not {given}"
            )
        if isinstance(self.action, Box) and self.action.fields:
            raise ContractError(f"action of group {self.name!r} has fields, which are for observations; write Box({self.action.size})")
        if self.masked and not self.action.mask_entries:
            raise ContractError(f"group {self.name!r} has a mask, which is for choices; of {shown(self.action)} remove it")

    @property
    def masked_actions(self) -> int:
        """Entries of the action mask of one actor; 0 without a mask."""
        return self.action.mask_entries if self.masked else 0

    @property
    def acting_outputs(self) -> int:
        """Numbers that a network computes for one actor: logits, values of actions, means or actions, but no standard deviations."""
        return self.action.outputs - self.action.reals


@dataclass(frozen=True)
class Spec:
    """An environment as an agent knows it."""

    groups: tuple[GroupSpec, ...]
    time_limit: int | None = None
    """Steps after which an episode is truncated; None: never."""
    early_truncation: bool = False
    """Whether the simulator can truncate an episode at any step, also before the time limit."""

    def __post_init__(self) -> None:
        if not isinstance(self.groups, tuple) or not all(isinstance(group, GroupSpec) for group in self.groups):
            raise ContractError(f"groups of a Spec must be a tuple of GroupSpec, such as (GroupSpec(...),), not {shown(self.groups)}")
        if not self.groups:
            raise ContractError("an environment needs at least one group")
        names = [group.name for group in self.groups]
        for name in names:
            if names.count(name) > 1:
                raise ContractError(f"group name {name!r} is taken by another group")
        whole_number("the number of actors of all groups", sum(group.size for group in self.groups))
        if self.time_limit is not None:
            object.__setattr__(self, "time_limit", whole_number("time_limit", self.time_limit, MAX_STEPS))

    def group(self, name: str) -> GroupSpec:
        """Return the group called `name`. Raises KeyError."""
        return {group.name: group for group in self.groups}[name]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
