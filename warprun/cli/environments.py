"""The verbs of environments: `warprun envs`, `check`, `bench`, `data` and `scripts`. Torch and Numba are imported after the checks."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Column, Table
from rich.text import Text

from warprun.checking.processes import Helper
from warprun.cli.loading import import_torch
from warprun.cli.process import DONE, FAILED, Outcome
from warprun.cli.settings import read_settings, whole_number, with_convolutions
from warprun.config.environments import environment_config
from warprun.config.external import BY_ID
from warprun.config.registry import import_environment, is_shipped, options
from warprun.config.schema import Config, EnvConfig, load_environment
from warprun.environment import Environment
from warprun.errors import MOST_PRINTED, NotInstalledError, UserError, check_one_of, nearest, printable, program
from warprun.files import make_folder, remove_empty, write_atomic
from warprun.kernels.driver import prepare
from warprun.runs.records.terminal import table_console
from warprun.spec import ActionKind, Space


def envs(arguments: Sequence[str]) -> int:
    """Print the environments, and the reasons why some cannot be used. Raises UserError."""
    if arguments:
        raise UserError(f"envs takes no arguments, not {arguments[0]!r}")
    faults = _print_environments()
    if faults:
        Outcome(FAILED, f"this installation of warprun is damaged: {'; '.join(faults)}").tell()
    return FAILED if faults else DONE


def _print_environments() -> list[str]:
    """Print the table of environments and why some fail to load; return the reasons for those that warprun ships."""
    console = table_console()
    table = Table(Column("name", no_wrap=True), Column("actors", no_wrap=True), "observation", "action", "time limit", "solved at")
    parameters: dict[str, Sequence[str]] = {}
    broken: dict[str, str] = {}
    missing_extras: dict[str, str] = {}
    for name in options("env"):
        try:
            row, parameters[name] = _row(environment_config(name))
            table.add_row(*row)
        except UserError as error:
            missing = isinstance(error, NotInstalledError)
            (missing_extras if missing else broken)[name] = str(error)
            table.add_row(printable(name), Text("not installed", style="yellow") if missing else Text("fails to load", style="red"))
    console.print(table)
    for name in filter(parameters.get, parameters):
        console.sentence(Text.assemble((f"{printable(name)}: ", "bold"), f"env.params: {', '.join(parameters[name])}"))
    for reasons, style in ((missing_extras, "yellow"), (broken, "red")):
        for name, reason in reasons.items():
            console.sentence(Text(printable(f"{name}: {reason}"), style))
    return [f"{name}: {reason}" for name, reason in broken.items() if is_shipped("env", name)]


def _row(env: EnvConfig) -> tuple[Sequence[str], Sequence[str]]:
    """Return the row of an environment in the table, and the names of its parameters."""
    if env.module in BY_ID and env.id is None:
        return (env.name, "1 agent", "env.id=NAME selects", "an environment", f"of {BY_ID[env.module]}", ""), ()
    environment, _ = load_environment(env)
    groups = environment.spec.groups
    parameters = environment.params._fields if isinstance(environment, Environment) else ()
    row = (
        env.name,
        "\n".join(f"{group.size} {group.name}" for group in groups),
        "\n".join(f"{group.observation.size} numbers" for group in groups),
        "\n".join(DESCRIBED[group.action.kind](group.action) + (", masked" if group.masked else "") for group in groups),
        str(environment.spec.time_limit or "none"),
        "" if env.solved_at is None else f"{env.solved_at:g}",
    )
    return row, parameters


def _choices(space: Space) -> str:
    first = f" from {', '.join(map(str, space.starts))}" if any(space.starts) else ""
    return f"{' x '.join(map(str, space.choices))} choices{first}"


def _reals(space: Space) -> str:
    return f"{space.reals} in " + " x ".join(f"{low:g}..{high:g}" for low, high in dict.fromkeys(space.bounds()))


DESCRIBED: dict[ActionKind, Callable[[Space], str]] = {"choices": _choices, "reals": _reals}


def check(arguments: Sequence[str]) -> int:
    """Check the environment that `arguments` compose, and print the table; `out=FILE` also writes it as JSON. Raises UserError."""
    out = [argument.removeprefix("out=") for argument in arguments if argument.startswith("out=")]
    overrides = [argument for argument in arguments if not argument.startswith("out=")]
    if not any(override.startswith(("env=", "experiment=")) for override in overrides):
        named = next((override for override in overrides if "=" not in override), "")
        such = f": write `{program()} check env={named}`" if named in options("env") else ", such as `warprun check env=cartpole`"
        raise UserError(f"check needs the name of an environment{such}")
    if os.environ.get("NUMBA_DISABLE_JIT") == "1":
        raise UserError("check compares compiled kernels with plain Python; unset NUMBA_DISABLE_JIT")
    from warprun.config.compose import compose  # imports Hydra, which `envs` does without

    path = Path(out[-1]) if out else None
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise UserError(f"out={out[-1]}: write the name of a file in a folder that exists, such as out=check.json")
    overrides = with_convolutions(overrides)
    config = compose(overrides)
    import_torch(config)
    # Imported after the checks, because they import torch and numba.
    from warprun.checking.check import check as checked
    from warprun.checking.findings import print_findings, write_findings

    began = time.perf_counter()
    found = checked(config, overrides)
    print_findings(found)
    if path is not None:
        try:
            write_findings(found, config.env.name, time.perf_counter() - began, path)
        except OSError as error:
            raise UserError(f"out={out[-1]}: {error.strerror}") from None
    return FAILED if any(finding.verdict == "failed" for finding in found) else DONE


SCRIPTS, BATCH = Path(__file__).parents[1] / "slurm", Path(__file__).parents[1] / "batch"
"""The scripts of SLURM, and the parts of those of other batch systems: the beginning of each, and train.sh, which they share."""
SYSTEMS = ("slurm", "pbs", "lsf", "flux")


@dataclass
class _ScriptsSettings:
    """The settings of `warprun scripts`."""

    overwrite: bool = False
    system: str | None = None
    """Batch system; null: the one that the folder is called, else slurm."""


def scripts(arguments: Sequence[str]) -> int:
    """Copy batch scripts to a folder, where they can be changed, and print their paths. Raises UserError; then nothing is copied."""
    settings = _ScriptsSettings()
    names = read_settings("scripts", settings, arguments)
    if len(names) != 1:
        raise UserError("scripts takes the folder to copy to, such as `warprun scripts slurm`")
    folder = Path(names[0])
    system = settings.system or (folder.name if folder.name in SYSTEMS else "slurm")
    check_one_of("system", system, SYSTEMS)
    if system == "slurm":
        copies = {folder / script.name: script.read_bytes() for script in sorted(SCRIPTS.glob("*.sbatch"))}
    else:
        copies = {folder / f"train.{system}": b"".join((BATCH / f"{part}.sh").read_bytes() for part in (system, "train"))}
    try:
        changed = [copy for copy, content in copies.items() if copy.exists() and copy.read_bytes() != content]
        if changed and not settings.overwrite:
            raise UserError(f"{changed[0]} exists and differs from the script of warprun; overwrite=true replaces it")
        made = make_folder(folder)
        new = [copy for copy in copies if not copy.exists()]
        try:
            for copy, content in copies.items():
                write_atomic(copy, content)
                copy.chmod(0o755)
        except OSError:
            for copy in new:
                copy.unlink(missing_ok=True)
            remove_empty(made)
            raise
    except OSError as error:
        raise UserError(f"cannot copy scripts to {folder}: {error.strerror}") from None
    for copy in copies:
        print(printable(copy, MOST_PRINTED))
    return DONE


def bench(arguments: Sequence[str]) -> int:
    """Measure every number of environments and of threads that the arguments name, and print and keep a table. Raises UserError."""
    from warprun.config.checks import check_folder
    from warprun.config.compose import compose

    lists = {"sizes": [10, 100, 1_000, 10_000, 100_000], "threads": [0]}
    out = "outputs/bench"
    rest = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key in ("sizes", "threads") and equals:
            lists[key] = [whole_number(key, part) for part in value.strip("[]").split(",")]
            if min(lists[key]) < 1:
                raise UserError(f"{argument}: numbers must be at least 1")
        elif key == "out" and equals:
            out = value
        else:
            rest.append(argument)
    configs = [compose([*rest, f"n_envs={n_envs}"]) for n_envs in lists["sizes"]]  # settings can follow from the size
    check_folder("out", out)
    try:
        made = make_folder(Path(out))
    except OSError as error:
        raise UserError(f"out={out}: {error.strerror}") from None
    try:
        _measure(configs, lists["threads"], Path(out), rest)
    finally:
        remove_empty(made)  # if it was interrupted
    return DONE


def _measure(configs: Sequence[Config], threads: Sequence[int], out: Path, overrides: list[str]) -> None:
    """Measure configs with each number of threads, 0 for that of the config, and print and write what was found."""
    config = configs[0]
    prepare(config.device)
    from warprun.runs import bench as measuring
    from warprun.runs.build import threads as threads_of
    from warprun.simulation.device import choose

    found = measuring.bench(configs, [count or threads_of(config) for count in threads])
    measuring.report(found, out, f"{config.env.name}, {config.agent.name}, {choose(config.device).kind}")
    if choose(config.device).kind == "cpu" and found[0].simulation_steps_per_s is not None:
        _tell_scalar_loops(overrides, found[0].simulation_steps_per_s / found[0].threads)


def _tell_scalar_loops(overrides: list[str], steps_per_s: float) -> None:
    """Print the functions that are computed for one environment at a time, and the time of a step."""
    from warprun.kernels.vectors import WIDTH

    with tempfile.TemporaryDirectory() as folder, Helper("machine_code", Path(folder), *overrides) as looking:
        found, problem = looking.result()
    if problem:
        print(f"which functions are vectors is not known: {problem}")
    for function, cause in found.get("loops", {}).items():
        cost = f"a step takes {1e9 / steps_per_s:.3g} ns of a thread; vectors of {WIDTH} environments could take less"
        print(f"{function} is computed for one environment at a time: {cause} ({cost})")


def data(arguments: Sequence[str]) -> int:
    """Fetch the data that an environment needs, and print where it is. Raises UserError."""
    if len(arguments) != 1:
        raise UserError("data takes the name of one environment, such as `warprun data covid`")
    names = options("env")
    if arguments[0] not in names:
        raise UserError(f"unknown environment {arguments[0]!r}{nearest(arguments[0], names)} (there are: {', '.join(names)})")
    _, module = import_environment(environment_config(arguments[0]).module)
    if not hasattr(module, "fetch_data"):
        raise UserError(f"environment {arguments[0]!r} needs no data")
    print(f"data of {arguments[0]}: {module.fetch_data()}")
    return DONE
