"""The limits of NVIDIA's GPUs by compute capability, and how many blocks of a kernel a multiprocessor holds.

The numbers are those of "Technical Specifications per Compute Capability" in NVIDIA's CUDA C++ Programming Guide,
and the units in which registers and shared memory are handed out those of `cuda_occupancy.h` in the CUDA toolkit."""

from __future__ import annotations

from typing import NamedTuple


class Card(NamedTuple):
    """The limits of an architecture."""

    capability: tuple[int, int]
    warps: int
    """That a multiprocessor holds at once."""
    blocks: int
    """That it holds at once."""
    shared: int
    """Bytes of its shared memory."""
    reserved: int
    """Bytes of shared memory that every block takes in addition."""
    unit: int
    """Bytes in which shared memory is handed out."""
    example: str

    @property
    def architecture(self) -> str:
        """Name for the tools, as Numba gives it: from 9.0 on with the instructions that only this architecture has."""
        major, minor = self.capability
        return f"sm_{major}{minor}{self.suffix}"

    @property
    def suffix(self) -> str:
        """The end of the name."""
        return "a" if self.capability >= (9, 0) else ""


KIB = 1024
CARDS = (
    Card((7, 5), 32, 16, 64 * KIB, 0, 256, "T4"),
    Card((8, 0), 64, 32, 164 * KIB, KIB, 128, "A100"),
    Card((8, 6), 48, 16, 100 * KIB, KIB, 128, "RTX 3090"),
    Card((8, 9), 48, 24, 100 * KIB, KIB, 128, "L4, RTX 4090"),
    Card((9, 0), 64, 32, 228 * KIB, KIB, 128, "H100, H200"),
    Card((10, 0), 64, 32, 228 * KIB, KIB, 128, "B200"),
    Card((12, 0), 48, 24, 100 * KIB, KIB, 128, "RTX 5090"),
)
WARP = 32
REGISTERS, PARTITIONS, UNIT = 65536, 4, 256
"""Of a multiprocessor and of a block; parts that it splits them into; how many are handed out to a warp at once."""
MOST_REGISTERS, MOST_THREADS, MOST_BLOCKS = 255, 1024, 2**31 - 1
"""Of a thread, of a block, and of a grid's first dimension."""
MOST_SHARED = 48 * KIB
"""Bytes of shared memory of a block, static and dynamic, that need no permission of the driver, on every card."""


def warps_by_registers(registers: int) -> int:
    """Return how many warps with so many registers of a thread a multiprocessor holds; no block may have more."""
    of_warp = -(-registers * WARP // UNIT) * UNIT
    return PARTITIONS * (REGISTERS // PARTITIONS // of_warp) if of_warp else MOST_THREADS // WARP


def most_threads(registers: int) -> int:
    """Return the threads of the largest block, as the driver says it of a kernel."""
    return min(MOST_THREADS, WARP * warps_by_registers(registers))


def resident(card: Card, registers: int, threads: int, shared: int) -> int:
    """Return how many blocks a multiprocessor holds; `shared`: bytes of a block, static and dynamic."""
    warps = -(-threads // WARP)
    taken = -(-(shared + card.reserved) // card.unit) * card.unit
    by_shared = card.shared // taken if taken else card.blocks
    return min(warps_by_registers(registers) // warps, by_shared, card.warps // warps, card.blocks)
