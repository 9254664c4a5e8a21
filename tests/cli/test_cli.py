"""The command line: help, verbs, and every mistake of a user as one line."""

import logging
import os
import re
import resource
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
from rich.table import Table

import warprun
from warprun.cli import main as cli
from warprun.config.compose import compose
from warprun.config.schema import load_environment, to_dict
from warprun.errors import UserError
from warprun.runs import rundir
from warprun.runs.records.terminal import table_console

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from warprun.cli.main import run
code = run(sys.argv[1:])
print("loaded:", *sorted({"torch", "numba", "hydra"} & set(sys.modules)))
sys.exit(code)
"""


def warprun_in(folder: Path, *arguments: str, **environment: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run the command line in its own process, as a checkout that is not installed; return what came of it and the processor seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_is_quick_and_light(tmp_path):
    done, seconds = warprun_in(tmp_path, "--help")
    assert done.returncode == 0
    assert done.stdout.endswith("loaded:\n")
    assert seconds < 2  # 1 s on a quiet machine
    for word in ("n_envs", "cartpole", "ppo", "eval", "envs", "-sc install=bash", "env.randomize"):
        assert word in done.stdout


MISTAKES = {
    "env=cartpol": "unknown environment 'cartpol'; did you mean 'cartpole'?",
    "n_envs=0": "n_envs=0 must be at least 1",
    "agent.minibatches=1000000": "and each of 1000000 gradient steps needs 2 or more: raise n_envs",
    "device=cuda": "device=cuda: ",
    "run_dir=full": "run_dir='full' exists and is not empty",
    "env.module=./broken.py": "broken.py:2: ModuleNotFoundError: No module named 'not_there'",
}


@pytest.mark.by_default(1)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_told_in_one_line_before_anything_is_written(tmp_path, mistake):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "broken.py").write_text("import math\nimport not_there\n")
    before = sorted(tmp_path.rglob("*"))
    done, seconds = warprun_in(tmp_path, mistake, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("warprun: error: ")
    assert MISTAKES[mistake] in done.stderr
    assert sorted(tmp_path.rglob("*")) == before
    assert seconds < 10  # 4 s on a quiet machine, most of it torch


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("foo=1", "unknown key 'foo'"),
        ("+foo=1", "unknown key 'foo'"),
        ("++agent.gama=1", "unknown key 'agent.gama'; did you mean 'agent.gamma'?"),
        ("gamma=1", "unknown key 'gamma'; did you mean 'agent.gamma'?"),
        ("lr=1", "unknown key 'lr'; did you mean 'agent.learning_rate'?"),
        ("agent=a2c agent.clip=0.1", "unknown key 'agent.clip'"),
        ("env.parms.length=1", "unknown key 'env.parms'; did you mean 'env.params'?"),
        ("env.params.lenght=1", "env.params.lenght: cartpole has no parameter 'lenght'; did you mean 'length'?"),
        ("env.params.length=abc", "env.params.length=abc must be a finite number below 3.4e38, as its default 0.5"),
        ("env.params.length=1e300", "env.params.length=1e+300 must be a finite number"),
        ("agent.optimizer.beta1=1", "agent.optimizer.beta1=1"),
        ("env.randomize.lenght=[1,2]", "env.randomize.lenght: cartpole has no parameter"),
        ("env.randomize.length=[2,1]", "env.randomize.length=[2, 1] must be two numbers, [low,high], the lower first"),
        ("env.randomize.length=[1,2] env.params.length=1", "exclude each other"),
        ("env.options.size=1", "env.options.size: cartpole has no option 'size'"),
        ("env.options.kwarg5x=1", "env.options.kwarg5x: cartpole has no option 'kwarg5x'; it has velocity"),
        ("env.time_limit=0", "env.time_limit=0 must be at least 1"),
        ("agent.groups.agnt.gamma=0.5", "agent.groups.agnt: "),
        ("agent.groups.agent.gama=0.5", "agent.groups.agent.gama: "),
        ("agent.network.hidden=64", "agent.network.hidden must be a list in brackets"),
        ("agent.network.hidden=${seed}", "agent.network.hidden=0 must be a list"),
        ("agent.name=a2c", "write agent=a2c"),
        ("n_envs=0.5", "n_envs must be a whole number, not '0.5'"),
        ("n_envs=null", "n_envs cannot be null"),
        ("n_envs=1,2", "add -m to run every value"),
        ("device=gpu", "device=gpu is not one of auto, cpu, cuda, cudasim; did you mean 'cuda'?"),
        ("device=cudasim", "at most 64 environments"),
        ("seed=-1", "seed=-1 must be from 0"),
        ("max_minutes=nan", "max_minutes=nan must be a number above 0"),
        ("name=a/b", "must be usable as a folder name"),
        ("stop_when_solved=maybe", "stop_when_solved must be true or false, not 'maybe'"),
        ("tuned=cartpol_ppo", "unknown tuned settings 'cartpol_ppo'; did you mean 'cartpole_ppo'?"),
        ("env=null", "write the name of one, such as env=cartpole"),
        ("agent.network.hidden=[64", "cannot read 'agent.network.hidden=[64': brackets do not match"),
        ("-m seed=range(0,3", "cannot read 'seed=range(0,3': brackets do not match"),
        ("env=./rover.py", "write a file conf/env/NAME.yaml with the lines `name: NAME` and `module: ./rover.py`, then env=NAME"),
        ("env=../w/rover", "unknown environment '../w/rover' (there are: "),
        ("resume outputs/run", "unknown verb 'resume'; write resume=outputs/run"),
        ("cartpole", "unknown verb 'cartpole'; write env=cartpole"),
        ("check cartpole", "check env=cartpole`"),
        ("tune trails=3", "unknown key 'trails'; did you mean 'trials'?"),
        ("export policy.onnx .", "export takes the run, then the file: write `warprun export . policy.onnx`"),
        ("~seed", "a setting cannot be removed"),
        ("trian env=cartpole", "unknown verb 'trian'; did you mean 'train'?"),
        ("--multrun seed=1", "unknown option '--multrun'; did you mean '--multirun'?"),
        ("--cfg nothing", "invalid choice: 'nothing'"),
        ("eval somewhere", "somewhere is not a run folder"),
        ("eval", "no run in outputs"),
        ("eval episode=3", "eval has no setting 'episode'; did you mean 'episodes'?"),
        ("eval 0000_agent=a2c,seed=0", "0000_agent=a2c,seed=0 is not a run folder: it does not exist"),
        ("eval episodes=0", "episodes=0 must be at least 1"),
        ("eval episodes=few", "episodes must be a whole number, not 'few'"),
        ("eval greedy=1", "greedy must be true or false, not '1'"),
        ("envs all", "envs takes no arguments"),
    ],
)
def test_more_mistakes(started, capsys, arguments, message):
    assert cli.run(arguments.split()) == 2
    told = capsys.readouterr()
    assert told.err.startswith("warprun: error: ") and told.err.count("\n") == 1
    assert message in told.err
    assert not started and not list(Path.cwd().iterdir())


def test_traceback_only_when_asked_for(started, capsys, monkeypatch):
    cli.run(["n_envs=0"])
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    assert cli.run(["n_envs=0"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_what_nobody_foresaw_is_one_line_and_code_1(started, capsys, monkeypatch):
    def train(config, crew=None):
        raise ZeroDivisionError("one\ntwo")

    monkeypatch.setattr(sys.modules["warprun.runs.train"], "train", train)
    assert cli.run([]) == 1
    told = capsys.readouterr().err
    assert re.fullmatch(
        r"warprun: error: \S*test_cli\.py:\d+ in train: ZeroDivisionError: one two \(WARPRUN_TRACEBACK=1 shows the traceback\)\n", told
    )


def test_interrupt_is_code_130(started, capsys, monkeypatch):
    def train(config, crew=None):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["warprun.runs.train"], "train", train)
    assert cli.run([]) == 130
    assert capsys.readouterr().err == "warprun: error: interrupted\n"


def test_train_with_and_without_its_verb(started):
    assert cli.run(["train", "n_envs=1e4", "total_steps=5e6"]) == 0
    assert cli.run(["n_envs=10000", "total_steps=5_000_000"]) == 0
    assert started[0].origin.overrides == ["n_envs=1e4", "total_steps=5e6"]
    assert replace(started[0], origin=started[1].origin) == started[1]
    assert (started[0].n_envs, started[0].total_steps) == (10_000, 5_000_000)
    assert not list(Path.cwd().iterdir())


def test_train_from_python(started):
    assert warprun.train(["env=pendulum", "agent=a2c"]).eval_return == 1.0
    assert started[0].env.name == "pendulum"
    with pytest.raises(UserError, match="did you mean 'pendulum'"):
        warprun.train(["env=pendulm"])


def test_eval_passes_its_settings_on(started, capsys, monkeypatch):
    asked = []
    found = {"return": 12.5, "return_stderr": 0.25}
    stub = types.SimpleNamespace(evaluate_run=lambda *given: asked.append(given) or found, describe_checkpoint=lambda *given: ["the last"])
    monkeypatch.setitem(sys.modules, "warprun.runs.evaluation", stub)
    Path("a_run").mkdir()
    Path("a_run/config.yaml").write_text("seed: 0\n")
    assert cli.run(["eval", "a_run", "episodes=1e3", "greedy=false", "device=cpu", "seed=4"]) == 0
    assert asked == [(Path("a_run"), 1000, False, "cpu", 4, "checkpoints", False)]
    shown = capsys.readouterr().out
    assert "the last" in shown
    assert re.search(r"return\W+12\.500\W+0\.250", shown)
    assert cli.run(["eval", "a_run"]) == 0
    assert asked[1] == (Path("a_run"), None, True, "auto", 0, "checkpoints", False)


SHIPPED = ("acrobot", "cartpole", "mountain_car_continuous", "pendulum", "475")


def test_envs_lists_everything_and_survives_a_broken_one_of_the_user(started, capsys):
    Path("conf/env").mkdir(parents=True)
    Path("conf/env/mine.yaml").write_text("name: mine\nmodule: ./mine.py\n")
    assert cli.run(["envs"]) == 0
    told = capsys.readouterr()
    for word in (*SHIPPED, "fails to load", "mine: environment file ./mine.py does not exist"):
        assert word in told.out
    assert told.err == ""


def test_envs_without_an_extra_says_what_to_install(started):
    code = "import sys; sys.modules['gymnasium'] = None; from warprun.cli.main import run; sys.exit(run(['envs']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "not installed" in done.stdout
    assert 'heat_equation: gymnasium is not installed; run: pip install "warprun[gymnasium]"' in done.stdout


def test_envs_fails_where_a_shipped_environment_is_broken(started, capsys, monkeypatch):
    from warprun.cli import environments

    def load(env):
        if env.name == "acrobot":
            raise UserError("environment warprun.envs.acrobot fails to import: NameError")
        return load_environment(env)

    monkeypatch.setattr(environments, "load_environment", load)
    assert cli.run(["envs"]) == 1
    told = capsys.readouterr()
    for word in SHIPPED:
        assert word in told.out
    words = "this installation of warprun is damaged: acrobot: environment warprun.envs.acrobot fails to import: NameError"
    assert told.err == f"warprun: error: {words}\n"


def test_envs_counts_a_file_of_the_user_with_a_shipped_name_as_the_users(started, capsys):
    Path("conf/env").mkdir(parents=True)
    Path("conf/env/acrobot.yaml").write_text("name: acrobot\nmodule: ./mine.py\n")
    assert cli.run(["envs"]) == 0
    told = capsys.readouterr()
    assert "acrobot: environment file ./mine.py does not exist" in told.out
    assert told.err == ""


def test_a_wrong_key_in_an_environment_file_is_told(started, capsys):
    Path("conf/env").mkdir(parents=True)
    Path("conf/env/mine.yaml").write_text("nam: mine\nmodule: ./mine.py\n")
    words = "in env/mine.yaml: unknown key 'env.nam'; did you mean 'env.name'?"
    assert cli.run(["env=mine"]) == 2
    assert capsys.readouterr().err == f"warprun: error: {words}\n"
    assert cli.run(["envs"]) == 0
    table = capsys.readouterr().out
    assert "cartpole" in table and f"mine: {words}" in table


@pytest.mark.parametrize("arguments", ["--cfg job n_envs=3", "n_envs=3 --cfg job", "train n_envs=3 --cfg job seed=1"])
def test_hydra_shows_the_config(started, capsys, arguments):
    assert cli.run(arguments.split()) == 0
    assert "n_envs: 3\n" in capsys.readouterr().out
    assert not started


def test_of_a_sweep_the_config_of_the_first_job_is_shown(started, capsys):
    assert cli.run(["-m", "agent=ppo,a2c", "seed=3,4", "sweep_dir=s", "--cfg", "job"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("# 0000_ppo_seed-3, the first of 4 jobs\n") and "  name: ppo\n" in told and "\nseed: 3\n" in told
    assert cli.run(["-m", "agent=ppo,a3c", "--cfg", "job"]) == 2 and "unknown agent 'a3c'" in capsys.readouterr().err
    assert not started and not list(Path.cwd().iterdir())


def test_of_a_run_that_continues_its_config_is_shown(started, capsys):
    assert cli.run(["n_envs=3", "run_dir=mine", "resume=auto", "--cfg", "job"]) == 0  # there is none yet
    assert "\nn_envs: 3\n" in capsys.readouterr().out
    Path("mine").mkdir()
    Path("mine/config.yaml").write_bytes(rundir.config_text(to_dict(compose(["n_envs=3", "tuned=none"]))))
    for which in ("resume=mine", "resume=auto run_dir=mine n_envs=3 tuned=none"):
        assert cli.run(f"{which} seed=7 --cfg job".split()) == 0
        told = capsys.readouterr().out
        assert "\nn_envs: 3\n" in told and "\nseed: 7\n" in told
    assert cli.run(["resume=mine", "--info"]) == 2 and "--cfg job prints it" in capsys.readouterr().err
    assert not started


def test_hydra_says_where_the_config_comes_from_and_leaves_logging_as_it_was(capsys):
    root = logging.getLogger()
    before = root.level, [*root.handlers]
    assert cli.run(["--info", "searchpath"]) == 0
    assert "pkg://warprun.conf" in capsys.readouterr().out
    assert (root.level, root.handlers) == before


@pytest.mark.by_default(2)
@pytest.mark.parametrize(
    ("line", "offered"),
    [("warprun env=pend", "env=pendulum"), ("warprun train env=pend", "env=pendulum"), ("warprun agent.gam", "agent.gamma=")],
)
def test_tab_completion(tmp_path, line, offered):
    done, _ = warprun_in(tmp_path, "-sc", "query=bash", COMP_LINE=line, COMP_POINT=str(len(line)), COMP_CWORD="1")
    assert offered in done.stdout


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A PATH on which warprun and srun only say what they were asked."""
    for name, script in {"warprun": 'echo "$@"', "srun": 'echo "srun $@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def batch(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a batch script as SLURM would, or by hand."""
    return subprocess.run(
        ["bash", str(ROOT / "warprun" / "slurm" / script), *arguments], env={**os.environ, **environment}, capture_output=True, text=True
    )


def test_scripts_are_copied_and_no_changed_one_is_replaced(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.run(["scripts", "slurm"]) == 0
    told = capsys.readouterr().out.split()
    assert "slurm/train.sbatch" in told and sorted(told) == sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.sbatch"))
    assert (tmp_path / "slurm" / "train.sbatch").read_bytes() == (ROOT / "warprun" / "slurm" / "train.sbatch").read_bytes()
    assert cli.run(["scripts", "slurm"]) == 0
    (tmp_path / "slurm" / "train.sbatch").write_text("mine")
    assert cli.run(["scripts", "slurm"]) == 2
    assert "overwrite=true replaces it" in capsys.readouterr().err
    assert (tmp_path / "slurm" / "train.sbatch").read_text() == "mine"
    assert cli.run(["scripts"]) == 2


def test_train_script(cluster):
    assert batch("train.sbatch", "env=pendulum", "seed=3").stdout == "train env=pendulum seed=3\n"
    job = {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "8"}
    own = "srun --kill-on-bad-exit=1 warprun train concurrency.threads=8 resume=auto run_dir=outputs/slurm-7 seed=3\n"
    assert batch("train.sbatch", "seed=3", **job).stdout == own
    assert batch("train.sbatch", "run_dir=a", **job).stdout.count("run_dir=") == 1
    contained = batch("train.sbatch", WARPRUN_CONTAINER="w.sif", APPTAINER_OPTIONS="--nv", **job).stdout
    assert contained.startswith("srun --kill-on-bad-exit=1 apptainer exec --nv w.sif warprun train")


def test_ddp_script(cluster):
    assert batch("ddp.sbatch", "seed=3").stdout == "train concurrency=ddp seed=3\n"
    job = {"SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(ROOT / "warprun")}
    assert "warprun train concurrency.threads=1 resume=auto run_dir=outputs/slurm-7 concurrency=ddp" in batch("ddp.sbatch", **job).stdout


def test_actors_script(cluster, tmp_path):
    (tmp_path / "mpiexec").write_text('#!/bin/bash\necho -n "mpiexec $1 $2 "; shift 2; "$@"\n')
    (tmp_path / "mpiexec").chmod(0o755)
    assert batch("actors.sbatch", "concurrency=rma").stdout == "mpiexec -n 4 train concurrency=rma\n"
    job = {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "2", "SLURM_HET_SIZE": "2", "SRUN_MPI": "pmix"}
    wanted = "srun --kill-on-bad-exit=1 --mpi=pmix --het-group=0-1 warprun train concurrency.threads=2 concurrency=rma\n"
    assert batch("actors.sbatch", "concurrency=rma", **job).stdout == wanted


def test_sweep_script(cluster, tmp_path):
    assert batch("sweep.sbatch", "env=pendulum", SLURM_ARRAY_TASK_ID="4").stdout == "train env=pendulum seed=4\n"
    (tmp_path / "runs.txt").write_text("agent=a2c agent.gamma=0.9\nagent=ppo\n")
    assert batch("sweep.sbatch", "runs.txt", "n_envs=9").stdout == "train n_envs=9 agent=a2c agent.gamma=0.9\n"
    assert batch("sweep.sbatch", "runs.txt", SLURM_ARRAY_TASK_ID="2").stdout == "train agent=ppo\n"
    job = {"SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(ROOT / "warprun"), "SLURM_ARRAY_TASK_ID": "2", "SLURM_CPUS_PER_TASK": "2"}
    own = "warprun train concurrency.threads=2 resume=auto run_dir=outputs/slurm-7_2 agent=ppo\n"
    assert batch("sweep.sbatch", "runs.txt", **job).stdout == f"srun --kill-on-bad-exit=1 {own}"
    for index in ("0", "3"):
        missing = batch("sweep.sbatch", "runs.txt", SLURM_ARRAY_TASK_ID=index)
        assert (missing.returncode, missing.stdout) == (2, "")
        assert f"has no line {index}" in missing.stderr


def test_a_folder_that_is_no_run_says_what_it_is(started, capsys):
    begun, run = Path("outputs/begun"), Path("outputs/run")
    for folder, file in ((begun, "lock"), (run, "config.yaml")):
        folder.mkdir(parents=True)
        (folder / file).touch()
    for folder, message in (("outputs", "has runs in it, such as outputs/run"), (begun, "run has just begun, or was killed in its set-up")):
        assert cli.run(["eval", str(folder)]) == 2
        assert message in capsys.readouterr().err


def test_lines_of_a_table_that_is_no_terminal_end_without_blanks(capsys):
    console = table_console()
    table = Table("short", box=None, title="a title of its own")
    table.add_row("a long cell of the table", style="bold")
    console.print(table)
    console.sentence("a sentence ")
    lines = capsys.readouterr().out.splitlines()
    assert "a sentence" in lines and all(line == line.rstrip() for line in lines)
