"""Expected times of kernels on an H200, from the instructions that they execute here.

    python -m tests.ptx.times

A kernel takes as long as its busiest warp, or as all its instructions, its products of matrices (mma) or its special functions (MUFU: of
exponentials, square roots, reciprocals and the like) at the rate of the card, whichever is longest. Three numbers turn
instructions of PTX into time, and each is measured: Nsight Compute on an H200 found, for the gradient of A2C 64-64 with 1,000,000
CartPoles, the instructions of SASS for a tile and the share of issue slots in use; a rollout of 10,000, whose blocks are few, how many
cycles a warp takes for an instruction.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from tests.agents import build
from tests.learning.cpu.test_gradient import SPACES, learner_for, rows_for
from tests.learning.cuda.simulated import cuda_kernels
from tests.learning.helpers import rollout
from tests.ptx import off_policy, project
from tests.ptx.project import on
from tests.ptx.rolling import DEVICE, clear, fused, machine, ways_of
from tests.simulation import rollouts
from warprun.learning.kernels.cuda import gradient as cuda_gradient
from warprun.learning.kernels.cuda import recurrent, recurrent_slopes, recurrent_tensor
from warprun.learning.kernels.cuda import updates as cuda_updates
from warprun.learning.recurrent import CELLS
from warprun.learning.settings.networks import LayersConfig, NetworkConfig
from warprun.simulation import cuda_layers

MULTIPROCESSORS, SCHEDULERS, CLOCK_HZ = 132, 4, 1.98e9
SASS_OF_A_TILE = 0.69 * 56_610_829 * SCHEDULERS * MULTIPROCESSORS / (16_000_000 / 32)
"""Instructions for a tile of 32 rows in the gradient of A2C: the share of issue slots in use, the cycles, and the tiles."""
USED = 0.69
"""Share of the issue slots in use where a card is full."""
CYCLES_OF_MMA = 6.5
"""For which an mma of 16 x 8 x 16 in bf16 occupies the tensor core of its scheduler, which multiplies 512 pairs a cycle at its peak:
mma.sync reaches 62 % of that on Hopper (arXiv 2402.13499)."""
CYCLES_OF_MUFU = 8
"""For which a special function of a warp occupies the unit of its scheduler: 16 results a cycle and multiprocessor (CUDA C++ Programming
Guide, throughput of native arithmetic instructions, compute capability 9.0)."""
MEASURED_US = {"gradient": 305.0, "rollout": 249.9}
"""Of A2C 64-64 with 10,000 CartPoles and a horizon of 16."""
BATCH = 256
MEMBERS, MEMBER_ENVS, MEMBER_STEPS = 2_048, 64, 128
SEPARATE = NetworkConfig(hidden=[64, 64], shared=False)
"""Agents of PureJaxRL (https://github.com/luchris429/purejaxrl): environments, horizon and networks."""
RECURRENT_UNITS = 64
"""Of a recurrent layer, and its inputs."""
SHARED_BYTES = 227 * 1024
"""That a block can ask for."""


class Executed(NamedTuple):
    """Instructions of a kernel, without moves: of all warps, of the longest, and of all for tensor cores and for special functions."""

    launches: int
    issued: float
    longest: float
    mma: float = 0.0
    mufu: float = 0.0


def executed(work: Callable[[], object]) -> dict[str, Executed]:
    """Return what the kernels of some work execute."""
    clear(machine())
    with on(machine()):
        work()
    found = {name: seen.issued for name, seen in machine().seen.items()}
    return {name: Executed(len(each), *map(sum, zip(*each, strict=True))) for name, each in found.items()}


def gradient(rows: int) -> Executed:
    """Return what the gradient of A2C 64-64 executes on a card with one multiprocessor."""
    learner = learner_for("a2c", SPACES["discrete"], NetworkConfig(hidden=[64, 64]), fused=False)
    batch = rows_for(learner, rows, False)
    with patch.object(cuda_gradient, "multiprocessors", lambda device: 1):
        return executed(lambda: cuda_kernels(learner).gradient(batch, batch.advantage, None, None))["gradient"]


def per_tile() -> Executed:
    """Return what a tile of 32 rows executes."""
    few, many = 64, 128  # more tiles than blocks, twice
    pairs = zip(gradient(32 * few), gradient(32 * many), strict=True)
    return Executed(*((b - a) / (many - few) for a, b in pairs))._replace(launches=1)


def step(name: str, **settings: Any) -> dict[str, Executed]:
    """Return what one gradient step off policy executes on a whole card: networks of 256-256 units, 64-64 for DQN."""
    hidden = [64, 64] if name == "dqn" else [256, 256]
    _, space, _ = off_policy.CASES[name]
    env = off_policy.environment_of(space)
    given = {"learning_starts": 0, "batch_size": BATCH, "utd_ratio": 1 / 30, "network": LayersConfig(hidden=hidden), **settings}

    def work() -> None:
        few = [patch.object(module, "multiprocessors", lambda device: MULTIPROCESSORS) for module in (cuda_gradient, cuda_updates)]
        with off_policy.cuda_steps(), few[0], few[1], patch.object(cuda_layers, "most_shared_bytes", lambda: SHARED_BYTES):
            agent = build(name, env, fused=True, **given)
        agent.update(rollout(env, horizon=6, n_envs=5), 0.0)
        machine().seen.clear()
        agent.update(rollout(env, horizon=6, n_envs=5, seed=1), 0.5)

    return executed(work)


def seconds(found: Executed, sass_per_ptx: float, cycles: float) -> float:
    """Return the expected time of the launches of a kernel."""
    slots = found.issued * sass_per_ptx / USED
    whole_card = max(slots, found.mma * CYCLES_OF_MMA, found.mufu * CYCLES_OF_MUFU) / (MULTIPROCESSORS * SCHEDULERS)
    return max(whole_card, found.longest * sass_per_ptx * cycles) / CLOCK_HZ


def of_rollout() -> Executed:
    """Return what a step of a rollout of 32 CartPoles executes, with networks of 64-64 units."""
    found = executed(partial(ways_of("cartpole")["fused 64"].run, DEVICE, 32))["rollout"]
    steps = 3 * found.launches
    return Executed(1, *(number / steps for number in found[1:]))


def population() -> tuple[Executed, dict[str, Executed], dict[str, Executed]]:
    """Return what a member with PureJaxRL's settings executes: in a step of a rollout, once in an update, and in each of its epochs."""
    case = replace(rollouts.CASES["cartpole"], horizon=3, collects=1)
    found = executed(partial(fused, case, "cartpole", SEPARATE, False, {}, DEVICE, MEMBER_ENVS))["rollout"]
    of_step = Executed(1, *(number / (3 * found.launches) for number in found[1:]))

    def update(epochs: int) -> dict[str, Executed]:
        environment = rollouts.CASES["cartpole"].environment
        agent = build("ppo", environment, n_envs=MEMBER_ENVS, network=SEPARATE, epochs=epochs, minibatches=4, learning_rate_end=1e-4)
        taken = rollout(environment, horizon=MEMBER_STEPS, n_envs=MEMBER_ENVS)

        def work() -> None:
            with patch.object(cuda_gradient, "multiprocessors", lambda device: MULTIPROCESSORS):
                (learner,) = agent.learners
                learner.operations = cuda_kernels(learner)
            agent.update(taken, 0.0)

        return executed(work)

    one, two = update(1), update(2)
    of_epoch = {name: Executed(*(b - a for a, b in zip(one[name], two[name], strict=True))) for name in two}
    return of_step, {name: Executed(*(2 * a - b for a, b in zip(one[name], two[name], strict=True))) for name in two}, of_epoch


def of_members(count: int, sass_per_ptx: float) -> float:
    """Print and return the expected seconds of an iteration of so many members, whose kernels fill the card."""
    of_step, once, of_epoch = population()
    parts = {"rollout": times(of_step, MEMBER_STEPS)}
    parts |= {name: Executed(1, *(a + 4 * b for a, b in zip(once[name][1:], of_epoch[name][1:], strict=True))) for name in once}
    total = 0.0
    for name, found in sorted(parts.items(), key=lambda part: -part[1].issued):
        total += (found_s := seconds(times(found, count), sass_per_ptx, 0.0))
        print(f"  {name:12} {found.issued:14,.0f} {1e6 * found_s:10.0f}")
    return total


def times(found: Executed, count: float) -> Executed:
    """Return what so many of a kernel's parts execute, which fill a card."""
    return Executed(1, count * found.issued, 0.0, count * found.mma, count * found.mufu)


def recurrent_pass(kind: str, sequences: int) -> dict[str, Executed]:
    """Return what a step of the recurrent layer of RECURRENT_UNITS executes on a whole card, forward and backward, and what the gradients
    of its weights execute for the rows of a step; these only on tensor cores."""
    cell = CELLS[kind](RECURRENT_UNITS, RECURRENT_UNITS)

    def work(steps: int) -> None:
        x, keeps = torch.randn(steps, sequences, RECURRENT_UNITS), torch.ones(steps, sequences)
        first = torch.zeros(sequences, RECURRENT_UNITS * (2 if kind == "lstm" else 1))
        y, _ = recurrent.layer(cell, x, keeps, first)
        torch.autograd.grad(y.square().sum(), list(cell.parameters()))

    found = []
    few = [patch.object(module, "multiprocessors", lambda device: MULTIPROCESSORS) for module in (recurrent, recurrent_slopes)]
    for steps in (1, 2):
        for module in (recurrent, recurrent_tensor):
            module.kernel_module.cache_clear()
        recurrent_slopes.weight_slopes_of.cache_clear()
        with few[0], few[1]:
            found.append(executed(partial(work, steps)))
    one, two = found
    return {name: Executed(*(b - a for a, b in zip(one[name], two[name], strict=True))) for name in two if name not in ("pack", "reduce")}


@contextmanager
def in_float32() -> Iterator[None]:
    """Let kernels be those of a GPU without tensor cores for bfloat16, as they were when a card was measured."""
    with patch.object(project, "CAPABILITY", (7, 5)):
        yield


def main() -> None:
    """Print the calibration, and the expected times."""
    torch.manual_seed(0)
    with in_float32():
        tile, step_of_rollout = per_tile(), of_rollout()
    sass_per_ptx = SASS_OF_A_TILE / tile.issued
    cycles = MEASURED_US["rollout"] * 1e-6 * CLOCK_HZ / (16 * step_of_rollout.longest * sass_per_ptx)
    print(f"a tile of the gradient of A2C: {tile.issued:,.0f} instructions of PTX, {SASS_OF_A_TILE:,.0f} of SASS on the card")
    print(f"a step of a rollout: {step_of_rollout.longest:,.0f} of PTX of the longest warp, {cycles:.1f} cycles for one of SASS")
    expected_us = 1e6 * seconds(times(tile, 5_000), sass_per_ptx, cycles)
    print(f"gradient of 160,000 rows in float32: {expected_us:.0f} us expected, {MEASURED_US['gradient']:.0f} us measured")

    tile, step_of_rollout = per_tile(), of_rollout()
    print(f"\non tensor cores: {tile.issued:,.0f} instructions a tile, {tile.mma:,.0f} of them mma, {tile.mufu:,.0f} special functions")
    print(f"a step of a rollout: {step_of_rollout.issued:,.0f}, {step_of_rollout.longest:,.0f} of the longest warp")
    for n_envs in (10_000, 1_000_000):
        of_gradient = 1e6 * seconds(times(tile, 16 * n_envs / 32), sass_per_ptx, cycles)
        alone = 16e6 * seconds(Executed(1, 0.0, step_of_rollout.longest), sass_per_ptx, cycles)
        of_steps = max(alone, 1e6 * seconds(times(step_of_rollout, 16 * n_envs / 32), sass_per_ptx, cycles))
        rate = 16 * n_envs / (of_gradient + of_steps)
        print(f"{n_envs:,} CartPoles: gradient {of_gradient:,.0f} us, rollout {of_steps:,.0f} us; both alone {rate:,.0f} M steps/s")
    for how, within in (("on tensor cores", nullcontext), ("in float32", in_float32)):
        print(f"\n{MEMBERS:,} members, layers {how}: kernel, instructions of a member in an iteration, us of all")
        with within():
            each_s = of_members(MEMBERS, sass_per_ptx)
        iterations = 500_000 / (MEMBER_ENVS * MEMBER_STEPS)
        print(f"  500,000 steps of each: {iterations * each_s:.1f} s on the card, without Python and evaluations")
    for kind, sequences in (("lstm", 256), ("gru", 256), ("lstm", 2_560)):
        for how, within in (("on tensor cores", nullcontext), ("in float32", in_float32)):
            print(f"\n{kind} {RECURRENT_UNITS}, {sequences:,} sequences, {how}: kernel, instructions of a step, of the longest warp, us")
            with within():
                of_step = recurrent_pass(kind, sequences)
            for kernel, found in of_step.items():
                print(f"  {kernel:14} {found.issued:12,.0f} {found.longest:8,.0f} {1e6 * seconds(found, sass_per_ptx, cycles):8.2f}")
    for name in ("sac", "td3", "dqn"):
        with in_float32():
            before_us = 1e6 * sum(seconds(found, sass_per_ptx, cycles) for found in step(name).values())
        total = 0.0
        print(f"\n{name}: kernel, launches of a step, instructions, of the longest warp, us")
        for kernel, found in step(name).items():
            total += (time := 1e6 * seconds(found, sass_per_ptx, cycles))
            print(f"  {kernel:12} {found.launches:3} {found.issued:12,.0f} {found.longest:10,.0f} {time:8.1f}")
        print(f"  a gradient step: {total:.0f} us without the gaps between launches, {1e6 / total:,.0f} a second")
        print(f"  with layers in float32: {before_us:.0f} us")


if __name__ == "__main__":
    main()
