"""Config files that tests write, as users do."""

from pathlib import Path


def add_environment(folder: Path, name: str, more: str = "", module: str = "") -> None:
    """Write the config of an environment, whose module is ./NAME.py unless `module` says another; `more` are further lines."""
    file = folder / "conf" / "env" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"name: {name}\nmodule: {module or f'./{name}.py'}\n{more}")
