"""The published claims, and what answers each."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from exarl.answers import Answer, Kept, async_learners, largest, many_learners, rma_learners, single_learner
from exarl.learned import cartpole, central, collisions, convergence, generation, windows
from exarl.learning import KINDS
from exarl.scaling import FITTED, ONE_LEARNER


class Claim(NamedTuple):
    """A published claim, and how it is answered."""

    text: str
    answer: Callable[[Kept], Answer]
    parts: str
    """Parts of the script that it needs."""
    cases: tuple[str, ...] = ()
    """Runs of `sleepy` that it needs."""
    kinds: tuple[str, ...] = ()
    """Learning runs that it needs."""

    def is_measured(self, kept: Kept) -> bool:
        """Return whether all that it needs is kept; of learning runs at least two seeds."""
        runs, learned = kept.get("sleepy", {}), kept.get("learning", {})
        others = [part for part in self.parts.split() if part in ("times", "small", "11")]
        has_runs = all(case in runs for case in self.cases) and all(len(learned.get(kind, {})) >= 2 for kind in self.kinds)
        return has_runs and all(part in kept for part in others)


SLEEPY = "times sleepy"
CLAIMS = {
    1: Claim(
        "RMA queue, L = 20, A = 120: 77 % less time than the queue of one learner",
        lambda kept: many_learners(kept, 20, 120, 0.77, "queue 2:12", "queue 1:13"),
        SLEEPY,
        (*FITTED, "queue 2:12", "queue 1:13"),
    ),
    2: Claim(
        "L = 40, A = 200: 84 %",
        lambda kept: many_learners(kept, 40, 200, 0.84, "queue 4:24", "queue 1:27"),
        SLEEPY,
        (*FITTED, "queue 4:24", "queue 1:27"),
    ),
    3: Claim("single-learner queue 25 % better than async, then saturation", single_learner, "sleepy", tuple(ONE_LEARNER)),
    4: Claim("data generation on idle ranks: 3.30 x with 4 processes; it was 90 % of the time", generation, "small"),
    5: Claim(
        "multi-learner async: +43.4 % throughput at L = 8, A = 8",
        async_learners,
        SLEEPY,
        (*FITTED, *(f"async {learners}:8" for learners in (1, 2, 4, 8))),
    ),
    6: Claim(
        "multi-learner RMA: 31 % less time at L = 8, A = 16",
        rma_learners,
        SLEEPY,
        (*FITTED, "queue 1:16", "queue 8:16", "range 4:8", "random 4:8"),
    ),
    7: Claim(
        "multi-learner async converges worse as L grows",
        convergence,
        "7",
        kinds=tuple(name for name, kind in KINDS.items() if kind.claim == 7),
    ),
    8: Claim("RMA scales to 1,024 processes, better than multi-learner async", largest, SLEEPY, FITTED),
    9: Claim("the range window converges faster than the random one", windows, "9", kinds=("9 range", "9 random")),
    10: Claim("collisions matter from L = 25 % of A", collisions, "small"),
    11: Claim("SEED about as fast as IMPALA's way for a small model", central, "11"),
    12: Claim(
        'A2C with "v-trace" reaches 200 on CartPole-v0, without it does not',
        cartpole,
        "12",
        kinds=("12 plain", "12 exarl_vtrace", "12 vtrace"),
    ),
}
"""By number."""
