"""The rollout engine: thousands of environments, stepped by kernels over one set of tensors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba.core.errors import NumbaError

from warprun.environment import Environment
from warprun.errors import UserError
from warprun.kernels import compile as kernels  # sets up Numba, so it comes before numba itself
from warprun.kernels.check import check_functions
from warprun.kernels.driver import available_memory
from warprun.kernels.graph import Captured
from warprun.kernels.mlp import Network
from warprun.simulation import memory as store
from warprun.simulation import trajectory
from warprun.simulation.codegen.program import write
from warprun.simulation.codegen.statements import Target
from warprun.simulation.cpu_backend import CpuKernels
from warprun.simulation.device import Device
from warprun.simulation.faults import Arriving, Fault, first_fault
from warprun.simulation.trajectory import Trajectory
from warprun.simulation.trial import ENVIRONMENTS, INTERPRETER, interpreted, out_of_bounds, trial_function, try_out

SIMULATOR_LIMIT = 64
"""Environments in the CUDA simulator, which runs every GPU thread as a Python thread."""


@dataclass(frozen=True)
class Episodes:
    """Episodes that ended since the last time they were counted."""

    count: int
    mean_length: float
    """Steps; NaN without episodes."""
    mean_return: dict[str, float]
    """Per group, the mean over actors of the sum of rewards; NaN without episodes."""


class Engine:
    """Steps `n_envs` copies of an environment and keeps the last `horizon` steps as a trajectory.

    `params` is a NamedTuple of numbers, `tables` one of numpy arrays and numbers (or None); `vary` maps parameters to (low, high), from
    which every environment draws them anew for every episode. `exploration` is for policies that give the values of choices, or real
    actions, and not distributions: per group the numbers by which actions are then drawn, [3] float32 on the device, read at each step
    (the share of actions that are uniform, and standard deviation and reversion of the noise, see `sampling.explore_real`). `replaces`:
    an environment whose reward, observation or mask is wrong earns nothing for that step, terminates, and begins anew. `announce` is
    told, in a line, when kernels have to be compiled.
    """

    def __init__(
        self,
        environment: Environment,
        name: str,
        *,
        device: Device,
        n_envs: int,
        horizon: int,
        seed: int,
        params: Any,
        tables: Any = None,
        vary: Mapping[str, tuple[float, float]] | None = None,
        threads: int | None = None,
        auto_reset: bool = True,
        exploration: Mapping[str, torch.Tensor] | None = None,
        replaces: bool = False,
        announce: Callable[[str], None] = lambda line: None,
    ) -> None:
        vary = vary or {}
        explores = exploration is not None
        target = target_for(environment, device.kind)
        if device.kind == "cudasim" and n_envs > SIMULATOR_LIMIT:
            raise UserError(f"device=cudasim takes at most {SIMULATOR_LIMIT} environments, it is slow; n_envs={n_envs}")
        check_memory(environment, target, device, n_envs, horizon, len(vary), explores)
        self.environment = environment
        self.replaces = replaces
        self.device = device
        self.n_envs = n_envs
        self.steps = 0
        """Steps that every environment has taken; with the seed it says where the random streams stand."""
        self._fused: Any = None
        self._began = 0
        """`steps` when the last rollout began."""
        self._roll_out: Callable[[Callable[[Trajectory, int], None], bool], Any] = self.roll_out
        self._arriving = Arriving()
        self._begins_now = True
        """Whether row 0 of the trajectory, not its last row, is what the actors see now."""
        self.trajectory: Trajectory = trajectory.allocate(environment, horizon, n_envs, device.torch)
        self.arrays = store.allocate(store.layout(environment, target, n_envs, len(vary), explores, replaces), device.torch)
        self.params = params
        self.tables = tables
        values: dict[str, Any] = self.arrays | store.shared_names(self.trajectory)
        values |= {"n_envs": n_envs, "seed_low": np.uint32(seed & 0xFFFFFFFF), "seed_high": np.uint32(seed >> 32 & 0xFFFFFFFF)}
        if target != "cpu":
            values["began"] = torch.zeros(1, dtype=torch.int64, device=device.torch)
        values["p"] = typed(params)
        if tables is not None:
            tables = typed(type(tables)(*(_single_precision(v) for v in tables)))
            values["tables"] = _tables_for(device, tables)
        values |= {f"{group}_exploration": numbers for group, numbers in (exploration or {}).items()}
        values["vary_bounds"] = torch.tensor(list(vary.values()), dtype=torch.float32, device=device.torch).reshape(-1, 2)
        program = write(environment, name, target, tuple(vary), auto_reset, explores, replaces)
        self._functions = [f for f in program.functions.values() if hasattr(f, "__code__")]
        globals_ = program.functions | compiler_options(device.kind)
        globals_ |= {} if tables is None else {"Tables": type(tables)}  # unused there; kernels know its fields by their numbers
        build = {"cudasim": kernels.plain_function, "python": trial_function}.get(device.kind, kernels.device_function)
        source = interpreted(program.source) if device.kind == "python" else program.source
        module = kernels.load_module(name, source, globals_, build)
        self.source_file = module.__file__
        if kernels.COMPILES and device.kind in ("cpu", "cuda") and not kernels.is_cached(module):
            check_functions(environment, values["p"], None if tables is None else read_only(tables), vary)
            plain: dict[str, Any] = {"device": INTERPRETER, "n_envs": ENVIRONMENTS, "horizon": 1, "seed": seed, "threads": 1}
            try_out(Engine(environment, name, **plain, params=params, tables=tables, vary=vary))
            announce(f"compiling the kernels of {name} for {device.kind} (kept in {kernels.cache_root()})")
        values |= {n: kernels.own_tuple(module, f"{n}_of_kernels", values[n]) for n in ("p", "tables") if n in values}
        if target == "cpu":
            self._kernels: Any = CpuKernels(module, program.arguments, values, threads or os.cpu_count() or 1)
        else:
            from warprun.simulation.cuda_backend import CudaKernels

            self._kernels = CudaKernels(module, program.arguments, values, environment, n_envs)

    def compile(self) -> None:
        """Compile every kernel, or load it from the cache, and reset. Raises UserError where an environment function does not compile."""
        if self._fused:
            self._guarded(lambda: self._kernels.rollout(0, False, self.steps, self._fused))
        else:
            for kernel in ("step", "sample", "greedy"):
                self._run(kernel, 0, self.steps)
        self.reset()

    def reset(self) -> None:
        """Begin an episode in every environment and write its observation to row 0; faults are forgotten."""
        for name in ("fault", "any_fault", *(["replaced"] if self.replaces else [])):
            self.arrays[name].zero_()
        # As if the step before had ended every episode, or the step to come would begin its episodes with the same draws.
        self._run("reset", 0, self.steps - 1)
        self._begins_now = True

    def sample(self, row: int) -> None:
        """Draw the actions of row `row` from `policy_output`."""
        self._run("sample", row, self.steps)

    def choose_best(self, row: int) -> None:
        """Take the most probable actions of `policy_output` for row `row`."""
        self._run("greedy", row, self.steps)

    def step(self, row: int) -> None:
        """Step every environment with the actions of row `row`; observations go to row + 1.

        An environment whose episode ends begins the next one in the same step.
        """
        self._run("step", row, self.steps)
        self.steps += 1
        self._begins_now = False

    def carry_over(self) -> None:
        """Make the last observations the first of the next rollout."""
        for group in self.trajectory.groups.values():
            group.obs[0].copy_(group.obs[-1])
            if group.mask is not None:
                group.mask[0].copy_(group.mask[-1])
        self._begins_now = True

    def fuse(self, networks: Mapping[str, Network]) -> bool:
        """Take these networks, one a group, into the kernel: from now on `collect` is one call for a whole rollout.

        Return False, and stay stepwise, where a network is too wide for the shared memory of a GPU.
        """
        self._fused = self._kernels.fused_arrays(self.environment, networks, self.trajectory)
        return self._fused is not None

    def retrace(self) -> Trajectory:
        """Roll out a whole trajectory with the actions that lie in it already; one call for all its steps on CPU."""
        if not self._begins_now:
            self.carry_over()
        if not isinstance(self._kernels, CpuKernels):
            for row in range(self.trajectory.horizon):
                self.step(row)
            return self.trajectory
        kernels_of_cpu, horizon = self._kernels, self.trajectory.horizon
        self._guarded(lambda: kernels_of_cpu.retrace(horizon, self.steps))
        self.steps += horizon
        self._begins_now = False
        return self.trajectory

    def collect(self, act: Callable[[Trajectory, int], None], greedy: bool = False) -> Trajectory:
        """Roll out a whole trajectory, with sampled actions or the most probable ones.

        `act(trajectory, row)` writes `policy_output` and `value[row]` of every group; the fused path does without it.
        """
        if not self._begins_now:
            self.carry_over()
        self._began = self.steps
        self._kernels.begin(self._began)
        self._roll_out(act, greedy)
        self.steps += self.trajectory.horizon
        self._begins_now = False
        return self.trajectory

    def roll_out(self, act: Callable[[Trajectory, int], None], greedy: bool) -> None:
        """Do what `collect` does on the device: the same kernels each time, so that a CUDA graph can hold them."""
        horizon, began = self.trajectory.horizon, self._began
        if self._fused:
            self._guarded(lambda: self._kernels.rollout(horizon, greedy, began, self._fused))
            return
        for row in range(horizon):
            act(self.trajectory, row)
            self._run("greedy" if greedy else "sample", row, began + row)
            self._run("step", row, began + row)

    def capture(self) -> None:
        """Let a CUDA graph repeat rollouts from now on (CUDA only)."""
        self._roll_out = Captured(self.roll_out)

    def episodes(self) -> Episodes:
        """Return what ended since the last call, and start counting anew (waits for the device)."""
        count = int(self.arrays["ended"].sum())
        steps = int(self.arrays["ended_steps"].sum())
        returns = {}
        for group in self.environment.groups:
            total = self.arrays[f"{group.name}_return_ended"]
            returns[group.name] = float(total.double().sum()) / (count * group.size) if count else float("nan")
            total.zero_()
        self.arrays["ended"].zero_()
        self.arrays["ended_steps"].zero_()
        return Episodes(count, steps / count if count else float("nan"), returns)

    def fault(self) -> Fault | None:
        """Return the first fault since the last reset, as far as the host knows of it: on CUDA one comes to light a call later."""
        found = self._arriving.exchange(self.arrays["any_fault"])
        return None if found is None or not found[0].numpy()[0] else self._first_fault()

    def wait_for_fault(self) -> Fault | None:
        """Return the first fault since the last reset (waits for the device)."""
        return self._first_fault() if self.arrays["any_fault"].item() else None

    def state_of(self, group_name: str) -> dict[str, torch.Tensor]:
        """Return the fields of a group's state, [N, A] each (array fields [N, A, length])."""
        return {name: slots.permute(0, 3, 2, 1).flatten(0, 1)[: self.n_envs].squeeze(-1) for name, slots in self._slots(group_name)}

    def set_state(self, group_name: str, **values: torch.Tensor) -> None:
        """Write fields of a group's state, in the shapes of `state_of`."""
        for name, slots in self._slots(group_name):
            if name in values:
                tiles, length, actors, width = slots.shape
                padded = torch.zeros((tiles * width, actors, length), dtype=slots.dtype, device=slots.device)
                padded[: self.n_envs] = values[name].reshape(self.n_envs, actors, length)
                slots.copy_(padded.reshape(tiles, width, actors, length).permute(0, 3, 2, 1))

    def replacements(self) -> int:
        """Return how many environments were replaced since the last reset (waits for the device)."""
        return int(self.arrays["replaced"][:, 0].sum()) if self.replaces else 0

    def _first_fault(self) -> Fault | None:
        return first_fault(self.environment, self.arrays["fault"], self.steps)

    def _slots(self, group_name: str) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every field with its part of the store, [tile, slot, actor, lane]."""
        for f in self.environment.group(group_name).fields:
            array = self.arrays[f"{group_name}_{'i' if f.integer else 'f'}"]
            yield f.name, array[:, f.first : f.first + f.slots]

    def _run(self, kernel: str, row: int, now: int) -> None:
        self._guarded(lambda: self._kernels(kernel, row, now))

    def _guarded(self, launch: Callable[[], None]) -> None:
        # numba-cuda raises KeyError for a numpy function that it does not know; elsewhere a KeyError is a mistake of our own.
        refusals = (NumbaError, KeyError) if self.device.kind == "cuda" else (NumbaError,)
        try:
            launch()
        except refusals as error:
            raise kernels.explain(error, self._functions) from error
        except IndexError as error:  # uncompiled; no kernel that is compiled can tell
            raise out_of_bounds(error, self._functions) from error


def compiler_options(device_kind: str) -> dict[str, Any]:
    """Return the globals by which a kernel module tells Numba how to compile it."""
    if device_kind in ("cpu", "python"):
        return {"FLAGS": kernels.KERNELS}
    # The simulator compiles nothing and knows no inlining.
    return {"CACHE": device_kind == "cuda", "INLINED": {"device": True} | ({"forceinline": True} if device_kind == "cuda" else {})}


def target_for(environment: Environment, device_kind: str) -> Target:
    """Return how kernels are laid out for a device."""
    if device_kind in ("cpu", "python"):
        return "cpu"
    return "thread" if all(group.size == 1 for group in environment.groups) else "block"


def typed(params: Any) -> Any:
    """Return a NamedTuple with its numbers as float32 and int32, the types that kernels are compiled for."""
    return type(params)(
        *(v if isinstance(v, np.ndarray) else np.float32(v) if isinstance(v, float | np.floating) else np.int32(v) for v in params)
    )


def _single_precision(value: Any) -> Any:
    """Return a table as kernels have it: float64 as float32, and narrow or unsigned integers as signed ones that hold their values.

    Numba computes with unsigned integers modulo 2^64, in which 1 - 2 is 1.8e19.
    """
    if not isinstance(value, np.ndarray):
        return value
    wanted = {"float64": np.float32, "int8": np.int32, "int16": np.int32, "uint8": np.int32, "uint16": np.int32, "uint32": np.int64}
    return np.ascontiguousarray(value, wanted.get(value.dtype.name))


def _tables_for(device: Device, tables: Any) -> Any:
    """Return tables as kernels take them: read-only where nothing is compiled; `check_functions` has seen to what is."""
    if device.kind == "cuda":
        return type(tables)(*(torch.from_numpy(v).to(device.torch) if isinstance(v, np.ndarray) else v for v in tables))
    return tables if device.kind == "cpu" and kernels.COMPILES else read_only(tables)


def read_only(tables: Any) -> Any:
    """Return the same tables, with arrays that cannot be written."""
    return type(tables)(*(_guarded(v) if isinstance(v, np.ndarray) else v for v in tables))


def _guarded(array: np.ndarray) -> np.ndarray:
    guarded = array.view()
    guarded.flags.writeable = False
    return guarded


def check_memory(
    environment: Environment, target: Target, device: Device, n_envs: int, horizon: int, n_varied: int, explores: bool
) -> None:
    """Raise UserError where the arrays would not fit in the memory that is free."""
    needed = store.bytes_needed(environment, target, n_envs, horizon, n_varied, explores)
    free = torch.cuda.mem_get_info()[0] if device.kind == "cuda" else available_memory()
    if needed > free:
        raise UserError(
            f"{n_envs} environments with {horizon} steps each need {needed / 2**30:.1f} GiB on {device.kind};"
            f" {free / 2**30:.1f} GiB are free"
        )
