"""The processes of a data-parallel run on one machine: started, watched, and ended together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from warprun.config.schema import Config, DdpConfig
from warprun.errors import UserError
from warprun.kernels.driver import why_no_cuda
from warprun.processes import FIRST_IS_LOST, PARENT, SOCKET, visible_gpus
from warprun.runs import signals

GRACE_S = 10.0
"""Seconds that the others have to end after one process has failed: they find it, and rank 0 says so."""
LOOK_S = 0.05


def check_gpus(config: Config, processes: int) -> None:
    """Raise UserError if there are fewer GPUs than processes that each need one."""
    if config.device in ("cpu", "cudasim") or why_no_cuda() is not None:
        return
    count = len(visible_gpus())
    if count < processes:
        raise UserError(
            f"concurrency.processes={processes}: every process needs a GPU of its own, and this machine has {count};"
            f" concurrency.processes={count}, or device=cpu"
        )


def start(config: Config, concurrency: DdpConfig, arguments: Sequence[str]) -> int:
    """Start the processes of a run on this machine, wait for them, and return the exit code. Raises UserError."""
    size = concurrency.processes
    assert size
    check_gpus(config, size)
    # Ranks are in a session of their own: Ctrl-C of a terminal is passed on like every other signal, to rank 0 alone.
    with socket.create_server(("127.0.0.1", 0)) as server:
        ranks = [_rank(rank, size, server, arguments) for rank in range(size)]
    try:
        with signals.requests.passed_on(lambda number: _send(ranks[0], number)):
            return _wait(ranks)
    finally:
        for process in ranks:
            _send(process, signal.SIGKILL)
            process.wait()


def _rank(rank: int, size: int, server: socket.socket, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    port = str(server.getsockname()[1])
    environment = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, PARENT: str(os.getpid())}
    if rank == 0:
        environment[SOCKET] = str(server.fileno())
    return subprocess.Popen(
        [sys.executable, "-m", "warprun", *arguments],
        env=environment,
        pass_fds=(server.fileno(),) if rank == 0 else (),
        start_new_session=True,
    )


def _wait(ranks: list[subprocess.Popen[bytes]]) -> int:
    """Return the exit code of the run; after one process has failed, the others have a moment to end."""
    failed_s: float | None = None
    while any(process.poll() is None for process in ranks):
        time.sleep(LOOK_S)
        if failed_s is None and any(process.poll() for process in ranks):
            failed_s = time.monotonic()
        if _is_said(ranks) or (failed_s is not None and time.monotonic() - failed_s > GRACE_S):
            break
    first, *others = (process.poll() for process in ranks)
    if first is not None and first > 0:
        return first
    if FIRST_IS_LOST in others:
        return 1
    return max((1 if code is None or code < 0 else code) for code in (first, *others))


def _is_said(ranks: list[subprocess.Popen[bytes]]) -> bool:
    """Return whether rank 0 has failed and said why, or all others have ended because it is lost."""
    first, *others = (process.poll() for process in ranks)
    return (first or 0) > 0 or (None not in others and FIRST_IS_LOST in others)


def _send(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)
