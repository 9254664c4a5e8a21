"""Rollouts that every engine must repeat: the same policies, drawn from a fixed seed, on the environments of the house and the tests.

    python -m tests.simulation.rollouts DEVICE FILE.npz "KIND: CASE" ...

writes the rollouts of DEVICE, for it may need another process: the CUDA simulator (NUMBA_ENABLE_CUDASIM=1) or plain Python
(NUMBA_DISABLE_JIT=1), both of which Numba chooses when it is imported. KIND is one of KINDS; `fused`: cases of `FUSED_CASES`, with networks
in the kernel.
"""

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.agents import build
from warprun.config.registry import import_environment
from warprun.environment import Box, Environment, MultiDiscrete
from warprun.errors import UserError
from warprun.learning.settings.networks import NetworkConfig
from warprun.simulation.device import Device, choose
from warprun.simulation.exploration import Exploration
from warprun.simulation.kernel_engine import KernelEngine
from warprun.simulation.trajectory import Trajectory
from warprun.simulation.vector_engine import VectorEngine
from warprun.spec import PolicyKind

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
    policies: PolicyKind = "explored"
    staggered: bool = False
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
    "cartpole_positions": Case("warprun.envs.cartpole", options=(("velocity", False),)),
    "pendulum_positions": Case("warprun.envs.pendulum", options=(("velocity", False),)),
    "conditional": Case("tests.environments.conditional", time_limit=7),
    "market_staggered": Case("tests.environments.market", time_limit=6, staggered=True),
    "t_maze": Case("warprun.envs.t_maze", options=(("length", 1),)),
    "market": Case("tests.environments.market", time_limit=6, vary=(("imitation", (0.1, 0.5)),)),
    "crane": Case("tests.environments.crane", time_limit=None),
    "market_exploring": Case("tests.environments.market", time_limit=6, exploration=(0.3, 0.2, 0.4)),
    "crane_exploring": Case("tests.environments.crane", exploration=(0.3, 0.2, 0.4)),
    "crane_squashed": Case("tests.environments.crane", exploration=(0.3, 0.8, 0.4), policies="squashed"),
    "catalysis": Case("warprun.envs.catalysis", vary=(("shaping", (0.0, 1.0)),), options=(("observation", "neighbours"),)),
    "catalysis_continuous": Case("warprun.envs.catalysis", options=(("continuous", True), ("pes", "muller_brown"))),
    "booster": Case("warprun.envs.booster", vary=(("noise", (0.0, 0.1)),)),
    "booster_compat": Case(
        "warprun.envs.booster",
        horizon=12,
        options=(("action", "continuous"), ("plant", "simple"), ("mode", "compat"), ("history", 2), ("scaling", "minmax")),
    ),
    "covid": Case(
        "warprun.envs.covid", n_envs=2, horizon=4, time_limit=3, vary=(("beta_slope_factor", (0.5, 1.5)),), tolerance=2e-5, data=True
    ),
    "gray_scott": Case("warprun.envs.gray_scott", vary=(("feed", (0.01, 0.03)),), n_envs=2, horizon=3, collects=1, time_limit=2),
    "leaving": Case("tests.environments.leaving", horizon=12),
    "cells 1": Case("tests.environments.cells", options=(("size", 1),)),
    "cells 2": Case("tests.environments.cells", options=(("size", 2),)),
    "bounds": Case("tests.environments.bounds", horizon=12, collects=1, time_limit=12),
    "tag_gridworld": Case("warprun.envs.tag.gridworld", options=(("start", "pool"),), horizon=4),
    "tag_gridworld near": Case("warprun.envs.tag.gridworld", options=(("taggers", 1), ("observation", "near")), horizon=4),
    "tag_continuous": Case("warprun.envs.tag.continuous", options=(("taggers", 4), ("runners", 30)), horizon=4, tolerance=1e-5),
    "tag_continuous full": Case(
        "warprun.envs.tag.continuous",
        options=(("taggers", 1), ("runners", 5), ("observation", "full"), ("start", "fixed")),
        horizon=4,
        tolerance=1e-5,
    ),
}

CASES |= {
    f"loops {kind}": Case("tests.environments.loops", options=(("kind", kind),))
    for kind in ("integrate", "spread", "descend", "solve", "wander")
}

TANH = NetworkConfig(hidden=[12, 8])
RELU = NetworkConfig(hidden=[17, 5, 9], activation="relu", shared=False)

FUSED_CASES: dict[str, tuple[Case, NetworkConfig, bool]] = {
    # More environments than columns, and a second block that is not full.
    "cartpole tanh": (replace(CASES["cartpole"], n_envs=37, horizon=3), TANH, False),
    "cartpole greedy": (replace(CASES["cartpole"], horizon=3), TANH, True),
    # So wide that a block takes 12 environments.
    "acrobot wide": (replace(CASES["acrobot"], n_envs=13, horizon=2, collects=1, time_limit=2), NetworkConfig(hidden=[900]), False),
    "mountain_car_continuous tanh": (replace(CASES["mountain_car_continuous"], horizon=3), TANH, False),
    "market tanh": (replace(CASES["market"], n_envs=2, horizon=4), TANH, False),
    "market relu": (replace(CASES["market"], n_envs=1, horizon=4), RELU, False),
    # So wide that a block takes its five actors in two turns.
    "market wide": (replace(CASES["market"], n_envs=1, horizon=2, collects=1, time_limit=2), NetworkConfig(hidden=[2000]), False),
    "leaving tanh": (replace(CASES["leaving"], horizon=4), TANH, False),
    "crane tanh": (CASES["crane"], TANH, False),
    "crane greedy": (CASES["crane"], RELU, True),
    "market_exploring tanh": (replace(CASES["market_exploring"], n_envs=1, horizon=4), TANH, False),
    "crane_exploring relu": (replace(CASES["crane_exploring"], horizon=3), RELU, False),
    "crane_squashed tanh": (replace(CASES["crane_squashed"], horizon=3), TANH, False),
}
"""Case, network and whether actions are the best ones, instead of drawn."""


def make(environment: Environment, name: str, **options: Any) -> KernelEngine:
    """Return an engine for an environment, reset, with what the environment itself says unless `options` say otherwise."""
    given: dict[str, Any] = {"device": CPU, "n_envs": 4, "horizon": 8, "seed": 0, "params": environment.params(), "threads": 1}
    if environment.tables:
        given["tables"] = environment.tables(**environment.options)
    engine = KernelEngine(environment, name, **(given | options))
    engine.reset()
    return engine


class RandomPolicies:
    """Writes policy outputs that depend on nothing but the environment's number, the actor and how often it was asked."""

    def __init__(self, engine: KernelEngine, seed: int = 0) -> None:
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


def record(
    engine: KernelEngine, collects: int, seed: int = 0, act: Any = None, greedy: bool = False, roll: Callable[[], Trajectory] | None = None
) -> Arrays:
    """Return all that some rollouts leave behind, by name; time goes on from one to the next.

    `act`: instead of random policies. `roll`: makes the rollouts, instead of `collect`.
    """
    policies = act or RandomPolicies(engine, seed)
    parts: dict[str, list[np.ndarray]] = {}
    for _ in range(collects):
        taken = roll() if roll else engine.collect(policies, greedy)
        kept = {"terminated": taken.terminated, "truncated": taken.truncated}
        for name, group in taken.groups.items():
            kept |= {f"{name}.{k}": getattr(group, k) for k in ("action", "log_prob", "reward")}
            kept[f"{name}.obs"] = group.obs[1:]
            kept[f"{name}.first_obs"] = group.obs[:1]
            slot = taken.final_slot()[..., None, None].expand(-1, -1, *group.final_obs.shape[2:])
            # Rows of final_obs that no truncation of this rollout wrote hold what an earlier one left.
            kept[f"{name}.final_obs"] = group.final_obs.gather(0, slot).where(taken.truncated[..., None, None], 0.0)
            if group.mask is not None:
                kept[f"{name}.mask"] = group.mask[:-1]
            if group.alive is not None and group.final_alive is not None:
                kept[f"{name}.alive"], kept[f"{name}.first_alive"] = group.alive[1:], group.alive[:1]
                kept[f"{name}.final_alive"] = group.final_alive.gather(0, slot[..., 0]) & taken.truncated[..., None]
            if act:
                kept[f"{name}.value"] = group.value
                kept[f"{name}.policy_output"] = group.policy_output[None]
        for name, tensor in kept.items():
            parts.setdefault(name, []).append(tensor.cpu().numpy().copy())
    arrays = {name: np.concatenate(rows) for name, rows in parts.items()}
    for name in engine.trajectory.groups:
        arrays |= {f"{name}.state.{field}": value.cpu().numpy() for field, value in engine.state_of(name).items()}
    ended = engine.episodes()
    return arrays | {"episodes": np.array([ended.count, ended.mean_length]), "returns": np.array(list(ended.mean_return.values()))}


def assert_same(expected: Arrays, found: Arrays, tolerance: float) -> None:
    """Compare rollouts: discrete actions, masks, ends and integer states exactly, real numbers relative to 1 + |value|."""
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        if array.dtype.kind == "f":
            np.testing.assert_allclose(found[name], array, rtol=tolerance, atol=tolerance, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], array, err_msg=name)


def compared(case: Case, found: Arrays) -> Arrays:
    """Return what a case can be compared by: actions that explore are not drawn from distributions."""
    return {key: array for key, array in found.items() if not (case.exploration and key.endswith("log_prob"))}


def roll_out(name: str, device: Device, **changes: Any) -> Arrays:
    case = replace(CASES[name], **changes)
    return record(engine_of(case, name, device), case.collects)


def retrace(name: str, device: Device) -> Arrays:
    """Return the rollouts of a case whose actions are given, and `launches`: the kernels that the GPU runs for them."""
    case = CASES[name]
    again, launches = engine_of(case, name, device), []
    launcher = again._kernels._launch
    launch = launcher.on

    def counted(kernel: str, *given: Any) -> None:
        launches.append(kernel)
        launch(kernel, *given)

    launcher.on = counted
    return retraced(engine_of(case, name, device), again, case.collects) | {"launches": np.array(launches)}


def retraced(first: KernelEngine, again: KernelEngine, collects: int) -> Arrays:
    """Return the rollouts of an engine that takes the actions of the `first`, which draws them."""
    policies = RandomPolicies(first, 0)

    def roll() -> Trajectory:
        for taken, given in zip(again.trajectory.groups.values(), first.collect(policies).groups.values(), strict=True):
            taken.action.copy_(given.action)
            taken.log_prob.copy_(given.log_prob)
        return again.retrace()

    return record(again, collects, roll=roll)


def engine_of(case: Case, name: str, device: Device, **more: Any) -> KernelEngine:
    options: dict[str, Any] = {**more, "n_envs": case.n_envs, "horizon": case.horizon, "vary": dict(case.vary), "seed": 2**40 + 3}
    options["staggered"] = case.staggered
    if case.exploration:
        numbers = {g.name: torch.tensor(case.exploration, device=device.torch) for g in case.environment.groups}
        options["exploration"] = Exploration(case.policies, numbers)
    return make(case.environment, name, device=device, **options)


def roll_out_networks(name: str, device: Device, fused: bool, **changes: Any) -> Arrays:
    """Return the rollouts of a case of FUSED_CASES, with the networks in the kernel or between kernels."""
    case, network, greedy = FUSED_CASES[name]
    case = replace(case, **changes)
    agent = acting(case.environment, network, device, fused)
    engine = engine_of(case, name.partition(" ")[0], device, networks=agent.networks() if fused else None)
    return record(engine, case.collects, act=_nothing if fused else agent.act, greedy=greedy)


def acting(environment: Environment, network: NetworkConfig, device: Device, fused: bool = False) -> Any:
    """Return an agent whose policies have opinions, with the statistics of observations of a run under way."""
    made = build("a2c", environment, device=device.torch, fused=fused, network=network)
    generator = torch.Generator().manual_seed(1)
    for learner in made.learners:
        policy = learner.policy
        policy.normalizer.shift.copy_(0.1 * torch.randn(policy.normalizer.shift.shape, generator=generator))
        policy.normalizer.scale.fill_(1.3)
        policy.parameters += (0.1 * torch.randn(policy.parameters.shape, generator=generator)).to(policy.parameters)
    return made


def _nothing(trajectory: Any, row: int) -> None:
    raise AssertionError("a fused rollout asks nobody")


def by_caller(case: Case, name: str, device: Device, n_envs: int) -> Arrays:
    """Step with random actions of a caller, of those that are allowed; return what each step gives."""
    environment, draw, seen = case.environment, np.random.default_rng(0), []
    tables = environment.tables(**environment.options) if environment.tables else None
    given = {"n_envs": n_envs, "params": environment.params(), "tables": tables, "vary": dict(case.vary)}
    engine = VectorEngine(environment, name, device=device, threads=1, **given)
    engine.prepare()
    engine.seed(11)
    bound = engine.new_step(engine.new_actions())
    engine.reset(bound)
    for _ in range(10):
        for number, (group, taken) in enumerate(zip(environment.groups, bound.step.groups, strict=True)):
            mask = None if taken.mask is None else np.asarray(taken.mask)
            actions = random_actions(group.action, (n_envs, group.size), mask, draw).reshape(-1)
            engine.take(number, actions if device is CPU else torch.from_numpy(actions), taken.action)
        engine.advance(bound)
        arrays = {"terminated": bound.step.terminated, "truncated": bound.step.truncated}
        for number, taken in enumerate(bound.step.groups):
            arrays |= {f"{number}.{key}": value for key, value in taken._asdict().items() if value is not None}
        seen.append({key: np.asarray(value).copy() for key, value in arrays.items()})
    return {key: np.stack([arrays[key] for arrays in seen]) for key in seen[0]}


def random_actions(space: Any, shape: tuple[int, ...], mask: np.ndarray | None, draw: np.random.Generator) -> np.ndarray:
    """Return actions [*shape, C] in the space's units, of those allowed."""
    if isinstance(space, Box):
        return draw.normal(size=(*shape, space.size)).astype(np.float32)
    counts = space.nvec if isinstance(space, MultiDiscrete) else (space.n,)
    scores = draw.random((*shape, sum(counts)))
    scores = scores if mask is None else np.where(np.reshape(mask, scores.shape), scores, -1.0)
    return np.stack([part.argmax(-1) for part in np.split(scores, np.cumsum(counts)[:-1], -1)], -1)


def begin(module: str, *arguments: object, **variables: str) -> subprocess.Popen[str]:
    """Begin a module of the tests as a process of its own, with variables of Numba."""
    command = [sys.executable, "-W", "error::RuntimeWarning", "-m", module, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate()
    assert process.returncode == 0, errors


def start(device: str, file: Path, runs: list[str], **variables: str) -> subprocess.Popen[str]:
    """Begin to roll out in a process of its own; `runs`: "KIND: CASE" each."""
    return begin("tests.simulation.rollouts", device, file, *runs, **variables)


def load(process: subprocess.Popen[str], file: Path) -> dict[str, Arrays]:
    """Wait for `start` and return the rollouts by kind and case."""
    finish(process)
    found: dict[str, Arrays] = defaultdict(dict)
    for key, value in np.load(file).items():
        run, _, name = key.partition("/")
        found[run][name] = value
    return found


KINDS: dict[str, Callable[[str, Device], Arrays]] = {
    "stepwise": roll_out,
    "fused": partial(roll_out_networks, fused=True),
    "retraced": retrace,
    "by a caller": lambda name, device: by_caller(CASES[name], name, device, CASES[name].n_envs),
}

if __name__ == "__main__":
    chosen, arrays = choose(sys.argv[1]), {}
    for run in sys.argv[3:]:
        kind, _, case = run.partition(": ")
        with suppress(pytest.skip.Exception):  # the test that asks for it says why
            arrays |= {f"{run}/{key}": value for key, value in KINDS[kind](case, chosen).items()}
    np.savez(sys.argv[2], **arrays)
