"""Many runs from one command."""

import sys
import types
from pathlib import Path

import pytest

from warprun.cli import main as cli
from warprun.cli.sweep import objective


class Trainer:
    """Stands in for warprun.runtime.run: the return of a run is its seed, and one seed fails."""

    def __init__(self) -> None:
        self.configs: list = []
        self.failing: dict[int, BaseException] = {}

    def train(self, config, world=None):
        self.configs.append(config)
        if config.seed in self.failing:
            raise self.failing[config.seed]
        outcome = {"eval_return": float(config.seed), "eval_stderr": 0.25, "train_return": 0.0, "env_steps": 5000, "wall_s": 2.0}
        return types.SimpleNamespace(**outcome, folder=Path(f"outputs/{config.seed}"))


@pytest.fixture
def trainer(monkeypatch, tmp_path):
    stub = Trainer()
    monkeypatch.setitem(sys.modules, "warprun.runtime.run", stub)
    monkeypatch.chdir(tmp_path)
    return stub


def test_every_combination_runs_and_shows_in_the_table(trainer, capsys):
    assert cli.run(["-m", "agent=a2c,ppo", "seed=0,1,2", "n_envs=1e2,1e4", "env.params.length=0.7"]) == 0
    made = [(config.agent.name, config.seed, config.n_envs, config.env.params) for config in trainer.configs]
    assert made == [(agent, seed, n, {"length": 0.7}) for agent in ("a2c", "ppo") for seed in (0, 1, 2) for n in (100, 10_000)]
    table = capsys.readouterr().out
    assert "12 runs" in table
    assert "agent=ppo seed=2 n_envs=10000 env.params.length=0.7" in table
    assert "2.0 ± 0.2" in table and "2,500" in table and "outputs/2" in table
    assert not list(Path.cwd().iterdir())


def test_flags_may_stand_anywhere(trainer):
    assert cli.run(["train", "seed=1,2", "--multirun", "n_envs=9"]) == 0
    assert [config.seed for config in trainer.configs] == [1, 2]


def test_one_failing_run_does_not_lose_the_others(trainer, capsys):
    trainer.failing[1] = RuntimeError("the disk\nis full")
    assert cli.run(["-m", "seed=0,1,2"]) == 1
    assert [config.seed for config in trainer.configs] == [0, 1, 2]
    told = capsys.readouterr()
    assert told.err == "warprun: error: seed=1: RuntimeError: the disk is full\n"
    assert "failed" in told.out and "RuntimeError: the disk is full" in told.out
    assert "outputs/0" in told.out and "outputs/2" in told.out


def test_an_interrupt_ends_the_sweep_and_keeps_its_table(trainer, capsys):
    trainer.failing[1] = KeyboardInterrupt()
    assert cli.run(["-m", "seed=0,1,2"]) == 130
    assert [config.seed for config in trainer.configs] == [0, 1]
    told = capsys.readouterr()
    assert told.err == "warprun: error: interrupted\n"
    assert "outputs/0" in told.out and "interrupted" in told.out and "failed" not in told.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("n_envs=100,2e9", "n_envs=2000000000: n_envs=2000000000 needs "),
        ("seed=0,1 env.params.lenght=1", "seed=0 env.params.lenght=1: env.params.lenght: cartpole has no parameter"),
        ("agent=ppo,pppo", "unknown agent 'pppo'; did you mean 'ppo'?"),
        ("seed=1,2 n_env=3", "unknown key 'n_env'; did you mean 'n_envs'?"),
        ("seed=1,2 run_dir=here", "two runs cannot share a folder"),
        ("seed=1,abc", "seed must be a whole number, not 'abc'"),
    ],
)
def test_a_mistake_in_any_run_is_told_before_the_first(trainer, capsys, arguments, message):
    assert cli.run(["-m", *arguments.split()]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("warprun: error: ") and told.err.count("\n") == 1
    assert message in told.err
    assert not trainer.configs and not list(Path.cwd().iterdir())


def test_runs_may_have_folders_of_their_own(trainer):
    assert cli.run(["-m", "seed=3", "run_dir=a,b"]) == 0
    assert [config.run_dir for config in trainer.configs] == ["a", "b"]


@pytest.mark.parametrize(("evaluated", "trained", "value"), [(3.0, 1.0, 3.0), (None, 1.0, 1.0)])
def test_objective(evaluated, trained, value):
    assert objective(types.SimpleNamespace(eval_return=evaluated, train_return=trained)) == value
