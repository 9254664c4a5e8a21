"""`warprun new`: write the folder of a project, with an environment or an algorithm to begin from."""

from __future__ import annotations

import keyword
import re
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from warprun.cli.process import DONE
from warprun.config.registry import options
from warprun.errors import UserError, nearest, program, shown
from warprun.run_folder import MAX_NAME

TEMPLATES = Path(__file__).parents[1] / "templates"
PLACEHOLDER = "PROJECT"
"""The name of the project in the templates, in files and in their names."""
VARIANTS = {
    "": ("project", "environment", "discrete"),
    "--continuous": ("project", "environment", "continuous"),
    "--actors": ("project", "environment", "actors"),
    "--gymnasium": ("project", "environment", "gymnasium"),
    "--tensors": ("project", "environment", "tensors"),
    "--agent": ("project", "agent"),
}
"""Option -> folders of templates. A file that is in several is made of their parts, in this order."""
HIDDEN = {"gitignore": ".gitignore"}
"""Files whose names begin with a dot only where they take effect."""
VALUES = ("auto", "false", "inf", "latest", "nan", "no", "none", "null", "off", "on", "true", "yes")
"""Names that settings or YAML read as values."""


def new(arguments: Sequence[str]) -> int:
    """Write the project that `arguments` name, and print what to do next. Raises UserError; then no file is left."""
    flags = [argument for argument in arguments if argument.startswith("-")]
    names = [argument for argument in arguments if not argument.startswith("-")]
    for flag in flags:
        if flag not in VARIANTS:
            known = ", ".join(filter(None, VARIANTS))
            raise UserError(f"new has no option {shown(flag)}{nearest(flag, VARIANTS)} (there are: {known})")
    if len(names) != 1 or len(flags) > 1:
        raise UserError("new takes a name and at most one option, such as `warprun new reactor --continuous`")
    name, variant = names[0], "".join(flags)
    group = "agent" if variant == "--agent" else "env"
    _check_name(name, group)
    folder = Path(name)
    try:
        folder.mkdir()
    except FileExistsError:
        raise UserError(f"{name} exists here; take another name, or change to another folder") from None
    except OSError as error:
        raise UserError(f"cannot make the folder {name}: {error.strerror}") from None
    try:
        for path, text in files(name, variant).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise UserError(f"cannot write {error.filename or name}: {error.strerror}") from None
        raise
    first = "pip install -e ." if group == "agent" else f"{program()} check env={name}"
    print("\n  ".join([f"{name}/ has a project; README.md says what is in it. next:", f"cd {name}", first]))
    return DONE


def files(name: str, variant: str) -> dict[str, str]:
    """Return the files of a project, path -> text."""
    found: dict[str, str] = {}
    for part in VARIANTS[variant]:
        for file in sorted((TEMPLATES / part).rglob("*")):
            if file.is_file() and file.parent.name != "__pycache__":
                path = file.relative_to(TEMPLATES / part).as_posix().replace(PLACEHOLDER, name)
                path = HIDDEN.get(path, path)
                found[path] = found.get(path, "") + file.read_text(encoding="utf-8").replace(PLACEHOLDER, name)
    return found


def _check_name(name: str, group: str) -> None:
    """Raise UserError for a name that no module can have, that another one has, or that a config group has."""
    well_formed = re.fullmatch(r"[A-Za-z](\w*[A-Za-z0-9])?", name, re.ASCII) and len(name) <= MAX_NAME
    if not well_formed or keyword.iskeyword(name):
        raise UserError(f"new {shown(name)}: the name is that of a Python module: letters, digits, _, as in my_tank")
    if name.lower() in VALUES:
        raise UserError(f"new {name}: {name} is a value of settings; take another name")
    if name in options(group):
        raise UserError(f"new {name}: {group}={name} exists; `{program()} --help` lists the names that are taken")
    if name in sys.stdlib_module_names or find_spec(name):
        raise UserError(f"new {name}: Python has a module {name}, which this one would hide; take another name")
