"""What the tests of `warprun play` share."""

import csv
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np

from tests.words import words
from warprun.config.compose import compose
from warprun.config.schema import load_environment
from warprun.playing.play import Order, Played, play
from warprun.runs.build import Setup, set_up


def of_tests(name: str, folder: str = "environments") -> list[str]:
    """Return the settings of an environment of the tests."""
    return ["env=cartpole", f"env.name={name}", f"env.module=tests.{folder}.{name}"]


MARKET, PINBALL = of_tests("market"), of_tests("pinball")
SMALL = words("""
    tuned=none device=cpu concurrency.threads=1 agent.network.hidden=[4] n_envs=4 agent.minibatches=1 log.live=false
""")


def made(*overrides: str) -> tuple[Setup, ModuleType]:
    """Return an environment that is ready to be played, and its module."""
    config = compose([*overrides, "tuned=none", "device=cpu", "concurrency.threads=1"])
    return set_up(config), load_environment(config.env)[1]


def play_random(*overrides: str, **order: object) -> list[Played]:
    setup, module = made(*overrides)
    return list(play(setup, module, None, Order(**order)))  # type: ignore[arg-type]


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def numbers(found: Sequence[dict[str, str]], *columns: str) -> np.ndarray:
    """Return columns of a table as [rows, columns] float32; empty cells are NaN."""
    return np.array([[float(row[column] or "nan") for column in columns] for row in found], np.float64).astype(np.float32)


def look_at(file: Path, *overrides: str) -> None:
    """Every picture has ink, and it changes from one frame to the next."""
    from PIL import Image

    play_random(*overrides, every=20, records=(file,))
    with Image.open(file) as film:
        frames = []
        for n in range(film.n_frames):  # type: ignore[attr-defined]
            film.seek(n)
            frames.append(np.asarray(film.convert("RGB"), int))
    assert len(frames) > 1
    for before, after in pairwise(frames):
        assert (after < 128).any()
        top = slice(None, -40)  # without the caption, which always changes
        assert (before[top] != after[top]).any()
