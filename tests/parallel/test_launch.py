"""Which process does what, how processes are started, and what is left of those that were killed. All without other processes."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.parallel.ranks import ROOT, start
from warprun import processes
from warprun.cli import main as cli
from warprun.config.compose import compose
from warprun.errors import UserError
from warprun.kernels import driver
from warprun.parallel import launch
from warprun.parallel.launch import SHARED_MEMORY, check_gpus, leftovers_removed, mpiexec
from warprun.parallel.store import StoreRanks
from warprun.processes import Layout, fit

TORCH = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}


def test_learners_with_one_gpu_are_refused() -> None:
    pytest.importorskip("mpi4py")
    from warprun.parallel.actors import refuse_shared_gpu

    layout = Layout(2, 2)
    refuse_shared_gpu(["GPU-a", "GPU-b", "", ""], layout.name)
    refuse_shared_gpu(["", "", "", ""], layout.name)
    with pytest.raises(UserError, match=r"rank 1 \(learner 1\) has the GPU of rank 0 \(learner 0\)"):
        refuse_shared_gpu(["GPU-a", "GPU-a", "", ""], layout.name)


def test_processes_have_the_roles_of_the_layout() -> None:
    """L + A P processes: learners, then groups of P."""
    layout = fit(8, 2, 3)
    assert layout == Layout(2, 2, 3)
    assert layout.size == 8
    assert [layout.serves(process) for process in range(8)] == [False, False, False, True, True, False, True, True]
    assert [layout.leader(actor) for actor in range(2)] == [2, 5]
    assert layout.servers(1) == [6, 7]
    assert [layout.actor_of(process) for process in range(2, 8)] == [0, 0, 0, 1, 1, 1]
    assert layout.name(7) == "rank 7 (serves the environment of actor 1)"
    assert [layout.rank(actor) for actor in range(2)] == [2, 3]  # among those that exchange rollouts


def test_an_mpiexec_that_hides_failures_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The one of SLURM ends with 0 also if srun does not start."""
    (tmp_path / "mpiexec.slurm").touch(mode=0o755)
    (tmp_path / "mpiexec").symlink_to("mpiexec.slurm")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="mpiexec calls srun and reports success whatever happens"):
        mpiexec()


def test_fewer_gpus_than_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warprun.parallel.launch.why_no_cuda", lambda: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    config = compose(["env=cartpole", "agent=a2c", "n_envs=12", "concurrency=ddp", "concurrency.processes=2"])
    config.device = "cuda"
    with pytest.raises(UserError, match=r"this machine has 1; concurrency\.processes=1, or device=cpu"):
        check_gpus(config, 2)


NAMES = {
    "numbers": ("0, 1", ["0", "1"]),
    "UUIDs": ("GPU-2f1a,MIG-77c0", ["GPU-2f1a", "MIG-77c0"]),
    "as MIG was named before": ("MIG-GPU-2f1a/1/0", ["MIG-GPU-2f1a/1/0"]),
    "up to one that is none": ("1,-1,0", ["1"]),
    "none": ("", []),
    "none, said in another way": ("-1", []),
    "SLURM without GPUs": ("NoDevFiles", []),
}


@pytest.mark.parametrize(("given", "found"), NAMES.values(), ids=NAMES)
def test_gpus_are_those_that_cuda_would_see(given: str, found: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert driver.visible_gpus() == found


@pytest.mark.parametrize(
    ("files", "found"),
    [(["nvidiactl"], []), (["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"], ["0", "1"]), (["nvidia3"], ["0"]), (["dxg"], ["0"])],
    ids=["none", "two", "one of a machine's, in a container", "WSL2"],
)
def test_gpus_are_counted_by_their_files(files: list[str], found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(driver, "DEVICE_FILES", tmp_path)
    assert driver.visible_gpus() == found


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """Return a function that gives this process the variables of one that a launcher has started, and no others of launchers."""

    def start(variables: dict[str, str]) -> None:
        of_machine = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE")
        for name in (*processes.SIZES, *processes.RANKS, *processes.OF_TORCH, *of_machine):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return start


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"MASTER_PORT": "abc"}, "MASTER_PORT='abc' must be the number of a port"),
        ({"MASTER_PORT": "70000"}, "MASTER_PORT='70000' must be the number of a port"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 of WORLD_SIZE=2 processes: ranks begin with 0"),
    ],
)
def test_wrong_variables_of_torchrun_are_one_line(variables: dict[str, str], said: str, started: Callable[[dict[str, str]], None]) -> None:
    started(TORCH | variables)
    with pytest.raises(UserError, match=f"^{said}$"):
        StoreRanks(processes.rank(), processes.started())


SHARES = {
    "torchrun": ({**TORCH, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, "GPU-b"),
    "srun": ({"SLURM_LOCALID": "1", "SLURM_NTASKS_PER_NODE": "2"}, "GPU-b"),
    "srun that does not say how many": ({"SLURM_LOCALID": "1"}, "GPU-b"),
    "more tasks than GPUs": ({"SLURM_LOCALID": "2", "SLURM_NTASKS_PER_NODE": "3"}, "GPU-a,GPU-b"),
    "more tasks than GPUs, and not how many": ({"SLURM_LOCALID": "2"}, "GPU-a,GPU-b"),
}


@pytest.mark.parametrize(("variables", "gpu"), SHARES.values(), ids=SHARES)
def test_each_process_of_a_machine_has_a_gpu_of_its_own(
    variables: dict[str, str], gpu: str, started: Callable[[dict[str, str]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process with LOCAL_RANK n sees GPU n alone, which is cuda:0 for torch and for Numba; a second process on it is refused."""
    started({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b", **variables})
    monkeypatch.setattr("os.sched_setaffinity", lambda process, cores: None)
    driver.take_share()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == gpu


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("cpu1", "cpu1"), ("gpu[03-05,7],cpu1", "gpu03"), ("a[1,3]-b[2-4],c", "a1-b2"), ("n1,n2", "n1"), ("node-[001-100]", "node-001")],
)
def test_the_first_node_is_where_rank_0_is(nodes: str, first: str) -> None:
    assert processes.first_node(nodes) == first


@pytest.mark.parametrize(
    ("environment", "starter", "size", "rank"),
    [
        ({}, "", 1, 0),
        ({**TORCH, "RANK": "1", "SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "2"}, "torchrun", 2, 1),
        ({"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "2"}, "srun", 3, 2),
        ({"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "2", "PMI_SIZE": "3", "PMI_RANK": "2"}, "srun", 3, 2),
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "PMI_SIZE": "4", "PMI_RANK": "3"}, "mpiexec", 4, 3),
        ({"WORLD_SIZE": "4"}, "", 1, 0),
    ],
)
def test_what_started_a_process(
    environment: dict[str, str], starter: str, size: int, rank: int, started: Callable[[dict[str, str]], None]
) -> None:
    started(environment)
    assert (processes.starter(), processes.started(), processes.rank()) == (starter, size, rank)


@pytest.fixture
def files(request: pytest.FixtureRequest) -> Iterator[dict[str, Path]]:
    """Names of files, none of which exists yet: of MPI, and `other`."""
    if not SHARED_MEMORY.is_dir():
        pytest.skip("there is no /dev/shm")
    begins = {"before": "mpich_shm", "killed": "mpich_shar", "mapped": "mpich_shm", "opened": "mpich_shm", "other": "other"}
    paths = {name: SHARED_MEMORY / f"{begin}_{name}_{os.getpid()}" for name, begin in begins.items()}
    yield paths
    for path in paths.values():
        path.unlink(missing_ok=True)


def test_files_of_ended_processes_are_removed_and_those_that_a_process_holds_stay(files: dict[str, Path]) -> None:
    files["before"].write_bytes(bytes(4096))
    with leftovers_removed():
        kill = f"import os, pathlib; pathlib.Path({str(files['killed'])!r}).write_bytes(bytes(4096)); os.kill(os.getpid(), 9)"
        subprocess.run([sys.executable, "-c", kill])
        for name in ("mapped", "opened", "other"):
            files[name].write_bytes(bytes(4096))
        opened = files["opened"].open("rb")
        mapped = torch.from_file(str(files["mapped"]), shared=True, size=1024)  # and not open, as what mmap of Python maps would be
    assert [name for name, path in files.items() if path.exists()] == ["before", "mapped", "opened", "other"]
    opened.close()
    assert mapped.numel() == 1024


# Mistakes in how several processes are started: one line, from rank 0 only, before anything is made

SMALL = ["env=cartpole", "agent=a2c", "device=cpu", "total_steps=1000", "n_envs=12"]
GROUPS = "env.module=tests.parallel.parallel env.name=parallel env.time_limit=8 env.solved_at=null"
FRAGILE = "env.module=tests.parallel.fragile env.name=fragile concurrency.tolerate_actors=1"


def is_one_line(code: int, errors: str, said: str, folder: Path) -> bool:
    """Return whether a command has refused a mistake with these words, in one line, and has left nothing."""
    return code == 2 and said in errors and len(errors.splitlines()) == 1 and not list(folder.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("concurrency=async", "concurrency=async needs several processes: add concurrency.processes=4"),
        ("concurrency=rma concurrency.processes=3 concurrency.learners=2", "learners=2 needs 4 processes or more, not 3"),
        ("concurrency=async concurrency.processes=3 n_envs=7", "n_envs=7 cannot be shared out evenly to 2 actors; n_envs=8 can"),
        ("concurrency=rma concurrency.window=queu", "concurrency.window=queu is not one of queue, range, random"),
        ("concurrency=rma concurrency.queue=0", "concurrency.queue=0 must be from 1"),
        ("concurrency=async concurrency.timeout_s=0.1", "concurrency.timeout_s=0.1 must be"),
        ("concurrency=async concurrency.max_lag=-1", "concurrency.max_lag=-1 must be 0 or more"),
        ("concurrency=sync concurrency.max_lag=1", "unknown key 'concurrency.max_lag'"),
        ("concurrency=seed concurrency.batch_us=-1", "concurrency.batch_us=-1.0 must be from 0"),
        ("concurrency=ddp concurrency.processes=0", "concurrency.processes=0 must be from 1"),
        ("concurrency=ddp concurrency.processes=13", "n_envs=12 gives some of them no environment"),
        ("concurrency=ddp", "concurrency=ddp needs several processes: add concurrency.processes=2"),
        ("concurrency=asinc", "did you mean 'async'?"),
        ("env=t_maze agent=ppo concurrency=async concurrency.processes=3", "or tuned=none if tuned/t_maze_ppo chose the"),
        (f"{GROUPS} concurrency=single", "is a parallel program (its first argument is `comm`): it needs concurrency=sync, async"),
        (f"{GROUPS} concurrency=async concurrency.ranks_per_env=2", "of 2 ranks: start them with `mpiexec -n 2 warprun"),
        (f"{FRAGILE} concurrency=rma", "concurrency.tolerate_actors=1"),
        (f"{FRAGILE} concurrency=async concurrency.learners=2", "concurrency.tolerate_actors=1"),
        ("concurrency=async concurrency.tolerate_actors=1", "concurrency.tolerate_actors=1"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = cli.run([*SMALL, *arguments.split()])
    assert is_one_line(code, capsys.readouterr().err, said, tmp_path)


@pytest.mark.by_default(0)
@pytest.mark.parametrize(
    ("ranks", "arguments", "said"),
    [
        (3, "concurrency=async concurrency.processes=4 agent.gama=1", "unknown key 'agent.gama'; did you mean 'agent.gamma'?"),
        (3, "", "3 processes were started, and concurrency=single is one: write concurrency=sync, seed, async or rma"),
        (2, "concurrency=ddp", "concurrency=ddp needs no mpiexec: add concurrency.processes=2 instead"),
        (2, "-m concurrency=async seed=1,2", "-m: a sweep is one process, and 2 were started"),
        (3, "concurrency=async concurrency.processes=4", "has started 3: leave it out, or continue a run with concurrency.processes=null"),
        (5, "concurrency=sync concurrency.learners=2", "3 actors cannot be shared out evenly to 2 learners; 2 or 4 actors can"),
        (3, f"{GROUPS} concurrency=async", "and concurrency.ranks_per_env=2 or more"),
        (4, f"{GROUPS} concurrency=async concurrency.ranks_per_env=2", "4 processes do not fit; with learners=1 start 3 or 5"),
        (2, f"{GROUPS} concurrency=async concurrency.ranks_per_env=2", "concurrency.learners=1 needs 3 processes or more, not 2"),
        (3, f"{GROUPS} concurrency=async concurrency.ranks_per_env=2 concurrency.workers=1", "workers=1: the ranks of a group"),
        (3, f"{GROUPS} concurrency=async concurrency.ranks_per_env=2 env.kwargs.comm=1", "parallel gets a communicator"),
        (3, "concurrency=async concurrency.ranks_per_env=2", "no parallel program"),
        (3, "env=gymnasium env.id=CartPole-v1 concurrency=async concurrency.ranks_per_env=2", "are no parallel programs"),
    ],
)
def test_a_mistake_of_several_ranks_is_one_line(ranks: int, arguments: str, said: str, tmp_path: Path) -> None:
    done = start(ranks, *SMALL, *arguments.split(), cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)})
    assert is_one_line(done.returncode, done.stderr, said, tmp_path), done.stderr
    assert not done.stdout


@pytest.mark.parametrize(
    ("endings", "code", "said"),
    [
        (("time.sleep(60)", "os.kill(os.getpid(), 9)"), 1, "rank 1 is lost: its process {1} was ended by SIGKILL"),
        (("os.kill(os.getpid(), 15)", "time.sleep(60)"), 1, "rank 0 is lost: its process {0} was ended by SIGTERM"),
        (("time.sleep(60)", "os.kill(os.getpid(), 40)"), 1, "rank 1 is lost: its process {1} was ended by signal 40"),
        (("time.sleep(60)", "print('error', file=sys.stderr); sys.exit(2)"), 2, ""),
        (("sys.exit(2)", "sys.exit(2)"), 2, ""),
        (("sys.exit(0)", "sys.exit(0)"), 0, ""),
    ],
)
def test_a_rank_that_ends_before_the_others_have_met_it_is_named(
    endings: tuple[str, str], code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "GRACE_S", 1.0 if said else 60.0)
    ranks = [subprocess.Popen([sys.executable, "-c", f"import os, sys, time; {ending}"]) for ending in endings]
    try:
        assert launch._wait(ranks) == code
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    told = said.format(*(process.pid for process in ranks))
    assert capsys.readouterr().err == (f"warprun: error: {told}\n" if said else "")


@pytest.mark.by_default(0)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("concurrency.processes=4", "concurrency.processes=4, and torchrun has started 2: leave it out"),
        ("agent=dqn agent.batch_size=1 total_steps=1e5", "the share of rank 1 of 2 processes is too small: agent.batch_size=0"),
        ("concurrency=single", "2 processes were started, and concurrency=single is one: write concurrency=ddp\n"),
        ("concurrency=async", "concurrency=async is not started with torchrun"),
    ],
)
def test_a_mistake_in_all_ranks_is_told_once(arguments: str, said: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "warprun", *SMALL, "concurrency=ddp", *arguments.split()]
    variables = {**os.environ, **TORCH, "LOCAL_RANK": "0"}
    ranks = [
        subprocess.Popen(command, env={**variables, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True, cwd=tmp_path) for rank in (0, 1)
    ]
    errors = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert is_one_line(ranks[0].returncode, errors[0], said, tmp_path), errors[0]
    assert not errors[1]


ODD_RANK = """import os
import numpy as np
from gymnasium.spaces import Box
from tests.parallel.fragile import Fragile
class environment(Fragile):
    if os.environ['PMI_RANK'] == '1':
        {}
"""
"""An environment that is another one in one rank; nothing of it is compiled."""


def told_of(differs: str, folder: Path) -> str:
    """Return how a run of two ranks is refused of which the second one's environment has this line."""
    (folder / "one.py").write_text(ODD_RANK.format(differs))
    given = ["concurrency=async", "env.module=./one.py", "env.name=one", "env.time_limit=8", "env.solved_at=null", "engine.fused=false"]
    done = start(2, *SMALL, *given, "run_dir=run", cwd=folder, environment={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 2
    assert done.stderr.count("warprun: error") == 1
    assert not (folder / "run").exists()
    return done.stderr


@pytest.mark.long
def test_a_mistake_in_one_rank_only_ends_all(tmp_path: Path) -> None:
    """The module of the environment is missing on the node of rank 1."""
    error = told_of("raise ImportError('no solver on this node')", tmp_path)
    assert "warprun: error: rank 1: " in error and "no solver on this node" in error


@pytest.mark.long
def test_ranks_with_different_environments_are_refused(tmp_path: Path) -> None:
    error = told_of("action_space = Box(-2.0, 2.0, (1,), np.float32)", tmp_path)
    assert "rank 1 (actor 0): its environment or settings differ from those of rank 0" in error


HIDE = "import sys; sys.modules['mpi4py'] = None; from warprun.__main__ import main; main()"


@pytest.mark.parametrize(
    ("command", "sizes", "said"),
    [
        (["-c", HIDE], {"PMI_SIZE": "2", "PMI_RANK": "0"}, "learners and actors need mpi4py"),
        # Open MPI says that it has started two processes, and MPICH knows nothing of it.
        (["-m", "warprun"], {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, "two MPIs are mixed: 2 processes were started"),
    ],
    ids=["missing", "mixed"],
)
def test_an_mpi_that_does_not_fit_is_named(command: list[str], sizes: dict[str, str], said: str, tmp_path: Path) -> None:
    given = [sys.executable, *command, *SMALL, "concurrency=async"]
    done = subprocess.run(given, capture_output=True, text=True, cwd=tmp_path, env=os.environ | sizes)
    assert is_one_line(done.returncode, done.stderr, said, tmp_path), done.stderr
