"""The modules of an environment: those of a file and its neighbours, in a namespace of their own, or those of an importable package.

Python keeps one module of each name. Environments in two folders can both have a `helper.py`, and a file can change between two runs of
one process. So an environment file is read together with every neighbour that an import statement names, those inside functions
included, and these modules are imported as `warprun_environment_HASH.NAME`; HASH stands for where they lie and what they say. In them,
`import helper` means the neighbour, whenever it runs. No numba, no torch.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

PREFIX = "warprun_environment_"
"""Of the packages that hold the modules of an environment file."""
SHARED = sys.stdlib_module_names | {"warprun"}
"""What no neighbour stands in for."""


@dataclass(frozen=True)
class Source:
    """One file as it was read."""

    path: Path
    """Where it was read."""
    place: Path
    """What its module has as `__file__`: data files are looked for beside it."""
    content: bytes

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True)
class Sources:
    """The files of one environment, as they were read together."""

    entry: str
    """Name of the module that defines `environment`."""
    modules: Mapping[str, Source]
    """By the names that import statements have for them."""

    @cached_property
    def package(self) -> str:
        """The name of the package that they are imported into."""
        digest = hashlib.sha256(self.entry.encode())
        for name, source in sorted(self.modules.items()):
            digest.update(repr((name, str(source.path), str(source.place), source.content)).encode())
        return f"{PREFIX}{digest.hexdigest()[:16]}"

    def layout(self) -> dict[str, Path]:
        """Return where each module lies, relative to the folder that imports begin at."""
        parents = {name: name.split(".") if source.is_package else name.split(".")[:-1] for name, source in self.modules.items()}
        return {name: Path(*parents[name], source.path.name) for name, source in self.modules.items()}

    def load(self) -> ModuleType:
        """Import the entry into the package of these files; a second time returns the same module."""
        if self.package not in _packages:
            for name in [name for name in sys.modules if name.partition(".")[0] == self.package]:
                del sys.modules[name]  # stood in for it, see _Finder
            _packages[self.package] = self
        return importlib.import_module(f"{self.package}.{self.entry}")


def read_file(file: Path) -> Sources:
    """Read an environment file with the neighbours that it imports. Raises OSError."""
    file = file.resolve()

    def find(name: str) -> Source | None:
        parts = name.split(".")
        return None if parts[0] in SHARED else _find([file.parent], parts)

    entry = file.stem.replace(".", "_")
    return Sources(entry, _reached(entry, Source(file, file, file.read_bytes()), find))


def import_package(name: str) -> ModuleType:
    """Import a dotted name as Python does. Where its files have changed since this process imported them, say so."""
    module, before, now = importlib.import_module(name), imported(name), read_package(name)
    changed = [str(source.path) for found, source in before.modules.items() if source != now.modules.get(found)]
    if changed and (name, now.package) not in _told:
        _told.add((name, now.package))
        text = f"{', '.join(changed)} changed since this process imported {name}; start a new process to use the change"
        print(f"warning: {text}", file=sys.stderr, flush=True)
    return module


def imported(name: str) -> Sources:
    """Return the files of an importable environment as they were when it was imported."""
    spec = importlib.import_module(name).__spec__
    if name not in _imported or _imported[name][0] is not spec:
        _imported[name] = spec, read_package(name)
    return _imported[name][1]


def read_package(name: str) -> Sources:
    """Read the files of an importable environment: its module and those of the same package that it imports. Raises OSError."""
    module, (top, *_) = importlib.import_module(name), name.split(".")
    folders = [Path(folder) for folder in vars(sys.modules[top]).get("__path__", ())]

    def find(name: str) -> Source | None:
        first, *parts = name.split(".")
        # What warprun itself consists of is no environment's; its version tells it.
        if first != top or not parts or (top == "warprun" and (parts[0] != "envs" or len(parts) == 1)):
            return None
        return _find(folders, parts)

    file = Path(str(module.__file__))
    return Sources(name, _reached(name, Source(file, file, file.read_bytes()), find))


def _find(folders: Sequence[Path], parts: Sequence[str]) -> Source | None:
    for folder in folders:
        place = folder.joinpath(*parts)
        for path in (place / "__init__.py", *(place.with_name(place.name + suffix) for suffix in (".py", *EXTENSION_SUFFIXES))):
            if path.is_file():
                return Source(path, path, path.read_bytes())
    return None


def _reached(entry: str, source: Source, find: Callable[[str], Source | None]) -> dict[str, Source]:
    found = {entry: source}
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        for wanted in _imports(name, found[name]):
            known = None if wanted in found else find(wanted)
            if known:
                found[wanted] = known
                waiting.append(wanted)
    return found


@lru_cache(maxsize=1024)
def _imports(name: str, source: Source) -> tuple[str, ...]:
    """Return every name that import statements could mean as a module: of `from a import b` both a and a.b."""
    if source.path.suffix != ".py":
        return ()
    try:
        tree = ast.parse(source.content)
    except (SyntaxError, ValueError):
        return ()  # Importing it tells the place.
    package = name if source.is_package else name.rpartition(".")[0]
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".") if package else []
            base = [*above[: len(above) - node.level + 1], *filter(None, [node.module])] if node.level else [str(node.module)]
            found += [".".join([*base, alias.name]) for alias in node.names] + [".".join(base)]
    return tuple(dict.fromkeys(prefix for name in found for prefix in _prefixes(name)))


def _prefixes(name: str) -> Iterator[str]:
    parts = [part for part in name.split(".") if part]
    for n in range(len(parts)):
        yield ".".join(parts[: n + 1])


class _Loader(SourceFileLoader):
    """Imports what was read, not what the file says by now; it writes no bytecode and reads none."""

    def __init__(self, fullname: str, source: Source, importing: Callable[..., Any]) -> None:
        super().__init__(fullname, str(source.place))
        self._source, self._importing = source, importing

    def get_code(self, fullname: str) -> Any:
        return compile(self._source.content, str(self._source.path), "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        # An import statement calls the `__import__` of the module that it stands in, now or when a function of it runs.
        vars(module)["__builtins__"] = vars(builtins) | {"__import__": self._importing}
        super().exec_module(module)


class _Finder(MetaPathFinder):
    """Finds the modules of the packages that `Sources.load` imports into."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package not in _packages:
            # Compiled code that Numba kept names the module of its functions, which may have been imported by another process.
            return ModuleSpec(fullname, None, is_package=True) if package.startswith(PREFIX) else None
        modules = _packages[package].modules
        if name not in modules:
            is_parent = not name or any(other.startswith(f"{name}.") for other in modules)
            return ModuleSpec(fullname, None, is_package=True) if is_parent else None
        source = modules[name]
        loader: Any = _Loader(fullname, source, _importing(package, modules))
        if source.path.suffix != ".py":
            loader = ExtensionFileLoader(fullname, str(source.path))
        inside: list[str] | None = [] if source.is_package else None
        return spec_from_file_location(fullname, source.place, loader=loader, submodule_search_locations=inside)


def _importing(package: str, modules: Mapping[str, Source]) -> Callable[..., Any]:
    """Return an `__import__` for which the modules of a package are at the top."""
    own = {name.partition(".")[0] for name in modules}

    def import_module(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        top = name.partition(".")[0]
        if level or top not in own:
            return builtins.__import__(name, globals, locals, fromlist, level)
        if fromlist:
            return builtins.__import__(f"{package}.{name}", globals, locals, fromlist)
        importlib.import_module(f"{package}.{name}")
        return sys.modules[f"{package}.{top}"]

    return import_module


_packages: dict[str, Sources] = {}
"""What was imported from files, by package."""
_imported: dict[str, tuple[Any, Sources]] = {}
"""What was imported by a dotted name: the spec it had then, and its files."""
_told: set[tuple[str, str]] = set()
"""Changes of dotted modules that were told."""

sys.meta_path.insert(0, _Finder())
