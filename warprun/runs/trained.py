"""Open a run folder, perhaps of somebody else, to act with its trained agent: for `warprun eval` and `warprun play`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from warprun.config import kept
from warprun.config.checks import check_settings
from warprun.config.memory import check_evaluation_memory
from warprun.config.networks import check_size
from warprun.config.opening import open_config
from warprun.config.schema import Config, from_dict, load_environment
from warprun.learning.interfaces import Agent
from warprun.runs import checkpoint, rundir
from warprun.runs.build import Setup, make_agent
from warprun.state import restore


@dataclass(frozen=True)
class Opened:
    """A run folder whose code is trusted, with its config and environment."""

    folder: Path
    config: Config
    module: ModuleType
    """The module that defines the environment."""


def open_run(folder: Path, device: str, trusted: bool, episodes: int | None) -> Opened:
    """Open a run to play `episodes` on a device; None: as many as in its final evaluation. Nothing is built.

    `trusted`: code of the run folder may run even if no run of this user put it there (`config.opening`). Prints a line for each
    difference between the environment of the run and that of now. Raises UserError.
    """
    config = open_config(folder, replace(from_dict(rundir.read_config(folder)), device=device), trusted)
    # Directly after the check of the folder: an evaluation takes minutes, in which the folder could change.
    _, module = load_environment(config.env, config.concurrency.parallel)
    environment = check_settings(config)
    check_evaluation_memory(config, environment, episodes or config.eval.episodes_at_end)
    own = kept.find(config.env.module)
    if own:
        for difference in own.differences():
            print(difference)
    return Opened(folder, config, module)


def load_checkpoint(run: Opened, line: str) -> checkpoint.Loaded:
    """Return the newest checkpoint (`checkpoint.LAST`) or the best one (`BEST`) of a run. Raises UserError."""
    saved = checkpoint.load(run.folder, line)
    check_size(run.config.agent, saved.path.stat().st_size)
    return saved


def trained_agent(setup: Setup, saved: checkpoint.Loaded) -> Agent:
    """Return an agent that acts as the one in a checkpoint. Raises UserError."""
    agent = make_agent(setup)
    own_state = {f"agent/{name}": tensor for name, tensor in agent.policy_state().items()}
    restore(own_state, {name: saved.tensors[name] for name in own_state if name in saved.tensors})
    return agent
