"""Files that tests write: configs of environments, as users write them, and programs."""

from collections.abc import Mapping
from pathlib import Path


def add_environment(folder: Path, name: str, more: str = "", module: str = "") -> None:
    """Write the config of an environment, whose module is ./NAME.py unless `module` says another; `more` are further lines."""
    file = folder / "conf" / "env" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"name: {name}\nmodule: {module or f'./{name}.py'}\n{more}")


def add_programs(folder: Path, programs: Mapping[str, str], interpreter: str = "/bin/bash") -> None:
    """Write a folder of programs, name -> text."""
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(f"#!{interpreter}\n{text}\n")
        (folder / name).chmod(0o755)
