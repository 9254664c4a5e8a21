"""What is said of a run at its end is true: of courses whose truth is known, of noise alone, of several groups, of the largest return."""

import shutil
from collections.abc import Sequence
from pathlib import Path
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

Curve = Sequence[float]


def course(
    evaluations: dict[str, Curve],
    trained: dict[str, Curve],
    *,
    error: float | None = 0.1,
    bar: float | None = None,
    paired: Paired | None = None,
    best_at: int = 5,
) -> Course:
    """Return a run with a record for each training return, and evaluations of each group, "" for the only one, at the last of these."""
    tags = {group: f"{group}/return" if group else "return" for group in evaluations}
    count = len(next(iter(trained.values())))
    rows: list[dict[str, float]] = [{**HEALTHY, **{f"train/{tags[group]}": trained[group][n] for group in tags}} for n in range(count)]
    for group, values in evaluations.items():
        for row, value in zip(rows[-len(values) :], values, strict=True):
            row |= {f"eval/{tags[group]}": value, "eval/episodes": 20.0} | ({} if error is None else {f"eval/{tags[group]}_stderr": error})
    first = next(iter(evaluations))
    config = Config(env=EnvConfig(name="mine", solved_at=bar), agent=A2CConfig())
    metrics = {tag: value for row in rows for tag, value in row.items()}
    metrics |= {"eval/best_return": max(evaluations[first]), "eval/best_env_steps": float(best_at)}
    return Course(metrics, rows, TWO if "a" in evaluations else ALONE, tags[first], config, False, paired)


def notes(of: Course) -> list[str]:
    return [str(line) for name, line in summarize(of).items() if name.startswith("note")]


def compared(best: np.ndarray, last: np.ndarray) -> Paired:
    return Paired.of(5, {"agent": best}, {"agent": last})


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


@pytest.mark.parametrize("final", [2, 10, 200])
def test_of_noise_the_best_checkpoint_is_called_better_in_at_most_one_run_of_twenty(final: int) -> None:
    generator = np.random.default_rng(final)
    assert sum(told_of_best(generator, 0.0, final) for _ in range(1000)) <= 50


def test_a_best_checkpoint_that_is_better_is_called_so() -> None:
    generator = np.random.default_rng(0)
    assert sum(told_of_best(generator, 1.0, 200) for _ in range(200)) >= 190


def test_the_note_gives_both_returns_of_every_group_the_one_that_decides_first() -> None:
    noise = np.array([-1.0, 1.0] * 50)
    paired = Paired.of(5, {"b": 66.4 + noise, "a": 7.0 + noise}, {"b": 75.3 + noise, "a": 5.0 - noise})
    (note,) = notes(course({"a": [1.0, 9.0, 5.0], "b": [70.0, 70.0, 75.3]}, {"a": LEVEL, "b": LEVEL}, paired=paired))
    assert note == (
        "the best checkpoint, after 5 env_steps, is better than the last one: over the same 100 fresh episodes it returns"
        " group a 7.00 ± 0.10 in the place of 5.00 ± 0.10, group b 66.40 ± 0.10 in the place of 75.30 ± 0.10; checkpoint=best evaluates it"
    )


def test_what_is_best_names_its_group_and_its_bias() -> None:
    alone = summarize(course({"": [1.0, 9.0, 5.0]}, {"": LEVEL}))["eval/best_return"]
    assert alone == "9 at 5 env_steps, the highest of 3 evaluations and so biased upwards"
    noise = np.array([-1.0, 1.0] * 50)
    again = course({"": [1.0, 9.0, 5.0]}, {"": LEVEL}, paired=compared(5.0 + noise, 5.0 + noise))
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


# Evaluations and training that do not get better ----------------------------------------------------------------------


def test_nothing_got_better_is_said_only_of_what_did_not() -> None:
    assert notes(course({"": [5.0, 4.0, 5.0, 3.0]}, {"": LEVEL})) == [NO_BETTER]
    assert notes(course({"": [-200.0] * 6}, {"": [-200.0, *[-200.0] * 19]}, error=0.0))[0] == NO_BETTER
    # The noise of an evaluation is as large as what it rose by, which is no reason to say that it did not.
    assert notes(course({"": [-11.8, -9.0, -8.5, -7.8]}, {"": LEVEL}, error=2.5)) == []
    assert notes(course({"": [5.0, 4.0, 5.0]}, {"": LEVEL})) == []  # of three evaluations nothing is known
    assert notes(course({"": [5.0, 4.0, 5.0, 3.0]}, {"": [1.0, 0.0] * 3})) == []  # nor of so few records


@pytest.mark.parametrize("bar", [None, 475.0, 1000.0])
def test_a_run_at_the_largest_return_is_told_nothing(bar: float | None) -> None:
    """Also if it learned so fast that only the first record is below: CartPole cannot return more than 500."""
    for rise in ([20.0, 400.0], [22.0, 60.0, 200.0]):
        assert notes(course({"": [500.0] * 6}, {"": [*rise, *[500.0] * 20]}, error=0.0, bar=bar)) == []


def test_a_best_checkpoint_that_is_better_and_evaluations_that_are_not_do_not_contradict_each_other() -> None:
    noise = np.array([-1.0, 1.0] * 50)
    found = notes(course({"": [9.0, 4.0, 5.0, 3.0]}, {"": LEVEL}, paired=compared(9.0 + noise, 3.0 + noise)))
    assert len(found) == 1 and "the best checkpoint" in found[0]


def test_the_trouble_comes_before_the_best_checkpoint() -> None:
    noise = np.array([-1.0, 1.0] * 50)
    of = course({"": [9.0, 4.0, 5.0, 3.0]}, {"": LEVEL}, paired=compared(9.0 + noise, 3.0 + noise))
    found = notes(of._replace(history=[row | {"loss/entropy": 0.001} for row in of.history]))
    assert ["stopped exploring" in found[0], "the best checkpoint" in found[1], len(found)] == [True, True, 2]


def test_of_several_groups_all_count() -> None:
    falls, rises = [5.0, 4.0, 3.0, 2.0], [1.0, 5.0, 6.0, 7.0]
    assert notes(course({"a": falls, "b": rises}, {"a": LEVEL, "b": LEVEL})) == []
    assert notes(course({"a": falls, "b": falls}, {"a": LEVEL, "b": LEVEL})) == [f"{NO_BETTER}, for any group"]


def test_of_noise_nothing_is_called_better_than_it_was() -> None:
    """Signs of runs without a bar hide if returns got better: of noise in few runs, of a rise in nearly all."""
    generator = np.random.default_rng(1)

    def improved(rise: float, error: float | None) -> bool:
        trained = generator.normal(0.0, 1.0, 40)
        evaluations = generator.normal(0.0, 1.0, 12) + np.linspace(0.0, rise, 12)
        return course({"": evaluations.tolist()}, {"": trained.tolist()}, error=error).curves[0].improved

    for error in (1.0, None):
        assert sum(improved(0.0, error) for _ in range(1000)) <= 80  # training and evaluations, each at most one of twenty-five
        assert sum(improved(6.0, error) for _ in range(200)) >= 180


def test_a_return_at_the_bar_that_is_not_sure_is_not_called_below_it() -> None:
    of = course({"": [400.0, 450.0, 476.0]}, {"": LEVEL}, bar=475.0, error=1.0)
    assert summarize(of)["solved"] == "no: env.solved_at=475, less than two standard errors below the return"
    of = course({"": [400.0, 450.0, 500.0]}, {"": LEVEL}, bar=475.0, error=1.0)  # as of a run that is interrupted
    assert summarize(of)["solved"] == "no: env.solved_at=475, which a final evaluation has to confirm"
    assert notes(of) == []


@pytest.mark.parametrize(
    ("best", "bar", "said"),
    [
        (480.0, 475.0, "no: env.solved_at=475 (the last policy; the best checkpoint has 480.00 ± 0.10)"),
        (470.0, 475.0, "no: env.solved_at=475"),
        (480.0, -100.0, "no: env.solved_at=-100, which a final evaluation has to confirm"),
    ],
)
def test_a_best_checkpoint_at_the_bar_is_named_where_the_last_policy_is_below_it(best: float, bar: float, said: str) -> None:
    noise = np.array([-1.0, 1.0] * 50)
    of = course({"": [400.0, 490.0, 450.0]}, {"": LEVEL}, bar=bar, paired=compared(best + noise, 450.0 + noise))
    assert summarize(of)["solved"] == said


@pytest.mark.parametrize(("trained", "evaluated"), [(0.0, 0.0), (3.0, 0.0), (0.0, 2.0), (1200.0, 2.0)])
def test_resets_on_nan_are_told_at_the_end(trained: float, evaluated: float) -> None:
    of = course({"": [1.0, 5.0, 9.0]}, {"": LEVEL})
    of = of._replace(metrics={**of.metrics, "env/resets_on_nan": trained, "eval/resets_on_nan": evaluated})
    told = [note.partition(" (")[0].partition(" were")[0] for note in notes(of) if "on NaN" in note]
    while_training = [f"{trained:,.0f} resets on NaN while training"] if trained else []
    assert told == while_training + (["2 resets on NaN while the 20 episodes of the evaluation"] if evaluated else [])


def test_a_mask_that_leaves_no_choice_is_no_lack_of_exploration() -> None:
    masked = Spec((GroupSpec("agent", 1, Box(3), Discrete(2), masked=True),), 200)
    of = course({"": [5.0, 4.0, 5.0, 3.0]}, {"": LEVEL})
    rows = [row | {"loss/entropy": 0.001} for row in of.history]
    assert "stopped exploring" in str(notes(of._replace(history=rows)))
    assert notes(of._replace(history=rows, spec=masked)) == [NO_BETTER]


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


def test_the_last_checkpoint_holds_what_the_same_episodes_showed() -> None:
    noise = np.array([-1.0, 1.0] * 50)
    of = Measured("a/return", {}, {})
    of.evaluate({"a/return": 1.0}, 64, Paired.of(5, {"a": 9.0 + noise}, {"a": 1.0 + noise}))
    assert of.described == {"evaluation": {"mean": 1.0, "more": 8.0, "more_stderr": 0.0, "best_env_steps": 5}, "group": "a"}
    assert of.returned["group"] == "a"
    of.evaluate({"a/return": 1.0}, 64, Paired.of(5, {"a": 1.0 + noise}, {"a": 1.0 - noise}))  # which may be chance
    assert of.described == {"evaluation": {"mean": 1.0}, "group": "a"}
    of.forget_best()
    assert of.evaluate({"a/return": -3.0}, 66, None) and not of.evaluate({"a/return": -3.0}, 67, None)


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
