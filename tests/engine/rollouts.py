"""Rollouts that every engine must repeat: the same policies, drawn from a fixed seed, on the environments of the house and the tests.

    python -m tests.engine.rollouts DEVICE FILE.npz

writes the rollouts of DEVICE, for it may need another process: the CUDA simulator (NUMBA_ENABLE_CUDASIM=1) or plain Python
(NUMBA_DISABLE_JIT=1), both of which Numba chooses when it is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from warprun.engine.device import Device, choose
from warprun.engine.engine import Engine
from warprun.environment import Box, Environment
from warprun.errors import UserError
from warprun.registry import import_environment

ROOT = Path(__file__).parents[2]
CPU = Device("cpu", "a test")
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """An environment and how far it is rolled out."""

    module: str
    horizon: int = 8
    collects: int = 2
    n_envs: int = 3
    time_limit: int | None = 5
    """Several truncations in a rollout."""
    vary: tuple[tuple[str, tuple[float, float]], ...] = ()
    exploration: tuple[float, float, float] | None = None
    """Of policies that give no distributions."""
    options: tuple[tuple[str, Any], ...] = ()
    data: bool = False
    """Whether it needs what its module's `fetch_data` fetches."""
    tolerance: float = 2e-6
    """Relative to 1 + |value|, between compiled code, which fuses multiplications and additions, and plain Python."""

    @property
    def environment(self) -> Environment:
        made, module = import_environment(self.module, dict(self.options))
        if self.data:
            try:
                module.fetch_data()
            except UserError as error:
                pytest.skip(str(error))
        return replace(made, time_limit=self.time_limit)


CASES = {
    "cartpole": Case("warprun.envs.cartpole", vary=(("length", (0.3, 0.7)), ("gravity", (8.0, 11.0)))),
    "acrobot": Case("warprun.envs.acrobot"),
    "mountain_car": Case("warprun.envs.mountain_car"),
    "mountain_car_continuous": Case("warprun.envs.mountain_car_continuous"),
    "pendulum": Case("warprun.envs.pendulum"),
    "market": Case("tests.environments.market", time_limit=6, vary=(("imitation", (0.1, 0.5)),)),
    "crane": Case("tests.environments.crane", time_limit=None),
    "market_exploring": Case("tests.environments.market", time_limit=6, exploration=(0.3, 0.2, 0.4)),
    "crane_exploring": Case("tests.environments.crane", exploration=(0.3, 0.2, 0.4)),
    "catalysis": Case("warprun.envs.catalysis", vary=(("shaping", (0.0, 1.0)),), options=(("observation", "neighbours"),)),
    "catalysis_continuous": Case("warprun.envs.catalysis", options=(("continuous", True), ("pes", "muller_brown"))),
    "covid": Case(
        "warprun.envs.covid", n_envs=2, horizon=4, time_limit=3, vary=(("beta_slope_factor", (0.5, 1.5)),), tolerance=2e-5, data=True
    ),
}


def make(environment: Environment, name: str, **options: Any) -> Engine:
    """Return an engine for an environment, reset, with what the environment itself says unless `options` say otherwise."""
    given: dict[str, Any] = {"device": CPU, "n_envs": 4, "horizon": 8, "seed": 0, "params": environment.params(), "threads": 1}
    if environment.tables:
        given["tables"] = environment.tables(**environment.options)
    engine = Engine(environment, name, **(given | options))
    engine.reset()
    return engine


class RandomPolicies:
    """Writes policy outputs that depend on nothing but the environment's number, the actor and how often it was asked."""

    def __init__(self, engine: Engine, seed: int = 0) -> None:
        self.engine = engine
        self.seed = seed
        self.asked = 0

    def __call__(self, trajectory: Any, row: int) -> None:
        self.asked += 1
        for number, (name, group) in enumerate(trajectory.groups.items()):
            space = self.engine.environment.group(name).action
            for env in range(trajectory.n_envs):
                draw = np.random.default_rng((self.seed, self.asked, number, env)).standard_normal(group.policy_output.shape[1:])
                if isinstance(space, Box):
                    draw[:, space.size :] = 0.2 * draw[:, space.size :] - 0.5
                group.policy_output[env] = torch.from_numpy(draw)


def record(engine: Engine, collects: int, seed: int = 0) -> Arrays:
    """Return all that some rollouts leave behind, by name; time goes on from one to the next."""
    policies = RandomPolicies(engine, seed)
    parts: dict[str, list[np.ndarray]] = {}
    for _ in range(collects):
        taken = engine.collect(policies)
        kept = {"terminated": taken.terminated, "truncated": taken.truncated}
        for name, group in taken.groups.items():
            kept |= {f"{name}.{k}": getattr(group, k) for k in ("action", "log_prob", "reward")}
            kept[f"{name}.obs"] = group.obs[1:]
            kept[f"{name}.first_obs"] = group.obs[:1]
            slot = taken.final_slot()[..., None, None].expand(-1, -1, *group.final_obs.shape[2:])
            # Rows of final_obs that no truncation of this rollout wrote hold what an earlier one left.
            kept[f"{name}.final_obs"] = group.final_obs.gather(0, slot) * taken.truncated[..., None, None]
            if group.mask is not None:
                kept[f"{name}.mask"] = group.mask[:-1]
        for name, tensor in kept.items():
            parts.setdefault(name, []).append(tensor.cpu().numpy().copy())
    arrays = {name: np.concatenate(rows) for name, rows in parts.items()}
    for name in engine.trajectory.groups:
        arrays |= {f"{name}.state.{field}": value.cpu().numpy() for field, value in engine.state_of(name).items()}
    ended = engine.episodes()
    return arrays | {"episodes": np.array([ended.count, ended.mean_length]), "returns": np.array(list(ended.mean_return.values()))}


def roll_out(name: str, device: Device, **changes: Any) -> Arrays:
    """Return the rollouts of a case on a device."""
    case = replace(CASES[name], **changes)
    options: dict[str, Any] = {"n_envs": case.n_envs, "horizon": case.horizon, "vary": dict(case.vary), "seed": 2**40 + 3}
    if case.exploration:
        options["exploration"] = {g.name: torch.tensor(case.exploration, device=device.torch) for g in case.environment.groups}
    engine = make(case.environment, name, device=device, **options)
    return record(engine, case.collects)


def start(device: str, file: Path, **variables: str) -> subprocess.Popen[str]:
    """Begin to roll out every case in a process of its own."""
    command = [sys.executable, "-W", "error::RuntimeWarning", "-m", "tests.engine.rollouts", device, str(file)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def load(process: subprocess.Popen[str], file: Path) -> dict[str, Arrays]:
    """Wait for `start` and return the rollouts by case."""
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    found: dict[str, Arrays] = {name: {} for name in CASES}
    for key, value in np.load(file).items():
        case, _, name = key.partition("/")
        found[case][name] = value
    return found


if __name__ == "__main__":
    chosen = choose(sys.argv[1])
    arrays = {}
    for case in CASES:
        with suppress(pytest.skip.Exception):  # the test that asks for it says why
            arrays |= {f"{case}/{key}": value for key, value in roll_out(case, chosen).items()}
    np.savez(sys.argv[2], **arrays)
