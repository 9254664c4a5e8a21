"""Counter-based draws: the published Philox numbers, distributions, independence; the same bits in plain Python and compiled."""

from types import FunctionType

import numpy as np
import pytest
from numba import njit
from scipy import stats

from tests.compiled import compiled
from warprun import random
from warprun.kernels.compile import FLAGS
from warprun.random import Rng
from warprun.state import derived_seed

u, f = np.uint32, np.float32
philox, bits, uniform, randint, normal = map(compiled, (random.philox, random.bits, random.uniform, random.randint, random.normal))

# Counter, key, result: file kat_vectors of the Random123 distribution, lines "philox4x32 10".
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


def source(seed=(7, 0), environment=0, step=0, purpose=random.STEP, actor=0) -> Rng:
    return Rng(u(seed[0]), u(seed[1]), u(environment), u(step), u(purpose << 24 | actor))


@njit(**FLAGS)
def fill(draw, rng, first, last, low, high, out):
    """Fill out[environment, index] with uniform draws of these environments."""
    for n in range(out.shape[0]):
        place = Rng(rng.seed_low, rng.seed_high, u(rng.environment + n), rng.step, rng.source)
        for index in range(first, last):
            out[n, index - first] = draw(place, index, low, high)


def uniforms(rng: Rng, n_envs: int, n_draws: int, low=0.0, high=1.0) -> np.ndarray:
    out = np.empty((n_envs, n_draws), np.float32)
    fill(uniform, rng, 0, n_draws, np.float32(low), np.float32(high), out)
    return out


@pytest.mark.parametrize("counter, key, expected", KNOWN)
@pytest.mark.parametrize("function", [random.philox, philox], ids=["plain", "compiled"])
def test_known_answers(function, counter, key, expected):
    assert tuple(int(word) for word in function(*(u(c) for c in counter), *(u(k) for k in key))) == expected


def test_plain_and_compiled_agree_and_have_the_types_of_kernels():
    for environment in (0, 1, 12345, 0xFFFFFFFF):
        rng = source((0x89ABCDEF, 0x1234567), environment, 3, random.ACTION, 51)
        for index in range(9):
            assert int(random.bits(rng, index)) == int(bits(rng, index))
            low, high = np.float32(-1.5), np.float32(2.0)
            assert random.uniform(rng, index, low, high) == pytest.approx(uniform(rng, index, low, high), abs=3e-7)
            assert random.randint(rng, index, 6) == randint(rng, index, 6)
            assert random.normal(rng, index) == pytest.approx(normal(rng, index), rel=2e-6, abs=2e-6)
    drawn = (random.bits(rng, 0), random.uniform(rng, 0, -1.0, 1.0), random.randint(rng, 0, 5), random.normal(rng, 0))
    assert [*map(type, drawn)] == [np.uint32, np.float32, np.int32, np.float32]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.0, 5.0)])
def test_uniform(low, high):
    x = uniforms(source(), 20_000, 12, low, high)
    assert low <= x.min() and x.max() < high
    for column in x.T:
        assert stats.kstest(column, "uniform", args=(low, high - low)).pvalue > 1e-3
    correlations = np.corrcoef(x.T)[np.triu_indices(12, 1)]  # of standard deviation 1 / sqrt(20000) = 0.0071
    assert np.abs(correlations).max() < 0.032


BOUNDS = [(-1e-38, 1e-38), (0.0, 1e-45), (-1e-45, 0.0), (-1e-45, 1e-45), (1e-45, 3e-45), (-3.4028235e38, 3.4028235e38), (-1e-40, 0.0)]
BOUNDS += [(0.0, 1.0), (-1.0, 0.0), (-1.0, 1.0), (16777215.0, 16777216.0), (16777216.0, 16777218.0), (1.0, 1.0000001), (-0.6, -0.4)]
BOUNDS += [(-1.0000001, -1.0), (3.0, 3.4028235e38), (-3.4028235e38, -3.4028233e38), (-5.0, -0.0), (100.0, 100.00002)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_uniform_stays_below_the_upper_bound(monkeypatch):
    """For the largest draw of all, the least and others, plain and compiled; of pairs near and far apart."""
    plain = random.uniform

    def bits_as_told(rng, index):
        return u(index)

    monkeypatch.setattr(random, "bits", bits_as_told)
    told = compiled(FunctionType(plain.__code__, random.__dict__, "told"))
    generator = np.random.default_rng(8)
    ends = generator.integers(0, 0x7F800000, (300, 2), dtype=np.int32).view(np.float32) * generator.choice(np.float32([-1, 1]), (300, 2))
    near = np.stack([ends[:, 0], np.nextafter(ends[:, 0], np.float32(np.inf))], 1)
    pairs = [sorted(pair) for pair in np.concatenate([np.float32(BOUNDS), ends, near]).tolist() if pair[0] != pair[1]]
    for low, high in np.float32(pairs):
        for drawn in (0xFFFFFFFF, 0xFFFFFEFF, 0x80000000, 0x123456FF, 0):
            for function in (plain, told):
                found = function(source(), u(drawn), low, high)
                assert low <= found < high, (low, high, drawn, found)
                share = (drawn >> 8) * 2.0**-24
                expected = float(low) + (float(high) - float(low)) * share
                largest = float(max(abs(low), abs(high)))
                assert abs(float(found) - expected) <= 2e-7 * largest + 3e-45
    for equal in (-3.3, 0.0, 0.3, 3.4028235e38):
        assert all(function(source(), u(0xFFFFFFFF), f(equal), f(equal)) == f(equal) for function in (plain, told))


def test_every_word_of_the_counter_and_key_counts():
    """One changed purpose, actor, step, environment or half of the seed: other draws, uncorrelated with the first."""
    base, *environments = uniforms(source(), 8, 20_000)
    assert np.abs(np.corrcoef([base, *environments])[np.triu_indices(8, 1)]).max() < 0.032
    others = [source(purpose=p) for p in range(5) if p != random.STEP]
    others += [source(actor=1), source(step=1), source(environment=1), source(seed=(8, 0)), source(seed=(7, 1))]
    for rng in others:
        other = uniforms(rng, 1, 20_000).ravel()
        assert np.mean(other == base) < 1e-3
        assert abs(np.corrcoef(base, other)[0, 1]) < 0.032
        assert stats.ks_2samp(base, other).pvalue > 1e-3


def test_randint():
    @njit(**FLAGS)
    def count(rng, n, draws):
        counts = np.zeros(n, np.int64)
        for index in range(draws):
            counts[randint(rng, index, n)] += 1
        return counts

    for n in (1, 2, 7, 1000):
        counts = count(source(), n, 100_000)
        assert counts.min() > 0
        if n > 1:
            assert stats.chisquare(counts).pvalue > 1e-3


def test_normal():
    @njit(**FLAGS)
    def draw(rng, out):
        for index in range(out.size):
            out[index] = normal(rng, index)

    x = np.empty(200_000, np.float32)
    draw(source(), x)
    assert np.isfinite(x).all()
    assert stats.kstest(x, "norm").pvalue > 1e-3
    assert abs(stats.kurtosis(x)) < 0.05
    assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 0.01


# Seeds of the parts of a run ------------------------------------------------------------------------------------------


def test_seeds_of_purposes_fit_into_an_int64_and_do_not_meet() -> None:
    assert derived_seed(0, "evaluation") == 6070859771558012766  # in every process
    purposes = [(), ("evaluation",), ("shuffle",), ("group", 0), ("group", 1), ("replay", 3)]
    found = {derived_seed(seed, *purpose) for seed in (*range(1000), 2**63, 2**64 - 1) for purpose in purposes}
    assert len(found) == 1002 * len(purposes)
    assert all(0 <= seed < 2**63 for seed in found)
