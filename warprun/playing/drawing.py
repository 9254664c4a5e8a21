"""Pictures of an environment, drawn with matplotlib by the function `draw` in its module, one for each moment of an
episode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import numpy as np

from warprun.config.environment_copy import Tables
from warprun.config.registry import Defined
from warprun.environment import Environment, Group, arguments
from warprun.errors import ContractError, UserError
from warprun.runs.recording import Moment
from warprun.spec import GroupSpec
from warprun.user_code import errors_of_user, refusal

if TYPE_CHECKING:
    from matplotlib.artist import Artist

T = TypeVar("T")

SIZE, PAD, DPI = (6.0, 4.5), 0.08, 80
"""Inches of a figure, which `draw` may change, and of its margins; pixels per inch."""
CAPTION, GRAY = 11, (89, 89, 89)
"""Pixels of the letters of the caption, and their color."""


class Picture:
    """A figure with axes, and a line of text below them.

    A frame draws the artists that change, and those that cover them, over a copy of the rest.
    """

    def __init__(self) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.font_manager import findfont
        from matplotlib.layout_engine import ConstrainedLayoutEngine
        from PIL import ImageFont

        self._figure = Figure(figsize=SIZE, dpi=DPI, layout=ConstrainedLayoutEngine(w_pad=PAD, h_pad=PAD))
        self._canvas = FigureCanvasAgg(self._figure)
        self._figure.supxlabel(" ", fontsize=72 * CAPTION / DPI)  # the place of the caption
        self._font = ImageFont.truetype(findfont("DejaVu Sans"), CAPTION, layout_engine=ImageFont.Layout.BASIC)
        self.axes = self._figure.add_subplot()
        self._still: object = None
        """The pixels of what has not changed since the first frame."""

    def pixels(self, caption: str) -> np.ndarray:
        """Return the figure as it is now, [height, width, 3] uint8, with a caption."""
        from PIL import Image, ImageDraw

        if self._figure.stale:  # what moves does not count
            self._draw_still()
        else:
            self._canvas.restore_region(self._still)
        for drawn in self._drawn():
            for artist in drawn:
                if artist.get_animated():
                    self._figure.draw_artist(artist)
        picture = Image.fromarray(np.ascontiguousarray(np.asarray(self._canvas.buffer_rgba())[..., :3]))
        # By Pillow, which takes a tenth of the time of matplotlib for a text that always changes.
        ImageDraw.Draw(picture).text((0.01 * picture.width, picture.height - 5), caption, GRAY, self._font, "ls")
        return np.array(picture)

    def _draw_still(self) -> None:
        """Draw the artists that have not changed since the first frame, which lays out the axes."""
        if self._still is not None:
            for drawn in self._drawn():
                first = next((n for n, artist in enumerate(drawn) if artist.stale), len(drawn))
                for artist in drawn[first:]:  # what covers something that moves is drawn again with it
                    artist.set_animated(True)
        self._canvas.draw()
        self._figure.set_layout_engine("none")
        self._still = self._canvas.copy_from_bbox(self._figure.bbox)

    def _drawn(self) -> Iterator[list[Artist]]:
        """Yield the artists of each axes, with its edges, from bottom to top."""
        for axes in self._figure.axes:
            edges = axes.spines.values() if axes.axison else ()
            own = {*axes.lines, *axes.patches, *axes.collections, *axes.images, *axes.texts, *edges}
            yield sorted((artist for artist in axes.get_children() if artist in own), key=lambda artist: artist.zorder)


ARGUMENTS = ("axes", "state", "p", "tables", "observation", "action", "step", "past")
"""Names of the arguments that `draw` can have; docs/policies.md describes them."""
OF_KERNELS = ("state", "p", "tables", "past")
"""The arguments that need an environment made of kernel functions."""

Draws: TypeAlias = Callable[..., object]
"""`draw`, or the function that it returned; the names of its arguments select what it gets."""


class Drawing:
    """Draws frames of the episodes of one environment."""

    def __init__(self, module: ModuleType, environment: Defined, tables: Tables | None, name: str, copied: bool = False) -> None:
        """Find `draw` in the module of the environment called `name`; `copied`: it is that of a run. Raises UserError if it cannot be
        drawn."""
        self._draw = draw_function(module, environment, name, copied)
        if find_spec("matplotlib") is None:
            raise UserError('pictures need matplotlib; run: pip install "warprun[plot]"')
        self._environment, self._tables, self._name = environment, tables, name
        self._show: Draws | None = None
        """The function that `draw` returned, if any: it changes the picture of this episode from frame to frame."""
        self._past = self._remembered(self._draw)
        self._picture = Picture()
        self._shape: tuple[int, ...] | None = None

    def follow(self, moment: Moment) -> None:
        """Keep a moment of the episode. Call it for every moment, before that moment is drawn."""
        if self._past:
            self._past.add(moment)

    def frame(self, moment: Moment, caption: str) -> np.ndarray:
        """Return a picture [height, width, 3] uint8 of a moment, with a line of text below. Raises UserError."""
        with errors_of_user(f"draw of {self._name} fails"):
            if self._show is None or moment.step == 0:
                self._picture = Picture()
                self._show = self._shown(self._call(self._draw, moment), moment)
            if self._show:
                self._call(self._show, moment)
            frame = self._picture.pixels(caption)
        if self._shape not in (None, frame.shape):
            raise UserError(f"draw of {self._name} changes the size of the figure; set the same size in every call")
        self._shape = frame.shape
        return frame

    def close(self) -> None:
        """Do nothing: a drawing holds memory only."""

    def _shown(self, returned: object, moment: Moment) -> Draws | None:
        """Return `returned` if it is a function, else None. Raises ContractError for a function with unknown arguments."""
        if not isinstance(returned, FunctionType):
            return None
        check_arguments(returned, self._environment)
        if self._past is None:
            self._past = self._remembered(returned)
            self.follow(moment)  # the first one of an episode
        return returned

    def _remembered(self, function: Draws) -> Past | None:
        """Return a new `Past` if a function has the argument `past`, else None."""
        return Past(self._environment.groups) if isinstance(self._environment, Environment) and "past" in arguments(function) else None

    def _call(self, function: Draws, moment: Moment) -> object:
        return function(**{name: self._argument(name, moment) for name in arguments(function)})

    def _argument(self, name: str, moment: Moment) -> object:
        environment, groups = self._environment, self._environment.spec.groups
        if name == "axes":
            return self._picture.axes
        if name == "p":
            return moment.params
        if name == "tables":
            return self._tables
        if name == "step":
            return moment.step
        if name == "observation":
            return _single({g.name: _one(g.size, moment.observations[g.name]) for g in groups})
        if name == "action":
            taken = moment.taken
            return _single({g.name: None if taken is None else _action(g, taken.actions[g.name]) for g in groups})
        if name == "past":
            assert self._past
            return _single(self._past.states())
        assert isinstance(environment, Environment)
        return _single({group.name: state_of(group, moment.states[group.name]) for group in environment.groups})


def draw_function(module: ModuleType, environment: Defined, name: str, copied: bool) -> Draws:
    """Return the function `draw` of an environment's module; `copied`: it is that of a run.

    Raises UserError if there is none, or if it has unknown arguments.
    """
    found = vars(module).get("draw")
    if found is None:
        raise UserError(f"env={name} has no pictures: {how_to_draw(module, environment, copied)}; .csv and .npz need none")
    if not isinstance(found, FunctionType):
        raise UserError(f"{module.__file__}: draw must be a function, {signature(environment)}")
    try:
        check_arguments(found, environment)
    except ContractError as error:
        raise UserError(str(error)) from None
    return found


def signature(environment: Defined) -> str:
    """Return how `draw` begins for an environment of this kind."""
    return f"draw({'axes, state, p' if isinstance(environment, Environment) else 'axes, observation'})"


def how_to_draw(module: ModuleType, environment: Defined, copied: bool) -> str:
    """Return what gives an environment pictures; `copied`: it is that of a run, which no edit reaches."""
    where = f"beside `environment` in {module.__file__}, see docs/policies.md"
    if copied:
        where = "beside `environment` for later runs; this run keeps its own copy of the environment (docs/policies.md)"
    return f"define {signature(environment)} {where}"


def check_arguments(function: Draws, environment: Defined) -> None:
    """Raise ContractError if `draw`, or a function that it returned, has unknown arguments."""
    of_kernels = isinstance(environment, Environment)
    known = [argument for argument in ARGUMENTS if of_kernels or argument not in OF_KERNELS]
    for argument in arguments(function):
        if argument not in known:
            raise refusal(function, f"unknown argument {argument!r}; it can have {', '.join(known)}")


def state_of(group: Group, fields: Mapping[str, np.ndarray]) -> NamedTuple:
    """Return the state of a group: numbers for one actor, else arrays [A], and [length, A] for array fields."""
    return group.state._make(_by_actor(group, fields[field.name], 0) for field in group.fields)


def _by_actor(group: Group, values: np.ndarray, axis: int) -> np.ndarray:
    """Return a field without its axis of actors if there is one actor, else with this axis moved to the end."""
    return values.take(0, axis) if group.size == 1 else np.moveaxis(values, axis, -1)


def _one(actors: int, values: np.ndarray) -> np.ndarray:
    return values[0] if actors == 1 else values


def _action(group: GroupSpec, values: np.ndarray) -> np.ndarray:
    """Return the action of a group, [A] for `Discrete`, else [A, C]; without the first axis for a single actor."""
    return _one(group.size, values.reshape(len(values), *group.action.shape))


def _single(by_group: Mapping[str, T]) -> T | Mapping[str, T]:
    """Return the value of the only group, or those of all by name."""
    return next(iter(by_group.values())) if len(by_group) == 1 else by_group


class Past:
    """The states of an episode so far, in arrays that double their length as it goes on."""

    def __init__(self, groups: tuple[Group, ...]) -> None:
        self._groups = groups
        self._arrays: dict[str, dict[str, np.ndarray]] = {}
        self._count = 0

    def add(self, moment: Moment) -> None:
        self._count = moment.step + 1
        for group, fields in moment.states.items():
            own = self._arrays.setdefault(group, {})
            for name, values in fields.items():
                array = own.get(name)
                if array is None or len(array) < self._count:
                    grown = np.empty((max(64, 2 * moment.step), *values.shape), values.dtype)
                    grown[: moment.step] = 0 if array is None else array[: moment.step]
                    own[name] = array = grown
                array[moment.step] = values

    def states(self) -> dict[str, NamedTuple]:
        """Return group -> its states; time is the first axis of every field."""
        return {group.name: self._of(group) for group in self._groups}

    def _of(self, group: Group) -> NamedTuple:
        fields = self._arrays[group.name]
        return group.state._make(_by_actor(group, fields[field.name][: self._count], 1) for field in group.fields)
