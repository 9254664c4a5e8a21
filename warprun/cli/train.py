"""`warprun`: train one run, new or continued, in the processes that it needs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from warprun.cli.gpu_failure import gpu_failure
from warprun.cli.loading import begin_to_load_torch, uncollected
from warprun.cli.outcome import DONE
from warprun.errors import RunHasEndedError, UserError, one_line, shown

if TYPE_CHECKING:
    from warprun.cli.resume import Continued
    from warprun.config.schema import Config
    from warprun.parallel.team import Team
    from warprun.parallel.world import World
    from warprun.runs.crew import Crew
    from warprun.runs.train import Result


def train(overrides: Sequence[str] = ()) -> Result:
    """Train one run from overrides such as "env=cartpole" and "n_envs=1e4", and return its result.

    Raises UserError for a mistake in the overrides, the config or the environment, TrainingFailed for a run that is lost, and
    KeyboardInterrupt for one that was stopped. Of several processes rank 0 returns a result; the others exit.
    """
    result = _run(_asked(overrides))
    if result is None:
        sys.exit(DONE)
    return result


def train_one(overrides: list[str]) -> int:
    """Train the run that `overrides` describe, in the processes that it needs, and return the exit code. Raises what `train` does."""
    from warprun.cli.resume import Continued
    from warprun.config.schema import starts_processes
    from warprun.parallel.start import start
    from warprun.sweeps.launch import is_of_sweep

    for override in overrides:
        if is_of_sweep(override):
            raise UserError(f"{shown(override)} is a setting of a sweep: add -m")
    begin_to_load_torch()
    try:
        asked = _asked(overrides)
        config = asked.config if isinstance(asked, Continued) else asked
        if starts_processes(config):
            return start(config, overrides)
        result = _run(asked)
    except RunHasEndedError as error:
        if "resume=auto" not in overrides:
            raise
        print(error)  # a batch job that is started once more than needed has nothing to do
        return DONE
    if result is None:
        return DONE  # rank 0 says the rest
    from warprun.cli.next_steps import print_next_steps

    print_next_steps([result.folder], result.folder)
    return DONE


def _asked(overrides: Sequence[str]) -> Continued | Config:
    """Return the run that `overrides` describe: one to continue, or the config of a new one. Raises UserError."""
    from warprun.cli.resume import Continued, continued
    from warprun.config.compose import compose
    from warprun.kernels.driver import prepare
    from warprun.parallel.start import in_all_ranks

    def compose_run() -> Continued | Config:
        asked = continued(overrides)
        return asked if isinstance(asked, Continued) else compose(asked)

    def mode(asked: Continued | Config | None) -> str:
        if asked is None:  # all that is known is what was typed
            return "ddp" if "concurrency=ddp" in overrides else ""
        return (asked.config if isinstance(asked, Continued) else asked).concurrency.name

    asked = in_all_ranks(compose_run, mode)
    prepare(asked.config.device if isinstance(asked, Continued) else asked.device)
    return asked


def _run(asked: Continued | Config) -> Result | None:
    """Train, as the rank that this process is; return the result, in ranks other than 0 None."""
    from warprun.cli.resume import Continued
    from warprun.parallel.start import world_of

    config = asked.config if isinstance(asked, Continued) else asked
    world = world_of(config)
    try:
        # Imported after the checks, because they import torch and numba.
        crew = _crew_of(config, world) if world else None
        if world and not crew:
            return None
        if isinstance(asked, Continued):
            with uncollected():
                from warprun.runs.train import resume

            return resume(*asked, crew)
        with uncollected():
            from warprun.runs.train import train

        return train(config, crew)
    except BaseException as error:
        failure = gpu_failure(error, config.env.name) or error
        if world:
            world.watch.fail(one_line(failure))
        if failure is error:
            raise
        raise failure from error


def _crew_of(config: Config, world: World | Team) -> Crew | None:
    """Return the crew of the run if this process drives it; else live as one of its other processes to the end, and return None."""
    from warprun.parallel.team import Team

    if isinstance(world, Team):
        from warprun.parallel.ddp import Learners

        learners = Learners(world)
        if world.rank == 0:
            return learners
        learners.follow(config)
        return None
    from warprun.parallel.roles import LearnersWithActors, check_gpus, run_rank

    if world.layout.learners > 1:
        check_gpus(config, world)
    if world.process == 0:
        return LearnersWithActors(world)
    run_rank(config, world)
    return None
