"""Expected times: what bounds a kernel, iterations counted at small sizes, and the command."""

import subprocess
import sys

import pytest

from tests.ptx import counts, expected, times
from tests.ptx.build import NEEDED
from tests.ptx.counts import Executed, Iteration
from tests.ptx.expected import seconds
from tests.simulation.rollouts import ROOT

pytestmark = NEEDED

COMMAND = (sys.executable, "-m", "tests.ptx.times")


def test_a_kernel_takes_as_long_as_its_busiest_unit() -> None:
    a_second = 132 * 4 * 1.98e9
    busy = {"issued": 0.69 * a_second}, {"mma": a_second / 6.5}, {"mufu": a_second / 8}, {"longest": 1.98e9 / 4}, {"bytes": 4.8e12}
    for busiest in busy:
        one_each = {"issued": 1.0, "longest": 1.0} | busiest
        assert seconds(Executed(1, **one_each), sass_per_ptx=1.0, cycles=4.0) == pytest.approx(1.0)


def assert_close(found: Iteration, exact: Iteration) -> None:
    for part, exactly in zip(found, exact, strict=True):
        assert part.keys() == exactly.keys()
        for name, kernel in part.items():
            assert kernel.launches == pytest.approx(exactly[name].launches), name
            # Loops of small kernels over a few blocks do not grow evenly.
            assert kernel.issued == pytest.approx(exactly[name].issued, rel=0.03 if name in expected.COMPUTING else 0.2), name


@pytest.mark.long
def test_iterations_of_more_environments_follow_from_two_small_ones() -> None:
    few, many, exact = (counts.iteration("a2c", n_envs) for n_envs in (64, 128, 256))
    assert_close(many.beyond(few, 3.0), exact)


@pytest.mark.slow
def test_more_minibatches_follow_from_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "SATURATED", 528)
    assert_close(counts.ppo(1, 4)(2_112), counts.iteration("ppo", 2_112, epochs=1, minibatches=4))


def test_the_command_answers_before_it_imports_what_takes_seconds() -> None:
    said = "import sys, tests.ptx.times; print({'torch', 'numba', 'pytest'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", said], cwd=ROOT, text=True) == "set()\n"
    told = subprocess.check_output([*COMMAND, "--help"], cwd=ROOT, text=True)
    assert all(f"  {name} " in told for name in times.PARTS)
    wrong = subprocess.run([*COMMAND, "a3c"], cwd=ROOT, text=True, capture_output=True)
    assert wrong.returncode == 2
    assert "no part 'a3c': give a2c, ppo, " in wrong.stderr


def test_the_command_has_all_parts() -> None:
    assert list(times.PARTS) == list(expected.PARTS)
