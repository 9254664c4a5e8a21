"""The kernel module of an environment: written, checked, compiled or plain, with parameters and tables in the types of kernels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, MappingProxyType, ModuleType
from typing import TYPE_CHECKING, NamedTuple, cast, overload

import numpy as np
from numba.core.errors import NumbaError

from warprun.errors import UserError
from warprun.kernels import compile as kernels  # sets up Numba, so it comes before numba itself
from warprun.kernels import waiting
from warprun.kernels.check import check_functions, check_language, check_variables, explain
from warprun.kernels.driver import available_memory
from warprun.simulation.arrays import ArrayPlan
from warprun.simulation.codegen.program import write
from warprun.simulation.plain import Named, OfRun, PlainEnvironment
from warprun.simulation.trial import out_of_bounds, try_out

if TYPE_CHECKING:
    from warprun.simulation.device import Device


NEGLIGIBLE_BYTES = 1 << 25
"""Arrays of this size are allocated without asking for the free memory: to import torch takes ten times as much."""


@dataclass(frozen=True)
class KernelModule:
    """The kernels of an environment for a device."""

    module: ModuleType
    functions: list[FunctionType]
    """Functions of the environment that kernels call."""
    values: dict[str, object]
    """Parameters `p`, `tables` and the time limit, as fields of `Common`."""
    of_run: OfRun
    """Parameters, tables and randomization, as `PlainEnvironment` takes them."""


def load(
    plan: ArrayPlan,
    name: str,
    device: Device,
    *,
    params: NamedTuple,
    tables: NamedTuple | None,
    vary: Mapping[str, tuple[float, float]],
    announce: Callable[[str], None],
    auto_reset: bool = True,
    checks: bool = True,
) -> KernelModule:
    """Write and import the kernel module of a plan; its functions are compiled or plain, depending on the device.

    Before an environment is compiled for the first time its functions are checked and tried out if `checks`, and `announce` gets a line of
    text. `auto_reset`: see `codegen.program.write`. Raises UserError, also if the arrays do not fit into the free memory.
    """
    _check_memory(plan, device)
    built = make(plan, name, device.kind, params=params, tables=tables, vary=vary, auto_reset=auto_reset)
    compiled = kernels.COMPILES and device.kind in ("cpu", "cuda")
    if compiled and checks and not kernels.is_tried(built.module):
        with waiting.on("trying the functions", name):
            check_variables(tuple(built.functions))
            check_functions(plan.environment, PlainEnvironment(plan.environment, seed=0, **built.of_run).sample)
            try_out(plan.environment, built.functions, seed=0, **built.of_run)
        kernels.note_tried(built.module)
        announce(f"compiling the kernels of {name} for {device.kind} (kept in {kernels.cache_root()})")
    if device.kind == "cuda" and "tables" in built.values:
        built.values["tables"] = _on_gpu(cast(NamedTuple, built.values["tables"]), device)
    return built


def make(
    plan: ArrayPlan,
    name: str,
    device_kind: str,
    *,
    params: NamedTuple,
    tables: NamedTuple | None,
    vary: Mapping[str, tuple[float, float]],
    auto_reset: bool = True,
    options: Mapping[str, object] = MappingProxyType({}),
) -> KernelModule:
    """Write and import the kernel module of a plan, with tables in the memory of the host; see `load`. Raises UserError.

    `options` take the place of `compiler_options`.
    """
    program, single_tables = write(plan, auto_reset), typed_tables(tables)
    functions = [f for f in map(inspect.unwrap, program.functions.values()) if isinstance(f, FunctionType)]
    of_run: OfRun = {"params": typed(params), "tables": read_only(single_tables), "vary": vary}
    compiled = kernels.COMPILES and device_kind in ("cpu", "cuda")
    if compiled:
        check_language(tuple(functions))
    globals_ = {**program.functions, **compiler_options(device_kind), **options}
    globals_ |= {} if tables is None else {"Tables": type(single_tables)}  # unused there; kernels know its fields by their numbers
    build = kernels.plain_function if device_kind == "cudasim" else kernels.kernel_function
    module = kernels.load_module(name, program.source, globals_, build)
    tuples = {"p": of_run["params"]} if params._fields else {}
    if single_tables is not None:
        # Where something is compiled, `check_functions` has refused writes to tables.
        tuples["tables"] = single_tables if compiled else read_only(single_tables)
    values: dict[str, object] = {key: kernels.own_tuple(module, f"{key}_of_kernels", value) for key, value in tuples.items()}
    if plan.environment.time_limit:
        values["time_limit"] = np.int32(plan.environment.time_limit)
    return KernelModule(module, functions, values, of_run)


def _check_memory(plan: ArrayPlan, device: Device) -> None:
    """Raise UserError if the arrays do not fit into the free memory."""
    import torch

    needed = plan.bytes_needed()
    if needed <= NEGLIGIBLE_BYTES:
        return
    free = torch.cuda.mem_get_info()[0] if device.kind == "cuda" else available_memory()
    if needed > free:
        raise UserError(
            f"{plan.n_envs} environments with {plan.horizon} steps each need {needed / 2**30:.1f} GiB on {device.kind};"
            f" {free / 2**30:.1f} GiB are free"
        )


@contextmanager
def errors_of_kernels(device: Device, functions: Sequence[FunctionType]) -> Iterator[None]:
    """Convert errors of compiling and of uncompiled kernels to a UserError that names the function of the environment."""
    # numba-cuda raises KeyError for a numpy function that it does not know; on other devices a KeyError is a bug of warprun.
    refusals = (NumbaError, KeyError) if device.kind == "cuda" else (NumbaError,)
    try:
        yield
    except refusals as error:
        raise explain(error, functions) from error
    except IndexError as error:  # only uncompiled kernels check indices
        raise out_of_bounds(error, list(functions)) from error


def draw_scalars(seed: int, first_env: int = 0) -> dict[str, np.uint32]:
    """Return the fields of `Common` that random draws depend on: the number of the first environment and the two words of the seed."""
    return {
        "first_env": np.uint32(first_env),
        "seed_low": np.uint32(seed & 0xFFFFFFFF),
        "seed_high": np.uint32(seed >> 32 & 0xFFFFFFFF),
    }


def compiler_options(device_kind: str) -> dict[str, object]:
    """Return the globals with which a kernel module sets its options of Numba."""
    if device_kind == "cpu":
        return {"FLAGS": kernels.KERNELS, "BOUND": kernels.BOUND_KERNELS, "INLINED": kernels.TILES}
    # The simulator compiles nothing and knows no inlining.
    return {"CACHE": device_kind == "cuda", "INLINED": {"device": True} | ({"forceinline": True} if device_kind == "cuda" else {})}


def typed(params: Named) -> Named:
    """Return a NamedTuple with its numbers as float32 and int32, the types that kernels are compiled for."""
    return params._make(
        v if isinstance(v, np.ndarray) else np.float32(v) if isinstance(v, float | np.floating) else np.int32(v) for v in params
    )


def typed_tables(tables: Named | None) -> Named | None:
    """Return tables in the types of kernels; None for None."""
    return None if tables is None else typed(tables._make(map(single_precision, tables)))


def single_precision(value: object) -> object:
    """Return a table in the types of kernels: float64 as float32, narrow or unsigned integers as signed ones that hold their values.

    Numba computes with unsigned integers modulo 2^64, in which 1 - 2 is 1.8e19.
    """
    if not isinstance(value, np.ndarray):
        return value
    wanted = {"float64": np.float32, "int8": np.int32, "int16": np.int32, "uint8": np.int32, "uint16": np.int32, "uint32": np.int64}
    return np.ascontiguousarray(value, wanted.get(value.dtype.name))


def _on_gpu(tables: Named, device: Device) -> Named:
    import torch

    return tables._make(torch.from_numpy(v).to(device.torch) if isinstance(v, np.ndarray) else v for v in tables)


@overload
def read_only(tables: Named) -> Named: ...
@overload
def read_only(tables: None) -> None: ...
def read_only(tables: Named | None) -> Named | None:
    """Return the same tables, with arrays that cannot be written; None for None."""
    return tables and tables._make(_unwritable(v) if isinstance(v, np.ndarray) else v for v in tables)


def _unwritable(array: np.ndarray) -> np.ndarray:
    guarded = array.view()
    guarded.flags.writeable = False
    return guarded
