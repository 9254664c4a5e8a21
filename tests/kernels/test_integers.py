"""Integers are computed in 64 bits and stored in 32 on every target, as Python's own integers say."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from tests.compiled import compiled
from tests.environments.arithmetic import EXPRESSIONS, TABLE, Params, record
from tests.simulation.rollouts import ROOT
from warprun.simulation.kernel_module import single_precision

VARIABLES = {"plain": {"NUMBA_DISABLE_JIT": "1"}, "cudasim": {"NUMBA_ENABLE_CUDASIM": "1"}}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return what every target makes of the expressions, by target."""
    folder = tmp_path_factory.mktemp("arithmetic")
    processes = {}
    for target, given in VARIABLES.items():
        command = [sys.executable, "-W", "error::RuntimeWarning", "-m", "tests.environments.arithmetic"]
        command += ["cpu" if target == "plain" else target, str(folder / f"{target}.npz")]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **given}
        processes[target] = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    arrays = {"compiled": record("cpu")}
    for target, process in processes.items():
        _, errors = process.communicate()
        assert process.returncode == 0, errors
        arrays[target] = dict(np.load(folder / f"{target}.npz"))
    return arrays


def wrapped(value: int, width: int = 32, signed: bool = True) -> int:
    """Return what a store of `width` bits keeps of a Python integer."""
    low = int(value) & (2**width - 1)
    return low - 2**width if signed and low >= 2 ** (width - 1) else low


class Truncations:
    """Python integers where an environment writes NumPy's types."""

    int32 = staticmethod(wrapped)


def expected(found: dict[str, np.ndarray], t: int, env: int, actor: int) -> dict[str, int]:
    """Return the expressions of step `t` by exact integers, from the state before it and the draw that it kept."""
    names: dict[str, Any] = {name: int(found[name][t, env, actor]) for name in ("h", "n", "o")}
    names |= {"a": int(found["action"][t, env, actor]), "k": Params().k, "v": int(TABLE[t % 4]), "t": t, "i": actor}
    names |= {"w": int(found["w"][t, env, actor, t % 3]), "r": int(found["r"][t + 1, env, actor]), "twice": 2 * names["h"]}
    names |= {"int32": wrapped, "np": Truncations, "uint32": lambda x: wrapped(x, signed=False), "float32": np.float32}
    names |= {"scramble": lambda a, b: a * 3 + b * 65537}
    return {name: wrapped(eval(text, dict(names))) for name, text in EXPRESSIONS.items()}


@pytest.mark.parametrize("target", ["compiled", *VARIABLES])
def test_integers_are_computed_in_64_bits_and_stored_in_32(found, target):
    after, wrong = found[target], {}
    for t, env, actor in np.ndindex(after["action"].shape):
        for name, value in expected(after, t, env, actor).items():
            if int(after[name][t + 1, env, actor]) != value:
                wrong[name] = (EXPRESSIONS[name], int(after[name][t + 1, env, actor]), value)
    assert not wrong


@pytest.mark.parametrize("target", VARIABLES)
def test_every_integer_is_the_same_on_every_target(found, target):
    for name, values in found["compiled"].items():
        np.testing.assert_array_equal(found[target][name], values, err_msg=name)


def test_the_inputs_use_all_their_bits(found):
    """Small numbers would agree at any width."""
    assert np.abs(found["compiled"]["h"].astype(np.int64)).max() > 2**30
    assert len(np.unique(found["compiled"]["action"])) == 5


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.uint8, np.uint16, np.uint32, np.int32])
def test_tables_of_narrow_and_unsigned_integers_are_signed_in_kernels(kind):
    """Numba has 1 - 2 of unsigned integers as 2^64 - 1."""
    given = np.array([1, np.iinfo(kind).max], kind)
    taken = single_precision(given)
    assert taken.dtype in (np.int32, np.int64)
    assert taken.tolist() == given.tolist()
    assert compiled(lambda table: (table[0] - table[1]) * 0.5)(taken) == (1 - np.iinfo(kind).max) * 0.5
