"""The ranks of a data-parallel run, which all learn: what they agree on at the start, through a store at rank 0."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch.distributed as dist

from warprun.errors import OtherRankError, RankFailed, UserError, one_line
from warprun.parallel.watch import Watch
from warprun.processes import SOCKET, meeting_place

MEET_S = 300.0
"""Seconds in which all ranks must have come."""
PAUSE_S = 0.01
"""Sleep between two looks into the store."""


class Team:
    """The ranks of a data-parallel run."""

    def __init__(self, rank: int, size: int) -> None:
        """Meet at the place of `processes.meeting_place`. Raises UserError."""
        self.rank, self.size = rank, size
        self._host, self._port = meeting_place()
        self._agreed = self._shared = 0
        self._watch: Watch | None = None
        self._server = self._serve() if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" else None
        try:
            self._store = self._connect(MEET_S)
        except RuntimeError:
            raise UserError(f"rank {rank} cannot reach rank 0 at {self._host}, port {self._port} (MASTER_ADDR, MASTER_PORT)") from None

    @staticmethod
    def name(rank: int) -> str:
        """Return a rank for messages."""
        return f"rank {rank}"

    @property
    def watch(self) -> Watch:
        """The watch, from `begin` on."""
        assert self._watch
        return self._watch

    def begin(self, timeout_s: float) -> None:
        """Watch the other ranks from now on."""
        self._watch = Watch(self.name, self.rank, self.size, timeout_s, self._connect)

    def share(self, text: str) -> str:
        """Return the text of rank 0."""
        self._shared += 1
        key = f"shared/{self._shared}"
        if self.rank == 0:
            self._store.set(key, text)
            return text
        return self._get(key)

    def agree(self, own: str, error: Exception | None) -> None:
        """Return if `own`, the error of a rank in one line, is empty in all ranks.

        Else raise: in rank 0 a UserError that names the first rank that failed, unless it is rank 0 itself, whose `error` the caller
        raises; in the others OtherRankError.
        """
        self._agreed += 1
        key = f"agreed/{self._agreed}"
        if self.rank:
            self._store.set(f"{key}/{self.rank}", own)
            with suppress(RuntimeError):  # rank 0 has ended, and has said why
                if self._get(key) == "":
                    return
                self._store.add(f"{key}/read", 1)
            raise OtherRankError from error
        errors = [own, *(self._get(f"{key}/{rank}") for rank in range(1, self.size))]
        first = next((rank for rank, text in enumerate(errors) if text), None)
        self._store.set(key, "" if first is None else errors[first])
        if first is None:
            return
        self._wait_for_readers(f"{key}/read")
        if first:
            raise UserError(f"{self.name(first)}: {errors[first]}")

    @contextmanager
    def together(self) -> Iterator[None]:
        """Do something in all ranks or in none: if it fails in one, it fails in all, and rank 0 raises the error of the first.

        Every rank enters the same contexts in the same order.
        """
        try:
            yield
        except Exception as error:
            self.agree(one_line(error), error)
            raise
        self.agree("", None)

    def compare(self, what: object, advice: str) -> None:
        """Raise if `what` is the same in two ranks."""
        with self.together():
            self._store.set(f"own/{self.rank}", json.dumps(what))
            others = [self._get(f"own/{rank}") for rank in range(self.rank)]
            if json.dumps(what) in others:
                raise UserError(f"it has the same {advice}")

    def _serve(self) -> dist.Store:
        listening = os.environ.get(SOCKET)
        try:
            return dist.TCPStore(
                self._host,
                self._port,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=int(listening) if listening else None,
            )
        except RuntimeError as error:
            reason = one_line(error).removeprefix("RuntimeError: ")
            raise UserError(f"rank 0 cannot listen at port {self._port} ({reason:.80}): set MASTER_PORT to a free one") from None

    def _connect(self, timeout_s: float) -> dist.Store:
        store = dist.TCPStore(self._host, self._port, timeout=timedelta(seconds=timeout_s), wait_for_workers=False)
        # torchrun starts all ranks again if one has failed, and keeps its store.
        return dist.PrefixStore(f"warprun/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)

    def _get(self, key: str) -> str:
        """Return what another rank has put into the store. Raises RankFailed, and before `begin` UserError, if it does not come."""
        deadline = time.monotonic() + MEET_S
        while not self._store.check([key]):
            if self._watch:
                self._watch.check()
            elif time.monotonic() > deadline:
                who = f"rank {key.rpartition('/')[2]}" if self.rank == 0 else "rank 0"
                raise UserError(f"{who} has not come to the others within {MEET_S:g} s")
            time.sleep(PAUSE_S)
        return self._store.get(key).decode()

    def _wait_for_readers(self, key: str) -> None:
        """Wait a moment until all ranks know that one has failed: the store ends with this process."""
        deadline = time.monotonic() + 5.0
        with suppress(RuntimeError, RankFailed):
            while self._store.add(key, 0) < self.size - 1 and time.monotonic() < deadline:
                time.sleep(PAUSE_S)
