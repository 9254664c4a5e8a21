"""status.json of a run folder, written by the process that drives the run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from warprun.config.run_folder import STATUS
from warprun.runs import rundir


class Status:
    """Writes how a run is going to status.json; `message` gets a line if that fails."""

    def __init__(self, held: rundir.Held, message: Callable[[str], None]) -> None:
        self._held, self._message = held, message
        self._history: dict[str, object] = {"started": rundir.now()}
        self._lock = threading.Lock()
        """The thread that reads signals writes the last status."""

    def resume(self, env_steps: int, changed: Sequence[str]) -> None:
        """Note that the run continues after `env_steps`, with other values of the settings `changed`."""
        former = rundir.read_status(self._held.folder)
        resumes = former.get("resumes")
        resumed = {"at": rundir.now(), "env_steps": env_steps, "changed": list(changed)}
        self._history = {
            "started": former.get("started", rundir.now()),
            "resumes": [*(resumes if isinstance(resumes, list) else []), resumed],
        }

    def write(self, state: str, facts: Mapping[str, object], reason: str | None = None) -> None:
        """Write `state` (running, finished, solved, interrupted or failed) with `facts`, and the `reason` of an end."""
        if not self._held.is_there():
            return
        status = {"state": state} | self._history | dict(facts) | ({"reason": reason} if reason else {})
        with self._lock:
            try:
                rundir.write_status(self._held.folder, status)
            except OSError as error:
                self._message(f"cannot write {self._held.folder / STATUS}: {error.strerror}")
