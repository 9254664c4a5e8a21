"""The command line: help, verbs, and every mistake of a user as one line."""

import errno
import logging
import os
import re
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
from rich.table import Table

import warprun
from tests.words import words
from warprun.cli import main as cli
from warprun.cli.process import attempt
from warprun.config.compose import compose
from warprun.config.schema import load_environment, to_dict
from warprun.errors import TrainingFailed, UserError
from warprun.runs import rundir
from warprun.runs.records.terminal import table_console

ROOT = Path(__file__).parents[2]
LONG = "x" * 300


def test_help_names_what_there_is(capsys):
    assert cli.run(["--help"]) == 0
    told = capsys.readouterr().out
    assert not [word for word in ("n_envs", "cartpole", "ppo", "eval", "envs", "-sc install=bash", "env.randomize") if word not in told]


FAILURES = [
    (UserError("n_envs=0"), 2, "n_envs=0"),
    (TrainingFailed("a loss is NaN"), 1, "a loss is NaN"),
    (OSError(errno.ENOSPC, "No space left on device", "run"), 1, "No space left on device"),
    (BrokenPipeError(), 141, ""),
    (KeyboardInterrupt(), 130, "interrupted"),
]


@pytest.mark.parametrize(("error", "code", "message"), FAILURES, ids=lambda value: type(value).__name__)
def test_what_ends_a_command_gives_its_exit_code(error: BaseException, code: int, message: str) -> None:
    def fails() -> int:
        raise error

    found = attempt(fails)
    assert found.code == code and message in found.message


INTERPOLATED = words("""
    agent.groups=${env} agent.groups.agent=${env} agent.network=${env} agent.network.hidden=${agent} agent.gamma=${env}
    agent.optimizer=${agent.network} env.params=${agent} env.kwargs.x=${agent} env.randomize.gravity=${eval} log.services=${env}
    env.register=${seed} name=${agent} eval=${log} n_envs=${agent.network}
""")
TOO_LONG = [
    *words("""
    agent.groups.LONG=1 env.params.LONG=1 env=LONG agent=LONG experiment=LONG tuned=LONG launcher=LONG concurrency=LONG name=LONG
    output_root=LONG sweep_dir=LONG resume=LONG env.module=LONG.py env.module=LONG agent.network.module=LONG.py:Net
"""),
    *("-m seed=0,1 " + given for given in words("agent.groups.LONG=1 env=LONG sweep_dir=LONG sweep_dir=a/LONG output_root=a/LONG")),
    *(verb + " LONG" for verb in words("eval play export report status check new data scripts job")),
    "bench out=a/LONG",
    "bench out=a\0b",
    "scripts a/LONG",
    "scripts a\0b",
]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("env=cartpol", "unknown environment 'cartpol'; did you mean 'cartpole'?"),
        ("n_envs=0", "n_envs=0 must be at least 1"),
        ("agent.minibatches=1000000", "and each of 1000000 gradient steps needs 2 or more: raise n_envs"),
        ("device=cuda", "device=cuda: "),
        ("run_dir=full", "run_dir='full' exists and is not empty"),
        ("env.module=./broken.py", "broken.py:2: ModuleNotFoundError: No module named 'not_there'"),
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
        ("help", "unknown verb 'help'; write warprun --help"),
        ("eval.every=3parsecs", "5% (of the run) or never, or auto"),
        ("log.every=auto", "5% (of the run) or never"),
        ("eval broken.py", "broken.py is not a run folder: it is a file in one"),
        (
            "env=tag_continuous agent.groups.runners.network.type=lstm",
            "actors of group runners leave episodes before they end; write agent.groups.runners.network.type=mlp",
        ),
        # modules of environments
        (
            "env.module=./broken",
            "is neither a module that Python can import nor a .py file; did you mean ./broken.py?",
        ),
        ("env.module=broken", "did you mean ./broken.py?"),
        ("env.module=./", "is neither a module that Python can import nor a .py file"),
        # what no run needs
        ("output_root=file/x", "file is not a folder"),
        ("run_dir=file/x", "file is not a folder"),
        ("run_dir=", "must be the path of a folder"),
        ("run_dir='~/x'", "the shell has not replaced ~ or $"),
        ("output_root=$HOME/x", "the shell has not replaced ~ or $"),
        ("name=.", "must be usable as a folder name"),
        ("name=Zürich", "put the value in quotes"),
        ("name=a\0b", "an argument cannot have a zero byte"),
        ("name=\udc80", "has a control character or one that is no text"),
        ("agent.groups=" + "[" * 50 + "]" * 50, "is nested too deeply"),
        ("seed=" + "9" * 400, "has a number of more than 40 digits"),
        ("n_envs=" + "9" * 30, "n_envs=1e+30 is too large"),
        ("name=${oc.${name}:HOME}", "functions such as ${oc.env:...} are not called"),
        ("hydra.job.id=x", "settings of Hydra itself have no effect here"),
        ("agent@x=ppo", "a key is made of names with dots"),
        # values of another type by interpolation
        *((given, "") for given in INTERPOLATED),
        # names that no file can have, and folders of which the first part could be made
        (f"name={'a' * 101}", "usable as a folder name"),
        (f"run_dir={LONG}", "File name too long"),
        *((given.replace("LONG", LONG), "") for given in TOO_LONG),
    ],
    ids=lambda text: text[:60],
)
def test_a_mistake_is_one_line_and_leaves_nothing(started, refusal, monkeypatch, arguments, message):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    Path("full").mkdir()
    for file, text in {"file": "", "full/file": "", "broken.py": "import math\nimport not_there\n"}.items():
        Path(file).write_text(text)
    before = sorted(Path.cwd().rglob("*"))
    told = refusal(*arguments.split(" "))
    assert message in told and "Error:" not in told.replace("ModuleNotFoundError:", "")
    assert not started and sorted(Path.cwd().rglob("*")) == before


@pytest.mark.parametrize("setting", ["run_dir", "output_root"])
def test_a_folder_of_which_only_the_first_part_can_be_made_leaves_nothing(here, refusal, setting):
    assert refusal(f"{setting}=a/{LONG}") and not os.listdir()


def test_a_folder_that_no_run_is_made_in_may_be_one_that_cannot_be_written_to(started, tmp_path):
    Path("file").touch()
    assert cli.run(["output_root=file/x", "run_dir=here"]) == 0 and len(started) == 1
    assert compose(["output_root=file/x"]).output_root == "file/x"  # as `check`, `bench` and `play` do, which make no run folder


def test_traceback_only_when_asked_for(started, capsys, monkeypatch):
    cli.run(["n_envs=0"])
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    assert cli.run(["n_envs=0"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_an_error_in_a_training_is_one_line_with_its_place(started, capsys, monkeypatch):
    def train(config, crew=None):
        raise ZeroDivisionError("one\ntwo")

    monkeypatch.setattr(sys.modules["warprun.runs.train"], "train", train)
    assert cli.run([]) == 1
    told = r"\S*test_cli\.py:\d+ in train: ZeroDivisionError: one two \(WARPRUN_TRACEBACK=1 shows the traceback\)"
    assert re.fullmatch(rf"warprun: error: {told}\n", capsys.readouterr().err)


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
    for wrong in ("env=pendulum", ["-m", "seed=1,2"], [Path("x")]):
        with pytest.raises(UserError, match="train takes a list of settings without options"):
            warprun.train(wrong)  # type: ignore[arg-type]


def test_eval_passes_its_settings_on(started, capsys, monkeypatch):
    asked = []
    found = {"return": 12.5, "return_stderr": 0.25}
    stub = types.SimpleNamespace(evaluate_run=lambda *given: asked.append(given) or found, describe_checkpoint=lambda *given: ["the last"])
    monkeypatch.setitem(sys.modules, "warprun.runs.evaluation", stub)
    Path("a_run").mkdir()
    Path("a_run/config.yaml").write_text("agent:\n  name: a2c\nenv:\n  name: mine\n  module: ./mine.py\n")
    assert cli.run(["eval", "a_run", "episodes=1e3", "greedy=false", "device=cpu", "seed=4"]) == 0
    assert asked == [(Path("a_run"), 1000, False, "cpu", 4, "checkpoints", False)]
    shown = capsys.readouterr().out
    assert "the last" in shown
    assert re.search(r"return\W+12\.500\W+0\.250", shown)
    assert cli.run(["eval", "a_run"]) == 0
    assert asked[1] == (Path("a_run"), None, True, "auto", 0, "checkpoints", False)


SHIPPED = ("acrobot", "cartpole", "mountain_car_continuous", "pendulum", "475")


def test_envs_lists_everything_and_tells_what_is_wrong_in_files_of_the_user(started, capsys, refusal):
    Path("conf/env").mkdir(parents=True)
    for name, module in (("mine", "module"), ("acrobot", "module"), ("wrong", "modul")):
        Path(f"conf/env/{name}.yaml").write_text(f"name: {name}\n{module}: ./mine.py\n")
    assert cli.run(["envs"]) == 0
    told = capsys.readouterr()
    wrong = "in env/wrong.yaml: unknown key 'env.modul'; did you mean 'env.module'?"
    missing = ["mine: environment file ./mine.py does not exist", "acrobot: environment file ./mine.py does not exist"]
    assert not [word for word in (*SHIPPED, "fails to load", *missing, f"wrong: {wrong}") if word not in told.out]
    assert told.err == ""
    assert refusal("env=wrong") == f"warprun: error: {wrong}"


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


def test_hydra_shows_the_config_and_of_a_sweep_that_of_the_first_job(started, capsys):
    for arguments in ("--cfg job n_envs=3", "n_envs=3 --cfg job", "train n_envs=3 --cfg job seed=1"):
        assert cli.run(arguments.split()) == 0
        assert "n_envs: 3\n" in capsys.readouterr().out
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


@pytest.mark.parametrize(
    ("line", "offered"),
    [("warprun env=pend", "env=pendulum"), ("warprun train env=pend", "env=pendulum"), ("warprun agent.gam", "agent.gamma=")],
)
def test_tab_completion(capsys, monkeypatch, line, offered):
    for name, value in (("COMP_LINE", line), ("COMP_POINT", str(len(line))), ("COMP_CWORD", "1")):
        monkeypatch.setenv(name, value)
    cli.run(["-sc", "query=bash"])
    assert offered in capsys.readouterr().out


def test_scripts_are_copied_and_no_changed_one_is_replaced(here, capsys, refusal):
    assert cli.run(["scripts", "slurm"]) == 0
    told = capsys.readouterr().out.split()
    assert "slurm/train.sbatch" in told and sorted(told) == sorted(str(path.relative_to(here)) for path in here.rglob("*.sbatch"))
    assert (here / "slurm" / "train.sbatch").read_bytes() == (ROOT / "warprun" / "slurm" / "train.sbatch").read_bytes()
    assert cli.run(["scripts", "slurm"]) == 0
    (here / "slurm" / "train.sbatch").write_text("mine")
    assert "overwrite=true replaces it" in refusal("scripts", "slurm")
    assert (here / "slurm" / "train.sbatch").read_text() == "mine"
    assert cli.run(["scripts"]) == 2


def test_scripts_that_a_full_disk_cuts_short_leave_nothing(here, monkeypatch, refusal):
    def write(path: Path, data: bytes) -> None:
        if path.name != "actors.sbatch":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        path.write_bytes(data)

    monkeypatch.setattr("warprun.cli.environments.write_atomic", write)
    assert "cannot copy scripts to slurm: No space left on device" in refusal("scripts", "slurm")
    assert not os.listdir()


def test_a_folder_that_is_no_run_says_what_it_is(started, refusal):
    begun, run = Path("outputs/begun"), Path("outputs/run")
    for folder, file in ((begun, "lock"), (run, "config.yaml")):
        folder.mkdir(parents=True)
        (folder / file).touch()
    for folder, message in (("outputs", "has runs in it, such as outputs/run"), (begun, "run has just begun, or was killed in its set-up")):
        assert message in refusal("eval", str(folder))


def test_lines_of_a_table_that_is_no_terminal_end_without_blanks(capsys):
    console = table_console()
    table = Table("short", box=None, title="a title of its own")
    table.add_row("a long cell of the table", style="bold")
    console.print(table)
    console.sentence("a sentence ")
    lines = capsys.readouterr().out.splitlines()
    assert "a sentence" in lines and all(line == line.rstrip() for line in lines)
