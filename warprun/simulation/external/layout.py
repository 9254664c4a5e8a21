"""The arrays that a simulator shares with its worker processes. No torch."""

from __future__ import annotations

from warprun.simulation.arrays import rollout_arrays
from warprun.simulation.external.recipe import ExternalEnvironment
from warprun.simulation.external.shared import Layout

ROLLOUT = ("obs", "mask", "action", "reward", "final_obs")
"""Arrays of the group that environments read or write; with `terminated` and `truncated` the part of a trajectory that is shared."""
FAULT_NUMBERS = 4
"""Numbers that are recorded about a fault: its number in `faults.FIELDS` plus 1, step, component, and 0 for NaN, 1 for inf, 2 for -inf."""


def layout(environment: ExternalEnvironment, n_envs: int, horizon: int, workers: int) -> Layout:
    """Return the arrays of N environments in W workers by name."""
    common, groups = rollout_arrays(environment.spec, n_envs, horizon)
    found = {name: (array.shape, array.dtype) for name, array in common.items()}
    found |= {name: (array.shape, array.dtype) for name, array in groups[environment.group].items() if name in ROLLOUT}
    found |= {
        "clock": ((n_envs,), "int64"),  # steps of the episode
        "cuts": ((n_envs,), "int64"),  # truncations in this rollout
        "episode_return": ((n_envs,), "float64"),
        "ended": ((n_envs,), "int64"),  # episodes since they were last counted
        "ended_steps": ((n_envs,), "int64"),
        "ended_return": ((n_envs,), "float64"),
        "replaced": ((n_envs,), "int64"),  # resets because of a fault
        "fault": ((n_envs, FAULT_NUMBERS), "int64"),
        "seed": ((n_envs,), "int64"),  # of the next reset of all environments
        "at": ((workers, 2), "int64"),  # environment that a worker calls, and the number of its calls; set before the call
    }
    if environment.state:
        dtype, shape = environment.state
        found["state"] = ((n_envs, *shape), dtype)
    return found
