"""`warprun scripts`: the SLURM scripts of the package, copied to where they can be changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from warprun.cli.settings import read_settings
from warprun.errors import MOST_PRINTED, UserError, printable

SCRIPTS = Path(__file__).parents[1] / "slurm"


@dataclass
class _ScriptsSettings:
    """The settings of `warprun scripts`."""

    overwrite: bool = False


def copy_scripts(arguments: Sequence[str]) -> None:
    """Copy the SLURM scripts to a folder and print their paths. Raises UserError; then nothing is copied."""
    settings = _ScriptsSettings()
    names = read_settings("scripts", settings, arguments)
    if len(names) != 1:
        raise UserError("scripts takes the folder to copy to, such as `warprun scripts slurm`")
    folder = Path(names[0])
    copies = {folder / script.name: script.read_bytes() for script in sorted(SCRIPTS.glob("*.sbatch"))}
    try:
        changed = [copy for copy, content in copies.items() if copy.exists() and copy.read_bytes() != content]
        if changed and not settings.overwrite:
            raise UserError(f"{changed[0]} exists and differs from the script of warprun; overwrite=true replaces it")
        folder.mkdir(parents=True, exist_ok=True)
        for copy, content in copies.items():
            copy.write_bytes(content)
            copy.chmod(0o755)
    except OSError as error:
        raise UserError(f"cannot copy scripts to {folder}: {error.strerror}") from None
    for copy in copies:
        print(printable(copy, MOST_PRINTED))
