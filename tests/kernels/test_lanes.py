"""Loops over lanes that contain loops: cut, they give the same bits as uncut, and are vectors. So are reads of views with known sizes."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import njit

from warprun.kernels import lanes
from warprun.kernels.compile import KERNELS, kernel_function
from warprun.kernels.lanes import of_tile
from warprun.kernels.vectors import WIDTH
from warprun.simulation.codegen.called import all_can_act, all_finite

KERNEL = """
def kernel(count, steps, x, y, k, rows, table):
    for lane in range(count):
        MARK
        x[lane], y[lane], k[lane] = body(lane, steps, x[lane], y[lane], k[lane], rows, table)
"""
ONE, HALF, TENTH = np.float32(1.0), np.float32(0.5), np.float32(0.1)


def uniform_loop(lane, steps, x, y, k, rows, table):
    for n in range(steps):
        slope = (y - x * table[n % 8]) * TENTH
        x, y = x + slope, y - HALF * slope * x
    return x, y, k


def swapped(lane, steps, x, y, k, rows, table):
    """Values that change places with every iteration."""
    for _ in range(steps):
        x, y = y, x * HALF + y
    return x, y, k


def nested(lane, steps, x, y, k, rows, table):
    for n in range(steps):
        for m in range(1, 7):
            rows[m, lane] += TENTH * (rows[m - 1, lane] - x)
            if m > n:
                x += TENTH * rows[m, lane]
        y += rows[n % 8, lane]
    return x, y, k


def divergent_end(lane, steps, x, y, k, rows, table):
    change = ONE
    while abs(change) > np.float32(1e-3) and k < 40:
        change = (x * x - y) / (x + x + TENTH)
        x -= change
        k += 1
    return x, y, k


def divergent_nest(lane, steps, x, y, k, rows, table):
    for n in range(k):
        m = n
        while m > 0 and rows[m % 8, lane] > TENTH:
            rows[m % 8, lane] *= HALF
            x += TENTH
            m -= 2
        if x > np.float32(1.5):
            break
        y += x
    return x, y, k


def branches(lane, steps, x, y, k, rows, table):
    """Loops on one side of a branch, on both, and a branch that is the same for all lanes."""
    if x > y:
        for n in range(steps):
            x -= TENTH * rows[n % 8, lane]
        k += 1
    if steps > 3:
        for n in range(3, steps):
            y += table[n % 8]
    elif y > HALF:
        for _ in range(k):
            y -= TENTH
    if k % 2 == 0:
        for n in range(4):
            if rows[n, lane] < HALF:
                continue
            x += rows[n, lane]
    else:
        for n in range(k):
            x -= table[n % 8]
    return x, y, k


def after(lane, steps, x, y, k, rows, table):
    """A number that is the same for all lanes in a loop, but not after it."""
    found = 0
    for n in range(100):
        x = x * np.float32(0.9)
        found = n
        if x < TENTH:
            break
    return x, y + np.float32(found), found


def looked_up(lane, steps, x, y, k, rows, table):
    for _ in range(steps):
        x += table[k % 8] - TENTH
        k = (k * 3 + 1) % 8
        rows[k, lane] = x
    return x, y, k


def left_early(lane, steps, x, y, k, rows, table):
    """What lanes leave a loop with is needed while the loop runs again."""
    best, last = x, y
    for n in range(steps):
        z, kept = x, last
        for m in range(k + n):
            z = z * np.float32(0.8) + table[m % 8]
            if z > ONE:
                kept = z - ONE
                break
            last = z
        best = best + kept * last if z > best else best - TENTH * z
        x += TENTH * kept
    return best, last, k


def chosen(lane, steps, x, y, k, rows, table):
    """A branch of many ways that becomes a switch."""
    for n in range(steps):
        way = (k + n) & 3
        if way == 0:
            x += TENTH
        elif way == 1:
            y *= HALF
        elif way == 2:
            for m in range(n):
                x -= TENTH * table[m % 8]
        else:
            y += x
    return x, y, k


def rejoined(lane, steps, x, y, k, rows, table):
    """A branch that is the same for all lanes and has a loop on one side; the loops before keep LLVM from moving it out of the lanes."""
    z, w, m = x - y, y, k
    for _ in range((k + m) % 5):
        for _ in range(k % 6):
            n = 0
            while steps > 3 and n < steps:
                n += 1
                for _ in range(k % 6):
                    y = max(y, HALF)
    if steps % 2 == 0:
        for _ in range(steps):
            for _ in range(3):
                x = min(x, HALF)
    else:
        x = y
        y = max(y, HALF)
    x = min(np.float32(m), x)
    return x + z * HALF, y - w * HALF, k + m


VECTORS = (uniform_loop, divergent_end, swapped, nested, branches, after, looked_up)
OTHERS = (left_early, divergent_nest, chosen, rejoined)
BODIES = (*VECTORS[:2], *OTHERS[:2], *VECTORS[2:], *OTHERS[2:])


def kernel(body: Callable[..., Any], mark: str, **options: bool) -> Any:
    names = {"body": njit(inline="always")(body), "lane_loop": lanes.lane_loop}
    exec(KERNEL.replace("MARK", mark), names)
    return njit(**KERNELS | options)(names["kernel"])


def state() -> list[np.ndarray]:
    rng = np.random.default_rng(4)
    x, y = rng.random((2, 64), np.float32)
    rows, table = rng.random((8, 64), np.float32), rng.random(8, np.float32)
    return [x, y, rng.integers(0, 9, 64), rows, table]


@pytest.mark.by_default(4)
@pytest.mark.parametrize("body", BODIES)
def test_cut_loops_give_the_same_bits_and_are_vectors(body):
    cut, whole = kernel(body, "lane_loop()"), kernel(body, "pass")
    for count in (64, 37, 1, 0):
        for steps in (0, 1, 6):
            found, expected = state(), state()
            cut(count, steps, *found)
            whole(count, steps, *expected)
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_array_equal(a, b)
    assert not np.array_equal(state()[0], found[0]) or count == 0
    (code,) = cut.inspect_llvm().values()
    assert "sideeffect" not in code
    assert body not in VECTORS or re.search(r"= f(?:add|sub|mul)[ \w]* <\d+ x float>", code)
    # With AVX-512 LLVM would choose vectors of half the width by itself.
    assert body is not uniform_loop or f"<{WIDTH} x float>" in code


@pytest.mark.long
def test_a_switch_can_have_a_place_in_the_source():
    """As `warprun bench` compiles, to name what is no vector."""
    traced = kernel(chosen, "lane_loop()", debug=True, _dbg_optnone=False, _dbg_extend_lifetimes=False)
    found, expected = state(), state()
    traced(64, 6, *found)
    kernel(chosen, "pass")(64, 6, *expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


# Views with known sizes -------------------------------------------------------------------------------------------------

finite, can_act = kernel_function(all_finite), kernel_function(all_can_act)


@njit(**KERNELS)
def columns(tile, state, found):
    slots = of_tile(state, tile, (6, 2, 16))
    for lane in range(min(16, len(found))):
        cells = slots[1:5, 1, lane]
        found[lane] = cells[0] + np.float32(2.0) * cells[3] + cells[-1]


@njit(**KERNELS)
def sound(row, mask):
    count = min(16, len(mask))
    return finite(row, 0, count * 3), can_act(mask, 0, count, 2, 0, 2)


def test_a_view_has_the_elements_of_its_tile():
    state, found = np.random.default_rng(1).random((3, 6, 2, 16), np.float32), np.empty(16, np.float32)
    for tile in range(3):
        columns(tile, state, found)
        cells = state[tile, 1:5, 1]
        np.testing.assert_allclose(found, cells[0] + 2 * cells[3] + cells[-1], rtol=1e-6)


def test_neighbours_are_not_gathered():
    row, mask = np.ones(48, np.float32), np.ones(32, np.bool_)
    assert sound(row, mask) == (True, True)
    row[47], mask[30:] = np.nan, False
    assert sound(row, mask) == (False, False)
    columns(0, np.zeros((1, 6, 2, 16), np.float32), np.empty(16, np.float32))
    for kernel in (columns, sound):
        (code,) = kernel.inspect_llvm().values()
        assert "x float>" in code
        assert "masked.gather" not in code
