import io
import math
import threading

import pytest
from rich.console import Console

from warprun.kernels import waiting
from warprun.runs.records import terminal
from warprun.runs.records.sink import Row
from warprun.runs.records.terminal import LiveView, PlainConsole, PlainLines, Progress, duration, line, number, si, table_console, view


@pytest.mark.parametrize(
    ("limits", "rows", "fraction", "left_s"),
    [
        ({"total_steps": 1000, "max_minutes": None}, [(100, 60.0)], 0.1, None),
        # A minute of compilation comes before the first row.
        ({"total_steps": 1000, "max_minutes": None}, [(100, 60.0), (200, 61.0)], 0.2, 8.0),
        ({"total_steps": 1000, "max_minutes": 1}, [(100, 50.0), (200, 54.0)], 0.9, 6.0),
        ({"total_steps": None}, [(100, 50.0)], None, None),
    ],
)
def test_the_nearer_limit_decides_what_is_done_and_left(limits, rows, fraction, left_s):
    progress = Progress(limits)
    for steps, seconds in rows:
        progress.update(Row(steps, seconds, {}))
    assert progress.fraction == (None if fraction is None else pytest.approx(fraction))
    assert progress.left_s == (None if left_s is None else pytest.approx(left_s))


def test_shares_are_those_of_one_record():
    """The record after an evaluation has no share of it; a row that only shows the speed has none at all."""
    progress = Progress({})
    progress.update(Row(1, 1.0, {"perf/rollout_share": 0.1, "perf/update_share": 0.1, "perf/eval_share": 0.75, "eval/return": 7.0}))
    progress.update(Row(2, 2.0, {"perf/rollout_share": 0.5, "perf/update_share": 0.49}))
    assert progress.shares == {"rollout": 0.5, "update": 0.49}
    progress.update(Row(3, 9.0, {"perf/env_steps_per_s": 12.0}))
    assert progress.shares == {"rollout": 0.5, "update": 0.49}
    assert "rollout_time=50% update_time=49%" in line(progress) and "eval=7.000" in line(progress) and "75" not in line(progress)


def test_learners_and_actors_have_a_line_each():
    progress = Progress({"total_steps": None})
    assert progress.roles == []
    of = {"rollouts": 1234, "rollouts_dropped": 0, "unique_rollouts_per_s": 20, "lag_mean": 1.25, "lag_max": 3}
    of |= {"learner_waiting_share": 0.1, "actor_waiting_share": 0.4}
    progress.update(Row(100, 1.0, {f"actors/{name}": value for name, value in of.items()}))
    assert progress.roles == [
        ("learner", "waits 10% of the time, lag 1.2, at most 3"),
        ("actors", "wait 40% of the time, 1.23 k rollouts, 20 new ones/s"),
    ]
    progress.update(Row(200, 2.0, {"actors/rollouts_dropped": 5, "actors/lost": 1}))
    assert progress.roles[1][1] == "wait 40% of the time, 1.23 k rollouts, 5 dropped, 20 new ones/s, 1 lost"


def test_a_line_is_words_of_key_and_value():
    progress = Progress({"total_steps": 1e7})
    progress.update(Row(1_000_000, 3.0, {"train/return": 10.0, "perf/env_steps_per_s": 1e6}))
    values = {"train/return": 195.3321, "train/episode_length": math.nan, "eval/return": 487.0, "perf/env_steps_per_s": 1.234567e6}
    progress.update(Row(4_300_000, 31.0, values | {"perf/rollout_share": 0.6, "perf/update_share": 0.38, "perf/eval_share": 0.02}))
    assert line(progress) == (
        "wall=31s env_steps=4.30M done=43% env_steps/s=1.23M return=195.3 eval=487.0 length=nan"
        " rollout_time=60% update_time=38% eval_time=2% left=48s"
    )


def test_a_line_names_the_groups():
    progress = Progress({})
    progress.update(Row(1, 1.0, {"train/planner/return": 1.0, "train/governor/return": 2.0}))
    progress.update(Row(2, 2.0, {"eval/planner/return": 3.0}))
    assert line(progress) == "wall=2s env_steps=2 governor.return=2.000 planner.return=1.000 planner.eval=3.000"


@pytest.mark.parametrize(
    ("shown", "value", "text"),
    [
        (si, 0, "0"),
        (si, 12.345, "12.3"),
        (si, 999.7, "1.00 k"),
        (si, 99_960_000, "100 M"),
        (si, 999_600_000, "1.00 G"),
        (si, -4.5e12, "-4.50 T"),
        (si, math.nan, "nan"),
        (number, 195.0, "195.0"),
        (number, 999.96, "1,000"),
        (number, -0.01234567, "-0.01235"),
        (number, 15234.2, "15,234"),
        (number, 2.5e6, "2.50 M"),
        (number, 12, "12"),
        (number, math.inf, "inf"),
        (duration, 0.4, "0 s"),
        (duration, 59.6, "1:00"),
        (duration, 7387, "2:03:07"),
        (duration, 93_787, "1 d 2:03:07"),
        (duration, math.inf, "inf"),
    ],
)
def test_numbers_have_three_or_four_digits_and_times_read_as_a_clock(shown, value, text):
    assert shown(value) == text


VALUES = {
    "train/return": 195.3321,
    "train/episode_length": 195.0,
    "perf/env_steps_per_s": 1.234567e6,
    "perf/rollout_share": 0.62,
    "perf/update_share": 0.36,
    "perf/log_share": 0.02,
}


def progress() -> Progress:
    progress = Progress({"total_steps": 1e7})
    progress.update(Row(1_000_000, 1.0, VALUES))
    progress.update(Row(4_000_000, 4.0, VALUES))
    return progress


def render(progress: Progress, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(view(progress, "cartpole_ppo", "cpu, 2 threads", "outputs/" + 70 * "x"))
    return console.file.getvalue()


def test_the_view_shows_what_matters():
    text = render(progress(), 80)
    for part in (
        "cartpole_ppo",
        "1.23 M env steps/s",
        "4.00 M of 10.0 M",
        "4 s, 6 s left",
        "rollout 62 %, update 36 %, log 2 %",
        "cpu, 2 threads",
        "195.3",
        "40 %",
    ):
        assert part in text
    assert "195.33" not in text


def test_the_view_fits_narrow_terminals():
    for width in (60, 80):
        lines = render(progress(), width).splitlines()
        assert max(map(len, lines)) <= width
        assert "episode length" in "".join(lines)
    assert render(progress(), 80).count("x") == 70  # the folder is folded, never cut: it will be copied
    assert "–" in render(Progress({}), 80)  # before anything is known


def test_draws_no_more_often_than_asked(capsys):
    plain = PlainLines(Progress({}), every_s=60.0)
    for step in range(3):
        plain.log(Row(step, 0.0, {}))
    assert len(capsys.readouterr().out.splitlines()) == 1
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    live = LiveView(console, progress(), "run", "outputs/run", every_s=60.0)
    for step in range(5):
        live.log(Row(step, 1.0, {}))
    assert console.file.getvalue().count("train return") == 1
    live.close()


def test_a_row_that_comes_while_the_view_is_drawn_does_not_change_what_is_drawn(monkeypatch):
    changing = Progress({"total_steps": 1000})
    changing.update(Row(1, 1.0, {"perf/eval_share": 0.5}))
    drawn = []

    def drawing(given, *others):
        tags = iter(given.values)
        changing.update(Row(2, 2.0, {"perf/rollout_share": 0.9, "eval/return": 1.0}))
        drawn.append((list(tags), given.shares, given.env_steps))
        return ""

    monkeypatch.setattr(terminal, "view", drawing)
    LiveView(Console(file=io.StringIO()), changing, "run", "outputs/run")._draw()
    assert drawn == [(["perf/eval_share"], {"eval": 0.5}, 1)] and changing.shares == {"rollout": 0.9}


def test_the_view_shows_what_the_run_waits_for(monkeypatch):
    monkeypatch.setattr(waiting, "PATIENCE_S", 0.001)
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    live = LiveView(console, progress(), "run", "outputs/run", every_s=0.0)
    live.log(Row(1, 1.0, {}))
    assert "waits for" not in console.file.getvalue()
    shown = threading.Event()
    draw = live._draw
    monkeypatch.setattr(live, "_draw", lambda: (draw(), shown.set()))
    with waiting.on("compiling rollout", "tank"):
        assert shown.wait(60.0)
    live.close()
    assert "compiling rollout of tank: 0 s" in console.file.getvalue()


class Screen(io.StringIO):
    """A terminal that keeps what is printed."""

    def isatty(self):
        return True


@pytest.mark.parametrize(("file", "lines"), [(Screen(), 2), (io.StringIO(), 1)])
def test_sentences_break_between_words_of_a_terminal_only(file, lines):
    note = "the returns of all evaluations are the same: rewards may not depend on actions, and agent.entropy_coef=0.01 explores more"
    PlainConsole(file=file, width=80, color_system=None).sentence(note)
    assert file.getvalue().count("\n") == lines
    assert file.getvalue().split() == note.split()


@pytest.mark.parametrize(("columns", "width"), [([], 120), (["90"], 90)])
def test_tables_in_files_fit_a_page(monkeypatch, columns, width):
    monkeypatch.delenv("COLUMNS", raising=False)
    for value in columns:
        monkeypatch.setenv("COLUMNS", value)
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert table_console().width == width
