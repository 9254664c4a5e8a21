"""The writer of the checkpoints of a run, which limits their share of the time and reports failures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from warprun.config.cadence import Recurring
from warprun.config.schema import CheckpointConfig
from warprun.errors import TrainingFailed
from warprun.files import all_to_disk
from warprun.runs import checkpoint
from warprun.runs.measured import Notes
from warprun.runs.rundir import Held
from warprun.state import State

SHARE = 0.02
"""Largest share of the time of a run that checkpoints at intervals of time take."""
LOST_S = 10.0
"""Seconds of a run that may be lost if its process is killed in an evaluation: that many are not worth a checkpoint of their own."""
KEPT_BEST = 2
"""Best checkpoints that are kept: a run that is resumed may discard the last one."""


class NotSavedError(TrainingFailed):
    """A checkpoint could not be written: one line with path and reason."""


class Saver:
    """Writes checkpoints into the folder of a run; `message` gets lines for the user."""

    def __init__(self, held: Held, settings: CheckpointConfig, message: Callable[[str], None]) -> None:
        self._held, self._folder, self._settings, self._message = held, held.folder, settings, message
        self._saved = self._next = time.monotonic()
        """When this process saved a checkpoint last, or began; and the time before which none at an interval of time is affordable."""
        self._began_in = Path.cwd()
        self._failure = ""
        """Why the last checkpoint could not be written; the same reason is told once."""

    def save(self, env_steps: int, state: State, meta: checkpoint.Meta) -> None:
        """Write a checkpoint to resume from, and the run folder to the disk. Raises NotSavedError, and TrainingFailed if the run folder
        was removed."""
        began = time.monotonic()
        with self._refusals():
            checkpoint.save(self._folder, env_steps, state, meta, self._settings.keep)
            all_to_disk(self._folder)
        self._saved = time.monotonic()
        self._next = self._saved + (self._saved - began) / SHARE

    def save_if_possible(self, env_steps: int, state: State, meta: checkpoint.Meta) -> None:
        """Do what `save` does; if that is not possible, say so: there may be space later."""
        with self._told():
            self.save(env_steps, state, meta)

    def save_for_now(self, env_steps: int, state: State, meta: checkpoint.Meta) -> None:
        """Write a checkpoint to resume from if the process ends before the next one, which comes soon; if that is not possible, say so."""
        with self._told(), self._refusals():
            checkpoint.save(self._folder, env_steps, state, meta, self._settings.keep)
            self._saved = time.monotonic()

    @property
    def is_overdue(self) -> bool:
        """Whether the last checkpoint, or the beginning of this process, is so long ago that an evaluation needs one before it."""
        return time.monotonic() - self._saved > LOST_S

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        self.refuse_removed_folder()
        try:
            yield
        except OSError as error:
            raise NotSavedError(f"cannot write a checkpoint to {error.filename}: {error.strerror}") from None

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except NotSavedError as error:
            if str(error) != self._failure:
                self._message(f"{error}; training goes on, {checkpoint.newest(self._folder)}")
            self._failure = str(error)
        else:
            self._failure = ""

    def save_best(self, env_steps: int, policy: State, meta: checkpoint.Meta) -> None:
        """Write the policy to the folder of the best checkpoint; if that is not possible, say so.

        Raises TrainingFailed if the run folder was removed.
        """
        self.refuse_removed_folder()
        try:
            checkpoint.save(self._folder, env_steps, policy, meta, KEPT_BEST, checkpoint.BEST)
        except OSError as error:
            self._message(f"cannot write the best checkpoint to {error.filename}: {error.strerror}; training goes on")

    def is_affordable(self, cadence: Recurring, notes: Notes) -> bool:
        """Return whether another checkpoint, as long as the last one, would keep the share of checkpoints of the time
        below SHARE.

        Only checkpoints at intervals of time are left out, and a note says so.
        """
        if cadence.counts != "seconds" or time.monotonic() >= self._next:
            return True
        notes.once("rare checkpoints", f"checkpoints take long: some are left out, so that they take {SHARE:.0%} of the time")
        return False

    def refuse_removed_folder(self) -> None:
        """Raise TrainingFailed if the run folder was removed: nothing may be written to another one in its place."""
        if self._held.is_there():
            return
        with suppress(FileNotFoundError):  # the working folder may be gone, too
            if (now := Path.cwd()) != self._began_in:
                moved = f"code of yours has changed the working folder to {now}, and {self._folder} is not there"
                raise TrainingFailed(f"{moved}: let it change back, or give run_dir= an absolute path")
        raise TrainingFailed(f"the run folder {self._folder} was removed during the run")
