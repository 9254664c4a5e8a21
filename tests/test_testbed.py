"""The environments of examples/testbed: bars lie where their rule says, some references are computed anew, and tables count the runs."""

import csv
import importlib.util
import itertools
import shutil
import subprocess
import sys

import numpy as np
import pytest

import warprun
from tests.commands import ROOT, scripts
from tests.scripts import load
from tests.words import words
from warprun.config.compose import compose
from warprun.config.overrides import runs
from warprun.sweeps.launch import is_of_sweep

tables = load("defaults_tables")
FOLDER = ROOT / "examples" / "testbed"
TASKS = {row["task"]: row for row in csv.DictReader(tables.TASKS.open())}


def module(name):
    """Return an environment of the folder, newly loaded."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def check(name, blind, reference):
    """Assert that computed returns are those of the table."""
    assert [blind, reference] == pytest.approx([float(TASKS[name]["blind"]), float(TASKS[name]["reference"])], rel=5e-4)


def test_every_environment_has_a_file_of_settings_and_a_task():
    named = {file.stem for file in (FOLDER / "conf" / "env").glob("*.yaml")}
    assert named == {file.stem for file in FOLDER.glob("*.py")} - {"sb3"}
    assert named <= {task["settings"].split()[0].removeprefix("env=") for task in TASKS.values()}


@pytest.mark.by_default(2)
@pytest.mark.parametrize("name", TASKS)
def test_runs_have_the_bars_of_the_table(name, monkeypatch):
    monkeypatch.chdir(FOLDER)
    assert compose(TASKS[name]["settings"].split()).env.solved_at == float(TASKS[name]["bar"])


def test_bars_lie_four_fifths_of_the_way_from_the_blind_policy_to_the_reference():
    ruled = [task for task in TASKS.values() if task["blind"]]
    assert len(ruled) == 25
    for task in ruled:
        blind, reference = float(task["blind"]), float(task["reference"])
        assert float(task["bar"]) == float(f"{blind + 0.8 * (reference - blind):.4g}"), task["task"]


def test_the_optimum_of_the_maze_is_that_of_dynamic_programming():
    maze = module("maze")
    side, p, every = maze.SIDE, maze.Params(), range(maze.SIDE)
    outcomes = [[maze.step(maze.State(x, y), action, p) for x in every for y in every] for action in range(4)]
    after = np.array([[state.x * side + state.y for state, _, _ in row] for row in outcomes])
    reward, goes_on = (np.array([[each(outcome) for outcome in row] for row in outcomes]) for each in (lambda o: o[1], lambda o: not o[2]))
    x, y = np.divmod(np.arange(side * side), side)
    start = np.where((x != maze.WALL) & (y != maze.WALL), 1.0 / (side - 1) ** 2, 0.0)
    goal = maze.GOAL[0] * side + maze.GOAL[1]
    start[0], start[goal] = start[0] + start[goal], 0.0
    best, constant = np.zeros(side * side), np.zeros((4, side * side))
    for _ in range(100):
        best = (reward + goes_on * best[after]).max(0)
        constant = reward + goes_on * np.take_along_axis(constant, after, 1)
    check("maze", (constant @ start).max(), best @ start)


def test_the_optimum_of_the_plate_is_that_of_the_riccati_equation(monkeypatch):
    plate = module("plate")
    p, zero, eye = plate.Params(), np.zeros(plate.SPOTS), np.eye(plate.SPOTS)
    monkeypatch.setattr(plate, "normal", lambda rng, n: 0.0)
    a = np.array([plate.step(plate.State(unit.copy(), zero.copy()), zero, None, p)[0].error for unit in eye]).T
    b = np.array([plate.step(plate.State(zero.copy(), zero.copy()), unit, None, p)[0].error for unit in eye]).T

    def cost(regulated):
        """Return the expected cost of 100 steps, from errors of -0.5 to 0.5; without actions unless regulated."""
        later, of_noise = 0.0 * eye, 0.0
        for _ in range(100):
            gain = regulated * np.linalg.solve(p.power * eye + b.T @ later @ b, b.T @ later @ a)
            of_noise += p.noise**2 * np.trace(later)
            later = eye + p.power * gain.T @ gain + (a - b @ gain).T @ later @ (a - b @ gain)
        return float(np.trace(later) / 12.0 + of_noise)

    check("plate", -cost(False), -cost(True))


def test_the_reference_of_the_epidemic_is_the_best_of_its_grid():
    epidemic, episodes = module("epidemic"), 200
    on_arrays = {"exp": np.exp, "log": np.log, "maximum": np.maximum, "float32": np.asarray}
    vars(epidemic).update(on_arrays, uniform=lambda rng, n, low, high: rng.uniform(low, high, episodes))

    def earned(high, low, above):
        """Return the mean return of one level above a number of infected, and of another below it."""
        state, total = epidemic.reset(np.random.default_rng(0)), 0.0
        for _ in range(52):
            state, reward, _ = epidemic.step(state, np.where(state.infected > above, high, low), epidemic.Params())
            total += reward.mean()
        return total

    levels = [(high, low) for high in range(4) for low in range(high)]
    best = max(earned(*pair, above) for pair, above in itertools.product(levels, np.geomspace(1.0e3, 1.0e5, 13)))
    check("epidemic", max(earned(level, level, 0.0) for level in range(4)), best)


def test_a_table_counts_the_runs_of_each_set():
    run = {"task": "maze", "n_envs": "1", "minutes": "1", "return": "0.5", "solved": "true"}
    several = [run | {"settings": "derived", "solved": solved} for solved in ("true", "false")]
    several += [run | {"settings": "sb3", "solved": "false"}, run | {"settings": "derived", "minutes": "0.5"}]
    title = "held out, that Stable-Baselines3 can train (1)"
    assert tables.counts(several, [TASKS["maze"], TASKS["ring"]]).splitlines()[-3:] == [
        f"| {title} | derived | 1/2 |  |  |  |",
        f"| {title} | fixed |  |  |  |  |",
        f"| {title} | sb3 | 0/1 |  |  |  |",
    ]


def test_the_campaign_trains_the_environments_that_rules_were_not_chosen_on(monkeypatch):
    monkeypatch.chdir(FOLDER)
    campaign = next(line for line in scripts(FOLDER / "README.md")[1].splitlines() if line.startswith("warprun -m"))
    own = {file.stem for file in (FOLDER / "conf" / "env").glob("*.yaml")}
    held = {task["settings"] for task in TASKS.values() if task["rules"] != "chosen"} & {f"env={name}" for name in own}
    jobs = runs([word for word in words(campaign.replace("'", ""))[2:] if not is_of_sweep(word)])
    assert {job[0] for job in jobs} == held and len(jobs) == 20 * len(held)
    assert compose(jobs[0]).max_minutes == 1.0


@pytest.mark.long  # compiles
def test_commands_of_the_readme_run(tmp_path, monkeypatch):
    """As they are written, with tiny budgets."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    shutil.copytree(FOLDER, tmp_path / "testbed", ignore=shutil.ignore_patterns("outputs"))
    for command in scripts(FOLDER / "README.md")[0].splitlines():
        given = [sys.executable, "-m", "tests.commands", *words(command.replace("'", ""))[1:]]
        done = subprocess.run(given, capture_output=True, text=True, cwd=tmp_path / "testbed")
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


HEALTHY = (
    *("cartpole", "acrobot", "pendulum", "integrator_small", "integrator_large", "reactor", "mountain_car_continuous", "bandit", "rooms"),
    *("mountain_car", "booster", "catalysis", "glucose", "inventory", "epidemic", "maze", "screening", "plate", "packing", "antenna"),
)


@pytest.mark.slow  # compiles
@pytest.mark.parametrize("more", ["", "env.solved_at=null"])
@pytest.mark.parametrize("name", HEALTHY)
def test_a_run_that_reaches_the_bar_is_not_told_that_it_does_not_learn(name, more, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(FOLDER)
    given = "agent=ppo tuned=none device=cpu concurrency.threads=1 n_envs=100 total_steps=1e6 stop_when_solved=false"
    result = warprun.train([*words(f"{given} {TASKS[name]['settings']} {more}"), f"run_dir={tmp_path / 'run'}"])
    assert result.eval_return is not None and result.eval_return >= float(TASKS[name]["bar"])
    assert "; try: " not in capsys.readouterr().out
