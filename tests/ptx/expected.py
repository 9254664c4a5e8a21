"""Expected times of kernels on an H200, from the instructions that they execute on the machine that runs PTX.

A kernel takes as long as its busiest warp, or as all its instructions, its products of matrices (mma) or its special functions (MUFU: of
exponentials, square roots, reciprocals and the like) at the rate of the card, or as its arrays at the rate of its memory, whichever is
longest. What turns instructions of PTX into time is measured: Nsight Compute on an H200 found, for the gradient of A2C 64-64 with 1,000,000
CartPoles, the instructions of SASS for a tile and the share of issue slots in use; a rollout of 10,000, whose blocks are few, how many
cycles a warp takes for an instruction; and an iteration with 10,000 how long kernels take that compute little and wait for memory, and what
passes between two kernels of a CUDA graph.

In the iterations that are expected no episode is cut off: else a block of 32 environments computes its values once more in `advantages`.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from typing import NamedTuple

import torch

from tests.ptx import counts
from tests.ptx.counts import HORIZON, Executed, Iteration, filling, in_float32

SCHEDULERS, CLOCK_HZ, BYTES_PER_S = 4, 1.98e9, 4.8e12
"""Of a multiprocessor, and of the card."""
SASS_OF_A_TILE = 0.69 * 56_610_829 * SCHEDULERS * counts.MULTIPROCESSORS / (16_000_000 / 32)
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
WAITING = {"moments": (5.1, 1_599), "returns": (7.6, 790), "merge": (6.9, 1_670)}
"""Of kernels of the same update that compute little: us, and the instructions of PTX of the longest warp as they were written then."""
OPERATION_US = 1.2
"""Of a small operation of torch in it, the mean."""
MEASURED_RATE, ALL_KERNELS_US, ALL_LAUNCHES = 215e6, 679.7, 30
"""Of the whole iteration in environment steps per second, and of its kernels, with those of torch."""
EARLIER = {"rollout": 65.9e6, "all": 37.5e6}
"""Of 1,000 CartPoles in the same state, in environment steps per second; its other kernels took as long as those of 10,000."""
SORT_LAUNCHES, SORT_BYTES = 8, 100
"""Of a sort by torch: a histogram and four passes over keys of 32 bits and rows of 64, which read and write both (Adinets and Merrill 2022,
arXiv 2206.01784); bytes of a row."""
COMPUTING = ("rollout", "gradient", "advantages")
"""Kernels that compute networks."""
MEMBERS = 2_048


class Rates(NamedTuple):
    """What turns instructions of PTX into time."""

    sass_per_ptx: float
    cycles: float
    """That a warp takes for an instruction of SASS where it is alone."""
    waiting: float
    """The same of kernels that compute little."""
    gap_s: float
    """Between two kernels."""


def units(found: Executed, sass_per_ptx: float, cycles: float) -> dict[str, float]:
    """Return the seconds that the launches of a kernel would take for each unit of a card alone."""
    whole_card = 1 / (counts.MULTIPROCESSORS * SCHEDULERS * CLOCK_HZ)
    return {
        "issue slots": found.issued * sass_per_ptx / USED * whole_card,
        "mma": found.mma * CYCLES_OF_MMA * whole_card,
        "MUFU": found.mufu * CYCLES_OF_MUFU * whole_card,
        "longest warp": found.longest * sass_per_ptx * cycles / CLOCK_HZ,
        "memory": found.bytes / BYTES_PER_S,
    }


def seconds(found: Executed, sass_per_ptx: float, cycles: float) -> float:
    """Return the expected time of the launches of a kernel."""
    return max(units(found, sass_per_ptx, cycles).values())


@cache
def calibrated() -> Rates:
    """Print the calibration, and return it."""
    with in_float32():
        tile, step = counts.per_tile(), counts.of_rollout()
    sass_per_ptx = SASS_OF_A_TILE / tile.issued
    cycles = MEASURED_US["rollout"] * 1e-6 * CLOCK_HZ / (HORIZON * step.longest * sass_per_ptx)
    waiting_us, waiting = map(sum, zip(*WAITING.values(), strict=True))
    iteration_us = 1e6 * HORIZON * 10_000 / MEASURED_RATE
    gap_us = (iteration_us - ALL_KERNELS_US) / ALL_LAUNCHES
    rates = Rates(sass_per_ptx, cycles, waiting_us * 1e-6 * CLOCK_HZ / (waiting * sass_per_ptx), 1e-6 * gap_us)
    print(f"a tile of the gradient of A2C: {tile.issued:,.0f} instructions of PTX, {SASS_OF_A_TILE:,.0f} of SASS on the card")
    print(f"a step of a rollout: {step.longest:,.0f} of PTX of the longest warp, {cycles:.1f} cycles for one of SASS")
    print(f"kernels that compute little: {rates.waiting:.1f} cycles for one of SASS ({', '.join(WAITING)}: {waiting_us:.0f} us measured)")
    print(f"between two kernels {gap_us:.1f} us: an iteration took {iteration_us:.0f} us, its {ALL_LAUNCHES} kernels {ALL_KERNELS_US:.0f}")
    expected_us = 1e6 * seconds(filling(tile, 5_000), *rates[:2])
    print(f"gradient of 160,000 rows in float32: {expected_us:.0f} us expected, {MEASURED_US['gradient']:.0f} us measured")
    expected_ms = 1e3 * seconds(filling(step, HORIZON * 1_000_000 / 32), *rates[:2])
    print(f"rollout of 1,000,000 in float32: {expected_ms:.1f} ms expected, 11.8 ms measured")
    rollout_us, measured_us = (1e6 * HORIZON * 1_000 / EARLIER[what] for what in ("rollout", "all"))
    alone_us = 1e6 * tile.longest * sass_per_ptx * cycles / CLOCK_HZ
    others_us = ALL_KERNELS_US - sum(MEASURED_US.values())
    expected_us = rollout_us + alone_us + others_us + gap_us * (ALL_LAUNCHES - 1)
    print(f"an iteration of 1,000 in float32: {expected_us:.0f} us expected, {measured_us:.0f} us measured")
    return rates


# On policy ----------------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A row of a table."""

    name: str
    launches: float
    us: float
    bound: str


def lines(kernels: dict[str, Executed], operations: int, sorted_rows: float, rates: Rates) -> Iterator[Line]:
    """Yield the times of kernels, of torch's operations among them, and of the gaps between them."""
    launches = operations + sum(found.launches for found in kernels.values())
    for name, found in kernels.items():
        alone = units(found, rates.sass_per_ptx, rates.cycles if name in COMPUTING else rates.waiting)
        bound = max(alone, key=lambda unit: alone[unit])
        yield Line(name, found.launches, 1e6 * alone[bound], bound)
    if operations:
        yield Line("torch", operations, operations * OPERATION_US + 1e6 * sorted_rows * SORT_BYTES / BYTES_PER_S, "")
    yield Line("gaps", launches, 1e6 * launches * rates.gap_s, "")


def table(told: str, steps: int, rollout: list[Line], update: list[Line]) -> None:
    """Print the times of an iteration, and environment steps per second."""
    found = sorted([*rollout, *update], key=lambda line: -line.us)
    names = dict.fromkeys(line.name for line in found)
    joined = [[line for line in found if line.name == name] for name in names]
    total_us, rollout_us = (sum(line.us for line in each) for each in (found, rollout))
    print(f"\n{told}: kernel, launches, us, what bounds it")
    for each in joined:
        print(f"  {each[0].name:12} {sum(line.launches for line in each):4.0f} {sum(line.us for line in each):10,.1f}  {each[0].bound}")
    print(f"  {total_us:,.0f} us: {steps / total_us:,.0f} M steps/s; rollouts alone {steps / rollout_us:,.0f} M")


def on_policy(name: str, found: Callable[[int], Iteration], n_envs: int, operations: int, sorts: int, rates: Rates) -> None:
    """Print an iteration of an agent; `operations` of torch and sorts of all rows are in its update."""
    rows, (rollout, update) = HORIZON * n_envs, found(n_envs)
    before = list(lines(rollout, ROLLOUT_OPERATIONS, 0, rates))
    after = list(lines(update, operations + sorts * SORT_LAUNCHES, sorts * rows, rates))
    table(f"{name}, {n_envs:,} CartPoles", rows, before, after)


ROLLOUT_OPERATIONS = 1
"""Of torch: the last observations become the first ones."""


def a2c() -> None:
    """Print iterations of A2C."""
    rates, tile, step = calibrated(), counts.per_tile(), counts.of_rollout()
    print(f"\non tensor cores: {tile.issued:,.0f} instructions a tile, {tile.mma:,.0f} of them mma, {tile.mufu:,.0f} special functions")
    print(f"a step of a rollout: {step.issued:,.0f}, {step.longest:,.0f} of the longest warp")
    found, operations = counts.a2c(), counts.operations_of_torch("a2c")
    for n_envs in (1_000, 10_000, 100_000, 1_000_000):
        on_policy("A2C", found, n_envs, operations, 0, rates)


def ppo() -> None:
    """Print iterations of PPO."""
    rates, epochs, minibatches = calibrated(), 4, 4
    found = counts.ppo(epochs, minibatches)
    operations = counts.operations_of_torch("ppo", epochs=epochs, minibatches=minibatches)
    for n_envs in (10_000, 100_000):
        on_policy("PPO 4 x 4", found, n_envs, operations, epochs, rates)


def members() -> None:
    """Print iterations of agents that train together, whose kernels fill the card."""
    rates = calibrated()
    for how, within in (("on tensor cores", nullcontext), ("in float32", in_float32)):
        print(f"\n{MEMBERS:,} members, layers {how}: kernel, instructions of a member in an iteration, us of all")
        with within():
            of_step, once, of_epoch = counts.population()
        parts = {"rollout": of_step.times(counts.MEMBER_STEPS)} | {name: once[name].plus(of_epoch[name], 4) for name in once}
        total_s = 0.0
        for name, found in sorted(parts.items(), key=lambda part: -part[1].issued):
            total_s += (found_s := seconds(filling(found, MEMBERS)._replace(bytes=0.0), rates.sass_per_ptx, 0.0))
            print(f"  {name:12} {found.issued:14,.0f} {1e6 * found_s:10.0f}")
        iterations = 500_000 / (counts.MEMBER_ENVS * counts.MEMBER_STEPS)
        print(f"  500,000 steps of each: {iterations * total_s:.1f} s on the card, without Python and evaluations")


# Recurrent layers, and off policy -----------------------------------------------------------------------------------------


def recurrent() -> None:
    """Print steps of recurrent layers."""
    rates = calibrated()
    for kind, sequences in (("lstm", 256), ("gru", 256), ("lstm", 2_560)):
        for how, within in (("on tensor cores", nullcontext), ("in float32", in_float32)):
            told = f"{kind} {counts.RECURRENT_UNITS}, {sequences:,} sequences, {how}"
            print(f"\n{told}: kernel, instructions of a step, of the longest warp, us")
            with within():
                of_step = counts.recurrent_pass(kind, sequences)
            for kernel, found in of_step.items():
                print(f"  {kernel:14} {found.issued:12,.0f} {found.longest:8,.0f} {1e6 * seconds(found, *rates[:2]):8.2f}")


def off_policy() -> None:
    """Print gradient steps."""
    rates = calibrated()
    for name in ("sac", "td3", "dqn"):
        with in_float32():
            before_us = 1e6 * sum(seconds(found, *rates[:2]) for found in counts.step(name).values())
        total_us = 0.0
        print(f"\n{name}: kernel, launches of a step, instructions, of the longest warp, us")
        for kernel, found in counts.step(name).items():
            total_us += (found_us := 1e6 * seconds(found, *rates[:2]))
            print(f"  {kernel:12} {found.launches:3.0f} {found.issued:12,.0f} {found.longest:10,.0f} {found_us:8.1f}")
        print(f"  a gradient step: {total_us:.0f} us without the gaps between launches, {1e6 / total_us:,.0f} a second")
        print(f"  with layers in float32: {before_us:.0f} us")


PARTS = {"a2c": a2c, "ppo": ppo, "members": members, "recurrent": recurrent, "off_policy": off_policy}


def show(parts: list[str]) -> None:
    """Print the parts of these names."""
    torch.manual_seed(0)
    for part in parts:
        PARTS[part]()
