"""The command line: its verbs and exit codes. Each failure is one line. Heavy modules are imported only when needed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from warprun import signals
from warprun.cli.outcome import DONE, FAILED, Outcome, attempt
from warprun.cli.settings import check_settings, one_run, read_settings
from warprun.cli.streams import close_streams, open_streams
from warprun.cli.train import train_one
from warprun.config.registry import check_working_folder, options
from warprun.errors import MOST_PRINTED, UserError, nearest, printable, shown
from warprun.processes import code_of_rank, end_with_parent, is_first, silence, started, starter, take_share
from warprun.run_folder import LINES

HELP = """\
warprun: reinforcement learning at very high data throughput, for environments that are scientific simulations

  warprun [train] [GROUP=NAME ...] [KEY=VALUE ...]     train an agent; makes a run folder under outputs/
  warprun -m KEY=VALUE,VALUE ... [sweep_dir=FOLDER] [launcher=local|slurm] [launcher.workers=2]
                                                       train every combination: on this machine, or as a SLURM job array; the same
                                                       command over the same folder continues what is not finished
  warprun status [SWEEP|latest] [every_s=2]            the jobs of a sweep
  warprun tune 'KEY=interval(LOW,HIGH)' ... [trials=50] [pruner=median|asha|none] [sweep_dir=FOLDER] [launcher.workers=2]
                                                       search good settings with Optuna
  warprun resume=RUN|latest [KEY=VALUE ...] [trust=true]
                                                       continue a run from its newest checkpoint
  warprun eval [RUN|latest] [episodes=1000] [greedy=true] [checkpoint=last|best] [device=auto] [seed=0] [output_root=outputs]
               [trust=true]
                                                       the mean return of a trained agent over fresh episodes
  warprun export RUN|latest FILE.onnx|FILE.pt2|FILE.npz [checkpoint=last|best] [overwrite=false] [output_root=outputs] [trust=true]
                                                       the policy as a file for other programs
  warprun play [RUN|latest] [episodes=1] [greedy=true] [checkpoint=last|best] [policy=trained|random] [record=FILE|[FILE,...]]
               [every=1] [fps=25] [device=auto] [seed=0] [output_root=outputs] [trust=true]
                                                       play episodes of a trained agent; record them as .csv or .npz, or as a film in
                                                       .gif, .mp4 or .html
  warprun play env=NAME [env.KEY=VALUE ...] policy=random [...]
                                                       the same with random actions, without a run
  warprun envs                                         list the environments
  warprun check env=NAME [KEY=VALUE ...] [out=check.json]
                                                       find mistakes in an environment before training
  warprun bench [KEY=VALUE ...] [sizes=10,100,1000] [threads=1,2] [out=outputs/bench]
                                                       throughput by number of environments: table, JSON, picture
  warprun report PATH ... [by=agent,n_envs] [threshold=475] [returns=auto|eval|train] [unfinished=false] [log_x=false] [out=report]
                                                       compare runs: tables and figures with intervals over seeds, as one page
  warprun data ENV                                     fetch and check the data that an environment needs
  warprun scripts FOLDER [overwrite=false]             copy the SLURM scripts of warprun to a folder

Groups (including your own files ./conf/GROUP/NAME.yaml)
{groups}

Keys (quote brackets, parentheses and * for the shell: 'agent.network.hidden=[64,64]' 'seed=range(0,8)')
  n_envs=1024            number of environments that run in parallel; 1e4 is 10000, auto measures which number learns fastest
  total_steps=1e7        environment steps, summed over the environments
  max_minutes=null       end after this many minutes, compilation included
  stop_when_solved=true  end as soon as an evaluation reaches env.solved_at and fresh episodes confirm it
  seed=0                 same seed, same result
  device=auto            auto, cpu, cuda or cudasim
  concurrency.threads=2  CPU threads (default: all cores)
  name=null              part of the run folder's name
  run_dir=null           the run folder itself, new or empty
  resume=auto            continue the run in run_dir if there is one, else begin it: for batch jobs that are started again
  output_root=outputs    where run folders are made
  eval.every=5%          how often to evaluate: 10s, 5min, 1e6steps, 20iterations, 5% of the run, never; so log.every, checkpoint.every
  eval.episodes=20       episodes of each evaluation; eval.final_episodes=200 eval.greedy=true
  env.params.NAME=v      a parameter of the environment
  env.randomize.NAME=[a,b]   draw a parameter uniformly for each environment and episode
  env.time_limit=500     steps of an episode at most
  agent.KEY=v            such as agent.learning_rate=1e-3 agent.gamma=0.99 agent.horizon=16 agent.network.hidden=[64,64]
  agent.groups.GROUP.KEY=v   the same for one group of actors
  tuned=none             ignore the settings that were tuned for this environment and agent

Options
  --cfg job              print the config instead of training     --info     show how it is composed
  --version              print the version                        --help     this text
  Tab completion: eval "$(warprun -sc install=bash)"    (also zsh, fish: -sc install=fish | source)
  HYDRA_FULL_ERROR=1 or WARPRUN_TRACEBACK=1 in the environment show the traceback of an error.

Examples
  warprun env=cartpole n_envs=10000
  warprun env=pendulum agent=ppo seed=3 'agent.network.hidden=[128,128]' name=wide
  warprun -m agent=a2c,ppo seed=0,1,2 n_envs=100,10000
  warprun eval latest episodes=1000 greedy=false
  warprun play latest episodes=3 'record=[episodes.csv,episodes.gif]'
"""

HYDRA_FLAGS = ("--cfg", "-c", "--info", "-i", "--resolve", "--package", "-p", "--shell-completion", "-sc", "--hydra-help")
"""Options with which Hydra prints something instead of starting a run."""
MULTIRUN_FLAGS = ("-m", "--multirun")
SERVED = ("eval", "play", "check")
"""Verbs that rank 0 executes, if several processes were started; the others serve its environments, if these are parallel programs."""
FLAGS_WITH_VALUE = ("--cfg", "-c", "--package", "-p", "--info", "-i")
FLAGS_WITH_OPTIONAL_VALUE = ("--info", "-i")


def main() -> None:
    """Run the command line and exit with its code."""
    open_streams()
    signals.watch()
    end_with_parent()
    if starter() == "torchrun" or "concurrency=ddp" in sys.argv:
        take_share()  # before anything looks for a GPU
    if not is_first():
        silence()
    code = run(sys.argv[1:])
    close_streams()
    sys.exit(code_of_rank(code) if code and started() > 1 else code)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""

    def command() -> int:
        check_working_folder()
        return _dispatch(list(arguments))

    outcome = attempt(command)
    outcome.tell()
    return outcome.code


def _dispatch(arguments: list[str]) -> int:
    if "--help" in arguments or "-h" in arguments:
        print(
            HELP.format(
                groups="\n".join(f"  {group:12} {', '.join(options(group))}" for group in ("env", "agent", "concurrency", "experiment"))
            )
        )
        return DONE
    if "--version" in arguments:
        print(f"warprun {_version()}")
        return DONE
    verb, rest = ("train", arguments)
    if arguments and not arguments[0].startswith(("-", "~")) and "=" not in arguments[0]:
        verb, rest = arguments[0], arguments[1:]
    verbs = {
        "train": _train,
        "eval": _evaluate,
        "play": _play,
        "export": _export,
        "envs": _envs,
        "check": _check,
        "bench": _bench,
        "report": _report,
        "data": _data,
        "scripts": _scripts,
        "job": _job,
        "status": _status,
        "tune": _tune,
    }
    if verb not in verbs:
        raise UserError(f"unknown verb {shown(verb)}{nearest(verb, verbs)} (there are: {', '.join(verbs)}; a setting is written key=value)")
    if verb in SERVED and started() > 1:
        from warprun.parallel.start import with_all_ranks

        return with_all_ranks(lambda: verbs[verb](rest))
    return verbs[verb](rest)


def _train(arguments: list[str]) -> int:
    overrides, flags = _split(arguments)
    shown_by = [flag for flag in flags if flag not in MULTIRUN_FLAGS]
    if flags == shown_by:
        if not flags:
            return train_one(overrides)
        from warprun.cli.show import show

        return show(overrides, flags)
    from warprun.cli.sweep import show_first, sweep

    if started() > 1:
        raise UserError(f"-m: a sweep is one process, and {started()} were started; start it once")
    return show_first(overrides, shown_by) if shown_by else sweep(overrides)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the overrides among `arguments`, and the options with their values. Raises UserError for an option that does not exist."""
    overrides: list[str] = []
    flags: list[str] = []
    value_of = ""
    for argument in arguments:
        known = (*HYDRA_FLAGS, *MULTIRUN_FLAGS, "--help", "--version")
        if argument.startswith("-"):
            flag, equals, _ = argument.partition("=")
            if flag not in known:
                raise UserError(f"unknown option {shown(flag)}{nearest(flag, known)}; `warprun --help` lists them")
            value_of = "" if equals else flag
            flags.append(argument)
        elif value_of in FLAGS_WITH_VALUE and not (value_of in FLAGS_WITH_OPTIONAL_VALUE and "=" in argument):
            value_of = ""
            flags.append(argument)
        else:
            value_of = ""
            overrides.append(argument)
    return overrides, flags


@dataclass
class _EvalSettings:
    """The settings of `warprun eval`."""

    episodes: int = 0
    """0: as many as the final evaluation of the run had."""
    greedy: bool = True
    device: str = "auto"
    seed: int = 0
    output_root: str = "outputs"
    checkpoint: str = "last"
    trust: bool = False
    """Run the code of a run folder that this user did not make."""


def _evaluate(arguments: list[str]) -> int:
    settings = _EvalSettings()
    run = one_run("eval", read_settings("eval", settings, arguments))
    check_settings(settings)
    from warprun.runs import rundir

    folder = rundir.latest(Path(settings.output_root)) if run in ("", "latest") else Path(run)
    rundir.read_config(folder)  # raises UserError if it is no run folder
    from warprun.kernels.driver import prepare

    prepare(settings.device)
    from warprun.runs.evaluate import describe_checkpoint, evaluate_run

    line = LINES[settings.checkpoint]
    # Printed first, because the evaluation may take long.
    print("\n".join([printable(folder, MOST_PRINTED), *describe_checkpoint(folder, line)]), flush=True)
    result = evaluate_run(folder, settings.episodes or None, settings.greedy, settings.device, settings.seed, line, settings.trust)
    from rich.table import Table

    from warprun.runs.records.console import table_console

    table = Table("measure", "value", "standard error")
    for name, measured in result.items():
        if not name.endswith("_stderr"):
            error = result.get(f"{name}_stderr")
            table.add_row(name, f"{measured:,.3f}", "" if error is None else f"{error:,.3f}")
    table_console(80).print(table)
    return DONE


def _play(arguments: list[str]) -> int:
    from warprun.cli.play import play

    play(arguments)
    return DONE


def _export(arguments: list[str]) -> int:
    from warprun.cli.export import export_run

    export_run(arguments)
    return DONE


def _envs(arguments: list[str]) -> int:
    if arguments:
        raise UserError(f"envs takes no arguments, not {arguments[0]!r}")
    from warprun.cli.listing import print_environments

    faults = print_environments()
    if faults:
        Outcome(FAILED, f"this installation of warprun is damaged: {'; '.join(faults)}").tell()
    return FAILED if faults else DONE


def _bench(arguments: list[str]) -> int:
    from warprun.cli.bench import measure

    measure(arguments)
    return DONE


def _report(arguments: list[str]) -> int:
    from warprun.cli.report import report_runs

    report_runs(arguments)
    return DONE


def _check(arguments: list[str]) -> int:
    from warprun.cli.check import check_environment

    return check_environment(arguments)


def _data(arguments: list[str]) -> int:
    if len(arguments) != 1:
        raise UserError("data takes the name of one environment, such as `warprun data covid`")
    from warprun.config.compose import environment_config, environment_names
    from warprun.config.registry import import_environment

    names = environment_names()
    if arguments[0] not in names:
        raise UserError(f"unknown environment {arguments[0]!r}{nearest(arguments[0], names)} (there are: {', '.join(names)})")
    _, module = import_environment(environment_config(arguments[0]).module)
    if not hasattr(module, "fetch_data"):
        raise UserError(f"environment {arguments[0]!r} needs no data")
    print(f"data of {arguments[0]}: {module.fetch_data()}")
    return DONE


def _job(arguments: list[str]) -> int:
    from warprun.cli.job import job

    return job(arguments)


def _status(arguments: list[str]) -> int:
    from warprun.cli.status import status

    return status(arguments)


def _tune(arguments: list[str]) -> int:
    from warprun.cli.tune import tune

    return tune(arguments)


def _scripts(arguments: list[str]) -> int:
    from warprun.cli.scripts import copy_scripts

    copy_scripts(arguments)
    return DONE


def _version() -> str:
    try:
        return version("warprun")
    except PackageNotFoundError:
        return "(a checkout that is not installed)"
