"""Pictures and films: what `draw` gets, what a film holds, and mistakes of a `draw`."""

import base64
import io
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.environments import market
from tests.playing.plays import MARKET, PINBALL, look_at, made, numbers, of_tests, play_random, rows
from tests.playing.screen import LENGTH
from tests.selection import few
from warprun.errors import UserError
from warprun.playing import rendered
from warprun.playing.drawing import Drawing, Picture
from warprun.playing.films import find_ffmpeg, gif, html, mp4
from warprun.playing.play import Order, play
from warprun.runs.recording import Moment
from warprun.simulation.kernel_module import typed

matplotlib = pytest.importorskip("matplotlib")


def drawn(tmp_path: Path, draw: Any, *overrides: str, **order: Any) -> None:
    """Play random actions and draw them with `draw` into a GIF."""
    setup, _ = made(*overrides)
    module = ModuleType("drawn")
    module.__file__ = "drawn.py"
    vars(module)["draw"] = draw
    list(play(setup, module, None, Order(records=(tmp_path / "a.gif",), **order)))


def moving(count: int) -> list[np.ndarray]:
    frames = []
    for n in range(count):
        frame = np.full((41, 61, 3), 255, np.uint8)
        frame[10:20, 3 * n : 3 * n + 10] = (200, 30, 60)
        frames.append(frame)
    return frames


def test_a_gif_shows_the_frames_that_it_was_given(tmp_path: Path) -> None:
    frames = moving(10)
    frames[5:5] = [frames[4]] * 2  # frames that show nothing new still take their time
    with gif(tmp_path / "a.gif", 25) as add:
        for frame in frames:
            add(frame)
    with Image.open(tmp_path / "a.gif") as film:
        assert (film.n_frames, film.info["duration"], film.info["loop"]) == (12, 40, 0)  # type: ignore[attr-defined]
        for n, frame in enumerate(frames):
            film.seek(n)
            np.testing.assert_allclose(np.asarray(film.convert("RGB"), int), frame, atol=8)


def pictures(page: Path) -> list[np.ndarray]:
    found = re.findall(r'^"([A-Za-z0-9+/=]+)",$', page.read_text(), flags=re.MULTILINE)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(picture)))) for picture in found]


def shown(page: Path) -> list[int]:
    """Return the brightness of every picture of a page."""
    return [int(picture[0, 0, 0]) for picture in pictures(page)]


def test_a_page_is_self_contained(tmp_path: Path) -> None:
    frames = moving(7)
    with html(tmp_path / "a.html", 30) as add:
        for frame in frames:
            add(frame)
    assert not re.search(r"https?:|//\w|src=|href=|@import|url\(", (tmp_path / "a.html").read_text())
    np.testing.assert_array_equal(pictures(tmp_path / "a.html"), frames)


def test_a_video_has_all_frames(tmp_path: Path) -> None:
    reader = pytest.importorskip("imageio_ffmpeg")
    with mp4(tmp_path / "a.mp4", 10) as add:
        for frame in moving(12):
            add(frame)
    assert reader.count_frames_and_secs(tmp_path / "a.mp4")[0] == 12
    video = reader.read_frames(str(tmp_path / "a.mp4"))
    about = next(video)
    assert (about["source_size"], about["fps"]) == ((60, 40), 10.0)
    first = np.frombuffer(next(video), np.uint8).reshape(40, 60, 3).astype(int)
    assert np.abs(first[15, 5] - (200, 30, 60)).max() < 40
    video.close()


def test_a_film_that_fails_leaves_no_file(tmp_path: Path) -> None:
    for make, name in ((gif, "a.gif"), (html, "a.html"), (mp4, "a.mp4")):
        with pytest.raises(ZeroDivisionError), make(tmp_path / name, 25) as add:  # type: ignore[operator]
            add(moving(1)[0])
            raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_without_ffmpeg_there_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("warprun.playing.films.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'pip install "warprun\[mp4\]"'):
        find_ffmpeg()
    with pytest.raises(UserError, match="needs ffmpeg"):
        play_random("env=cartpole", records=(tmp_path / "a.mp4",))


@pytest.mark.slow
def test_draw_gets_what_functions_of_the_environment_get(tmp_path: Path) -> None:
    """Of one actor numbers and arrays [length], of several arrays by actor, array fields by element and then actor."""
    seen: list[SimpleNamespace] = []

    def draw(axes: Any, state: Any, p: Any, tables: Any, observation: Any, action: Any, step: Any, past: Any) -> None:
        seen.append(SimpleNamespace(**{name: value for name, value in locals().items() if name not in ("axes", "seen")}))

    drawn(tmp_path, draw, *MARKET)
    for now in seen:
        assert list(now.state) == list(now.past) == list(now.observation) == ["producers", "regulator"]
        producers, regulator = now.state["producers"], now.state["regulator"]
        assert isinstance(producers, market.Producer) and isinstance(regulator, market.Regulator)
        assert (producers.price.shape, producers.history.shape, producers.visits.shape) == ((5,), (3, 5), (2, 5))
        assert isinstance(regulator.tax, np.float32) and isinstance(regulator.quota, np.int32)
        assert (now.observation["producers"].shape, now.observation["regulator"].shape) == ((5, 7), (13,))
        past = now.past["producers"]
        assert (past.price.shape, past.history.shape) == ((now.step + 1, 5), (now.step + 1, 3, 5))
        np.testing.assert_array_equal(past.history[-1], producers.history)
        assert now.past["regulator"].tax[-1] == regulator.tax
        assert now.tables.demand.shape == (7, 5) and now.p.restock == 3
    assert [now.step for now in seen] == list(range(len(seen)))
    assert seen[0].action["producers"].shape == (5,) and seen[0].action["regulator"].shape == (2,)
    assert seen[-1].action == {"producers": None, "regulator": None}
    # The last of them has the states of all before.
    prices = np.stack([now.state["producers"].price for now in seen])
    np.testing.assert_array_equal(seen[-1].past["producers"].price, prices)


def test_of_one_group_draw_gets_the_values_themselves(tmp_path: Path) -> None:
    seen = []

    def draw(axes: Any, state: Any, action: Any, past: Any) -> None:
        seen.append((float(state.x), action, len(past.x)))

    drawn(tmp_path, draw, "env=cartpole")
    assert seen[0][1] in (0, 1) and seen[-1][1] is None
    assert [length for _, _, length in seen] == list(range(1, len(seen) + 1))


@pytest.mark.long
def test_the_state_after_a_fault_is_not_drawn(tmp_path: Path) -> None:
    seen = []

    def draw(axes: Any, step: Any, observation: Any, past: Any) -> None:
        assert np.isfinite(observation).all()
        seen.append((step, len(past.x)))

    drawn(tmp_path, draw, *of_tests("flawed"), "env.params.flaw=3", "env.params.step=2", "env.on_nan=reset")
    assert seen == [(0, 1), (1, 2)]


def test_of_what_draw_returns_every_frame_of_an_episode_is_shown(tmp_path: Path) -> None:
    drawn_at, shown_at = [], []

    def draw(axes: Any, step: Any) -> Any:
        drawn_at.append(step)

        def show(state: Any, step: Any, past: Any) -> None:
            shown_at.append((step, len(past.x), past.x[-1] == state.x))

        return show

    drawn(tmp_path, draw, "env=cartpole", episodes=2, every=2)
    assert drawn_at == [0, 0]
    assert [step for step, _, _ in shown_at].count(0) == 2 and len(shown_at) > 4
    assert all(length == step + 1 and last for step, length, last in shown_at)


def swinging(angle: float) -> tuple[Picture, list[Any]]:
    """Return a picture of three lines, and the lines; the second one has an angle, and the others stay below and above it."""
    picture = Picture()
    lines = [picture.axes.plot((0, 1), (0, 1), color=color, linewidth=9)[0] for color in ("0.5", "red", "blue")]
    picture.axes.set(xlim=(-1, 1), ylim=(-1, 1), title="both")
    lines[1].set_data((-0.9, np.cos(angle)), (0.9, np.sin(angle)))
    return picture, lines


def test_a_moving_picture_looks_as_if_drawn_anew_and_draws_what_stays_twice() -> None:
    picture, (below, line, _) = swinging(0.0)
    times: list[int] = []
    draw = below.draw
    below.draw = lambda renderer: (times.append(1), draw(renderer))
    for n in range(10):
        line.set_data((-0.9, np.cos(n)), (0.9, np.sin(n)))
        np.testing.assert_array_equal(picture.pixels(f"step {n}"), swinging(n)[0].pixels(f"step {n}"))
    assert len(times) == 2  # in the first frame, and when it is known what moves
    before = picture.pixels("")
    picture.axes.set_title("other")
    after = picture.pixels("")
    assert len(times) == 3
    assert (before[:30] != after[:30]).any()
    np.testing.assert_array_equal(before[60:], after[60:])


def wrong_argument(axes: Any, states: Any) -> None: ...


def shows_wrong_argument(axes: Any) -> Any:
    return wrong_argument


def raises(axes: Any) -> None:
    raise ValueError("no such color")


def grows(axes: Any, step: Any) -> None:
    axes.figure.set_size_inches(4, 3 + step)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (None, "env=cartpole has no pictures: define draw(axes, state, p) beside `environment` in drawn.py, see docs/policies.md"),
        ("picture", "drawn.py: draw must be a function, draw(axes, state, p)"),
        (wrong_argument, "in wrong_argument: unknown argument 'states'; it can have axes, state, p, tables, observation, action, step"),
        (shows_wrong_argument, "in wrong_argument: unknown argument 'states'; it can have axes, state"),
        (raises, "in raises: ValueError: no such color"),
        (grows, "draw of cartpole changes the size of the figure"),
    ],
    ids=["none", "no function", "argument", "argument of what it returns", "raises", "grows"],
)
def test_a_wrong_draw_is_one_line_and_leaves_no_file(tmp_path: Path, draw: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        drawn(tmp_path, draw, "env=cartpole")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


SHIPPED = [
    *("cartpole", "pendulum", "acrobot", "mountain_car", "mountain_car_continuous", "t_maze", "gray_scott", "heat_equation", "booster"),
    *("catalysis env.time_limit=120", "catalysis_continuous env.scenario=muller_brown env.time_limit=120"),
]


@pytest.mark.parametrize("options", few(SHIPPED, "cartpole"))
def test_shipped_environments_have_pictures(tmp_path: Path, options: str) -> None:
    look_at(tmp_path / "a.gif", *f"env={options}".split())


def test_pictures_are_of_the_shown_state() -> None:
    """The cart of a state further right is further right in the picture."""
    setup, module = made("env=cartpole")
    drawing = Drawing(module, setup.environment, None, "cartpole")
    places = []
    for x in (-1.5, 0.0, 1.5):
        fields = {"x": x, "x_dot": 0.0, "theta": 0.0, "theta_dot": 0.0}
        states = {"agent": {name: np.array([value], np.float32) for name, value in fields.items()}}
        moment = Moment(0, states, {"agent": np.zeros((1, 4), np.float32)}, typed(module.Params()), None)
        frame = drawing.frame(moment, "").astype(int)
        assert frame.shape == (160, 480, 3)
        orange = (frame[..., 0] > 180) & (frame[..., 2] < 60)
        places.append(np.nonzero(orange)[1].mean())
    assert places[1] == pytest.approx(240, abs=3)
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=2)
    assert places[2] - places[1] == pytest.approx(1.5 / 6 * 480, rel=0.15)


# Films of environments that render themselves -------------------------------------------------------------------------

SCREEN = of_tests("screen", "playing")
VECTOR = ["env=gymnasium", "env.id=CartPole-v1", "env.vector=true", "env.kwargs.vectorization_mode=sync"]


def test_frames_are_those_of_their_steps_and_of_the_end(tmp_path: Path) -> None:
    played = play_random(*SCREEN, episodes=3, every=3, records=(tmp_path / "a.html", tmp_path / "a.csv"))
    assert [(episode.steps, episode.end) for episode in played] == [(LENGTH, "terminated")] * 3
    assert shown(tmp_path / "a.html") == [0, 30, 60, 10 * LENGTH] * 3
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


PLAIN = """
from tests.playing import screen


class environment(screen.environment):
    def __init__(self, given: bool = True) -> None:
        super().__init__("rgb_array" if given else None)
"""


def test_a_class_without_a_render_mode_is_rendered_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain.py").write_text(PLAIN)
    plain = ["env=cartpole", "env.name=plain", "env.module=./plain.py"]
    play_random(*plain, records=(tmp_path / "a.html",))
    assert shown(tmp_path / "a.html") == [10 * step for step in range(LENGTH + 1)]
    with pytest.raises(UserError, match=r"returned None; render_mode='rgb_array' is given to a class that takes it; or define draw"):
        play_random(*plain, "env.kwargs.given=false", records=(tmp_path / "a.html",))


def test_the_copy_in_a_run_is_not_named_as_a_file_to_edit() -> None:
    setup, module = made(*PINBALL)
    with pytest.raises(UserError, match=r"beside `environment` for later runs; this run keeps its own copy"):
        Drawing(module, setup.environment, None, "pinball", copied=True)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([*SCREEN, "env.kwargs.shape=[4,6]"], "render of screen must return an array [height, width, 3] of uint8; it returned array"),
        (of_tests("blind", "playing"), "blind has no render(), so there are no pictures; or define draw(axes, obs"),
        (VECTOR, "vectorized environments have no pictures"),
        (PINBALL, "env=pinball has no pictures: define draw(axes, observation)"),
    ],
    ids=["shape", "no render", "vector", "simulator"],
)
def test_what_cannot_be_rendered_is_one_line(tmp_path: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        play_random(*overrides, records=(tmp_path / "a.html",))
    assert message in str(error.value) and "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []
