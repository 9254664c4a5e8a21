"""What `mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32` computes, D = A B + C of a warp: where numbers lie, and how sums are cut.

The machine takes the table of places from here (`defines`); `mma` is the same in NumPy. **Places**: PTX ISA, "Matrix Fragments for
mma.m16n8k16 with floating point type". **Sums** are those of Hopper, as MMA-Sim has found them, bit by bit, on the hardware (arXiv
2511.10909): one sum of C and all 16 products, which are exact; each term is aligned to the largest exponent and cut, toward zero,
`FRACTION_BITS` bits behind it; the sum of what is left is exact, and cut to float32. So no order of the terms is assumed. Older GPUs
cut more (Fasi et al. 2021, PeerJ Computer Science 7:e330).
"""

import numpy as np

ROWS, COLUMNS, DEPTH = 16, 8, 16
"""A is [ROWS, DEPTH], B is [DEPTH, COLUMNS], C and D are [ROWS, COLUMNS]."""
FRACTION_BITS = 25
CANONICAL_NAN = np.uint32(0x7FFFFFFF)

Places = tuple[np.ndarray, np.ndarray]
"""Row and column of the numbers that each lane has, low to high through its registers: [32, numbers of a lane]."""
GROUP, IN_GROUP = np.divmod(np.arange(32)[:, None], 4)
EIGHT, FOUR = np.arange(8), np.arange(4)
A: Places = (GROUP + 8 * (EIGHT // 2 % 2), 2 * IN_GROUP + EIGHT % 2 + 8 * (EIGHT // 4))
B: Places = (2 * IN_GROUP + FOUR % 2 + 8 * (FOUR // 2), GROUP + 0 * FOUR)
C: Places = (GROUP + 8 * (FOUR // 2), 2 * IN_GROUP + FOUR % 2)


def defines() -> list[str]:
    """Return the options of a C compiler that give `tensor_core.c` the places in matrices of rows one after the other."""
    widths = {"A": (A, DEPTH), "B": (B, COLUMNS), "C": (C, COLUMNS)}
    flat = {name: (row * width + column).ravel() for name, ((row, column), width) in widths.items()}
    return [f"-DFRACTION_BITS={FRACTION_BITS}", *(f"-DPLACES_{name}={{{','.join(map(str, each))}}}" for name, each in flat.items())]


def to_bf16(x: np.ndarray) -> np.ndarray:
    """Return the bits of float32 rounded to bf16, to nearest and ties to even, as `cvt.rn.bf16x2.f32` does: uint32 of 16 bits."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(x), np.uint32(0x7FFF), rounded.astype(np.uint32))


def from_bf16(bits: np.ndarray) -> np.ndarray:
    """Return the float32 that the low 16 bits of uint32 are as bf16."""
    return (np.ascontiguousarray(bits, np.uint32) << np.uint32(16)).view(np.float32)


def pack(matrix: np.ndarray, places: Places) -> np.ndarray:
    """Return the registers of all lanes, uint32 [..., 32, registers], for a matrix A or B, which is rounded to bf16."""
    halves = to_bf16(matrix)[..., places[0], places[1]]
    return halves[..., ::2] | halves[..., 1::2] << np.uint32(16)


def unpack(words: np.ndarray, places: Places, shape: tuple[int, int]) -> np.ndarray:
    """Return the matrix A or B, float32, of the registers of all lanes."""
    halves = np.stack([words & np.uint32(0xFFFF), words >> np.uint32(16)], -1).reshape(*words.shape[:-1], -1)
    matrix = np.empty((*words.shape[:-2], *shape), np.float32)
    matrix[..., places[0], places[1]] = from_bf16(halves)
    return matrix


def multiply(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return A B + C of float32 matrices, A and B of numbers of bf16, with sums cut as on Hopper."""
    a, b, c = (np.ascontiguousarray(x, np.float32) for x in (a, b, c))
    with np.errstate(invalid="ignore", over="ignore"):
        left, right, more = (np.float64(x) for x in (a[..., :, None, :], np.swapaxes(b, -1, -2)[..., None, :, :], c[..., None]))
        terms = np.concatenate([left * right, more], -1)
        exponents = np.concatenate([_exponent(left) + _exponent(right), _exponent(more)], -1)
        most = exponents.max(-1)
        kept = np.ldexp(np.trunc(np.ldexp(terms, FRACTION_BITS - most[..., None])).sum(-1), most - FRACTION_BITS)
        total = terms.sum(-1)
        found = np.where(np.isfinite(total), toward_zero(kept), np.float32(total))
    found[np.isnan(found)] = CANONICAL_NAN.view(np.float32)
    return found


def _exponent(x: np.ndarray) -> np.ndarray:
    """Return the exponents of float32 numbers in hardware: -126 also of zero and of subnormal numbers."""
    return np.maximum(np.float32(x).view(np.uint32) >> 23 & 255, 1).astype(np.int64) - 127


def toward_zero(x: np.ndarray) -> np.ndarray:
    """Return float64 cut to float32; infinite from 2^128 on."""
    y = np.float32(x)
    return np.where((np.abs(np.float64(y)) > np.abs(x)) & (np.abs(x) < 2.0**128), np.nextafter(y, np.float32(0)), y)


def mma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return D for the registers of all lanes: A uint32 [..., 32, 4], B uint32 [..., 32, 2], C and D float32 [..., 32, 4]."""
    given = np.empty((*c.shape[:-2], ROWS, COLUMNS), np.float32)
    given[..., C[0], C[1]] = c
    return multiply(unpack(a, A, (ROWS, DEPTH)), unpack(b, B, (DEPTH, COLUMNS)), given)[..., C[0], C[1]]
