"""The matrix products in SIMD against float64."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import njit, types

from tests.compiled import compiled
from tests.environments.arithmetic import EXPRESSIONS, TABLE, Params, record
from tests.simulation.rollouts import begin, finish
from warprun.kernels.compile import FLAGS
from warprun.kernels.simd import COLUMNS, LINE, LONG, MANY, ROWS, STRIP, TERMS, add_product, add_row_sums, aligned_zeros, multiply, outer
from warprun.kernels.vectors import NARROW, WIDTH
from warprun.simulation.kernel_module import single_precision

SIZES = [(1, 1), (3, 64), (64, 4), (ROWS, ROWS), (ROWS + 1, 7), (50, 50), (64, 64)]
# Larger ones are cut: sums into pieces, and outer products into strips.
SIZES += [(3, TERMS + 1), (MANY - 1, MANY), (MANY, MANY + STRIP), (2 * TERMS + 5, STRIP + 1)]


@njit(**FLAGS)
def forward(w, bias, x, y):
    flat_x, flat_y = x.reshape(x.size), y.reshape(y.size)
    multiply(w.reshape(w.size), w.shape[1], 1, bias, flat_x, flat_y, w.shape[0], w.shape[1], x.shape[1], flat_x, 0)


@njit(**FLAGS)
def backward(w, zeros, dy, dx):
    """Fetch the results, which changes nothing."""
    flat_dy, flat_dx = dy.reshape(dy.size), dx.reshape(dx.size)
    multiply(w.reshape(w.size), 1, w.shape[1], zeros, flat_dy, flat_dx, w.shape[1], w.shape[0], dy.shape[1], flat_dx, dx.size)


@njit(**FLAGS)
def add(w, row_stride, sum_stride, x, y, rows, terms, columns):
    flat_y, flat_w, flat_x = y.reshape(y.size), w.reshape(w.size), x.reshape(x.size)
    add_product(flat_w, row_stride, sum_stride, flat_x, x.shape[1], flat_y, y.shape[1], rows, terms, columns)


@njit(**FLAGS)
def gradient(g, dy, x):
    (rows, terms), columns = g.shape, x.shape[2]
    flat_dy, flat_x = dy.reshape(dy.size), x.reshape(x.size)
    outer(g.reshape(g.size), flat_dy, dy.shape[1] * columns, flat_x, x.shape[1] * columns, rows, terms, dy.shape[0], columns)


@njit(**FLAGS)
def row_sums(g, x):
    add_row_sums(g, x.reshape(x.size), x.shape[1] * x.shape[2], x.shape[1], x.shape[0], x.shape[2])


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def assert_close(found: np.ndarray, exact: np.ndarray, terms: int) -> None:
    # A sum of n float32 products is off by a few units in the last place of the largest partial sum.
    np.testing.assert_allclose(found, exact, rtol=0, atol=2e-7 * terms**0.5 * (1 + np.abs(exact).max()))


@pytest.mark.parametrize(("rows", "terms"), SIZES)
@pytest.mark.parametrize("columns", [NARROW, COLUMNS, COLUMNS + NARROW])
def test_products_equal_float64(rows: int, terms: int, columns: int) -> None:
    w, bias, x = numbers(rows, terms), numbers(rows), numbers(terms, columns)
    y, dx = np.full((rows, columns), np.nan, np.float32), np.full((terms, columns), np.nan, np.float32)
    forward(w, bias, x, y)
    assert_close(y, w.astype(float) @ x + bias[:, None], terms)
    backward(w, np.zeros(terms, np.float32), y, dx)
    assert_close(dx, w.T.astype(float) @ y, rows)


@pytest.mark.parametrize(("rows", "terms"), SIZES)
@pytest.mark.parametrize("transposed", [False, True])
def test_products_are_added_to_a_part_of_wider_rows(rows: int, terms: int, transposed: bool) -> None:
    """And to nothing beside it."""
    columns, more = COLUMNS + NARROW, 3
    w, x, y = numbers(*((terms, rows) if transposed else (rows, terms))), numbers(terms, columns + more), numbers(rows, columns + more)
    exact = y.astype(float)
    exact[:, :columns] += (w.T if transposed else w).astype(float) @ x[:, :columns]
    add(w, *((1, rows) if transposed else (terms, 1)), x, y, rows, terms, columns)
    assert_close(y, exact, terms)
    assert (y[:, columns:] == exact[:, columns:]).all()


@pytest.mark.parametrize(("rows", "terms"), SIZES)
@pytest.mark.parametrize("blocks", [1, 3, LONG // COLUMNS])
@pytest.mark.parametrize("columns", [NARROW, COLUMNS, COLUMNS + NARROW])
def test_outer_adds_the_products_of_all_blocks(rows: int, terms: int, blocks: int, columns: int) -> None:
    dy, x, g = numbers(blocks, rows, columns), numbers(blocks, terms, columns), numbers(rows, terms)
    exact = g + np.einsum("njc,nkc->jk", dy.astype(float), x)
    gradient(g, dy, x)
    assert_close(g, exact, blocks * columns)


@pytest.mark.parametrize("rows", [1, 3, ROWS, ROWS + 1, 50])
@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("columns", [NARROW, COLUMNS])
def test_row_sums_of_all_blocks(rows: int, blocks: int, columns: int) -> None:
    x, g = numbers(blocks, rows, columns), numbers(rows)
    exact = g + x.astype(float).sum((0, 2))
    row_sums(g, x)
    assert_close(g, exact, blocks * columns)


def test_aligned_zeros_begin_at_a_cache_line() -> None:
    kept = [aligned_zeros(3, size) for size in (1, 5, 16, 300_000)]
    for memory, size in zip(kept, (1, 5, 16, 300_000), strict=True):
        assert memory.ctypes.data % LINE == 0 and memory.shape == (3, size) and memory.flags.c_contiguous
        assert not memory.any()


@pytest.mark.slow
@pytest.mark.skipif(WIDTH != 16, reason="the vectors of this processor are not wider than those to try")
@pytest.mark.parametrize(("name", "features", "width"), [("haswell", "+avx,+avx2,+fma", 8), ("x86-64", "+sse2", 4)])
def test_narrower_vectors_give_the_same(name: str, features: str, width: int, tmp_path: Path) -> None:
    """The code for processors without AVX-512, compiled for one of them: products, rollouts and gradients."""
    asked = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features, "WARPRUN_CACHE_DIR": str(tmp_path)}
    check = f"import warprun.kernels.simd as s; assert s.WIDTH == {width}, s.WIDTH"
    subprocess.run([sys.executable, "-c", check], env=os.environ | asked, check=True)
    files = [Path(__file__), Path(__file__).parents[1] / "learning" / "cpu" / "test_gradient.py"]
    ran = subprocess.run([sys.executable, "-m", "pytest", "-q", *map(str, files)], env=os.environ | asked, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-2000:]


def stores_to_stack() -> int:
    """Return how many instructions of the products put a vector on the stack."""
    flat, rows, blocks = (types.Array(types.float32, axes, "C") for axes in (1, 2, 3))
    forward.compile((rows, flat, rows, rows))
    gradient.compile((rows, blocks, blocks))
    code = "".join(text for product in (forward, gradient) for text in product.inspect_asm().values())
    functions = re.findall(r"^warprun_(?:multiply|product|outer):\n(.*?)^\.Lfunc_end", code, re.MULTILINE | re.DOTALL)
    assert len(functions) == 4 and all("vfmadd" in each for each in functions)
    return len(re.findall(r"movu?a?ps\s+%[xy]mm\d+, -?\d*\(%r[sb]p\)", "".join(functions)))


@pytest.mark.skipif(WIDTH < 8, reason="this processor has no AVX2")
def test_accumulators_stay_in_the_sixteen_registers_of_avx2() -> None:
    asked = os.environ | {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma"}
    code = "from tests.kernels.test_simd import stores_to_stack; assert not stores_to_stack(), stores_to_stack()"
    subprocess.run([sys.executable, "-c", code], env=asked, cwd=Path(__file__).parents[2], check=True)


def test_products_write_nothing_else() -> None:
    rows, terms = 5, 3
    y = np.full((rows + 1, COLUMNS), 7, np.float32)
    forward(numbers(rows, terms), numbers(rows), numbers(terms, COLUMNS), y)
    assert (y[rows] == 7).all()


# Integers are computed in 64 bits and stored in 32 on every target, as Python's own integers say ----------------------

VARIABLES = {"plain": {"NUMBA_DISABLE_JIT": "1"}, "cudasim": {"NUMBA_ENABLE_CUDASIM": "1"}}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arithmetic")
    processes = {
        target: begin("tests.environments.arithmetic", "cpu" if target == "plain" else target, folder / f"{target}.npz", **given)
        for target, given in VARIABLES.items()
    }
    arrays = {"compiled": record("cpu")}
    for target, process in processes.items():
        finish(process)
        arrays[target] = dict(np.load(folder / f"{target}.npz"))
    return arrays


def wrapped(value: int, width: int = 32, signed: bool = True) -> int:
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


@pytest.mark.long
@pytest.mark.parametrize("target", ["compiled", *VARIABLES])
def test_integers_are_computed_in_64_bits_and_stored_in_32(found, target):
    after, wrong = found[target], {}
    # Small numbers would agree at any width.
    assert np.abs(after["h"].astype(np.int64)).max() > 2**30 and len(np.unique(after["action"])) == 5
    for t, env, actor in np.ndindex(after["action"].shape):
        for name, value in expected(after, t, env, actor).items():
            if int(after[name][t + 1, env, actor]) != value:
                wrong[name] = (EXPRESSIONS[name], int(after[name][t + 1, env, actor]), value)
    assert not wrong


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.uint8, np.uint16, np.uint32, np.int32])
def test_tables_of_narrow_and_unsigned_integers_are_signed_in_kernels(kind):
    """Numba has 1 - 2 of unsigned integers as 2^64 - 1."""
    given = np.array([1, np.iinfo(kind).max], kind)
    taken = single_precision(given)
    assert taken.dtype in (np.int32, np.int64)
    assert taken.tolist() == given.tolist()
    assert compiled(lambda table: (table[0] - table[1]) * 0.5)(taken) == (1 - np.iinfo(kind).max) * 0.5
