"""Loads the scripts of the repository as modules."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

SCRIPTS = Path(__file__).parents[1] / "scripts"


def load(name: str) -> ModuleType:
    """Return a script; it finds the modules beside it, as when it runs."""
    if str(SCRIPTS) not in sys.path:
        sys.path.append(str(SCRIPTS))
    return import_module(name)
