"""The kernels of recurrent layers, as PTX on the CPU: what float64 gives, in any order of threads, no hazard, and lean code."""

import copy
import re
from functools import partial

import numpy as np
import pytest
from numba import typeof

from tests.kernels.test_ptx import compiled, instructions, no_device_needed, product_overhead  # noqa: F401
from tests.learning.cpu.test_recurrent import computed, made
from tests.ptx.build import CAPABILITY, NEEDED
from tests.ptx.learning import Found, check, numbers, on_machine
from tests.ptx.machine import Kind, Order
from tests.ptx.mistakes import Mistake
from tests.ptx.rolling import clear, difference, machine, wrong_in
from warprun.learning.kernels.cuda import recurrent, recurrent_tensor

pytestmark = NEEDED

TOLERANCE = 1e-5
CASES = {
    f"{kind}, {name}": (kind, *sizes)
    for kind in ("lstm", "gru")
    for name, sizes in {
        "one step": ((16,), None, 1, 1, 1),
        "two layers": ((32, 48), None, 5, 3, 1),
        "blocks that are not full": ((64,), 2, 4, 45, 2),
        "two threads share a sum": ((64,), None, 3, 12, 1),
    }.items()
}
"""Type; units, steps after which all is forgotten, steps, sequences, multiprocessors."""
BY_DEFAULT = ("lstm, two layers", "gru, blocks that are not full")


def part(kind: str, units: tuple[int, ...], sequence: int | None, steps: int, count: int, processors: int) -> Found:
    """Compute outputs, carries and gradients by the kernels, relative to the largest of each, and by torch in float64."""
    network = made(kind, sequence, units)
    exact = computed(copy.deepcopy(network).double(), steps, count)
    network.over_steps = recurrent.layer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recurrent, "multiprocessors", lambda device: processors)
        for module in (recurrent, recurrent_tensor):
            patch.setattr(module, "kernel_module", module.kernel_module.__wrapped__)  # whose kernels run on the machine
        found = computed(network, steps, count)
    relative = [[tensor / whole.abs().max() for tensor, whole in zip(each, exact, strict=True)] for each in (found, exact)]
    arrays = [numbers((str(n), tensor) for n, tensor in enumerate(each)) for each in relative]
    return arrays[0], arrays[1]


@pytest.mark.parametrize("name", [name if name in BY_DEFAULT else pytest.param(name, marks=pytest.mark.long) for name in CASES])
def test_kernels_compute_what_float64_does(name: str) -> None:
    assert check(partial(part, *CASES[name])) == []


BARRIER = "cuda.syncthreads()"
PLANTED = [
    ("gru, two layers", Mistake("no barrier before the formulas", BARRIER, "pass", nth=1), Kind.READ_OF_ANOTHERS_WRITE),
    ("gru, two layers", Mistake("no barrier before the next product", BARRIER, "pass", nth=2), Kind.READ_OF_ANOTHERS_WRITE),
    ("gru, two layers", Mistake("no barrier before the product of slopes", BARRIER, "pass", nth=4), Kind.READ_OF_ANOTHERS_WRITE),
    ("gru, two layers", Mistake("no barrier before slopes are replaced", BARRIER, "pass", nth=5), Kind.WRITE_OF_WHAT_ANOTHER_READS),
    ("gru, two layers", Mistake("no barrier after slopes are replaced", BARRIER, "pass", nth=6), Kind.READ_OF_ANOTHERS_WRITE),
    ("gru, blocks that are not full", Mistake("columns without a sequence", "if column < n:", "if True:"), Kind.OUT_OF_BOUNDS),
    ("gru, two layers", Mistake("an episode goes on", "goes_on(given, t + 1, begin + column)", "t + 1 < given.steps"), "numbers"),
]


@pytest.mark.parametrize(("case", "mistake", "by"), PLANTED, ids=[mistake.name for _, mistake, _ in PLANTED])
def test_mistakes_are_caught(case: str, mistake: Mistake, by: Kind | str) -> None:
    clear(machine())
    found, exact = on_machine(partial(part, *CASES[case]), Order.RANDOM, mistake=mistake)
    assert mistake.made
    kinds = {finding.kind for finding in wrong_in(machine())}
    assert by in kinds | ({"numbers"} if difference(exact, found, TOLERANCE) else set())


@pytest.mark.parametrize(("columns", "shares"), [(28, 1), (4, 4)])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_kernels_compile_to_lean_ptx(kind: str, columns: int, shares: int) -> None:
    module = recurrent.kernel_module(kind, columns, shares)
    for kernel, given in ((module.forward, recurrent.Forward), (module.backward, recurrent.Backward)):
        arguments = given(*[np.zeros(1, np.float32)] * (len(given._fields) - 3), 1, 1, 1)
        ptx = compiled(kernel.py_func, (typeof(arguments),), CAPABILITY)
        text = instructions(ptx)
        for unwanted in (r"\.local\b", r"\bcall\b", r"\.f64\b", r"\batom"):
            assert not re.search(unwanted, text), f"{unwanted} in {kernel.py_func.__name__}"
        # 12 loads for 32 multiply-adds, addresses and the count.
        assert product_overhead(ptx, "fma.rn.f32", 32) < 2.0
