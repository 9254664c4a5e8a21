"""The studies of what was published about WarpSci, WarpDrive and EXARL; docs/reproductions.md has the verdicts."""

from __future__ import annotations

import statistics

from common import DOCS, table
from study import Case, Column, Run, Runs, Study, as_trained, at_the_bar, cases_of, ended, name, number, ranged, seeds, solved

middle = statistics.median
BENCHMARKS = DOCS / "benchmarks"

# Catalysis: WarpSci ---------------------------------------------------------------------------------------------------

CATALYSIS = {
    scenario: f"experiment=catalysis_lowbarrier env.scenario={scenario}"
    if scenario == "lh_lowbarrier"
    else f"env=catalysis agent=ppo env.scenario={scenario}{' total_steps=1e7' * scenario.endswith('_fine')}"
    for scenario in ("lh", "lh_lowbarrier", "er1", "er2", "diffusion2d", "diffusion3d", "lh_fine", "er2_fine", "leps")
}
CONTINUOUS = {f"lh {agent}": f"env=catalysis_continuous agent={agent} env.scenario=lh" for agent in ("ppo", "ddpg", "td3")}
PUBLISHED = {f"{scenario} published": f"experiment=catalysis_published env.scenario={scenario}" for scenario in ("lh", "er1", "er2")}


def steps_of_paths(study: Study, case: str, runs: list[Run]) -> str:
    """Return the different lengths of the paths of the runs."""
    return ", ".join(map(str, sorted({int(run["last/path/steps"]) for run in ended(runs)})))


def near_the_optimum(case: str, settings: Case, run: Run) -> bool:
    """Return whether the path and the episodes of a catalysis run are good enough for its scenario."""
    good = run["last/path/share_of_optimum"] >= 0.95 and run["last/terminated"] >= 0.99
    if case == "lh_lowbarrier":
        return bool(good and run["last/path/highest_energy"] <= 0.54)
    return bool(good and (run["last/path/highest_energy"] <= 0.0 or not case.startswith("er")))


PATHS: dict[str, Column] = {
    "scenario": name,
    "solved": solved,
    "share of the optimum": ranged("last/path/share_of_optimum", ".3f"),
    "success, sampled": ranged("last/terminated", ".3f"),
    "steps of the path": steps_of_paths,
    "highest energy above start": ranged("last/path/highest_energy", ".3f"),
    "of the straight line's elastic band": ranged("straight/highest_energy", ".3f"),
    "env steps": number("env_steps", middle, ",.0f"),
    "CPU s, median": number("cpu_s", middle, ".0f"),
}
SIZES = (4, 20, 100, 500)
MORE_ENVIRONMENTS = {
    f"{scenario}, {n_envs}": f"experiment=catalysis_published env.scenario={scenario} n_envs={n_envs} total_steps=12000000"
    " stop_when_solved=false checkpoint.every=never checkpoint.best=false eval.every=5% eval.episodes=100 eval.final_episodes=400"
    " eval.greedy=false"
    for scenario in ("lh", "er1")
    for n_envs in SIZES
}
"""The published settings; with 500 environments this is 48 updates of a rollout of 500 steps."""
LEARNING_WITH_MORE: dict[str, Column] = {
    "scenario, environments": name,
    "seeds": seeds,
    "return of evaluations, mean over training": ranged("during/eval/return", ".1f"),
    "success, mean over training": ranged("during/eval/terminated", ".3f"),
    "CPU s, median": number("cpu_s", middle, ".0f"),
}


def _catalysis(mark: str, overrides: dict[str, str]) -> Study:
    place = BENCHMARKS / "catalysis.md", mark
    return Study(place, cases_of(overrides), PATHS, (), near_the_optimum, measure="catalysis_results:measured")


# The COVID-19 economy: WarpSci ----------------------------------------------------------------------------------------

COVID = {
    "published": "experiment=covid_published total_steps=54000 eval.every=never checkpoint.best=false",
    "tuned": "env=covid eval.every=never checkpoint.best=false",
}
"""The published settings have a tenth of the published environment steps, the tuned ones all 540,000."""
COVID_GROUPS = ("governors", "planner")
COVID_POLICIES = (
    "untrained",
    "trained",
    "trained - untrained",
    "only governors trained",
    "only planner trained",
    "trained, most probable actions",
)
COVID_CURVES = tuple(f"train/{group}/return" for group in COVID_GROUPS)


def of_policies(study: Study, runs: Runs) -> str:
    """Return the table of the returns of policies, a line for each case and policy."""
    cells = [(policy, [ranged(f"{policy}/{column}", ".1f") for column in (*COVID_GROUPS, "payments")]) for policy in COVID_POLICIES]
    rows = [
        [case, policy, *(column(study, case, own) for column in columns), len(own)]
        for case, own in runs.items()
        for policy, columns in cells
    ]
    return table(["settings", "policy", *COVID_GROUPS, "payments", "seeds"], rows)


SUBSIDIES = (0, 9, 10, 20)
DISCOUNTS = (0.98, 0.99, 0.998, 1.0)
LEVELS = (1, 3, 5, 6, 7, 8, 10)


def of_references(study: Study, runs: Runs) -> str:
    """Return the tables of constant policies, of governors under constant subsidies, and of a month at another level."""
    kept = [run for own in runs.values() for run in ended(own)]
    found: Run = kept[0] if kept else {}
    titles = ["policy", "governors", "planner"]
    keys = {"always open, no subsidies": "level 1", "always closed, no subsidies": "level 10"}
    keys |= {f"best governors found, subsidy level {level}": f"subsidy {level}" for level in SUBSIDIES}
    rows = [[title, *(f"{found[f'{key}/{group}']:.1f}" for group in COVID_GROUPS)] for title, key in keys.items()] if found else []
    months = [[gamma, *(f"{found[f'month {gamma}'][level - 1]:.1f}" for level in LEVELS)] for gamma in DISCOUNTS] if found else []
    written = table(titles, rows)
    return written + ("\n" + table(["gamma", f"a month at level {LEVELS[0]}", *LEVELS[1:]], months) if months else "")


# The games of tag: WarpDrive ------------------------------------------------------------------------------------------

TAG = {
    "grid": "env=tag_gridworld agent=ppo eval.every=never checkpoint.best=false",
    "plane": "experiment=tag_plane eval.every=never eval.final_episodes=8 checkpoint.best=false",
}
TAGGERS, RUNNERS = ("random", "pursuit", "trained"), ("random", "trained")


def of_catches(study: Study, runs: Runs) -> str:
    """Return the table of catches, a line for each game and pair of policies."""
    rows = []
    for case, own in runs.items():
        for pair in [f"{taggers}, {runners}" for taggers in TAGGERS for runners in RUNNERS]:
            columns = ranged(f"{pair}/caught", ".1f"), ranged(f"{pair}/steps", ".0f")
            rows.append([case, *pair.split(", "), *(column(study, case, own) for column in columns), len(own)])
    return table(["game", "taggers", "runners", "caught, %", "steps of an episode", "seeds"], rows)


# Accelerator control: EXARL -------------------------------------------------------------------------------------------

OFF_POLICY = "tuned=none n_envs=64 agent.horizon=4 agent.learning_rate_end=1e-5 agent.gamma=0.9"
BOOSTER_A2C = "agent=a2c tuned=none n_envs=256 agent.horizon=16 agent.learning_rate_end=0 agent.gamma=0.9 agent.entropy_coef=0.01"
BOOSTER_LSTM = (
    f"agent=dqn {OFF_POLICY} agent.learning_starts=6400 agent.utd_ratio=0.02 agent.batch_size=32 agent.network=lstm"
    " agent.replay.sequence=20 agent.replay.burn_in=5"
)
ENDED_ONCE = "stop_when_solved=false eval.every=never checkpoint.best=false"
COMPAT = "env=booster env.mode=compat env.history=1"
"""What ExaBooster observes, and its ends of episodes. Agents need few steps to find the way out."""
BOOSTER_COMPAT = {
    "A2C": f"{COMPAT} {BOOSTER_A2C} total_steps=400000",
    "DQN": f"{COMPAT} agent=dqn total_steps=100000",
    "DQN, LSTM": f"{COMPAT} {BOOSTER_LSTM} total_steps=100000",
    "PPO": f"{COMPAT} agent=ppo total_steps=400000",
}
BOOSTER = {
    "PPO": "env=booster agent=ppo",
    "DQN": "env=booster agent=dqn",
    "PPO, continuous": "env=booster_continuous agent=ppo",
    "TD3, continuous": "env=booster_continuous agent=td3",
}
REGULATED: dict[str, Column] = {"agent": name, "env steps": number("env_steps", middle, ",.0f"), "seeds": seeds}
REGULATED |= {"return": ranged("last/return", ".2f")}
LEFT: dict[str, Column] = REGULATED | {"mean length, steps": ranged("last/episode_length", ".1f")}
REGULATORS = {
    "30 actions": "env=booster env.mode=corrected env.action=discrete",
    "continuous action": "env=booster env.mode=corrected env.action=continuous",
    "compat": "env=booster env.mode=compat env.action=discrete",
}
PLAYED = (("last", 1000, True, 1),)
"""The episodes that regulators play, too: scripts/booster_results.py."""


def of_regulators(study: Study, runs: Runs) -> str:
    """Return the table of regulators: returns under each action space, and returns and lengths in compat mode."""
    found = {case: ended(runs[case])[0] for case in study.cases if ended(runs.get(case, []))}
    names = dict.fromkeys(key.partition("/")[0] for run in found.values() for key in run if key.endswith("/return_error"))

    def cell(case: str, regulator: str) -> str:
        run = found.get(case, {})
        key = f"{regulator}/return"
        return f"{run[key]:.2f} ± {run[f'{key}_error']:.2f}" if key in run else "–"

    rows = [
        [
            regulator,
            *(cell(case, regulator) for case in study.cases),
            f"{found['compat'][f'{regulator}/length']:.1f}" if "compat" in found else "–",
        ]
        for regulator in names
    ]
    return table(["regulator", *(f"return, {case}" for case in study.cases), "mean length, compat, steps"], rows)


# Learners and actors: EXARL -------------------------------------------------------------------------------------------

V0 = "env=cartpole env.time_limit=200 agent=a2c n_envs=8 agent.horizon=100 agent.learning_rate=1e-3 total_steps=200000 concurrency=async"
"""CartPole-v0 is CartPole with episodes of 200 steps. One environment for each of eight actors."""
EIGHT = "env=cartpole agent=a2c n_envs=128 agent.horizon=16 agent.learning_rate=3e-3 agent.advantage=vtrace"
EXARL = {
    **{f"12 {kind}": f"{V0} agent.advantage={kind} concurrency.processes=9" for kind in ("gae", "exarl_vtrace", "vtrace")},
    **{
        f"7 L={learners}": f"{EIGHT} total_steps=300000 concurrency=async concurrency.learners={learners}"
        f" concurrency.processes={learners + 8}"
        for learners in (1, 2, 4, 8)
    },
    # Actors do not wait for learners, so these learn from a part of the rollouts only.
    **{
        f"9 {window}": f"{EIGHT} total_steps=3000000 concurrency=rma concurrency.window={window} concurrency.learners=4"
        " concurrency.processes=12"
        for window in ("range", "random")
    },
}
"""Claim and what differs -> overrides."""
WHILE_LEARNING = " tuned=none stop_when_solved=false eval.every=never checkpoint.every=never log.every=5%"
LEARNED: dict[str, Column] = {
    "claim, runs": name,
    "return of 195": solved,
    "mean return of training episodes": ranged("training/return", ".1f"),
    "of 100 episodes at the end": ranged("last/return", ".1f"),
    "lag": ranged("actors/lag_mean", ".1f"),
}

STUDIES = {
    "exarl": Study(
        (BENCHMARKS / "exarl.md", "exarl trainings"),
        cases_of(EXARL, 195.0, WHILE_LEARNING),
        LEARNED,
        (("last", 100, False, 1),),
        at_the_bar("last"),
    ),
    "catalysis": _catalysis("tuned", CATALYSIS),
    "catalysis_continuous": _catalysis("continuous", CONTINUOUS),
    "catalysis_published": _catalysis("published", PUBLISHED),
    "catalysis_envs": Study(
        (BENCHMARKS / "catalysis.md", "environments"),
        cases_of(MORE_ENVIRONMENTS),
        LEARNING_WITH_MORE,
        (),
        as_trained,
        curves=("eval/return", "eval/terminated"),
    ),
    "booster": Study((DOCS / "gallery.md", "corrected"), cases_of(BOOSTER, more=f" {ENDED_ONCE}"), REGULATED, PLAYED, as_trained),
    "booster_compat": Study((DOCS / "gallery.md", "compat"), cases_of(BOOSTER_COMPAT, more=f" {ENDED_ONCE}"), LEFT, PLAYED, as_trained),
    "booster_regulators": Study(
        (DOCS / "gallery.md", "regulators"),
        cases_of(REGULATORS),
        {},
        (),
        as_trained,
        seeds=1,
        write_table=of_regulators,
        measure="booster_results:measured",
    ),
    "covid": Study(
        (BENCHMARKS / "covid.md", "learning"),
        cases_of(COVID),
        {},
        (),
        as_trained,
        write_table=of_policies,
        curves=COVID_CURVES,
        measure="covid_results:measured",
    ),
    "covid_references": Study(
        (BENCHMARKS / "covid.md", "references"),
        {"all": Case("env=covid")},
        {},
        (),
        as_trained,
        seeds=1,
        write_table=of_references,
        measure="covid_results:references",
    ),
    "tag": Study(
        (BENCHMARKS / "tag.md", "catches"), cases_of(TAG), {}, (), as_trained, write_table=of_catches, measure="tag_results:measured"
    ),
}
