"""Every simulator keeps the same contract: kernels, and one that a user wrote with NumPy and torch alone."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import warprun
from tests.environments import pinball
from tests.environments.market import MEMORY, PRODUCERS
from tests.finished import QUIET
from tests.parallel.ranks import ROOT, start
from tests.simulation.rollouts import CASES, CPU, make
from tests.written import add_environment
from warprun.cli import main as cli
from warprun.errors import UserError
from warprun.simulation.simulator import Simulator
from warprun.simulation.trajectory import Trajectory
from warprun.state import restore

SMALL = ["n_envs=32", "device=cpu", "concurrency.threads=1", "log.live=false", "eval.episodes=20"]


def kernels(name: str) -> Callable[[int], Simulator]:
    case = CASES[name]
    return lambda seed: make(case.environment, name, n_envs=5, horizon=3, seed=seed, vary=dict(case.vary))


SIMULATORS: dict[str, Callable[[int], Simulator]] = {
    "cartpole": kernels("cartpole"),
    "several groups and masks": kernels("market"),
    "no kernels": lambda seed: pinball.Pinball(5, 3, seed, CPU),
}


def act(trajectory: Trajectory, row: int) -> None:
    for group in trajectory.groups.values():
        group.policy_output.copy_(group.obs[row].sum(-1, keepdim=True).expand_as(group.policy_output).cos())
        group.value[row].zero_()


def copied(trajectory: Trajectory) -> dict[str, torch.Tensor]:
    found = {"terminated": trajectory.terminated.clone(), "truncated": trajectory.truncated.clone()}
    for name, group in trajectory.groups.items():
        found |= {f"{name}/{key}": getattr(group, key).clone() for key in ("obs", "action", "reward", "log_prob")}
    return found


@pytest.mark.by_default(1)
@pytest.mark.parametrize("made", SIMULATORS.values(), ids=SIMULATORS)
def test_state_is_live_and_a_restored_simulator_takes_the_same_steps(made: Callable[[int], Simulator]) -> None:
    first, second = made(1), made(1)
    first.prepare()
    live = {name: tensor.data_ptr() for name, tensor in first.state().items()}
    for _ in range(9):
        first.collect(act)
    assert {name: tensor.data_ptr() for name, tensor in first.state().items()} == live
    saved = {name: tensor.clone() for name, tensor in first.state().items()}
    expected = copied(first.collect(act))
    second.prepare()
    second.collect(act)
    restore(second.state(), saved)
    found = copied(second.collect(act))
    assert second.steps == first.steps == 30
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name
    one, other = first.episodes(), second.episodes()
    assert one == other
    assert one.count > 0


def test_the_state_of_a_group_can_be_read_and_written() -> None:
    engine = make(CASES["market"].environment, "market", n_envs=7)
    state = {name: value.clone() for name, value in engine.state_of("producers").items()}
    numbers = {"price": (), "stock": (), "sold": (), "history": (MEMORY,), "visits": (2,)}
    assert {name: tuple(value.shape) for name, value in state.items()} == {n: (7, PRODUCERS, *shape) for n, shape in numbers.items()}
    history = torch.arange(7.0 * PRODUCERS * MEMORY).view(7, PRODUCERS, MEMORY)
    engine.set_state("producers", history=history, price=history[..., 0] / 1000)
    after = engine.state_of("producers")
    assert torch.equal(after["history"], history) and torch.equal(after["price"], history[..., 0] / 1000)
    assert torch.equal(after["visits"], state["visits"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    add_environment(tmp_path, "pinball", "solved_at: 17.5\n", "tests.environments.pinball")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_line_trains_evaluates_and_measures_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best policy pushes the ball to the middle and keeps it there: it earns 20 less about 2 on the way and 0.05 a step."""
    run = folder / "run"
    result = warprun.train(["env=pinball", "agent=ppo", *SMALL, "total_steps=100_000", f"run_dir={run}"])
    assert result.status == "solved"
    assert cli.run(["eval", str(run), "episodes=50"]) == 0
    monkeypatch.setattr("warprun.runs.bench.SECONDS", 0.02)
    assert cli.run(["bench", "env=pinball", "sizes=8", "threads=1", "device=cpu", f"out={folder / 'bench'}"]) == 0


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("env.params.mass=2", "env.params.mass: pinball has no parameters"),
        ("env.randomize.mass=[1,2]", "env.randomize.mass: pinball has no parameters"),
        ("env.on_nan=reset", "env.on_nan=reset: pinball is not made of kernel functions"),
        ("env.time_limit=7", "env.time_limit=7: pinball has a time limit of its own, 20"),
        ("device=cudasim", "device=cudasim: pinball is not made of kernel functions"),
    ],
)
def test_settings_of_kernels_are_refused(folder: Path, override: str, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("[", r"\[")):
        warprun.train(["env=pinball", "agent=ppo", *SMALL, override])
    assert not (folder / "outputs").exists()


FLAWED = {
    "from tests.environments.pinball import Pinball as environment": "`environment` is the class Pinball; write environment = Pinball()",
    "class Game:\n    from tests.environments.pinball import SPEC as spec\n    def make_simulator(self): ...\nenvironment = Game()": (
        "make_simulator of ./flawed.py fails: TypeError: Game.make_simulator() got an unexpected keyword argument 'n_envs'"
    ),
}


@pytest.mark.parametrize("text", FLAWED)
def test_what_is_no_environment_is_told_in_one_line(folder: Path, text: str, refusal: Callable[..., str]) -> None:
    (folder / "flawed.py").write_text(text)
    add_environment(folder, "flawed")
    assert FLAWED[text] in refusal("env=flawed", "agent=ppo", *SMALL)
    assert not list(folder.glob("outputs/*"))


HASTY = [*QUIET, "env.module=tests.environments.hasty", "agent=a2c", "n_envs=6", "agent.horizon=24", "total_steps=1e9", "max_minutes=0.5"]
TOO_OFTEN = "truncated {steps} times in {steps} steps by collect of the simulator; with spec.time_limit=20 it can be {rows}: lower"


def said_of(who: str, *arguments: str, ranks: int = 1) -> str:
    """Return the line with which a run ends where `who` truncates too often."""
    done = start(ranks, *HASTY, *arguments, cwd=ROOT, environment={"HASTY": who})
    own = done.returncode == 1 if ranks == 1 else done.returncode != 0  # mpiexec may end by the signal with which it ends the others
    assert own, done.stderr + done.stdout
    (line,) = done.stderr.splitlines()
    return line


DDP = ("concurrency=ddp", "concurrency.processes=2")
WHERE = {
    "an evaluation": (["evaluation", "eval.every=1%"], 1, "in an evaluation environment 1", 20, 1),
    "rank 1": (["RANK=1", *DDP], 1, "rank 1: environment 5", 24, 2),
    "rank 0": (["RANK=0", *DDP], 1, "environment 2", 24, 2),
    "an actor": (["PMI_RANK=2", "concurrency=sync"], 3, "rank 2 (actor 1): environment 5", 24, 2),
}


@pytest.mark.long
@pytest.mark.parametrize("where", WHERE)
def test_where_it_was_is_named(where: str, tmp_path: Path) -> None:
    (who, *given), ranks, told, steps, rows = WHERE[where]
    if ranks > 1:
        pytest.importorskip("mpi4py")
    line = said_of(who, *given, f"run_dir={tmp_path / 'run'}", ranks=ranks)
    assert f"error: {told} was {TOO_OFTEN.format(steps=steps, rows=rows)}" in line
