"""Every CUDA kernel of every environment, compiled without a GPU: no float64, no local memory, no calls.

What is read is what a GPU gets: with nvJitLink (extra `ptx`) the code after it has optimised a kernel at link time, as Numba has it do.
"""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numba import cuda, typeof

from tests.selection import few
from tests.simulation.rollouts import CASES
from warprun.checking.machine_code import instructions
from warprun.kernels import compile as kernels
from warprun.kernels.mlp_cuda import BlockInference, BlockNetwork
from warprun.simulation import allocation as store
from warprun.simulation import cuda_layers, trajectory
from warprun.simulation.allocation import StepArguments, actions_of, allocate_step
from warprun.simulation.arrays import ArrayPlan
from warprun.simulation.codegen.program import write
from warprun.simulation.codegen.targets import target_for
from warprun.simulation.cpu import as_numpy
from warprun.simulation.kernel_module import compiler_options, typed

CAPABILITIES = ((7, 5), (8, 0), (9, 0))


try:
    from cuda.core import Linker, LinkerOptions, ObjectCode
    from numba.cuda.cudadrv.driver import _have_nvjitlink
except ImportError:  # then nothing compiles, and every test is skipped
    pass


pytestmark = pytest.mark.ptx


@pytest.fixture(autouse=True)
def no_device_needed(monkeypatch):
    """Let numba-cuda compile without a GPU, whose capability it would ask for."""
    monkeypatch.setattr("numba.cuda.dispatcher.get_current_device", lambda: SimpleNamespace(compute_capability=(8, 0)))


def program(case):
    """Return the kernel module of a case, and the types of what `rollout` takes."""
    environment, vary = CASES[case].environment, tuple(name for name, _ in CASES[case].vary)
    policies = CASES[case].policies if CASES[case].exploration else "sampled"
    plan = ArrayPlan(environment, target_for(environment, "cuda"), 2, 4, vary, policies, staggered=CASES[case].staggered)
    written = write(plan, case)
    module = kernels.load_module(case, written.source, written.functions | compiler_options("cuda") | {"CACHE": False})
    cpu = torch.device("cpu")
    exploration = {group.name: torch.zeros(3) for group in environment.groups} if plan.explores else {}
    scalars = scalars_of(environment)
    arrays, taken = store.allocate(plan, cpu, exploration), trajectory.allocate(environment.spec, 4, 2, cpu)
    values = store.kernel_values(arrays, taken, scalars)
    types = tuple(typeof(getattr(module, name)(**{n: as_numpy(v) for n, v in given.items()})) for name, given in values.items())
    row, rows = np.zeros(1, np.float32), np.zeros((1, 7), np.int32)
    network = BlockInference(BlockNetwork(row, rows, 4, 4, 0, 1, 1, 0, True, row, row), row)
    now, inferences = typeof(np.uint32(0)), [typeof(network) for _ in environment.groups]
    return module, (typeof(1), typeof(True), now, *types, *inferences)


def scalars_of(environment):
    """Return the fields of `Common` that are no arrays."""
    scalars = {"n_envs": 2, "first_env": np.uint32(0), "seed_low": np.uint32(0), "seed_high": np.uint32(0)}
    scalars |= {"p": typed(environment.params())} if environment.params._fields else {}
    scalars |= {"time_limit": np.int32(environment.time_limit)} if environment.time_limit else {}
    return scalars | ({"tables": environment.tables(**environment.options)} if environment.tables else {})


def product_overhead(ptx, instruction, least):
    """Return the instructions for each product in the leanest loop of `least` or more: the inner one of `mlp_cuda.tall_outputs`, or that of
    `mlp_tensor.add_products`."""
    lines = [line.split("//")[0].strip() for line in ptx.splitlines()]
    begins = {line[:-1]: n for n, line in enumerate(lines) if line.endswith(":")}
    found = []
    for end, line in enumerate(lines):
        target = re.search(r"\bbra(?:\.uni)?\s+(\S+);", line)
        if target and begins.get(target[1], end) < end:
            body = [line for line in lines[begins[target[1]] + 1 : end + 1] if line]
            products = sum(instruction in line for line in body)
            found += [len(body) / products] if products >= least else []
    return min(found)


@pytest.mark.parametrize("case", few(["cartpole", "market", "crane", "pendulum"], "cartpole"))
def test_kernels_of_callers_compile_to_lean_ptx(case):
    environment, vary = CASES[case].environment, tuple(name for name, _ in CASES[case].vary)
    plan = ArrayPlan(environment, target_for(environment, "cuda"), 2, 1, vary, by_caller=True)
    written = write(plan)
    module = kernels.load_module(case, written.source, written.functions | compiler_options("cuda") | {"CACHE": False})
    given = StepArguments(module, store.allocate(plan, torch.device("cpu"), {}), scalars_of(environment), as_numpy)
    step = allocate_step(plan, actions_of(plan, np.zeros), np.zeros)
    signature = (typeof(1), typeof(np.uint32(0)), *map(typeof, given.of(step)))
    for kernel in ("reset", "advance"):
        lean_ptx(kernel, module, signature, (8, 0))


def often(case, capability):
    """Return a combination that is always tested, or else marked as slow: a rollout holds all kernels, and takes seconds."""
    marks = () if case in ("cartpole", "crane") and capability == (8, 0) else pytest.mark.slow
    return pytest.param(case, capability, marks=marks, id=f"{case} {capability[0]}.{capability[1]}")


@pytest.mark.by_default(1)
@pytest.mark.parametrize(("case", "capability"), [often(case, capability) for case in CASES for capability in CAPABILITIES])
def test_rollouts_compile_to_lean_ptx(case, capability, monkeypatch):
    monkeypatch.setattr(cuda_layers, "capability", lambda: capability)
    module, signature = program(case)
    ptx = lean_ptx("rollout", module, signature, capability)
    if capability < cuda_layers.NEEDED:
        # 12 loads for 32 multiply-adds, addresses and the count; with an index that may be negative each load has six more.
        assert product_overhead(ptx, "fma.rn.f32", 32) < 2.2
    else:
        # 16 loads and 40 instructions that split 16 numbers for 24 products of 16 x 8 x 16.
        assert product_overhead(ptx, "mma.sync", 24) < 4.0


def compiled(function, signature, capability):
    """Return the PTX of a kernel, after the optimisation at link time if nvJitLink is there."""
    if not _have_nvjitlink():
        return cuda.compile_ptx(function, signature, cc=capability)[0]
    code, _ = cuda.compile(function, signature, cc=capability, device=False, abi="numba", output="ltoir")
    options = LinkerOptions(arch=f"sm_{capability[0]}{capability[1]}", link_time_optimization=True, ptx=True)
    linker = Linker(ObjectCode.from_ltoir(code), options=options)
    try:
        return bytes(linker.link("ptx").code).decode().rstrip("\0")
    finally:
        linker.close()


def lean_ptx(kernel, module, signature, capability):
    """Compile a kernel, and return its PTX if it has nothing that is slow on a GPU."""
    ptx = compiled(getattr(module, kernel).py_func, signature, capability)
    text = instructions(ptx)
    for unwanted in (r"\.f64\b", r"\.local\b", r"\bcall\b"):
        assert not re.search(unwanted, text), f"{unwanted} in {kernel} for {capability}"
    assert re.search(r"\.f32\b", text)
    return ptx
