"""Kernels that another process compiles: this process loads them, and compiles them itself if the other one fails."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numba import typeof
from numba.core.types import Literal

import warprun
from warprun import math
from warprun.kernels import ahead, cache
from warprun.kernels.compile import FLAGS, device_function, load_module

SOURCE = """
from numba import njit

NUMBER = {number}


@njit(cache=True, **FLAGS)
def kernel(x):
    for n in range(x.size):
        x[n] = change(x[n]) + NUMBER
"""


NUMBERS = count()


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WARPRUN_CACHE_DIR", str(tmp_path))


def module_of(change: Callable[[np.float32], np.float32]) -> ModuleType:
    """Return a kernel module that is not loaded yet."""
    source = SOURCE.format(number=next(NUMBERS))
    return load_module("ahead", source, {"change": change, "FLAGS": FLAGS})


def result(module: ModuleType) -> np.ndarray:
    x = np.array([0.5, 2.0], np.float32)
    module.kernel(x)
    return x - module.NUMBER


def asked(module: ModuleType) -> int:
    """Begin another process for the kernel of a module; return of how many kernels it was asked."""
    ahead.want(module, "kernel", [typeof(np.zeros(2, np.float32))])
    ahead.begin()
    return len(cache.awaited)


def test_another_process_compiles(empty_cache: None) -> None:
    module = module_of(math.sqrt)
    assert asked(module) == 1
    np.testing.assert_allclose(result(module), np.sqrt([0.5, 2.0]), rtol=1e-4)
    assert sum(module.kernel.stats.cache_hits.values()) == 1 and not module.kernel.stats.cache_misses
    assert asked(module) == 0  # it is there


def test_this_process_compiles_what_another_one_cannot(empty_cache: None, monkeypatch: pytest.MonkeyPatch) -> None:
    double = module_of(lambda x: x + x)  # has no name by which another process could import it
    assert asked(double) == 0
    np.testing.assert_allclose(result(double), [1.0, 4.0], rtol=1e-4)

    monkeypatch.setattr(ahead, "PROGRAM", "raise SystemExit(1)")
    failed = module_of(math.sqrt)
    assert asked(failed) == 1
    np.testing.assert_allclose(result(failed), np.sqrt([0.5, 2.0]), rtol=1e-4)
    assert sum(failed.kernel.stats.cache_misses.values()) == 1


@pytest.mark.parametrize("setting", [("cartpole", "a2c"), ("pendulum", "ppo"), ("cartpole", "ppo", "agent.advantage=nstep")])
def test_agents_want_what_their_updates_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: tuple[str, ...]) -> None:
    """A kernel that is wanted for other types than it is called with would be compiled twice."""
    wanted: list[tuple[ModuleType, str, tuple[object, ...]]] = []
    monkeypatch.setattr(ahead, "want", lambda module, kernel, types: wanted.append((module, kernel, tuple(types))))
    env, agent, *more = setting
    sizes = ["n_envs=4", "agent.horizon=4", "total_steps=32", "eval.episodes=2", "tuned=none"]
    given = [f"env={env}", f"agent={agent}", *sizes, f"output_root={tmp_path}", "agent.minibatches=1" if agent == "ppo" else "", *more]
    warprun.train([each for each in given if each])
    assert {"gradient", "whole"} < {kernel for _, kernel, _ in wanted}
    for module, kernel, types in wanted:
        assert types in getattr(module, kernel).overloads


def first_of(pair: tuple[np.float32, int], place: int) -> object:
    return pair[place]


def test_a_function_is_compiled_once_for_all_numbers() -> None:
    from warprun.random import Rng, uniform

    draw = device_function(uniform)
    before = set(draw.overloads)  # type: ignore[attr-defined]
    source = "from numba import njit\n\n@njit(**FLAGS)\ndef kernel(rng):\n    return draw(rng, 0, 0.0, 1.0) + draw(rng, 1, 0.0, 1.0)\n"
    module = load_module("draws", source, {"draw": uniform, "FLAGS": FLAGS})
    module.kernel(Rng(*[np.uint32(7)] * 5))
    assert len(set(draw.overloads) - before) <= 1  # type: ignore[attr-defined]
    assert not any(isinstance(kind, Literal) for types in draw.overloads for kind in types)  # type: ignore[attr-defined]


def test_a_literal_stays_one_where_nothing_else_will_do() -> None:
    source = "from numba import njit\n\n@njit(**FLAGS)\ndef kernel(x, n):\n    return first_of((x, n), 1) + first_of((x, n), 0)\n"
    module = load_module("places", source, {"first_of": first_of, "FLAGS": FLAGS})
    assert module.kernel(np.float32(0.5), 2) == 2.5
