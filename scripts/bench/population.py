"""Measure populations of agents: many small trainings by one command.

    python scripts/bench/population.py [KEY=VALUE ...] --jax JAX/bin/python --old OLD/bin/python [--parts ...]

Parts, each in rounds in which the candidates take turns, in reverse order every second round:

    peers   agents that learn CartPole by PPO with PureJaxRL's settings: steps/s of JAX, of rejax and of warprun
    seeds   32 seeds of `env=cartpole`, from the command to the table, of this version and of an earlier one
    sizes   1,024 agents against 64: steps/s
    solved  CartPole agents solved per second, by the settings of conf/experiment/cartpole_population.yaml
    grid    32 learning rates x 32 entropy coefficients of A2C

KEY=VALUE are settings for every sweep of this version. JAX and the earlier version are in environments of their own,
JAX with `pip install -r scripts/bench/requirements.txt`; without them a part measures this version alone. Steps/s are
those of all agents together. Those of training alone are the steps of half a training over the difference between the
times of a whole one and of half a one, so imports, building, final evaluations and files are not in them. CPU seconds
are those of all processes of a command. What is measured goes to docs/benchmarks/population.json, part by part;
`python scripts/reproduce.py --write` puts the tables into their page. Linux only.
"""

from __future__ import annotations

import ctypes
import datetime
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import peer_work as spec
from common import DOCS, described, machine, settings
from peer_warprun import settings_of
from peer_work import ONE_THREAD
from peers import CORES, HERE, Worker
from population_tables import PARTS, tables

LEARNERS = {"JAX": "prepare", "rejax": "prepare_rejax"}
LEAN = ["log.tensorboard=false", "log.every=10%", "checkpoint.best=false", "eval.every=never", "eval.final_episodes=20"]
"""Records and evaluations of agents that are only timed."""
PPO = ["env=cartpole", *settings_of(spec.POPULATION), f"n_envs={spec.AGENT_ENVS}", "stop_when_solved=false", *LEAN]
A2C = ["experiment=cartpole_population", "stop_when_solved=false", *LEAN]
KEPT = DOCS / "benchmarks" / "population.json"
SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""

Found = dict[str, Any]


def main() -> None:
    """Measure, keep what is measured, and print the tables."""
    chosen = settings(
        __doc__,
        "overrides*",
        choices={"parts": PARTS},
        parts=list(PARTS),
        rounds=3,
        agents=256,
        steps=131_072,
        seconds=10.0,
        many=1_024,
        few=64,
        many_steps=65_536,
        seeds=32,
        solved_agents=256,
        jax_agents=64,
        side=32,
        grid_steps=131_072,
        workers=CORES,
        jax="",
        old="",
    )
    # What a command leaves behind becomes a child of this process, so that its time is counted, too.
    ctypes.CDLL(None).prctl(SUBREAPER, 1)
    found: Found = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for part in chosen.parts:
            say(part)
            before = os.getloadavg()[0]
            measured = MEASURES[part](chosen, Path(folder))
            about = {"date": datetime.date.today().isoformat(), "machine": described(machine()), "load": before}
            about["settings"] = {name: value for name, value in vars(chosen).items() if name not in ("jax", "old")}  # paths
            found[part] = measured | about | {"versions": {name: versions(python) for name, python in pythons(chosen).items()}}
            KEPT.write_text(json.dumps(found, indent=1) + "\n")
            print(tables({part: found[part]}), flush=True)


def say(line: str) -> None:
    """Print a line with the time."""
    print(f"[{datetime.datetime.now():%H:%M:%S}] {line}", flush=True)


def pythons(chosen: Any) -> dict[str, str]:
    """Return the interpreters of the candidates by name."""
    given = {"warprun": sys.executable, "JAX": chosen.jax, "earlier": chosen.old}
    return {name: python for name, python in given.items() if python}


def versions(python: str) -> dict[str, str]:
    """Return the versions of what an environment has, and the commit of its warprun if it is a checkout."""

    def told(*command: str) -> str:
        return subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, text=True).stdout.strip()

    listed: dict[str, str] = json.loads(told(python, "-c", "import json, peer_work; print(json.dumps(peer_work.versions()))"))
    if "warprun" in listed:
        package = told(python, "-c", "import warprun; print(warprun.__path__[0])")
        listed["commit"] = told("git", "-C", package, "describe", "--always", "--dirty")
    return listed


def in_rounds(candidates: Mapping[str, Callable[[], Found]], rounds: int) -> dict[str, list[Found]]:
    """Return what each candidate measures in each round."""
    found: dict[str, list[Found]] = {name: [] for name in candidates}
    for n in range(rounds):
        for name in list(candidates) if n % 2 == 0 else reversed(list(candidates)):
            found[name].append(candidates[name]())
            told = {key: round(value, 2) for key, value in found[name][-1].items() if isinstance(value, float)}
            say(f"round {n + 1} of {rounds}: {name}: {told}")
    return found


# Commands -------------------------------------------------------------------------------------------------------------


class Sweeps:
    """The sweeps of one version."""

    def __init__(self, folder: Path, python: str, workers: int, overrides: Sequence[str]) -> None:
        self.python, self.overrides = python, [f"launcher.workers={workers}", *overrides]
        self.folder = folder

    def run(self, *words: str) -> Found:
        """Return the seconds of a sweep, its agents, their steps, and how many were solved. Raises RuntimeError."""
        with tempfile.TemporaryDirectory(dir=self.folder) as place:
            command = [self.python, "-m", "warprun", "-m", *words, *self.overrides, f"sweep_dir={place}/sweep"]
            log = Path(place, "log.txt")
            with log.open("w") as output:
                start = time.perf_counter()
                streams = {"stdout": output, "stderr": subprocess.STDOUT}
                process = subprocess.Popen(command, cwd=place, start_new_session=True, **streams)
                cpu_s, code = group_cpu_s(process)
                wall_s = time.perf_counter() - start
            if code:
                raise RuntimeError(f"exit code {code} of {' '.join(command)}\n{log.read_text()[-2000:]}")
            ended = [json.loads(path.read_text()) for path in Path(place, "sweep").glob("[0-9]*/status.json")]
        return {
            "wall_s": wall_s,
            "cpu_s": cpu_s,
            "agents": len(ended),
            "steps": sum(each["env_steps"] for each in ended),
            "solved": sum(each["state"] == "solved" for each in ended),
        }

    def timed(self, agents: int, steps: int, *words: str) -> Found:
        """Return the seconds of a sweep of seeds, and its steps/s: of the command, and of training alone."""
        half = self.run(*words, f"seed=range(0,{agents})", f"total_steps={steps // 2}")
        whole = self.run(*words, f"seed=range(0,{agents})", f"total_steps={steps}")
        more = whole["steps"] - half["steps"]
        return whole | {
            "half": half,
            "rate": whole["steps"] / whole["wall_s"],
            "cpu_rate": whole["steps"] / whole["cpu_s"],
            "training_rate": more / (whole["wall_s"] - half["wall_s"]),
            "training_cpu_rate": more / (whole["cpu_s"] - half["cpu_s"]),
        }


def group_cpu_s(process: subprocess.Popen[bytes]) -> tuple[float, int]:
    """Wait for the leader of a process group and for the rest; return CPU seconds of all, and the exit code."""
    used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(used[1])
    cpu_s = used[2].ru_utime + used[2].ru_stime
    while True:
        try:
            _, _, rest = os.wait4(-process.pid, 0)
        except ChildProcessError:
            return cpu_s, process.returncode
        cpu_s += rest.ru_utime + rest.ru_stime


def ours(chosen: Any, folder: Path) -> Sweeps:
    """Return the sweeps of this version."""
    return Sweeps(folder, sys.executable, chosen.workers, chosen.overrides)


# Parts ----------------------------------------------------------------------------------------------------------------


def peers(chosen: Any, folder: Path) -> Found:
    """Return the steps/s of `chosen.agents` agents."""
    sweeps, workers = ours(chosen, folder), dict[str, list[Worker]]()
    one_trunk = "agent.network.shared=true"
    found: Found = {"agents": chosen.agents, "told": {}, "prepared_s": {}}
    candidates: dict[str, Callable[[], Found]] = {
        "warprun": lambda: sweeps.timed(chosen.agents, chosen.steps, *PPO),
        "warprun, one trunk": lambda: sweeps.timed(chosen.agents, chosen.steps, *PPO, one_trunk),
    }
    for trunks in ([], [one_trunk]):
        sweeps.run(*PPO, *trunks, "seed=range(0,2)", "total_steps=16384")  # fills the cache
    try:
        for name, prepare in LEARNERS.items() if chosen.jax else ():
            workers[name] = [Worker(f"peer_population:{prepare}", CORES, chosen.jax, ONE_THREAD) for _ in range(CORES)]
            for worker, core in zip(workers[name], sorted(os.sched_getaffinity(0)), strict=True):
                os.sched_setaffinity(worker.process.pid, {core})
            answers = ask(workers[name], work="population", variant="unsafe_rbg", n_envs=chosen.agents // CORES)
            found["told"][name], found["prepared_s"][name] = answers[0]["settings"], answers[0]["prepared_s"]
            say(f"{name}: {answers[0]['settings']}")
            candidates[name] = lambda group=workers[name]: rates(ask(group, seconds=chosen.seconds))
        found["rows"] = in_rounds(candidates, chosen.rounds)
    finally:
        for worker in itertools.chain(*workers.values()):
            worker.close()
    return found


def ask(workers: Sequence[Worker], **question: Any) -> list[Found]:
    """Return the answers of processes that work at the same time."""
    with ThreadPoolExecutor(len(workers)) as threads:
        return list(threads.map(lambda worker: worker.ask(**question), workers))


def rates(answers: Sequence[Found]) -> Found:
    """Return the steps/s of all processes of a peer, which only trains."""
    steps, cpu_s = (sum(answer[key] for answer in answers) for key in ("steps", "cpu_s"))
    rate = sum(answer["steps"] / answer["wall_s"] for answer in answers)
    return {"answers": answers, "training_rate": rate, "training_cpu_rate": steps / cpu_s}


def seeds(chosen: Any, folder: Path) -> Found:
    """Return the seconds of a sweep of seeds by this version and by an earlier one, with kernels from the cache."""
    words = ("env=cartpole", f"seed=range(0,{chosen.seeds})")
    versions = {"warprun": ours(chosen, folder)}
    if chosen.old:
        versions["earlier"] = Sweeps(folder, chosen.old, chosen.workers, [])
    for sweeps in versions.values():
        sweeps.run("env=cartpole", "seed=0,1")  # fills the cache
    timed = {name: lambda sweeps=sweeps: sweeps.run(*words) for name, sweeps in versions.items()}
    return {"rows": in_rounds(timed, chosen.rounds)}


def sizes(chosen: Any, folder: Path) -> Found:
    """Return the steps/s of few agents and of many."""
    sweeps = ours(chosen, folder)
    sweeps.run(*PPO, "seed=range(0,2)", "total_steps=16384")
    timed = {f"{n:,} agents": lambda n=n: sweeps.timed(n, chosen.many_steps, *PPO) for n in (chosen.few, chosen.many)}
    return {"rows": in_rounds(timed, chosen.rounds)}


def solved(chosen: Any, folder: Path) -> Found:
    """Return how many agents solve CartPole, in how many seconds; by JAX with PureJaxRL's settings once."""
    sweeps = ours(chosen, folder)
    words = ("experiment=cartpole_population", f"seed=range(0,{chosen.solved_agents})")
    sweeps.run("experiment=cartpole_population", "seed=0,1")
    found: Found = {"rows": in_rounds({"warprun": lambda: sweeps.run(*words)}, chosen.rounds)}
    if chosen.jax:
        found["rows"]["JAX, PureJaxRL's settings"] = [solved_by_jax(chosen)]
    return found


def solved_by_jax(chosen: Any) -> Found:
    """Return the same of JAX, in a process for each core."""
    words = ["solve", *map(str, (chosen.jax_agents // CORES, chosen.jax_agents // CORES))]
    command = [chosen.jax, "-W", "ignore", str(HERE / "peer_population.py"), *words]
    environment = os.environ | ONE_THREAD
    processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(CORES)]
    found = [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]
    summed = {key: sum(each[key] for each in found) for key in ("agents", "solved", "cpu_s")}
    return summed | {key: max(each[key] for each in found) for key in ("wall_s", "compiled_s")}


def grid(chosen: Any, folder: Path) -> Found:
    """Return the seconds of a grid of learning rates and entropy coefficients, in one round."""
    sweeps, side = ours(chosen, folder), range(chosen.side)
    steps = f"total_steps={chosen.grid_steps}"
    sweeps.run(*A2C, "seed=0,1", "total_steps=16384")
    rates = ",".join(f"{1e-4 * 1e3 ** (n / max(1, chosen.side - 1)):.3g}" for n in side)
    coefficients = ",".join(f"{1e-4 * 1e4 ** (n / max(1, chosen.side - 1)):.3g}" for n in side)
    words = (*A2C, steps, f"agent.learning_rate={rates}", f"agent.entropy_coef={coefficients}")
    return {"rows": in_rounds({"warprun": lambda: sweeps.run(*words)}, 1)}


MEASURES: dict[str, Callable[[Any, Path], Found]] = {
    "peers": peers,
    "seeds": seeds,
    "sizes": sizes,
    "solved": solved,
    "grid": grid,
}


if __name__ == "__main__":
    main()
