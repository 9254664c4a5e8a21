"""Twenty mistakes in kernels of warprun, each as a person might make it, and by what the machine must know each."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from tests.ptx import learning, rolling
from tests.ptx.machine import Kind, Order
from tests.ptx.mistakes import Mistake
from tests.ptx.rolling import Arrays, clear, difference, machine, same_bits, wrong_in
from warprun.kernels.mlp_cuda import load_columns
from warprun.learning.kernels.cuda import returns, sums, tiles
from warprun.simulation.cuda import CudaBackend

BARRIER, NOTHING = "cuda.syncthreads()", "pass"
NUMBERS, ORDER = "numbers", "order"
"""Other numbers than those of the CPU or of float64; other bits in another order."""
RACE, HIDDEN_RACE, OUTSIDE = Kind.READ_OF_ANOTHERS_WRITE, Kind.WRITE_OF_WHAT_ANOTHER_READS, Kind.OUT_OF_BOUNDS
UNCLEAR = Kind.UNWRITTEN_SHARED


class Planted(NamedTuple):
    """A mistake, where it is made, and by what it must be known."""

    subject: str
    mistake: Mistake
    by: Kind | str


def rollouts(name: str, way: str, n_envs: int) -> Callable[[Order, Mistake | None], tuple[Arrays, Arrays, float]]:
    found = rolling.ways_of(name)[way]
    expected = cache(lambda: found.run(rolling.CPU, n_envs))
    return lambda order, mistake: (rolling.on_machine(found.run, n_envs, order, mistake=mistake), expected(), found.tolerance)


def learner(name: str) -> Callable[[Order, Mistake | None], tuple[Arrays, Arrays, float]]:
    part = learning.parts()[name]
    return lambda order, mistake: (*learning.on_machine(part, order, mistake=mistake), learning.tolerance(name))


SUBJECTS = {
    "steps": rollouts("cartpole", "stepwise", 33),
    "groups": rollouts("crane", "stepwise", 3),
    "rollout": rollouts("cartpole", "fused tanh", 37),
    "gradient": learner("gradient: ppo multi masked, relu 17-5-9, 100 rows"),
    "returns": learner("returns: relu 17-5-9, 45 environments"),
    "statistics": learner("observations: 500 rows of 3"),
    "rewards": learner("rewards: 150 environments"),
    "optimizer": learner("optimizer: relu 17-5-9, clipped to 0.5"),
}

PLANTED = (
    Planted("optimizer", Mistake("no barrier before the norm is read", f"{BARRIER}\n    m = ", "m = "), RACE),
    Planted("optimizer", Mistake("shared memory for half of the threads", "shared.array(THREADS,", "shared.array(128,"), OUTSIDE),
    Planted("optimizer", Mistake("one parameter too many", "if m < gradient.size:", "if m <= gradient.size:"), OUTSIDE),
    Planted("optimizer", Mistake("tiles of blocks that overlap", "Idx.x * THREADS", "Idx.x * (THREADS - 1)"), Kind.SHARED_BY_BLOCKS),
    Planted(
        "statistics",
        Mistake(
            "a thread that does not write its share",
            "    shared[thread], shared[T",
            "    if thread + 1 < active:\n        shared[thread], shared[T",
        ),
        Kind.UNWRITTEN_SHARED,
    ),
    Planted("statistics", Mistake("a number that all threads add to", "if thread == 0:", "if True:", nth=1), RACE),
    Planted(
        "rewards",
        Mistake("a barrier within a branch", "+ half]\n        barrier()", "+ half]\n            barrier()", function=sums.add_up),
        Kind.BARRIER_SKIPPED,
    ),
    Planted("returns", Mistake("a loop that each thread leaves for itself", "cuda.syncthreads_or(found)", "found"), Kind.INCOMPLETE_WARP),
    Planted("returns", Mistake("columns that do not exist", "column = min(COLUMNS, rollout.columns - begin)", "column = COLUMNS"), OUTSIDE),
    Planted("returns", Mistake("the value of another actor", "at + rollout.columns)", "at + 1)", function=returns.follow), NUMBERS),
    Planted("gradient", Mistake("sums that begin with nothing", "fresh = True", "fresh = False"), Kind.NEVER_WRITTEN),
    Planted("gradient", Mistake("memory that is not cleared", "range(thread, rows * STRIDE, THREADS)", "range(0)"), UNCLEAR),
    Planted(
        "gradient",
        Mistake("no barrier before slopes replace activations", "barrier()", NOTHING, function=tiles.add_gradient, nth=1),
        HIDDEN_RACE,
    ),
    Planted(
        "gradient",
        Mistake("a block that is not added", "(part, blocks, parts)", "(part, blocks - 1, parts)", function=sums.sum_over_blocks),
        NUMBERS,
    ),
    Planted("steps", Mistake("one environment too many", "env >= common.n", "env > common.n", nth=3), OUTSIDE),
    Planted("steps", Mistake("a store of twice the width", "st.global.u32", "st.global.u64", kernel="sample"), Kind.MISALIGNED),
    Planted("groups", Mistake("no barrier after the state before is kept", BARRIER, NOTHING, nth=2), RACE),
    Planted("rollout", Mistake("no barrier between layers", BARRIER, NOTHING, nth=2), RACE),
    Planted(
        "rollout",
        Mistake("shared memory for half of the rows", "4 * networks[name].rows", "2 * networks[name].rows", CudaBackend._fused_launch),
        OUTSIDE,
    ),
    Planted("rollout", Mistake("columns that overlap", "f * network.stride", "f * (network.columns - 1)", load_columns), Kind.TWO_VALUES),
)


def evidence(subject: str, mistake: Mistake | None = None) -> set[Kind | str]:
    """Return by what a mistake is known, in three orders of threads and blocks."""
    clear(machine())
    seen: set[Kind | str] = set()
    first: Arrays = {}
    for order in Order:
        found, expected, tolerance = SUBJECTS[subject](order, mistake)
        first = first or found
        seen |= {NUMBERS} if difference(expected, found, tolerance) else set()
        seen |= set() if same_bits(first, found) else {ORDER}
    return seen | {finding.kind for finding in wrong_in(machine())}
