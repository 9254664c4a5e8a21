"""Measure what learners and actors cost.

    python scripts/actors_speed.py overhead [--seconds 10] [--rounds 3]
    python scripts/actors_speed.py scaling [--actors 1,2,4,8,16] [--modes async,rma,seed] [--seconds 10] [-o actors.png]

`overhead`: one actor with 10,000 CartPoles and one learner with concurrency=rma, against the slower of the two halves alone (rollouts, and
updates, on one thread), and against both at the same time in two processes that exchange nothing: what two cores of the machine can do at
all. Everything is measured in turn; ratios are medians over rounds.

`scaling`: actors that step one environment each, whose step sleeps for 20 ms, so that more actors than cores can be measured. Prints steps
per second, their share of A times those of one actor, and how long both roles wait. Needs gymnasium, and matplotlib for the figure.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
QUIET = [
    "tuned=none",
    "device=cpu",
    "log.live=false",
    "log.tensorboard=false",
    "eval.every=never",
    "eval.episodes=1",
    "eval.final_episodes=1",
]
A2C = ["agent=a2c", "agent.advantage=vtrace", "stop_when_solved=false", "checkpoint.every=never", "checkpoint.best=false"]
CARTPOLES = ["env=cartpole", "n_envs=10000", "agent.horizon=16", "concurrency.threads=1", *A2C]
STEP_S = 0.02


def records(ranks: int, seconds: float, *overrides: str) -> list[dict[str, float]]:
    """Train with `ranks` processes for about `seconds` after the first iteration, and return the records of its second half."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        limit = [f"max_minutes={seconds / 60}", "total_steps=1e12", f"log.every={seconds / 20}s", f"run_dir={run}"]
        processes = [f"concurrency.processes={ranks}"]
        given = [sys.executable, "-m", "warprun", *QUIET, *overrides, *processes, *limit]
        subprocess.run(given, check=True, stdout=subprocess.DEVNULL, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"})
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    if len(rows) < 4:
        sys.exit(f"only {len(rows)} records in {seconds:g} s: --seconds={3 * seconds:g}")
    return rows[len(rows) // 2 - 1 : -1]  # the last one includes the final evaluation


def rate(rows: list[dict[str, float]]) -> float:
    """Return environment steps per second between the first and the last of some records."""
    return (rows[-1]["env_steps"] - rows[0]["env_steps"]) / (rows[-1]["wall_s"] - rows[0]["wall_s"])


def half(name: str, seconds: float) -> None:
    """Print environment steps per second of rollouts alone or of updates alone, on one thread."""
    from warprun.config.compose import compose
    from warprun.runs.build import make_agent, make_training_simulator, prepare, set_up

    setup = set_up(compose([*QUIET, *CARTPOLES]))
    agent, config = make_agent(setup), setup.config
    simulator = make_training_simulator(setup, agent)
    prepare(setup, simulator)
    trajectory = simulator.collect(agent.act)
    agent.update(trajectory, 0.0)
    print(flush=True)
    sys.stdin.readline()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        if name == "rollout":
            simulator.collect(agent.act)
        else:
            agent.update(trajectory, 0.5)
        count += 1
    print(count * config.n_envs * config.agent.horizon / (time.perf_counter() - began))


def halves(names: tuple[str, ...], seconds: float) -> list[float]:
    """Return environment steps per second of halves that run at the same time, each in a process of its own."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    started = [subprocess.Popen([sys.executable, __file__, name, "--seconds", str(seconds)], **pipes) for name in names]
    for process in started:
        process.stdout.readline()  # it is ready
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()
    return [float(process.communicate()[0]) for process in started]


def overhead(seconds: float, rounds: int) -> None:
    """Print the ratios of a run of two ranks, and of both halves side by side, to the slower half alone."""
    ratios: dict[str, list[float]] = {"rma": [], "side by side": []}
    for _ in range(rounds):
        rollout, update = (halves((name,), seconds)[0] for name in ("rollout", "update"))
        beside = halves(("rollout", "update"), seconds)
        rows = records(2, 2 * seconds, *CARTPOLES, "concurrency=rma")
        slower, rma = min(rollout, update), rate(rows)
        ratios["rma"].append(rma / slower)
        ratios["side by side"].append(min(beside) / slower)
        waits = ", ".join(f"{role} waits {rows[-1][f'actors/{role}_waiting_share']:.0%}" for role in ("learner", "actor"))
        print(f"alone: rollout {rollout:,.0f}/s, update {update:,.0f}/s; side by side {beside[0]:,.0f}/s, {beside[1]:,.0f}/s")
        print(
            f"rma {rma:,.0f}/s: {rma / slower:.0%} of the slower half alone, {rma / min(beside):.0%} of it beside the other; {waits}",
            flush=True,
        )
    for name, found in ratios.items():
        print(f"{name}: median {statistics.median(found):.0%} of the slower half alone")


def scaling(modes: list[str], actors: list[int], seconds: float, figure: str | None) -> None:
    """Print a table of steps per second, and draw it."""
    found: dict[str, list[float]] = {}
    print("| mode | actors | steps/s | of linear | learner waits | actors wait |\n|---|---|---|---|---|---|")
    for mode in modes:
        found[mode] = []
        for count in actors:
            sleepy = ["env.module=./scripts/sleepy.py", "env.name=sleepy", f"n_envs={count}", "agent.horizon=16"]
            rows = records(count + 1, seconds, *sleepy, *A2C, f"concurrency={mode}")
            found[mode].append(rate(rows))
            share = found[mode][-1] * actors[0] / (found[mode][0] * count)
            waits = [statistics.mean(row[f"actors/{role}_waiting_share"] for row in rows) for role in ("learner", "actor")]
            print(f"| `{mode}` | {count} | {found[mode][-1]:.1f} | {share:.0%} | {waits[0]:.0%} | {waits[1]:.0%} |", flush=True)
    if figure:
        draw(found, actors, figure)


def draw(found: dict[str, list[float]], actors: list[int], path: str) -> None:
    """Draw steps per second against actors."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    made: Any = pyplot.subplots(figsize=(5, 4), layout="constrained")
    figure, axes = made
    for (mode, rates), marker in zip(found.items(), "osvD", strict=False):
        axes.plot(actors, rates, marker=marker, label=mode)
    axes.plot(actors, [count / STEP_S for count in actors], "k:", label="1 / (20 ms) per actor")
    axes.set(xlabel="actors", ylabel="environment steps per second", xscale="log", yscale="log")
    axes.set_xticks(actors, [str(count) for count in actors], minor=False)
    axes.set_yticks([count / STEP_S for count in actors], [f"{count / STEP_S:g}" for count in actors])
    axes.minorticks_off()
    axes.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("overhead", "scaling", "rollout", "update"))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--actors", default="1,2,4,8,16")
    parser.add_argument("--modes", default="async,rma,seed")
    parser.add_argument("-o", "--figure")
    given = parser.parse_args()
    if given.what == "overhead":
        overhead(given.seconds, given.rounds)
    elif given.what != "scaling":
        half(given.what, given.seconds)
    else:
        scaling(given.modes.split(","), [int(count) for count in given.actors.split(",")], given.seconds, given.figure)


if __name__ == "__main__":
    main()
