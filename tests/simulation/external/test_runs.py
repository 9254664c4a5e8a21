"""Runs of environments with the interface of Gymnasium: every agent, evaluation, the copy in the run folder, resume, bench."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import warprun
from tests.simulation.external import clock
from tests.simulation.external.simulators import act, environment, simulator
from tests.written import add_environment
from warprun.cli import main as cli
from warprun.errors import UserError
from warprun.kernels import waiting
from warprun.runs import checkpoint

QUIET = ["device=cpu", "log.live=false", "log.tensorboard=false", "concurrency.workers=2"]
SMALL = ["n_envs=4", "eval.episodes=3", "eval.final_episodes=5", "eval.every=50%", *QUIET]
SOURCE = Path(clock.__file__).read_text()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with an environment file and its config: `walk` and, with get_state, `saved`."""
    monkeypatch.chdir(tmp_path)
    for name, kind in (("walk", "Walk"), ("saved", "Saved")):
        (tmp_path / f"{name}.py").write_text(f"{SOURCE}\n\nenvironment = {kind}\n")
        add_environment(tmp_path, name, "time_limit: 15\n")
    return tmp_path


AGENTS = {"a2c": "discrete", "ppo": "binary", "dqn": "discrete", "sac": "box"}


@pytest.mark.by_default(1)
@pytest.mark.parametrize("agent", AGENTS)
def test_every_agent_trains_and_is_evaluated(agent: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    short = ["total_steps=320", *(["agent.learning_starts=32"] if agent in ("dqn", "sac") else ["agent.horizon=16"])]
    assert cli.run(["env=walk", f"agent={agent}", f"env.kwargs.actions={AGENTS[agent]}", "run_dir=run", *short, *SMALL]) == 0
    (folder / "walk.py").write_text("raise RuntimeError('the run has a copy')\n")
    assert cli.run(["eval", "run", "episodes=6"]) == 0
    said = capfd.readouterr()
    assert "walk.py has changed since the run; the run's own copy is used" in said.out
    assert not [line for line in said.err.splitlines() if not line.startswith("compiling ")]
    assert json.loads((folder / "run" / "status.json").read_text())["state"] == "finished"


@pytest.mark.by_default(1)
@pytest.mark.parametrize("name", ["walk", "saved"])
def test_a_resumed_run_goes_on(name: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    given = [f"env={name}", "agent=ppo", "agent.horizon=16", "agent.minibatches=2", "eval.every=never", "checkpoint.keep=9"]
    given += [*SMALL[:3], *QUIET]
    assert cli.run([*given, "total_steps=640", "run_dir=whole"]) == 0
    assert cli.run([*given, "total_steps=320", "run_dir=parts"]) == 0
    assert cli.run(["resume=parts", "total_steps=640"]) == 0
    begins_anew = "cannot be continued in the middle of an episode: all environments begin new ones" in capfd.readouterr().out
    assert begins_anew == (name == "walk")
    whole, parts = (checkpoint.load(Path(run)).tensors for run in ("whole", "parts"))
    same = all(torch.equal(whole[each], parts[each]) for each in whole if each.startswith(("agent/", "simulator/")))
    assert same == (name == "saved")


def test_a_restored_simulator_begins_other_episodes() -> None:
    of = environment(id="CartPole-v1")
    with simulator(of) as first, simulator(of) as second:
        first.prepare()
        began = first.trajectory.groups["agent"].obs[0].clone()
        first.collect(act)
        saved = {name: tensor.clone() for name, tensor in first.state().items()}
        second.prepare()
        for name, tensor in second.state().items():
            tensor.copy_(saved[name])
        taken = second.collect(act)
        assert not taken.continues and second.steps == 2 * taken.horizon
        assert not torch.equal(taken.groups["agent"].obs[0], began)
        assert second.collect(act).continues


def test_masks_forbid_actions(folder: Path) -> None:
    of = environment(module=str(folder / "walk.py"), kwargs={"masked": True}, time_limit=9)
    assert of.spec.groups[0].masked
    with simulator(of, 5, 50) as made:
        made.prepare()
        for _ in range(3):
            group = made.collect(act).groups["agent"]
            assert group.mask is not None
            allowed = group.mask[:-1].gather(-1, group.action.long())
            assert bool(allowed.all()) and not bool(group.mask.all())
            place = group.obs[..., 0]
            assert torch.equal(group.mask, torch.stack((place < 0.5, place > -0.5), -1))
    assert not environment(module=str(folder / "walk.py"), kwargs={"masked": True}, mask=False).spec.groups[0].masked


def test_evaluations_play_each_environment_from_a_reset(folder: Path) -> None:
    """FrozenLake without slipping, always left: an episode lasts until the time limit, so 7 episodes in 4 environments take two rounds."""
    result = warprun.train(
        ["env=gymnasium", "env.id=FrozenLake-v1", "env.kwargs.is_slippery=false", "env.time_limit=11", "agent=a2c", "total_steps=64"]
        + ["n_envs=4", "agent.horizon=16", "eval.episodes=7", "eval.final_episodes=9", "eval.every=never", *QUIET]
    )
    assert result.metrics["eval/episodes"] == 9
    assert 1.0 <= result.metrics["eval/episode_length"] <= 11.0


GAME = "gymnasium.envs.classic_control:CartPoleEnv"
ENDLESS = """

class Endless(Walk):
    every = 0

    def reset(self, seed=None, options=None):
        return super().reset(seed)

    def step(self, action):
        obs, reward, _, _, info = super().step(action)
        return obs, reward, bool(self.every) and self.count % self.every == 0, False, info


class Ends(Endless):
    every = 5


def wrapped():
    from gymnasium import Env, wrappers
    return wrappers.TimeLimit(type("Wrapped", (Endless, Env), {})(), 7)


environment = """


def test_a_function_registers_environments_once(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(folder)
    (folder / "games.py").write_text(f"import gymnasium\n\n\ndef register():\n    gymnasium.register('Game-v0', {GAME!r})\n")
    given = ["env=gymnasium", "env.id=Game-v0", "agent=a2c", "agent.horizon=16", "total_steps=256", *SMALL]
    assert cli.run(given) == 2
    assert "[MODULE:FUNCTION] registers" in capfd.readouterr().err
    assert cli.run([*given, 'env.register=["games:register"]']) == 0
    assert "Overriding" not in capfd.readouterr().err


@pytest.mark.by_default(2)
@pytest.mark.parametrize(
    ("kind", "limit", "told"), [("Endless", "null", 1), ("Ends", "null", 0), ("Endless", "7", 0), ("wrapped", "null", 0)]
)
def test_episodes_without_end_are_told_once(kind: str, limit: str, told: int, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "walk.py").write_text(f"{SOURCE}{ENDLESS}{kind}\n")
    given = ["env=walk", f"env.time_limit={limit}", "agent=a2c", "agent.horizon=16", "total_steps=256", "eval.max_steps=200", *SMALL]
    assert cli.run(given) == 0
    said = "an evaluation plays each episode until it ends, at most eval.max_steps=200 steps; set env.time_limit=N"
    assert capfd.readouterr().out.count(said) == told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["env=gymnasium"], "env.id is missing"),
        (["env=gymnasium", "env.id=CartPole-v7"], "did you mean 'CartPole-v1'?"),
        (["env=gymnasium", "env.id=CartPole-v1", "env.register=[no_such_module]"], "env.register=no_such_module cannot be imported"),
        (["env=gymnasium", "env.id=Ant-v5"], "needs a package that is not installed: MuJoCo"),
        (["env=gymnasium", "env.id=CarRacing-v3"], "are images"),
        (["env=gymnasium", "env.id=CartPole-v1", "env.kwargs.colour=1"], "unexpected keyword argument 'colour'"),
        (["env=gymnasium", "env.id=CartPole-v1", "env.kwargs.max_episode_steps=3"], "write env.time_limit=STEPS"),
        (["env=gymnasium", "env.id=CartPole-v1", "env.timeout_s=0"], "env.timeout_s=0.0 must be a number above 0"),
        (["env=gymnasium", "env.id=CartPole-v1", "concurrency.workers=-1"], "concurrency.workers=-1 must be from 0"),
        (["env=gymnasium", "env.id=Taxi-v4", "agent=dqn"], "env.mask=false ignores it"),
        (["env=cartpole", "env.id=CartPole-v1"], "env.id is for environments with the interface of Gymnasium"),
        (["env=cartpole", "concurrency.workers=2"], "workers step environments with the interface of Gymnasium"),
        (["env=walk", "env.colour=1"], "env.kwargs.colour= gives an argument"),
        (["env=walk", "env.id=CartPole-v1"], "env.id is for env=gymnasium"),
        (["env=walk", "env.params.x=1"], "walk has no parameters; env.kwargs.x= gives an argument to the environment"),
        (
            ["env=walk", "env.kwargs.actoins=box"],
            "env.kwargs.actoins: Walk of ./walk.py has no argument 'actoins'; did you mean 'actions'?",
        ),
        (["env=forgotten"], "./forgotten.py does not define `environment`; write environment = Walk at its end"),
    ],
)
def test_mistakes_are_told_in_one_line(given: list[str], told: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "forgotten.py").write_text(SOURCE.partition("class Saved")[0])
    add_environment(folder, "forgotten")
    if "Ant-v5" in given[-1]:
        try:
            __import__("mujoco")
        except ImportError:
            pass
        else:
            pytest.skip("MuJoCo is installed")
    assert cli.run(given) == 2
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("warprun:")]
    assert told in line


def test_gymnasium_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(UserError, match=r'pip install "warprun\[gymnasium\]"') as refused:
        environment(id="CartPole-v1")
    assert "\n" not in str(refused.value)


MAKERS = {
    "a function": "def environment(): return Walk()",
    "a lambda": "environment = lambda: Walk()",
    "a function with an argument": "def environment(n=0): return Walk()",
    "a partial": "import functools\nenvironment = functools.partial(Walk)",
    "a wrapped environment": (
        "import gymnasium\ndef environment(): return gymnasium.wrappers.FrameStackObservation(gymnasium.make('CartPole-v1'), 4)"
    ),
}


@pytest.mark.parametrize("argument", ["", ", n_envs"])
def test_an_environment_that_changes_the_working_folder_leaves_that_of_the_run(folder: Path, argument: str) -> None:
    made = f"def __init__(self{argument}):\n        import os\n        os.chdir('/')\n        raise ValueError('no licence')"
    (folder / "moving.py").write_text(f"{SOURCE}\n\nclass Moving(Walk):\n    {made}\n\nenvironment = Moving\n")
    with pytest.raises(UserError, match="no licence"):
        environment(module="moving.py")
    assert Path.cwd() == folder


@pytest.mark.parametrize(("argument", "told"), [("", "making and first reset of late: 0 s"), (", n_envs", "making of late: 0 s")])
def test_an_environment_that_takes_long_to_begin_is_waited_for_with_a_line(
    folder: Path, argument: str, told: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_S", 0.0)
    monkeypatch.setattr(waiting, "FIRST_LINE_S", 0.0)
    made = f"def __init__(self{argument}):\n        import time\n        time.sleep(0.5)\n        raise ValueError('no licence')"
    (folder / "late.py").write_text(f"{SOURCE}\n\nclass Late(Walk):\n    {made}\n\nenvironment = Late\n")
    with pytest.raises(UserError, match="no licence"):
        environment(module="late.py")
    assert told in capfd.readouterr().err


@pytest.mark.parametrize("made", MAKERS)
def test_a_function_that_makes_an_environment_is_one(folder: Path, made: str) -> None:
    (folder / "maker.py").write_text(f"{SOURCE}\n\n{MAKERS[made]}\n")
    kwargs: dict[str, Any] = {"kwargs": {"n": 3}} if "argument" in made else {}
    with simulator(environment(module="maker.py", **kwargs), n_envs=2) as found:
        found.prepare()
        assert bool(found.collect(act).groups["agent"].obs.isfinite().all())


def test_what_makes_no_environment_is_told(folder: Path) -> None:
    for index, (text, told) in enumerate(
        (
            ("environment = Walk()", r"is an object of the class Walk, .*: write a function that returns one, def environment"),
            ("def environment(): return 3", r"maker1.py:[0-9]+ in environment: it must return an Environment, .*; it returns 3$"),
            ("def environment(n): return Walk()", r"argument 'n' needs a default, or a value: .* env.kwargs.n="),
        )
    ):
        (folder / f"maker{index}.py").write_text(f"{SOURCE}\n\n{text}\n")
        with pytest.raises(UserError, match=told):
            environment(module=f"maker{index}.py")
    with pytest.raises(UserError, match=r"env.n: maker2 has no options; env.kwargs.n= gives an argument"):
        environment(module="maker2.py", options={"n": 3})


@pytest.mark.by_default(0)
def test_bench_and_a_sweep(folder: Path) -> None:
    assert cli.run(["bench", "sizes=2,4", "env=walk", "agent=a2c", "agent.horizon=4", *QUIET]) == 0
    assert cli.run(["-m", "env=walk", "seed=0,1", "agent=a2c", "total_steps=128", "agent.horizon=8", *SMALL]) == 0
    assert len(list(folder.glob("outputs/sweeps/*/0*/status.json"))) == 2
