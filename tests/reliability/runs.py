"""Runs in processes of their own that are killed and continued, and what came of them."""

import hashlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

from tests.words import words
from warprun.cli.main import run
from warprun.runs import checkpoint, rundir, signals

SHORT = ["stop_when_solved=false", "device=cpu", "concurrency.threads=1", "eval.every=20%", "eval.episodes=8", "log.every=5%"]
"""Settings of tiny runs; what repeats, repeats at steps, so that two runs record the same."""
REPLAY = ["agent.learning_starts=500", "agent.replay.capacity=4000"]
TINY = {
    "a2c": ["env=cartpole", "agent=a2c", "n_envs=32", "total_steps=20000", "agent.normalize_obs=true"],
    "ppo": ["env=cartpole", "agent=ppo", "n_envs=32", "total_steps=20000", "agent.horizon=32"],
    "dqn": [*words("env=cartpole agent=dqn n_envs=16 total_steps=6000"), *REPLAY, "agent.replay.prioritized=true"],
    "ddpg": [*words("env=pendulum agent=ddpg n_envs=16 total_steps=5000"), *REPLAY, "agent.normalize_obs=true"],
    "td3": [*words("env=pendulum agent=td3 n_envs=16 total_steps=5000"), *REPLAY, "agent.n_step=3"],
    "sac": [*words("env=pendulum agent=sac n_envs=16 total_steps=5000"), *REPLAY, "agent.noise_theta=0.3"],
    "groups": words("""
        env.module=tests.environments.market env.name=market agent=ppo n_envs=16 total_steps=6000 agent.horizon=16
        agent.groups.regulator.learning_rate=1e-3
    """),
}
"""A tiny run of each agent, and of two groups, of less than a second once its kernels are compiled."""


def command(agent: str, folder: Path, *more: str) -> list[str]:
    """Return the command line of a tiny run; its checkpoints come so often that a kill hits one now and then."""
    return [*TINY[agent], *SHORT, "tuned=none", "checkpoint.every=4%", f"run_dir={folder}", *more]


def with_default_signals() -> None:
    """Undo in a new process what it inherits: under `nohup`, or in the background of a script, some signals are ignored."""
    for number in signals.SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def begin(arguments: Sequence[str], log: Path) -> int:
    """Start a command in a forked process, which has loaded everything already, and return its number."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(written, stream)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        with_default_signals()
        signals.watch()
        code = run(list(arguments))
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def wait(pid: int, limit_s: float = 120.0) -> int:
    """Return the exit code of a process, minus the signal that killed it."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise TimeoutError(f"process {pid} did not end within {limit_s} s")


def undisturbed(agent: str, folder: Path) -> tuple[dict[str, object], float]:
    """Return the outcome of a run that nobody interrupts, and the seconds that it takes."""
    assert run(command(agent, folder / "first")) == 0  # forked processes inherit its kernels
    began = time.monotonic()
    assert wait(begin(command(agent, folder / "run"), folder / "log")) == 0
    return outcome(folder / "run"), time.monotonic() - began


def assert_same(folder: Path, wanted: dict[str, object]) -> None:
    """See that a run has this outcome, and remove it."""
    found = outcome(folder)
    for part, value in wanted.items():
        assert found[part] == value, f"{part} of {folder}"
    shutil.rmtree(folder)


def outcome(folder: Path) -> dict[str, object]:
    """Return everything that a run leaves which must not depend on interruptions: state, records, evaluations, status."""
    saved = checkpoint.load(folder)
    state = {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in saved.tensors.items()}
    best = {name: hashlib.sha256(t.numpy().tobytes()).hexdigest() for name, t in checkpoint.load(folder, checkpoint.BEST).tensors.items()}
    rows = [_steady(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    status = rundir.read_status(folder)
    run = saved.meta["run"]
    counted = {name: run[name] for name in ("iterations", "env_steps", "pending", "replaced", "solved", "told", "losses")}
    return {
        "env_steps": saved.env_steps,
        "state": state,
        "best": best,
        "rows": rows,
        "scalars": scalars(folder),
        "status": [status[key] for key in ("state", "env_steps", "train", "eval")],
        "counted": counted | {"metrics": _steady(run["metrics"])},
    }


def scalars(folder: Path) -> list[tuple[int, str, float]]:
    """Return all scalars of the event files, in the order of the files."""
    found = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            values = _steady({value.tag: value.simple_value for value in event.summary.value if value.HasField("simple_value")})
            found += [(event.step, tag, value) for tag, value in values.items()]
    return found


def _steady(row: dict[str, float]) -> dict[str, float]:
    """Return a record without times."""
    return {tag: value for tag, value in row.items() if not tag.startswith("perf/") and tag != "wall_s"}
