"""What a cached kernel depends on is in its key: a kernel from before a change would give wrong numbers in silence."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import pytest

from warprun.engine.compile import fingerprint, load_module


class Forward(NamedTuple):
    a: float
    b: float


class Backward(NamedTuple):
    b: float
    a: float


One = IntEnum("One", {"A": 1})
Three = IntEnum("Three", {"A": 3})
FUNCTION = "def step(x):\n    return KIND.A + SCALE * x + Pair(x, x).a\n"


def made(**names: Any) -> Any:
    names = {"KIND": One, "SCALE": 2.0, "Pair": Forward} | names
    exec(FUNCTION, names)
    return names["step"]


@pytest.mark.parametrize("change", [{"KIND": Three}, {"SCALE": 3.0}, {"Pair": Backward}])
def test_what_a_function_names_is_in_its_fingerprint(change: dict[str, Any]) -> None:
    assert fingerprint([made()]) == fingerprint([made()])
    assert fingerprint([made()]) != fingerprint([made(**change)])


def test_the_order_of_parameters_is_in_the_key(tmp_path, monkeypatch) -> None:
    """Kernels know the fields of a NamedTuple by their numbers."""
    monkeypatch.setenv("WARPRUN_CACHE_DIR", str(tmp_path))
    assert load_module("same", "", {"Params": Forward}).__file__ == load_module("same", "", {"Params": Forward}).__file__
    assert load_module("same", "", {"Params": Forward}).__file__ != load_module("same", "", {"Params": Backward}).__file__
