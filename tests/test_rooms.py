"""The structure of the package: rooms, circles of imports, sizes of files, types and docstrings.

The rooms may import each other in the directions of the first diagram of docs/architecture.md. The limits are there so that the package
stays one that a person can learn: who needs more looks first for what can be taken away.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "warprun"
TEMPLATES = PACKAGE / "templates"
"""Parts of the projects that `warprun new` makes, which are no modules of the package."""
FILES = sorted({file for top in ("warprun", "envs", "examples") for file in (ROOT / top).rglob("*.py")} - {*TEMPLATES.rglob("*.py")})
LONGEST_FILE, LONGEST_LOOP = 400, 250
"""Lines of a file, and of the one with the run loop."""
MOST_ON_THE_GROUND_FLOOR = 12
"""Modules of the package that are in no room."""
MOST_ANY = 47
"""Annotations that say nothing."""
MOST_ASKED = 3
"""Places that ask whether a space is a Box, a Discrete or a MultiDiscrete: what depends on the answer belongs to the space, or into a table
(docs/extending.md)."""


def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def arrows() -> dict[str, set[str]]:
    """Return room -> the rooms that it may import, directly or through others, by the first diagram of the page."""
    diagram = re.findall(r"```mermaid\n(.*?)```", (ROOT / "docs" / "architecture.md").read_text(), flags=re.DOTALL)[0]
    direct: dict[str, set[str]] = {}
    for room, below in re.findall(r"^    (\w+) --> (\w+)$", diagram, flags=re.MULTILINE):
        direct.setdefault(room, set()).add(below)

    def reached(room: str) -> set[str]:
        return {room}.union(*(reached(below) for below in direct.get(room, ())))

    return {room: reached(room) for room in {*direct, "base"}}


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(file): file for file in FILES if file.is_relative_to(PACKAGE)}


def imported(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the modules of the package that statements import."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module in MODULES:
            for name in node.names:
                full = f"{node.module}.{name.name}"
                yield full if full in MODULES else node.module


def test_rooms_import_only_what_the_diagram_allows() -> None:
    allowed = arrows()
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}

    def room_of(module: str) -> str:
        name = module.split(".")[1]
        return name if name in rooms else "base"

    wrong = [
        (module, other)
        for module, file in MODULES.items()
        if module not in ("warprun", "warprun.__main__")
        for other in imported(list(ast.walk(tree(file))))
        if other != "warprun" and room_of(other) not in allowed[room_of(module)]
    ]
    assert not wrong


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports within functions count as well: one that hides a circle would hide it from readers, too."""
    graph = {module: set(imported(list(ast.walk(tree(file))))) - {module} for module, file in MODULES.items()}
    circles, done = [], set()

    def walk(module: str, path: tuple[str, ...]) -> None:
        if module in path:
            circles.append(path[path.index(module) :])
        elif module not in done:
            for other in sorted(graph[module]):
                walk(other, (*path, module))
            done.add(module)

    for module in sorted(graph):
        if module != "warprun":  # its imports are those of its public names, which load when they are asked for
            walk(module, ())
    assert not circles


@pytest.mark.parametrize(("limit", "files"), [(LONGEST_FILE, FILES), (LONGEST_LOOP, [PACKAGE / "runs" / "run.py"])])
def test_files_are_short_enough_to_be_read(limit: int, files: list[Path]) -> None:
    lines = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in files}
    assert not {name: count for name, count in lines.items() if count > limit}


def test_the_ground_floor_is_small() -> None:
    assert len([file for file in PACKAGE.glob("*.py") if not file.name.startswith("__")]) <= MOST_ON_THE_GROUND_FLOOR


def test_annotations_say_something() -> None:
    def count(annotation: ast.AST) -> int:
        return sum(
            (isinstance(node, ast.Name) and node.id == "Any")
            or (isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(re.search(r"\bAny\b", node.value)))
            for node in ast.walk(annotation)
        )

    annotations = [
        found
        for file in FILES
        for node in ast.walk(tree(file))
        for name in ("annotation", "returns")
        if (found := getattr(node, name, None))
    ]
    assert sum(map(count, annotations)) <= MOST_ANY


def test_few_places_ask_which_space_it_is() -> None:
    asked = [
        (str(file.relative_to(ROOT)), node.lineno)
        for file in MODULES.values()
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"
        if {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)} & {"Box", "Discrete", "MultiDiscrete"}
    ]
    assert len(asked) <= MOST_ASKED, asked


def test_docstrings_say_what_a_thing_is_and_not_that_it_is_what_something_does() -> None:
    riddles = [
        (str(file.relative_to(ROOT)), said.partition("\n")[0])
        for file in FILES
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (said := ast.get_docstring(node) or "").startswith("What")
    ]
    assert not riddles
