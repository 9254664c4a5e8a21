"""What the tests of catalysis share: where the published grids may lie, and engines."""

import pytest

from tests.simulation.rollouts import make
from warprun import data
from warprun.config.registry import import_environment

MODULE = "warprun.envs.catalysis"
needs_grids = pytest.mark.skipif(
    not (data.folder("catalysis") / "en_array.npy").is_file(),
    reason="needs the published grids (warprun data catalysis)",
)


def environment(**options):
    """Return the environment of some options."""
    return import_environment(MODULE, options)[0]


def engine(n_envs=4, horizon=8, params=None, seed=0, auto_reset=True, **options):
    """Return an engine of some options, reset."""
    made = environment(**options)
    return make(made, "catalysis", n_envs=n_envs, horizon=horizon, seed=seed, params=made.params(**(params or {})), auto_reset=auto_reset)
