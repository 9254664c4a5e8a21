"""Bars of the test bed lie where their rule says, between numbers that are computed anew; tables count the runs that there are."""

import numpy as np
import pytest

import warprun
from tests.scripts import SCRIPTS, load
from tests.words import words

references, solvers, testbed = load("testbed_references"), load("testbed_solvers"), load("testbed")
RULED = {name: task for name, task in testbed.TASKS.items() if task.ends}
PLAYED = (
    *("integrator", "chemostat", "glucose", "service", "inventory", "epidemic", "maze", "screening", "plate", "packing"),
    *("battery", "antenna", "switch", "search", "reservoir", "detectors", "synthesis", "shield", "forest", "pump"),
)
PLAYED_BY_GROUPS = ("ring", "island")
SIMULATED = {"chemostat": 200, "epidemic": 200, "glucose": 100, "search": 20_000}  # episodes of references that are means over episodes
SIMULATED |= {"detectors": 400, "synthesis": 200, "shield": 200, "ring": 100, "island": 100}


def test_every_task_is_of_one_set_and_every_rule_has_its_reference():
    assert (len(testbed.CHOSEN), len(testbed.HELD), len(testbed.TASKS)) == (19, 21, 40)
    assert set(RULED) == set(references.REFERENCES) - {"integrator"}


@pytest.mark.by_default(3)
@pytest.mark.parametrize("name", RULED)
def test_quoted_numbers_are_those_computed(name):
    found, task = references.REFERENCES[name](), RULED[name]
    assert task.ends == pytest.approx(found[:2], rel=2e-3)
    assert task.bar == pytest.approx(found.naive + testbed.SHARE * (found.best - found.naive), rel=3e-3)


def test_the_integrator_has_the_linear_quadratic_optimum():
    assert references.integrator().best == pytest.approx(-3.40, abs=0.005)
    for task in (testbed.TASKS["integrator_small"], testbed.TASKS["integrator_large"]):
        assert task.source.startswith("linear-quadratic optimum -3.40e")


def check_returns(name, best, total):
    """Assert that the mean of returns is `best`, within standard errors, and that 200 such episodes solve a task of the rule."""
    error = total.std() / len(total) ** 0.5 * (1.0 + len(total) / SIMULATED.get(name, np.inf)) ** 0.5  # of the difference
    assert total.mean() == pytest.approx(best, abs=5.0 * error)
    if name in RULED:
        assert total.mean() - 2.0 * total.std() / 200**0.5 > RULED[name].bar


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
    check_returns(name, found.best, total)


@pytest.mark.long  # compiles
@pytest.mark.parametrize("name", PLAYED_BY_GROUPS)
def test_reference_policies_of_groups_earn_their_return_in_the_environment(name):
    pytest.importorskip("pettingzoo")
    found, env, returns = references.REFERENCES[name](), warprun.make_parallel(str(SCRIPTS / "testbed" / f"{name}.py")), []
    for seed in range(40):
        seen, _ = env.reset(seed=seed)
        total, t = 0.0, 0
        while env.agents:
            actions = {}
            for group, policy in found.policies.items():
                of_group = {actor: masked_of(seen[actor]) for actor in env.agents if actor.startswith(group)}
                chosen = policy(t, np.array([row for row, _ in of_group.values()]))
                for (actor, (_, mask)), action in zip(of_group.items(), chosen, strict=True):
                    actions[actor] = action if mask is None or mask[int(action)] else 1  # batteries do nothing where they cannot
            seen, rewards, *_ = env.step(actions)
            values = list(rewards.values())
            assert values == pytest.approx([values[0]] * len(values))  # all share one reward
            total, t = total + values[0], t + 1
        returns.append(total)
    check_returns(name, found.best, np.array(returns))


def masked_of(seen):
    """Return an observation and its mask, or None without one."""
    return (seen["observation"], seen["action_mask"]) if isinstance(seen, dict) else (seen, None)


def test_a_chain_prefers_what_pays_later():
    # State 0: action 0 earns 1 and stays, action 1 earns 0 and leads to state 1, which earns 3 in each step.
    chain = solvers.Chain(np.array([[[0], [1]], [[1], [1]]]), np.ones((2, 1, 1)), np.array([[1.0, 3.0], [0.0, 3.0]]))
    for steps, value, action in ((1, 1.0, 0), (2, 3.0, 1), (3, 6.0, 1)):
        values, actions = chain.values(steps)
        assert (values[0], actions[0, 0]) == (value, action)
    assert chain.constant(3)[0].tolist() == [3.0, 9.0]


def of_one_state(reward):
    """Return a chain of one state with these rewards [A, 1]."""
    return solvers.Chain(np.zeros((2, 1, 1), int), np.ones((2, 1, 1)), reward)


def test_chains_that_follow_each_other_are_planned_as_one():
    # State 0: in even steps action 1 earns 2, in odd ones action 0 earns 1; nothing moves.
    even, odd = (of_one_state(np.array([[0.0], [2.0]])), of_one_state(np.array([[1.0], [0.0]])))
    cycle = solvers.Cycle([even, odd])
    values, actions = cycle.values(3)
    assert (values.tolist(), actions[:, 0].tolist()) == ([5.0], [1, 0, 1])
    assert cycle.constant(3)[:, 0].tolist() == [1.0, 4.0]


def test_a_table_counts_the_runs_of_each_set():
    task = testbed.TASKS["maze"]

    def named(defaults, n_envs):
        more = {"derived": "", "fixed": testbed.FIXED["ppo"], "sb3": testbed.SB3}[defaults]
        return testbed.of_runs(task, "ppo", n_envs, more, testbed.SECONDS, 2)

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


HEALTHY = (
    *("cartpole", "acrobot", "pendulum", "integrator_small", "integrator_large", "reactor", "mountain_car_continuous", "bandit", "rooms"),
    *("mountain_car", "booster", "catalysis", "glucose", "inventory", "epidemic", "maze", "screening", "plate", "packing", "antenna"),
)


@pytest.mark.slow  # compiles
@pytest.mark.parametrize("bar", ["of the task", "null"])
@pytest.mark.parametrize("name", HEALTHY)
def test_a_run_that_reaches_the_bar_is_not_told_that_it_does_not_learn(name, bar, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(SCRIPTS / "testbed")
    task = testbed.TASKS[name]
    solved_at = task.bar if bar == "of the task" else bar
    given = words("agent=ppo tuned=none device=cpu concurrency.threads=1 n_envs=100 total_steps=1e6 stop_when_solved=false")
    result = warprun.train([*given, *task.overrides.split(), f"env.solved_at={solved_at}", f"run_dir={tmp_path / 'run'}"])
    assert result.eval_return >= task.bar
    assert "; try: " not in capsys.readouterr().out
