"""The processes of a run, from the view of the one that drives it: they are set up, agree, work and end together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

import torch

from warprun.config.schema import Config
from warprun.errors import UserError
from warprun.kernels import ahead
from warprun.learning.interfaces import Agent
from warprun.learning.settings.off_policy import OffPolicyConfig
from warprun.runs import checkpoint
from warprun.runs.build import Setup, make_agent, make_training_simulator, note_on_resume, prepare, set_up, threads
from warprun.simulation.simulator import Episodes, Simulator
from warprun.state import State, restore

RANKS = "ranks"
"""Name of the tensor with the number of ranks."""


class Crew:
    """The crew of a run in one process; there is a subclass for each way in which several processes share a run.

    The run calls `set_up`, `make_parts`, perhaps `restore`, then `meet`, `iterate` before every iteration, and `end`.
    The crew answers for the environments of all processes (`env_steps`, `episodes`, `state`); `simulator` has those of
    this process.
    """

    setup: Setup
    agent: Agent
    simulator: Simulator
    """The simulator of this process."""

    def __init__(self) -> None:
        self.opened = ExitStack()
        """Closes the simulator of this process."""

    def together(self) -> AbstractContextManager[None]:
        """Return a context whose block fails in all processes if it fails in one."""
        return nullcontext()

    def set_up(self, config: Config) -> Setup:
        """Return the set-up of this process. Raises UserError."""
        self.n_envs, self.setup = config.n_envs, set_up(config)
        return self.setup

    def make_parts(self, announce: Callable[[str], None], clock: Callable[[], float]) -> tuple[Agent, Simulator]:
        """Return the agent, and the simulator whose rollouts it learns from; `clock` returns the seconds of the run. Raises UserError."""
        self.agent = make_agent(self.setup)
        if processes := ahead.helpers(threads(self.setup.config), self.setup.device.kind == "cuda"):
            ahead.begin(processes)  # its kernels, while this process compiles those of the simulator
        simulator = self._make_simulator(announce, first_env=0)
        ahead.share()
        return self.agent, simulator

    def _make_simulator(self, announce: Callable[[str], None], first_env: int) -> Simulator:
        if self.setup.communicator.rank == 0 and (note := note_on_resume(self.setup)):
            announce(note)
        self.simulator = make_training_simulator(self.setup, self.agent, announce, first_env)
        self.opened.callback(self.simulator.close)
        prepare(self.setup, self.simulator)
        return self.simulator

    def restore(self, saved: checkpoint.Loaded) -> str:
        """Continue this process from a checkpoint; return a line if episodes cannot be continued. Raises UserError.

        If another number of processes saved it, the environments begin new episodes, with draws that none has used.
        """
        size, own = self.setup.communicator.size, own_state(self.agent, self.simulator)
        tensors, ranks = continued(own, saved.tensors, self.setup.communicator.rank, size)
        if ranks == size:
            restore(own, tensors)
            return ""
        if isinstance(self.setup.config.agent, OffPolicyConfig):
            raise UserError(f"{saved.path} has the replay memory of {ranks} processes, and these are {size}: continue with {ranks}")
        restore({name: own[name] for name in tensors}, tensors)
        self.simulator.reset()
        now = f"now there {'is' if size == 1 else 'are'} {size}"
        return f"{ranks} processes saved the checkpoint, {now}: all environments begin new episodes"

    def meet(self, folder: Path, saved: checkpoint.Loaded | None, last_words: Callable[[str], None]) -> str:
        """Wait until the others are set up, and connect with them; return a line about them, empty if there are none. Raises RankFailed.

        They log to `folder` and continue from `saved`. `last_words` gets the reason if this process has to end because another one is lost.
        """
        return ""

    def iterate(self, progress: float) -> None:
        """Tell the others to roll out and learn; schedules follow `progress`, 0 to 1."""

    def has_rollout(self) -> bool:
        """Return whether the simulator's last collection has the steps of all its environments."""
        return True

    @property
    def env_steps(self) -> int:
        """Environment steps of all processes."""
        return self.simulator.steps * self.n_envs

    def episodes(self) -> Episodes:
        """Return the episodes of all processes that ended since the last call."""
        return self.simulator.episodes()

    def state(self) -> State:
        """Return what the agents and simulators of all processes have to save, by the names that it has in a checkpoint."""
        return own_state(self.agent, self.simulator)

    def lost(self) -> Sequence[str]:
        """Return the processes that the run goes on without, each with the reason."""
        return ()

    def metrics(self) -> dict[str, float]:
        """Return what the crew measured since the last call."""
        return {}

    def end(self) -> None:
        """End the run in all processes."""

    def close(self) -> None:
        """Free what this process holds, also after a failure. A second call does nothing."""
        self.opened.close()


def own_state(agent: Agent, simulator: Simulator) -> State:
    """Return the state of a rank by the names that it has in a checkpoint."""
    tensors = {f"agent/{name}": tensor for name, tensor in agent.state().items()}
    tensors |= {f"simulator/{name}": tensor for name, tensor in simulator.state().items()}
    return tensors | {f"trajectory/{name}": tensor for name, tensor in simulator.trajectory.state().items()}


def continued(own: State, saved: Mapping[str, torch.Tensor], rank: int, size: int) -> tuple[dict[str, torch.Tensor], int]:
    """Return the tensors that a rank takes from a checkpoint, and the number of ranks that saved it.

    If another number of ranks saved it, the rank takes the tensors that all ranks share; of a simulator these are its
    counters, so that it does not repeat its draws.
    """
    ranks = int(saved[RANKS]) if RANKS in saved else 1
    # By their names: each access to a tensor reads the file.
    of_rank_0 = {name: saved[name] for name in saved if name.startswith(("agent/", "simulator/", "trajectory/"))}
    prefix = f"rank/{rank}/"
    if ranks == size:
        return of_rank_0 | {name.removeprefix(prefix): saved[name] for name in saved if name.startswith(prefix)}, ranks
    different = {name.split("/", 2)[2] for name in saved if name.startswith("rank/")}
    fits = {name for name, tensor in of_rank_0.items() if name in own and own[name].shape == tensor.shape}
    return {name: of_rank_0[name] for name in fits - different if name.startswith("agent/") or not of_rank_0[name].dim()}, ranks
