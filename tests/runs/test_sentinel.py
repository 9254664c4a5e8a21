"""Runs that meet NaN and infinity: what they say, their exit code, and what they leave behind."""

import json
import math
import re
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from warprun.cli import main as cli
from warprun.cli.process import FAILED
from warprun.config.compose import compose
from warprun.config.schema import EnvConfig
from warprun.errors import TrainingFailed
from warprun.runs import checkpoint, rundir
from warprun.runs.sentinel import Sentinel, bounds_of, odd_observation
from warprun.runs.train import train
from warprun.simulation.device import Device
from warprun.spec import Box, Discrete, GroupSpec

ENVIRONMENT = Path(__file__).parents[1] / "environments" / "flawed.py"
SMALL = ["n_envs=8", "concurrency.threads=1", "device=cpu", "eval.every=never", "eval.episodes=2", "log.live=false"]
ON_POLICY = ["agent.horizon=4", "agent.network.hidden=[8]", "total_steps=640"]
OFF_POLICY = ["agent.horizon=1", "agent.network.hidden=[8]", "agent.learning_starts=16", "agent.batch_size=8", "total_steps=640"]
FLAWS = {"reward nan": 1, "reward inf": 2, "observation nan": 3, "observation -inf": 4, "mask": 5, "mask of one choice": 6}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with the environment, to run in."""
    (tmp_path / "conf" / "env").mkdir(parents=True)
    (tmp_path / "conf" / "env" / "flawed.yaml").write_text(f"name: flawed\nmodule: {ENVIRONMENT}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def flawed(flaw, environment=0, step=0, actions="discrete", group=0, actor=0):
    where = {"flaw": FLAWS[flaw], "environment": environment, "step": step, "group": group, "actor": actor}
    return ["env=flawed", f"env.actions={actions}", *(f"env.params.{name}={value}" for name, value in where.items())]


def left(home):
    """Return status, and what the checkpoints hold."""

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    status = json.loads((home / "run" / "status.json").read_text(), parse_constant=refuse)
    metrics = home / "run" / "metrics.jsonl"  # a run that ends within a second has none
    for row in metrics.read_text().splitlines() if metrics.exists() else ():
        json.loads(row, parse_constant=refuse)
    saved = []
    for line in (checkpoint.LAST, checkpoint.BEST):
        for file in sorted((home / "run" / line).glob("*.ckpt")):
            saved.append(file)
            tensors = checkpoint._open(file, None).tensors
            assert all(tensor.isfinite().all() for tensor in tensors.values() if tensor.is_floating_point())
    return status, saved


RUNS = {
    "ppo reward": ("agent=ppo", ON_POLICY, flawed("reward nan", 5, 33), "environment 5 gave a reward of nan at step 33 (group agent, "),
    "a2c stepwise": (
        "agent=a2c engine.fused=false",
        ON_POLICY,
        flawed("observation -inf", 7, 21),
        "environment 7 gave an observation of -inf at step 21 (group agent, actor 0, component 1)",
    ),
    "ppo final": (
        "agent=ppo agent.staggered=false",
        ON_POLICY,
        flawed("observation nan", 2, 30),
        "environment 2 gave a final observation of nan at step 30",
    ),
    "dqn": ("agent=dqn", OFF_POLICY, flawed("reward inf", 1, 50), "environment 1 gave a reward of inf at step 50"),
    "ppo mask": (
        "agent=ppo",
        ON_POLICY,
        flawed("mask of one choice", 6, 17, "groups", 1),
        "environment 6 forbade every action at step 17 (group planner, actor 0, component 1)",
    ),
    "in the evaluation": (
        "agent=ppo eval.episodes=12",
        ON_POLICY,
        flawed("reward nan", 10, 3),
        "in an evaluation environment 10 gave a reward of nan at step 3",
    ),
}


@pytest.mark.by_default(2)
@pytest.mark.parametrize("case", RUNS)
def test_a_planted_fault_ends_the_run(home, capsys, case):
    settings, sizes, planted, line = RUNS[case]
    # A checkpoint in every iteration.
    code = cli.run([*planted, *sizes, *SMALL, *settings.split(), "checkpoint.every=1iteration", "run_dir=run"])
    said = capsys.readouterr().err
    assert code == FAILED
    assert f"warprun: error: {line}" in said and "Traceback" not in said
    status, saved = left(home)
    assert status["state"] == "failed"
    assert status["reason"].startswith(line)
    assert len(saved) == 2
    assert f"the last good checkpoint is run/checkpoints/{saved[-1].name}" in said
    if "evaluation" not in case:  # of the iteration before the fault
        horizon = 4 if sizes == ON_POLICY else 1
        last_good = 8 * horizon * ((int(line.split("step ")[1].split()[0]) - 1) // horizon)
        assert checkpoint.load(home / "run").env_steps == last_good


@pytest.mark.parametrize(
    ("agent", "steps", "fused"),
    [
        ("ppo", 640, True),
        # The parameters go with the very last update, which no rollout follows.
        ("a2c", 32, False),
        pytest.param("a2c", 640, True, marks=pytest.mark.slow),
        pytest.param("ppo", 640, False, marks=pytest.mark.slow),
    ],
)
def test_networks_that_are_lost_end_the_run(home, capsys, agent, steps, fused):
    """A learning rate that throws the parameters out of float32."""
    given = [
        "env=pendulum",
        f"agent={agent}",
        "agent.learning_rate=1e39",
        "agent.max_grad_norm=null",
        "tuned=none",
        f"engine.fused={fused}",
    ]
    assert cli.run([*given, *ON_POLICY, *SMALL, f"total_steps={steps}", "run_dir=run"]) == FAILED
    assert "there is no checkpoint yet" in capsys.readouterr().err
    status, saved = left(home)
    assert (status["state"], saved) == ("failed", [])


@pytest.mark.long
def test_environments_can_be_replaced_instead(home, capsys):
    planted = [*flawed("observation nan", 5, 10), "env.params.again=true", "env.on_nan=reset"]
    result = train(compose([*planted, "agent=ppo", *ON_POLICY, *SMALL, "run_dir=run"]))
    assert result.status == "finished"
    # 80 steps of every environment.
    assert result.metrics["env/resets_on_nan"] == 8
    assert result.metrics["eval/resets_on_nan"] == 0
    assert "env/resets_on_nan counts these resets" in capsys.readouterr().out
    assert left(home)[0]["state"] == "finished"


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (
            (2, 3, 1, 1),
            2.5,
            "environment 3: number 1 of an observation of group miners is 2.5, beyond its bounds -1 to 2: ",
        ),
        (
            (0, 1, 0, 0),
            1.7e9,
            "environment 1: number 0 of an observation of group miners is 1.7e.09: .* float32, .* steps of 128 ",
        ),
        ((0, 1, 0, 0), -(2.0**24) + 1.0, None),
        ((0, 1, 0, 1), 2.00001, None),
        ((0, 1, 0, 1), math.nan, None),
    ],
)
def test_an_observation_that_looks_wrong_is_told(where, value, said):
    obs = torch.zeros(5, 4, 2, 2)
    obs[where] = value
    found = odd_observation("miners", [(-math.inf, math.inf), (-1.0, 2.0)], obs)
    assert re.match(said, found) if said else not found


@pytest.mark.parametrize(("given", "holds"), [((), True), (["env.params.x_limit=9"], False), (["env.randomize.x_limit=[1,9]"], False)])
def test_bounds_hold_for_the_parameters_that_they_are_declared_for(given, holds):
    env = compose(["env=cartpole", *given]).env
    declared = GroupSpec("agent", 1, Box(1, -1.0, 2.0), Discrete(2))
    assert list(bounds_of(declared, env)) == [(-1.0, 2.0) if holds else (-math.inf, math.inf)]


class Calm:
    """An engine in which all is well."""

    steps = 12
    device = Device("cpu", "nothing runs")

    def fault(self, wait=False):
        return None


@pytest.mark.parametrize(
    ("metrics", "state", "said"),
    [
        ({"loss/value": torch.tensor(math.inf)}, {}, r"the loss \(value\) is inf after step 12"),
        ({"loss/value": torch.tensor(1.0), "loss/miners/grad_norm": math.nan}, {}, "the norm of the gradient of group miners is nan"),
        ({"loss/explained_variance": torch.tensor(-math.inf), "mine/number": math.nan}, {}, ""),  # which may be infinite
        ({}, {"updates": torch.tensor(3), "miners/parameters": torch.tensor([1.0, math.nan])}, "parameters of group miners are not finite"),
        # No matter of the learning rate.
        (
            {},
            {"miners/reward/returns": torch.tensor([math.inf])},
            "of group miners are not finite .*: discounted returns are beyond float32",
        ),
    ],
)
def test_losses_gradients_and_what_is_saved_are_looked_at(metrics, state, said):
    sentinel = Sentinel(Calm(), print, EnvConfig("calm"))
    with pytest.raises(TrainingFailed, match=said) if said else nullcontext():
        sentinel.after_update(metrics)
        sentinel.before_save(state)


def test_numbers_that_json_lacks_are_null(tmp_path):
    rundir.write_status(tmp_path, {"state": "failed", "eval": math.nan, "deep": {"list": [1.0, -math.inf]}})
    text = (tmp_path / "status.json").read_text()
    assert json.loads(text, parse_constant=lambda word: pytest.fail(word))["deep"] == {"list": [1.0, None]}
