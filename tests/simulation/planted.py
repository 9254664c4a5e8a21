"""Faults that are planted in environments and policies, and what an engine says of them.

    python -m tests.engine.planted DEVICE FILE.json

writes what the engine of DEVICE finds, for the CUDA simulator has to be another process (NUMBA_ENABLE_CUDASIM=1).
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path

from tests.environments import flawed
from tests.environments.flawed import MASK, MASK_LATER, OBS_INF, OBS_NAN, REWARD_INF, REWARD_NAN, Params
from tests.simulation.rollouts import TANH, RandomPolicies, acting, make
from warprun.simulation.device import Device, choose
from warprun.simulation.faults import Fault

HORIZON, N_ENVS = 4, 3
NAN, INF = math.nan, math.inf

# flaw, environment, step, group, actor
PLANTED: dict[str, tuple[Params, Fault | None]] = {
    "nothing": (Params(), None),
    "reward nan": (Params(REWARD_NAN, 2, 7, 0, 1), Fault(2, 7, "miners", "reward", 1, 0, NAN)),
    "reward inf": (Params(REWARD_INF, 1, 1, 1, 0), Fault(1, 1, "planner", "reward", 0, 0, INF)),
    "observation nan": (Params(OBS_NAN, 2, 6, 2, 1), Fault(2, 6, "traders", "observation", 1, 1, NAN)),
    "observation -inf": (Params(OBS_INF, 0, 8, 1, 0), Fault(0, 8, "planner", "observation", 0, 2, -INF)),
    "final observation": (Params(OBS_NAN, 1, 5, 0, 2), Fault(1, 5, "miners", "final observation", 2, 1, NAN)),
    "the second final observation": (Params(OBS_INF, 2, 10, 2, 0), Fault(2, 10, "traders", "final observation", 0, 1, -INF)),
    "mask": (Params(MASK, 1, 3, 0, 1), Fault(1, 3, "miners", "mask", 1, 0, 0.0)),
    "mask of one choice": (Params(MASK_LATER, 0, 9, 1, 0), Fault(0, 9, "planner", "mask", 0, 1, 0.0)),
}
"""Parameters of `flawed`, and the first fault of twelve steps."""
SIMULATED = [*((case, False) for case in PLANTED), ("reward inf", True), ("mask", True)]
"""Cases, and whether they are rolled out by one kernel, which in the simulator takes seconds."""


def find(case: str, device: Device, fused: bool, n_envs: int = N_ENVS) -> Fault | None:
    """Return what the engine finds after the first rollout in which it finds anything."""
    environment = flawed.environment("groups")
    networks = acting(environment, TANH, device, fused=True).networks() if fused else None
    params = PLANTED[case][0]
    engine = make(environment, "flawed", device=device, n_envs=n_envs, horizon=HORIZON, params=params, seed=3, networks=networks)
    act = RandomPolicies(engine)
    for _ in range(3):
        engine.collect(act)
        fault = engine.fault()
        if fault:
            # In the rollout where it occurs, not later.
            assert engine.steps - HORIZON < fault.step <= engine.steps
            return fault
    return None


if __name__ == "__main__":
    chosen = choose(sys.argv[1])
    found = {f"{case}/{fused}": find(case, chosen, fused) for case, fused in SIMULATED}
    Path(sys.argv[2]).write_text(json.dumps({key: asdict(fault) if fault else None for key, fault in found.items()}))
