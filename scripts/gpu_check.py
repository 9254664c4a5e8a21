"""The parts of scripts/gpu_check.sh, see there."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WARPRUN = [sys.executable, "-m", "warprun"]
KEPT = 4000
"""Characters of the output of a command that failed."""
TRAININGS = {
    "cartpole a2c": ["env=cartpole", "agent=a2c", "n_envs=10000"],
    "cartpole ppo": ["env=cartpole", "agent=ppo", "n_envs=10000"],
    "covid ppo": ["env=covid", "agent=ppo", "n_envs=1000"],
    "catalysis ppo": ["env=catalysis", "agent=ppo", "n_envs=1000"],
}
SIZES = "10,100,1000,10000,100000,1000000"
BENCHES = {
    "A2C 64-64": ["env=cartpole", "agent=a2c", "tuned=none", "agent.network.hidden=[64,64]"],
    "A2C 32-32": ["env=cartpole", "agent=a2c", "tuned=none", "agent.network.hidden=[32,32]"],
}
PROFILES = {
    "CartPole, A2C, 10,000 environments": ["env=cartpole", "agent=a2c", "tuned=none", "n_envs=10000"],
    "CartPole, A2C, 1,000,000 environments": ["env=cartpole", "agent=a2c", "tuned=none", "n_envs=1000000"],
}
VERSIONS = """
import platform, sys, torch
from warprun.kernels.driver import installed
from warprun.kernels.driver import cuda_version, gpu_name
from warprun.simulation.device import cuda_problem
print(f"- Python {platform.python_version()}, {platform.platform()}")
print(f"- torch {torch.__version__}, built for CUDA {torch.version.cuda}; {installed()}")
print(f"- GPU: {gpu_name()}; the driver knows CUDA {'.'.join(map(str, cuda_version()))}")
print(f"- CUDA: {cuda_problem() or 'a kernel has run'}")
"""


class Ran(NamedTuple):
    """A command that has ended."""

    good: bool
    output: str
    seconds: float
    why: str
    """Why it is not good."""


class Part(NamedTuple):
    """A part of the report."""

    run: Callable[[argparse.Namespace, Path], tuple[bool, str]]
    seconds: int
    """Limit of each of its commands."""


def command(arguments: list[str], seconds: float, **variables: str) -> Ran:
    """Run a command with its children, for a limited time."""
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            arguments, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT, env={**os.environ, **variables}, start_new_session=True
        )
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(process.pid, 9)
            process.wait()
        said.seek(0)
        output = said.read().strip()
    why = "" if code == 0 else f"did not end within {seconds:.0f} s" if code is None else f"exit code {code}"
    return Ran(code == 0, output, time.perf_counter() - began, why)


def block(text: str) -> str:
    """Return output as a block of code, its beginning cut."""
    return f"```\n{text[-KEPT:]}\n```"


def versions(options: argparse.Namespace, work: Path) -> tuple[bool, str]:
    """Return what is installed, and what the driver says."""
    found = command([sys.executable, "-c", VERSIONS], PARTS["versions"].seconds)
    driver = command(["nvidia-smi"], 10).output if shutil.which("nvidia-smi") else "nvidia-smi is not there"
    return found.good, f"{found.output if found.good else block(found.output)}\n\n{block(driver)}"


def tests(options: argparse.Namespace, work: Path) -> tuple[bool, str]:
    """Run the tests that need a GPU."""
    files = [str(file) for file in sorted(ROOT.glob("tests/**/test_*.py")) if "mark.gpu" in file.read_text()]
    ran = command([sys.executable, "-m", "pytest", "-m", "gpu", "-rfE", "-p", "no:cacheprovider", *files], PARTS["tests"].seconds)
    return ran.good, f"{ran.why or 'passed'} in {ran.seconds:.0f} s\n\n{block(ran.output)}"


def training(options: argparse.Namespace, work: Path) -> tuple[bool, str]:
    """Train for a short time, and return a table of speed and return."""
    rows, logs, all_good = ["| run | state | env steps/s | eval return | env steps | wall s |", "|---|---|---|---|---|---|"], [], True
    for name, overrides in TRAININGS.items():
        folder = work / name.replace(" ", "_")
        limits = ["max_minutes=0.4", "log.every=0.5s", "log.live=false", "eval.final_episodes=100", f"run_dir={folder}"]
        ran = command([*WARPRUN, *overrides, f"device={options.device}", *limits], PARTS["training"].seconds)
        good = ran.good and (folder / "status.json").exists()
        all_good &= good
        rows.append(_row(name, folder) if good else f"| {name} | failed: {ran.why} | | | | {ran.seconds:.0f} |")
        logs += [] if good else [f"{name}:\n\n{block(ran.output)}"]
    return all_good, "\n".join(rows) + "\n\n" + "\n\n".join(logs)


def _row(name: str, folder: Path) -> str:
    status = json.loads((folder / "status.json").read_text())
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    # The first record includes loading and compiling.
    speeds = sorted(record["perf/env_steps_per_s"] for record in records[1:] or records if "perf/env_steps_per_s" in record)
    speed = f"{speeds[len(speeds) // 2]:,.0f}" if speeds else "-"
    evaluated = status.get("eval")
    shown = "-" if evaluated is None else f"{evaluated:.1f}"
    return f"| {name} | {status['state']} | {speed} | {shown} | {status['env_steps']:,} | {status['wall_s']:.1f} |"


def bench(options: argparse.Namespace, work: Path) -> tuple[bool, str]:
    """Measure throughput with CUDA graphs and without."""
    texts, all_good = [], True
    for name, overrides in BENCHES.items():
        for graph in ("true", "false"):
            given = [
                *overrides,
                f"device={options.device}",
                f"engine.capture={graph}",
                f"sizes={options.sizes}",
                f"out={work / 'bench'}",
            ]
            ran = command([*WARPRUN, "bench", *given], PARTS["bench"].seconds, COLUMNS="120")
            all_good &= ran.good
            texts.append(f"{name}, engine.capture={graph}{': ' * bool(ran.why)}{ran.why}\n\n{block(ran.output)}")
    return all_good, "\n\n".join(texts)


def profile(options: argparse.Namespace, work: Path) -> tuple[bool, str]:
    """Return the time of every kernel of an iteration, and the most memory."""
    texts, all_good = [], True
    for name, overrides in PROFILES.items():
        ran = command([sys.executable, "scripts/gpu_profile.py", *overrides, f"device={options.device}"], PARTS["profile"].seconds)
        all_good &= ran.good
        texts.append(f"### {name}\n\n{ran.output if ran.good else ran.why + chr(10) * 2 + block(ran.output)}")
    return all_good, "\n\n".join(texts)


def peers(options: argparse.Namespace, work: Path) -> tuple[bool, str]:
    """Measure rejax's learner on the GPU, if JAX is installed."""
    missing = [name for name in ("jax", "rejax", "gymnax") if importlib.util.find_spec(name) is None]
    if missing:
        return True, f"not installed: {', '.join(missing)} (scripts/bench/requirements.txt, and jax with the extra cuda12 or cuda13)"
    ran = command([sys.executable, "scripts/bench/peer_jax.py", "gpu"], PARTS["peers"].seconds)
    return ran.good, ran.output if ran.good else f"{ran.why}\n\n{block(ran.output)}"


PARTS = {
    "versions": Part(versions, 60),
    "tests": Part(tests, 150),
    "training": Part(training, 40),
    "bench": Part(bench, 35),
    "profile": Part(profile, 25),
    "peers": Part(peers, 40),
}


def main() -> int:
    """Write the report; return the exit code."""
    parser = argparse.ArgumentParser(description="Check warprun on a GPU machine.")
    parser.add_argument("part", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--out", type=Path, default=ROOT / "gpu_report.md")
    parser.add_argument("--device", default="cuda", help="cpu: try the parts without a GPU")
    parser.add_argument("--sizes", default=SIZES, help="numbers of environments of the benchmark")
    options = parser.parse_args()
    unknown = [name for name in options.part if name not in PARTS]
    if unknown:
        parser.error(f"no part {unknown[0]}; there are: {', '.join(PARTS)}")
    code = _ready(options.device)
    if code is not None:
        return code
    began, failed = time.perf_counter(), []
    texts = [f"# GPU check, {date.today()}, device={options.device}\n"]
    with tempfile.TemporaryDirectory() as folder:
        for name in options.part or PARTS:
            print(f"gpu_check: {name} ...", flush=True)
            try:
                good, text = PARTS[name].run(options, Path(folder))
            except Exception as error:  # a part must not end the others
                good, text = False, f"{type(error).__name__}: {error}"
            failed += [] if good else [name]
            texts.append(f"## {name}{'' if good else ' (failed)'}\n\n{text}\n")
            options.out.write_text("\n".join(texts))  # kept even if the machine goes away
    verdict = f"failed: {', '.join(failed)}" if failed else "passed"
    texts.insert(1, f"{verdict}; {time.perf_counter() - began:.0f} s\n")
    options.out.write_text("\n".join(texts))
    print(f"gpu_check: {verdict}; {options.out}")
    return int(bool(failed))


def _ready(device: str) -> int | None:
    """Return the exit code if nothing can be checked, and say why; else None."""
    try:
        import pytest  # noqa: F401

        from warprun.kernels.driver import gpu_name
        from warprun.simulation.device import cuda_problem
    except ImportError as error:
        print(f'gpu_check: {error}; run: pip install -c constraints.txt -e ".[test,cuda12]" (or cuda13)', file=sys.stderr)
        return 2
    problem = cuda_problem() if device == "cuda" else None
    if problem:
        there = gpu_name() is not None
        print(f"gpu_check: {'' if there else 'nothing to check: '}{problem}", file=sys.stderr)
        return 2 if there else 0
    return None


if __name__ == "__main__":
    sys.exit(main())
