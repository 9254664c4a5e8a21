"""Measure warprun against other packages at the same work, interleaved: `python scripts/bench/peers.py --help`.

Every peer is one process for the whole run. For each work all peers are prepared (compiled and warm), then measured in turn, round after
round. Results are ratios of medians, in wall time and in CPU time of the process and its children, because other work on the machine does
not slow all processes evenly. Linux only: CPU times are from /proc.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, NamedTuple

import peer_work as spec
from peer_work import WORKS

HERE = Path(__file__).resolve().parent
PACKAGES = ("warprun", "torch", "numba", "jax", "gymnax", "rejax", "stable-baselines3", "sb3-contrib", "envpool", "gymnasium", "numpy")
TRAINING = ("a2c-64", "a2c-32", "ppo-64")
WITHOUT_MEMORY = ("rollout-64", *TRAINING)
MEMORY = ("lstm-128", "lstm-16")


class Peer(NamedTuple):
    """One row of the table per work of the peer."""

    name: str
    prepare: str
    """Module and function."""
    variant: str
    """Passed to the function: trunks, random number generator, or library of the environments."""
    trunk: str
    """shared or separate trunk of policy and value; compared with warprun with the same kind of trunk."""
    n_envs: int
    threads: int
    needs: tuple[str, ...]
    """Required modules."""
    works: tuple[str, ...]


CORES = len(os.sched_getaffinity(0))
JAX, SB3 = ("jax", "gymnax", "optax"), ("torch", "stable_baselines3")
CONTRIB = (*SB3, "sb3_contrib", "gymnasium")
OURS = {"shared": "warprun", "separate": "warprun, two trunks"}
LIMIT = "matrix product"
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
# 10,000 environments, and 1,000 where a peer trains faster with them. unsafe_rbg is the fastest of JAX's generators of random numbers.
# Stable-Baselines3 spends its time between small operations of torch, which more threads only delay.
PEERS = (
    Peer(LIMIT, "peer_warprun:prepare", "product", "shared", 0, CORES, (), tuple(WORKS)),
    Peer(OURS["shared"], "peer_warprun:prepare", "shared", "shared", 10_000, CORES, (), (*WITHOUT_MEMORY, "lstm-16")),
    Peer(OURS["separate"], "peer_warprun:prepare", "separate", "separate", 10_000, CORES, (), TRAINING),
    Peer("JAX on gymnax", "peer_jax:prepare", "unsafe_rbg", "shared", 10_000, CORES, JAX, WITHOUT_MEMORY),
    Peer("JAX on gymnax", "peer_jax:prepare", "unsafe_rbg", "shared", 1_000, CORES, JAX, TRAINING),
    Peer("rejax", "peer_jax:prepare_rejax", "unsafe_rbg", "separate", 10_000, CORES, ("rejax", *JAX), TRAINING),
    Peer("rejax", "peer_jax:prepare_rejax", "unsafe_rbg", "separate", 1_000, CORES, ("rejax", *JAX), TRAINING),
    Peer("torch on gymnasium", "peer_torch:prepare", "gymnasium", "shared", 10_000, CORES, ("torch", "gymnasium"), WITHOUT_MEMORY),
    Peer("torch on gymnasium", "peer_torch:prepare", "gymnasium", "shared", 1_000, 1, ("torch", "gymnasium"), TRAINING),
    Peer("torch on EnvPool", "peer_torch:prepare", "envpool", "shared", 10_000, CORES, ("torch", "envpool"), ("rollout-64", "a2c-64")),
    Peer("SB3 on gymnasium", "peer_torch:prepare_sb3", "gymnasium", "separate", 1_000, 1, (*SB3, "gymnasium"), ("a2c-64", "ppo-64")),
    Peer("SB3 on EnvPool", "peer_torch:prepare_sb3", "envpool", "separate", 10_000, 1, (*SB3, "envpool"), ("a2c-64",)),
    Peer(OURS["shared"], "peer_warprun:prepare", "shared", "shared", 1_024, CORES, (), ("lstm-128",)),
    Peer("JAX on gymnax", "peer_jax_memory:prepare", "unsafe_rbg", "shared", 1_024, CORES, JAX, ("lstm-128",)),
    Peer("JAX on gymnax", "peer_jax_memory:prepare", "unsafe_rbg", "shared", 10_000, CORES, JAX, ("lstm-16",)),
    Peer("sb3-contrib", "peer_torch:prepare_sb3", "dummy", "shared", 8, 1, CONTRIB, MEMORY),
    Peer("sb3-contrib", "peer_torch:prepare_sb3", "dummy", "shared", 64, 1, CONTRIB, MEMORY),
    Peer("sb3-contrib", "peer_torch:prepare_sb3", "dummy", "shared", 256, 1, CONTRIB, MEMORY),
    Peer("sb3-contrib", "peer_torch:prepare_sb3", "dummy", "shared", 256, CORES, CONTRIB, MEMORY),
)


class Worker:
    """The process of a peer."""

    def __init__(self, peer: Peer, python: str = sys.executable, variables: Mapping[str, str] = NO_VARIABLES) -> None:
        # Without it torch's threads spin while others could compute, torch's own in the next process among them.
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"} | variables
        command = [python, "-W", "ignore", str(HERE / "peer_work.py"), peer.prepare, str(peer.threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def ask(self, **question: Any) -> dict[str, Any]:
        """Return the answer to a question, and the CPU seconds that it took."""
        assert self.process.stdin and self.process.stdout
        before = cpu_seconds(self.process.pid)
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise EOFError("ended; its last words are above")
        return json.loads(answer) | {"cpu_s": cpu_seconds(self.process.pid) - before}

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process, its threads and all processes below it, s."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        found[int(path.parent.name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    below = {pid}
    while more := {child for child, (parent, _) in found.items() if parent in below} - below:
        below |= more
    return sum(found[child][1] for child in below if child in found) / os.sysconf("SC_CLK_TCK")


def missing(peer: Peer) -> list[str]:
    """Return the required modules of `peer` that are not installed."""
    return [name for name in peer.needs if importlib.util.find_spec(name) is None]


def measure(work: str, workers: dict[Peer, Worker], rounds: int, seconds: float, say: Any) -> list[dict[str, Any]]:
    """Return a row for every peer that does `work`."""
    rows: dict[Peer, dict[str, Any]] = {}
    for peer in [peer for peer in workers if work in peer.works]:
        try:
            answer = workers[peer].ask(work=work, variant=peer.variant, n_envs=peer.n_envs)
        except (EOFError, BrokenPipeError) as error:
            say(f"skipped: {peer.name}, {peer.n_envs} environments: {error}")
            del workers[peer]
            continue
        say(f"{work}: {peer.name}, {peer.n_envs} environments ready after {answer['prepared_s']:.1f} s")
        settings = answer["settings"]
        rows[peer] = {"work": work, **peer._asdict(), "settings": settings, "wall": [], "cpu": [], "cores": []}
    for n in range(rounds):
        # Every second round the other way round, so that whoever comes after a heavy one is not always the same.
        for peer in list(rows) if n % 2 == 0 else reversed(list(rows)):
            answer = workers[peer].ask(seconds=seconds)
            rows[peer]["wall"].append(answer["steps"] / answer["wall_s"])
            rows[peer]["cpu"].append(answer["steps"] / max(answer["cpu_s"], 0.01))
            rows[peer]["cores"].append(answer["cpu_s"] / answer["wall_s"])
    compare(list(rows.values()))
    return list(rows.values())


def compare(rows: list[dict[str, Any]]) -> None:
    """Add medians, and the ratio of warprun's to each, to the rows of one work."""
    for row in rows:
        for clock in ("wall", "cpu"):
            row[f"{clock}_median"] = median(row[clock])
            if row["name"] == LIMIT:
                # Its steps are multiply-adds.
                row[f"{clock}_flops"] = 2 * row[f"{clock}_median"]
                row[f"{clock}_median"] = row[f"{clock}_flops"] / WORKS[row["work"]].flop_per_step()
    for row in rows:
        for ours in [ours for ours in rows if ours["name"] == OURS[row["trunk"]]]:
            for clock in ("wall", "cpu"):
                row[f"{clock}_ratio"] = ours[f"{clock}_median"] / row[f"{clock}_median"]


def solve_rounds(commands: dict[str, list[str]], rounds: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return a row per command: wall and CPU seconds of `rounds` alternating runs, after one that fills the caches."""
    rows: dict[str, dict[str, Any]] = {name: {"name": name, "wall": [], "cpu": []} for name in commands}
    for n in range(rounds + 1):
        for name, command in commands.items():
            start = time.perf_counter()
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            assert process.stdout
            lines = [line.strip() for line in process.stdout if "solved" in line]
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            wall, cpu = time.perf_counter() - start, used.ru_utime + used.ru_stime
            say(f"solve: {name}: {wall:.1f} s, {cpu:.1f} CPU s, exit code {process.returncode}{'' if n else ' (fills the cache)'}")
            rows[name]["line"] = lines[-1].replace("|", "/") if lines else f"exit code {process.returncode}"
            if n:
                rows[name]["wall"].append(wall)
                rows[name]["cpu"].append(cpu)
    for row in rows.values():
        row |= {"wall_median": median(row["wall"]), "cpu_median": median(row["cpu"])}
    return list(rows.values())


def markdown(found: dict[str, Any]) -> str:
    """Return the measurements as Markdown."""
    lines = [
        f"Measured {found['date']} on {found['machine']}; load {found['load'][0]:.1f} at the start, {found['load'][1]:.1f} at the end; "
        f"medians of {found['rounds']} interleaved rounds. Versions: " + ", ".join(f"{k} {v}" for k, v in found["versions"].items()) + ".",
        "",
        f"CartPole, horizon {spec.HORIZON} if nothing else is said, float32, tanh; only advantages are normalised. M steps/s of wall time, "
        "and M steps for each second of CPU time; ratios are warprun's median over the peer's, at the same number of trunks.",
        "",
    ]
    if found["throughput"]:
        lines += [
            "| work | who | environments | trunks | settings | M steps/s | per CPU s | cores it got | warprun is | per CPU s |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        lines += [_row(row) for row in found["throughput"]]
    if found["solve"]:
        lines += [
            "",
            f"From command to solved (greedy mean of {spec.EPISODES} episodes, for warprun 100, at least {spec.SOLVED_AT:g}), caches warm:",
            "",
        ]
        lines += ["| who | wall s | CPU s | last line |", "|---|---|---|---|"]
        lines += [f"| {row['name']} | {row['wall_median']:.1f} | {row['cpu_median']:.1f} | {row['line']} |" for row in found["solve"]]
    lines += ["", *found["skipped"]] if found["skipped"] else []
    return "\n".join(lines) + "\n"


def _row(row: dict[str, Any]) -> str:
    label = WORKS[row["work"]].label
    who, environments, settings = row["name"], f"{row['n_envs']:,}", row["settings"]
    if "wall_flops" in row:
        flop = WORKS[row["work"]].flop_per_step()
        who, environments = "arithmetic limit", ""
        settings = f"{row['wall_flops'] / 1e9:.0f} GFLOP/s ({row['cpu_flops'] / 1e9:.0f} per CPU s) over {flop / 1e3:.1f} kFLOP a step"
    rates = f"{row['wall_median'] / 1e6:.3g} | {row['cpu_median'] / 1e6:.3g} | {sum(row['cores']) / len(row['cores']):.2f}"
    ratios = " | ".join(f"{row[f'{clock}_ratio']:.2f} x" if f"{clock}_ratio" in row else "" for clock in ("wall", "cpu"))
    return f"| {label} | {who} | {environments} | {row['trunk']} | {settings} | {rates} | {ratios} |"


def main() -> None:
    """Measure, and write a table and JSON."""
    parser = argparse.ArgumentParser(description="Throughput of warprun and of other packages; see docs/benchmarks/throughput.md.")
    parser.add_argument("--rounds", type=int, default=3, help="times that each is measured (default 3)")
    parser.add_argument("--seconds", type=float, default=1.5, help="for how long at least (default 1.5)")
    parser.add_argument("--works", nargs="+", default=[*WORKS, "solve"], choices=[*WORKS, "solve"], help="what is measured")
    parser.add_argument("--out", type=Path, default=Path("outputs/bench"), help="folder for peers.md and peers.json")
    asked = parser.parse_args()
    start = time.perf_counter()

    def say(line: str) -> None:
        print(f"[{time.perf_counter() - start:5.0f} s] {line}", flush=True)

    load = [os.getloadavg()[0]]
    absent = {peer.name: missing(peer) for peer in PEERS if missing(peer)}
    skipped = [f"skipped: {name}: not installed: {', '.join(modules)}" for name, modules in absent.items()]
    for line in skipped:
        say(line)
    workers = {peer: Worker(peer) for peer in PEERS if peer.name not in absent and set(peer.works) & set(asked.works)}
    rows = []
    try:
        for work in [work for work in asked.works if work in WORKS]:
            rows += measure(work, workers, asked.rounds, asked.seconds, say)
    finally:
        for worker in workers.values():
            worker.close()
    solved = []
    if "solve" in asked.works:
        with tempfile.TemporaryDirectory() as scratch:
            commands = {"warprun": [sys.executable, "-m", "warprun", "env=cartpole", "n_envs=10000", f"output_root={scratch}"]}
            if "rejax" not in absent:
                commands["rejax"] = [sys.executable, "-W", "ignore", str(HERE / "peer_jax.py"), "solve", f"{scratch}/jax"]
            solved = solve_rounds(commands, asked.rounds, say)
    load.append(os.getloadavg()[0])
    found = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "load": load,
        "rounds": asked.rounds,
        "versions": versions(),
        "skipped": skipped,
        "took_s": time.perf_counter() - start,
        "throughput": rows,
        "solve": solved,
    }
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "peers.json").write_text(json.dumps(found, indent=1) + "\n")
    table = markdown(found)
    (asked.out / "peers.md").write_text(table)
    print(table)
    say(f"written: {asked.out / 'peers.md'}, {asked.out / 'peers.json'}")


def versions() -> dict[str, str]:
    """Return the versions of what is measured, as far as installed."""
    found = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> str:
    """Return the processor's name, what SIMD it has, and how many of its cores this process may use."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    told = dict(line.replace("\t", "").split(":", 1) for line in lines if ":" in line)
    flags = told.get("flags", "").split()
    simd = next((name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags), "no AVX2")
    return f"{CORES} cores, {told.get('model name', 'processor').strip()}, {simd}"


if __name__ == "__main__":
    main()
