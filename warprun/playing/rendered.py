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
            self._last = self.env.render()
        self._steps = 0
        return self.env.reset(**given)

    def step(self, action: object) -> object:
        if self._steps % self._every == 0:
            self._now = self.env.render()
        self._steps += 1
        return self.env.step(action)

    def close(self) -> None:
        self.env.close()

    def picture(self, at_end: bool) -> object:
        """Return the picture that was rendered before the last step, or at the end of the last episode."""
        if not at_end:
            return self._now
        # An episode that was cut goes on in the environment.
        return self.env.render() if self._steps else self._last


class Rendering:
    """The frames of an environment that renders itself."""

    def __init__(self, environment: ExternalEnvironment, every: int) -> None:
        """Render every `every` steps. Raises UserError for a vectorized environment."""
        if environment.recipe.vector:
            raise UserError(f"{environment.title}: vectorized environments have no pictures; use env.vector=false, or record .csv or .npz")
        self._title, self._number = environment.title, next(_numbers)
        recipe = environment.recipe
        kwargs = recipe.arguments["kwargs"] | {"render_mode": "rgb_array"}
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
        try:
            picture = _made[self._number].picture(moment.taken is None)
        except Exception as error:  # the code of an environment can raise anything
            raise UserError(f"{self._title} cannot be rendered: {told(error)}") from error
        if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            raise UserError(f"render of {self._title} must return an array [height, width, 3] of uint8; it returned {shown(picture)}")
        return picture

    def close(self) -> None:
        """Forget the environment."""
        _made.pop(self._number, None)


def make(maker: str, arguments: Mapping[str, object], every: int, number: int) -> Rendered:
    """Return a new environment, made by `maker` with `arguments` (see `Recipe`), that is rendered; `Rendering` finds it
    by its number.
    """
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # many render with pygame, which without a screen complains of it
    env = Recipe(maker, arguments, False).make()
    if not hasattr(env, "render"):
        raise UserError("it has no render(), so there are no pictures; .csv and .npz need none")
    _made[number] = Rendered(env, every)
    return _made[number]
