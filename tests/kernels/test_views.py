"""Views with known sizes: the same elements as slices, and neighbouring lanes are read as vectors, not one by one."""

from __future__ import annotations

import numpy as np
from numba import njit

from warprun.kernels.compile import KERNELS, device_function
from warprun.kernels.lanes import of_tile
from warprun.simulation.faults import all_can_act, all_finite

finite, can_act = device_function(all_finite), device_function(all_can_act)


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
