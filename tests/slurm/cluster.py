"""A private cluster of one node, this machine: munged, slurmctld and slurmd with their files in one folder. Needs root.

Debian: apt-get install slurm-wlm munge. Neither systemd nor control groups are used: processes are found through /proc
(proctrack/linuxproc) and are not bound to cores (task/none).
"""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.finished import until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue")
CONF = """\
ClusterName=warprun
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,bf_interval=1
ReturnToService=2
KillWait=5
MpiDefault=none
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Return why no cluster can be started here; empty if one can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"SLURM is not installed ({', '.join(missing)} missing): apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "the daemons of SLURM need root"


class Cluster:
    """A cluster that runs; `close` ends it."""

    def __init__(self) -> None:
        # Below /tmp: munged works as a user of its own, which must reach its folder.
        self.folder = folder = Path(tempfile.mkdtemp(prefix="warprun-slurm-", dir="/tmp"))
        folder.chmod(0o755)
        (folder / "state").mkdir()
        (folder / "spool").mkdir()
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
        self.daemons: list[subprocess.Popen[bytes]] = []
        ports = [_free_port(), _free_port()]
        host = socket.gethostname().partition(".")[0]
        text = CONF.format(folder=folder, host=host, cores=os.cpu_count(), controller_port=ports[0], node_port=ports[1])
        (folder / "slurm.conf").write_text(text)
        try:
            self._start_all(host)
        except BaseException:
            self.close()
            raise

    def _start_all(self, host: str) -> None:
        self._start_munge()
        self._start("slurmctld", "-D", "-i")
        self._start("slurmd", "-D", "-N", host)
        until(lambda: "idle" in self.run("sinfo", "-h", "-o", "%T"), 30)

    def _start_munge(self) -> None:
        """Start munged as the user munge, who must own its files: it refuses to work as root in a folder that others can write to."""
        home = self.folder / "munge"
        home.mkdir(mode=0o755)
        key = home / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        user = pwd.getpwnam("munge")
        for path in (home, key):
            os.chown(path, user.pw_uid, user.pw_gid)
        files = [f"--{name}-file={home / name}" for name in ("key", "pid", "log", "seed")]
        command = ["munged", "--foreground", "--force", f"--socket={self.folder / 'munge.socket'}", *files]
        self.folder.chmod(0o777)  # for the socket
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        as_munge = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self.daemons.append(subprocess.Popen(command, **as_munge, **quiet))
        until((self.folder / "munge.socket").exists, 10)
        self.folder.chmod(0o755)

    def _start(self, *command: str) -> None:
        with open(self.folder / f"{command[0]}.out", "wb") as out:
            self.daemons.append(subprocess.Popen(command, env=self.environment, stdout=out, stderr=out))

    def run(self, *command: str, cwd: Path | None = None, environment: dict[str, str] | None = None) -> str:
        """Run a command of SLURM and return what it prints."""
        env = self.environment | (environment or {})
        done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, cwd: Path, *arguments: str, **environment: str) -> str:
        """Submit a job and return its number."""
        return self.run("sbatch", "--parsable", *arguments, cwd=cwd, environment=environment).strip()

    def state(self, job: str) -> str:
        """Return the state of a job, such as RUNNING or COMPLETED."""
        shown = self.run("scontrol", "show", "job", job)
        return shown.partition("JobState=")[2].split()[0]

    def wait(self, job: str, states: Sequence[str], timeout_s: float = 300) -> str:
        """Wait until a job is in one of these states, and return it."""
        deadline = time.monotonic() + timeout_s
        while (state := self.state(job)) not in states:
            assert time.monotonic() < deadline, (state, self.logs())
            time.sleep(0.1)
        return state

    def logs(self) -> str:
        """Return the ends of what the daemons have written."""
        return "\n".join(path.read_text()[-1500:] for path in sorted(self.folder.glob("slurm*.log")))

    def close(self) -> None:
        """End all jobs and daemons."""
        subprocess.run(["scancel", "--user=root", "--signal=KILL"], env=self.environment, capture_output=True, timeout=30)
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
