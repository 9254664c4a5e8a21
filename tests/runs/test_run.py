"""What a run leaves behind where it fails before training begins, and what Numba is told before it is loaded."""

import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.words import words
from warprun.config.compose import compose, note_on_tuned
from warprun.errors import TrainingFailed, UserError
from warprun.learning.on_policy import OnPolicyAgent
from warprun.runs import checkpoint, evaluation, measured, run, saver, train
from warprun.runs.evaluation import Evaluation
from warprun.runs.measured import PhaseClock, Spent
from warprun.runs.records import Records
from warprun.runs.result import Result


@pytest.fixture
def failing(monkeypatch, tmp_path):
    """Runs that write something and then find a mistake."""

    def fail(config, held, crew):
        folder = held.folder
        (folder / "config.yaml").touch()
        (folder / "environment").mkdir()
        (folder / "environment" / "file").touch()
        raise UserError("a mistake")

    monkeypatch.setattr(train, "Run", fail)
    monkeypatch.chdir(tmp_path)


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("there", ["", "mine", "outputs/other"])
@pytest.mark.parametrize("setting", ["run_dir=mine", "run_dir=mine/a/b", "output_root=outputs", "output_root=outputs/a/b"])
def test_an_early_failure_leaves_what_was_there(failing, tmp_path, there, setting):
    (tmp_path / there).mkdir(parents=True, exist_ok=True)
    before = left(tmp_path)
    with pytest.raises(UserError, match="a mistake"):
        train.train(compose(["env=cartpole", setting]))
    assert left(tmp_path) == before


def test_a_run_that_is_told_to_end_while_it_compiles_leaves_nothing(tmp_path):
    """SLURM may cancel a job at any time."""
    given = ["env=cartpole", "n_envs=64", f"output_root={tmp_path / 'outputs'}"]
    asked = os.environ | {"WARPRUN_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "warprun", *given]
    with subprocess.Popen(command, env=asked, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert any("compiling" in line for line in process.stdout)  # reads up to there
        process.send_signal(signal.SIGTERM)
        assert "interrupted" in process.stdout.read()
    assert process.returncode == 143
    assert not (tmp_path / "outputs").exists()


SMALL = ["env=cartpole", "tuned=none", "agent=a2c", "n_envs=8", "agent.horizon=8", "agent.network.hidden=[4]", "engine.fused=false"]
QUIET = ["concurrency.threads=1", "device=cpu", "log.live=false"]


def sample(count, mean, stderr):
    """Return an even number of returns with this mean and this standard error."""
    return mean + stderr * math.sqrt(count - 1) * np.array([-1.0, 1.0] * (count // 2))


@pytest.fixture
def judged(monkeypatch):
    """Evaluations whose returns a test decides: a list for those while training, one for the final ones; the last value of a list stays."""
    given = {"evaluation": [0.0], "final evaluation": [0.0]}
    played = []
    purposes = itertools.cycle(given)  # in the order in which a run makes its evaluators

    class Told:
        def __init__(self, setup, agent, episodes, seed):
            self.purpose, self.episodes = next(purposes), episodes

        def state(self):
            return {}

        def close(self):
            pass

        def play(self, greedy, is_stopped):
            left = given[self.purpose]
            mean = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(mean, Exception):
                raise mean
            played.append((self.purpose, mean))
            return Evaluation({"agent": sample(self.episodes, mean, 1.0)}, 1.0, 1.0, None, None)

    monkeypatch.setattr(evaluation, "Evaluator", Told)
    return given, played


def go(tmp_path: Path, *overrides: str) -> Result:
    return train.train(compose([*SMALL, *QUIET, f"run_dir={tmp_path / 'run'}", *overrides]))


def test_solved_is_what_fresh_episodes_confirm_beyond_doubt(judged, tmp_path):
    """Evaluations reach the bar by luck; the standard error of each here is 1."""
    given, played = judged
    given["evaluation"] = [480.0]
    given["final evaluation"] = [470.0, 476.0, 477.5]  # below the bar; above it by less than two standard errors; by more
    result = go(tmp_path, "total_steps=1e6", "eval.every=1iteration")
    assert played == [("evaluation", 480.0), ("final evaluation", 470.0), ("evaluation", 480.0), ("final evaluation", 476.0)] + [
        ("evaluation", 480.0),
        ("final evaluation", 477.5),
    ]
    assert (result.status, result.eval_return, result.env_steps) == ("solved", 477.5, 3 * 64)
    assert result.eval_stderr == pytest.approx(1.0)


def test_a_run_that_goes_on_when_solved_confirms_only_its_end(judged, tmp_path):
    given, played = judged
    given["evaluation"], given["final evaluation"] = [480.0], [478.0]
    result = go(tmp_path, f"total_steps={3 * 64}", "eval.every=1iteration", "stop_when_solved=false")
    assert played == [("evaluation", 480.0)] * 2 + [("final evaluation", 478.0)]
    assert result.status == "solved"


@pytest.mark.parametrize(("again", "is_better"), [(90.0, False), (100.0, True)])
def test_a_run_that_is_not_solved_reports_fresh_episodes_too(judged, tmp_path, capsys, again, is_better):
    """The best checkpoint is called better only if it is in the final episodes, too."""
    given, played = judged
    given["evaluation"], given["final evaluation"] = [480.0, 100.0], [100.0, 90.0, again]
    result = go(tmp_path, "total_steps=128", "eval.every=1iteration")
    assert (result.status, result.eval_return, result.best_return) == ("finished", 90.0, 100.0)
    assert "no: env.solved_at=475" in capsys.readouterr().out
    assert checkpoint.load(tmp_path / "run", checkpoint.BEST).env_steps == 64
    assert played[-3:] == [("final evaluation", 100.0), ("final evaluation", 90.0), ("final evaluation", again)]
    notes = [str(text) for name, text in result.summary.items() if name.startswith("note") and "best checkpoint" in str(text)]
    assert ["returns 100.0 ± 1.0 in the place of 90.0 ± 1.0" in note for note in notes] == [True] * is_better
    assert str(result.summary["eval/best_return"]).endswith(f"{again:.1f} ± 1.0 over the 200 fresh episodes")
    said = evaluation.describe_checkpoint(tmp_path / "run", checkpoint.LAST)
    assert ["returned 10 more in the same final episodes" in line for line in said] == [False, *[True] * is_better]


def test_evaluations_of_runs_that_differ_in_their_seed_stand_at_the_same_steps(judged, tmp_path):
    steps = []
    for seed in range(2):
        go(tmp_path / str(seed), "total_steps=6400", "eval.every=10%", "log.every=5%", f"seed={seed}")
        rows = [json.loads(line) for line in (tmp_path / str(seed) / "run" / "metrics.jsonl").read_text().splitlines()]
        steps.append([(row["env_steps"], "eval/return" in row) for row in rows])
    assert steps[0] == steps[1] == [(320 * n, n % 2 == 0) for n in range(1, 21)]


def test_the_speed_of_a_record_is_that_of_rollouts_and_updates(judged, tmp_path, monkeypatch, capsys):
    """The last record has an evaluation, and the run shows the median of its records after the first."""
    update_ms = iter([2500.0, 300.0, 500.0, 1500.0])
    spent = {phase: Spent(0.0, ms) for phase, ms in {"rollout": 500.0, "eval": 1e6, "log": 1e6}.items()}
    monkeypatch.setattr(PhaseClock, "read", lambda self: spent | {"update": Spent(0.0, next(update_ms))})
    result = go(tmp_path, f"total_steps={4 * 64}", "log.every=1iteration", "eval.every=never")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["perf/env_steps_per_s"] for row in rows] == [64 / 3, 80.0, 64.0, 32.0]
    assert result.metrics["perf/env_steps_per_s"] == 32.0
    walls = [row["wall_s"] for row in rows]
    assert walls == sorted(walls) and all(row["perf/wall_env_steps_per_s"] > 0 for row in rows)
    assert re.search(r"^perf/env_steps_per_s +64\.00 *$", capsys.readouterr().out, re.MULTILINE)


def test_the_shares_of_a_record_are_parts_of_its_time(judged, tmp_path, monkeypatch):
    """Writing a record is part of the interval that begins with it, however long it takes."""
    log = Records.log
    monkeypatch.setattr(Records, "log", lambda self, *given: (time.sleep(0.2), log(self, *given))[1])
    go(tmp_path, f"total_steps={4 * 64}", "log.every=1iteration", "eval.every=never")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    shares = [sum(value for tag, value in row.items() if tag.startswith("perf/") and tag.endswith("_share")) for row in rows]
    assert len(shares) == 4 and max(shares) <= 1.0 and rows[-1]["perf/log_share"] > 0.2


def test_a_time_limit_counts_for_the_schedules_without_the_first_iteration(judged, tmp_path, monkeypatch):
    """That one compiles; evaluations and schedules would jump."""
    learn = OnPolicyAgent.update

    def slow_at_first(self, trajectory, progress):
        if int(self.updates) == 0:
            time.sleep(0.5)
        return learn(self, trajectory, progress)

    monkeypatch.setattr(OnPolicyAgent, "update", slow_at_first)
    schedule = ["agent.learning_rate=1e-3", "agent.learning_rate_end=0"]
    result = go(tmp_path, "total_steps=1e9", "max_minutes=0.04", "log.every=1iteration", "eval.every=never", *schedule)
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["train/progress"] < 0.01
    assert result.status == "finished"
    assert result.metrics["train/progress"] > 0.95
    assert result.metrics["loss/learning_rate"] < 1e-4


def test_the_nearer_limit_is_the_progress_and_is_kept_to_half_an_iteration():
    assert run.Limits(total_steps=1000, max_minutes=1.0, began_s=20.0).moment(20.0, 100, 1).progress == 0.1
    assert run.Limits(total_steps=1000, max_minutes=None, began_s=20.0).moment(1e9, 100, 1).progress == 0.1
    limits = run.Limits(total_steps=1000, max_minutes=1.0, began_s=0.0)
    for seconds, ends in ((39.0, False), (41.0, False), (44.9, False), (45.1, True), (61.0, True)):
        assert limits.reached(limits.moment(seconds, 1, 1), iteration_s=30.0) == ends


def test_a_final_evaluation_that_fails_leaves_the_policy(judged, tmp_path):
    judged[0]["final evaluation"] = [TrainingFailed("nan in an evaluation")]
    with pytest.raises(TrainingFailed, match="nan in an evaluation"):
        go(tmp_path, "total_steps=128", "eval.every=never")
    assert checkpoint.load(tmp_path / "run").env_steps == 128


@pytest.mark.parametrize(("lost_s", "saved"), [(math.inf, 1), (-1.0, 2)])
def test_a_final_evaluation_has_a_checkpoint_before_it_if_much_would_be_lost(judged, tmp_path, monkeypatch, lost_s, saved):
    monkeypatch.setattr(saver, "LOST_S", lost_s)
    go(tmp_path, "total_steps=128", "eval.every=never")
    assert len(list((tmp_path / "run" / "checkpoints").glob("step_*128*.ckpt"))) == saved


def test_a_run_that_continues_reads_each_tensor_of_its_checkpoint_once(tmp_path, monkeypatch):
    """Each access reads the file, and that of a run with replay memory has gigabytes."""
    settings = [*SMALL, *QUIET, "total_steps=256", "checkpoint.best=false", f"run_dir={tmp_path / 'run'}"]
    train.train(compose([*settings, "until_steps=128"]))
    read, reads = checkpoint._Tensors.__getitem__, Counter[str]()
    monkeypatch.setattr(checkpoint._Tensors, "__getitem__", lambda self, name: reads.update([name]) or read(self, name))
    config = compose(settings)
    train.resume(config, tmp_path / "run", config, ["until_steps"])
    assert reads == Counter(list(checkpoint.load(tmp_path / "run").tensors))


def test_iterations_that_take_long_are_announced_once(judged, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(measured, "LONG_ITERATION_S", 0.0)
    go(tmp_path, "total_steps=320")
    assert capsys.readouterr().out.count("an iteration takes") == 1


@pytest.mark.slow
def test_the_group_that_decides(tmp_path):
    """Returns of two groups have no mean: one of them decides what is best."""
    market = words("""
        env.module=tests.environments.market env.name=market env.time_limit=6 env.solved_at=null total_steps=128
        eval.episodes=4
    """)
    names = ["producers", "regulator"]
    for name in (None, *names):
        more = [] if name is None else [f"eval.group={name}"]
        result = go(tmp_path / str(name), *market, *more)
        assert result.eval_return == result.metrics[f"eval/{name or names[0]}/return"]
        assert result.train_return == result.metrics[f"train/{name or names[0]}/return"]
        assert not {"eval/return", "train/return"} & set(result.metrics)
    with pytest.raises(UserError, match=r"eval\.group=producer is not a group of market; groups: producers, regulator"):
        go(tmp_path, *market, "eval.group=producer")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ([], "tuned/acrobot_a2c apply (tuned=none turns them off)"),
        (["seed=1", "agent.network.activation=relu"], "; they were not tuned for agent.network.activation=relu"),
        (["tuned=none"], ""),
        (["env=covid"], ""),
    ],
)
def test_tuned_settings_are_told(typed, said):
    told = note_on_tuned(compose(["env=acrobot", "agent=a2c", *typed])) or ""
    assert told.endswith(said) and bool(told) == bool(said)


def test_who_interrupts_is_obeyed_although_the_aim_is_reached(monkeypatch, tmp_path):
    """Or a sweep would go on with its next run."""
    given = ["env.solved_at=1", "eval.every=1iteration", "eval.episodes=4", "total_steps=1e9"]
    config = compose([*SMALL, *QUIET, *given, f"run_dir={tmp_path / 'run'}"])
    played = evaluation.Evaluator.play

    def interrupted(self, greedy, is_stopped):
        found = played(self, greedy, is_stopped)
        os.kill(os.getpid(), signal.SIGINT)
        return found

    monkeypatch.setattr(evaluation.Evaluator, "play", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train.train(config)
    assert '"interrupted"' in (tmp_path / "run" / "status.json").read_text()
