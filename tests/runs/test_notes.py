"""What is said of a run at its end is true: of courses whose truth is known, of noise alone, of several groups, of the largest return."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from tests.words import words
from warprun.algorithms.settings import A2CConfig
from warprun.config.compose import compose
from warprun.config.schema import Config, EnvConfig
from warprun.runs import checkpoint
from warprun.runs.build import make_agent, set_up
from warprun.runs.evaluation import Evaluations, describe_checkpoint
from warprun.runs.measured import Measured, Notes
from warprun.runs.paired import Paired, Sample, seems_better
from warprun.runs.summary import NO_BETTER, Course, summarize
from warprun.runs.train import _restore_parts
from warprun.spec import Box, Discrete, GroupSpec, Spec
from warprun.state import copied

ALONE = Spec((GroupSpec("agent", 1, Box(3), Discrete(2)),), 200)
TWO = Spec((GroupSpec("a", 1, Box(3), Discrete(2)), GroupSpec("b", 1, Box(3), Discrete(2))), 200)
HEALTHY = {"loss/entropy": 0.4, "loss/explained_variance": 0.6, "train/episodes": 9.0}
LEVEL = [1.0, 0.0] * 10
"""Returns of training episodes that do not get better."""

NOISE = np.array([-1.0, 1.0] * 50)

Curve = Sequence[float]


def course(
    evaluations: dict[str, Curve],
    trained: dict[str, Curve],
    *,
    error: float | None = 0.1,
    bar: float | None = None,
    paired: Paired | None = None,
    of_rows: Mapping[str, float] = {},
    of_end: Mapping[str, float] = {},
    **more: Any,
) -> Course:
    """Return a run with a record for each training return, and evaluations of each group, "" for the only one, at the last of these.

    `of_rows` are other values of all records, `of_end` others of the last one.
    """
    tags = {group: f"{group}/return" if group else "return" for group in evaluations}
    count = len(next(iter(trained.values())))
    rows: list[dict[str, float]] = [{**HEALTHY, **{f"train/{tags[group]}": trained[group][n] for group in tags}} for n in range(count)]
    for group, values in evaluations.items():
        for row, value in zip(rows[-len(values) :], values, strict=True):
            row |= {f"eval/{tags[group]}": value, "eval/episodes": 20.0} | ({} if error is None else {f"eval/{tags[group]}_stderr": error})
    rows = [row | dict(of_rows) for row in rows]
    first = next(iter(evaluations))
    config = Config(env=EnvConfig(name="mine", solved_at=bar), agent=A2CConfig())
    metrics = {tag: value for row in rows for tag, value in row.items()} | dict(of_end)
    metrics |= {"eval/best_return": max(evaluations[first]), "eval/best_env_steps": 5.0}
    made = Course(metrics, rows, TWO if "a" in evaluations else ALONE, tags[first], config, False, paired)
    return made._replace(**more)


def notes(of: Course) -> list[str]:
    return [str(line) for name, line in summarize(of).items() if name.startswith("note")]


def compared(best: Sequence[float] | np.ndarray, last: Sequence[float] | np.ndarray) -> Paired:
    return Paired.of(5, {"agent": np.asarray(best)}, {"agent": np.asarray(last)})


# The best checkpoint ---------------------------------------------------------------------------------------------------


def told_of_best(generator: np.random.Generator, gain: float, final: int) -> bool:
    """Play a run: 20 evaluations of 20 episodes with deviation 1, of which the highest is `gain` better in truth, and the final ones."""
    returns = generator.normal(0.0, 1.0, (20, 20))
    returns[7] += gain
    means = returns.mean(1)
    top = returns[means.argmax()]
    shared = generator.normal(0.0, 0.7, final)  # what both meet in the same episodes
    last = shared + generator.normal(0.0, 0.7, final)
    again = shared + generator.normal(0.0, 0.7, final) + gain * (means.argmax() == 7)
    (then, then_error), (now, now_error) = Sample.of(top), Sample.of(last)
    seems = seems_better({"mean": then, "stderr": then_error}, {"mean": now, "stderr": now_error})
    of = course({"": [*means, now]}, {"": [0.0, 1.0] * 15}, paired=compared(again, last) if seems else None)
    return any("the best checkpoint" in note for note in notes(of))


@pytest.mark.parametrize(
    ("gain", "final", "runs", "least", "most"), [*((0.0, n, 400, 0, 20) for n in (2, 10, 200)), (1.0, 200, 200, 190, 200)]
)
def test_of_noise_the_best_checkpoint_is_called_better_in_at_most_one_run_of_twenty(
    gain: float, final: int, runs: int, least: int, most: int
) -> None:
    generator = np.random.default_rng(final)
    assert least <= sum(told_of_best(generator, gain, final) for _ in range(runs)) <= most


def test_what_is_best_names_its_group_and_its_bias() -> None:
    alone = summarize(course({"": [1.0, 9.0, 5.0]}, {"": LEVEL}))["eval/best_return"]
    assert alone == "9 at 5 env_steps, the highest of 3 evaluations and so biased upwards"
    again = course({"": [1.0, 9.0, 5.0]}, {"": LEVEL}, paired=compared(5.0 + NOISE, 5.0 + NOISE))
    assert str(summarize(again)["eval/best_return"]).endswith("and so biased upwards; 5.00 ± 0.10 over the 100 fresh episodes")
    groups = course({"a": [1.0, 9.0, 5.0], "b": [70.0, 70.0, 75.0]}, {"a": LEVEL, "b": LEVEL})
    assert str(summarize(groups)["eval/best_return"]).startswith("9 at 5 env_steps of group a (eval.group), the highest")
    assert summarize(course({"": [1.0, 5.0, 9.0]}, {"": LEVEL}))["eval/best_return"] == "9 at 5 env_steps"  # of fresh episodes


SMALL = words("""
    env=cartpole tuned=none device=cpu agent=a2c agent.network.hidden=[4] concurrency.threads=1 n_envs=4 log.live=false eval.episodes=4
""")


@pytest.mark.parametrize("fused", ["false", pytest.param("true", marks=pytest.mark.long)])
def test_the_best_checkpoint_plays_the_episodes_of_the_last_one_and_leaves_no_trace(fused: str, tmp_path: Path) -> None:
    setup = set_up(compose([*SMALL, f"engine.fused={fused}"]))
    agent, other = make_agent(setup), make_agent(setup)
    for tensor in other.policy_state().values():
        tensor.add_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)))
    evaluations = Evaluations(setup, agent, "return")
    begins = copied(evaluations.state())
    last = evaluations.play_decisive()
    kept, after = copied(agent.policy_state()), copied(evaluations.state())

    def compare(policy: object, mean: float) -> Paired | None:
        named = {f"agent/{name}": tensor for name, tensor in policy.policy_state().items()}  # type: ignore[attr-defined]
        checkpoint.save(tmp_path, 64, named, {"evaluation": {"mean": mean, "stderr": 0.0}}, line=checkpoint.BEST)
        found = evaluations.compare(tmp_path, last, begins)
        for before, now in ((kept, agent.policy_state()), (after, evaluations.state())):
            assert all(bool((before[name] == now[name]).all()) for name in before)
        return found

    assert compare(other, -1e3) is None
    same, better = compare(agent, 1e3), compare(other, 1e3)
    assert same is not None and same.gain(None).more == (0.0, 0.0) and same.more(None) is None
    by_itself = Evaluations(setup, other, "return").play_decisive()
    assert better is not None and better.gain(None).best == Sample.of(by_itself.returns["agent"]) != better.gain(None).last
    of_group = {"evaluation": {"mean": 1e3, "stderr": 0.0}, "group": "agent"}  # chosen by a group, and the run has one return
    named = {f"agent/{name}": tensor for name, tensor in other.policy_state().items()}
    checkpoint.save(tmp_path, 64, named, of_group, line=checkpoint.BEST)  # type: ignore[arg-type]
    assert evaluations.compare(tmp_path, last, begins) is None
    shutil.rmtree(tmp_path / "best")
    assert evaluations.compare(tmp_path, last, begins) is None


# What is said of whole runs -------------------------------------------------------------------------------------------

FALLS, RISES, LOST = [9.0, 4.0, 5.0, 3.0], [1.0, 5.0, 6.0, 7.0], {"loss/entropy": 0.001}
BETTER = compared(9.0 + NOISE, 3.0 + NOISE)
GROUPS = Paired.of(5, {"b": 66.4 + NOISE, "a": 7.0 + NOISE}, {"b": 75.3 + NOISE, "a": 5.0 - NOISE})
MASKED = Spec((GroupSpec("agent", 1, Box(3), Discrete(2), masked=True),), 200)
COURSES: dict[str, tuple[Course, list[str]]] = {
    "evaluations get better": (course({"": RISES}, {"": LEVEL}), []),
    "nothing gets better": (course({"": FALLS}, {"": LEVEL}), [NO_BETTER]),
    "nothing changes": (
        course({"": [-200.0] * 6}, {"": [-200.0] * 20}, error=0.0),
        [NO_BETTER, "all recent training episodes returned -200"],
    ),
    # Which is no reason to say that they did not.
    "evaluations rise by their noise": (course({"": [-11.8, -9.0, -8.5, -7.8]}, {"": LEVEL}, error=2.5), []),
    "of three evaluations nothing is known": (course({"": FALLS[:3]}, {"": LEVEL}), []),
    "nor of so few records": (course({"": FALLS}, {"": [1.0, 0.0] * 3}), []),
    "one group gets better": (course({"a": FALLS, "b": RISES}, {"a": LEVEL, "b": LEVEL}), []),
    "no group gets better": (course({"a": FALLS, "b": FALLS}, {"a": LEVEL, "b": LEVEL}), [f"{NO_BETTER}, for any group"]),
    "the best checkpoint says more": (course({"": FALLS}, {"": LEVEL}, paired=BETTER), ["the best checkpoint"]),
    "the trouble comes first": (
        course({"": FALLS}, {"": LEVEL}, paired=BETTER, of_rows=LOST),
        ["stopped exploring", "the best checkpoint"],
    ),
    "both returns of every group": (
        course({"a": [1.0, 9.0, 5.0], "b": [70.0, 70.0, 75.3]}, {"a": LEVEL, "b": LEVEL}, paired=GROUPS),
        ["group a 7.00 ± 0.10 in the place of 5.00 ± 0.10, group b 66.40 ± 0.10 in the place of 75.30 ± 0.10"],
    ),
    "signs of a run that is solved": (course({"": FALLS}, {"": LEVEL}, of_rows=LOST, solved=True), []),
    "signs at the bar": (course({"": FALLS}, {"": LEVEL}, of_rows=LOST, bar=3.0), []),
    "signs of evaluations that get better": (course({"": RISES}, {"": LEVEL}, of_rows=LOST), []),
    "signs below the bar": (course({"": RISES}, {"": LEVEL}, of_rows=LOST, bar=10.0), ["stopped exploring"]),
    "a mask leaves no choice": (course({"": FALLS}, {"": LEVEL}, of_rows=LOST, spec=MASKED), [NO_BETTER]),
    "returns are cut": (
        course({"": RISES}, {"": LEVEL}, of_end={"eval/unfinished": 12.0}),
        ["12 of 20 episodes were cut after eval.max_steps"],
    ),
    "resets": (
        course({"": RISES}, {"": LEVEL}, of_end={"env/resets_on_nan": 1200.0, "eval/resets_on_nan": 2.0}),
        ["1,200 resets on NaN while training", "2 resets on NaN while the 20 episodes of the evaluation"],
    ),
    "no resets": (course({"": RISES}, {"": LEVEL}, of_end={"env/resets_on_nan": 0.0, "eval/resets_on_nan": 0.0}), []),
}


@pytest.mark.parametrize("case", COURSES)
def test_each_note_is_said_of_the_runs_that_it_is_true_of(case: str) -> None:
    of, said = COURSES[case]
    found = notes(of)
    assert len(found) == len(said), found
    assert all(words in note for words, note in zip(said, found, strict=True)), found


@pytest.mark.parametrize(
    ("returns", "bar", "error", "best", "said"),
    [
        ([400.0, 450.0, 476.0], 475.0, 1.0, None, "no: env.solved_at=475, less than two standard errors below the return"),
        ([400.0, 450.0, 500.0], 475.0, 1.0, None, "no: env.solved_at=475, which a final evaluation has to confirm"),
        ([400.0, 490.0, 450.0], 475.0, 0.1, 480.0, "no: env.solved_at=475 (the last policy; the best checkpoint has 480.00 ± 0.10)"),
        ([400.0, 490.0, 450.0], 475.0, 0.1, 470.0, "no: env.solved_at=475"),
        ([400.0, 490.0, 450.0], -100.0, 0.1, 480.0, "no: env.solved_at=-100, which a final evaluation has to confirm"),
    ],
)
def test_why_a_run_is_not_solved_is_told(returns: Curve, bar: float, error: float, best: float | None, said: str) -> None:
    paired = None if best is None else compared(best + NOISE, 450.0 + NOISE)
    of = course({"": returns}, {"": LEVEL}, bar=bar, error=error, paired=paired)
    assert next(iter(summarize(of).items())) == ("solved", said)
    assert str(summarize(of._replace(solved=True))["solved"]).startswith(f"yes: env.solved_at={bar:g}")


@pytest.mark.parametrize(
    ("mean", "error", "shown"), [(-246.6789, 3.4567, "-246.7 ± 3.5"), (500.0, 0.0, "500.0 ± 0.0"), (0.123456, 0.00123, "0.1235 ± 0.0012")]
)
def test_means_stand_beside_their_standard_errors_to_the_digit_that_counts(mean: float, error: float, shown: str) -> None:
    assert summarize(course({"": [mean]}, {"": LEVEL}, error=error))["eval/return"] == f"{shown} (20 fresh episodes)"


@pytest.mark.parametrize(
    ("made", "progress", "said"),
    [
        ({"bar": 10.0, "of_rows": LOST}, 0.5, ["stopped exploring"]),
        ({"bar": 10.0, "of_rows": LOST}, 0.49, []),
        ({"bar": 3.0, "of_rows": LOST}, 0.5, []),
        ({"bar": 10.0, "trained": [1.0] * 7, "of_rows": LOST}, 0.5, []),  # of few records
        ({"bar": 10.0, "trained": range(20), "of_rows": LOST}, 0.5, []),  # gets better
        ({"bar": 10.0, "trained": range(20), "of_rows": {"loss/approx_kl": 0.4}}, 0.5, ["by a KL divergence of 0.4"]),
    ],
)
def test_a_run_that_does_not_learn_is_told_once_halfway(made: dict[str, Any], progress: float, said: list[str]) -> None:
    of = course({"": FALLS}, {"": made.pop("trained", LEVEL)}, **made)
    found: list[str] = []
    once = Notes(found.append, [])
    for _ in range(2):
        once.halfway(progress, lambda: of)
    assert len(found) == len(said) and all(words in note for words, note in zip(said, found, strict=True)), found


@pytest.mark.parametrize("bar", [None, 475.0, 1000.0])
def test_a_run_at_the_largest_return_is_told_nothing(bar: float | None) -> None:
    """Also if it learned so fast that only the first record is below: CartPole cannot return more than 500."""
    for rise in ([20.0, 400.0], [22.0, 60.0, 200.0]):
        assert notes(course({"": [500.0] * 6}, {"": [*rise, *[500.0] * 20]}, error=0.0, bar=bar)) == []


def test_of_noise_nothing_is_called_better_than_it_was() -> None:
    """Signs of runs without a bar hide if returns got better: of noise in few runs, of a rise in nearly all."""
    generator = np.random.default_rng(1)

    def improved(rise: float, error: float | None) -> bool:
        trained = generator.normal(0.0, 1.0, 40)
        evaluations = generator.normal(0.0, 1.0, 12) + np.linspace(0.0, rise, 12)
        return course({"": evaluations.tolist()}, {"": trained.tolist()}, error=error).curves[0].improved

    for error in (1.0, None):
        assert sum(improved(0.0, error) for _ in range(400)) <= 32  # training and evaluations, each at most one of twenty-five
        assert sum(improved(6.0, error) for _ in range(100)) >= 90


# Words of checkpoints and messages of a run that goes on --------------------------------------------------------------


def test_a_checkpoint_says_that_the_other_one_is_better_only_if_the_same_episodes_show_it(tmp_path: Path) -> None:
    def ended(more: float, best_env_steps: float = 100, **group: str) -> None:
        compared = {"mean": -196.0, "stderr": 3.0, "more": more, "more_stderr": 2.0, "best_env_steps": best_env_steps}
        checkpoint.save(tmp_path, 300, {}, {"evaluation": compared, **group})  # type: ignore[typeddict-item]

    checkpoint.save(tmp_path, 100, {}, {"evaluation": {"mean": -4.9, "stderr": 3.0}, "group": "wal\nkers"}, line=checkpoint.BEST)
    checkpoint.save(tmp_path, 300, {}, {"evaluation": {"mean": -196.0, "stderr": 3.0}})
    assert describe_checkpoint(tmp_path, checkpoint.LAST) == ["checkpoint: last, after 300 env_steps"]
    best = ["checkpoint: best, after 100 env_steps, by the return of group wal kers (eval.group)"]
    assert describe_checkpoint(tmp_path, checkpoint.BEST) == best
    ended(191.0, group="walkers")
    said = "the best one, after 100 env_steps, returned 191 more to group walkers in the same final episodes of the run: checkpoint=best"
    assert describe_checkpoint(tmp_path, checkpoint.LAST) == ["checkpoint: last, after 300 env_steps", f"{said} evaluates it"]
    assert describe_checkpoint(tmp_path, checkpoint.BEST) == best
    ended(-8.0)
    assert describe_checkpoint(tmp_path, checkpoint.LAST)[1:] == []
    assert "the last one, after 300 env_steps, returned 8 more to" in describe_checkpoint(tmp_path, checkpoint.BEST)[1]
    ended(191.0, best_env_steps=99)  # another best checkpoint
    assert describe_checkpoint(tmp_path, checkpoint.LAST)[1:] == []


@pytest.mark.parametrize(
    ("group", "changed", "forgets"),
    [
        ({"group": "a"}, [], False),
        ({"group": "b"}, [], True),
        ({}, ["total_steps=128 (was 64)"], False),  # of a checkpoint of 1.0.0
        ({}, ["eval.group=a (was b)"], True),
    ],
)
def test_the_best_evaluation_is_forgotten_only_if_another_group_decided_it(
    group: dict[str, str], changed: list[str], forgets: bool, tmp_path: Path
) -> None:
    of = Measured("a/return", {"eval/best_return": 9.0, "eval/best_env_steps": 32.0}, {})
    run = Mock(measured=of, env_steps=64, folder=tmp_path)
    run.crew.restore.return_value = ""
    _restore_parts(run, Mock(meta=group, env_steps=64, tensors={}), changed)
    assert (not of.metrics) == forgets


def test_clipping_is_told_once_it_lasts() -> None:
    """The first rollouts of a run change what is usual faster than it is learned."""
    said: list[str] = []
    once = Notes(said.append, [])
    for share in (0.5, 0.5, 0.5, 0.0, 0.5, 0.5, 0.5):
        once.on_clipping({"obs/b/clipped_share": share, "obs/a/clipped_share": 0.0})
    assert said == []
    for _ in range(3):
        once.on_clipping({"obs/b/clipped_share": 0.5, "obs/a/clipped_share": 0.0})
    (note,) = said
    assert note.startswith("obs/b/clipped_share: 50.0% of the observed numbers are clipped")
