"""`warprun tune`: what is searched, continued and refused. The jobs train nothing; their return is their seed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from warprun.cli import main as cli
from warprun.cli.sweeps import checked_runs
from warprun.config.compose import compose
from warprun.errors import UserError
from warprun.runs import rundir
from warprun.sweeps import plan, study
from warprun.sweeps.spaces import SPACES, default_space
from warprun.sweeps.table import Board

SEARCH = ["seed=range(5,25)", "agent.learning_rate=tag(log,interval(1e-5,1e-2))", "env=cartpole", "tuned=none"]


def test_the_best_trial_is_named_and_its_settings_are_an_experiment(fake, capsys):
    assert cli.run(["tune", *SEARCH, "trials=6", "launcher.workers=2", "sweep_dir=s"]) == 0
    told = capsys.readouterr().out
    jobs = plan.read(fake / "s").jobs
    seeds = [int(word.removeprefix("seed=")) for job in jobs for word in job.overrides if word.startswith("seed=")]
    assert len(seeds) == 6 and max(seeds) > min(seeds)
    best = jobs[seeds.index(max(seeds))]
    assert f"best: trial {best.number}, return {max(seeds)}.00 ± 0.25, the highest of all and so biased upwards: " in told
    (fake / "conf" / "experiment").mkdir(parents=True)
    (fake / "conf" / "experiment" / "mine.yaml").write_text((fake / "s" / "best.yaml").read_text())
    config = compose(["experiment=mine"])
    assert f"agent.learning_rate={config.agent.learning_rate}" in best.overrides and config.origin.tuned is None and config.seed == 0


def test_a_study_continues_and_takes_no_other_space(fake, capsys, refusal):
    assert cli.run(["tune", *SEARCH, "trials=3", "sweep_dir=s"]) == 0
    before = [job.overrides for job in plan.read(fake / "s").jobs]
    assert cli.run(["tune", *SEARCH, "trials=5", "sweep_dir=s", "tune.pruner=asha"]) == 0
    after = [job.overrides for job in plan.read(fake / "s").jobs]
    assert after[:3] == before and len(after) == len({tuple(job) for job in after}) == 5
    capsys.readouterr()
    files = {path: path.read_bytes() for path in fake.rglob("*") if path.is_file()}
    for other in (["seed=range(5,26)", *SEARCH[1:]], SEARCH[1:], [*SEARCH, "n_envs=9"]):
        assert "holds a study of another search space: " in refusal("tune", *other, "trials=9", "sweep_dir=s")
    assert "holds a study" in refusal("-m", "seed=5", "sweep_dir=s")
    assert {path: path.read_bytes() for path in fake.rglob("*") if path.is_file()} == files


def test_an_interrupted_study_says_how_to_continue(fake, capsys, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "run", interrupted)
    assert cli.run(["tune", *SEARCH, "trials=3", "sweep_dir=s"]) == 130
    assert "continue: the same command with sweep_dir=s\n" in capsys.readouterr().out


def test_a_failed_trial_does_not_stop_the_others(fake, capsys):
    assert cli.run(["tune", "seed=1,2,5", "env=cartpole", "trials=6", "sweep_dir=s", "tune.seed=1"]) == 0
    told = capsys.readouterr()
    assert "failed" in told.out and "best: trial" in told.out and "return 5.00" in told.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("env=cartpole agent.gama=0.9", "did you mean 'agent.gamma'?"),
        ("seed=1,2 minutes=0", "tune.minutes=0.0 must be above 0"),
        ("seed=1,2 minutes=1 sampler=pbt", "tune.minutes: a population trains in rounds"),
        ("agent.gamma=interval(0.9,2.0)", "agent.gamma=2.0"),
        ("agent.gamma=interval(0.9,0.1)", "the lower first"),
        ("agent.learning_rate=tag(log,interval(0.0,1.0))", "begins above 0"),
        ("agent.learning_rate=tag(big,interval(0.1,1.0))", "unknown tag 'big'"),
        ("agent.gama=interval(0.1,0.2)", "did you mean 'agent.gamma'?"),
        ("seed=1,2 launcher=slurm", "tune starts its trials on this machine"),
        ("seed=1,2 trials=0", "tune.trials=0 must be from 1"),
        ("seed=1,2 pruner=medain", "tune.pruner=medain is not one of median, asha, none; did you mean 'median'?"),
        ("n_envs=auto tuned=none", "n_envs=auto: the settings that follow from the run are not known yet"),
        ("seed=1,2 run_dir=x", "the runs of a sweep lie in sweep_dir"),
        ("seed=range(1,1)", "has no values"),
    ],
)
def test_a_mistake_is_told_before_anything_is_made(fake, refusal, arguments, message):
    assert message in refusal("tune", *arguments.split()) and not list(fake.iterdir())


@pytest.mark.parametrize(
    ("override", "distribution"),
    [
        ("a.b=interval(0.1,2)", FloatDistribution(0.1, 2.0)),
        ("a.b=tag(log,interval(1e-5,1e-2))", FloatDistribution(1e-5, 1e-2, log=True)),
        ("a.b=int(interval(1,1e3))", IntDistribution(1, 1000)),
        ("a.b=interval(1,2)", FloatDistribution(1.0, 2.0)),
        ("a.b=tag(log,int(interval(8,512)))", IntDistribution(8, 512, log=True)),
        ("a.b=range(1,10,2)", IntDistribution(1, 9, step=2)),
        ("a.b=range(10,0,-5)", IntDistribution(5, 10, step=5)),
        ("a.b=range(0,1,0.25)", FloatDistribution(0.0, 0.75, step=0.25)),
        ("a.b=choice(16,32)", CategoricalDistribution(["16", "32"])),
        ("a.b=[16],[32,32]", CategoricalDistribution(["[16]", "[32,32]"])),
        ("agent=glob(d*)", CategoricalDistribution(["ddpg", "dqn"])),
    ],
)
def test_sweeps_of_hydra_are_distributions(override, distribution):
    found = study.read_space([override])
    assert list(found.distributions.values()) == [distribution]
    assert found.text == dict([override.split("=", 1)])


@pytest.mark.by_default(2)
@pytest.mark.parametrize("agent", SPACES)
def test_the_space_of_an_agent_can_be_searched(agent):
    """Every extreme value makes a config that is checked, with tuned settings and without; what nobody has set is within all ranges."""
    env = "pendulum" if agent in ("ddpg", "td3", "sac") else "cartpole"
    for tuned in ([], ["tuned=none"]):
        given = [f"env={env}", f"agent={agent}", *tuned]
        space = beginning(*given)
        assert 1 + len(SPACES[agent]) - len(space.distributions) == (agent == "ppo")
        assert len(checked_runs(space.corners())) >= 2 * len(space.distributions)
        assert not tuned or set(space.first) == set(space.distributions)


def test_the_first_trial_has_the_defaults(fake):
    assert cli.run(["tune", "env=cartpole", "tuned=none", "seed=7", "agent.gamma=0.9", "trials=3", "sweep_dir=s"]) == 0
    first, second, _ = (compose(job.overrides) for job in plan.read(fake / "s").jobs)
    defaults = compose(["env=cartpole", "tuned=none", "agent.gamma=0.9"])
    assert first.agent == defaults.agent != second.agent


@pytest.mark.long
@pytest.mark.parametrize(("given", "every"), [([], "10%"), (["eval.every=5%"], "5%")])
def test_trials_evaluate_at_the_same_parts_of_a_run(fake, given, every):
    assert cli.run(["tune", *SEARCH, *given, "trials=2", "sweep_dir=s"]) == 0
    assert {compose(job.overrides).eval.every for job in plan.read(fake / "s").jobs} == {every}
    assert ("every:" in (fake / "s" / "best.yaml").read_text()) == bool(given)


CARTPOLE = "env=cartpole tuned=none"
SAC = "env=pendulum agent=sac tuned=none"


@pytest.mark.parametrize(
    ("given", "searched", "left"),
    [
        (CARTPOLE, "agent.desired_kl", "agent.learning_rate"),
        (f"{CARTPOLE} agent.learning_rate=1e-3", "agent.gamma", "agent.desired_kl agent.learning_rate"),
        (f"{CARTPOLE} agent.target_kl=0.1", "agent.learning_rate", "agent.desired_kl"),
        (f"{CARTPOLE} agent.gamma=0.9 agent.network=lstm", "agent.gae_lambda", "agent.gamma agent.network.hidden agent.network.activation"),
        ("agent=dqn tuned=none", "agent.batch_size agent.target_update_interval agent.n_step agent.network.hidden", ""),
        (
            "agent=dqn tuned=none agent.network=lstm",
            "agent.n_step",
            "agent.batch_size agent.target_update_interval agent.network.hidden",
        ),
        (SAC, "agent.temperature_learning_rate", ""),
        (f"{SAC} experiment=constant", "agent.gamma", "agent.temperature_learning_rate"),  # what is off stays off
    ],
)
def test_what_is_searched_if_a_command_names_nothing(here, given, searched, left):
    (here / "conf" / "experiment").mkdir(parents=True)
    (here / "conf" / "experiment" / "constant.yaml").write_text("# @package _global_\nagent: {temperature_learning_rate: null}\n")
    config = compose(given.split())
    keys = {override.partition("=")[0] for override in default_space(config, given.split())}
    assert set(searched.split()) <= keys and not set(left.split()) & keys
    of_members = default_space(config, given.split(), networks=False)  # of a population, which keep their networks
    assert not any("network" in override for override in of_members)


def test_an_agent_without_a_space_is_told():
    config = compose([])
    with pytest.raises(UserError, match="agent=mine: tune has no search space of its own"):
        default_space(replace(config, agent=replace(config.agent, name="mine")), [])


def beginning(*given: str) -> study.Space:
    """Return the space of a command that names nothing, and where it begins."""
    config = compose(given)
    return study.read_space([*given, *default_space(config, given)]).beginning_with(config)


def test_settings_that_are_out_of_range_are_drawn_in_the_first_trial():
    space = beginning("env=mountain_car_continuous", "agent=ppo")
    assert "agent.entropy_coef" in set(space.distributions) - set(space.first)


@pytest.mark.parametrize(("limit", "gamma"), [(200, 0.99), (3000, 0.9967)])
def test_the_discount_of_a_run_without_a_search_is_searched_first(limit, gamma):
    space = beginning("env=pendulum", "tuned=none", f"env.time_limit={limit}")
    assert space.first["agent.gamma"] == str(gamma) and "0.999" in space.text["agent.gamma"]


def test_no_trial_starts_when_the_minutes_are_over(fake, capsys):
    assert cli.run(["tune", *SEARCH, "trials=1000", "minutes=1e-9", "sweep_dir=s"]) == 1
    assert "no trial has finished" in capsys.readouterr().out


def records(job: plan.Job, returns: list[float]) -> None:
    job.run.mkdir(exist_ok=True)
    rows = [{"env_steps": 100 * n + job.number, "wall_s": 1.0, "eval/return": value} for n, value in enumerate(returns, 1)]
    (job.run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def finish(job: plan.Job, value: float, state: str = "finished") -> None:
    job.folder.mkdir(parents=True, exist_ok=True)
    rundir.write_status(job.run, {"state": state, "eval": value})
    rundir.write_status(job.folder, {"state": state})


def test_a_trial_below_the_median_is_pruned_and_an_interrupted_one_continues(tmp_path: Path):
    from warprun.sweeps.launch import TuneSettings

    searched = study.read_space(SEARCH)
    made = plan.studied(tmp_path / "s", searched.text)
    plan.claimed(made, tmp_path).release()
    one = study.Study(made, searched, TuneSettings(trials=8), None)
    for n in range(study.LEAST_TRIALS):
        job = one.next()
        records(job, [10.0 + n, 20.0 + n])
        assert not one.watch(job)
        finish(job, 20.0 + n)
        one.ended(job)
    bad, good = one.next(), one.next()
    records(bad, [1.0])
    assert not one.watch(bad)  # one evaluation says too little
    records(bad, [1.0, 2.0])
    assert one.watch(bad) and not one.watch(bad)
    finish(bad, 2.0, "interrupted")
    one.ended(bad)
    assert "pruned after 2 evaluations" in Board.of(made).states[bad.number].error
    records(good, [30.0, 40.0])
    assert not one.watch(good)
    finish(good, 40.0, "interrupted")
    one.ended(good)
    again = study.Study(plan.read(tmp_path / "s"), searched, TuneSettings(trials=8), None)
    assert again.next() == good
    records(good, [30.0, 40.0, 50.0])
    assert not again.watch(good)
    finish(good, 50.0)
    again.ended(good)
    assert again.best == good
    new = again.next()
    assert new.number == 7 and again.next() is None
