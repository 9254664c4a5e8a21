"""Pictures by the `render` of an environment with the interface of Gymnasium, with render_mode="rgb_array"."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np

from warprun.errors import UserError, shown
from warprun.runs.recording import Moment
from warprun.simulation.external.recipe import ExternalEnvironment, Recipe, told

_made: dict[int, Rendered] = {}
"""Number of a `Rendering` -> its environment, which `make` has made: a recipe names a function, and gets no object
back."""
_numbers = itertools.count()


MODE = "render_mode"
"""Argument of an environment, with which it is told what `render` is to return."""


class Renders(Protocol):
    """An environment with the interface of Gymnasium that can be rendered."""

    observation_space: object
    action_space: object

    def reset(self, **given: object) -> object: ...

    def step(self, action: object) -> object: ...

    def render(self) -> object: ...

    def close(self) -> None: ...


class Rendered:
    """An environment that is rendered before every n-th step, and before the reset that follows the end of an episode."""

    def __init__(self, env: Renders, every: int) -> None:
        self.env, self._every = env, every
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self._steps = 0
        """Steps since the last reset."""
        self._now: object = None
        """The picture before the last step that was rendered."""
        self._last: object = None
        """The picture at the end of the episode before."""

    def reset(self, **given: object) -> object:
        if self._steps:
            self._last = self._rendered()
        self._steps = 0
        return self.env.reset(**given)

    def step(self, action: object) -> object:
        if self._steps % self._every == 0:
            self._now = self._rendered()
        self._steps += 1
        return self.env.step(action)

    def close(self) -> None:
        self.env.close()

    def picture(self, at_end: bool) -> object:
        """Return the picture that was rendered before the last step, or at the end of the last episode."""
        if not at_end:
            return self._now
        # An episode that was cut goes on in the environment.
        return self._rendered() if self._steps else self._last

    def _rendered(self) -> object:
        """Return the picture of now, or the error of `render`, which is none of the step that it is called in."""
        try:
            return self.env.render()
        except Exception as error:  # the code of an environment can raise anything
            return error


class Rendering:
    """The frames of an environment that renders itself."""

    def __init__(self, environment: ExternalEnvironment, every: int, takes_mode: bool, advice: str) -> None:
        """Render every `every` steps; `takes_mode`: it has the argument MODE; `advice` ends the message if there is no picture.

        Raises UserError for a vectorized environment.
        """
        if environment.recipe.vector:
            raise UserError(f"{environment.title}: vectorized environments have no pictures; use env.vector=false, or record .csv or .npz")
        self._title, self._number = environment.title, next(_numbers)
        self._advice = (f"; {MODE}='rgb_array' is given to a class that takes it" if not takes_mode else "") + advice
        recipe = environment.recipe
        kwargs = recipe.arguments["kwargs"] | ({MODE: "rgb_array"} if takes_mode else {})
        arguments = {
            "maker": recipe.maker,
            "arguments": {**recipe.arguments, "kwargs": kwargs},
            "every": every,
            "number": self._number,
        }
        self.environment = replace(environment, recipe=Recipe(f"{__name__}:make", arguments, False))
        """The environment to play."""

    def follow(self, moment: Moment) -> None:
        """Do nothing: the environment renders its current state."""

    def frame(self, moment: Moment, caption: str) -> np.ndarray:
        """Return a picture [height, width, 3] uint8 of a moment, without a caption. Raises UserError."""
        made = _made[self._number]
        picture = made.picture(moment.taken is None)
        if not hasattr(made.env, "render"):
            raise UserError(f"{self._title} has no render(), so there are no pictures{self._advice}; .csv and .npz need none")
        if isinstance(picture, Exception):
            raise UserError(f"{self._title} cannot be rendered: {told(picture)}{self._advice}") from picture
        if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            raise UserError(
                f"render of {self._title} must return an array [height, width, 3] of uint8; it returned {shown(picture)}{self._advice}"
            )
        return picture

    def close(self) -> None:
        """Forget the environment."""
        _made.pop(self._number, None)


def make(maker: str, arguments: Mapping[str, object], every: int, number: int) -> Rendered:
    """Return a new environment, made by `maker` with `arguments` (see `Recipe`), that is rendered; `Rendering` finds it
    by its number.
    """
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # many render with pygame, which without a screen complains of it
    _made[number] = Rendered(Recipe(maker, arguments, False).make(), every)
    return _made[number]
