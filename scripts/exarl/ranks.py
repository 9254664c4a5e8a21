"""Train with several ranks that this process forks, so that all of them together import torch and warprun once.

    python ranks.py PROCESSES OVERRIDE ...

mpiexec starts PROCESSES small programs (`python ranks.py`). Each sends its arguments, variables and open files to this process, which
forks a rank with them, and ends with the code of that rank. A rank is then what `mpiexec -n PROCESSES warprun OVERRIDE ...` starts.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

PLACE = "WARPRUN_RANKS"
"""Variable with the path of the socket at which this process waits for the small programs."""
STANDARD = (0, 1, 2)


def join(place: str) -> int:
    """Ask the process behind the socket `place` for a rank with what this one was given, and return its exit code."""
    of_mpi = [int(os.environ["PMI_FD"])] if "PMI_FD" in os.environ else []
    given = json.dumps({"environ": dict(os.environ), "files": [*STANDARD, *of_mpi]}).encode()
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(place)
        socket.send_fds(asked, [len(given).to_bytes(4, "big")], [*STANDARD, *of_mpi])
        asked.sendall(given)
        return int(asked.recv(8) or b"1")


def fork(asked: socket.socket, arguments: list[str]) -> int:
    """Fork a rank for the small program behind a connection, and return its number."""
    length, files, _, _ = socket.recv_fds(asked, 4, len(STANDARD) + 1)
    with asked.makefile("rb") as stream:
        given = json.loads(stream.read(int.from_bytes(length, "big")))
    rank = os.fork()
    if rank:
        for file in files:
            os.close(file)
        return rank
    for file, number in zip(files, given["files"], strict=True):
        if file != number:
            os.dup2(file, number)
            os.close(file)
    os.environ.clear()
    os.environ.update(given["environ"])
    sys.argv[:] = ["warprun", *arguments]
    code = 1
    try:
        warprun.__main__.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    asked.sendall(str(code).encode())
    # Functions that Python calls at its exit include that of MPI.
    sys.exit(code)


def lead(processes: int, arguments: list[str]) -> int:
    """Start the small programs, fork their ranks, wait for all, and return the exit code."""
    folder = tempfile.mkdtemp()  # removed by this process alone: a rank leaves this function, too
    place, ranks = str(Path(folder) / "ranks"), list[int]()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(place)
        server.listen(processes)
        server.settimeout(1.0)
        command = [mpiexec(), "-n", str(processes), sys.executable, "-I", "-S", __file__]
        started = subprocess.Popen(command, env=os.environ | {PLACE: place})
        while len(ranks) < processes and started.poll() is None:
            try:
                asked, _ = server.accept()
            except TimeoutError:
                continue
            asked.settimeout(None)
            with asked:
                ranks.append(fork(asked, arguments))
    if len(ranks) < processes:
        for rank in ranks:
            os.kill(rank, signal.SIGKILL)
    for rank in ranks:  # their time counts as that of this process only if it has waited for them
        os.waitpid(rank, 0)
    shutil.rmtree(folder)
    return started.wait()


if __name__ == "__main__":
    if PLACE in os.environ:
        sys.exit(join(os.environ[PLACE]))
    import gymnasium  # noqa: F401 - the environment needs it
    import mpi4py  # noqa: F401 - not its MPI, which begins when it is imported

    import warprun.__main__
    import warprun.cli.main
    import warprun.runs.train
    from warprun.parallel.launch import mpiexec

    sys.exit(lead(int(sys.argv[1]), sys.argv[2:]))
