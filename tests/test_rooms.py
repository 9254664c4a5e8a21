"""The rooms of the package import each other only in the directions of the diagram in docs/architecture.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "warprun"


def arrows() -> dict[str, set[str]]:
    """Return room -> the rooms that it may import, directly or through others, by the first diagram of the page."""
    diagram = re.findall(r"```mermaid\n(.*?)```", (ROOT / "docs" / "architecture.md").read_text(), flags=re.DOTALL)[0]
    direct: dict[str, set[str]] = {}
    for room, below in re.findall(r"^    (\w+) --> (\w+)$", diagram, flags=re.MULTILINE):
        direct.setdefault(room, set()).add(below)

    def reached(room: str) -> set[str]:
        return {room}.union(*(reached(below) for below in direct.get(room, ())))

    return {room: reached(room) for room in {*direct, "base"}}


def imports() -> Iterator[tuple[str, str, str, str]]:
    """Yield (file, module, room of the file, room of the module) of every import within the package."""
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    for file in sorted(PACKAGE.rglob("*.py")):
        if file.name in ("__init__.py", "__main__.py") and file.parent == PACKAGE:
            continue
        own = file.relative_to(PACKAGE).parts[0]
        for node in ast.walk(ast.parse(file.read_text())):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            if module and module.startswith("warprun.") and not module.startswith(("warprun.envs", "warprun.conf.")):
                room = module.split(".")[1]
                yield str(file.relative_to(ROOT)), module, own if own in rooms else "base", room if room in rooms else "base"


def test_rooms_import_only_what_the_diagram_allows() -> None:
    allowed = arrows()
    wrong = [(file, module) for file, module, own, other in imports() if other not in allowed[own]]
    assert not wrong
