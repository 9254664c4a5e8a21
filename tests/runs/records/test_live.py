import io

from rich.console import Console

from warprun.runs.records.sink import Row
from warprun.runs.records.terminal import LiveView, Progress, view

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


def test_the_view_works_before_anything_is_known():
    assert "–" in render(Progress({}), 80)


def test_draws_in_place_and_gives_the_cursor_back():
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    live = LiveView(console, progress(), "run", "outputs/run", every_s=0.0)
    live.log(Row(1, 1.0, {}))
    live.message("compiling")
    live.log(Row(2, 2.0, {}))
    live.close()
    live.close()
    text = console.file.getvalue()
    assert text.count("\x1b[?25l") == 1
    assert text.rindex("\x1b[?25h") > text.rindex("train return")
    assert "compiling" in text


def test_draws_no_more_often_than_asked():
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    live = LiveView(console, progress(), "run", "outputs/run", every_s=60.0)
    for step in range(5):
        live.log(Row(step, 1.0, {}))
    assert console.file.getvalue().count("train return") == 1
    live.close()
