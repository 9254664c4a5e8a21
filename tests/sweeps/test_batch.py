"""Batch scripts of PBS, LSF and Flux: their directives, and what they call, by programs that say what they were asked."""

import importlib.util
import os
import re
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from tests.written import add_programs
from warprun.cli import main as cli

PROGRAMS = {
    "warprun": 'echo "$@"',
    "mpiexec": 'echo -n "mpiexec $1 $2 "; shift 2; "$@"',
    "blaunch": 'echo -n "blaunch "; "$@"',
    "timeout": 'echo -n "timeout $1 $2 "; shift 2; "$@"',
    "torchrun": 'echo "torchrun $@"',
    "flux": """case "$1 $2" in
        "getattr jobid") [[ -n "${FLUX_URI:-}" ]] && echo f2Xy ;;
        "job id") echo 77 ;;
        "resource list") [[ "$*" == *nnodes* ]] && echo "$NODES" || echo 16 ;;
        "hostlist --nth=0") echo n1 ;;
        *) while [[ "$1" != warprun && "$1" != torchrun ]]; do echo -n "$1 "; shift; done; "$@" ;;
    esac""",
}
DIRECTIVES = {
    "pbs": ("PBS", r"-N \w+|-l (select=\d+(:(ncpus|mpiprocs)=\d+)+|walltime=\d\d:\d\d:\d\d)|-j oe|-r y|-V|-[Aq] [A-Z]+"),
    "lsf": ("BSUB", r'-J \w+|-n \d+|-R "span\[hosts=1\]"|-W \d+:\d\d|-Q "143"|-r|-o [\w.%-]+|-[Pq] [A-Z]+'),
    "flux": ("flux:", r"--job-name=\w+|--(nslots|cores-per-slot)=\d+|--time-limit=\d+h|--output=[\w.{}-]+"),
}
"""System -> what its directives begin with, and their forms: qsub of OpenPBS, bsub of LSF 10.1, flux-batch(1)."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the scripts of all systems, and such programs, which are on the PATH."""
    add_programs(tmp_path / "bin", PROGRAMS)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    for system in DIRECTIVES:
        assert cli.run(["scripts", system]) == 0
    Path("two").write_text("n1\nn2\n")
    Path("four").write_text("n1\nn1\nn2\nn2\n")
    return tmp_path


@pytest.mark.parametrize("system", DIRECTIVES)
def test_directives_come_first_and_are_options_of_their_system(system: str, place: Path) -> None:
    sign, form = DIRECTIVES[system]
    lines = Path(system, f"train.{system}").read_text().splitlines()
    assert lines[0] == "#!/bin/bash"
    found = [n for n, line in enumerate(lines) if re.match(rf"##?{sign} ", line)]
    assert len(found) >= 5 and max(found) < lines.index("set -e") and all(line.startswith("#") for line in lines[: max(found)])
    for n in found:
        assert re.fullmatch(rf"##?{sign} ({form})", lines[n]), lines[n]


@pytest.mark.engines
def test_flux_reads_its_directives(place: Path) -> None:
    """By the parser of directives that flux-python has (pip install flux-python); the library of Flux itself is not needed."""
    spec = importlib.util.find_spec("flux")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("flux-python is not installed")
    folder = Path(spec.submodule_search_locations[0])
    parser: ModuleType = importlib.util.module_from_spec(
        found := importlib.util.spec_from_file_location("directives", folder / "job" / "directives.py")  # type: ignore[arg-type]
    )
    found.loader.exec_module(parser)  # type: ignore[union-attr]
    with Path("flux/train.flux").open() as script:
        arguments = [word for directive in parser.DirectiveParser(script).directives for word in directive.args]
    names = [argument.partition("=")[0] for argument in arguments]
    assert names == ["--job-name", "--nslots", "--cores-per-slot", "--time-limit", "--output"]
    options = "".join((folder / "cli" / file).read_text() for file in ("base.py", "batch.py"))
    assert all(f'"{name}"' in options for name in [*names, "--bank", "--queue"])


PBS = {"PBS_JOBID": "7.server", "PBS_O_WORKDIR": ".", "NCPUS": "8"}
LSF = {"LSB_JOBID": "7", "LS_SUBCWD": ".", "LSB_DJOB_NUMPROC": "8"}
FLUX = {"FLUX_URI": "local:///x", "NODES": "1"}
STOP = "timeout --preserve-status 14280"
CALLS = [
    ("pbs", "env=cartpole seed=3", {}, "train env=cartpole seed=3"),
    ("pbs", "env=cartpole", PBS, f"{STOP} train resume=auto run_dir=outputs/pbs-7 concurrency.threads=8 env=cartpole"),
    ("pbs", "run_dir=a", PBS | {"WARPRUN_STOP_S": "60"}, "timeout --preserve-status 60 train resume=auto concurrency.threads=8 run_dir=a"),
    ("pbs", "concurrency=rma", PBS | {"PBS_NODEFILE": "four"}, "mpiexec -n 4 train resume=auto run_dir=outputs/pbs-7 max_minutes=237"
     " concurrency=rma"),
    ("pbs", "concurrency=sync", {"RANKS": "3"}, "mpiexec -n 3 train concurrency=sync"),
    ("lsf", "concurrency=sync", {}, "mpiexec -n 4 train concurrency=sync"),
    ("pbs", "concurrency=ddp", {}, "torchrun --nnodes=1 --nproc-per-node=auto --rdzv-backend=c10d --rdzv-endpoint=localhost:29500"
     " --no-python warprun train concurrency=ddp"),
    ("pbs", "concurrency=single", {}, "train concurrency=single"),
    ("pbs", "concurrency=ddp", PBS | {"PBS_NODEFILE": "two"}, f"{STOP} mpiexec -n 2 torchrun --nnodes=2 --nproc-per-node=auto"
     " --rdzv-backend=c10d --rdzv-endpoint=n1:29500 --no-python warprun train resume=auto run_dir=outputs/pbs-7 concurrency=ddp"),
    ("lsf", "env=cartpole", LSF, f"{STOP} train resume=auto run_dir=outputs/lsf-7 concurrency.threads=8 env=cartpole"),
    ("lsf", "concurrency=ddp", LSF | {"LSB_DJOB_HOSTFILE": "two", "WARPRUN_PROCESSES": "4"}, f"{STOP} blaunch torchrun --nnodes=2"
     " --nproc-per-node=4 --rdzv-backend=c10d --rdzv-endpoint=n1:29500 --no-python warprun train resume=auto run_dir=outputs/lsf-7"
     " concurrency=ddp"),
    ("lsf", "concurrency=seed", LSF | {"LSB_DJOB_HOSTFILE": "four"}, "mpiexec -n 4 train resume=auto run_dir=outputs/lsf-7"
     " max_minutes=237 concurrency=seed"),
    ("flux", "env=cartpole", FLUX, f"{STOP} run -N 1 -n 1 --exclusive train resume=auto run_dir=outputs/flux-77 env=cartpole"),
    ("flux", "concurrency=ddp", FLUX | {"NODES": "2"}, f"{STOP} run -N 2 -n 2 --exclusive torchrun --nnodes=2 --nproc-per-node=auto"
     " --rdzv-backend=c10d --rdzv-endpoint=n1:29500 --no-python warprun train resume=auto run_dir=outputs/flux-77 concurrency=ddp"),
    ("flux", "concurrency=async", FLUX, "run -n 16 train resume=auto run_dir=outputs/flux-77 max_minutes=237 concurrency=async"),
    ("flux", "env=cartpole", {}, "train env=cartpole"),
]  # fmt: skip
"""System, settings, the variables of its job, and what is called."""


@pytest.mark.parametrize(("system", "settings", "variables", "calls"), CALLS)
@pytest.mark.parametrize("by_variable", [False, True])
def test_what_scripts_call(place: Path, system: str, settings: str, variables: dict[str, str], calls: str, by_variable: bool) -> None:
    prefixes = ("PBS", "LSB", "LS_", "FLUX", "NCPUS", "WARPRUN_", "RANKS", "NODES")
    task = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)} | variables
    given = [] if by_variable else settings.split()
    task |= {"WARPRUN_SETTINGS": settings} if by_variable else {}
    done = subprocess.run(["bash", f"{system}/train.{system}", *given], env=task, capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"{calls}\n")


@pytest.mark.parametrize("system", DIRECTIVES)
def test_activation_may_read_variables_that_are_not_set(system: str, place: Path) -> None:
    Path("venv/bin").mkdir(parents=True)
    Path("venv/bin/activate").write_text('export OLD="$TOOL_PATHS"\necho active\n')
    task = os.environ | {"WARPRUN_VENV": "venv"}
    done = subprocess.run(["bash", f"{system}/train.{system}", "env=cartpole"], env=task, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "active\ntrain env=cartpole\n"), done.stderr


def test_the_system_is_that_of_the_folder_or_the_one_that_is_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert cli.run(["scripts", "mine", "system=lsf"]) == 0 and capsys.readouterr().out == "mine/train.lsf\n"
    assert cli.run(["scripts", "other"]) == 0 and "other/train.sbatch" in capsys.readouterr().out
    Path("pbs/train.pbs").write_text("mine")
    assert cli.run(["scripts", "pbs"]) == 2 and "overwrite=true replaces it" in capsys.readouterr().err
    assert cli.run(["scripts", "pbs", "system=lsb"]) == 2 and "did you mean 'lsf'?" in capsys.readouterr().err
