"""Rollouts on the machine beside those of the CPU kernels: every kernel that warprun writes for an environment."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from tests.environments import flawed
from tests.ptx.machine import Finding, Kind, Machine, Order
from tests.ptx.mistakes import Mistake
from tests.ptx.project import DEVICE, POISON, on
from tests.simulation.rollouts import CASES, CPU, FUSED_CASES, TANH, Arrays, Case, acting, by_caller, compared, engine_of, record, retraced
from warprun.learning.settings.networks import NetworkConfig
from warprun.simulation import cuda_launch
from warprun.simulation.device import Device

FUSED_TOLERANCE = 5e-5
"""Relative to 1 + |value|: policy outputs differ by their rounding, on tensor cores by 1e-5 of the terms that are summed, and all that
follows from them."""
APPROXIMATE = 1e-4
"""The same where approximate instructions are off: a few steps multiply the error."""
ULPS = 2
"""Error of approximate instructions, at most (div.approx.f32: 2, by the manual of PTX)."""
FLAWED = {
    f"flawed {actions} {name}": (Case("tests.environments.flawed", options=(("actions", actions),)), flawed.Params(flaw, 1, 3, again=True))
    for actions, name, flaw in (
        ("discrete", "reward", flawed.REWARD_NAN),
        ("box", "observation", flawed.OBS_INF),
        ("groups", "mask", flawed.MASK),
    )
}
"""Environments with numbers that are not finite, every third step of environment 1."""
SEVERAL_ACTORS = {"covid", "tag_gridworld", "tag_continuous", "tag_continuous full", "leaving", "cells 2"}
SEVERAL_ACTORS |= {"market", "market_exploring", "crane", "crane_exploring", "crane_squashed", "flawed groups mask"}
"""Environments with several actors, which run one to a block."""
OFTEN = {"cartpole", "pendulum", "catalysis", "booster", "covid", "gray_scott", "tag_gridworld", "tag_continuous"}
OFTEN |= {*FLAWED, "market", "crane_squashed"}
"""Shipped environments that are no variants of one another, and those of the tests whose kernels no shipped one has: invalid numbers,
several groups, squashed actions. Nearly all of the time goes into the compilation of their kernels."""
BY_DEFAULT = {("cartpole", "stepwise"), ("cartpole", "fused tanh")}
Run = Callable[[Device, int], Arrays]


@dataclass(frozen=True)
class Way:
    run: Run
    tolerance: float


def ways_of(name: str) -> dict[str, Way]:
    if name in FLAWED:
        case, params = FLAWED[name]
        changed = {"params": params, "replaces": True}
        return {
            "replacing": Way(partial(stepwise, case, name, changed, False), case.tolerance),
            "fused replacing": Way(partial(fused, case, name, TANH, False, changed), FUSED_TOLERANCE),
        }
    case = CASES[name]
    found = {"stepwise": Way(partial(stepwise, case, name, {}, False), case.tolerance)}
    found["given"] = Way(partial(given, case, name), case.tolerance)
    found["external"] = Way(partial(by_caller, case, name), case.tolerance)
    if not case.exploration:
        found["greedy"] = Way(partial(stepwise, case, name, {}, True), case.tolerance)
        found["replacing"] = Way(partial(stepwise, case, name, {"replaces": True}, False), case.tolerance)
    networks = {key.partition(" ")[2]: given for key, given in FUSED_CASES.items() if key.split(" ")[0] == name}
    networks = {"tanh": (case, TANH, False)} | networks
    if name == "cartpole":
        networks["64"] = replace(case, horizon=3, collects=1), NetworkConfig(hidden=[64, 64]), False
    for network_name, (its, network, greedy) in networks.items():
        its = replace(its, horizon=min(its.horizon, 4))
        tolerance = max(FUSED_TOLERANCE, case.tolerance)
        found[f"fused {network_name}"] = Way(partial(fused, its, name, network, greedy, {}), tolerance)
    return found


def stepwise(case: Case, name: str, more: dict[str, Any], greedy: bool, device: Device, n_envs: int) -> Arrays:
    """Roll out with a kernel for each part of a step; on the machine nobody has written what they have to write."""
    engine = engine_of(replace(case, n_envs=n_envs), name, device, debug=device is DEVICE, **more)
    return compared(case, record(engine, case.collects, greedy=greedy))


def given(case: Case, name: str, device: Device, n_envs: int) -> Arrays:
    """Roll out with given actions: on the machine in one kernel."""
    engines = (engine_of(replace(case, n_envs=n_envs), name, device, debug=device is DEVICE) for _ in range(2))
    return compared(case, retraced(*engines, case.collects))


def fused(case: Case, name: str, network: NetworkConfig, greedy: bool, more: dict[str, Any], device: Device, n_envs: int) -> Arrays:
    """Roll out with networks: on the machine in one kernel, on the CPU by torch between kernels."""
    agent = acting(case.environment, network, CPU)
    if device is DEVICE:
        more = {**more, "networks": {learner.name: learner.policy.kernel_network() for learner in agent.learners}, "debug": True}
    engine = engine_of(replace(case, n_envs=n_envs), name, device, **more)
    return compared(case, record(engine, case.collects, act=agent.act, greedy=greedy))


def difference(expected: Arrays, found: Arrays, tolerance: float) -> list[str]:
    """Return what differs: integers at all, floats by more than the tolerance, relative to 1 + |value|."""
    wrong = []
    for key, array in expected.items():
        other = found[key]
        assert (array.dtype, array.shape) == (other.dtype, other.shape), key
        same = (array == other) | ((array != array) & (other != other))
        if array.dtype.kind != "f":
            wrong += [] if same.all() else [f"{key}: {(~same).sum()} of {array.size} differ"]
            continue
        with np.errstate(invalid="ignore"):
            apart = np.where(same, 0.0, np.abs(array - other) / (1.0 + np.abs(array)))
        wrong += [] if np.all(apart <= tolerance) else [f"{key}: {np.max(apart):.1e} apart"]
    return wrong


def unwritten(found: Arrays) -> list[str]:
    parts = {key: np.ascontiguousarray(array)[..., None].view(np.uint8) for key, array in found.items()}
    return [f"{key}: not written" for key, part in parts.items() if (part == POISON).all(-1).any()]


def same_bits(a: Arrays, b: Arrays) -> bool:
    return all(a[key].tobytes() == b[key].tobytes() for key in a)


@contextmanager
def small_blocks() -> Iterator[None]:
    """Launch blocks of one warp, so that a few environments already make several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_launch, "THREADS_PER_BLOCK", 32)
        yield


@cache
def machine() -> Machine:
    return Machine()


def clear(made: Machine) -> None:
    made.seen.clear()
    made.order, made.ulps = Order.FORWARD, 0


def on_machine(run: Run, n_envs: int, order: Order = Order.FORWARD, ulps: int = 0, mistake: Mistake | None = None) -> Arrays:
    machine().order, machine().ulps = order, ulps
    with on(machine(), mistake):
        return run(DEVICE, n_envs)


def sizes_of(name: str) -> tuple[int, ...]:
    """Return the numbers of environments that are rolled out: blocks that are full and not, several and one."""
    return (3,) if name in SEVERAL_ACTORS else (1, 33, 64)


def marked() -> list[object]:
    """Return environment and way as parameters of a test."""
    found = []
    for name in [*CASES, *FLAWED]:
        for way in ways_of(name):
            often = name in OFTEN and (way != "replacing" or name in ("cartpole", *FLAWED))
            marks = () if (name, way) in BY_DEFAULT else pytest.mark.long if often else pytest.mark.slow
            found.append(pytest.param(name, way, marks=marks, id=f"{name}, {way}"))
    return found


def check(name: str, way_name: str, sizes: tuple[int, ...]) -> list[str]:
    way, made = ways_of(name)[way_name], machine()
    clear(made)
    problems = list[str]()
    for n_envs in sizes:
        expected, found = way.run(CPU, n_envs), on_machine(way.run, n_envs)
        wrong = difference(expected, found, way.tolerance) + unwritten(found)
        problems += [f"{n_envs} environments: {text}" for text in wrong]
        with small_blocks():
            again = {order.name: on_machine(way.run, n_envs, order) for order in (Order.BACKWARD, Order.RANDOM)}
        other = [order for order in again if not same_bits(found, again[order])]
        problems += [f"{n_envs} environments: other bits in order {order}" for order in other]
    wrong = difference(expected, on_machine(way.run, sizes[-1], ulps=ULPS), APPROXIMATE)
    problems += [f"approximate instructions {ULPS} units off: {text}" for text in wrong]
    return problems + [str(finding) for finding in wrong_in(made)]


UNUSED_COLUMNS = ("rollout", "advantages")
"""Kernels that compute columns without an actor, where a block has fewer actors than columns, from whatever lies in
shared memory, and throw them away. Here nan lies there, so that results would show it."""


def wrong_in(made: Machine, full: bool = False) -> list[Finding]:
    """Return what was seen and should not be; `full`: there were no columns without an actor."""
    return [f for f in made.findings() if full or f.kind != Kind.UNWRITTEN_SHARED or f.kernel not in UNUSED_COLUMNS]
