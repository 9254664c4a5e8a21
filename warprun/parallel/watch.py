"""Signs of life: every rank gives one a second in a store at rank 0, and learns there that another one was lost."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from warprun import processes
from warprun.errors import RankFailed

if TYPE_CHECKING:
    import torch.distributed as dist

Connect = Callable[[float], "dist.Store"]
"""Returns a new connection to the store of rank 0, whose calls take so many seconds at most."""
FAULT = "fault"
"""Key in the store: why the run has failed, in one line."""
READ = "fault/read"
"""Key in the store: how many ranks know it, apart from rank 0."""
GRACE_S = 3.0
"""Seconds that a rank has to end by itself after another one was lost."""
OTHERS_WAIT_S = processes.FIRST_WAITS_S
"""Seconds that ranks wait longer than rank 0."""


class Watch:
    """Gives signs of life of this rank in a thread, and looks for those of the others.

    Rank 0 looks at all of them, the others at rank 0, which holds the store. A rank that gives none for `timeout_s` is
    lost; on the machine of rank 0, as soon as its process has ended. If ranks join in sums (`progress`), one that is
    behind the others for `timeout_s` is stuck. If a rank is lost, stuck or has failed, `check` raises in all others; a
    rank that is blocked and cannot call `check` is ended by its thread.
    """

    progress: Callable[[], int] | None = None
    """Returns how many sums this rank has come to; None: ranks do not join in sums."""

    def __init__(self, name: Callable[[int], str], rank: int, size: int, timeout_s: float, connect: Connect) -> None:
        """`name` returns a rank with its role; `connect(timeout_s)` returns a new connection to the store."""
        self._name, self._rank, self._size, self._timeout_s = name, rank, size, timeout_s
        self._period_s = min(1.0, timeout_s / 5)
        self._connect = connect
        self._store = connect(timeout_s)
        self._place = f"{processes.machine_name()} {os.getpid()}"
        self._behind: dict[int, tuple[int, float]] = {}
        """Rank -> the sums that it has come to, and when others had come to more."""
        self._fault = ""
        self._lost = 0
        """Ranks that are lost: they do not read why."""
        self._has_told = False
        """Whether this rank has failed itself, and says why where that belongs."""
        self._ended = threading.Event()
        self.last_words: Callable[[str], None] = lambda why: None
        """Called with the reason before this rank is ended from its thread."""
        self._answered_s = time.monotonic()
        """When the store answered last."""
        self._threads = [threading.Thread(target=work, name="warprun-watch", daemon=True) for work in (self._beat, self._guard)]
        for thread in self._threads:
            thread.start()

    def store(self) -> dist.Store:
        """Return a connection to the store, for processes to meet."""
        return self._connect(self._timeout_s)

    def check(self) -> None:
        """Raise RankFailed if a rank was lost or has failed."""
        if self._fault:
            raise RankFailed(self._fault)

    def raise_reason(self) -> None:
        """Wait until it is known which rank was lost or has failed, and raise RankFailed; return if none was."""
        deadline = time.monotonic() + self._timeout_s + GRACE_S
        while time.monotonic() < deadline and not self._ended.is_set():
            self.check()
            time.sleep(0.05)

    def fail(self, why: str) -> None:
        """Tell all ranks that this one has failed. Rank 0 returns as soon as they know why: the store ends with it."""
        if self._ended.is_set():
            return
        self._has_told = True
        with suppress(RuntimeError):
            if not self._fault:
                self._fault = f"{self._name(self._rank)}: {why}"
                self._store.set(FAULT, self._fault)
                self._store.add(READ, int(self._rank > 0))
            if self._rank == 0:
                deadline = time.monotonic() + 2 * self._period_s
                while self._store.add(READ, 0) < self._size - 1 - self._lost and time.monotonic() < deadline:
                    time.sleep(0.01)

    def end(self) -> None:
        """Give no more signs of life: the run is over."""
        self._ended.set()
        for thread in self._threads:
            thread.join(self._period_s)

    def _beat(self) -> None:
        seen: dict[int, tuple[str, float]] = {}
        watched = [rank for rank in range(self._size) if rank != self._rank] if self._rank == 0 else [0]
        number = 0
        while not self._ended.wait(self._period_s):
            number += 1
            try:
                self._store.set(f"beat/{self._rank}", f"{number} {self.progress() if self.progress else -1} {self._place}")
                if not self._fault and self._store.check([FAULT]):
                    self._fault = self._store.get(FAULT).decode()
                    self._store.add(READ, int(self._rank > 0))
                for rank in watched if not self._fault else ():
                    self._look(rank, seen)
                if self.progress and self._rank == 0 and not self._fault:
                    joined = {rank: int(beat.split()[1]) for rank, (beat, _) in seen.items() if beat} | {0: self.progress()}
                    self._compare({rank: count for rank, count in joined.items() if count >= 0})
                self._answered_s = time.monotonic()
            except RuntimeError:
                self._lose_first("does not answer any more")
            if self._fault:
                return

    def _guard(self) -> None:
        """End this process if another rank was lost and the main thread does not end it."""
        while not self._fault:
            if self._ended.wait(self._period_s):
                return
            # If the process of rank 0 is stopped, a call to its store does not return.
            if time.monotonic() - self._answered_s > self._timeout_s - self._period_s:
                self._lose_first(f"gave no sign of life for {self._timeout_s:g} s")
        self._end_soon()

    def _lose_first(self, why: str) -> None:
        """Note that rank 0, which speaks for all, is lost: rank 1 says so."""
        if self._fault:
            return
        self._fault = f"{self._name(0)} is lost: it {why}"
        processes.first_is_lost = True
        if self._rank == 1 and not self._has_told:
            self._has_told = True
            processes.last_word(f"warprun: error: {self._fault}")

    def _look(self, rank: int, seen: dict[int, tuple[str, float]]) -> None:
        now, key = time.monotonic(), f"beat/{rank}"
        beat = self._store.get(key).decode() if self._store.check([key]) else ""
        former, since = seen.get(rank, ("", now))
        if beat != former or rank not in seen:
            seen[rank] = (beat, now)
        elif beat and now - since > 2 * self._period_s and _has_ended(beat):
            self._lose(f"{self._name(rank)} is lost: its process {beat.split()[3]} has ended")
        elif now - since > self._timeout_s - 2 * self._period_s:
            self._lose(f"{self._name(rank)} is lost: it gave no sign of life for {self._timeout_s:g} s")

    def _compare(self, joined: dict[int, int]) -> None:
        """Find a rank that is behind the others in the sums that all come to."""
        now, most = time.monotonic(), max(joined.values())
        for rank, count in joined.items():
            former, since = self._behind.get(rank, (count, now))
            if count == most or count != former:
                self._behind[rank] = (count, now)
            elif now - since > self._timeout_s - 2 * self._period_s:
                self._lose(f"{self._name(rank)} is stuck: the others have waited for it for {self._timeout_s:g} s")
                return
            else:
                self._behind[rank] = (count, since)

    def _lose(self, why: str) -> None:
        self._fault = why
        self._lost = 1
        self._store.set(FAULT, why)

    def _end_soon(self) -> None:
        """End this process if its main thread does not."""
        # Rank 0 prints the error and exits, and mpiexec then ends all. Others end themselves only if that does not happen.
        patience_s = OTHERS_WAIT_S if self._rank and not processes.first_is_lost else 0.0
        if self._ended.wait(GRACE_S + patience_s + 0.3 * self._rank):
            return
        with suppress(Exception):
            self.last_words(self._fault)
        if processes.first_is_lost:  # rank 1 has said so
            os._exit(processes.code_of_lost())
        if not self._has_told:
            processes.last_word(f"warprun: error: {self._fault}")
        os._exit(1)


def _has_ended(beat: str) -> bool:
    """Return whether the process of a sign of life was one of this machine and has ended."""
    _, _, host, process = beat.split()
    return host == processes.machine_name() and processes.has_ended(int(process))
