"""The matrix products in SIMD against float64."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from warprun.engine.compile import FLAGS
from warprun.engine.simd import COLUMNS, ROWS, multiply, outer

SIZES = [(1, 1), (3, 64), (64, 4), (ROWS, ROWS), (ROWS + 1, 7), (50, 50), (64, 64)]


@njit(**FLAGS)
def forward(w, bias, x, y):
    multiply(w.reshape(w.size), w.shape[1], 1, bias, x.reshape(x.size), y.reshape(y.size), w.shape[0], w.shape[1])


@njit(**FLAGS)
def backward(w, zeros, dy, dx):
    multiply(w.reshape(w.size), 1, w.shape[1], zeros, dy.reshape(dy.size), dx.reshape(dx.size), w.shape[1], w.shape[0])


@njit(**FLAGS)
def gradient(g, dy, x):
    rows, terms = g.shape
    flat_dy, flat_x = dy.reshape(dy.size), x.reshape(x.size)
    outer(g.reshape(g.size), flat_dy, dy.shape[1] * COLUMNS, flat_x, x.shape[1] * COLUMNS, rows, terms, dy.shape[0])


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def assert_close(found: np.ndarray, exact: np.ndarray, terms: int) -> None:
    # A sum of n float32 products is off by a few units in the last place of the largest partial sum.
    np.testing.assert_allclose(found, exact, rtol=0, atol=2e-7 * terms**0.5 * (1 + np.abs(exact).max()))


@pytest.mark.parametrize(("rows", "terms"), SIZES)
def test_products_equal_float64(rows: int, terms: int) -> None:
    w, bias, x = numbers(rows, terms), numbers(rows), numbers(terms, COLUMNS)
    y, dx = np.full((rows, COLUMNS), np.nan, np.float32), np.full((terms, COLUMNS), np.nan, np.float32)
    forward(w, bias, x, y)
    assert_close(y, w.astype(float) @ x + bias[:, None], terms)
    backward(w, np.zeros(terms, np.float32), y, dx)
    assert_close(dx, w.T.astype(float) @ y, rows)


@pytest.mark.parametrize(("rows", "terms"), SIZES)
@pytest.mark.parametrize("blocks", [1, 3])
def test_outer_adds_the_products_of_all_blocks(rows: int, terms: int, blocks: int) -> None:
    dy, x, g = numbers(blocks, rows, COLUMNS), numbers(blocks, terms, COLUMNS), numbers(rows, terms)
    exact = g + np.einsum("njc,nkc->jk", dy.astype(float), x)
    gradient(g, dy, x)
    assert_close(g, exact, blocks * COLUMNS)


def test_products_write_nothing_else() -> None:
    rows, terms = 5, 3
    y = np.full((rows + 1, COLUMNS), 7, np.float32)
    forward(numbers(rows, terms), numbers(rows), numbers(terms, COLUMNS), y)
    assert (y[rows] == 7).all()
