"""The interface of simulators: many environments that step together and leave a trajectory. Light to import: no numba, no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from warprun.spec import Spec

if TYPE_CHECKING:
    from warprun.simulation.device import Device
    from warprun.simulation.exploration import Exploration
    from warprun.simulation.faults import Fault
    from warprun.simulation.trajectory import Trajectory
    from warprun.state import State

Act = Callable[["Trajectory", int], None]
"""act(trajectory, row) writes `policy_output` and `value[row]` of every group for the observations of row `row`."""


@dataclass(frozen=True)
class Episodes:
    """Episodes that ended since the last time they were counted."""

    count: int
    mean_length: float
    """Steps; NaN without episodes."""
    mean_return: dict[str, float]
    """Per group, the mean over actors of the sum of rewards; NaN without episodes."""
    replaced: int = 0
    """Environments that were reset because a reward, an observation or a mask was not finite (`env.on_nan=reset`)."""


class Simulator(Protocol):
    """Steps `n_envs` environments and keeps the last `horizon` steps as a trajectory.

    The tensors of `trajectory` are allocated once, live as long as the simulator, and are written in place by every `collect`. An
    environment whose episode ends begins the next one in the same step (autoreset): row t + 1 then holds the first observation of the
    new episode, and `final_obs` the last one of a truncated episode.
    """

    spec: Spec
    device: Device
    n_envs: int
    trajectory: Trajectory

    @property
    def steps(self) -> int:
        """Steps that every environment has taken."""

    def prepare(self) -> None:
        """Do what takes long or can fail, such as compiling, and reset. Raises UserError."""

    def reset(self) -> None:
        """Begin an episode in every environment, its observation in row 0, forget faults, and call `trajectory.forget`."""

    def collect(self, act: Act, greedy: bool = False) -> Trajectory:
        """Take `horizon` steps with sampled actions, or the most probable ones, and return `trajectory`. Raises TrainingFailed.

        Row 0 is the last row of the collection before; where all environments have begun new episodes instead, `trajectory.continues` is
        false. `act` is called for each row, unless the simulator runs the networks itself.
        """

    def episodes(self) -> Episodes:
        """Return the episodes that ended since the last call (waits for the device)."""

    def state(self) -> State:
        """Return all that the future depends on, by name: see `warprun.state.Stateful`."""

    def fault(self, wait: bool = False) -> Fault | None:
        """Return the first number that was not finite since the last reset.

        Without `wait` as far as the host knows: on CUDA a fault becomes known with a later call. With `wait` the host waits for the device.
        """

    def close(self) -> None:
        """End processes and free what the simulator holds outside its tensors; the last call. A second call does nothing."""


@runtime_checkable
class SimulatorFactory(Protocol):
    """An environment that is not made of kernel functions: a module may define one as `environment`."""

    @property
    def spec(self) -> Spec:
        """Groups, spaces, masks and the time limit."""

    def make_simulator(
        self, *, n_envs: int, first_env: int, horizon: int, seed: int, device: Device, exploration: Exploration | None
    ) -> Simulator:
        """Return a simulator of `n_envs` environments; `exploration` is that of the agent (`Agent.exploration`).

        They are the environments `first_env` and following of the run, of which another process may hold the others.
        """
