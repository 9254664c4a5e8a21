"""Play episodes and record them: the work of `warprun play` after its arguments are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import numpy as np

from warprun.config.environment_copy import find
from warprun.config.external import known_arguments
from warprun.environment import Environment
from warprun.playing import paths
from warprun.playing.drawing import Drawing, how_to_draw
from warprun.playing.episodes import RandomPolicy, episodes_of
from warprun.playing.films import find_ffmpeg, gif, html, mp4
from warprun.playing.rendered import MODE, Rendering
from warprun.playing.tables import csv_table, npz_arrays
from warprun.runs.build import Setup
from warprun.runs.recording import ChoosesActions, Moment
from warprun.simulation.external.recipe import ExternalEnvironment
from warprun.simulation.external.registered import Registered
from warprun.state import derived_seed


@dataclass(frozen=True)
class Order:
    """The episodes to play, and the files to record them in."""

    episodes: int = 1
    seed: int = 0
    greedy: bool = True
    """Take the most probable actions; false: sample them."""
    records: tuple[Path, ...] = ()
    every: int = 1
    """Steps from one frame of a film to the next."""
    fps: float = 25.0
    """Frames per second."""


@dataclass(frozen=True)
class Played:
    """The outcome of one episode."""

    returns: dict[str, float]
    """Per group, the mean over actors of the sum of rewards."""
    steps: int
    end: str
    """terminated, truncated, cut after `eval.max_steps` steps, or fault: ended by one, with `env.on_nan=reset`."""


def play(setup: Setup, module: ModuleType, policy: ChoosesActions | None, order: Order) -> Iterator[Played]:
    """Play episodes, record them, and yield the outcome of each; `policy` None: uniform random actions.

    The files of `order` are complete when the iterator ends; if it fails, they keep their old content. Raises UserError, and TrainingFailed
    for a number that is not finite.
    """
    films = [path for path in order.records if path.suffix in paths.FILMS]
    if any(path.suffix == ".mp4" for path in films):
        find_ffmpeg()
    drawing = _pictures(setup, module, order.every) if films else None
    if isinstance(drawing, Rendering):
        setup = replace(setup, environment=drawing.environment)
    greedy = order.greedy or policy is None
    varied = tuple(setup.config.env.randomize) if isinstance(setup.environment, Environment) else ()
    acting = policy or RandomPolicy(setup.environment.spec, derived_seed(order.seed, "random policy"))
    # The seed of `warprun eval`, so that its episodes can be looked at.
    episodes = episodes_of(setup, acting, derived_seed(order.seed, "eval"), order.episodes, greedy)
    with ExitStack() as stack:
        stack.enter_context(closing(episodes))
        if drawing:
            stack.enter_context(closing(drawing))
        adds = [stack.enter_context(_TABLES[path.suffix](path, varied)) for path in order.records if path.suffix in paths.TABLES]
        frames = [stack.enter_context(_FILMS[path.suffix](path, order.fps)) for path in films]
        for episode in range(order.episodes):
            tally = Tally([group.name for group in setup.environment.spec.groups])
            for moment in episodes.moments(episode):
                for add in adds:
                    add(episode, moment)
                if drawing:
                    drawing.follow(moment)
                    if tally.end != "fault" and (moment.step % order.every == 0 or moment.taken is None):
                        frame = drawing.frame(moment, tally.caption(episode, order.episodes, moment.step))
                        for show in frames:
                            show(frame)
                tally.count(moment)
            yield Played(tally.returns, tally.steps, tally.end)


_TABLES = dict(zip(paths.TABLES, (csv_table, npz_arrays), strict=True))
_FILMS = dict(zip(paths.FILMS, (gif, mp4, html), strict=True))
"""Suffix -> writer of such a file."""


class Tally:
    """The returns and steps of an episode so far."""

    def __init__(self, groups: Sequence[str]) -> None:
        self.returns = dict.fromkeys(groups, 0.0)
        self.steps = 0
        self.end = "cut"
        """See `Played`."""

    def count(self, moment: Moment) -> None:
        if moment.taken is None:
            return
        for group, rewards in moment.taken.rewards.items():
            self.returns[group] += float(np.mean(rewards, dtype=np.float64))
        self.steps += 1
        ends = {"fault": moment.taken.replaced, "terminated": moment.taken.terminated, "truncated": moment.taken.truncated}
        self.end = next((end for end, has_come in ends.items() if has_come), self.end)

    def caption(self, episode: int, episodes: int, step: int) -> str:
        """Return a line about the episode until this step."""
        which = f"episode {episode}   " if episodes > 1 else ""
        several = len(self.returns) > 1
        returns = [f"{f'{group} ' if several else ''}return {value:.4g}" for group, value in self.returns.items()]
        return f"{which}step {step}   {'   '.join(returns)}"


def _pictures(setup: Setup, module: ModuleType, every: int) -> Drawing | Rendering:
    """Return a source of frames: the function `draw` of the module, else the environment itself.

    Raises UserError without either.
    """
    copied = find(setup.config.env.module) is not None
    if isinstance(setup.environment, ExternalEnvironment) and "draw" not in vars(module):
        made = vars(module)["environment"]
        known = known_arguments(made)
        advice = "" if isinstance(made, Registered) else f"; or {how_to_draw(module, setup.environment, copied)}"
        return Rendering(setup.environment, every, known is None or MODE in known, advice)
    return Drawing(module, setup.environment, setup.tables, setup.config.env.name, copied)
