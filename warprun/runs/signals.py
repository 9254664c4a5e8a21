"""Signals that end a command: at the next boundary of a training, at once where nothing would be lost.

SIGINT, SIGTERM, SIGHUP and SIGUSR1 end the process with 128 + the number of the signal: 130, 143, 129, 138 (Linux). A thread reads them, so
that they count also while the main thread imports a package, compiles a kernel or never returns from one. No numba, no torch.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
GRACE_S = 1.5
"""Longest time that a process takes to end after a signal that does not wait for a boundary."""
REPEAT_S = 0.3
"""Seconds within which the same signal counts once: a terminal and a batch system may both pass it on."""


class StopRequests:
    """The signals that the process was sent.

    Within `deferred` the first signal sets `number`, which the training reads at its next boundary; a second one ends the process. Outside,
    the first one ends it. Before a process ends so, the `last_words` are called: they must be short and may not raise.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        """The first signal; None if there was none."""
        self._when_s = 0.0
        self._deferring = 0
        """Contexts `deferred` that are open."""
        self._undisturbed = threading.Lock()
        self._last_words: list[Callable[[str], None]] = []
        self._passes_on: Callable[[int], None] | None = None

    def received(self, number: int) -> None:
        """Handle a signal, in the thread that reads them."""
        if self._passes_on:
            self._passes_on(number)
            return
        now = time.monotonic()
        if number == self.number and now - self._when_s < REPEAT_S:
            return
        waits = self._deferring > 0 and self.number is None
        self.number, self._when_s = self.number or number, now
        if not waits:
            self._end(self.number)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let the first signal wait for a boundary, in this context."""
        self._deferring += 1
        try:
            yield
        finally:
            self._deferring -= 1

    @contextmanager
    def passed_on(self, to: Callable[[int], None]) -> Iterator[None]:
        """Call `to` with the number of every signal, in this context: the processes that this one waits for handle it."""
        self._passes_on = to
        try:
            yield
        finally:
            self._passes_on = None

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Let a signal that ends the process wait for the end of this context, which must be short: files are complete then."""
        with self._undisturbed:
            yield

    @contextmanager
    def last_words(self, say: Callable[[str], None]) -> Iterator[None]:
        """Call `say`, with the name of the signal, if a signal ends the process in this context."""
        self._last_words.append(say)
        try:
            yield
        finally:
            self._last_words.remove(say)

    def _end(self, number: int) -> None:
        code = 128 + number
        # If a disk does not answer, the process ends anyway.
        deadline = threading.Timer(GRACE_S, os._exit, (code,))
        deadline.daemon = True
        deadline.start()
        name = signal.Signals(number).name
        self._undisturbed.acquire(timeout=GRACE_S)  # for good: the main thread must not write any more
        for say in reversed(self._last_words):
            with suppress(Exception):
                say(name)
        with suppress(Exception):
            sys.stdout.flush()
            if sys.stdout.isatty():
                print("\x1b[?25h", end="", flush=True)  # the cursor, which the live view hides
        with suppress(Exception):
            # Not `sys.stderr`: the main thread may collect there what Hydra prints.
            stream = sys.__stderr__ or sys.stderr
            moving = "\r\x1b[K" if stream.isatty() else ""  # the line of `kernels.waiting`
            stream.flush()
            # Other threads go on until the process has ended: what they write must not follow the last words.
            screen, nowhere = os.dup(stream.fileno()), os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.write(screen, f"{moving}warprun: error: {explain(number)}\n".encode(stream.encoding, "replace"))
        deadline.cancel()
        requeue(number)
        os._exit(code)


requests = StopRequests()
"""The stop requests of this process."""


def watch() -> None:
    """Read signals in a thread from now on. Only a command line does so: it owns its process."""
    if threading.current_thread() is not threading.main_thread():
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN or number == signal.SIGINT:  # nohup ignores SIGHUP
            signal.signal(number, _leave_to_thread)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=_leave_to_child)
    threading.Thread(target=_read, args=(reader,), name="warprun-signals", daemon=True).start()


def explain(number: int) -> str:
    """Return the line that a command ends with after a signal."""
    return "interrupted" if number == signal.SIGINT else f"interrupted by {signal.Signals(number).name}"


def requeue(number: int) -> None:
    """Ask SLURM to run this job again if the signal was SIGUSR1, which SLURM sends before a time limit (`sbatch --signal=USR1@60`)."""
    job = os.environ.get("SLURM_JOB_ID")
    if "SLURM_ARRAY_JOB_ID" in os.environ:  # the number of one task is also that of the whole array
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ.get('SLURM_ARRAY_TASK_ID', '')}"
    if number != signal.SIGUSR1 or not job:
        return
    import subprocess  # not needed by others, and its import takes a while

    try:
        subprocess.run(["scontrol", "requeue", job], check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        with suppress(OSError, ValueError):
            print(f"warning: cannot requeue SLURM job {job}: {error}", file=sys.stderr, flush=True)


@contextmanager
def flagged() -> Iterator[None]:
    """Let SIGINT and SIGTERM set `requests.number` in this context; a second one raises KeyboardInterrupt.

    For programs that call `warprun.train`: their own handlers return afterwards. Nothing changes where `watch` reads signals, and outside
    the main thread, to which Python gives no signals.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is _leave_to_thread:
        yield
        return

    def flag(number: int, frame: FrameType | None) -> None:
        if requests.number is not None:
            raise KeyboardInterrupt
        requests.number = number

    requests.number = None
    before = {number: signal.signal(number, flag) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        requests.number = None
        for number, former in before.items():
            signal.signal(number, former)


def _leave_to_thread(number: int, frame: FrameType | None) -> None:
    """Replace the default action of a signal, which would end the process."""


def _leave_to_child() -> None:
    """Give a forked process, such as that of a pool, the default actions: its signals are not those of this process."""
    with suppress(ValueError):  # forked from another thread, which cannot change them
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _read(reader: int) -> None:
    while True:
        for number in os.read(reader, 64):
            if number not in SIGNALS:
                continue
            try:
                requests.received(number)
            except BaseException:
                os._exit(128 + number)  # this thread must not end while the process goes on
