"""The studies that scripts/results.py makes: their cases, what counts as solved, and the columns of their tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from common import DOCS, table

from warprun.config.compose import compose
from warprun.config.schema import sized
from warprun.runs import auto

Run = dict[str, Any]
"""Numbers of a run: bar, state, env_steps, wall_s, cpu_s, command_s, and those of evaluations, such as `last/return`; or `failed`."""
Runs = dict[str, list[Run]]
"""By case."""
Column = Callable[["Study", str, list[Run]], str]
"""Study, case and its runs -> a cell."""


class Case(NamedTuple):
    """A training that is repeated over seeds."""

    overrides: str
    bar: float | None = None
    """The return to reach; None: `env.solved_at`."""


class Study(NamedTuple):
    """Trainings whose results are one table."""

    place: tuple[Path, str] | None
    """Page and mark of the table; None: it is only printed."""
    cases: dict[str, Case]
    columns: dict[str, Column]
    """By title."""
    evaluations: tuple[tuple[str, int, bool, int], ...]
    """(checkpoint `last` or `best`, episodes, whether actions are the most probable ones, seed)."""
    is_solved: Callable[[str, Case, Run], bool]
    seeds: int = 5
    write_table: Callable[[Study, Runs], str] | None = None
    """For a table that has not a line for each case."""

    def solved(self, case: str, run: Run) -> bool:
        """Return whether a run is solved; one that failed is not."""
        return "failed" not in run and self.is_solved(case, self.cases[case], run)

    def table(self, runs: Runs) -> str:
        """Return the table of the cases that have runs, in Markdown."""
        if self.write_table:
            return self.write_table(self, runs)
        rows = [[cell(self, case, runs[case]) for cell in self.columns.values()] for case in self.cases if case in runs]
        return table(list(self.columns), rows)


# Cells ----------------------------------------------------------------------------------------------------------------


def name(study: Study, case: str, runs: list[Run]) -> str:
    """Return the case."""
    return case


def code(study: Study, case: str, runs: list[Run]) -> str:
    """Return the case as code."""
    return f"`{case}`"


def bar(study: Study, case: str, runs: list[Run]) -> str:
    """Return the return to reach."""
    known = [found for found in (study.cases[case].bar, *(run.get("bar") for run in _ended(runs))) if found is not None]
    return f"{known[0]:g}" if known else ""


def solved(study: Study, case: str, runs: list[Run]) -> str:
    """Return how many runs are solved, of how many."""
    return f"{sum(study.solved(case, run) for run in runs)}/{len(runs)}"


def number(key: str, over: Callable[[list[Any]], float], form: str) -> Column:
    """Return a column with one number of each run that did not fail, over these runs, in a format."""
    return lambda study, case, runs: format(over([run[key] for run in _ended(runs)]), form) if _ended(runs) else ""


def ranked(place: Callable[[int], int]) -> Column:
    """Return a column with the return, and its standard error, of the run at a place (number of runs -> index) in ascending order."""

    def cell(study: Study, case: str, runs: list[Run]) -> str:
        ordered = sorted(_ended(runs), key=lambda run: run["last/return"])
        return _with_error(ordered[place(len(ordered))]) if ordered else ""

    return cell


def every_seed(study: Study, case: str, runs: list[Run]) -> str:
    """Return the returns of all seeds with their standard errors."""
    return ", ".join(map(_with_error, _ended(runs)))


def spread(key: str) -> Column:
    """Return a column with the mean of a number over runs, and its standard error."""

    def cell(study: Study, case: str, runs: list[Run]) -> str:
        found = [run[key] for run in _ended(runs)]
        if len(found) < 2:
            return ""
        return f"{statistics.mean(found):.1f} ± {statistics.stdev(found) / len(found) ** 0.5:.1f}"

    return cell


def steps_of_paths(study: Study, case: str, runs: list[Run]) -> str:
    """Return the different lengths of the paths of the runs."""
    return ", ".join(map(str, sorted({int(run["last/path/steps"]) for run in _ended(runs)})))


def seconds(study: Study, case: str, runs: list[Run]) -> str:
    """Return the seconds of the commands: median (most)."""
    found = [run["command_s"] for run in _ended(runs)]
    return f"{statistics.median(found):.0f} ({max(found):.0f})" if found else ""


def _ended(runs: list[Run]) -> list[Run]:
    return [run for run in runs if "failed" not in run]


def _with_error(run: Run) -> str:
    return f"{run['last/return']:.1f} ± {run['last/return_stderr']:.1f}"


# What is solved -------------------------------------------------------------------------------------------------------


def at_the_bar(line: str) -> Callable[[str, Case, Run], bool]:
    """Return whether the policy of a checkpoint reaches the bar."""
    return lambda case, settings, run: run[f"{line}/return"] >= (run["bar"] if settings.bar is None else settings.bar)


def as_trained(case: str, settings: Case, run: Run) -> bool:
    """Return whether the run itself says that it is solved."""
    return bool(run["state"] == "solved")


def near_the_optimum(case: str, settings: Case, run: Run) -> bool:
    """Return whether the path and the episodes of a catalysis run are good enough for its scenario."""
    good = run["last/path/share_of_optimum"] >= 0.95 and run["last/terminated"] >= 0.99
    if case == "lh_lowbarrier":
        return bool(good and run["last/path/highest_energy"] <= 0.54)
    return bool(good and (run["last/path/highest_energy"] <= 0.0 or not case.startswith("er")))


# Classic control ------------------------------------------------------------------------------------------------------

middle = statistics.median
FRESH = (("last", 2000, True, 1),)
TUNED = {
    "cartpole_ppo": "env=cartpole n_envs=10000",
    "cartpole_a2c": "env=cartpole agent=a2c n_envs=10000",
    "acrobot_a2c": "env=acrobot agent=a2c",
    "acrobot_ppo": "env=acrobot agent=ppo",
    "pendulum_ppo": "env=pendulum agent=ppo",
    "mountain_car_continuous_ppo": "env=mountain_car_continuous agent=ppo",
    "acrobot_ppo_relu": "env=acrobot agent=ppo agent.network.activation=relu",
    "pendulum_ppo_relu": "env=pendulum agent=ppo agent.network.activation=relu",
}
RESULTS: dict[str, Column] = {
    "case": name,
    "bar": bar,
    "solved": solved,
    "mean return of the worst seed": ranked(lambda count: 0),
    "of the median seed": ranked(lambda count: count // 2),
    "env steps, median": number("env_steps", middle, ",.0f"),
    "wall s, median": number("wall_s", middle, ".1f"),
}
ENVIRONMENTS = ("cartpole", "pendulum")
SETTINGS = {
    "defaults": "",
    "n_envs=1": " n_envs=1",
    "n_envs=16": " n_envs=16",
    "n_envs=100": " n_envs=100",
    "n_envs=10000": " n_envs=10000",
    "learning rate x 3": " agent.learning_rate=0.003",
    "learning rate / 3": " agent.learning_rate=0.000333333",
    "hidden=[256,256]": " agent.network.hidden=[256,256]",
    "horizon=128": " agent.horizon=128",
    "relu": " agent.network.activation=relu",
}
"""Untuned setting -> overrides. The default learning rate is 1e-3."""
UNTUNED = "agent=ppo tuned=none total_steps=1e9 max_minutes=0.5 eval.every=2s"


def by_environment(study: Study, runs: Runs) -> str:
    """Return the table of untuned settings: number of solved seeds and the median return."""

    def cell(case: str) -> str:
        median = number("last/return", middle, ".0f")(study, case, runs.get(case, []))
        return solved(study, case, runs.get(case, [])) + f" ({median})" * bool(median)

    rows = [[setting, *(cell(f"{env} {setting}") for env in ENVIRONMENTS)] for setting in SETTINGS]
    return table(["setting", *ENVIRONMENTS], rows)


# Off-policy agents ----------------------------------------------------------------------------------------------------

BEST_AND_LAST = (("best", 2000, True, 2**40), ("last", 2000, True, 2**40))
FEW = {
    "cartpole_dqn": ("env=cartpole agent=dqn", 475.0),
    "acrobot_dqn": ("env=acrobot agent=dqn", -100.0),
    "cartpole_quantiles": ("env=cartpole agent=dqn agent.quantiles=10 agent.dueling=true", 475.0),
    "mountain_car_dqn": ("env=mountain_car agent=dqn", -120.0),
    "pendulum_td3": ("env=pendulum agent=td3", -200.0),
    "pendulum_ddpg": ("env=pendulum agent=ddpg", -200.0),
    "pendulum_sac": ("env=pendulum agent=sac", -160.0),
    "mountain_car_continuous_td3": ("env=mountain_car_continuous agent=td3", 90.0),
    "mountain_car_continuous_ddpg": ("env=mountain_car_continuous agent=ddpg", 90.0),
    "mountain_car_continuous_sac": ("env=mountain_car_continuous agent=sac", 90.0),
}
LARGE = "n_envs=1024 agent.learning_starts=4096 agent.utd_ratio=0.02 total_steps=1e6 eval.every=2.5%"
MANY = {
    # Explore only briefly: otherwise the short episodes of random actions fill the buffer.
    "cartpole_dqn": f"{LARGE} agent.replay.capacity=1e5 agent.n_step=10 agent.exploration_fraction=0.03 env.solved_at=490",
    "pendulum_td3": f"{LARGE} agent.replay.capacity=5e5 env.solved_at=-180",
    "pendulum_ddpg": f"{LARGE} agent.replay.capacity=5e5 env.solved_at=-180",
}
"""Case -> overrides in addition to those of FEW; runs stop above the bar, as other episodes decide."""
OFF_POLICY: dict[str, Column] = {
    "case": name,
    "bar": bar,
    "seeds at the bar": solved,
    "best checkpoint, min": number("best/return", min, ".1f"),
    "median": number("best/return", middle, ".1f"),
    "last checkpoint, median": number("last/return", middle, ".1f"),
    "env steps": number("env_steps", middle, ",.0f"),
    "seconds, median": number("cpu_s", middle, ".1f"),
}

# Policies with memory -------------------------------------------------------------------------------------------------

CARTPOLE = (
    "env=cartpole env.velocity=false tuned=none total_steps=1e6 eval.every=5% env.solved_at=475 agent=ppo n_envs=64 agent.horizon=64"
    " agent.minibatches=4 agent.learning_rate=2e-3 agent.network.hidden=[32]"
)
PENDULUM = (
    "env=pendulum env.velocity=false tuned=none eval.every=5% env.solved_at=-230 agent=ppo n_envs=64 agent.horizon=64 agent.minibatches=4"
    " agent.learning_rate=1e-3 agent.epochs=10 agent.gamma=0.95 total_steps=6e5 agent.normalize_obs=true"
)
MEMORY = {
    **{f"t_maze ppo {kind}": (f"env=t_maze env.length=20 agent=ppo agent.network={kind}", 3.8) for kind in ("lstm", "gru", "mlp")},
    **{f"t_maze dqn {kind}": (f"env=t_maze env.length=20 agent=dqn agent.network={kind}", 3.8) for kind in ("lstm", "gru")},
    **{f"cartpole ppo {kind}": (f"{CARTPOLE} agent.network.units=[32] agent.network={kind}", 475.0) for kind in ("lstm", "gru")},
    "cartpole ppo mlp": (CARTPOLE, 475.0),
    "cartpole dqn lstm": ("experiment=cartpole_positions_dqn", 475.0),
    **{f"pendulum ppo {kind}": (f"{PENDULUM} agent.network={kind}", -250.0) for kind in ("lstm", "gru", "mlp")},
}
REMEMBERING: dict[str, Column] = {
    "environment, agent, network": name,
    "bar": bar,
    "seeds at the bar": solved,
    "mean return, least": number("last/return", min, ".2f"),
    "median": number("last/return", middle, ".2f"),
    "env steps, median": number("env_steps", middle, ",.0f"),
    "processor s, median": number("cpu_s", middle, ".0f"),
}

# Other environments ---------------------------------------------------------------------------------------------------

GYMNASIUM = (
    "agent=ppo tuned=none n_envs=8 agent.horizon=32 agent.epochs=10 total_steps=100000 stop_when_solved=false eval.every=5%"
    " eval.episodes=20 eval.final_episodes=20"
)
EXTERNAL = {
    "cartpole_compiled": f"env=cartpole {GYMNASIUM}",
    "cartpole_gymnasium": f"env=gymnasium env.id=CartPole-v1 {GYMNASIUM}",
    "lunar_lander_ppo": "experiment=lunar_lander_ppo",
    "lunar_lander_td3": "experiment=lunar_lander_td3",
}
JUDGED: dict[str, Column] = {
    "case": code,
    "env steps": number("env_steps", max, ",.0f"),
    "mean return of every seed, 1,000 fresh episodes": every_seed,
    "wall s, median": number("wall_s", middle, ".0f"),
}
ACTORS = "env=cartpole agent=a2c agent.advantage=vtrace n_envs=96 agent.horizon=16 total_steps=3e6 concurrency.processes=4"
MODES = {
    "async": "concurrency=async",
    "rma": "concurrency=rma",
    "rma/range": "concurrency=rma concurrency.window=range",
    "rma/random": "concurrency=rma concurrency.window=random",
    "seed": "concurrency=seed",
}
IN_MODES: dict[str, Column] = {
    "mode": code,
    "solved": solved,
    "seconds, median (most)": seconds,
    "env_steps, median": number("env_steps", middle, ",.0f"),
    "lag": number("actors/lag_mean", middle, ".1f"),
}
SCENARIOS = ("lh", "er1", "er2", "diffusion2d", "diffusion3d", "lh_fine", "er2_fine")
CATALYSIS = {
    scenario: f"experiment=catalysis_lowbarrier env.scenario={scenario}"
    if scenario == "lh_lowbarrier"
    else f"env=catalysis agent=ppo env.scenario={scenario}{' total_steps=1e7' * scenario.endswith('_fine')}"
    for scenario in ("lh", "lh_lowbarrier", *SCENARIOS[1:], "leps")
}
CONTINUOUS = {f"lh {agent}": f"env=catalysis_continuous agent={agent} env.scenario=lh" for agent in ("ppo", "ddpg", "td3")}
PUBLISHED = {
    f"{scenario} published": f"experiment=catalysis_published env.scenario={scenario}"
    + " agent.entropy_coef=0.2 n_envs=500" * scenario.endswith("_fine")
    for scenario in SCENARIOS
}
PATHS: dict[str, Column] = {
    "scenario": name,
    "solved": solved,
    "share of the optimum, min": number("last/path/share_of_optimum", min, ".3f"),
    "success, sampled, min": number("last/terminated", min, ".3f"),
    "steps of the path": steps_of_paths,
    "highest energy above start, max": number("last/path/highest_energy", max, ".3f"),
    "env steps": number("env_steps", middle, ",.0f"),
    "wall s, median": number("wall_s", middle, ".0f"),
    "CPU s, median": number("cpu_s", middle, ".0f"),
}


BOOSTER = {
    "ppo": "env=booster agent=ppo",
    "dqn": "env=booster agent=dqn",
    "dqn lstm": "env=booster agent=dqn tuned=none n_envs=64 total_steps=250000 agent.horizon=4 agent.learning_starts=6400"
    " agent.utd_ratio=0.02 agent.batch_size=32 agent.learning_rate_end=1e-5 agent.gamma=0.9 agent.network=lstm"
    " agent.replay.sequence=20 agent.replay.burn_in=5",
    "ppo, continuous": "env=booster_continuous agent=ppo",
    "td3, continuous": "env=booster_continuous agent=td3",
    # Agents need few steps to find the way out.
    "ppo, compat": "env=booster agent=ppo env.mode=compat total_steps=4e5",
    "dqn, compat": "env=booster agent=dqn env.mode=compat total_steps=1e5",
}
REGULATED: dict[str, Column] = {"case": name, "return": spread("last/return"), "length": spread("last/episode_length")}

# Learners and actors of EXARL's claims --------------------------------------------------------------------------------

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
    "mean return of training episodes": spread("training/return"),
    "of 100 episodes at the end": spread("last/return"),
    "lag": number("actors/lag_mean", statistics.mean, ".1f"),
}

# Numbers of environments ----------------------------------------------------------------------------------------------

SIZES = (10, 30, 100, 300, 1000, 3000, 10_000)
SOLVING = {
    f"{env}, {agent}": f"env={env} agent={agent} eval.every=50000steps checkpoint.best=false max_minutes=0.6"
    for env in ("cartpole", "acrobot")
    for agent in ("ppo", "a2c")
}
# The rows of a gradient step of PPO stay as they are with the tuned 16 minibatches for 1,024 environments.
SIZED = {
    f"{case}, {n_envs}": f"{given} n_envs={n_envs}" + f" agent.minibatches={max(1, round(n_envs / 64))}" * case.endswith("ppo")
    for n_envs in SIZES
    for case, given in SOLVING.items()
}


def by_size(study: Study, runs: Runs) -> str:
    """Return the table of seconds until solved; bold is what `n_envs=auto` chooses from the median throughputs."""
    rows, ended = [], [run for own in runs.values() for run in _ended(own)]
    for case, overrides in SOLVING.items():
        speed, seconds = {}, {}
        for n_envs in SIZES:
            own = _ended(runs.get(f"{case}, {n_envs}", []))
            if own:
                speed[n_envs] = middle(run["steps_per_s"] / _share(run) for run in own)
                took = [run["training_s"] * _share(run) if run["state"] == "solved" else math.inf for run in own]
                seconds[n_envs] = middle(took)
        if not seconds:
            continue
        config = compose(overrides.split())
        tried = [auto.Tried(sized(config, n, ""), rate) for n, rate in speed.items()]
        chosen = auto.decided(tried, config.n_envs).n_envs
        cells = ["" if n not in seconds else f"{seconds[n]:.2f}" if math.isfinite(seconds[n]) else "–" for n in SIZES]
        cells = [f"**{cell}**" if n == chosen else cell for n, cell in zip(SIZES, cells, strict=True)]
        rows.append([case, *cells, f"{seconds[chosen] / min(seconds.values()):.2f}"])
    seeds = max((len(own) for own in runs.values()), default=0)
    loads = [run["load"] for run in ended] or [0.0]
    load = f"load average of the machine {min(loads):.0f} to {max(loads):.0f}"
    return table(["", *(f"{n:,}" for n in SIZES), "chosen / best"], rows) + f"\nSeeds: {seeds}; {load}.\n"


def _share(run: Run) -> float:
    """Return the share of a thread's time that a run had: other work took the rest, which is left out."""
    return float(min(1.0, run["cpu_s"] / run["command_s"]))


def _cases(overrides: dict[str, str], bar: float | None = None, more: str = "") -> dict[str, Case]:
    return {case: Case(given + more, bar) for case, given in overrides.items()}


def _catalysis(mark: str, overrides: dict[str, str], seeds: int) -> Study:
    place = DOCS / "benchmarks" / "catalysis.md", mark
    return Study(place, _cases(overrides), PATHS, (("last", 1000, False, 1),), near_the_optimum, seeds)


OFF_POLICY_PAGE = DOCS / "benchmarks" / "off_policy.md"
STUDIES = {
    "tuned": Study((DOCS / "results.md", "results"), _cases(TUNED), RESULTS, FRESH, at_the_bar("last"), seeds=8),
    "untuned": Study(
        (DOCS / "results.md", "robustness"),
        {f"{env} {key}": Case(f"env={env} {UNTUNED}{more}") for env in ENVIRONMENTS for key, more in SETTINGS.items()},
        {},
        FRESH,
        at_the_bar("last"),
        write_table=by_environment,
    ),
    "off_policy": Study(
        (OFF_POLICY_PAGE, "results few"),
        {case: Case(f"{given} stop_when_solved=false env.solved_at={bar:g}", bar) for case, (given, bar) in FEW.items()},
        OFF_POLICY,
        BEST_AND_LAST,
        at_the_bar("best"),
    ),
    "off_policy_many": Study(
        (OFF_POLICY_PAGE, "results many"),
        {case: Case(f"{FEW[case][0]} {more}", FEW[case][1]) for case, more in MANY.items()},
        OFF_POLICY,
        BEST_AND_LAST,
        at_the_bar("best"),
    ),
    "memory": Study(
        (DOCS / "memory.md", "results"),
        {case: Case(*given) for case, given in MEMORY.items()},
        REMEMBERING,
        (("last", 2000, True, 2**40),),
        at_the_bar("last"),
    ),
    "external": Study((DOCS / "external.md", "external results"), _cases(EXTERNAL), JUDGED, (("last", 1000, True, 1),), at_the_bar("last")),
    "actors": Study(None, _cases({mode: f"{ACTORS} {given}" for mode, given in MODES.items()}), IN_MODES, (), as_trained),
    "booster": Study(None, _cases(BOOSTER), REGULATED, (("last", 1000, True, 1),), as_trained),
    "exarl": Study(None, _cases(EXARL, 195.0, WHILE_LEARNING), LEARNED, (("last", 100, False, 1),), at_the_bar("last")),
    "auto": Study((DOCS / "auto.md", "auto"), _cases(SIZED), {}, (), as_trained, seeds=3, write_table=by_size),
    "catalysis": _catalysis("tuned", CATALYSIS, 5),
    "catalysis_continuous": _catalysis("continuous", CONTINUOUS, 5),
    "catalysis_published": _catalysis("published", PUBLISHED, 1),
}
