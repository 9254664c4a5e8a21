"""Films of environments that render themselves."""

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.playing.plays import numbers, play_random, rows
from tests.playing.screen import LENGTH
from warprun.errors import UserError
from warprun.playing import rendered

SCREEN = ["env=cartpole", "env.name=screen", "env.module=tests.playing.screen"]


def shown(page: Path) -> list[int]:
    """Return the brightness of every picture of a page."""
    found = re.findall(r'^"([A-Za-z0-9+/=]+)",$', page.read_text(), flags=re.MULTILINE)
    return [int(np.asarray(Image.open(io.BytesIO(base64.b64decode(picture))))[0, 0, 0]) for picture in found]


@pytest.mark.parametrize("every", [1, 3])
def test_frames_are_those_of_their_steps_and_of_the_end(tmp_path: Path, every: int) -> None:
    played = play_random(*SCREEN, episodes=3, every=every, records=(tmp_path / "a.html", tmp_path / "a.csv"))
    assert [(episode.steps, episode.end) for episode in played] == [(LENGTH, "terminated")] * 3
    one = [10 * step for step in range(LENGTH + 1) if step % every == 0 or step == LENGTH]
    assert shown(tmp_path / "a.html") == one * 3
    acted = [row for row in rows(tmp_path / "a.csv") if row["reward"]]
    np.testing.assert_array_equal(numbers(acted, "obs.0")[:, 0], numbers(acted, "step")[:, 0])
    assert not rendered._made


def test_an_episode_that_is_cut_ends_with_its_last_state(tmp_path: Path) -> None:
    played = play_random(*SCREEN, "env.kwargs.endless=true", "eval.max_steps=5", episodes=2, every=2, records=(tmp_path / "a.html",))
    assert [(episode.steps, episode.end) for episode in played] == [(5, "cut")] * 2
    assert shown(tmp_path / "a.html") == [0, 20, 40, 50] * 2


def test_a_film_of_gymnasium_changes(tmp_path: Path) -> None:
    pytest.importorskip("pygame")
    (episode,) = play_random("env=gymnasium", "env.id=CartPole-v1", every=5, records=(tmp_path / "a.gif",))
    with Image.open(tmp_path / "a.gif") as film:
        assert film.size == (600, 400)
        assert film.n_frames == episode.steps // 5 + 1 + (episode.steps % 5 > 0)  # type: ignore[attr-defined]
        first = np.asarray(film.convert("RGB"))
        film.seek(film.n_frames - 1)  # type: ignore[attr-defined]
        assert (np.asarray(film.convert("RGB")) != first).any()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([*SCREEN, "env.kwargs.shape=[4,6]"], "render of screen must return an array [height, width, 3] of uint8; it returned array"),
        (["env=cartpole", "env.name=blind", "env.module=tests.playing.blind"], "has no render"),
        (
            ["env=gymnasium", "env.id=CartPole-v1", "env.vector=true", "env.kwargs.vectorization_mode=sync"],
            "vectorized environments have no pictures",
        ),
        (["env=cartpole", "env.name=pinball", "env.module=tests.environments.pinball"], "env=pinball has no pictures: define draw"),
    ],
    ids=["shape", "no render", "vector", "simulator"],
)
def test_what_cannot_be_rendered_is_one_line(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        play_random(*overrides, records=(tmp_path / "a.html",))
    assert message in str(error.value) and "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []
