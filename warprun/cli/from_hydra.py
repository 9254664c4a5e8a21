"""Options and settings of Hydra that have another name here: they are translated, or one line says what to type. Imports no Hydra."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath

from warprun.config.registry import options
from warprun.errors import UserError, program, shown

CONFIG_DIR, CONFIG_NAME = ("--config-dir", "-cd"), ("--config-name", "-cn")
NO_OPTION = {
    "--config-path": "warprun finds its own configs; --config-dir DIR adds a folder with yours",
    "-cp": "warprun finds its own configs; --config-dir DIR adds a folder with yours",
    "--experimental-rerun": "resume=RUN continues a run from its folder, with its settings",
    "--run": "this is what warprun does without an option; leave it out",
    "-r": "this is what warprun does without an option; leave it out",
}
"""Option of Hydra -> what to do instead."""
SAME = {"hydra.run.dir": "run_dir", "hydra.sweep.dir": "sweep_dir", "~tuned": "tuned=none"}
"""What Hydra calls it -> what warprun calls it."""

_LAUNCHER = "plugins of Hydra do not start runs here: launchers of warprun also continue what was interrupted (docs/sweeps.md)"
_SWEEPER = "plugins of Hydra do not search here: `warprun tune` searches with Optuna, and continues its studies (docs/sweeps.md)"
_NO_EFFECT = "settings of Hydra itself have no effect here (docs/configuration.md#coming-from-hydra)"
INSTEAD: dict[str, tuple[str, str]] = {
    r"hydra/launcher=submitit_slurm": ("launcher=slurm", _LAUNCHER),
    r"hydra/launcher=ray(_aws)?": ("launcher=ray", _LAUNCHER),
    r"hydra/launcher=.*": ("launcher=local", _LAUNCHER),
    r"hydra\.launcher\.ray\.init\.address=(.*)": (r"launcher.address=\1", _LAUNCHER),
    r"hydra\.launcher\.ray\.remote\.num_(cpu|gpu)s=(.*)": (r"launcher.\1s=\2", _LAUNCHER),
    r"hydra\.launcher\.n_jobs=(.*)": (r"launcher.workers=\1", _LAUNCHER),
    r"hydra\.launcher\.(partition|account|gres|setup)=(.*)": (r"launcher.\1=\2", _LAUNCHER),
    r"hydra\.launcher\.timeout_min=(.*)": (r"launcher.time=\1", _LAUNCHER),
    r"hydra\.launcher\.cpus_per_task=(.*)": (r"launcher.cpus=\1", _LAUNCHER),
    r"hydra\.launcher\.gpus_per_node=(.*)": (r"launcher.gres=gpu:\1", _LAUNCHER),
    r"hydra\.launcher\.mem_gb=(.*)": (r"launcher.mem=\1G", _LAUNCHER),
    r"hydra\.launcher\.array_parallelism=(.*)": (r"launcher.array_limit=\1", _LAUNCHER),
    r"hydra\.launcher\..*": ("", _LAUNCHER),
    r"hydra/sweeper=basic": ("", _NO_EFFECT),
    r"hydra/sweeper=.*": ("tune", _SWEEPER),
    r"hydra\.sweeper\.params\.([\w.-]+=.*)": (r"\1", "the values of a sweep are given to its settings"),
    r"hydra\.sweeper\.(?:n_trials|ax_config\.max_trials|optim\.budget)=(.*)": (r"tune trials=\1", _SWEEPER),
    r"hydra\.sweeper\.n_jobs=(.*)": (r"launcher.workers=\1", _SWEEPER),
    r"hydra\.sweeper\.sampler\.seed=(.*)": (r"tune tune.seed=\1", _SWEEPER),
    r"hydra\.sweeper\..*": ("", _SWEEPER),
    r"hydra\.sweep\.subdir=.*": ("", "the run folders of a sweep are called NUMBER_SETTINGS, such as 0003_ppo_seed-1"),
    r"hydra\.mode=(?:RunMode\.)?MULTIRUN": ("-m", "-m makes a sweep"),
    r"hydra\.searchpath=\[(?:file://)?([^,:\[\]]+)\]": (r"--config-dir \1", "--config-dir adds a folder with configs"),
    r"hydra\.job\.name=(.*)": (r"name=\1", "name is the name of a run"),
    r"hydra\.job\.chdir=.*": ("", "a run stays in the working folder"),
    r"hydra\.output_subdir=.*": ("", "there is no folder .hydra: a run folder has config.yaml, with the overrides, and versions.json"),
    r"hydra\.verbose=.*": ("", "there are no log levels; WARPRUN_TRACEBACK=1 shows tracebacks, --info how the config is composed"),
    r".*": ("", _NO_EFFECT),
}
"""Pattern of an override of Hydra -> words in its place, and a reason; the first that matches counts."""


def config_dir_taken(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the value of `--config-dir`, None if it is not given, and the other arguments. Raises UserError."""
    values, rest = _taken(CONFIG_DIR, arguments)
    return (values[-1] if values else None), rest


def translated(arguments: Sequence[str]) -> list[str]:
    """Return arguments in which words of Hydra are those of warprun. Raises UserError, which names the command to type if there is one."""
    names, rest = _taken(CONFIG_NAME, arguments)
    for argument in rest:
        if argument.partition("=")[0] in NO_OPTION:
            raise UserError(f"{argument}: {NO_OPTION[argument.partition('=')[0]]}")
    words = [*map(_same, rest), *(_experiment(name) for name in names)]
    foreign = [word for word in words if re.match(r"[+~]*hydra[./][^=]*=", word)]
    if foreign:
        _refuse(foreign, words)
    return words


def _taken(flags: Sequence[str], arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the values of an option, written as `FLAG VALUE` or `FLAG=VALUE`, and the other arguments."""
    values, rest, left = [], [], iter(arguments)
    for argument in left:
        flag, equals, value = argument.partition("=")
        if flag not in flags:
            rest.append(argument)
            continue
        values.append(value if equals else next(left, ""))
        if not values[-1]:
            raise UserError(f"{flag} needs a value")
    return values, rest


def _experiment(name: str) -> str:
    """Return the override for `--config-name NAME`: what its user wants is a file with the settings of a run."""
    name = PurePath(name).name.removesuffix(".yaml")
    if name not in options("experiment"):
        where = f"conf/experiment/{name}.yaml, whose first line is `# @package _global_`"
        raise UserError(
            f"--config-name: the primary config is that of warprun; put your settings into {where}, and write experiment={name}"
        )
    return f"experiment={name}"


def _same(word: str) -> str:
    """Return a word under the name that warprun has for it; `++key=value` is `key=value`, because all settings are known."""
    if word in SAME:
        return SAME[word]
    key, equals, value = word.partition("=")
    if equals and key.startswith(("++", "+hydra")):
        key = key.lstrip("+")
    if key in SAME and "${" in value:
        ours = SAME[key]
        raise UserError(
            f"{shown(word)}: functions in a path are not called; let the shell insert the time, {ours}=runs/$(date +%F_%H-%M-%S)"
        )
    return f"{SAME.get(key, key)}{equals}{value}"


def _refuse(foreign: Sequence[str], words: Sequence[str]) -> None:
    """Raise UserError with the command in which no setting of Hydra is left."""
    new, reason = [], ""
    for word in foreign:
        for pattern, (replacement, why) in INSTEAD.items():
            match = re.fullmatch(pattern, word.lstrip("+"), re.DOTALL)
            if match:
                new += [match.expand(each) for each in replacement.split()]
                reason = reason or why
                break
    rest = [word for word in words if word not in foreign]
    kinds = [kind for kind in ("tune", "-m") if kind in new]
    if kinds:  # `tune` trains many runs as well
        rest = [kinds[0], *(word for word in rest if word not in ("tune", "-m", "--multirun"))]
        new = [word for word in new if word not in kinds]
    raise UserError(f"{shown(foreign[0])}: {reason}; write `{program()} {shlex.join([*rest, *new])}`")
