"""Environments with the interface of Gymnasium, stepped by a pool of worker processes over shared memory, or in this process."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch

from warprun.errors import TrainingFailed
from warprun.simulation.device import Device
from warprun.simulation.exploration import Exploration
from warprun.simulation.external.recipe import ExternalEnvironment
from warprun.simulation.external.slice import LOAD, RESET, SAVE, STEP, SharedArrays, Slice, layout
from warprun.simulation.external.sources import EnvironmentFailed
from warprun.simulation.external.workers import Workers, begin
from warprun.simulation.stepped import SEEDS, SteppedSimulator
from warprun.simulation.trajectory import GroupTrajectory, Trajectory, allocate
from warprun.state import Counter, State, derived_seed

TOTALS = ("ended", "ended_steps", "ended_return", "replaced")
"""Arrays of what has ended since it was last taken."""
OF_EPISODES = ("clock", "episode_return", "state")
"""Arrays of episodes that go on; without `get_state` nobody can continue these."""

_tried: set[str] = set()
"""Environments that this process has stepped before a run, by their recipe."""


def external_simulator(
    environment: ExternalEnvironment,
    *,
    n_envs: int,
    first_env: int = 0,
    horizon: int,
    seed: int,
    device: Device,
    exploration: Exploration | None,
    workers: int,
    replaces: bool,
) -> SteppedSimulator:
    """Return a simulator whose environments a `Pool` steps."""
    pool = Pool(environment, n_envs, first_env, horizon, seed, device, workers, replaces)
    return SteppedSimulator(pool, first_env=first_env, seed=seed, device=device, exploration=exploration)


class Pool:
    """A `Stepper` of `n_envs` environments in `workers` processes, 0: in this process.

    Environment i of the run is reset with a seed that depends on `seed`, i, and how often all environments were reset; when an episode
    ends it is reset without one. Here are the environments `first_env` and following. `replaces`: see `KernelEngine`. On CPU the trajectory
    is the memory that the processes share. On CUDA every row is copied.
    """

    def __init__(
        self,
        environment: ExternalEnvironment,
        n_envs: int,
        first_env: int,
        horizon: int,
        seed: int,
        device: Device,
        workers: int,
        replaces: bool,
    ) -> None:
        self.environment, self.replaceable = environment, not replaces
        self.steps, self.resets = Counter(), Counter()
        self._n_envs, self._first_env, self._seed, self._workers = n_envs, first_env, seed, workers
        self._shared = SharedArrays(layout(environment, n_envs, horizon, max(1, workers)))
        self.arrays = self._shared.arrays
        self._copies = device.kind != "cpu"
        self.trajectory = self._allocate(horizon, device)
        self._group = self.trajectory.groups[environment.group]
        self._steppers: Workers | Slice | None = None
        self._closed = False

    @property
    def tried(self) -> bool:
        return repr(self.environment.recipe) in _tried

    @property
    def started(self) -> bool:
        return self._steppers is not None

    @property
    def stopped(self) -> bool:
        return bool(self.arrays["fault"].any())

    def start(self) -> None:
        try:
            self._steppers = begin(self.environment, self._shared, self._workers, not self.replaceable)
        except EnvironmentFailed as error:
            raise self._failed(error) from None

    def begin(self) -> None:
        resets = self.resets.value
        seeds = (derived_seed(self._seed, "environment", self._first_env + n, resets) % SEEDS for n in range(self._n_envs))
        self.arrays["seed"][:] = np.fromiter(seeds, np.int64)
        self._run(RESET)
        self._publish(None, 0)

    def step(self, row: int) -> torch.Tensor:
        actions = self.arrays["action"][row]
        if self._copies:
            torch.from_numpy(actions).copy_(self._group.action[row])
        if np.isfinite(actions).all():
            self._run(STEP, row)
            self._publish(row, row + 1)
        else:
            self.arrays["fault"][:] = True
        return self.trajectory.terminated[row] | self.trajectory.truncated[row]

    def try_step(self) -> None:
        self.step(0)
        self.take_totals()
        _tried.add(repr(self.environment.recipe))

    def take_totals(self) -> tuple[int, int, float, int]:
        count, steps, rewards, replaced = (self.arrays[name].sum().item() for name in TOTALS)
        for name in TOTALS:
            self.arrays[name][:] = 0
        return count, steps, rewards, replaced

    def save(self) -> None:
        self._run(SAVE)

    def load(self) -> None:
        self._run(LOAD)

    def state(self) -> State:
        state = {name: torch.from_numpy(self.arrays[name]) for name in TOTALS}
        if self.environment.resumes:
            state |= {name: torch.from_numpy(self.arrays[name].view(np.uint8)) for name in OF_EPISODES}
        return state

    def place(self, method: str, field: str) -> str:
        return self.environment.places[method == "step"]

    def close(self) -> None:
        if self._steppers is not None:
            self._steppers.close()
            self._steppers = None
        if self._copies and not self._closed:
            torch.cuda.synchronize()
            torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(self._shared.bytes.ctypes.data))
        self._closed = True
        self._shared.close()

    def _run(self, command: bytes, row: int = 0) -> None:
        assert self._steppers is not None, "the simulator is not prepared"
        try:
            self._steppers.run(command, row)
        except EnvironmentFailed as error:
            self.close()
            raise self._failed(error) from None

    def _failed(self, error: EnvironmentFailed) -> TrainingFailed:
        when = f"at step {self.steps.value + 1:,}" if error.action == "a step" else f"in {error.action}"
        return TrainingFailed(f"{self.environment.title}: environment {self._first_env + error.environment} failed {when}: {error.reason}")

    # Copies between the host and a GPU; on CPU both have the same memory --------------------------------------------------------

    def _allocate(self, horizon: int, device: Device) -> Trajectory:
        """Return a trajectory that is the shared memory on CPU, or its copy on CUDA."""
        made = allocate(self.environment.spec, horizon, self._n_envs, device.torch)
        if self._copies:
            # Pinned memory: the GPU copies rows without the CPU.
            memory = self._shared.bytes
            torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0))
            return made
        group = made.groups[self.environment.group]
        shared = {name: torch.from_numpy(array) for name, array in self.arrays.items()}
        tensors = {f.name: shared.get(f.name, vars(group)[f.name]) for f in fields(GroupTrajectory)}
        return Trajectory(shared["terminated"], shared["truncated"], {self.environment.group: GroupTrajectory(**tensors)})

    def _publish(self, row: int | None, after: int) -> None:
        """Bring what a step wrote, its results to `row` and its observations to row `after`, to the device."""
        if not self._copies:
            return
        taken, group, host = self.trajectory, self._group, self.arrays
        pairs = [(group.obs[after], host["obs"][after])]
        if group.mask is not None:
            pairs.append((group.mask[after], host["mask"][after]))
        if row is not None:
            pairs += [(group.reward[row], host["reward"][row]), (taken.terminated[row], host["terminated"][row])]
            pairs += [(taken.truncated[row], host["truncated"][row])]
            if host["truncated"][row].any():
                pairs.append((group.final_obs, host["final_obs"]))
        for tensor, array in pairs:
            tensor.copy_(torch.from_numpy(array), non_blocking=True)
