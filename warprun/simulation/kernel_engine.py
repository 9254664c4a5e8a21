"""The rollout engine: thousands of environments, stepped by kernels over one set of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, TypeVarTuple

import numpy as np
import torch

from warprun.environment import Environment
from warprun.errors import UserError
from warprun.kernels.compile import COMPILES
from warprun.kernels.driver import SIMULATOR_LIMIT
from warprun.kernels.mlp import Network
from warprun.kernels.simd import COLUMNS
from warprun.processes import usable_cores
from warprun.simulation import allocation, trajectory
from warprun.simulation.arrays import ArrayPlan
from warprun.simulation.codegen.targets import CPU, target_for
from warprun.simulation.comparison import Comparison
from warprun.simulation.cpu import CpuBackend, Kernel
from warprun.simulation.device import Device
from warprun.simulation.exploration import Exploration
from warprun.simulation.faults import Arriving, Fault, first_fault
from warprun.simulation.kernel_module import draw_scalars, errors_of_kernels, load, typed
from warprun.simulation.plain import varied
from warprun.simulation.simulator import Act, Episodes
from warprun.simulation.trajectory import Trajectory
from warprun.spec import PolicyKind
from warprun.state import Counter, State, copying, setting

if TYPE_CHECKING:
    from warprun.simulation.cuda import CudaBackend


_compared: set[tuple[ModuleType, str]] = set()
"""Kernels, with their parameters, that this process has compared with plain Python: a worker of a sweep trains many runs with them."""

Given = TypeVarTuple("Given")

RollOut = Callable[[Act, bool], None]
"""roll_out(act, greedy) takes the steps of a rollout."""

GOLDEN = 0.5 * (5.0**0.5 - 1.0)
"""Multiples of it, without their whole parts, are spread evenly over 0 to 1, however many there are, and neighbours are far apart."""


def first_cuts(time_limit: int, first_env: int, n_envs: int) -> np.ndarray:
    """Return how many steps after a reset an episode of each of some environments of a run is cut off, below the time limit, [N] int64."""
    return ((first_env + np.arange(n_envs)) * GOLDEN % 1.0 * time_limit).astype(np.int64)


class KernelEngine:
    """The `Simulator` of an environment whose functions are compiled into kernels.

    Arguments beside those that name themselves:

    params, tables: NamedTuples of numbers, and of numpy arrays and numbers (or None).
    vary: parameter -> (low, high), drawn again in every environment for each episode.
    first_env: number of the first environment; random draws depend on the number of an environment.
    exploration: that of the agent (`learning.interfaces.Agent`).
    networks: the acting network of each group, for fused rollouts; None: `act` is called between kernels.
    kept: groups of one actor whose activations a fused rollout on CPU keeps, and the rows of their network (`Trajectory.activations`).
    repeats: makes of a rollout what repeats it, such as `repeat.Captured` (CUDA only).
    compares: the first steps are compared with plain Python (`Comparison`).
    debug: everything that a rollout has to write is filled with NaN before it.
    staggered: one of the first episodes of every environment is cut off before its time limit (`first_cuts`).
    whole: none is, although the kernels could: an evaluation has those of training, which are then compiled once.
    replaces: an environment with a fault in its reward, observation or mask is terminated with reward 0 and reset.
    rollout: a trajectory owned by somebody else, into which the engine only samples actions; None: it has its own.
    announce: gets a line of text if kernels must be compiled.
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
        params: NamedTuple,
        first_env: int = 0,
        tables: NamedTuple | None = None,
        vary: Mapping[str, tuple[float, float]] | None = None,
        threads: int | None = None,
        auto_reset: bool = True,
        exploration: Exploration | None = None,
        networks: Mapping[str, Network] | None = None,
        kept: Mapping[str, int] | None = None,
        repeats: Callable[[RollOut], RollOut] | None = None,
        compares: bool = False,
        debug: bool = False,
        staggered: bool = False,
        whole: bool = False,
        replaces: bool = False,
        rollout: Trajectory | None = None,
        announce: Callable[[str], None] = lambda line: None,
    ) -> None:
        vary = vary or {}
        target = target_for(environment, device.kind)
        policies: PolicyKind = exploration.policies if exploration else "sampled"
        rows = max((network.rows for network in (networks or {}).values()), default=0)
        carry = {name: network.carry.size for name, network in (networks or {}).items() if network.carry.size}
        given = n_envs, horizon, tuple(vary), policies, replaces
        plan = ArrayPlan(environment, target, *given, network_rows=rows, staggered=staggered, memory=tuple(carry))
        if device.kind == "cudasim" and n_envs > SIMULATOR_LIMIT:
            raise UserError(f"device=cudasim takes at most {SIMULATOR_LIMIT} environments, it is slow; n_envs={n_envs}")
        checks = rollout is None  # else the environment is one of warprun's own
        built = load(
            plan,
            name,
            device,
            params=params,
            tables=tables,
            vary=vary,
            announce=announce,
            auto_reset=auto_reset,
            checks=checks,
        )
        self.environment = environment
        self.spec = environment.spec
        self.plan = plan
        self.replaces, self.debug = replaces, debug
        self.device = device
        self.n_envs = n_envs
        self.params = params
        self.tables = tables
        self._steps = Counter()
        self._began = 0
        """`steps` when the last rollout began."""
        self._arriving = Arriving()
        self._begins_now = True
        """Whether the current observations are in row 0 of the trajectory; if not, they are in its last row."""
        self.trajectory: Trajectory = rollout or trajectory.allocate(self.spec, horizon, n_envs, device.torch)
        self._carry_over = [copying(seen[0], seen[-1]) for group in self.trajectory.groups.values() for seen in group.seen().values()]
        """They copy the last row of what policies see to the first one."""
        self.arrays = allocation.allocate(plan, device.torch, exploration.numbers if exploration else {}, vary)
        self._set_began = setting(self.arrays.common["began"])
        any_fault = self.arrays.common["any_fault"]
        self._any_fault = any_fault.numpy() if any_fault.device.type == "cpu" else any_fault
        if staggered:
            self.arrays.common["cut_at"].fill_(-1)
        limit = self.spec.time_limit
        cuts = first_cuts(limit, first_env, n_envs) if staggered and limit and not whole else None
        self._cuts = None if cuts is None else torch.from_numpy(cuts).to(device.torch)
        self._reset_at = Counter()
        """`steps` at the last reset, if episodes are staggered."""
        self._cuts_from: int | None = -1
        """The reset that `cut_at` counts from; None: all cuts are over, -1: it is not written."""
        self.functions = built.functions
        self._comparison: Comparison | None = None
        self._same = (built.module, repr(built.of_run)) if tables is None else None
        """What another simulator of this process must have in common with this one to need no comparison; None: each one is compared."""
        if compares and device.kind in ("cpu", "cuda") and COMPILES and self._same not in _compared:
            some = sorted({0, n_envs // 2, n_envs - 1})
            cut_at = {} if cuts is None else {number: int(cuts[number]) for number in some}
            self._comparison = Comparison(environment, some, first_env, self.functions, cut_at, seed=seed, **built.of_run)
        self._compared = 0
        """`steps` up to which they are compared."""
        scalars = {"n_envs": n_envs} | draw_scalars(seed, first_env) | built.values
        self._kernels = self._bind(built.module, scalars, threads or usable_cores())
        self._fused = networks is not None
        if networks is not None:
            if self.plan.target is CPU and built.module.LANES == COLUMNS:  # what is kept are the blocks of a gradient
                self.trajectory.keep(kept or {}, COLUMNS)
            self.trajectory.remember(carry)
            self._kernels.fuse(networks, self.trajectory)
        self._roll_out = repeats(self._roll_out_once) if repeats else self._roll_out_once

    def _bind(self, module: ModuleType, scalars: Mapping[str, object], threads: int) -> CpuBackend | CudaBackend:
        """Return the backend that runs the kernels of `module` on the arrays of this engine."""
        values = allocation.kernel_values(self.arrays, self.trajectory, scalars)
        if self.plan.target is CPU:
            return CpuBackend(module, self.plan, values, threads)
        from warprun.simulation.cuda import CudaBackend

        return CudaBackend(module, self.plan, values)

    @property
    def steps(self) -> int:
        """Steps that every environment has taken; together with the seed they determine all later random draws."""
        return self._steps.value

    @steps.setter
    def steps(self, steps: int) -> None:
        self._steps.value = steps

    def prepare(self) -> None:
        """Compile every kernel, or load it from the cache, and reset. Raises UserError if an environment function does not compile."""
        self.reset()  # first, because another process may be compiling what follows
        if self._fused:
            self._guarded(self._kernels.rollout, 0, False)
            return
        for kernel in ("step", "sample", "greedy"):
            self._run(kernel, 0, self.steps)
        self.reset()

    def reset(self) -> None:
        """Begin an episode in every environment, write its observation to row 0 and clear all faults."""
        for name in ("fault", "any_fault", *(["replaced"] if self.replaces else [])):
            self.arrays.common[name].zero_()
        self.trajectory.forget()
        self._compared = 0
        self._reset_at.value = self.steps
        self._begin()
        # Use the draws of the step before: episodes that begin in the next step must not get the same ones.
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
        self._steps.value += 1
        self._begins_now = False

    def carry_over(self) -> None:
        """Copy the last observations and masks to row 0, where the next rollout begins."""
        for copy in self._carry_over:
            copy()
        self._begins_now = True

    def retrace(self) -> Trajectory:
        """Roll out a whole trajectory with the actions that it already holds."""
        if not self._begins_now:
            self.carry_over()
        horizon = self.trajectory.horizon
        self._begin()
        self._guarded(self._kernels.retrace, horizon)
        self._steps.value += horizon
        self._begins_now = False
        return self.trajectory

    def collect(self, act: Act, greedy: bool = False) -> Trajectory:
        """Roll out a whole trajectory with sampled actions, or with the most probable ones (`greedy`).

        `act(trajectory, row)` writes `policy_output` and `value[row]` of every group; a fused rollout does not call it.
        """
        if not self._begins_now:
            self.carry_over()
        self._begin()
        if self.debug:
            allocation.poison_choices(self.trajectory)
        self._roll_out(act, greedy)
        if self._comparison and self._began != self._compared:
            self._comparison = None
        if self._comparison and not self._comparison.look(self.trajectory):
            self._comparison = None
            if self._same:
                _compared.add(self._same)
        self._steps.value = self._compared = self._began + self.plan.horizon
        self._begins_now = False
        return self.trajectory

    def _roll_out_once(self, act: Act, greedy: bool) -> None:
        """Launch the kernels of a rollout, the same ones each time, so that a CUDA graph can repeat them."""
        horizon, began = self.plan.horizon, self._began
        if self._fused:
            self._guarded(self._kernels.rollout, horizon, greedy)
            return
        for row in range(horizon):
            act(self.trajectory, row)
            self._run("greedy" if greedy else "sample", row, began + row)
            self._run("step", row, began + row)

    def episodes(self) -> Episodes:
        """Return the statistics of the episodes that ended since the last call, and reset them (waits for the device)."""
        common = self.arrays.common
        count, steps = int(common["ended"].sum()), int(common["ended_steps"].sum())
        returns = {}
        for group in self.spec.groups:
            total = self.arrays.groups[group.name]["ended_return"]
            returns[group.name] = float(total[:, 0].double().sum()) / (count * group.size) if count else float("nan")
            total.zero_()
        common["ended"].zero_()
        common["ended_steps"].zero_()
        replaced = 0
        if self.replaces:
            counts = common["replaced"][:, 0]
            replaced = int(counts.sum())
            counts.zero_()
        return Episodes(count, steps / count if count else float("nan"), returns, replaced)

    def fault(self, wait: bool = False) -> Fault | None:
        """Return the first fault since the last reset. On CUDA, without `wait`, a later call may be the first to report it."""
        if wait or isinstance(self._any_fault, np.ndarray):
            return self._first_fault() if self._any_fault.item() else None
        found = self._arriving.exchange(self._any_fault)
        return None if found is None or not found[0].item() else self._first_fault()

    def state(self) -> State:
        """Return everything that the next steps depend on: the arrays, the observations and masks of row 0, and the number of steps."""
        if not self._begins_now:
            self.carry_over()
        arrays = {f"arrays/{name}": array for name, array in self.arrays.by_name().items() if name != "cut_at"}  # it follows
        state = {"steps": self._steps.tensor} | arrays | ({} if self._cuts is None else {"reset_at": self._reset_at.tensor})
        for name, group in self.trajectory.groups.items():
            state |= {f"{name}/{key}": seen[0] for key, seen in group.seen().items()}
        return state

    def close(self) -> None:
        """Do nothing: an engine holds no processes."""

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

    def params_of(self, env: int) -> NamedTuple:
        """Return the parameters of one environment, in the types that kernels use, with those that are drawn for its episode."""
        params = typed(self.params)
        if not self.plan.vary:
            return params
        drawn = self.arrays.common["varied"]
        tile, lane = divmod(env, drawn.shape[2])
        return varied(params, dict(zip(self.plan.vary, drawn[tile, :, lane].cpu().numpy(), strict=True)))

    def fault_of(self, env: int) -> Fault | None:
        """Return the first fault of one environment since the last reset (waits for the device)."""
        if not self.arrays.common["any_fault"].item():
            return None
        noted = self.arrays.common["fault"]
        tile, lane = divmod(env, noted.shape[2])
        found = first_fault(self.environment, noted[tile : tile + 1, :, lane : lane + 1], self.steps, not self.replaces)
        return None if found is None else replace(found, environment=env)

    def _first_fault(self) -> Fault | None:
        return first_fault(self.environment, self.arrays.common["fault"], self.steps, not self.replaces)

    def _slots(self, group_name: str) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every field of a group's state with its slots, [tile, slot, actor, lane]."""
        for f in self.environment.group(group_name).fields:
            array = self.arrays.groups[group_name]["i" if f.integer else "f"]
            yield f.name, array[:, f.first : f.first + f.slots]

    def _begin(self) -> None:
        """Set the step that kernels count from to the current step."""
        self._began = self.steps
        if self.debug:
            allocation.poison(self.environment, self.arrays, self.trajectory)
        self._set_began(self._began)
        self._cut_off()

    def _cut_off(self) -> None:
        """Write at which steps episodes are cut off. No state has it: it follows from the step of the last reset."""
        limit = self.spec.time_limit
        if self._cuts is None or limit is None:
            return
        counts_from = self._reset_at.value if self.steps < self._reset_at.value + limit else None
        if counts_from != self._cuts_from:
            self._cuts_from = counts_from
            own = self.arrays.common["cut_at"].view(-1)[: self.n_envs]
            own.copy_(torch.full_like(self._cuts, -1) if counts_from is None else counts_from + self._cuts)

    def _run(self, kernel: Kernel, row: int, now: int) -> None:
        self._guarded(self._kernels.run, kernel, row, now - self._began)

    def _guarded(self, launch: Callable[[*Given], None], *given: *Given) -> None:
        try:
            launch(*given)
        except Exception:
            # Not around all calls: to enter and leave a context takes as long as a step of 1,000 small environments.
            with errors_of_kernels(self.device, self.functions):
                raise
