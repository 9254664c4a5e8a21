"""The kernels of recurrent layers, as PTX on the CPU: what float64 gives, in any order of threads, no hazard, and lean code."""

import copy
import itertools
import re
from collections.abc import Callable
from functools import partial
from types import ModuleType

import numpy as np
import pytest
import torch
from numba import typeof

from tests.kernels.test_ptx import compiled, instructions, no_device_needed, product_overhead  # noqa: F401
from tests.learning.cpu.test_recurrent import computed, made
from tests.ptx import project
from tests.ptx.build import CAPABILITY, NEEDED
from tests.ptx.learning import Found, check, numbers, on_machine
from tests.ptx.machine import Kind, Order
from tests.ptx.mistakes import Mistake
from tests.ptx.project import DEVICE, on
from tests.ptx.rolling import clear, difference, machine, wrong_in
from tests.ptx.test_tensor_layers import PROMISED
from warprun.config.compose import compose
from warprun.kernels import mlp_tensor
from warprun.learning.kernels.cuda import recurrent, recurrent_check
from warprun.learning.kernels.cuda import recurrent_slopes as slopes
from warprun.learning.kernels.cuda import recurrent_tensor as tensor
from warprun.learning.recurrent import CELLS
from warprun.runs import build as run_parts
from warprun.simulation import cuda_layers

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
        "as many units as tensor cores compute": ((256,), None, 2, 17, 1),
    }.items()
}
"""Type; units, steps after which all is forgotten, steps, sequences, multiprocessors."""
BY_DEFAULT = (("lstm, two layers", True), ("gru, blocks that are not full", True), ("gru, two layers", False))
"""Case; whether on tensor cores."""
WITHOUT_TENSOR_CORES = (7, 5)


def part(kind: str, units: tuple[int, ...], sequence: int | None, steps: int, count: int, processors: int) -> Found:
    """Compute outputs, carries and gradients by the kernels, relative to the largest of each, and by torch in float64."""
    network = made(kind, sequence, units)
    exact = computed(copy.deepcopy(network).double(), steps, count)
    network.over_steps = recurrent.layer
    with pytest.MonkeyPatch.context() as patch:
        use_the_machine(patch, processors)
        found = computed(network, steps, count)
    relative = [[tensor / whole.abs().max() for tensor, whole in zip(each, exact, strict=True)] for each in (found, exact)]
    arrays = [numbers((str(n), tensor) for n, tensor in enumerate(each)) for each in relative]
    return arrays[0], arrays[1]


def use_the_machine(patch: pytest.MonkeyPatch, processors: int) -> None:
    """Let layers have kernels of their own, which are made where they run."""
    for module in (recurrent, slopes):
        patch.setattr(module, "multiprocessors", lambda device: processors)
    for module in (recurrent, tensor):
        patch.setattr(module, "kernel_module", module.kernel_module.__wrapped__)
    patch.setattr(tensor, "sources", tensor.sources.__wrapped__)
    patch.setattr(slopes, "weight_slopes_of", slopes.WeightSlopes)


@pytest.mark.parametrize(
    ("name", "tensor_cores"),
    [pytest.param(*case, marks=() if case in BY_DEFAULT else pytest.mark.long) for case in itertools.product(CASES, (True, False))],
)
def test_kernels_compute_what_float64_does(name: str, tensor_cores: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not tensor_cores:
        monkeypatch.setattr(project, "CAPABILITY", WITHOUT_TENSOR_CORES)
    assert check(partial(part, *CASES[name])) == []


BARRIER = "cuda.syncthreads()"
IN_FLOAT32 = [
    ("gru, two layers", Mistake("no barrier before the formulas", BARRIER, "pass", nth=1), Kind.READ_OF_ANOTHERS_WRITE),
    ("gru, two layers", Mistake("no barrier before the next product", BARRIER, "pass", nth=2), Kind.READ_OF_ANOTHERS_WRITE),
    ("gru, two layers", Mistake("no barrier before the product of slopes", BARRIER, "pass", nth=4), Kind.READ_OF_ANOTHERS_WRITE),
    ("gru, two layers", Mistake("no barrier before slopes are replaced", BARRIER, "pass", nth=5), Kind.WRITE_OF_WHAT_ANOTHER_READS),
    ("gru, two layers", Mistake("no barrier after slopes are replaced", BARRIER, "pass", nth=6), Kind.READ_OF_ANOTHERS_WRITE),
    ("gru, blocks that are not full", Mistake("columns without a sequence", "if column < n:", "if True:"), Kind.OUT_OF_BOUNDS),
    ("gru, two layers", Mistake("an episode goes on", "goes_on(given, t + 1, begin + column)", "t + 1 < given.steps"), "numbers"),
]


LSTM, GRU, LSTM_ROWS, GRU_ROWS = "lstm, two layers", "gru, two layers", "lstm, blocks that are not full", "gru, blocks that are not full"
ON_TENSOR_CORES = [
    (LSTM, Mistake("no barrier before the product", f"{BARRIER}\n        output", "output"), Kind.READ_OF_ANOTHERS_WRITE),
    (LSTM, Mistake("no barrier after slopes", f"later))\n        {BARRIER}", "later))"), Kind.WRITE_OF_WHAT_ANOTHER_READS),
    (GRU, Mistake("no barrier before the product of slopes", "barrier()", "pass", tensor.gru_backward), Kind.READ_OF_ANOTHERS_WRITE),
    (LSTM, Mistake("one place for what is remembered", "t % 2 * UNITS", "0"), Kind.WRITE_OF_WHAT_ANOTHER_READS),
    (GRU, Mistake("columns without a sequence", "left = count - row", "left = COLUMNS", nth=0), Kind.OUT_OF_BOUNDS),
    (LSTM, Mistake("keeps of other sequences", "at = t * count + row\n        keeps", "at = t * count\n        keeps"), "numbers"),
    (LSTM, Mistake("keeps of the step before", "keeps_of(given, at, left)", "keeps_of(given, max(at - count, row), left)"), "numbers"),
    (LSTM, Mistake("slopes of the first step", "(UNITS, given.slope, at *", "(UNITS, given.slope, row *"), "numbers"),
    (LSTM, Mistake("gates exchanged", "i + f + new + o, given.gates", "f + i + new + o, given.gates", tensor.lstm_forward), "numbers"),
    (GRU, Mistake("gates exchanged backward", "gates[0:8], gates[8:16]", "gates[8:16], gates[0:8]", tensor.gru_backward), "numbers"),
    (LSTM, Mistake("weights of another gate", "steps * steps * STEP", "steps * STEP", tensor.past_products), "numbers"),
    (LSTM, Mistake("terms of another lane", "(first + lane % 4)", "(first + lane % 2)", tensor.past_products), "numbers"),
    (GRU, Mistake("a gate's slopes twice", "// 2 * STRIDE, units * STRIDE", "// 2 * STRIDE, 0", tensor.past_slopes), "numbers"),
    (LSTM, Mistake("a gate without slopes", "(x + y) + (z + w)", "(x + y) + z", tensor.sum_of_four), "numbers"),
    (LSTM, Mistake("cells of the step after", "number - given.sequences * units", "number", tensor.lstm_backward), "numbers"),
    (LSTM, Mistake("no rests of the slopes", "units // 2 * STRIDE", "0", tensor.past_slopes), "numbers"),
    (LSTM, Mistake("words of another lane", "unit // ROWS * 8", "unit // ROWS * 4", tensor.keep_words), "numbers"),
    (GRU, Mistake("no rests of the weights", "part == 1", "part == 2", mlp_tensor._words), "numbers"),
    (GRU_ROWS, Mistake("no barrier before a tile", f"{BARRIER}\n        n = min", "n = min"), Kind.WRITE_OF_WHAT_ANOTHER_READS),
    (GRU_ROWS, Mistake("no barrier behind a tile", f"{BARRIER}\n        for", "for"), Kind.READ_OF_ANOTHERS_WRITE),
    (LSTM_ROWS, Mistake("rows of another tile", "n = min(COLUMNS, rows - begin)", "n = COLUMNS"), Kind.OUT_OF_BOUNDS),
    (LSTM_ROWS, Mistake("slopes of the first gate", "(begin * GATES + gate) * UNITS", "begin * GATES * UNITS"), "numbers"),
    (GRU_ROWS, Mistake("the past's slopes are the gate's", "gate == OWN", "gate < 0"), "numbers"),
    (LSTM_ROWS, Mistake("the last tile instead of all", "fresh = False", "pass"), "numbers"),
    (GRU_ROWS, Mistake("slopes of the inputs alone", "(2 * gate, 2 * gate + 2)", "(2 * gate, 2 * gate + 1)"), "numbers"),
]
DEFAULT = {"gates exchanged", "no rests of the weights", "the last tile instead of all"}


@pytest.mark.parametrize(
    ("case", "mistake", "by"),
    [pytest.param(*each, id=each[1].name, marks=() if each[1].name in DEFAULT else pytest.mark.long) for each in ON_TENSOR_CORES],
)
def test_mistakes_on_tensor_cores_are_caught(case: str, mistake: Mistake, by: Kind | str) -> None:
    assert_caught(case, mistake, by)


def check_error(kind: str, inputs: int, units: int, mistake: Mistake | None = None) -> float:
    """Return the error that the check before a run finds."""
    clear(machine())
    with pytest.MonkeyPatch.context() as patch, on(machine(), mistake):
        use_the_machine(patch, processors=2)
        return recurrent_check.tensor_core_error(kind, inputs, units, torch.device("cpu"))


@pytest.mark.parametrize(
    ("kind", "inputs", "units"), [("lstm", 5, 16), ("gru", 20, 48), *[pytest.param(k, 64, 256, marks=pytest.mark.long) for k in CELLS]]
)
def test_the_check_before_their_first_use_finds_them_right(kind: str, inputs: int, units: int) -> None:
    draws = torch.random.get_rng_state()
    assert check_error(kind, inputs, units) < PROMISED
    assert wrong_in(machine()) == []
    assert torch.equal(torch.random.get_rng_state(), draws)


WRONG_FRAGMENT = Mistake("registers of A exchanged", "(register % 2)", "(register // 2)", mlp_tensor._words)
UNSEEN = "the last tile instead of all"
"""A check of a few rows has one tile."""
OF_CHECK = [(LSTM, WRONG_FRAGMENT), *[each[:2] for each in ON_TENSOR_CORES if each[2] == "numbers" and each[1].name != UNSEEN]]
OF_CHECK_DEFAULT = {WRONG_FRAGMENT.name, "slopes of the inputs alone"}


@pytest.mark.parametrize(
    ("case", "mistake"),
    [pytest.param(*each, id=each[1].name, marks=() if each[1].name in OF_CHECK_DEFAULT else pytest.mark.long) for each in OF_CHECK],
)
def test_the_check_finds_mistakes(case: str, mistake: Mistake) -> None:
    made = mistake.made
    assert not check_error(CASES[case][0], 40, 48, mistake) < cuda_layers.TOLERANCE
    assert mistake.made > made


def test_a_run_computes_layers_in_float32_that_the_check_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[tuple[str | int, ...]] = []

    def wrong(*given: str | int) -> float:
        checked.append(given[:3])
        return float("nan")

    monkeypatch.setattr(cuda_layers, "_refused", {})
    monkeypatch.setattr(cuda_layers, "tensor_core_error", lambda device: 0.0)
    monkeypatch.setattr(recurrent_check, "tensor_core_error", wrong)
    monkeypatch.setattr(run_parts, "choose", lambda device: DEVICE)
    with on(machine()):
        for network in ("gru", "mlp"):
            config = compose(["env=cartpole", "agent=a2c", f"agent.network={network}", "agent.network.hidden=[24]", "device=cpu"])
            plan = run_parts.set_up(config).plan
            told = "the tensor cores of this GPU are nan off, with at most 1e-04 expected"
            assert (f"recurrent layers by kernels in float32 ({told})" in str(plan)) == (network == "gru")
            assert not plan.no_tensor_cores
    assert checked == [("gru", 24, 64)]


@pytest.mark.parametrize(("case", "mistake", "by"), IN_FLOAT32, ids=[mistake.name for _, mistake, _ in IN_FLOAT32])
def test_mistakes_in_float32_are_caught(case: str, mistake: Mistake, by: Kind | str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "CAPABILITY", WITHOUT_TENSOR_CORES)
    assert_caught(case, mistake, by)


def assert_caught(case: str, mistake: Mistake, by: Kind | str) -> None:
    clear(machine())
    found, exact = on_machine(partial(part, *CASES[case]), Order.RANDOM, mistake=mistake)
    assert mistake.made
    kinds = {finding.kind for finding in wrong_in(machine())}
    assert by in kinds | ({"numbers"} if difference(exact, found, TOLERANCE) else set())


@pytest.mark.parametrize(
    ("module", "instruction", "products", "overhead"),
    [
        # 12 loads for 32 multiply-adds, addresses and the count.
        *(
            (partial(recurrent.kernel_module, kind, *sizes), "fma.rn.f32", 32, 2.0)
            for kind in ("lstm", "gru")
            for sizes in ((28, 1), (4, 4))
        ),
        # Moves of PTX among them, which the assembler leaves out.
        *((partial(tensor.kernel_module, kind, 64), "mma.sync", 18, 14.0) for kind in ("lstm", "gru")),
    ],
)
def test_kernels_compile_to_lean_ptx(module: Callable[[], ModuleType], instruction: str, products: int, overhead: float) -> None:
    made = module()
    for kernel, given in ((made.forward, recurrent.Forward), (made.backward, recurrent.Backward)):
        arguments = given(*[np.zeros(1, np.float32)] * (len(given._fields) - 3), 1, 1, 1)
        ptx = compiled(kernel.py_func, (typeof(arguments),), CAPABILITY)
        text = instructions(ptx)
        for unwanted in (r"\.local\b", r"\bcall\b", r"\.f64\b", r"\batom"):
            assert not re.search(unwanted, text), f"{unwanted} in {kernel.py_func.__name__}"
        assert product_overhead(ptx, instruction, products) < overhead
