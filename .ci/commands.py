"""Print the commands with which README.md installs the tests and runs them, a line each.

    python .ci/commands.py README.md

`.ci/run` runs what this prints, so that nobody tests other commands than those that people type.
"""

import re
import sys
from pathlib import Path

COMMANDS = re.compile(r"^- \*\*Tests\*\*: `(pip install [^`]+?) && (pytest[^`]*)`", re.MULTILINE)


def main(file: Path) -> None:
    """Print both commands; exit with code 2 if the file does not have them once."""
    found = COMMANDS.findall(file.read_text(encoding="utf-8"))
    if len(found) != 1:
        sys.stderr.write(f"{file}: one line has to begin with - **Tests**: `pip install ... && pytest ...`, and {len(found)} do\n")
        raise SystemExit(2)
    print(*found[0], sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
