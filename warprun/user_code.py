"""Code of the user, of an environment or a network: importing it, and its errors in one line with file and line.

Python keeps one module per name. But environments in two folders may both have a `helper.py`, and a file may change between two runs of
one process. So a file is read together with every neighbour (a module in the same folder) that its import statements name,
those inside functions included. These modules are imported as `warprun_environment_HASH.NAME`, with a hash of their paths and contents.
Inside them, `import helper` always imports the neighbour.
"""

from __future__ import annotations

import ast
import builtins
import dis
import hashlib
import importlib
import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec, SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType

from warprun.errors import ContractError, OtherRankError, TrainingFailed, UserError, shown

ISOLATED = "warprun_environment_"
"""Prefix of the packages that hold the modules of an environment file."""
SHARED = sys.stdlib_module_names | {"warprun"}
"""Modules that a neighbour of the same name does not replace."""


@dataclass(frozen=True)
class Source:
    """A file and its content when it was read."""

    path: Path
    """The file that was read."""
    place: Path
    """`__file__` of its module, so that the module finds data files beside it."""
    content: bytes

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True)
class Sources:
    """The files of one environment."""

    entry: str
    """Name of the module that defines `environment`."""
    modules: Mapping[str, Source]
    """Name in import statements -> file."""

    @cached_property
    def package(self) -> str:
        """Name of the package that the files are imported into."""
        digest = hashlib.sha256(self.entry.encode())
        for name, source in sorted(self.modules.items()):
            digest.update(repr((name, str(source.path), str(source.place), source.content)).encode())
        return f"{ISOLATED}{digest.hexdigest()[:16]}"

    def hashes(self) -> dict[str, str]:
        """Return the SHA-256 of each module's file."""
        return {name: source.sha256 for name, source in self.modules.items()}

    def layout(self) -> dict[str, Path]:
        """Return the path of each module's file, relative to the folder that imports start from."""
        parents = {name: name.split(".") if source.is_package else name.split(".")[:-1] for name, source in self.modules.items()}
        return {name: Path(*parents[name], source.path.name) for name, source in self.modules.items()}

    def load(self) -> ModuleType:
        """Import the entry into the package of these files. A second call returns the same module."""
        if self.package not in _packages:
            for name in [name for name in sys.modules if name.partition(".")[0] == self.package]:
                del sys.modules[name]  # a placeholder, see _Finder
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
    """Import a dotted name as Python does. Warn if its files have changed since this process imported them."""
    module, is_new = importlib.import_module(name), name not in _imported
    before = imported(name)
    now = before if is_new else read_package(name)
    changed = [str(source.path) for found, source in before.modules.items() if source != now.modules.get(found)]
    if changed and (name, now.package) not in _warned:
        _warned.add((name, now.package))
        text = f"{', '.join(changed)} changed since this process imported {name}; start a new process to use the change"
        print(f"warning: {text}", file=sys.stderr, flush=True)
    return module


def installed(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of installed packages in a group; several may have the same name."""
    return tuple(point for point in _installed(tuple(sys.path)) if point.group == group)


@lru_cache(maxsize=8)
def _installed(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    found = entry_points()  # reads files of all packages on the path
    return tuple(point for group in found.groups for point in found.select(group=group))


def imported(name: str) -> Sources:
    """Return the files of an importable environment, with their content at the time of import."""
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
        # Modules of warprun itself are no part of an environment: versions.json has the version.
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
    """Return every module that import statements may name: for `from a import b` both a and a.b."""
    if source.path.suffix != ".py":
        return ()
    try:
        tree = ast.parse(source.content)
    except (SyntaxError, ValueError):
        return ()  # The import raises the error, with its line.
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


_Import = Callable[..., ModuleType]
"""The type of `__import__`."""


class _Loader(SourceFileLoader):
    """Import the content that was read, even if the file has changed since. Bytecode is neither read nor written."""

    def __init__(self, fullname: str, source: Source, importing: _Import) -> None:
        super().__init__(fullname, str(source.place))
        self._source, self._importing = source, importing

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(self._source.content, str(self._source.path), "exec", dont_inherit=True)
        return code

    def exec_module(self, module: ModuleType) -> None:
        # An import statement calls the `__import__` of its module, at import and when a function of the module runs.
        vars(module)["__builtins__"] = vars(builtins) | {"__import__": self._importing}
        super().exec_module(module)


class _Finder(MetaPathFinder):
    """Find the modules of the packages that `Sources.load` imports into."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package not in _packages:
            # Code in the kernel cache names the modules of its functions, which another process may have imported.
            return ModuleSpec(fullname, None, is_package=True) if package.startswith(ISOLATED) else None
        modules = _packages[package].modules
        if name not in modules:
            is_parent = not name or any(other.startswith(f"{name}.") for other in modules)
            return ModuleSpec(fullname, None, is_package=True) if is_parent else None
        source = modules[name]
        is_python = source.path.suffix == ".py"
        own = _Loader(fullname, source, _importing(package, modules)) if is_python else None
        loader = own or ExtensionFileLoader(fullname, str(source.path))
        inside: list[str] | None = [] if source.is_package else None
        return spec_from_file_location(fullname, source.place, loader=loader, submodule_search_locations=inside)


def _importing(package: str, modules: Mapping[str, Source]) -> _Import:
    """Return an `__import__` that finds the modules of a package as if they were top-level modules."""
    own = {name.partition(".")[0] for name in modules}

    def import_module(  # the signature of __import__
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        top = name.partition(".")[0]
        if level or top not in own:
            return builtins.__import__(name, globals, locals, fromlist, level)
        if fromlist:
            return builtins.__import__(f"{package}.{name}", globals, locals, fromlist)
        importlib.import_module(f"{package}.{name}")
        return sys.modules[f"{package}.{top}"]

    return import_module


_packages: dict[str, Sources] = {}
"""Package -> the files that were imported into it."""
_imported: dict[str, tuple[ModuleSpec | None, Sources]] = {}
"""Dotted name -> the spec of the module when it was imported, and its files then."""
_warned: set[tuple[str, str]] = set()
"""Changes of importable modules that a warning was printed for: dotted name and new package name."""

sys.meta_path.insert(0, _Finder())


@contextmanager
def staying() -> Iterator[None]:
    """Return to the working folder after code of the user, which may go elsewhere, unless that is gone."""
    place = Path.cwd()
    try:
        yield
    finally:
        with suppress(OSError):
            os.chdir(place)


@contextmanager
def errors_of_user(what_fails: str, what: str = "an environment") -> Iterator[None]:
    """Convert an exception that a user's code raises to a UserError with file and line; `what_fails` begins its message.

    `what` the code defines.
    """
    try:
        yield
    except (UserError, OtherRankError):
        raise
    except TrainingFailed as error:
        raise UserError(f"{what_fails}: {_line(error)}") from error
    except ContractError as error:
        place = "" if error.names_place else place_of(error) or f"{what_fails}: "
        raise UserError(f"{place}{_line(error)}") from error
    except BaseException as error:
        # The code of a user can raise anything, SystemExit too. Its file and line help, frames of the importer do not.
        if isinstance(error, KeyboardInterrupt) and not _is_raised_by_code(error):
            raise
        ending = f"; {what} cannot end the program" if isinstance(error, SystemExit | KeyboardInterrupt) else ""
        raise UserError(f"{what_fails}: {place_of(error)}{type(error).__name__}: {_line(error)}{ending}") from error


def _is_raised_by_code(error: BaseException) -> bool:
    """Return whether a `raise` statement raised the error. The handler of a signal can raise after any instruction."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return last is not None and last.tb_frame.f_code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def place_of(error: BaseException) -> str:
    """Return "FILE:LINE: " of the innermost frame in the code of the user; empty if there is none."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: " if error.lineno else f"{error.filename}: " if error.filename else ""
    # The innermost frame in the code of the user, not in the importer or a library.
    libraries = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")) + (str(Path(__file__).parent), "<")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(libraries) and "site-packages" not in Path(frame.filename).parts
    ]
    if not frames:
        return ""
    function = "" if frames[-1].name == "<module>" else f" in {frames[-1].name}"
    return f"{frames[-1].filename}:{frames[-1].lineno}{function}: "


def _line(error: BaseException) -> str:
    try:
        words = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
    except Exception:  # __str__ of an error is code of the user
        words = "(its text cannot be read)"
    return re.sub(rf"{ISOLATED}\w+\.", "", words)


def source_line(function: Callable[..., object], line: int | None = None) -> str:
    """Return "FILE:LINE in NAME" of a function, the beginning of every error message about it."""
    code = function.__code__
    return f"{code.co_filename}:{line or code.co_firstlineno} in {function.__name__}"


def check_function(what: str, function: object) -> None:
    """Raise ContractError unless kernels can compile `function` and call it with arguments in their order."""
    jitted = type(function).__module__.partition(".")[0] in ("numba", "numba_cuda")
    plain = inspect.unwrap(function) if jitted and callable(function) else function
    if not isinstance(plain, FunctionType):
        kind = "None" if function is None else f"a {type(function).__name__}"
        raise ContractError(f"{what} must be a plain function, not {kind} ({shown(function)})")
    if "__wrapped__" in vars(plain):
        raise refusal(plain, "kernels cannot call decorated functions; remove the decorator")
    code = plain.__code__
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise refusal(plain, "kernels cannot call async functions; write def without async")
    if code.co_flags & inspect.CO_GENERATOR:
        raise refusal(plain, "kernels cannot call generators; write return in place of yield")
    for name, parameter in inspect.signature(plain).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind == parameter.VAR_POSITIONAL else "**"
            raise refusal(plain, f"{stars}{name} gets no values, since arguments are passed by name; write the names of the arguments")
        if parameter.kind == parameter.KEYWORD_ONLY:
            raise refusal(plain, f"argument {name!r} is keyword-only; remove the * before it")


def refusal(function: Callable[..., object], problem: str) -> ContractError:
    """Return the error for a function; it begins with the file, the line and the name of the function."""
    plain = inspect.unwrap(function.__func__ if isinstance(function, MethodType) else function)
    if not isinstance(plain, FunctionType):
        return ContractError(problem)
    return ContractError(f"{source_line(plain)}: {problem}", names_place=True)
