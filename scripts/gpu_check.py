"""The parts of scripts/gpu_check.sh, see there."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WARPRUN = [sys.executable, "-m", "warprun"]
KEPT = 4000
"""Characters of the output of a command that failed, in the report; the archive has all of it."""
ARCHIVED = ("status.json", "versions.json", "metrics.jsonl", "config.yaml", "bench.json")
"""Files of runs in the archive."""
LATE = ["n_envs=1024", "agent.utd_ratio=0.0625"]
TRAININGS = {
    "cartpole a2c": ["env=cartpole", "agent=a2c", "n_envs=10000"],
    "cartpole ppo": ["env=cartpole", "agent=ppo", "n_envs=10000"],
    "cartpole ppo lstm": ["env=cartpole", "agent=ppo", "n_envs=1024", "agent.network=lstm", "tuned=none"],
    "cartpole dqn": ["env=cartpole", "agent=dqn", "tuned=none", *LATE],
    "pendulum sac": ["env=pendulum", "agent=sac", "tuned=none", *LATE],
    "pendulum td3": ["env=pendulum", "agent=td3", "tuned=none", *LATE],
    "covid ppo": ["env=covid", "agent=ppo", "n_envs=1000"],
    "catalysis ppo": ["env=catalysis", "agent=ppo", "n_envs=1000"],
}
SIZES = "10,100,1000,10000,100000,1000000"
BENCHES = {
    "A2C 64-64": ["env=cartpole", "agent=a2c", "tuned=none", "agent.network.hidden=[64,64]"],
    "A2C 64-64 without graphs": ["env=cartpole", "agent=a2c", "tuned=none", "agent.network.hidden=[64,64]", "engine.capture=false"],
    "A2C 32-32": ["env=cartpole", "agent=a2c", "tuned=none", "agent.network.hidden=[32,32]"],
}
PROFILES = {
    "CartPole, A2C, 10,000 environments": ["env=cartpole", "agent=a2c", "tuned=none", "n_envs=10000"],
    "CartPole, A2C, 1,000,000 environments": ["env=cartpole", "agent=a2c", "tuned=none", "n_envs=1000000"],
}
TESTS = {
    "graphs": ["tests/simulation/test_gpu.py", "-k", "captured or never_wait or learnt"],
    "learner": ["tests/learning/cuda/test_gpu.py"],
    "rollouts": ["tests/simulation/test_gpu.py", "-k", "trajectories"],
}
"""Of the tests marked `gpu` those that are not `long` as well; the most telling ones first."""
VERSIONS = """
import json, platform, sys, torch
from warprun.kernels.driver import cuda_version, gpu_name, installed
from warprun.simulation.device import cuda_problem
there = torch.cuda.is_available()
print(json.dumps({
    "gpu": gpu_name(),
    "capability": list(torch.cuda.get_device_capability()) if there else None,
    "memory_bytes": torch.cuda.get_device_properties(0).total_memory if there else None,
    "driver_cuda": ".".join(map(str, cuda_version())),
    "python": platform.python_version(),
    "platform": platform.platform(),
    "torch": torch.__version__,
    "torch_cuda": torch.version.cuda,
    "installed": installed(),
    "problem": cuda_problem(),
}))
"""


class Ran(NamedTuple):
    """A command that has ended."""

    good: bool
    output: str
    seconds: float
    why: str
    """Why it is not good."""


class Found(NamedTuple):
    """What a part has found: whether all is good, the text of the report, and the same as data."""

    good: bool
    text: str
    data: Any


class Machine:
    """Runs the commands of a check within the time that it has, and keeps what they print.

    Each part has a share of the time that is left: what one does not need, the later ones have.
    """

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self.options, self.work = options, work
        self.logs = work / "logs"
        self.logs.mkdir(exist_ok=True)
        self._ends = self._part_ends = time.monotonic() + 60 * options.minutes

    def begin(self, share: float) -> None:
        """Begin a part, which has this share of the time that is left."""
        now = time.monotonic()
        self._part_ends = now + share * max(self._ends - now, 0.0)

    def run(self, name: str, arguments: list[str], seconds: float, **variables: str) -> Ran:
        """Run a command with its children, for a limited time."""
        began = time.monotonic()
        limit = min(seconds, self._part_ends - began)
        if limit < 1:
            return Ran(False, "", 0.0, "no time is left (--minutes)")
        log = self.logs / f"{name.replace(' ', '_').replace(',', '')}.txt"
        with log.open("w+") as said:
            process = subprocess.Popen(
                arguments, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT, env={**os.environ, **variables}, start_new_session=True
            )
            try:
                code: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                code = None
                os.killpg(process.pid, 9)
                process.wait()
        output = log.read_text(errors="replace").strip()
        why = "" if code == 0 else f"did not end within {limit:.0f} s" if code is None else f"exit code {code}"
        return Ran(code == 0, output, time.monotonic() - began, why)


class Part(NamedTuple):
    """A part of the report."""

    run: Callable[[Machine], Found]
    seconds: int
    """Limit of each of its commands."""
    share: int
    """Of the time of all parts."""


def block(text: str) -> str:
    """Return output as a block of code, its beginning cut."""
    return f"```\n{text[-KEPT:]}\n```" if text else ""


def versions(machine: Machine) -> Found:
    """Return what is installed, and what the driver says."""
    ran = machine.run("versions", [sys.executable, "-c", VERSIONS], PARTS["versions"].seconds)
    data = json.loads(ran.output.splitlines()[-1]) if ran.good else None
    text = "\n".join(f"- {key}: {value}" for key, value in data.items()) if data else block(ran.output)
    smi = shutil.which("nvidia-smi")
    driver = machine.run("nvidia-smi", [smi], 10).output if smi else "nvidia-smi is not there"
    return Found(ran.good, f"{text}\n\n{block(driver)}", data)


def tests(machine: Machine) -> Found:
    """Run the tests that need a GPU."""
    several = ["-n", "4"] if importlib.util.find_spec("xdist") else []
    texts, data, all_good = [], {}, True
    for name, selected in TESTS.items():
        command = [sys.executable, "-m", "pytest", "-v", "-rfE", "-m", "gpu and not long", "-p", "no:cacheprovider", *several, *selected]
        ran = machine.run(f"tests {name}", command, PARTS["tests"].seconds)
        all_good &= ran.good
        counts = {word: len(re.findall(rf"\b{word}\b.*::|::.* {word}\b", ran.output)) for word in ("PASSED", "FAILED", "ERROR", "SKIPPED")}
        data[name] = {"good": ran.good, "why": ran.why, "seconds": round(ran.seconds), **counts}
        shown = ", ".join(f"{count} {word.lower()}" for word, count in counts.items() if count)
        texts.append(f"{name}: {ran.why or 'passed'} in {ran.seconds:.0f} s; {shown}" + ("" if ran.good else f"\n\n{block(ran.output)}"))
    return Found(all_good, "\n\n".join(texts), data)


def training(machine: Machine) -> Found:
    """Train for a short time, and return a table of speed and return."""
    rows = ["| run | state | env steps/s | eval return | env steps | wall s |", "|---|---|---|---|---|---|"]
    logs, data, all_good = [], {}, True
    for name, overrides in TRAININGS.items():
        folder = machine.work / "runs" / name.replace(" ", "_")
        limits = ["max_minutes=0.1", "log.every=0.5s", "log.live=false", "eval.final_episodes=100", f"run_dir={folder}"]
        ran = machine.run(f"train {name}", [*WARPRUN, *overrides, f"device={machine.options.device}", *limits], PARTS["training"].seconds)
        good = ran.good and (folder / "status.json").exists()
        all_good &= good
        data[name] = _run(folder) if good else {"state": f"failed: {ran.why}", "wall_s": ran.seconds}
        rows.append(_row(name, data[name]))
        logs += [] if good else [f"{name}:\n\n{block(ran.output)}"]
    return Found(all_good, "\n".join(rows) + "\n\n" + "\n\n".join(logs), data)


def _run(folder: Path) -> dict[str, Any]:
    """Return how a run has ended, and the median of its speeds."""
    status = json.loads((folder / "status.json").read_text())
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    # The first record includes loading and compiling.
    speeds = sorted(record["perf/env_steps_per_s"] for record in records[1:] or records if "perf/env_steps_per_s" in record)
    found = {key: status.get(key) for key in ("state", "eval", "env_steps", "wall_s")}
    return found | {"env_steps_per_s": speeds[len(speeds) // 2] if speeds else None}


def _row(name: str, run: Mapping[str, Any]) -> str:
    speed, evaluated, steps = (run.get(key) for key in ("env_steps_per_s", "eval", "env_steps"))
    shown = (f"{speed:,.0f}" if speed else "-", "-" if evaluated is None else f"{evaluated:.1f}", f"{steps:,}" if steps else "-")
    return f"| {name} | {run['state']} | {' | '.join(shown)} | {run['wall_s']:.1f} |"


def bench(machine: Machine) -> Found:
    """Measure throughput, with CUDA graphs and without."""
    texts, data, all_good = [], {}, True
    for name, overrides in BENCHES.items():
        folder = machine.work / "runs" / name.replace(" ", "_")
        given = [*overrides, f"device={machine.options.device}", f"sizes={machine.options.sizes}", f"out={folder}"]
        ran = machine.run(f"bench {name}", [*WARPRUN, "bench", *given], PARTS["bench"].seconds, COLUMNS="120")
        all_good &= ran.good
        texts.append(f"{name}{': ' * bool(ran.why)}{ran.why}\n\n{block(ran.output)}")
        data[name] = json.loads((folder / "bench.json").read_text())["measurements"] if ran.good else ran.why
    return Found(all_good, "\n\n".join(texts), data)


def profile(machine: Machine) -> Found:
    """Return the time of every kernel of an iteration, and the most memory."""
    texts, data, all_good = [], {}, True
    for name, overrides in PROFILES.items():
        command = [sys.executable, "scripts/gpu_profile.py", *overrides, f"device={machine.options.device}"]
        ran = machine.run(f"profile {name}", command, PARTS["profile"].seconds)
        all_good &= ran.good
        data[name] = ran.output if ran.good else ran.why
        texts.append(f"### {name}\n\n{ran.output if ran.good else ran.why + chr(10) * 2 + block(ran.output)}")
    return Found(all_good, "\n\n".join(texts), data)


def peers(machine: Machine) -> Found:
    """Measure rejax's learner on the GPU, if JAX is installed."""
    missing = [name for name in ("jax", "rejax", "gymnax") if importlib.util.find_spec(name) is None]
    if missing:
        why = f"not installed: {', '.join(missing)} (scripts/bench/requirements.txt, and jax with the extra cuda12 or cuda13)"
        return Found(True, why, None)
    ran = machine.run("peers", [sys.executable, "scripts/bench/peer_jax.py", "gpu"], PARTS["peers"].seconds)
    return Found(ran.good, ran.output if ran.good else f"{ran.why}\n\n{block(ran.output)}", ran.output)


PARTS = {
    "versions": Part(versions, 60, 6),
    "training": Part(training, 60, 34),
    "bench": Part(bench, 60, 20),
    "tests": Part(tests, 90, 27),
    "profile": Part(profile, 30, 8),
    "peers": Part(peers, 40, 5),
}


def main() -> int:
    """Write the report; return the exit code."""
    parser = argparse.ArgumentParser(description="Check warprun on a GPU machine.")
    parser.add_argument("part", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--out", type=Path, default=ROOT / "gpu_report", help="name of the report: .md, .json, .zip")
    parser.add_argument("--device", default="cuda", help="cpu: try the parts without a GPU")
    parser.add_argument("--sizes", default=SIZES, help="numbers of environments of the benchmark")
    parser.add_argument("--minutes", type=float, default=10.0, help="longest time of all parts together")
    options = parser.parse_args()
    unknown = [name for name in options.part if name not in PARTS]
    if unknown:
        parser.error(f"no part {unknown[0]}; there are: {', '.join(PARTS)}")
    code = _ready(options.device)
    if code is not None:
        return code
    began, found = time.monotonic(), {}
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(options, Path(folder))
        chosen = options.part or list(PARTS)
        for number, name in enumerate(chosen):
            print(f"gpu_check: {name} ...", flush=True)
            machine.begin(PARTS[name].share / sum(PARTS[later].share for later in chosen[number:]))
            try:
                found[name] = PARTS[name].run(machine)
            except Exception as error:  # a part must not end the others
                found[name] = Found(False, f"{type(error).__name__}: {error}", None)
            _write(options, Path(folder), found, time.monotonic() - began)  # kept even if the machine goes away
    print(f"gpu_check: {_verdict(found)}; send {options.out.with_suffix('.zip')}")
    return int(not all(part.good for part in found.values()))


def _verdict(found: Mapping[str, Found]) -> str:
    failed = [name for name, part in found.items() if not part.good]
    return f"failed: {', '.join(failed)}" if failed else "passed"


def _write(options: argparse.Namespace, work: Path, found: Mapping[str, Found], seconds: float) -> None:
    """Write the report as markdown and as data, and the archive with both, all that was printed, and the records of runs."""
    about = found["versions"].data or {} if "versions" in found else {}
    title = f"# GPU check of {about.get('gpu') or 'a machine without a GPU'}, {date.today()}, device={options.device}"
    parts = [f"## {name}{'' if part.good else ' (failed)'}\n\n{part.text}\n" for name, part in found.items()]
    report, data = options.out.with_suffix(".md"), options.out.with_suffix(".json")
    report.write_text("\n".join([f"{title}\n", f"{_verdict(found)}; {seconds:.0f} s\n", *parts]))
    content = {"date": str(date.today()), "device": options.device, "verdict": _verdict(found), "seconds": round(seconds)}
    content |= {"parts": {name: {"good": part.good, "found": part.data} for name, part in found.items()}}
    data.write_text(json.dumps(content, indent=1) + "\n")
    with zipfile.ZipFile(options.out.with_suffix(".zip"), "w", zipfile.ZIP_DEFLATED) as archive:
        for path in (report, data):
            archive.write(path, path.name)
        for path in sorted(work.rglob("*")):
            if path.name in ARCHIVED or path.parent.name == "logs":
                archive.write(path, path.relative_to(work))


def _ready(device: str) -> int | None:
    """Return the exit code if nothing can be checked, and say why; else None."""
    try:
        import pytest  # noqa: F401

        from warprun.kernels.driver import gpu_name
        from warprun.simulation.device import cuda_problem
    except ImportError as error:
        print(f'gpu_check: {error}; run: pip install -c constraints.txt -e ".[cuda13]" pytest pytest-xdist (or cuda12)', file=sys.stderr)
        return 2
    problem = cuda_problem() if device == "cuda" else None
    if problem:
        there = gpu_name() is not None
        print(f"gpu_check: {'' if there else 'nothing to check: '}{problem}", file=sys.stderr)
        return 2 if there else 0
    return None


if __name__ == "__main__":
    sys.exit(main())
