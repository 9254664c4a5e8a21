"""The end of a command: its exit code and its error line. Imported before anything heavy, so it imports little."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from warprun.errors import MOST_PRINTED, OtherRankError, TrainingFailed, UserError, printable, shown
from warprun.runs import signals
from warprun.user_code import place_of

DONE, FAILED, USER_ERROR, NO_READER = 0, 1, 2, 141
"""Exit codes; NO_READER is 128 plus the number of SIGPIPE. Other signals have codes like it, see `warprun.runs.signals`."""
PATIENCE_S = 3.0
"""Time that threads have to end after a command, before a line names them."""


class Outcome(NamedTuple):
    """The end of a command."""

    code: int
    message: str = ""
    """The error in one line; empty if there is nothing to print."""
    traceback: str = ""
    hint: str = ""
    """Added to the message if the traceback is not shown."""

    def tell(self) -> None:
        """Print the message, and the traceback if the user asks for it."""
        show_traceback = "1" in (os.environ.get("HYDRA_FULL_ERROR"), os.environ.get("WARPRUN_TRACEBACK"))
        # Standard error may be a full disk or a closed pipe; the exit code tells the rest.
        with suppress(OSError):
            if show_traceback and self.traceback:
                print(self.traceback, file=sys.stderr, end="")
            if self.message:
                message = self.message + ("" if show_traceback else self.hint)
                print(f"warprun: error: {printable(message, MOST_PRINTED)}", file=sys.stderr, flush=True)


def attempt(command: Callable[[], int]) -> Outcome:
    """Run a command; return its exit code, with its error if it failed."""
    try:
        return Outcome(command())
    except UserError as error:
        return _failed(str(error), USER_ERROR)
    except OtherRankError:
        return Outcome(USER_ERROR)  # rank 0 says what is wrong
    except BrokenPipeError:
        return Outcome(NO_READER)  # `warprun envs | head`: what it wanted to read, it has read
    except TrainingFailed as error:
        return _failed(str(error), FAILED)
    except KeyboardInterrupt:
        # If the signal arrives while Numba executes generated code, CPython marks it as unhandled and later exits with its own code.
        # An `exec` that runs to its end removes the mark.
        exec("")
        number = signals.requests.number or signal.SIGINT
        return _failed(signals.explain(number), 128 + number)
    except SystemExit as error:
        # Raised by the code of an environment in the middle of a run. Hydra's own have no place.
        place = place_of(error)
        if not place:
            raise
        return _failed(f"{place}SystemExit: {error.code}; an environment cannot end the program", FAILED)
    except Exception as error:
        place = place_of(error)
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG and not place:
            return _failed(f"{shown(str(error.filename))}: {error.strerror}", USER_ERROR)
        if isinstance(error, OSError) and not place:
            return _failed(f"{error.filename or 'standard output'}: {error.strerror or error}", FAILED)
        return _failed(f"{place}{type(error).__name__}: {error}", FAILED, " (WARPRUN_TRACEBACK=1 shows the traceback)")


def _failed(message: str, code: int, hint: str = "") -> Outcome:
    return Outcome(code, message, traceback.format_exc(), hint)


def name_threads() -> None:
    """Let a line name the threads of the user that keep this process from ending, since Python waits for all that are no daemons."""
    if _waited_for():
        threading.Thread(target=_name_threads, daemon=True).start()


def _waited_for() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()]


def _name_threads() -> None:
    from warprun.simulation.external.recipe import is_own

    time.sleep(PATIENCE_S)
    frames = sys._current_frames()
    for thread in _waited_for():
        frame = frames.get(thread.ident or 0)
        while frame is not None and not is_own(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None:
            place = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
            line = f"{place}: this thread keeps the command from ending; make it a daemon, or end it in close()"
            print(printable(line, MOST_PRINTED), file=sys.stderr, flush=True)
