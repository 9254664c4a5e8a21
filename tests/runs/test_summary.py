"""What is said of a run at its end."""

from collections.abc import Mapping, Sequence

import pytest

from tests.environments.clockwork import environment as clockwork
from warprun.runs.summary import summarize

GROUPS = clockwork.groups


def notes(history: Sequence[Mapping[str, float]], solved: bool = False, **more: float) -> str:
    metrics = {tag: value for row in history for tag, value in row.items()} | {"eval/best_env_steps": 5.0} | more
    lines = summarize(metrics, history, GROUPS, "return", 10.0, solved)
    return "\n".join(str(line) for name, line in lines.items() if name.startswith("note"))


def test_means_stand_beside_their_standard_errors_to_the_digit_that_counts():
    for mean, error, shown in ((-246.6789, 3.4567, "-246.7 ± 3.5"), (500.0, 0.0, "500.0 ± 0.0"), (0.123456, 0.00123, "0.1235 ± 0.0012")):
        metrics = {"eval/return": mean, "eval/return_stderr": error, "eval/episodes": 1000.0}
        assert summarize(metrics, [], GROUPS, "return", None, False)["eval/return"] == f"{shown} (1,000 fresh episodes)"


@pytest.mark.parametrize("solved", [True, False])
def test_solved_or_not_comes_first(solved):
    metrics = {"eval/return": 1.0, "eval/episodes": 10.0, "train/return": 1.0}
    first, *_ = summarize(metrics, [], GROUPS, "return", 475.0, solved).items()
    assert first == ("solved", f"{'yes' if solved else 'no'}: env.solved_at=475")


LEARNED = [
    {"train/return": float(n), "loss/entropy": 0.6, "loss/explained_variance": 0.5, "eval/return": float(n), "eval/return_stderr": 0.1}
    for n in range(10)
]


def test_nothing_is_said_of_a_run_that_learned():
    assert notes(LEARNED, **{"eval/best_return": 9.0, "eval/episodes": 100}) == ""


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"train/return": -500.0}, "all training episodes of the second half returned -500"),
        ({"loss/entropy": 0.01}, "the entropy of the policy fell to 0.01 of at most 0.69"),
        ({"loss/explained_variance": 0.04}, "the value function explains at most 4% of the variance"),
        ({"eval/return": 1.0}, "no evaluation was better than the first one"),
    ],
)
def test_a_curve_that_does_not_learn_is_named_unless_the_run_is_solved(values, said):
    history = [row | values for row in LEARNED]
    best = {"eval/best_return": history[-1]["eval/return"], "eval/episodes": 100}
    assert said in notes(history, **best)
    if "eval/return" not in values:
        assert said not in notes(history, solved=True, **best)
        # In the first half it is how a run begins.
        assert said not in notes(history[:5] + LEARNED[5:], **best | {"eval/best_return": 9.0})


def test_nothing_is_said_of_curves_without_a_bar_if_evaluations_got_better():
    history = [row | {"loss/entropy": 0.01} for row in LEARNED]
    metrics = history[-1] | {"eval/best_return": 9.0, "eval/best_env_steps": 5.0, "eval/episodes": 100}
    assert not [name for name in summarize(metrics, history, GROUPS, "return", None, False) if name.startswith("note")]
    level = [row | {"eval/return": 9.0} for row in history]
    assert "stopped exploring" in str(summarize(metrics, level, GROUPS, "return", None, False))


def test_a_best_checkpoint_that_is_better_is_named():
    history = [*LEARNED, LEARNED[-1] | {"eval/return": -196.0}]
    assert "about -4.9: checkpoint=best evaluates it" in notes(history, **{"eval/best_return": -4.9, "eval/episodes": 100})


def test_returns_that_are_cut_are_told():
    assert "12 of 100 episodes were cut after eval.max_steps steps" in notes(LEARNED, **{"eval/unfinished": 12, "eval/episodes": 100})
