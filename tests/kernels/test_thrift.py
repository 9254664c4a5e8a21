"""Work of Numba that no kernel needs is left out, and what others need is as before."""

import gc
import subprocess
import sys

import numba
import numpy as np
import pytest
from numba.core import errors
from numba.core.event import trigger_event

from warprun import math, random
from warprun.kernels import compile as kernels
from warprun.neighbours import nearest

CODE = """
import sys
import numpy as np
from warprun.kernels.compile import FLAGS, load_module
source = "from numba import njit\\n\\n@njit(cache=True, **FLAGS)\\ndef twice(x):\\n    return x * number\\n"
print(load_module("thrift", source, {"number": 2.0, "FLAGS": FLAGS}).twice(np.float32(3.0)), "scipy.linalg" in sys.modules)
"""


def test_a_kernel_needs_no_scipy(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("WARPRUN_CACHE_DIR", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout == "6.0 False\n"


def test_products_of_matrices_still_find_scipy() -> None:
    pytest.importorskip("scipy")

    @numba.njit
    def product(a, b):
        return np.dot(a, b)

    a = np.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(product(a, a.T.copy()), a @ a.T)


def test_messages_have_no_colours() -> None:
    assert str(errors.TypingError("no such thing")) == "no such thing"


def test_collections_are_rare_while_numba_compiles() -> None:
    before = gc.get_threshold()
    with trigger_event("numba:compile"):
        assert gc.get_threshold()[0] >= 200_000
    assert gc.get_threshold() == before


def test_what_indexes_no_array_is_compiled_once_for_checks_and_for_kernels() -> None:
    for function in (math.sin, random.uniform):
        assert kernels._rebuild(function, kernels._checked) is kernels.kernel_function(function)
    assert kernels._rebuild(nearest, kernels._checked) is not kernels.kernel_function(nearest)
