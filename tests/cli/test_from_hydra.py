"""What users of Hydra type works, or one line has the command to type instead: every row of the table in docs/configuration.md."""

import os
import re
import shlex
from pathlib import Path

import pytest

from tests.words import words
from warprun.cli import from_hydra, sweeps
from warprun.cli import job as jobs
from warprun.cli import main as cli
from warprun.config import registry
from warprun.config.compose import compose
from warprun.errors import UserError, program
from warprun.runs.opening import environment_modules
from warprun.sweeps import launcher as launchers
from warprun.sweeps import plan

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "docs" / "configuration.md").read_text().partition("## Coming from Hydra\n")[2].partition("\n## ")[0]
ROWS = {
    typed: here for cell, here in re.findall(r"^\| (`.*?) \| (.*) \|$", SECTION, re.MULTILINE) for typed in re.findall(r"`([^`]+)`", cell)
}
"""What is typed -> what the page says of it."""
CLASSIC = "name: cartpole\nmodule: warprun.envs.cartpole\nparams: {length: 0.7}\n"
LONGER = "# @package _global_\nenv:\n  params:\n    length: 0.9\n"
_SEEDS = "seed=1,2"
_LOCAL = "-m seed=1,2 launcher=local launcher.workers=2"
TOLD: dict[str, tuple[str, str]] = {
    "-m seed=1,2": ("sweep_dir=s", "2 jobs"),
    "--multirun seed=1,2": ("sweep_dir=s", "2 jobs"),
    "--cfg job": ("", "\nn_envs: "),
    "--cfg job --package agent": ("", "# @package agent\nname: ppo\n"),
    "--cfg job -p agent": ("", "# @package agent\nname: ppo\n"),
    "--cfg job --resolve": ("'agent.horizon=${agent.n_step}' -p agent.horizon", "5\n"),
    "--info searchpath": ("", "pkg://warprun.conf"),
    "--multirun seed=1,2 --cfg job": ("-p seed", "# 0000_seed-1, the first of 2 jobs\n1\n"),
    "--config-dir DIR": ("env=lab --cfg job -p env.params", "length: 0.7\n"),
    "-cd DIR": ("env=lab --cfg job -p env.params", "length: 0.7\n"),
    "--config-name NAME": ("--cfg job -p env.params", "length: 0.9\n"),
    "-cn NAME": ("--cfg job -p env.params", "length: 0.9\n"),
    "--config-path DIR": ("", "--config-dir DIR adds a folder"),
    "--experimental-rerun FILE": ("", "resume=RUN continues a run"),
    "--run": ("", "leave it out"),
    "-r": ("", "leave it out"),
    "++seed=3": ("--cfg job -p seed", "3\n"),
    "+env.params.length=1": ("--cfg job -p env.params", "length: 1\n"),
    "+seed=3": ("", "this setting exists already; write 'seed=3'"),
    "~env.params.length": ("--cfg job -p env.params env=mine", "{}\n"),
    "~agent.gamma": ("", "a setting cannot be removed, only env.params.NAME"),
    "~tuned": ("agent=a2c --cfg job -p total_steps", "10000000\n"),
    "hydra.run.dir=DIR": ("--cfg job -p run_dir", "lab\n"),
    "hydra.run.dir='runs/${now:%F}'": ("", "run_dir=runs/$(date +%F_%H-%M-%S)"),
    "-m hydra.sweep.dir=DIR": (_SEEDS + " sweep_dir=s", "s: 2 jobs"),
    "-m hydra.sweep.subdir=NAME": (_SEEDS, "write `-m seed=1,2`"),
    "-m hydra/launcher=submitit_slurm": (
        "hydra.launcher.partition=gpu hydra.launcher.timeout_min=60 +hydra.launcher.mem_gb=4 seed=1,2",
        "write `-m seed=1,2 launcher=slurm launcher.partition=gpu launcher.time=60 launcher.mem=4G`",
    ),
    "-m hydra/launcher=joblib": (f"hydra.launcher.n_jobs=2 {_SEEDS}", f"write `{_LOCAL}`"),
    "-m hydra/launcher=submitit_local": (_SEEDS, "write `-m seed=1,2 launcher=local`"),
    "-m hydra/launcher=ray": (
        f"hydra.launcher.ray.init.address=h:1 hydra.launcher.ray.remote.num_cpus=2 {_SEEDS}",
        "write `-m seed=1,2 launcher=ray launcher.address=h:1 launcher.cpus=2`",
    ),
    "-m hydra/sweeper=optuna": (
        "hydra.sweeper.n_trials=3 'agent.gamma=interval(0.9,1)'",
        "write `tune 'agent.gamma=interval(0.9,1)' trials=3`",
    ),
    "-m hydra/sweeper=ax": ("hydra.sweeper.ax_config.max_trials=3 seed=1,2", "write `tune seed=1,2 trials=3`"),
    "-m hydra/sweeper=nevergrad": ("hydra.sweeper.optim.budget=3 seed=1,2", "write `tune seed=1,2 trials=3`"),
    "-m hydra.sweeper.params.seed=1,2": ("", "write `-m seed=1,2`"),
    "hydra.mode=MULTIRUN": (_SEEDS, "write `-m seed=1,2`"),
    "hydra.searchpath=[file://DIR]": ("env=lab", "write `env=lab --config-dir lab`"),
    "hydra.job.name=NAME": ("", "write `name=longer`"),
    "hydra.job.chdir=true": ("seed=3", "stays in the working folder; write `seed=3`"),
    "hydra.verbose=true": ("seed=3", "WARPRUN_TRACEBACK=1 shows tracebacks, --info how the config is composed; write `seed=3`"),
    "hydra.output_subdir=null": ("seed=3", "write `seed=3`"),
    "hydra/job_logging=none": ("seed=3", "have no effect here (docs/configuration.md#coming-from-hydra); write `seed=3`"),
}
"""What is typed -> what is typed behind it, and what the command tells. `warprun` is left out of commands."""


@pytest.fixture
def place(started, monkeypatch, tmp_path) -> Path:
    """The working folder, with config files of a user; neither a run nor a job trains."""
    for path, text in {"lab/env/lab.yaml": CLASSIC, "conf/experiment/longer.yaml": LONGER, "conf/env/mine.yaml": CLASSIC}.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
    monkeypatch.setattr(sweeps, "_prepare", lambda launch, first: None)
    monkeypatch.setattr(sweeps, "run_here", lambda board, todo, pool: print(f"{board.plan.folder}: {len(todo)} jobs") or 0)
    monkeypatch.setattr(launchers, "made", Nowhere)
    return tmp_path


class Nowhere(launchers.Launcher):
    """A launcher whose jobs never begin."""

    def submit(self, jobs):
        return ["17"] * len(jobs)

    def alive(self, ids):
        return set()

    def cancel(self, ids, number=15):
        raise NotImplementedError


def filled(typed: str) -> list[str]:
    return shlex.split(typed.replace("DIR", "lab").replace("NAME", "longer").replace("FILE", ".hydra/config.pickle"))


def test_every_row_of_the_table_is_tried():
    assert list(TOLD) == list(ROWS)


@pytest.mark.parametrize("typed", ROWS)
def test_what_is_typed_in_hydra(place, capsys, typed):
    behind, told = TOLD[typed]
    refused = ROWS[typed].startswith("refused")
    arguments = [*filled(typed), *shlex.split(behind)]
    code, (out, err) = cli.run(arguments), capsys.readouterr()
    assert code == (2 if refused else 0), err
    told = re.sub("write `", f"write `{program()} ", told)
    assert told in (err if refused else out), (out, err)
    if refused:
        assert err.startswith("warprun: error: ") and err.count("\n") == 1
        assert not (place / "outputs").exists()


@pytest.mark.by_default(2)
@pytest.mark.parametrize("typed", [typed for typed, (_, told) in TOLD.items() if "write `" in told])
def test_the_command_that_the_line_names_works(place, capsys, monkeypatch, typed):
    if "sweeper=" in typed:
        pytest.importorskip("optuna")
        monkeypatch.setattr("warprun.sweeps.study.run", lambda *given: None)
    cli.run([*filled(typed), *shlex.split(TOLD[typed][0])])
    named = shlex.split(re.findall("write `(.+)`\n", capsys.readouterr().err)[0])
    # A study without trials has no best one: its code is 1.
    assert cli.run(named[len(shlex.split(program())) :]) in ((0, 1) if "tune" in named else (0,)), capsys.readouterr().err


OF_PLUGINS = {
    "hydra.launcher.account=a": "-m seed=1,2 launcher.account=a",
    "hydra.launcher.cpus_per_task=4": "-m seed=1,2 launcher.cpus=4",
    "hydra.launcher.gpus_per_node=2": "-m seed=1,2 launcher.gres=gpu:2",
    "hydra.launcher.array_parallelism=9": "-m seed=1,2 launcher.array_limit=9",
    "hydra.launcher.unknown=9": "-m seed=1,2",
    "hydra.sweeper.n_jobs=2": "-m seed=1,2 launcher.workers=2",
    "hydra.sweeper.sampler.seed=5": "tune seed=1,2 tune.seed=5",
    "hydra.sweeper.direction=maximize": "-m seed=1,2",
    "hydra/sweeper=basic": "-m seed=1,2",
    "hydra.searchpath=[pkg://a]": "-m seed=1,2",
    "hydra.job.name=a b": "-m seed=1,2 'name=a b'",
}


def test_settings_of_plugins_have_names_here():
    for override, command in OF_PLUGINS.items():
        with pytest.raises(UserError) as told:
            from_hydra.translated(["-m", "seed=1,2", override])
        assert str(told.value).endswith(f"write `{program()} {command}`")


def test_words_of_hydra_in_programs(place, started):
    from warprun.cli.train import train

    train(["hydra.run.dir=mine", "++seed=3", "~tuned"])
    assert started[0].run_dir == "mine" and started[0].seed == 3 and started[0].origin.tuned is None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("+foo=3", "unknown key 'foo'"),
        ("-m +seed=1,2", "'+seed=1,2': this setting exists already; write 'seed=1,2'"),
        ("+experiment=longer", "write 'experiment=longer'"),
        ("-m +sede=1,2", "unknown key 'sede'; did you mean 'seed'?"),
        ("++foo=3", "unknown key 'foo'"),
        ("~env.params.gravity", "Could not delete from config. 'env.params.gravity' does not exist."),
        ("~agent", "a setting cannot be removed"),
        ("resume=r ~env.params.length", "keeps its keys"),
        ("tune ~env.params.length env=mine seed=1,2", "cannot remove a key"),
        ("--config-name nothing", "conf/experiment/nothing.yaml"),
        ("--config-name", "--config-name needs a value"),
        ("--config-dir=", "--config-dir needs a value"),
        ("--config-dir nowhere env=lab", "--config-dir or WARPRUN_CONFIG_DIR: nowhere is not a folder"),
        ("-m hydra.run.dir=x seed=1,2", "run_dir is the folder of one run"),
        ("hydra.sweep.dir=x", "is a setting of a sweep: add -m"),
        ("eval latest hydra.run.dir=x", "eval has no setting 'run_dir'"),
    ],
)
def test_what_cannot_work_is_one_line(place, refusal, line, told):
    if line.startswith("tune"):
        pytest.importorskip("optuna")
    if "resume=r" in line:
        from warprun.config.schema import to_dict
        from warprun.runs import rundir

        Path("r").mkdir()
        Path("r/config.yaml").write_bytes(rundir.config_text(to_dict(compose(["env=mine"]))))
    assert told in refusal(*shlex.split(line))


def test_the_first_file_counts(place, started, monkeypatch, capsys, refusal):
    for folder, length in (("conf", 0.6), ("lab", 0.8)):
        Path(folder, "env").mkdir(exist_ok=True)
        Path(folder, "env", "twice.yaml").write_text(CLASSIC.replace("0.7", str(length)))
    assert cli.run(words("env=twice --cfg job -p env.params")) == 0
    assert cli.run(words("--config-dir lab env=twice --cfg job -p env.params")) == 0
    assert re.findall(r"length: (\S+)", capsys.readouterr().out) == ["0.6", "0.8"]
    assert cli.run(words("--config-dir=lab env=mine --cfg job")) == 0  # ./conf is still there
    Path("lab/env/broken.yaml").write_text("a: [1\nb: {")
    assert "lab/env/broken.yaml:2: expected" in refusal("env=broken", "--config-dir", "lab")
    assert cli.run(words("--help -cd lab")) == 0 and ", lab, " in capsys.readouterr().out
    assert registry.CONFIG_DIR not in os.environ
    monkeypatch.setenv(registry.CONFIG_DIR, "lab")
    assert cli.run(["env=lab"]) == 0
    assert started[0].env.params == {"length": 0.7} and os.environ[registry.CONFIG_DIR] == "lab"


def test_jobs_of_a_sweep_have_its_configs_wherever_they_run(place, monkeypatch, capsys, refusal):
    assert cli.run(words("--config-dir lab -m env=lab seed=1,2 sweep_dir=s")) == 0
    assert plan.read(Path("s")).config_dir == str(place / "lab")
    trained = []
    monkeypatch.setattr(jobs, "train_one", lambda overrides, compose: trained.append(compose(overrides[:2])) or 1)
    monkeypatch.chdir("lab")
    monkeypatch.setenv(registry.CONFIG_DIR, "elsewhere")
    jobs.train_job(str(place / "s"), 1)
    assert trained[0].env.params == {"length": 0.7} and os.environ[registry.CONFIG_DIR] == "elsewhere"
    monkeypatch.delenv(registry.CONFIG_DIR)
    monkeypatch.chdir(place)
    assert cli.run(words("-m sweep_dir=s")) == 0
    assert cli.run(words("-cd lab -m env=lab seed=1,2,3 sweep_dir=s")) == 0
    capsys.readouterr()
    told = refusal(*words("-cd conf -m env=cartpole seed=1,2 sweep_dir=s"))
    assert "sweep_dir=s was begun with --config-dir lab: continue it so, or choose another folder" in told
    assert cli.run(words("-m seed=1 sweep_dir=t")) == 0 and plan.read(Path("t")).config_dir is None
    assert "was begun without --config-dir" in refusal(*words("-cd lab -m seed=1 sweep_dir=t"))


def test_a_folder_of_configs_within_a_run_folder_makes_no_module_known(here):
    for folder in ("run/lab", "lab"):
        Path(here, folder, "env").mkdir(parents=True)
        Path(here, folder, "env", "x.yaml").write_text(f"name: x\nmodule: ./{folder}/x.py\n")
    for folder, known in (("lab", True), ("run/lab", False)):
        with registry.configs_from(folder):
            assert (f"./{folder}/x.py" in environment_modules(here / "run")) == known
