"""Processes that meet at a store of torch.distributed at rank 0: for signs of life, and to agree without MPI."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from warprun.errors import OtherRankError, RankFailed, UserError, one_line, require
from warprun.parallel.watch import Connect, Watch
from warprun.processes import SOCKET, Ranks, meeting_place

MEET_S = 300.0
"""Seconds in which all ranks must have come."""
PAUSE_S = 0.01
"""Sleep between two looks into the store."""
READERS_S = 5.0
"""Longest time that rank 0 waits until all ranks know that one has failed: the store ends with its process."""


def connect(host: str, port: int, timeout_s: float) -> dist.Store:
    """Return a new connection to the store of rank 0."""
    return dist.TCPStore(host, port, timeout=timedelta(seconds=timeout_s), wait_for_workers=False)


def make_store(rank: int, share: Callable[[str], str]) -> Connect:
    """Make a store at rank 0, and return how every rank connects to it; `share` passes the text of rank 0 to all."""
    server = dist.TCPStore(socket.gethostname(), 0, is_master=True, wait_for_workers=False) if rank == 0 else None
    host, _, port = share(f"{server.host}:{server.port}" if server else "").rpartition(":")

    def to_rank_0(timeout_s: float, held: dist.Store | None = server) -> dist.Store:
        return connect(host, int(port), timeout_s)

    return to_rank_0


class StoreRanks(Ranks):
    """The ranks of a data-parallel run, which agree through a store at rank 0 and watch each other from `begin` on."""

    def __init__(self, rank: int, size: int) -> None:
        """Meet at the place of `processes.meeting_place`. Raises UserError."""
        super().__init__(rank)
        require(rank < size, f"RANK={rank} of WORLD_SIZE={size} processes: ranks begin with 0")
        self.size = size
        self._host, self._port = meeting_place()
        self._gathered = 0
        self._watch: Watch | None = None
        by_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self._server = self._serve() if rank == 0 and not by_torchrun else None
        try:
            self._store = self._connect(MEET_S)
        except RuntimeError:
            raise UserError(f"rank {rank} cannot reach rank 0 at {self._host}, port {self._port} (MASTER_ADDR, MASTER_PORT)") from None

    @property
    def watch(self) -> Watch:
        """The watch, from `begin` on."""
        assert self._watch
        return self._watch

    def begin(self, timeout_s: float) -> None:
        """Watch the other ranks from now on."""
        self._watch = Watch(self.name, self.rank, self.size, timeout_s, self._connect)

    def gather(self, text: str) -> list[str]:
        """Return the texts of all ranks. Raises RankFailed, and before `begin` UserError, if one does not come."""
        self._gathered += 1
        key = f"gathered/{self._gathered}"
        if self.rank:
            try:
                self._store.set(f"{key}/{self.rank}", text)
                return list(json.loads(self._get(key)))
            except RuntimeError as error:  # rank 0 has ended, and has said why
                raise OtherRankError from error
        texts = [text, *(self._get(f"{key}/{rank}") for rank in range(1, self.size))]
        self._store.set(key, json.dumps(texts))
        return texts

    def gather_failures(self, own: str) -> list[str]:
        """Return the failures of all ranks; rank 0 waits a moment until the others know them."""
        failures = self.gather(own)
        if any(failures):
            key, deadline = f"gathered/{self._gathered}/read", time.monotonic() + READERS_S
            with suppress(RuntimeError, RankFailed):
                read = self._store.add(key, int(self.rank > 0))
                while self.rank == 0 and read < self.size - 1 and time.monotonic() < deadline:
                    time.sleep(PAUSE_S)
                    read = self._store.add(key, 0)
        return failures

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
        store = connect(self._host, self._port, timeout_s)
        # torchrun starts all ranks again if one has failed, and keeps its store.
        return dist.PrefixStore(f"warprun/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)

    def _get(self, key: str) -> str:
        """Return what another rank has put into the store."""
        deadline = time.monotonic() + MEET_S
        while not self._store.check([key]):
            if self._watch:
                self._watch.check()
            elif time.monotonic() > deadline:
                who = "rank 0" if self.rank else f"rank {key.rpartition('/')[2]}"
                raise UserError(f"{who} has not come to the others within {MEET_S:g} s")
            time.sleep(PAUSE_S)
        return self._store.get(key).decode()
