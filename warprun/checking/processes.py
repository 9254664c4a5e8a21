"""Checks in processes of their own; they run while this process does the other checks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

LIMIT = 300.0
"""Seconds after which a process is ended."""


class Helper:
    """A module of this package that runs in a process and writes a JSON file."""

    def __init__(self, module: str, folder: Path, *arguments: str | Path) -> None:
        """Start `module` with the name of its file, which lies in `folder`, and `arguments`."""
        self.found = folder / f"{module}.json"
        self._messages = self.found.with_suffix(".log")
        command = [sys.executable, "-m", f"warprun.checking.{module}", str(self.found), *map(str, arguments)]
        with self._messages.open("wb") as messages:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=messages, stderr=messages, env=dict(os.environ))

    def __enter__(self) -> Helper:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def result(self) -> tuple[dict[str, Any], str]:
        """Wait for the process; return the content of its file, and the reason if it failed, else an empty text."""
        try:
            code = self._process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.end()
            return {}, f"took more than {LIMIT:g} seconds"
        if code == 0 and self.found.is_file():
            return json.loads(self.found.read_text()), ""
        lines = self._messages.read_text(errors="replace").strip().splitlines()
        return {}, lines[-1] if lines else f"ended with code {code}"

    def end(self) -> None:
        """End the process if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
