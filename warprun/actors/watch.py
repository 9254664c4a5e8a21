"""Signs of life: every rank gives one a second in a store at rank 0, and any rank learns there that another one was lost."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from warprun import processes
from warprun.errors import RankFailed

FAULT = "fault"
"""Key in the store: why the run has failed, in one line."""
GRACE_S = 3.0
"""Seconds that a rank has to end by itself after another one was lost."""


class Watch:
    """Gives signs of life of this rank in a thread, and looks for those of the others.

    Rank 0 looks at all of them, the others at rank 0, which holds the store. A rank that gives none for `timeout_s` is lost. If a rank is
    lost or has failed, `check` raises in all others; one that does not call it, because it waits for what will not come, ends.
    """

    def __init__(self, name: Callable[[int], str], rank: int, size: int, timeout_s: float, share: Callable[[str], str]) -> None:
        """`name` returns a rank with its role; `share` passes the text of rank 0 to all."""
        self._name, self._rank, self._size, self._timeout_s = name, rank, size, timeout_s
        self._period_s = min(1.0, timeout_s / 5)
        own = dist.TCPStore(socket.gethostname(), 0, is_master=True, wait_for_workers=False) if rank == 0 else None
        host, _, port = share(f"{own.host}:{own.port}" if own else "").rpartition(":")
        self.address = (host, int(port))
        """Host and port of the store."""
        self._server = own
        self._store = dist.TCPStore(host, int(port), timeout=timedelta(seconds=timeout_s), wait_for_workers=False)
        self._fault = ""
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
        host, port = self.address
        return dist.TCPStore(host, port, timeout=timedelta(seconds=self._timeout_s), wait_for_workers=False)

    def check(self) -> None:
        """Raise RankFailed if a rank was lost or has failed."""
        if self._fault:
            raise RankFailed(self._fault)

    def fail(self, why: str) -> None:
        """Tell all ranks that this one has failed."""
        if self._ended.is_set():
            return
        self._has_told = True
        if not self._fault:
            self._fault = f"{self._name(self._rank)}: {why}"
            with suppress(RuntimeError):
                self._store.set(FAULT, self._fault)

    def end(self) -> None:
        """Give no more signs of life: the run is over."""
        self._ended.set()
        for thread in self._threads:
            thread.join(self._period_s)

    def _beat(self) -> None:
        seen: dict[int, tuple[bytes, float]] = {}
        watched = [rank for rank in range(self._size) if rank != self._rank] if self._rank == 0 else [0]
        number = 0
        while not self._ended.wait(self._period_s):
            number += 1
            try:
                self._store.set(f"beat/{self._rank}", str(number))
                if not self._fault and self._store.check([FAULT]):
                    self._fault = self._store.get(FAULT).decode()
                for rank in watched if not self._fault else ():
                    self._look(rank, seen)
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

    def _look(self, rank: int, seen: dict[int, tuple[bytes, float]]) -> None:
        now, key = time.monotonic(), f"beat/{rank}"
        beat = self._store.get(key) if self._store.check([key]) else b""
        former, since = seen.get(rank, (None, now))
        if beat != former:
            seen[rank] = (beat, now)
        elif now - since > self._timeout_s - 2 * self._period_s:
            self._fault = f"{self._name(rank)} is lost: it gave no sign of life for {self._timeout_s:g} s"
            self._store.set(FAULT, self._fault)

    def _end_soon(self) -> None:
        """End this process if its main thread does not."""
        if self._ended.wait(GRACE_S + 0.3 * self._rank):
            return
        with suppress(Exception):
            self.last_words(self._fault)
        if not self._has_told:
            processes.last_word(f"warprun: error: {self._fault}")
        os._exit(1)
