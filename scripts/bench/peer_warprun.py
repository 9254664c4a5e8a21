"""warprun itself: simulator and agent of a run without records and evaluations, sweeps by one command, the rate of the matrix product."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import peer_work as spec
from peer_work import Iterate, OffPolicy, Sweep, Work

sys.path.append(str(Path(__file__).parents[1]))

from common import Training, training_of

from warprun.kernels import compile as kernels
from warprun.kernels.peak import REPEATS, SIZE, SOURCE
from warprun.kernels.simd import COLUMNS, multiply
from warprun.kernels.threads import threads as threads_of_process

LEAN = ["log.tensorboard=false", "log.every=10%", "checkpoint.best=false", "eval.every=never", "eval.final_episodes=20"]
"""Records and evaluations of agents that are only timed."""

SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of prctl(2)."""


def prepare(work: Work | OffPolicy, variant: str, n_envs: int, threads: int) -> tuple[Iterate, str]:
    """Return an iteration of `work`; `variant` is shared or separate (trunks of policy and value), gymnax (its CartPole), or product."""
    if variant == "product":
        return _product(threads), f"{SIZE} x {SIZE} by {SIZE} x {COLUMNS}"
    sizes = (f"n_envs={n_envs}", "device=cpu", f"concurrency.threads={threads}")
    if isinstance(work, OffPolicy):
        return _off_policy(training_of(*settings_off_policy(work), *sizes), n_envs)
    env = ["env=gymnax", "env.id=CartPole-v1"] if variant == "gymnax" else ["env=cartpole"]
    training = training_of(*env, *settings_of(work._replace(separate=variant == "separate")), *sizes)
    return (training.rollout if work.learner == "none" else training.iterate), str(training.setup.plan)


def _off_policy(training: Training, n_envs: int) -> tuple[Iterate, str]:
    """Return some steps with their gradient steps; machine code repeats those of a gradient step after some."""
    training.take(spec.FILLED + 8 * spec.TOGETHER * n_envs)

    def iterate() -> int:
        training.take(spec.TOGETHER * n_envs)
        return spec.TOGETHER * n_envs

    return iterate, str(training.setup.plan)


def settings_off_policy(work: OffPolicy) -> list[str]:
    """Return the settings of environment and agent off policy."""
    return [
        f"env={work.env}",
        "tuned=none",
        f"agent={work.learner}",
        f"agent.network.hidden=[{work.width},{work.width}]",
        f"agent.batch_size={spec.BATCH}",
        f"agent.replay.capacity={spec.CAPACITY}",
        f"agent.learning_starts={spec.FILLED}",
        f"agent.utd_ratio={work.updates / work.n_envs}",
        *(["agent.double=false"] if work.learner == "dqn" else []),
    ]


def settings_of(work: Work) -> list[str]:
    """Return the settings of the agent; the learning rate falls over the whole run if the work's does."""
    ppo = [f"agent.epochs={work.epochs}", f"agent.minibatches={work.minibatches}", f"agent.clip={spec.CLIP}"]
    return [
        "tuned=none",
        f"agent={'ppo' if work.learner == 'ppo' else 'a2c'}",
        f"agent.horizon={work.horizon}",
        f"agent.learning_rate={work.learning_rate}",
        f"agent.gamma={spec.GAMMA}",
        f"agent.gae_lambda={spec.LAMBDA}",
        f"agent.entropy_coef={spec.ENTROPY_COEF}",
        f"agent.value_coef={spec.VALUE_COEF}",
        f"agent.max_grad_norm={spec.MAX_NORM}",
        "agent.normalize_obs=false",
        "agent.normalize_reward=false",
        f"agent.network.hidden=[{work.width},{work.width}]",
        f"agent.network.shared={str(not work.separate).lower()}",
        *(ppo if work.learner == "ppo" else []),
        *(["agent.network.type=lstm", f"agent.network.units=[{work.units}]"] if work.units else []),
        *(["agent.learning_rate_end=0"] if work.anneal_over else []),
        *([f"agent.clip_value={spec.CLIP}"] if work.clips_value else []),
    ]


def _product(threads: int) -> Iterate:
    """Return an iteration whose "steps" are multiply-adds: products of a layer in the first-level cache."""
    module = kernels.load_module("peak", SOURCE, {"multiply": multiply, "FLAGS": kernels.FLAGS})
    w, bias = np.zeros(SIZE * SIZE, np.float32), np.zeros(SIZE, np.float32)
    blocks = [np.zeros((2, SIZE * COLUMNS), np.float32) for _ in range(threads)]

    def iterate() -> int:
        threads_of_process(threads).share(lambda begin, end, n: module.repeat(REPEATS, w, bias, *blocks[n], SIZE), threads)
        return threads * REPEATS * SIZE * SIZE * COLUMNS

    return iterate


def prepare_sweep(work: Work | Sweep, variant: str, agents: int, threads: int) -> tuple[Iterate, str]:
    """Return a sweep over seeds; it gives the environment steps of all agents, or the number of agents that it has solved."""
    if isinstance(work, Sweep):
        words = [work.settings]
    else:
        trained = work._replace(separate=variant == "separate")
        words = ["env=cartpole", *settings_of(trained), f"n_envs={spec.AGENT_ENVS}", f"total_steps={spec.AGENT_STEPS}", *LEAN]
        words.append("stop_when_solved=false")
    # What a command leaves behind becomes a child of this process, so that its time is counted, too.
    ctypes.CDLL(None).prctl(SUBREAPER, 1)
    words += [f"seed=range(0,{agents})", f"launcher.workers={threads}"]

    def iterate() -> int:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "warprun", "-m", *words, f"sweep_dir={folder}/sweep"]
            subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=True)
            with suppress(ChildProcessError):
                while True:
                    os.wait()
            ended = [json.loads(path.read_text()) for path in Path(folder, "sweep").glob("[0-9]*/status.json")]
        return sum(each["state"] == "solved" if isinstance(work, Sweep) else each["env_steps"] for each in ended)

    return iterate, f"one command, {threads} workers"
