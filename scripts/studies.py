"""The studies that scripts/results.py makes: their cases, and the columns of their tables."""

from __future__ import annotations

import math
import statistics

import published
from common import DOCS, table
from study import (
    PEER,
    Case,
    Column,
    Picture,
    Run,
    Runs,
    Study,
    as_trained,
    at_the_bar,
    bar,
    cases_of,
    code,
    ended,
    every_seed,
    mean_of_seeds,
    name,
    number,
    ranged,
    ranked,
    seeds,
    solved,
)

from warprun.config.compose import compose
from warprun.config.schema import sized
from warprun.runs import auto

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

EVALUATED = "eval/return"
COMPARISONS = {
    "TD3": ("experiment=td3_or_ddpg agent=td3", -200.0),
    "DDPG": ("experiment=td3_or_ddpg agent=ddpg", -200.0),
    "DDPG, prioritized replay": ("experiment=prioritized_ddpg agent.replay.prioritized=true", -200.0),
    # Schedules are those of the experiment, which ends at the bar.
    **{agent.upper(): (f"experiment=a2c_or_dqn agent={agent} stop_when_solved=false until_steps=24000", 200.0) for agent in ("a2c", "dqn")},
}


def reaches_the_bar(case: str, settings: Case, run: Run) -> bool:
    """Return whether an evaluation during training reaches the bar."""
    return settings.bar is not None and max(run[f"curve/{EVALUATED}"][1]) >= settings.bar


def steps_to_the_bar(study: Study, case: str, runs: list[Run]) -> str:
    """Return the environment steps up to the first evaluation at the bar: median, least and largest; – if a run does not reach it."""
    reached = study.cases[case].bar
    firsts = [
        next((steps for steps, value in zip(*run[f"curve/{EVALUATED}"], strict=True) if reached is not None and value >= reached), None)
        for run in ended(runs)
    ]
    known = [steps for steps in firsts if steps is not None]
    return f"{middle(known):,.0f} [{min(known):,}, {max(known):,}]" if known and len(known) == len(runs) else "–"


def last_evaluation(study: Study, case: str, runs: list[Run]) -> str:
    """Return the return of the last evaluation: median, least and largest."""
    found = [run[f"curve/{EVALUATED}"][1][-1] for run in ended(runs)]
    return f"{middle(found):.1f} [{min(found):.1f}, {max(found):.1f}]" if found else "–"


COMPARED: dict[str, Column] = {
    "agent": name,
    "bar": bar,
    "seeds at the bar": solved,
    "env steps to it": steps_to_the_bar,
    "last evaluation": last_evaluation,
    "CPU s, median": number("cpu_s", middle, ".1f"),
}
RETURN = "return of an evaluation"
PICTURES = (
    Picture("td3_or_ddpg.png", EVALUATED, {"DDPG": "DDPG", "TD3": "TD3"}, RETURN, -200.0, 9000),
    Picture("prioritized_ddpg.png", EVALUATED, {"DDPG": "uniform", "DDPG, prioritized replay": "prioritized"}, RETURN, -200.0, 6000),
    Picture("a2c_or_dqn.png", EVALUATED, {"DQN": "DQN", "A2C": "A2C"}, RETURN, 200.0, 8000),
)

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
BREAKOUT = (
    "env=gymnasium env.id=MinAtar/Breakout-v1 env.register=[breakout] env.time_limit=5000 concurrency.workers=0 tuned=none n_envs=8"
    " agent.network=cnn agent.network.filters=[16] agent.network.kernels=[3] agent.network.strides=[1] agent.network.hidden=[128]"
    " agent.normalize_obs=false eval.every=never eval.final_episodes=2 checkpoint.best=false"
)
"""The network of Young and Tian 2019, "MinAtar", section 4."""
MINATAR = {
    "PPO": f"agent=ppo {BREAKOUT} agent.network.activation=relu agent.normalize_reward=false agent.horizon=128 agent.minibatches=4"
    " total_steps=204800",
    "DQN": f"agent=dqn {BREAKOUT} agent.double=false agent.batch_size=32 agent.utd_ratio=0.25 agent.learning_starts=5000"
    " agent.learning_rate=2.5e-4 agent.target_update_interval=250 total_steps=100000",
}
COMPETING: dict[str, Column] = {
    "agent, library": name,
    "env steps": number("env_steps", max, ",.0f"),
    "return, mean over seeds [95 %]": mean_of_seeds,
    "mean return of every seed, 200 fresh episodes": every_seed,
    "processor s, median": number("cpu_s", middle, ".0f"),
}
# Numbers of environments ----------------------------------------------------------------------------------------------

SIZES = (30, 100, 300, 1000, 3000)
SOLVING = {
    f"{env}, {agent}": f"env={env} agent={agent} eval.every=50000steps checkpoint.best=false max_minutes=0.2"
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
    rows, every = [], [run for own in runs.values() for run in ended(own)]
    for case, overrides in SOLVING.items():
        speed, took_s = {}, {}
        for n_envs in SIZES:
            own = ended(runs.get(f"{case}, {n_envs}", []))
            if own:
                speed[n_envs] = middle(run["steps_per_s"] / _share(run) for run in own)
                took = [run["training_s"] * _share(run) if run["state"] == "solved" else math.inf for run in own]
                took_s[n_envs] = middle(took)
        if not took_s:
            continue
        config = compose(overrides.split())
        tried = [auto.Tried(sized(config, n, ""), rate) for n, rate in speed.items()]
        chosen = auto.decided(tried, config.n_envs).n_envs
        cells = ["" if n not in took_s else f"{took_s[n]:.2f}" if math.isfinite(took_s[n]) else "–" for n in SIZES]
        cells = [f"**{cell}**" if n == chosen else cell for n, cell in zip(SIZES, cells, strict=True)]
        rows.append([case, *cells, f"{took_s[chosen] / min(took_s.values()):.2f}"])
    loads = [run["load"] for run in every]
    load = f"\nLoad average of the machine {min(loads):.1f} to {max(loads):.1f}.\n" if loads else ""
    return table(["", *(f"{n:,}" for n in SIZES), "chosen / best"], rows) + load


def _share(run: Run) -> float:
    """Return the share of a thread's time that a run had: other work took the rest, which is left out."""
    return float(min(1.0, run["cpu_s"] / run["command_s"]))


# Searches -------------------------------------------------------------------------------------------------------------

MEMBER = (
    "env=pendulum agent=ppo tuned=none total_steps=4e5 n_envs=64 agent.horizon=64 eval.every=never eval.final_episodes=200"
    " checkpoint.best=false stop_when_solved=false log.every=10%"
)
"""What scripts/bench/pbt.py does not search; the name says how it searches."""
SEARCHES = {"population-based training": f"{MEMBER} name=pbt", "random search": f"{MEMBER} name=random"}
SEARCHED: dict[str, Column] = {
    "search": name,
    "seeds": seeds,
    "best member": ranged("best", ".0f"),
    "middle member": ranged("middle", ".0f"),
}

OFF_POLICY_PAGE = DOCS / "benchmarks" / "off_policy.md"
STUDIES = {
    "tuned": Study((DOCS / "results.md", "results"), cases_of(TUNED), RESULTS, FRESH, at_the_bar("last"), seeds=8),
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
        (DOCS / "agents.md", "memory"),
        {case: Case(*given) for case, given in MEMORY.items()},
        REMEMBERING,
        (("last", 2000, True, 2**40),),
        at_the_bar("last"),
    ),
    "external": Study(
        (DOCS / "external.md", "external results"), cases_of(EXTERNAL), JUDGED, (("last", 1000, True, 1),), at_the_bar("last")
    ),
    "minatar": Study(
        (DOCS / "external.md", "minatar results"),
        {
            f"{agent}, {library}": Case(given + more)
            for agent, given in MINATAR.items()
            for library, more in (("warprun", ""), ("Stable-Baselines3", f" {PEER}"))
        },
        COMPETING,
        (("last", 200, True, 1),),
        as_trained,
        measure="breakout:trained",
    ),
    "auto": Study((DOCS / "sweeps.md", "auto"), cases_of(SIZED), {}, (), as_trained, seeds=3, write_table=by_size),
    "pbt": Study(
        (DOCS / "benchmarks" / "population.md", "pbt"), cases_of(SEARCHES), SEARCHED, (), as_trained, measure="bench.pbt:measured"
    ),
    "comparisons": Study(
        (OFF_POLICY_PAGE, "results comparisons"),
        {case: Case(*given) for case, given in COMPARISONS.items()},
        COMPARED,
        (),
        reaches_the_bar,
        curves=(EVALUATED,),
        pictures=PICTURES,
    ),
    **published.STUDIES,
}
