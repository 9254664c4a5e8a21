"""Bars of the test bed lie where their rule says, between numbers that are computed anew; tables count the runs that there are."""

import numpy as np
import pytest

import warprun
from tests.scripts import SCRIPTS, load

references, testbed = load("testbed_references"), load("testbed")
RULED = {name: task for name, task in testbed.TASKS.items() if task.ends}
PLAYED = (
    *("integrator", "chemostat", "glucose", "service", "inventory", "epidemic", "maze", "screening", "plate", "packing"),
    *("battery", "antenna", "switch", "search"),
)
SIMULATED = {"chemostat": 200, "epidemic": 200, "glucose": 100, "search": 20_000}  # episodes of references that are means over episodes


def test_every_task_is_of_one_set_and_every_rule_has_its_reference():
    assert (len(testbed.CHOSEN), len(testbed.HELD), len(testbed.TASKS)) == (12, 20, 32)
    assert set(RULED) == set(references.REFERENCES) - {"integrator"}


@pytest.mark.parametrize("name", RULED)
def test_quoted_numbers_are_those_computed(name):
    found, task = references.REFERENCES[name](), RULED[name]
    assert task.ends == pytest.approx(found[:2], rel=2e-3)
    assert task.bar == pytest.approx(found.naive + testbed.SHARE * (found.best - found.naive), rel=3e-3)


def test_the_integrator_has_the_linear_quadratic_optimum():
    assert references.integrator().best == pytest.approx(-3.40, abs=0.005)
    for task in (testbed.TASKS["integrator_small"], testbed.TASKS["integrator_large"]):
        assert task.source.startswith("linear-quadratic optimum -3.40e")


@pytest.mark.long  # compiles
@pytest.mark.parametrize("name", PLAYED)
def test_a_reference_policy_earns_its_return_in_the_environment(name):
    found, episodes = references.REFERENCES[name](), 2000
    envs = warprun.make_vec(str(SCRIPTS / "testbed" / f"{name}.py"), episodes)
    seen, _ = envs.reset(seed=1)
    total, going_on, t = np.zeros(episodes), np.ones(episodes, bool), 0
    while going_on.any():
        actions = found.policy(t, seen)
        actions[~going_on] = 0  # ended episodes go on with the next one, for which there are no more steps
        seen, reward, terminated, truncated, _ = envs.step(actions.astype(envs.action_space.dtype))
        total += going_on * reward
        going_on &= ~(terminated | truncated)
        t += 1
    error = total.std() / episodes**0.5 * (1.0 + episodes / SIMULATED.get(name, np.inf)) ** 0.5  # of the difference
    assert total.mean() == pytest.approx(found.best, abs=5.0 * error)
    if name in RULED:  # a run is solved by 200 episodes
        assert total.mean() - 2.0 * total.std() / 200**0.5 > RULED[name].bar


def test_a_chain_prefers_what_pays_later():
    # State 0: action 0 earns 1 and stays, action 1 earns 0 and leads to state 1, which earns 3 in each step.
    chain = references.Chain(np.array([[[0], [1]], [[1], [1]]]), np.ones((2, 1, 1)), np.array([[1.0, 3.0], [0.0, 3.0]]))
    for steps, value, action in ((1, 1.0, 0), (2, 3.0, 1), (3, 6.0, 1)):
        values, actions = chain.values(steps)
        assert (values[0], actions[0, 0]) == (value, action)
    assert chain.constant(3)[0].tolist() == [3.0, 9.0]


def test_a_table_counts_the_runs_of_each_set():
    task = testbed.TASKS["maze"]

    def named(defaults, n_envs):
        return testbed.of_runs(task, "ppo", n_envs, {"derived": "", "fixed": testbed.FIXED["ppo"], "sb3": testbed.SB3}[defaults], 30.0, 2)

    kept = {run: {"solved": run == named("derived", 1)[0], "return": 0.5} for n in (1, 16) for run in named("derived", n)}
    kept |= {run: {"solved": False, "return": 0.25} for run in named("sb3", 1)}
    tables = dict(testbed.of_page(kept))
    assert len(tables["test bed, chosen"].splitlines()) == 2
    assert tables["test bed, held out"].splitlines()[2:] == [
        f"| maze | {task.bar:g} | derived | 1/2, 0.5 | 0/2, 0.5 |  |  |",
        f"| maze | {task.bar:g} | sb3 | 0/2, 0.25 |  |  |  |",
        "| all |  | derived | 1/2 | 0/2 |  |  |",
        "| those of sb3 |  | derived | 1/2 |  |  |  |",
        "| those of sb3 |  | sb3 | 0/2 |  |  |  |",
    ]
