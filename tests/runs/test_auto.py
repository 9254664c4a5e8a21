"""`n_envs=auto`: which number is chosen from which throughput, what belongs to it, and that the run keeps it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import warprun
from warprun.cli import main as cli
from warprun.config import schema as of_config
from warprun.config.compose import compose
from warprun.config.schema import Config, OriginConfig
from warprun.errors import UserError
from warprun.runs import auto

Captured = pytest.CaptureFixture[str]
SMALL = ["total_steps=4096", "stop_when_solved=false", "eval.episodes=2", "device=cpu", "concurrency.threads=1", "log.live=false"]


def chosen(config: Config, rate: Callable[[int], float], monkeypatch: pytest.MonkeyPatch) -> tuple[Config, list[int]]:
    """Return what is chosen if training makes `rate(n_envs)` env_steps per second, and the sizes that were measured."""
    sizes: list[int] = []

    def measure(candidate: Config, seconds: float) -> float:
        sizes.append(candidate.n_envs)
        return rate(candidate.n_envs)

    monkeypatch.setattr(auto, "training_rate", measure)
    return auto.choose(config, lambda line: None), sizes


@pytest.mark.parametrize(
    ("rate", "n_envs", "sizes"),
    [
        # (1 + 100 / 256) / (1 + 32 / 256) = 1.24: more than 1.2. 316 cost 1.98 times as much: the search ends.
        (lambda n: 1e5 * min(n, 32), 32, [3, 10, 32, 100, 316]),
        # (1 + n / 256) / n falls towards 1 / 256, and is 1.08 times that with 3162 environments, 1.26 times with 1000.
        (lambda n: 1e4 * n, 3162, [3, 10, 32, 100, 316, 1000, 3162, 10_000, 31_623, 100_000]),
        (lambda n: 2.0 * n, 3, [3]),  # 16 steps take 8 s for any size: a larger one takes too long
    ],
)
def test_the_number_follows_from_the_speeds(
    rate: Callable[[int], float], n_envs: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, measured = chosen(compose(["env=cartpole", "agent=a2c", "n_envs=auto"]), rate, monkeypatch)
    assert (found.n_envs, measured) == (n_envs, sizes)


@pytest.mark.parametrize("usual", [16, 1024, 20_000])
def test_the_choice_costs_little_more_than_the_least(usual: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = compose(["env=cartpole", "agent=a2c", "n_envs=auto"])
    rates = {3: 5e3, 10: 1.4e4, 32: 4.3e4, 100: 1.12e5, 316: 2.0e5, 1000: 3.4e5, 3162: 3.0e5, 10_000: 4.9e5, 31_623: 5e5, 100_000: 4e5}
    found, sizes = chosen(replace(config, n_envs=usual), rates.__getitem__, monkeypatch)
    costs = {n: (1 + n / (auto.SHARE * usual)) / rates[n] for n in rates}
    assert costs[found.n_envs] <= auto.NEAR * min(costs.values())
    assert found.n_envs == {16: 10, 1024: 316, 20_000: 1000}[usual]
    assert max(sizes) < 100_000


def test_memory_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warprun.config.memory_estimate.available_memory", lambda: 2**29)
    config = compose(["env=cartpole", "n_envs=64", "eval.episodes=10", "device=cpu"])
    config = replace(config, origin=replace(config.origin, n_envs=OriginConfig.MEASURE))
    sizes = [candidate.n_envs for candidate in auto.candidates(config)]
    assert sizes and max(sizes) < 100_000


def test_minibatches_keep_their_rows() -> None:
    config = compose(["env=cartpole", "agent=ppo", "agent.minibatches=16", "n_envs=auto"])
    for n_envs, minibatches in ((1024, 16), (256, 4), (3, 1), (10_240, 160)):
        assert of_config.sized(config, n_envs, "").agent.minibatches == minibatches
    config.agent.groups = {"planner": {"minibatches": 8}, "governors": {"gamma": 0.9}}
    assert config.agent.resized(0.5).groups == {"planner": {"minibatches": 4}, "governors": {"gamma": 0.9}}
    for agent in ("a2c", "dqn"):
        given = compose(["env=cartpole", f"agent={agent}", "n_envs=auto"])
        assert of_config.sized(given, 32, "").agent == given.agent


def test_a_run_keeps_the_number_when_it_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rates = iter([1.0, 50.0, 20.0])
    monkeypatch.setattr(auto, "training_rate", lambda candidate, seconds: next(rates) * 1e4)
    warprun.train(["env=cartpole", "agent=ppo", "n_envs=auto", "run_dir=mine", *SMALL])
    kept = yaml.safe_load(Path("mine/config.yaml").read_text())
    assert kept["n_envs"] == 10 and kept["origin"]["n_envs"].startswith("n_envs=10 chosen of 3 to 32: ")
    # No more rates: to measure again would raise StopIteration.
    more = [setting.replace("4096", "8192") for setting in SMALL]
    result = warprun.train(["env=cartpole", "agent=ppo", "n_envs=auto", "run_dir=mine", "resume=auto", *more])
    again = yaml.safe_load(Path("mine/config.yaml").read_text())
    assert result.env_steps >= 8192 and again["total_steps"] == 8192
    assert (again["n_envs"], again["agent"], again["origin"]["n_envs"]) == (kept["n_envs"], kept["agent"], kept["origin"]["n_envs"])
    result = warprun.train(["resume=mine", "total_steps=9000", "n_envs=auto"])
    assert result.env_steps >= 9000 and yaml.safe_load(Path("mine/config.yaml").read_text())["n_envs"] == 10


def test_a_measured_run_equals_one_with_the_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(auto, "SECONDS", 0.02)
    monkeypatch.setattr(auto, "LADDER", (10, 40, 160))
    base = ["env=cartpole", "agent=ppo", "tuned=none", *SMALL]
    result = warprun.train([*base, "agent.minibatches=16", "n_envs=auto", "run_dir=a"])
    kept = yaml.safe_load(Path("a/config.yaml").read_text())
    assert kept["n_envs"] in auto.LADDER and kept["agent"]["minibatches"] == max(1, round(16 * kept["n_envs"] / 1024))
    same = [f"n_envs={kept['n_envs']}", f"agent.minibatches={kept['agent']['minibatches']}"]
    again = warprun.train([*base, *same, "run_dir=b"])
    assert again.eval_return == result.eval_return and again.env_steps == result.env_steps


def test_several_processes_are_refused(capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^n_envs=auto measures one process, and concurrency=sync has several; write a number$"):
        compose(["env=cartpole", "n_envs=auto", "concurrency=sync"])
    assert cli.run(["n_envs=automatic"]) == 2
    assert "n_envs must be a whole number, not 'automatic'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert not of_config.is_open(compose(["env=cartpole", "n_envs=auto", "n_envs=8"]))  # the last one counts
