"""The parts of scripts/gpu_check.py: what is measured on a GPU, by which commands, and how long each may take."""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import gpu_members

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
WORK = [PYTHON, "scripts/gpu_work.py"]
WARPRUN = [PYTHON, "-m", "warprun"]
KEPT = 4000
"""Characters of the output of a command that failed, in the report; the archive has all of it."""
STARTS_S = 12.0
"""Seconds that a command needs to begin and to end, with compiled kernels."""
RUN_S = 6.0
"""Seconds of training of a run, if there is time."""
SIZES = (1_000, 10_000, 100_000, 1_000_000)
HIDDEN = "tuned=none agent.network.hidden=[64,64]"
PPO = (
    f"agent=ppo {HIDDEN} agent.horizon=16 agent.minibatches=4 agent.epochs=4 agent.learning_rate=0.001 agent.desired_kl=null"
    " agent.return_window=null agent.staggered=false"
)
BENCH: dict[str, tuple[str, tuple[int, ...]]] = {
    "A2C 64-64": (f"env=cartpole agent=a2c {HIDDEN}", (10, 100, *SIZES)),
    "A2C 32-32": ("env=cartpole agent=a2c tuned=none agent.network.hidden=[32,32]", SIZES),
    "PPO 4 x 4, 64-64": (f"env=cartpole {PPO}", SIZES),
    "Acrobot, A2C 64-64": (f"env=acrobot agent=a2c {HIDDEN}", (10, 100, 1_000, 10_000)),
    "catalysis, A2C": ("env=catalysis agent=a2c", (2_000,)),
    "COVID-19, PPO": ("experiment=covid_published agent.epochs=1", (60, 1_000)),
    "PPO 4 x 4, LSTM": (f"env=cartpole {PPO} agent.network.type=lstm agent.network.units=[64]", (1_024, 10_000)),
}
"""Work -> settings, and numbers of environments."""
FROM_REPLAY = "tuned=none agent.utd_ratio=0.25 agent.learning_starts=1024"
STEADY: dict[str, tuple[str, tuple[int, ...]]] = {
    "SAC": (f"env=pendulum agent=sac {FROM_REPLAY}", (64,)),
    "TD3": (f"env=pendulum agent=td3 {FROM_REPLAY}", (64,)),
    "DQN": (f"env=cartpole agent=dqn {FROM_REPLAY}", (64,)),
    "DQN, LSTM": (f"env=cartpole agent=dqn {FROM_REPLAY} agent.network=lstm agent.replay.sequence=10 agent.replay.burn_in=4", (64,)),
}
LAYERS: dict[str, tuple[str, tuple[int, ...]]] = {
    "A2C 64-64": (BENCH["A2C 64-64"][0], SIZES),
    "A2C 256-256": ("env=cartpole agent=a2c tuned=none agent.network.hidden=[256,256]", (10_000,)),
    "A2C 512-512": ("env=cartpole agent=a2c tuned=none agent.network.hidden=[512,512]", (10_000,)),
    "PPO 4 x 4, LSTM": (BENCH["PPO 4 x 4, LSTM"][0], (10_000,)),
    "SAC 256-256": (f"{STEADY['SAC'][0]} agent.network.hidden=[256,256]", (64,)),
}
CURVES = {env: (f"experiment=warpsci_{env}", (10, 100, 1_000, 10_000)) for env in ("cartpole", "acrobot")}
"""WarpSci's figures 2b and 2c."""
LATE = "tuned=none n_envs=1024 agent.utd_ratio=0.0625"
TRAININGS = {
    "cartpole a2c": "env=cartpole agent=a2c n_envs=10000",
    "cartpole ppo": "env=cartpole agent=ppo n_envs=10000",
    "cartpole ppo lstm": "env=cartpole agent=ppo n_envs=1024 agent.network=lstm tuned=none",
    "cartpole dqn": f"env=cartpole agent=dqn {LATE}",
    "pendulum sac": f"env=pendulum agent=sac {LATE}",
    "pendulum td3": f"env=pendulum agent=td3 {LATE}",
    "catalysis ppo": "env=catalysis agent=ppo n_envs=1000",
    "covid ppo": "env=covid agent=ppo n_envs=100",
}
PROFILED = {"A2C 64-64": (BENCH["A2C 64-64"][0], (10_000, 1_000_000))}
"""Iterations whose kernels are measured, and read by Nsight Compute."""
COUNTED = 3
"""Kernels that Nsight Compute reads, the largest ones of an iteration."""
COUNTERS = {
    "duration": "Duration",
    "registers": "Registers Per Thread",
    "occupancy": "Achieved Occupancy",
    "compute": "Compute (SM) Throughput",
    "memory": "Memory Throughput",
}
TESTS = ["tests/learning/cuda/test_gpu.py", "tests/simulation/test_gpu.py", "-m", "gpu and not long"]
"""Learning first, trajectories of all environments last: what had no time is the least likely to fail."""
Row = dict[str, Any]


def _tables() -> Any:
    import gpu_tables  # needs the packages of warprun, which the check looks for first

    return gpu_tables


class Ran(NamedTuple):
    """A command that has ended."""

    good: bool
    output: str
    seconds: float
    why: str
    """Why it is not good."""
    begun: bool = True
    stopped: bool = False
    """Whether its time was over."""

    @property
    def rows(self) -> list[Row]:
        """Return what it has found: its lines of JSON, without one that it had no time to complete."""
        return [json.loads(line) for line in self.output.rpartition("\n")[0].splitlines() if line.startswith("{")]


class Found:
    """What a part has found: text of the report, data, and what has failed or was cut, each with its reason."""

    def __init__(self, data: Any = None) -> None:
        self.data, self.texts = data, list[str]()
        self.failed, self.cut = dict[str, str](), dict[str, str]()

    def take(self, name: str, ran: Ran) -> bool:
        """Keep how a command has ended; return whether it is good."""
        if ran.good:
            return True
        (self.failed if ran.begun else self.cut)[name] = ran.why
        if ran.output:
            self.texts.append(f"{name}:\n\n```\n{ran.output.strip()[-KEPT:]}\n```")
        return False

    def rows(self, name: str, ran: Ran) -> list[Row]:
        """Return what a command has found before it ended, in whichever way, and keep how it has; it says itself what it has left out."""
        if ran.stopped and ran.rows:
            self.cut[name] = ran.why
        else:
            self.take(name, ran)
        self.cut.update((row.get("work", name), row["cut"]) for row in ran.rows if "cut" in row)
        return [row for row in ran.rows if "cut" not in row]

    @property
    def text(self) -> str:
        """The text of the report."""
        said = []
        for word, names in (("failed", self.failed), ("cut", self.cut)):
            for why in dict.fromkeys(names.values()):
                said.append(f"- {word}: {why}: {', '.join(name for name, its in names.items() if its == why)}")
        return "\n\n".join(filter(None, [*self.texts, "\n".join(said)]))


class Machine:
    """Runs the commands of a check, and keeps what they print; `compiled`: what may be measured."""

    def __init__(self, options: argparse.Namespace, work: Path, about: Row) -> None:
        self.options, self.work, self.about = options, work, about
        self.logs = work / "logs"
        self.logs.mkdir(exist_ok=True)
        self.ends = time.monotonic() + 60 * options.minutes
        self.compiled: set[str] = set()
        self.found: dict[str, Found] = {}


class Turn:
    """The time of a part."""

    def __init__(self, machine: Machine, share: float) -> None:
        self.machine = machine
        now = time.monotonic()
        self.ends = now + share * max(machine.ends - now, 0.0)

    def left(self) -> float:
        """Return the seconds that are left."""
        return self.ends - time.monotonic()

    def work(self, what: str, works: Mapping[str, tuple[str, Sequence[int]]]) -> list[str]:
        """Return the command that works, and begins nothing that would not end in the time that is left."""
        until = f"{time.time() + self.left() - STARTS_S / 4:.0f}"
        given = {name: [" ".join(overrides_for(self.machine, overrides)), sizes] for name, (overrides, sizes) in works.items()}
        return [*WORK, what, until, json.dumps(given)]

    def run(self, name: str, arguments: Iterable[str], needs: float = 1.0, **variables: str) -> Ran:
        """Run a command with its children, for the time that is left, unless that is less than it needs."""
        began = time.monotonic()
        limit = self.left()
        if limit < needs:
            return Ran(False, "", 0.0, "no time is left (--minutes)", False)
        log = self.machine.logs / f"{re.sub('[^a-zA-Z0-9]+', '_', name)}.txt"
        with log.open("w+") as said:
            environment = {**os.environ, **variables}
            process = subprocess.Popen(
                [*arguments], cwd=ROOT, stdout=said, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
            try:
                code: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
                os.killpg(process.pid, 9)
                process.wait()
        why = "" if code == 0 else f"did not end within {limit:.0f} s" if code is None else f"exit code {code}"
        return Ran(code == 0, log.read_text(errors="replace"), time.monotonic() - began, why, stopped=code is None)


def overrides_for(machine: Machine, overrides: str) -> list[str]:
    return [*overrides.split(), f"device={machine.options.device}"]


# What runs beside each other ------------------------------------------------------------------------------------------


def compile_all(turn: Turn) -> Found:
    """Compile what the chosen parts measure, in as many processes as there are cores; what is not compiled is not measured."""
    machine, found = turn.machine, Found({})
    of_parts = [
        {name: turn.work("compile", {name: (given, sizes[:1])}) for name, (given, sizes) in works.items()}
        for part, works in WORKS.items()
        if part in machine.options.part
    ]
    if "training" in machine.options.part:
        of_parts.append({name: _training(machine, name, 0.5, "eval.final_episodes=1", "first_runs") for name in TRAININGS})
    # In turn, so that every part has something to measure if there is time for some only.
    commands = dict(one for several in zip_longest(*(part.items() for part in of_parts)) for one in several if one)
    needs_data = [name for name in commands if "covid" in name.lower()]
    if needs_data and not turn.run("data", [*WARPRUN, "data", "covid"]).good:
        found.cut |= dict.fromkeys(needs_data, "the data of covid are not there (warprun data covid)")
        commands = {name: command for name, command in commands.items() if name not in needs_data}
    with ThreadPoolExecutor(max(machine.about["cores"], 1)) as pool:
        runs = {
            name: pool.submit(turn.run, f"compile {name}", command, STARTS_S, OMP_NUM_THREADS="1") for name, command in commands.items()
        }
        for name, run in runs.items():
            ran = run.result()
            if ran.stopped:
                found.cut[name] = "not compiled in time"
                continue
            found.rows(name, ran)
            if ran.good and name not in found.cut:
                found.data[name] = round(ran.seconds, 1)
                machine.compiled.add(name)
    found.texts.insert(0, "\n".join(f"- {name}: {seconds} s" for name, seconds in found.data.items()))
    return found


def tests(turn: Turn) -> Found:
    """Run the tests that need a GPU and are not long."""
    if turn.machine.options.device != "cuda":
        found = Found()
        found.texts.append("they need a GPU")
        return found
    several = ["-n", str(max(2, turn.machine.about["cores"] // 4))] if importlib.util.find_spec("xdist") else []
    ran = turn.run("tests", [PYTHON, "-m", "pytest", "-vv", "-rfE", "-p", "no:cacheprovider", *several, *TESTS])
    words = ("PASSED", "FAILED", "ERROR", "SKIPPED")
    counts = {word.lower(): len(re.findall(rf"\b{word}\b.*::|::.* {word}\b", ran.output)) for word in words}
    found = Found({**counts, "seconds": round(ran.seconds)})
    found.texts.append(", ".join(f"{count} {word}" for word, count in counts.items()) + f" in {ran.seconds:.0f} s")
    found.take("tests", ran)
    return found


# What runs alone ------------------------------------------------------------------------------------------------------


def versions(turn: Turn) -> Found:
    """Tell what is installed, and what the driver says."""
    about = turn.machine.about
    found = Found(about)
    smi = shutil.which("nvidia-smi")
    driver = turn.run("nvidia-smi", [smi]).output if smi else "nvidia-smi is not there"
    if version := re.search(r"Driver Version: (\S+)", driver):
        about["driver"] = version[1]
    found.texts += ["\n".join(f"- {key}: {value}" for key, value in about.items()), f"```\n{driver[:KEPT]}\n```"]
    return found


def _training(machine: Machine, name: str, seconds: float, episodes: str, folder: str) -> list[str]:
    """Return the command of a run."""
    run_dir = machine.work / folder / name.replace(" ", "_")
    limits = [f"max_minutes={seconds / 60:.4f}", "log.every=0.5s", "log.live=false", episodes, f"run_dir={run_dir}"]
    return [*WARPRUN, *overrides_for(machine, TRAININGS[name]), *limits]


def _chosen(turn: Turn, found: Found, names: Iterable[str]) -> list[str]:
    """Return what has been compiled; the others are cut."""
    every = list(names)
    found.cut |= {name: "not compiled" for name in every if name not in turn.machine.compiled}
    return [name for name in every if name in turn.machine.compiled]


def training(turn: Turn) -> Found:
    """Train for a short time, some runs beside each other: whether runs begin, learn and end."""
    found, machine = Found([]), turn.machine
    names = _chosen(turn, found, TRAININGS)
    together = max(machine.about["cores"] // 2, 1)
    seconds = min(RUN_S, max(1.0, turn.left() * together / max(len(names), together) - STARTS_S))
    with ThreadPoolExecutor(together) as pool:
        runs = {
            name: pool.submit(turn.run, name, _training(machine, name, seconds, "eval.final_episodes=100", "runs"), seconds)
            for name in names
        }
    for name, run in runs.items():
        if found.take(name, run.result()):
            status = json.loads((machine.work / "runs" / name.replace(" ", "_") / "status.json").read_text())
            found.data.append({"work": name} | {key: status.get(key) for key in ("state", "eval", "env_steps", "wall_s")})
    found.texts.insert(0, _tables().by_columns(_tables().TRAININGS, found.data))
    return found


def measured(part: str, written: Callable[[Any, list[Row]], str], what: str = "bench") -> Callable[[Turn], Found]:
    """Return what measures the works of a part in a process, and writes its tables; what it has found counts if it does not end in time."""

    def measure(turn: Turn) -> Found:
        found, works = Found([]), WORKS[part]
        if names := _chosen(turn, found, works):
            ran = turn.run(part, turn.work(what, {name: works[name] for name in names}), STARTS_S)
            order = list(works)
            found.data = sorted(found.rows(part, ran), key=lambda row: (order.index(row["work"]), row["n_envs"]))
        found.texts.insert(0, written(_tables(), found.data))
        return found

    return measure


def _iterations(tables: Any, rows: list[Row]) -> str:
    return "\n\n".join(f"{row['n_envs']:,} environments, {row['plan']}\n\n{tables.iteration(row)}" for row in rows)


def ncu(turn: Turn) -> Found:
    """Let Nsight Compute read the largest kernels of an iteration, if it is installed and may."""
    found, tool, profiled = Found([]), shutil.which("ncu"), turn.machine.found.get("profile")
    if tool is None or not profiled or not profiled.data:
        found.texts.append("ncu is not there" if tool is None else "needs the part profile")
        return found
    own = [each["kernel"] for each in profiled.data[0]["kernels"] if not each["kernel"].startswith("torch: ")]
    for kernel in own[:COUNTED]:
        sections = [part for name in ("SpeedOfLight", "Occupancy", "LaunchStats") for part in ("--section", name)]
        which = ["--kernel-name", f"regex:^{kernel.rpartition(' ')[2]}", "--launch-skip", "3", "--launch-count", "1"]
        work = turn.work("iterate", {name: (given, [profiled.data[-1]["n_envs"]]) for name, (given, _) in PROFILED.items()})
        ran = turn.run(f"ncu {kernel}", [tool, "--csv", *sections, *which, *work], STARTS_S)
        values = _counters(ran.output)
        if values:
            found.data.append({"kernel": kernel, "n_envs": profiled.data[-1]["n_envs"], **values})
        else:  # mostly for want of permission, which is no fault of warprun
            found.cut[kernel] = ran.why or next((line for line in ran.output.splitlines() if "ERROR" in line), "nothing was read")
    found.texts.insert(0, _tables().by_columns(_tables().COUNTERS, found.data))
    return found


def _counters(output: str) -> Row:
    """Return the counters of the first kernel in the output of Nsight Compute."""
    lines = output.splitlines()
    begins = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    read: Row = {}
    for row in csv.DictReader(lines[begins:]):
        key = next((key for key, name in COUNTERS.items() if name == row["Metric Name"]), None)
        if key and key not in read:
            number = float(row["Metric Value"].replace(",", ""))
            read[key] = f"{number:g} {row['Metric Unit']}" if key == "duration" else int(number) if number.is_integer() else number
    return read


def peers(turn: Turn) -> Found:
    """Measure learners in JAX on the same device, if JAX is installed."""
    found = Found([])
    missing = [name for name in ("jax", "optax", "gymnax", "gymnasium", "six") if importlib.util.find_spec(name) is None]
    if missing:
        found.texts.append(f"not installed: {', '.join(missing)} (jax[cuda12] or jax[cuda13], optax, gymnax, gymnasium, six)")
        return found
    platform = {"JAX_PLATFORMS": "cpu"} if turn.machine.options.device == "cpu" else {}
    until = f"{time.time() + turn.left() - STARTS_S / 4:.0f}"
    command = [PYTHON, "scripts/bench/peer_gpu.py", turn.machine.options.device, until]
    ran = turn.run("peers", command, STARTS_S, XLA_PYTHON_CLIENT_PREALLOCATE="false", **platform)
    found.data = found.rows("peers", ran)
    benched = turn.machine.found.get("bench")
    found.texts.insert(0, _tables().throughput(benched.data if benched else [], found.data))
    return found


class Part(NamedTuple):
    """A part of the report."""

    run: Callable[[Turn], Found]
    seconds: int
    """That it may take, of ten minutes."""


WORKS = {"bench": BENCH, "layers": LAYERS, "steady": STEADY, "profile": PROFILED, "curves": CURVES}
"""Part -> what it measures."""
BESIDE = {"compile": Part(compile_all, 205), "tests": Part(tests, 205)}
"""Parts that run at the same time, before the others; the first one always. What they do not need the others have."""
ALONE = {
    "versions": Part(versions, 5),
    "training": Part(training, 30),
    "bench": Part(measured("bench", lambda tables, rows: tables.throughput(rows)), 115),
    "layers": Part(measured("layers", lambda tables, rows: tables.layers(rows), "layers"), 60),
    "steady": Part(measured("steady", lambda tables, rows: tables.by_columns(tables.STEADY, rows)), 35),
    "profile": Part(measured("profile", _iterations, "profile"), 30),
    "curves": Part(measured("curves", lambda tables, rows: tables.times(rows), "curves"), 50),
    "ncu": Part(ncu, 45),
    "members": Part(lambda turn: gpu_members.members(turn, Found([]), [*WARPRUN, *overrides_for(turn.machine, gpu_members.SETTINGS)]), 60),
    "peers": Part(peers, 45),
}
