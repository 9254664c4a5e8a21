"""`warprun bench`: how fast the machine simulates and trains an environment."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from warprun.checking.processes import machine_code
from warprun.cli.settings import whole_number
from warprun.config.checks import check
from warprun.config.compose import compose
from warprun.errors import UserError
from warprun.kernels.driver import prepare


def measure(arguments: Sequence[str]) -> None:
    """Measure every number of environments and of threads that the arguments name, and print and keep a table. Raises UserError."""
    lists = {"sizes": [10, 100, 1_000, 10_000, 100_000], "threads": [0]}
    out = "outputs/bench"
    rest = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key in ("sizes", "threads") and equals:
            lists[key] = [whole_number(key, part) for part in value.strip("[]").split(",")]
            if min(lists[key]) < 1:
                raise UserError(f"{argument}: numbers must be at least 1")
        elif key == "out" and equals:
            out = value
        else:
            rest.append(argument)
    config = compose([*rest, f"n_envs={lists['sizes'][0]}"])
    for n_envs in lists["sizes"]:
        check(replace(config, n_envs=n_envs))
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"out={out}: {error.strerror}") from None
    prepare(config.device)
    from warprun.runs.bench import bench, report
    from warprun.runs.build import threads
    from warprun.simulation.device import choose

    counts = [count or threads(config) for count in lists["threads"]]
    found = bench(config, lists["sizes"], counts)
    report(found, Path(out), f"{config.env.name}, {config.agent.name}, {choose(config.device).kind}")
    if choose(config.device).kind == "cpu" and found[0].simulation_steps_per_s is not None:
        _tell_scalar_loops(rest, found[0].simulation_steps_per_s / found[0].threads)


def _tell_scalar_loops(overrides: list[str], steps_per_s: float) -> None:
    """Print which functions of the environment are computed for one environment at a time, and what a step takes."""
    from warprun.kernels.simd import WIDTH

    with tempfile.TemporaryDirectory() as folder, machine_code(Path(folder), overrides) as looking:
        found, problem = looking.result()
    if problem:
        print(f"which functions are vectors is not known: {problem}")
    for function, cause in found.get("loops", {}).items():
        cost = f"a step takes {1e9 / steps_per_s:.3g} ns of a thread; vectors of {WIDTH} environments could take less"
        print(f"{function} is computed for one environment at a time: {cause} ({cost})")
