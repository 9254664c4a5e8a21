import math

import pytest

from warprun.runs.records.sink import Row
from warprun.runs.records.terminal import Progress, line


def test_time_left_leaves_out_what_came_before_the_first_row():
    progress = Progress({"total_steps": 1000, "max_minutes": None})
    assert progress.left_s is None
    progress.update(Row(100, 60.0, {}))  # a minute of compilation
    progress.update(Row(200, 61.0, {}))
    assert progress.fraction == pytest.approx(0.2)
    assert progress.left_s == pytest.approx(8.0)


def test_the_nearer_of_two_limits_counts():
    progress = Progress({"total_steps": 1000, "max_minutes": 1})
    progress.update(Row(100, 50.0, {}))
    progress.update(Row(200, 54.0, {}))
    assert progress.fraction == pytest.approx(0.9)
    assert progress.left_s == pytest.approx(6.0)


def test_no_limit_no_fraction():
    progress = Progress({"total_steps": None})
    progress.update(Row(100, 50.0, {}))
    assert progress.fraction is None
    assert progress.left_s is None


def test_shares_add_up_to_one():
    progress = Progress({})
    assert progress.shares == {}
    progress.update(Row(1, 1.0, {"perf/rollout_share": 0.3, "perf/update_share": 0.6, "perf/log_share": 0.1}))
    assert progress.shares == {"rollout": 0.3, "update": 0.6, "log": 0.1}


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


def test_every_group_has_an_outcome():
    progress = Progress({})
    progress.update(Row(1, 1.0, {"train/planner/return": 1.0, "train/governor/return": 2.0, "train/episode_length": 9.0}))
    progress.update(Row(2, 2.0, {"eval/planner/return": 3.0}))
    assert progress.outcomes == [("governor", 2.0, None, 9.0), ("planner", 1.0, 3.0, 9.0)]


def test_a_line_is_words_of_key_and_value():
    progress = Progress({"total_steps": 1e7})
    progress.update(Row(1_000_000, 3.0, {"train/return": 10.0, "perf/env_steps_per_s": 1e6}))
    values = {"train/return": 195.3321, "train/episode_length": math.nan, "eval/return": 487.0, "perf/env_steps_per_s": 1.234567e6}
    progress.update(Row(4_300_000, 31.0, values | {"perf/rollout_share": 0.62, "perf/update_share": 0.38}))
    assert line(progress) == (
        "wall=31s env_steps=4.30M done=43% env_steps/s=1.23M return=195.3 eval=487.0 length=nan rollout=62% update=38% left=48s"
    )


def test_a_line_names_the_groups():
    progress = Progress({})
    progress.update(Row(1, 1.0, {"train/a/return": 1.0, "train/b/return": 2.0}))
    assert line(progress) == "wall=1s env_steps=1 a.return=1.000 b.return=2.000"
