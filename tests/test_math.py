"""warprun.math against float64 NumPy: accuracy over wide ranges and edge cases, as plain Python and compiled; what the PTX holds."""

import re

import numpy as np
import pytest
from numba import njit

import warprun.math
from tests.compiled import compiled
from warprun.kernels.compile import FLAGS, kernel_function

NAN, INF = float("nan"), float("inf")
FAR = 50_000.0


def spread(low: float, high: float, count: int = 200_000) -> np.ndarray:
    """Return float32 of either sign, spread evenly over the exponents from `low` to `high`."""
    bounds = np.float32([low, high]).view(np.int32)
    x = np.random.default_rng(1).integers(*bounds, count, dtype=np.int32).view(np.float32)
    return np.concatenate([x, -x])


def even(low: float, high: float, count: int = 400_000) -> np.ndarray:
    """Return float32 spread evenly from `low` to `high`."""
    return np.random.default_rng(2).uniform(low, high, count).astype(np.float32)


def softplus(x):
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


# name, inputs, reference, largest error: in ulp of the result, or absolute
ACCURACY = {
    "sin, a turn": ("sin", spread(1e-30, np.pi), np.sin, 2.1, None),
    "sin, far": ("sin", even(-FAR, FAR), np.sin, None, 1.3e-7),
    "sin, very far": ("sin", even(-1e6, 1e6), np.sin, None, 2e-7),
    "cos, a turn": ("cos", spread(1e-30, np.pi), np.cos, 2.1, None),
    "cos, far": ("cos", even(-FAR, FAR), np.cos, None, 1.3e-7),
    "cos, very far": ("cos", even(-1e6, 1e6), np.cos, None, 2e-7),
    "tan": ("tan", even(-1.57, 1.57), np.tan, 5.0, None),
    "exp, normal": ("exp", even(-87.3, 88.72), np.exp, 1.1, None),
    "exp, subnormal": ("exp", even(-104.0, -87.3), np.exp, 1.1, None),
    "exp, near 0": ("exp", spread(1e-30, 1.0), np.exp, 1.1, None),
    "log, normal": ("log", abs(spread(1.2e-38, 3.4e38)), np.log, 1.2, None),
    "log, subnormal": ("log", abs(spread(1e-45, 1.2e-38)), np.log, 1.2, None),
    "log, near 1": ("log", even(0.5, 2.0), np.log, 1.2, None),
    "tanh": ("tanh", spread(1e-37, 20.0), np.tanh, 6.0, 3.5e-7),
    "tanh, even": ("tanh", even(-10.0, 10.0), np.tanh, 6.0, 3.5e-7),
    "sigmoid": ("sigmoid", even(-87.0, 30.0), sigmoid, 3.0, None),
    "softplus": ("softplus", even(-87.0, 30.0), softplus, 2.2, None),
    "softplus, near 0": ("softplus", spread(1e-30, 80.0), softplus, 2.2, None),
    "atan": ("atan", spread(1e-37, 3.4e38), np.arctan, 2.0, None),
    "atan, even": ("atan", even(-4.0, 4.0), np.arctan, 2.0, None),
    "asin": ("asin", spread(1e-37, 1.0), np.arcsin, 2.1, None),
    "asin, even": ("asin", even(-1.0, 1.0), np.arcsin, 2.1, None),
    "acos": ("acos", spread(1e-37, 1.0), np.arccos, 1.3, None),
    "acos, even": ("acos", even(-1.0, 1.0), np.arccos, 1.3, None),
    "acos, near 1": ("acos", np.float32(1.0) - abs(spread(1e-7, 1e-2)), np.arccos, 1.3, None),
    "log10, normal": ("log10", abs(spread(1.2e-38, 3.4e38)), np.log10, 0.6, None),
    "log10, subnormal": ("log10", abs(spread(1e-45, 1.2e-38)), np.log10, 0.6, None),
    "log10, near 1": ("log10", even(0.5, 2.0), np.log10, 0.6, None),
    "sqrt": ("sqrt", abs(spread(1e-45, 3.4e38)), np.sqrt, 0.501, None),
    "floor": ("floor", spread(1e-10, 1e12), np.floor, 0.0, None),
    "floor, small": ("floor", even(-20.0, 20.0), np.floor, 0.0, None),
}

EDGES = {
    "sin": {0.0: 0.0, INF: NAN, -INF: NAN, NAN: NAN, 2e7: NAN},
    "cos": {0.0: 1.0, 1e-4: 1.0, INF: NAN, -INF: NAN, NAN: NAN, 2e7: NAN},
    "wrap_angle": {0.0: 0.0, 3.0: 3.0, -3.0: -3.0, -np.pi: -np.pi, np.pi: -3.1415925, NAN: NAN, INF: NAN, 2e7: NAN},
    "exp": {0.0: 1.0, 88.8: INF, 1e30: INF, INF: INF, -104.1: 0.0, -1e30: 0.0, -INF: 0.0, NAN: NAN},
    "log": {1.0: 0.0, 0.0: -INF, -1.0: NAN, -1e-40: NAN, -INF: NAN, INF: INF, NAN: NAN},
    "log10": {1.0: 0.0, 0.0: -INF, -1.0: NAN, -1e-40: NAN, -INF: NAN, INF: INF, NAN: NAN} | {10.0**n: float(n) for n in range(-5, 11)},
    "atan": {0.0: 0.0, 1.0: np.pi / 4, -1.0: -np.pi / 4, INF: np.pi / 2, -INF: -np.pi / 2, NAN: NAN},
    "asin": {0.0: 0.0, 1.0: np.pi / 2, -1.0: -np.pi / 2, 1.0000001: NAN, -1.0000001: NAN, 5.0: NAN, INF: NAN, -INF: NAN, NAN: NAN},
    "acos": {0.0: np.pi / 2, 1.0: 0.0, -1.0: np.pi, 1.0000001: NAN, -1.0000001: NAN, 5.0: NAN, INF: NAN, -INF: NAN, NAN: NAN},
    "tanh": {0.0: 0.0, 9.02: 1.0, -9.02: -1.0, 1e30: 1.0, INF: 1.0, -INF: -1.0, NAN: NAN},
    "sigmoid": {0.0: 0.5, 100.0: 1.0, INF: 1.0, -INF: 0.0, -1e30: 0.0, NAN: NAN},
    "softplus": {-INF: 0.0, -1e30: 0.0, 1e30: 1e30, INF: INF, NAN: NAN},
    "sqrt": {0.0: 0.0, 4.0: 2.0, -1.0: NAN, -INF: NAN, INF: INF, NAN: NAN},
    "floor": {0.0: 0.0, -0.5: -1.0, 0.99999994: 0.0, -2.0: -2.0, 8388607.5: 8388607.0, -8388607.5: -8388608.0, INF: INF, NAN: NAN},
}


def loop(name: str):
    """Return a compiled loop of a function of one or two arguments over arrays."""
    function = kernel_function(getattr(warprun.math, name))

    @njit(**FLAGS)
    def one(x, out):
        for n in range(x.size):
            out[n] = function(x[n])

    @njit(**FLAGS)
    def two(x, y, out):
        for n in range(x.size):
            out[n] = function(x[n], y[n])

    return two if name in OF_TWO else one


OF_TWO = ("atan2", "fmod", "power")


def in_ulps(error: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest error in units of the last place of the expected float32."""
    return np.max(error / np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64))


OF_ONE = ("sin", "cos", "tan", "wrap_angle", "atan", "asin", "acos", "exp", "log", "log10", "tanh", "sigmoid", "softplus", "sqrt", "floor")
LOOPS = {name: loop(name) for name in (*OF_ONE, *OF_TWO)}


def in_loops(name: str, *given: np.ndarray) -> np.ndarray:
    out = np.empty_like(given[0])
    LOOPS[name](*given, out)
    return out


def plain(name: str, *given: np.ndarray) -> np.ndarray:
    results = [getattr(warprun.math, name)(*values) for values in zip(*given, strict=True)]
    assert {type(result) for result in results} == {np.float32}
    return np.array(results)


in_both_modes = pytest.mark.parametrize("mode", [in_loops, plain])


@in_both_modes
@pytest.mark.parametrize("case", ACCURACY)
def test_accuracy(case, mode):
    name, x, reference, ulps, absolute = ACCURACY[case]
    if mode is plain:
        x = x[:: x.size // 3000]
    expected = reference(x.astype(np.float64))
    error = np.abs(mode(name, x) - expected)
    if ulps is not None:
        assert in_ulps(error, expected) <= ulps
    if absolute is not None:
        assert np.max(error) <= absolute


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", EDGES)
def test_edges(name):
    function = getattr(warprun.math, name)
    both = compiled(function)
    for x, expected in EDGES[name].items():
        for f in (function, both):
            np.testing.assert_array_equal(np.float32(f(np.float32(x))), np.float32(expected), err_msg=f"{name}({x})")


@pytest.mark.parametrize("name", ["sin", "cos", "tanh"])
def test_never_beyond_one(name):
    peaks = np.arange(-30, 30) * (np.pi / 2)
    near = (peaks[:, None] + np.linspace(-2e-3, 2e-3, 4001)).astype(np.float32).ravel()
    assert np.abs(in_loops(name, near)).max() == 1.0
    assert np.abs(plain(name, near[::20])).max() <= 1.0


def half_open(x: np.ndarray) -> bool:
    """Tell whether all are in [-pi, pi), in float32."""
    return bool(np.all((x >= np.float32(-np.pi)) & (x < np.float32(np.pi))))


@in_both_modes
def test_wrap_angle(mode):
    x = even(-FAR, FAR, 2_000 if mode is plain else 400_000)
    wrapped = mode("wrap_angle", x)
    turns = (wrapped - x.astype(np.float64)) / (2 * np.pi)
    assert np.max(np.abs(turns - np.round(turns))) * 2 * np.pi <= 1.3e-7
    assert half_open(wrapped)


def test_wrap_angle_is_the_same_on_every_target_next_to_odd_multiples_of_pi():
    """There a rounding decides between -pi and pi, and compiled code rounds less often: it fuses multiplications with additions."""
    odd = np.arange(-15_899, 15_900, 26 * 2) * np.pi  # up to 50 000 rad
    at = np.concatenate([odd, np.arange(-99, 100, 2) * np.pi]).astype(np.float32)
    x = np.concatenate([(at.view(np.int32) + steps).view(np.float32) for steps in range(-3, 4)])
    found, expected = in_loops("wrap_angle", x), plain("wrap_angle", x)
    np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))
    assert half_open(found)
    error = (found - x.astype(np.float64) + np.pi) % (2 * np.pi) - np.pi
    assert np.max(np.abs(error)) <= 1.3e-7
    assert (found > 3.0).any()
    assert (found < -3.0).any()


PAIR_EDGES = [0.0, -0.0, 1e-45, -1e-45, 1e-39, 0.5, -0.5, 0.99999994, 1.0, -1.0, 1.0000001, 2.0, -2.0, 2.5, -2.5, 3.0, -3.0]
PAIR_EDGES += [7.0, -7.0, 16777215.0, -16777215.0, 16777216.0, 1e30, -1e30, 3.4028235e38, -3.4028235e38, INF, -INF, NAN]


def same_bits(found: np.ndarray, expected: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    """Assert that both are equal bit for bit, or nan."""
    differ = (found.view(np.int32) != expected.view(np.int32)) & ~(np.isnan(found) & np.isnan(expected))
    assert not differ.any(), list(zip(x[differ][:5], y[differ][:5], found[differ][:5], expected[differ][:5], strict=True))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@in_both_modes
def test_fmod_is_exact(mode):
    """Quotients from 0 to 2^276, also of subnormals; C's fmod is exact."""
    random = np.random.default_rng(4)
    wide, near = spread(1e-45, 3.4e38), spread(1e-3, 1e3)
    x = np.concatenate([wide, near, even(-300.0, 300.0), np.float32(7.5) * np.arange(-1000, 1000, dtype=np.float32)])
    y = np.concatenate([random.permutation(wide), random.permutation(near), even(0.1, 3.0), np.full(2000, 2.5, np.float32)])
    if mode is plain:
        x, y = x[::700], y[::700]
    same_bits(mode("fmod", x, y), np.fmod(x, y), x, y)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@in_both_modes
@pytest.mark.parametrize("name", ["fmod", "power"])
def test_pairs_at_the_edges(name, mode):
    """Signs of zeros, infinities and nan as C99 says; also the largest quotients."""
    x, y = (part.ravel() for part in np.meshgrid(np.float32(PAIR_EDGES), np.float32(PAIR_EDGES)))
    found, wide = mode(name, x, y), {"fmod": np.fmod, "power": np.power}[name](x.astype(np.float64), y.astype(np.float64))
    expected = wide.astype(np.float32)
    if name == "power":  # other values have an error
        exact = np.isin(np.abs(expected), (0.0, 1.0, INF)) | np.isnan(expected)
        np.testing.assert_allclose(found, expected, rtol=2e-7, atol=2.0**-149)
        found, expected, x, y = (part[exact] for part in (found, expected, x, y))
    same_bits(found, expected, x, y)


def powers(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return bases and exponents whose powers spread over all of float32, subnormals too."""
    random = np.random.default_rng(5)
    bases = [abs(spread(1e-45, 3.4e38)), even(0.5, 2.0), even(0.70, 0.72), even(1.40, 1.42), even(0.999, 1.001), even(0.0, 10.0)]
    x = np.concatenate([random.choice(base, count) for base in bases])
    with np.errstate(divide="ignore"):
        y = (random.uniform(-150.0, 128.0, x.size) / np.log2(x.astype(np.float64))).astype(np.float32)
    y[-count:] = random.uniform(-5.0, 5.0, count)
    return x, y


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@in_both_modes
def test_power(mode):
    x, y = powers(500 if mode is plain else 200_000)
    found, expected = mode("power", x, y), np.power(x.astype(np.float64), y.astype(np.float64))
    held = (expected < 3.4028235e38) & (x > 0.0)
    assert in_ulps(np.abs(found - expected)[held], expected[held]) <= 1.3
    assert np.isinf(found[expected > 3.40283e38]).all()
    negative = np.abs(np.round(y)) < 2**24
    signed = mode("power", -x[negative], np.round(y[negative]))
    assert (np.signbit(signed) == (np.round(y[negative]) % 2 == 1)).all()


@pytest.mark.parametrize("name", [name for name in LOOPS if name != "sqrt"])
def test_a_loop_is_vectorised(name):
    """LLVM makes SIMD of it: the multiplications or comparisons are of vectors, of 4 numbers at least."""
    run = LOOPS[name]
    run(*(np.ones(64, np.float32),) * (3 if name in OF_TWO else 2))
    (code,) = run.inspect_llvm().values()
    assert re.search(r"<(4|8|16) x float>", code)
    assert not re.search(r"call [^@]*@(sinf|cosf|powf|fmodf|expf|logf|log10f)\b", code)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@in_both_modes
def test_atan2(mode):
    random = np.random.default_rng(3)
    for x in (spread(1e-15, 1e15), random.normal(size=400_000).astype(np.float32)):
        y = random.permutation(x)
        if mode is plain:
            x, y = x[::200], y[::200]
        expected = np.arctan2(y.astype(np.float64), x.astype(np.float64))
        assert in_ulps(np.abs(mode("atan2", y, x) - expected), expected) <= 2.0
    y, x = (part.ravel() for part in np.meshgrid(*2 * [np.float32([0.0, 1.0, -1.0, INF, -INF, NAN])]))
    np.testing.assert_allclose(mode("atan2", y, x), np.arctan2(y, x), rtol=2.4e-7)


def test_choices():
    values = [np.float32(v) for v in (-2.0, -0.5, 0.0, 0.5, 3.0, INF, -INF, NAN)]
    for transform in (lambda f: f, compiled):
        minimum, maximum, clip = (transform(f) for f in (warprun.math.minimum, warprun.math.maximum, warprun.math.clip))
        for a in values:
            np.testing.assert_array_equal(clip(a, np.float32(-1.0), np.float32(1.0)), np.clip(a, -1.0, 1.0))
            for b in values:
                np.testing.assert_array_equal(minimum(a, b), np.minimum(a, b))
                np.testing.assert_array_equal(maximum(a, b), np.maximum(a, b))
        where = transform(warprun.math.where)
        assert where(True, np.float32(1.0), np.float32(2.0)) == 1.0
        assert where(False, np.int32(1), np.int32(2)) == 2
        assert minimum(np.int32(3), np.int32(2)) == 2


def test_python_numbers_are_taken_as_float32():
    assert type(warprun.math.sin(0.5)) is np.float32
    assert warprun.math.cos(1) == warprun.math.cos(np.float32(1.0))


@pytest.mark.ptx
def test_ptx(monkeypatch):
    """No float64, no memory of a thread's own, no branch, no call: whatever the GPU."""
    import numba.cuda.dispatcher
    from numba import cuda, float32

    class Device:
        compute_capability = (8, 0)

    monkeypatch.setattr(numba.cuda.dispatcher, "get_current_device", lambda: Device, raising=False)
    functions = {name: kernel_function(getattr(warprun.math, name)) for name in (*LOOPS, "minimum", "clip")}

    def kernel_of(name):
        function = functions[name]

        def one(x, out):
            n = cuda.grid(1)
            out[n] = function(x[n])

        def two(x, out):
            n = cuda.grid(1)
            out[n] = function(x[n], out[n])

        def three(x, out):
            n = cuda.grid(1)
            out[n] = function(x[n], x[n], out[n])

        return three if name == "clip" else two if name in (*OF_TWO, "minimum") else one

    kernels = {name: kernel_of(name) for name in functions}
    for name, kernel in kernels.items():
        ptx, _ = cuda.compile_ptx(kernel, (float32[::1], float32[::1]), cc=(8, 0))
        instructions = [line.strip() for line in ptx.splitlines() if line.startswith("\t")]
        for word in (".f64", ".local", "bra ", "call"):
            assert not [line for line in instructions if word in line], (name, word)
