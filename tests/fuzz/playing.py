"""Plays a random environment compiled and in plain Python, and finds the first number that differs, by `==`."""

import json
import random
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from tests.fuzz.programs import Writer
from tests.simulation.rollouts import make
from warprun.config.registry import import_environment
from warprun.environment import Environment
from warprun.kernels import lanes
from warprun.kernels.compile import COMPILES
from warprun.simulation import trial
from warprun.simulation.kernel_engine import KernelEngine
from warprun.simulation.kernel_module import read_only, typed, typed_tables
from warprun.simulation.plain import PlainEnvironment, Seen

HORIZON, ROLLOUTS, SEED = 5, 2, 2**40 + 3
SIZES = (1, 2, 7, 15, 16, 17, 63, 64, 65, 100, 257)
WATCHED = 12
"""Environments that are played in plain Python."""


def write(seed: int, folder: Path) -> Path:
    """Write the program of a seed into a folder; return the file."""
    file = folder / f"program{seed}.py"
    file.write_text(Writer(seed).write())
    return file


def differences(seed: int, folder: Path) -> Iterator[str]:
    """Yield what differs in the program of a seed, the first difference of every environment."""
    environment, module = import_environment(str(write(seed, folder)))
    choice = random.Random(seed)
    sizes = SIZES if COMPILES else [size for size in SIZES if size <= 17 or size == 65]
    n_envs, threads = choice.choice(sizes), choice.choice((1, 2))
    engine = make(environment, f"program{seed}", n_envs=n_envs, horizon=HORIZON, seed=SEED, threads=threads, vary=module.VARY)
    numbers = sorted({0, n_envs - 1, *choice.sample(range(n_envs), min(n_envs, WATCHED - 2))})
    yield from _differences(environment, module, engine, numbers)


def _differences(environment: Environment, module: ModuleType, engine: KernelEngine, numbers: list[int]) -> Iterator[str]:
    tables = environment.make_tables()
    given: dict[str, Any] = {"params": typed(environment.params()), "tables": read_only(typed_tables(tables)), "vary": module.VARY}
    played = {n: PlainEnvironment(environment, n, seed=SEED, **given) for n in numbers}
    random_numbers, taken = np.random.default_rng(0), engine.trajectory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        seen = {n: each.reset() for n, each in played.items()}
        for rollout in range(ROLLOUTS):
            for name, group in taken.groups.items():
                space = environment.group(name).action
                shape = tuple(group.action.shape)
                if group.action.dtype == torch.float32:
                    group.action.copy_(torch.from_numpy(random_numbers.integers(-12, 13, shape) / 8))
                else:
                    sizes = getattr(space, "nvec", None) or (space.n,)  # type: ignore[union-attr]
                    group.action.copy_(torch.from_numpy(random_numbers.integers(0, sizes, shape)))
            engine.retrace()
            for n, each in list(played.items()):
                found = _first(each, n, seen, engine)
                if found:
                    yield f"rollout {rollout}, {found}"
                    del played[n]
    for n, each in played.items():
        for group in environment.groups:
            for field in group.fields:
                values = engine.state_of(group.name)[field.name][n].numpy()
                if not np.array_equal(values, each.field(group, field)):
                    yield f"at the end environment {n}: {group.name}.{field.name} {values} and {each.field(group, field)}"


def _first(each: PlainEnvironment, n: int, seen: dict[int, Seen], engine: KernelEngine) -> str:
    """Return the first difference of environment `n` in the rollout that the engine has just made; empty if there is none."""
    taken = engine.trajectory
    slots = taken.final_slot()
    for row in range(HORIZON):
        pairs = list(_seen(seen[n], taken, row, n))
        given = each.step({name: group.action[row, n].numpy() for name, group in taken.groups.items()})
        seen[n] = given.seen
        pairs += [
            ("terminated", given.terminated, bool(taken.terminated[row, n])),
            ("truncated", given.truncated, bool(taken.truncated[row, n])),
        ]
        pairs += [(f"{name}.reward", gains, taken.groups[name].reward[row, n].numpy()) for name, gains in given.reward.items()]
        if given.truncated and given.final:
            slot = int(slots[row, n])
            pairs += [(f"{g}.final", rows, taken.groups[g].final_obs[slot, n].numpy()) for g, rows in given.final.observation.items()]
        pairs += list(_seen(seen[n], taken, row + 1, n))
        for name, expected, found in pairs:
            if not np.array_equal(expected, found):
                return f"environment {n}, row {row}: {name} {found} compiled and {expected} in plain Python"
    return ""


def _seen(seen: Seen, taken: Any, row: int, n: int) -> Iterator[tuple[str, Any, Any]]:
    for name, group in taken.groups.items():
        yield f"{name}.observation", seen.observation[name], group.obs[row, n].numpy()
        if group.mask is not None:
            yield f"{name}.mask", seen.mask[name], group.mask[row, n].numpy()
        if group.alive is not None:
            yield f"{name}.alive", seen.alive[name], group.alive[row, n].numpy()


def main(folder: Path, seeds: Iterable[int]) -> int:
    """Play the programs of some seeds and print what differs; return 1 after the first one that does, 0 if none does.

    At the end it prints how many loops over lanes were cut at loops within them, and why others were not.
    """
    trial.STEPS = 20
    for seed in seeds:
        try:
            found = list(differences(seed, folder))
        except Exception as error:  # what a mistake in the package leads to
            found = [f"{type(error).__name__}: {error}"]
        if found:
            print(f"program {seed}: {found[0]}")
            return 1
    print(json.dumps(lanes.outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), map(int, sys.argv[2:])))
