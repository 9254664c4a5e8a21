"""Measure what learners and actors cost.

    python scripts/actors_speed.py overhead [--seconds 10] [--rounds 3]
    python scripts/actors_speed.py scaling [--actors 1 2 4 8 16] [--modes async rma seed] [--figure actors.png]

`overhead`: one actor with 10,000 CartPoles and one learner with concurrency=rma, against the slower of the two halves
alone (rollouts, and updates, on one thread, by `warprun bench`), and against the same in two processes at the same time
that exchange nothing: what two cores of the machine can do at all. Everything is measured in turn; ratios are medians
over rounds.

`scaling`: actors that step one environment each, whose step sleeps for 20 ms, so that more actors than cores can be
measured. Prints steps per second, their share of A times those of one actor, and how long both roles wait. Needs
gymnasium, and matplotlib for the figure.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from common import figure, head, medians, row, settings
from exarl.runs import Record, sleepy, train

STEP_S = 0.02
A2C = ("agent.advantage=vtrace", "agent.horizon=16")
CARTPOLES = ("env=cartpole", *A2C)


def records(ranks: int, seconds: float, *overrides: str) -> list[Record]:
    """Train with some ranks for about `seconds` after the first iteration; return the records of the second half."""
    rows = train(ranks, *overrides, f"max_minutes={seconds / 60}", "total_steps=1e12", f"log.every={seconds / 20}s")
    if len(rows) < 4:
        sys.exit(f"only {len(rows)} records in {seconds:g} s: --seconds={3 * seconds:g}")
    return rows[len(rows) // 2 - 1 : -1]  # the last one includes the final evaluation


def rate(rows: list[Record]) -> float:
    """Return environment steps per second between the first and the last of some records."""
    return float((rows[-1]["env_steps"] - rows[0]["env_steps"]) / (rows[-1]["wall_s"] - rows[0]["wall_s"]))


def slower_half(processes: int) -> float:
    """Return environment steps per second of rollouts or updates, whatever is less, in one of `processes` at once."""
    with tempfile.TemporaryDirectory() as folder:
        bench = [
            sys.executable,
            "-m",
            "warprun",
            "bench",
            *CARTPOLES,
            "agent=a2c",
            "tuned=none",
            "device=cpu",
            "sizes=10000",
            "threads=1",
        ]
        started = [subprocess.Popen([*bench, f"out={folder}/{n}"], stdout=subprocess.DEVNULL) for n in range(processes)]
        if any(process.wait() for process in started):
            sys.exit("warprun bench failed")
        (found,) = json.loads((Path(folder) / "0" / "bench.json").read_text())["measurements"]
    update = 1.0 / (1.0 / found["training_steps_per_s"] - 1.0 / found["rollout_steps_per_s"])
    return float(min(found["rollout_steps_per_s"], update))


def overhead(seconds: float, rounds: int) -> None:
    """Print the ratios of a run of two ranks, and of both halves side by side, to the slower half alone."""
    ratios: dict[str, list[float]] = {"rma": [], "side by side": []}
    for _ in range(rounds):
        alone, beside = slower_half(1), slower_half(2)
        rows = records(2, 2 * seconds, *CARTPOLES, "n_envs=10000", "concurrency=rma")
        ratios["rma"].append(rate(rows) / alone)
        ratios["side by side"].append(beside / alone)
        waits = ", ".join(f"{role} waits {rows[-1][f'actors/{role}_waiting_share']:.0%}" for role in ("learner", "actor"))
        print(
            f"slower half alone {alone:,.0f}/s, beside another {beside:,.0f}/s, rma {rate(rows):,.0f}/s; {waits}",
            flush=True,
        )
    for name, ratio in medians(ratios).items():
        print(f"{name}: median {ratio:.0%} of the slower half alone")


def scaling(modes: list[str], actors: list[int], seconds: float, path: str) -> None:
    """Print a table of steps per second, and draw it."""
    found: dict[str, list[float]] = {mode: [] for mode in modes}
    print(head("mode", "actors", "steps/s", "of linear", "learner waits", "actors wait"))
    for mode, rates in found.items():
        for count in actors:
            rows = records(count + 1, seconds, *sleepy(1e3 * STEP_S), *A2C, f"n_envs={count}", f"concurrency={mode}")
            rates.append(rate(rows))
            shares = [rates[-1] * actors[0] / (rates[0] * count)]
            shares += [statistics.mean(each[f"actors/{role}_waiting_share"] for each in rows) for role in ("learner", "actor")]
            print(row(f"`{mode}`", count, f"{rates[-1]:.1f}", *(f"{share:.0%}" for share in shares)), flush=True)
    if not path:
        return
    with figure(Path(path), 1, (5, 4)) as (axes,):
        for (mode, rates), marker in zip(found.items(), "osvD", strict=False):
            axes.plot(actors, rates, marker=marker, label=mode)
        linear = [count / STEP_S for count in actors]
        axes.plot(actors, linear, "k:", label="1 / (20 ms) per actor")
        axes.set(xlabel="actors", ylabel="environment steps per second", xscale="log", yscale="log")
        axes.set_xticks(actors, map(str, actors), minor=False)
        axes.set_yticks(linear, [f"{each:g}" for each in linear])
        axes.minorticks_off()


def main() -> None:
    """Measure what is asked for."""
    given = settings(
        __doc__,
        "what",
        choices={"what": ("overhead", "scaling")},
        seconds=10.0,
        rounds=3,
        actors=[1, 2, 4, 8, 16],
        modes=["async", "rma", "seed"],
        figure="",
    )
    if given.what == "overhead":
        overhead(given.seconds, given.rounds)
    else:
        scaling(given.modes, given.actors, given.seconds, given.figure)


if __name__ == "__main__":
    main()
