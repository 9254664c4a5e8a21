"""The `Simulator` of environments that Python steps; kernels draw their actions, by the rules of every other environment."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch

from warprun.errors import TrainingFailed, UserError
from warprun.simulation.batch import BatchClass
from warprun.simulation.device import Device
from warprun.simulation.exploration import Exploration
from warprun.simulation.external.recipe import ExternalEnvironment
from warprun.simulation.faults import Fault, first_in_rollout
from warprun.simulation.sampler import Sampler
from warprun.simulation.simulator import Act, Episodes
from warprun.simulation.trajectory import Trajectory
from warprun.state import Counter, State

SEEDS = 2**31
"""Seeds of environments are below: many libraries take 32 bits."""


class Stepper(Protocol):
    """N environments of one actor that a class of the user steps, or other processes: it steps, resets and counts.

    A step reads the actions of a row of `trajectory`. It writes reward and ends to this row, and observations and masks to the row after.
    Where an episode ended, these are the first ones of the next episode; the last observation of a truncated one is in `final_obs`.
    Methods raise TrainingFailed.
    """

    trajectory: Trajectory
    """Allocated by the stepper: what steps may need memory of its own kind."""
    steps: Counter
    """Steps that every environment has taken, as the simulator counts them: in a step those before it."""
    resets: Counter
    """How often the simulator has reset all environments."""

    @property
    def environment(self) -> ExternalEnvironment | BatchClass: ...

    @property
    def tried(self) -> bool:
        """Whether this process has taken a step of such environments before."""

    @property
    def replaceable(self) -> bool:
        """See `Fault`."""

    @property
    def started(self) -> bool:
        """Whether there are environments."""

    @property
    def stopped(self) -> bool | None:
        """Whether a number was not finite since all were reset, or a mask forbade every action; None if a step does not look."""

    def start(self) -> None:
        """Make the environments."""

    def begin(self) -> None:
        """Begin an episode in every environment; writes row 0."""

    def step(self, row: int) -> torch.Tensor:
        """Take a step with the actions of a row; return where an episode ended [N] bool. Takes none if an action is not finite."""

    def try_step(self) -> None:
        """Take a step with the actions of row 0, before all are reset, and look for what can be wrong with it."""

    def take_totals(self) -> tuple[int, int, float, int]:
        """Return of the episodes that have ended number, steps and rewards, and how many were replaced; set these numbers to 0."""

    def save(self) -> None:
        """Let `state` have the states of the environments as they are now, if they tell them."""

    def load(self) -> None:
        """Continue from the states in `state`."""

    def state(self) -> State:
        """Return the numbers of `take_totals` and, of environments that tell their states, these and the counts of episodes that go on."""

    def place(self, method: str, field: str) -> str:
        """Return "FILE:LINE in NAME: " of the code of the user that gave a field (`faults.FIELDS`) in a reset or a step."""

    def close(self) -> None:
        """End all processes and close the environments. A second call does nothing."""


class SteppedSimulator:
    """Lets a `Stepper` step environments with actions that kernels draw.

    A rollout stops at the first fault that the stepper finds: no action can be chosen there.
    """

    def __init__(self, stepper: Stepper, *, first_env: int, seed: int, device: Device, exploration: Exploration | None) -> None:
        self.stepper, self.environment, self.trajectory = stepper, stepper.environment, stepper.trajectory
        self.spec, self.device, self.n_envs = self.environment.spec, device, self.trajectory.n_envs
        (group_spec,) = self.spec.groups
        self._name = group_spec.name
        self._group = self.trajectory.groups[self._name]
        self._sampler = Sampler(group_spec, self.trajectory, seed, device, exploration, first_env)
        self._known = 0
        """`steps` as this object has counted them; if they differ, a state was restored."""
        self._row = 0
        """Row of the trajectory with the current observations."""
        self._anew = True
        """Whether all episodes have begun since the last rollout."""
        self._began = -1
        """`steps` when all environments were last reset; -1: not by this object."""
        self._fault: Fault | None = None
        """That at which the stepper has stopped."""

    @property
    def steps(self) -> int:
        return self.stepper.steps.value

    def prepare(self) -> None:
        """Compile the kernels that sample, make the environments, try a step, and reset. Raises UserError.

        A step is tried before the reset of a run, which may take minutes.
        """
        try:
            self._start()
            if not self.stepper.tried:
                self._begin()
                self._refuse_fault()
                self._group.policy_output.zero_()  # `_start` has drawn while masks forbade everything, which leaves -inf
                self._sampler.draw(0, self.steps, greedy=False)  # actions that the masks of the beginning allow
                self.stepper.try_step()
            self.reset()
            self._refuse_fault()
        except TrainingFailed as error:
            raise UserError(str(error)) from None

    def reset(self) -> None:
        """Begin an episode in every environment, its observation in row 0, and forget faults. Raises TrainingFailed."""
        self._start()
        self.stepper.resets.value += 1
        self._begin()
        self._row, self._known, self._anew = 0, self.steps, True
        self.trajectory.forget()
        self._sampler.forget(torch.ones_like(self.trajectory.terminated[0]))

    @torch.no_grad()
    def collect(self, act: Act, greedy: bool = False) -> Trajectory:
        """Take `horizon` steps with sampled actions, or the most probable ones, and return `trajectory`. Raises TrainingFailed."""
        self._continue()
        taken = self.trajectory
        taken.continues.fill_(not self._anew)
        self._anew = False
        for row in range(taken.horizon):
            if self.stepper.stopped:
                break
            act(taken, row)
            self._sampler.draw(row, self.steps, greedy)
            self._sampler.forget(self.stepper.step(row))
            self.stepper.steps.value += 1
            self._row = row + 1
        self._known = self.steps
        self._note_fault()
        return taken

    def episodes(self) -> Episodes:
        count, steps, rewards, replaced = self.stepper.take_totals()
        share = 1.0 / count if count else float("nan")
        return Episodes(count, steps * share, {self._name: rewards * share}, replaced)

    def fault(self, wait: bool = False) -> Fault | None:
        """Return the first fault since the last reset, or, if steps do not look, of the last rollout, on a GPU only with `wait`."""
        if self.stepper.stopped is None and (wait or self.device.kind == "cpu"):
            return self._first_fault()
        return self._fault

    def state(self) -> State:
        """Return counters and totals, and the episodes that go on; if nobody can continue these, a restored simulator begins new ones."""
        state = {"steps": self.stepper.steps.tensor, "resets": self.stepper.resets.tensor}
        if self._sampler.noise is not None:
            state["noise"] = self._sampler.noise
        if self.environment.resumes:
            self._carry_over()
            if self.stepper.started and self._known == self.steps:
                self.stepper.save()
            state |= {name: seen[0] for name, seen in self._group.seen().items()}
        return state | self.stepper.state()

    def close(self) -> None:
        self.stepper.close()

    def _start(self) -> None:
        if not self.stepper.started:
            self._sampler.prepare()
            self.stepper.start()

    def _begin(self) -> None:
        self._fault = None
        self._row, self._began = 0, self.steps
        self.stepper.begin()
        self._note_fault()

    def _continue(self) -> None:
        """Bring the last observations to row 0; after a restored state continue its episodes, or begin new ones."""
        if self.stepper.started and self._known == self.steps:
            self._carry_over()
        elif self.stepper.started and self.environment.resumes:
            self.stepper.load()
            self._known, self._row, self._anew = self.steps, 0, False
        else:
            self.reset()

    def _carry_over(self) -> None:
        if self._row:
            for seen in self._group.seen().values():
                seen[0].copy_(seen[self._row])
            self._row = 0

    def _refuse_fault(self) -> None:
        """Raise UserError for a fault of the beginning of an episode."""
        if self._fault is not None:
            raise UserError(f"{self._fault}; reset must begin an episode that can go on")

    def _note_fault(self) -> None:
        if self.stepper.stopped and self._fault is None:
            self._fault = self._first_fault()
            assert self._fault is not None, "the stepper has stopped without a fault"

    def _first_fault(self) -> Fault | None:
        """Return the first fault of the last rollout (waits for the device)."""
        found = first_in_rollout(self.spec.groups[0], self.trajectory, self._row)
        if found is None:
            return None
        step = self.steps - self._row + found.step
        method, step = ("reset", 0) if step == self._began else ("step", step)
        place = self.stepper.place(method, found.field)
        return replace(found, step=step, of=self.environment.title, replaceable=self.stepper.replaceable, place=place)
