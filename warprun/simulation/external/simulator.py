"""The `Simulator` of environments that Python steps; kernels draw their actions, by the rules of every other environment."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch

from warprun.errors import TrainingFailed, UserError
from warprun.simulation.device import Device
from warprun.simulation.exploration import Exploration
from warprun.simulation.external.recipe import ExternalEnvironment
from warprun.simulation.external.slice import SharedArrays, layout
from warprun.simulation.external.sources import EnvironmentFailed
from warprun.simulation.external.workers import LOAD, RESET, SAVE, STEP, Steppers, begin
from warprun.simulation.faults import FIELDS, Fault
from warprun.simulation.sampler import Sampler
from warprun.simulation.simulator import Act, Episodes
from warprun.simulation.trajectory import GroupTrajectory, Trajectory, allocate
from warprun.state import Counter, State, derived_seed

COUNTED = ("ended", "ended_steps", "ended_return", "replaced")
"""Arrays of what has ended since it was last counted."""
OF_EPISODES = ("clock", "episode_return", "state")
"""Arrays of episodes that go on; without `get_state` nobody can continue these."""
SEEDS = 2**31
"""Seeds of environments are below: many libraries take 32 bits."""

_tried: set[str] = set()
"""Environments that this process has stepped before a run, by their recipe."""


class ExternalSimulator:
    """Steps `n_envs` environments in `workers` processes, 0: in this process, which begin with the first reset.

    Environment i of the run is reset with a seed that depends on `seed`, i, and how often all environments were reset; when an episode
    ends it is reset without one. Here are the environments `first_env` and following. `replaces`: see `KernelEngine`. On CPU the trajectory
    is the memory that the processes share. On CUDA every row is copied.
    """

    def __init__(
        self,
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
    ) -> None:
        self.environment, self.spec, self.device, self.n_envs = environment, environment.spec, device, n_envs
        self._seed, self._replaces, self._workers = seed, replaces, workers
        self._first_env = first_env
        self._layout = layout(environment, n_envs, horizon, max(1, workers))
        self._shared = SharedArrays(self._layout)
        self.arrays = self._shared.arrays
        self.trajectory = self._allocate(horizon)
        self._group = self.trajectory.groups[environment.group]
        self._sampler = Sampler(self.spec.groups[0], self.trajectory, seed, device, exploration, first_env)
        self._steppers: Steppers | None = None
        self._steps, self._resets = Counter(), Counter()
        self._known = 0
        """`steps` as this object has counted them; if they differ, a state was restored."""
        self._row = 0
        """Row of the trajectory with the current observations."""
        self._anew = True
        """Whether all episodes have begun since the last rollout."""
        self._fault: Fault | None = None
        self._closed = False

    @property
    def steps(self) -> int:
        """Steps that every environment has taken."""
        return self._steps.value

    def prepare(self) -> None:
        """Compile the kernels that sample, start the processes, make the environments, and reset. Raises UserError.

        The first simulator of an environment in a process tries a step before: a reset may take minutes.
        """
        try:
            self._start()
            if (key := repr(self.environment.recipe)) not in _tried:
                self._try_step()
                _tried.add(key)
            self.reset()
            self._refuse_fault()
        except TrainingFailed as error:
            raise UserError(str(error)) from None

    def reset(self) -> None:
        """Begin an episode in every environment, its observation in row 0, and forget faults. Raises TrainingFailed."""
        self._start()
        self._resets.value += 1
        self._begin()
        self._row, self._known, self._anew = 0, self.steps, True
        self.trajectory.forget()
        self._sampler.forget(torch.ones(self.n_envs, dtype=torch.bool, device=self.device.torch))

    def collect(self, act: Act, greedy: bool = False) -> Trajectory:
        """Take `horizon` steps with sampled actions, or the most probable ones, and return `trajectory`. Raises TrainingFailed.

        It stops at the first number that is not finite and the first mask that forbids every action, which `fault` then tells: no action
        can be chosen there.
        """
        self._continue()
        taken = self.trajectory
        taken.continues.fill_(not self._anew)
        self._anew = False
        faults = self.arrays["fault"][:, 0]
        for row in range(taken.horizon):
            if faults.any():
                break
            act(taken, row)
            self._sampler.draw(row, self.steps, greedy)
            if not self._fetch_actions(row):
                break
            self._run(STEP, row, self.steps + 1)
            self._publish(row, row + 1)
            self._sampler.forget(taken.terminated[row] | taken.truncated[row])
            self._steps.value += 1
            self._row = row + 1
        self._known = self.steps
        return taken

    def episodes(self) -> Episodes:
        """Return the statistics of the episodes that ended since the last call, and reset them."""
        count, steps, returns, replaced = (self.arrays[name].sum().item() for name in COUNTED)
        self._forget_episodes()
        share = 1.0 / count if count else float("nan")
        return Episodes(count, steps * share, {self.environment.group: returns * share}, replaced)

    def fault(self, wait: bool = False) -> Fault | None:
        """Return the first number that was not finite since the last reset, of several at one step that of the first environment."""
        found = self.arrays["fault"]
        if self._fault is None and found[:, 0].any():
            n = int(np.where(found[:, 0] > 0, found[:, 1], np.iinfo(np.int64).max).argmin())
            code, step, component, value = found[n].tolist()
            number = 0.0 if FIELDS[code - 1] == "mask" else (float("nan"), float("inf"), float("-inf"))[value]
            where = (n, step, self.environment.group, FIELDS[code - 1], 0, component, number)
            place = self.environment.places[step > 0]
            self._fault = Fault(*where, self.environment.title, replaceable=not self._replaces, place=place)
        return self._fault

    def state(self) -> State:
        """Return the counters, and with `get_state` the episodes that go on; without, a restored simulator begins new ones."""
        state = {"steps": self._steps.tensor, "resets": self._resets.tensor}
        state |= {name: torch.from_numpy(self.arrays[name]) for name in COUNTED}
        if self._sampler.noise is not None:
            state["noise"] = self._sampler.noise
        if self.environment.state:
            self._carry_over()
            if self._steppers is not None and self._known == self.steps:
                self._run(SAVE)
            state |= {name: torch.from_numpy(self.arrays[name].view(np.uint8)) for name in OF_EPISODES}
            state["obs"] = self._group.obs[0]
            if self._group.mask is not None:
                state["mask"] = self._group.mask[0]
        return state

    def close(self) -> None:
        """End the processes and close the environments."""
        if self._steppers is not None:
            self._steppers.close()
            self._steppers = None
        if self.device.kind != "cpu" and not self._closed:
            torch.cuda.synchronize()
            torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(self._shared.bytes.ctypes.data))
        self._closed = True
        self._shared.close()

    def _start(self) -> None:
        """Start the processes, once."""
        if self._steppers is not None:
            return
        self._sampler.prepare()
        try:
            self._steppers = begin(self.environment, self._layout, self._shared, self.n_envs, self._workers, self._replaces)
        except EnvironmentFailed as error:
            raise self._failed(error) from None

    def _begin(self) -> None:
        """Begin an episode in every environment, with the seeds of this reset of all."""
        self._fault = None
        seeds = (derived_seed(self._seed, "environment", self._first_env + n, self._resets.value) % SEEDS for n in range(self.n_envs))
        self.arrays["seed"][:] = np.fromiter(seeds, np.int64)
        self._run(RESET)
        self._publish(None, 0)

    def _try_step(self) -> None:
        self._begin()
        self._refuse_fault()
        self._group.policy_output.zero_()  # `_start` has drawn while masks forbade everything, which leaves -inf
        self._sampler.draw(0, self.steps, greedy=False)  # actions that the masks of the beginning allow
        self._fetch_actions(0)
        self._run(STEP, 0, self.steps + 1)
        self._forget_episodes()

    def _refuse_fault(self) -> None:
        """Raise UserError for a fault of the beginning of an episode."""
        if (fault := self.fault()) is not None:
            raise UserError(f"{fault}; reset must begin an episode that can go on")

    def _forget_episodes(self) -> None:
        for name in COUNTED:
            self.arrays[name][:] = 0

    def _run(self, command: bytes, row: int = 0, step: int = 0) -> None:
        assert self._steppers is not None
        try:
            self._steppers.run(command, row, step)
        except EnvironmentFailed as error:
            self.close()
            raise self._failed(error) from None

    def _failed(self, error: EnvironmentFailed) -> TrainingFailed:
        when = f"at step {self.steps + 1:,}" if error.action == "a step" else f"in {error.action}"
        return TrainingFailed(f"{self.environment.title}: environment {self._first_env + error.environment} failed {when}: {error.reason}")

    def _continue(self) -> None:
        """Bring the last observations to row 0; after a restored state continue its episodes, or begin new ones."""
        if self._known == self.steps and self._steppers is not None:
            self._carry_over()
        elif self.environment.state and self._steppers is not None:
            self._run(LOAD)
            self._known, self._row, self._anew = self.steps, 0, False
        else:
            self.reset()

    def _carry_over(self) -> None:
        if self._row:
            for name in ("obs", "mask"):
                if name in self.arrays:
                    self.arrays[name][0] = self.arrays[name][self._row]
            self._row = 0
            self._publish(None, 0)

    # Copies between the host and a GPU; on CPU both have the same memory --------------------------------------------------------

    def _allocate(self, horizon: int) -> Trajectory:
        """Return a trajectory that is the shared memory on CPU, or its copy on CUDA."""
        on_device = allocate(self.spec, horizon, self.n_envs, self.device.torch)
        if self.device.kind != "cpu":
            # Pinned memory: the GPU copies rows without the CPU.
            memory = self._shared.bytes
            torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0))
            return on_device
        group = on_device.groups[self.environment.group]
        shared = {name: torch.from_numpy(array) for name, array in self.arrays.items()}
        tensors = {f.name: shared.get(f.name, vars(group)[f.name]) for f in fields(GroupTrajectory)}
        return Trajectory(shared["terminated"], shared["truncated"], {self.environment.group: GroupTrajectory(**tensors)})

    def _fetch_actions(self, row: int) -> bool:
        """Bring the actions of a row to the host; return whether they are finite."""
        actions = self.arrays["action"][row]
        if self.device.kind != "cpu":
            torch.from_numpy(actions).copy_(self._group.action[row])
        if np.isfinite(actions).all():
            return True
        n, _, component = (int(place[0]) for place in np.nonzero(~np.isfinite(actions)))
        value = float(actions[n, 0, component])
        self._fault = Fault(n, self.steps + 1, self.environment.group, "action", 0, component, value, self.environment.title)
        return False

    def _publish(self, row: int | None, after: int) -> None:
        """Bring what a step wrote, its results to `row` and its observations to row `after`, to the device."""
        if self.device.kind == "cpu":
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
