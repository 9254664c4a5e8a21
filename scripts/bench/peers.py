"""Measure warprun against other packages at the same work, in turn.

    python scripts/bench/peers.py [--works WORK ...] [--rounds 5] [--seconds 1.5] [--wait MINUTES] [--again] [--list]
    python scripts/reproduce.py --write     # the tables

Every peer is a process. For each work all peers are prepared (compiled and warm), then measured in turn, round after round, in wall time
and in CPU time of the process and its children. Each round is kept in docs/benchmarks/peers.json as soon as it has ended, so the same
command goes on after an interruption. Rounds that were measured on another machine, with other versions or of another commit are measured
again, with --again all. Before the first round the load average must fall below 0.3 within --wait minutes. A round beside which other
processes used more than a tenth of a core is repeated, three times at most, and then kept as not quiet; the tables mark it. --list prints
the works. Needs scripts/bench/requirements.txt. Linux only: CPU times are from /proc.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1]))

from campaign import Parts, Values, cpu_s, measure, read
from common import DOCS, ROOT, settings, stop
from peer_work import CAPACITY, WORKS, OffPolicy, versions

from warprun.runs import rundir

HERE, KEPT = Path(__file__).resolve().parent, DOCS / "benchmarks" / "peers.json"
ON_POLICY, MEMORY = ("rollout-64", "a2c-64", "a2c-32", "ppo-64"), ("lstm-128", "lstm-16")
TRAINING, BATCHED = ON_POLICY[1:], ("gymnax-a2c", "gymnax-ppo")
ONE = tuple(name for name, work in WORKS.items() if isinstance(work, OffPolicy) and work.n_envs == 1)
FEW = tuple(name for name, work in WORKS.items() if isinstance(work, OffPolicy) and work.n_envs == 16)
MANY = tuple(name for name, work in WORKS.items() if isinstance(work, OffPolicy) and work.n_envs == 1_000)


class Peer(NamedTuple):
    """One row of the table per work of the peer."""

    name: str
    prepare: str
    """Module and function."""
    variant: str
    """Passed to the function: trunks, random number generator, library, or capacity of the replay memory."""
    trunk: str
    """shared or separate trunk of policy and value; compared with warprun with the same kind of trunk."""
    needs: tuple[str, ...]
    """Required modules."""
    n_envs: int
    threads: int
    works: tuple[str, ...]

    def key(self) -> str:
        """Return what the rows of a work are told apart by."""
        return f"{self.name}, {self.trunk}, {self.n_envs} environments, {self.threads} threads"


CORES = len(os.sched_getaffinity(0))
JAX, REJAX, SB3 = ("jax", "gymnax", "optax"), ("jax", "gymnax", "rejax"), ("torch", "stable_baselines3", "gymnasium")
LIMIT, OWN = "arithmetic limit", "warprun"
AGENTS = 128
"""Of a population; the number of environments of a peer is that of its agents then."""
SHARED, SEPARATE = ("shared", "shared"), ("separate", "separate")
"""Variant and trunk of warprun."""
RBG = "unsafe_rbg"
"""The fastest of JAX's generators of random numbers."""
limit = partial(Peer, LIMIT, "peer_warprun:prepare", "product", "shared", (), 0)
jax = partial(Peer, "JAX on gymnax", "peer_jax:prepare", RBG, "shared", JAX)
rejax = partial(Peer, "rejax", "peer_jax:prepare_rejax", RBG, "separate", REJAX)


def own(kind: tuple[str, str], n_envs: int, threads: int, works: tuple[str, ...]) -> Peer:
    """Return warprun as a peer."""
    return Peer(OWN, "peer_warprun:prepare", *kind, (), n_envs, threads, works)


def sweep(kind: tuple[str, str], agents: int, work: str) -> Peer:
    """Return warprun, which trains agents by one command."""
    return Peer(OWN, "peer_warprun:prepare_sweep", *kind, (), agents, CORES, (work,))


def rejax_off_policy(capacity: int, n_envs: int, threads: int, works: tuple[str, ...]) -> Peer:
    """Return rejax off policy with a replay memory of a capacity."""
    name = "rejax" if capacity == CAPACITY else f"rejax, memory of {capacity:,}"
    return Peer(name, "peer_jax:prepare_off_policy", str(capacity), "shared", REJAX, n_envs, threads, works)


def sb3(name: str, library: str, trunk: str, n_envs: int, threads: int, works: tuple[str, ...]) -> Peer:
    """Return Stable-Baselines3, or a package with its interface."""
    return Peer(name, "peer_sb3:prepare_sb3", library, trunk, (*SB3, library), n_envs, threads, works)


# 10,000 environments, and 1,000 where a peer can train faster with them. A process with one thread is bound to a core.
PEERS = (
    limit(CORES, (*ON_POLICY, *BATCHED, *MEMORY, *MANY)),
    limit(1, ("few", "gymnax-one", *ONE, *FEW)),
    own(SHARED, 10_000, CORES, (*ON_POLICY, "lstm-16")),
    own(SEPARATE, 10_000, CORES, TRAINING),
    own(SHARED, 10, 1, ("few",)),
    own(("gymnax", "shared"), 1_000, 1, ("gymnax-one",)),
    own(SHARED, 100, 1, ("few",)),
    own(("gymnax", "shared"), 10_000, CORES, BATCHED),
    own(("gymnax", "shared"), 1_000, CORES, BATCHED),
    own(SHARED, 1_024, CORES, ("lstm-128",)),
    own(SHARED, 1, 1, ONE),
    own(SHARED, 16, 1, FEW),
    own(SHARED, 1_000, CORES, MANY),
    jax(10_000, CORES, (*ON_POLICY, *BATCHED)),
    jax(1_000, CORES, (*TRAINING, *BATCHED)),
    rejax(10_000, CORES, TRAINING),
    rejax(1_000, CORES, TRAINING),
    sb3("Stable-Baselines3", "stable_baselines3", "separate", 1_000, 1, ("a2c-64", "ppo-64")),
    jax(10, 1, ("few",)),
    jax(1_000, 1, ("gymnax-one",)),
    jax(100, 1, ("few",)),
    jax(1_024, CORES, ("lstm-128",)),
    jax(10_000, CORES, ("lstm-16",)),
    sb3("sb3-contrib", "sb3_contrib", "shared", 64, 1, MEMORY),
    sb3("sb3-contrib", "sb3_contrib", "shared", 256, CORES, MEMORY),
    sb3("SBX", "sbx", "shared", 1, 1, ONE),
    sb3("Stable-Baselines3", "stable_baselines3", "shared", 1, 1, ONE),
    rejax_off_policy(CAPACITY, 16, 1, FEW),
    rejax_off_policy(2_000, 16, 1, FEW),
    rejax_off_policy(CAPACITY, 1_000, CORES, MANY),
    rejax_off_policy(2_000, 1_000, CORES, MANY),
    sweep(SEPARATE, AGENTS, "population"),
    sweep(SHARED, AGENTS, "population"),
    Peer("JAX on gymnax", "peer_population:prepare", RBG, "separate", JAX, AGENTS, CORES, ("population",)),
    Peer("rejax", "peer_population:prepare_rejax", RBG, "separate", REJAX, AGENTS, CORES, ("population",)),
    sweep(SHARED, 32, "seeds"),
    sweep(SHARED, 256, "solved"),
)


class Worker:
    """The process of a peer."""

    def __init__(self, prepare: str, threads: int) -> None:
        # Without it torch's threads spin while others could compute, torch's own in the next process among them.
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
        command = [sys.executable, "-W", "ignore", str(HERE / "peer_work.py"), prepare, str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def ask(self, **question: Any) -> dict[str, Any]:
        """Return the answer to a question, and the CPU seconds that it took."""
        assert self.process.stdin and self.process.stdout
        before = cpu_s(self.process.pid)
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise EOFError(f"{self.process.args} has ended; its last words are above")
        return json.loads(answer) | {"cpu_s": cpu_s(self.process.pid) - before}

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


class Workers:
    """The processes of all peers, each begun when it is needed, and ended when no work is left for it."""

    def __init__(self, works: list[str]) -> None:
        self.works, self.begun = works, dict[Peer, Worker]()
        self.work, self.rows = "", Values()
        """The work that peers are prepared for, and their rows."""

    def of(self, work: str) -> dict[Peer, Worker]:
        """Return the processes of a work."""
        for peer in PEERS:
            if work in peer.works and peer not in self.begun:
                self.begun[peer] = Worker(peer.prepare, peer.threads)
        return {peer: worker for peer, worker in self.begun.items() if work in peer.works}

    def prepare(self, work: str) -> Values:
        """Prepare the peers of a work, unless they are; return the row of each."""
        if self.work == work:
            return self.rows
        left = set(self.works[self.works.index(work) :])
        for peer in [peer for peer in self.begun if not left & set(peer.works)]:
            self.begun.pop(peer).close()
        rows: Values = {}
        for peer, worker in self.of(work).items():
            answer = worker.ask(work=work, variant=peer.variant, n_envs=peer.n_envs)
            print(f"{work}: {peer.key()}: ready after {answer['prepared_s']:.1f} s", flush=True)
            told = {key: getattr(peer, key) for key in ("name", "trunk", "n_envs", "threads")}
            rows[peer.key()] = {**told, "settings": answer["settings"], "prepared_s": round(answer["prepared_s"], 1)}
        self.work, self.rows = work, rows
        return rows

    def round(self, work: str, seconds: float, backwards: bool) -> Values:
        """Return the steps per second of wall and of CPU time of every peer; those of the limit are multiply-adds."""
        self.prepare(work)
        rates: Values = {}
        peers = list(self.of(work).items())
        # Every second round the other way round, so that whoever comes after a heavy one is not always the same.
        for peer, worker in reversed(peers) if backwards else peers:
            answer = worker.ask(seconds=seconds)
            rates[peer.key()] = [answer["steps"] / answer["wall_s"], answer["steps"] / max(answer["cpu_s"], 0.01)]
        return rates

    def close(self) -> None:
        """End all processes."""
        for worker in self.begun.values():
            worker.close()


def parts(works: list[str], rounds: int, seconds: float, workers: Workers) -> dict[str, Parts]:
    """Return the parts of every work: what prepares its peers, and its rounds."""
    return {
        work: {
            "prepared": partial(workers.prepare, work),
            **{f"round {n}": partial(workers.round, work, seconds, n % 2 == 1) for n in range(rounds)},
        }
        for work in works
    }


def commit() -> str:
    """Return the commit that last changed what is measured, with a + if files differ from it."""
    measured = ["warprun", "envs", "conf", "scripts/bench/peer*.py", ":!scripts/bench/peer_tables.py"]
    told = [["log", "-1", "--format=%h"], ["status", "--porcelain"]]
    last, changed = (
        subprocess.run(["git", *words, "--", *measured], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        for words in told
    )
    return last + ("+" if changed else "")


def main() -> None:
    """Measure, and keep the rounds."""
    chosen = settings(__doc__, choices={"works": WORKS}, works=list(WORKS), rounds=5, seconds=1.5, wait=10.0, again=False, list=False)
    if chosen.list:
        print("\n".join(WORKS))
        return
    needed = {module for peer in PEERS for module in peer.needs if set(peer.works) & set(chosen.works)}
    missing = sorted(module for module in needed if importlib.util.find_spec(module) is None)
    if missing:
        stop(f"not installed: {', '.join(missing)}; run: pip install -r scripts/bench/requirements.txt")
    about = {
        "machine": {"processor": rundir.processor(), "cores": os.cpu_count(), **versions()},
        "commit": commit(),
        "seconds": chosen.seconds,
    }
    kept = read(KEPT)
    again = [work for work in chosen.works if chosen.again or any(kept.get(work, {}).get(key) != about[key] for key in about)]
    workers = Workers(chosen.works)
    try:
        measure(parts(chosen.works, chosen.rounds, chosen.seconds, workers), KEPT, chosen.wait, 1e9, again, about)
    finally:
        workers.close()


if __name__ == "__main__":
    main()
