"""Hostile and broken run folders: each case alters a copy of a real one.

Planted code writes the file that the environment variable CANARY names.
"""

import hashlib
import io
import json
import os
import pickle
import socket
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

PLANTED = "import os\nopen(os.environ['CANARY'], 'a').write('run\\n')\n"
"""Code that leaves a trace."""


class Trap:
    """Unpickling it leaves the same trace."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return exec, (PLANTED,)


@dataclass(frozen=True)
class Case:
    """One folder: how it is made of a copy of the template, and what is typed beside `warprun eval`."""

    name: str
    template: str
    """`shipped` (cartpole), `file` (an environment file with a table), or `parent`: the folder that holds a shipped run."""
    alter: Callable[[Path], object]
    arguments: tuple[str, ...] = ()
    target: str | None = None
    """What is opened in place of the folder."""


CASES: dict[str, Case] = {}


def case(name: str, template: str = "shipped", *arguments: str, target: str | None = None) -> Callable[[Callable[[Path], object]], None]:
    def add(alter: Callable[[Path], object]) -> None:
        assert name not in CASES, name
        CASES[name] = Case(name, template, alter, arguments, target)

    return add


# Ways to alter a folder ---------------------------------------------------------------------------------------------------------


def set_keys(folder: Path, **values: object) -> None:
    """Set keys of config.yaml; `a__b` is the key b of the section a."""
    path = folder / "config.yaml"
    config = yaml.safe_load(path.read_text())
    for key, value in values.items():
        *sections, name = key.split("__")
        place = config
        for section in sections:
            place = place[section]
        place[name] = value
    path.write_text(yaml.safe_dump(config, allow_unicode=True))


def config_case(title: str, template: str = "shipped", *arguments: str, **values: object) -> None:
    case(f"config {title}", template, *arguments)(lambda folder: set_keys(folder, **values))


def text_case(name: str, text: str | bytes) -> None:
    content = text if isinstance(text, bytes) else text.encode()
    case(f"yaml {name}")(lambda folder: (folder / "config.yaml").write_bytes(content))


def add_text(name: str, text: str) -> None:
    case(f"yaml {name}")(lambda folder: (folder / "config.yaml").write_text((folder / "config.yaml").read_text() + text))


def edit_json(path: Path, change: Callable[[Any], Any]) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps(change(content)))


def manifest_case(title: str, template: str = "file", *arguments: str, **values: object) -> None:
    case(f"manifest {title}", template, *arguments)(
        lambda folder: edit_json(folder / "environment" / "manifest.json", lambda m: m | values)
    )


def remove(path: Path) -> Path:
    if path.is_dir() and not path.is_symlink():
        for each in path.iterdir():
            remove(each)
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
    return path


def link(path: Path, target: str | Path) -> None:
    remove(path).symlink_to(target)


def fifo(path: Path) -> None:
    os.mkfifo(remove(path))


def sparse(path: Path, size: int = 1 << 31) -> None:
    with open(remove(path), "wb") as file:
        file.truncate(size)


def listen(path: Path) -> None:
    before = Path.cwd()
    remove(path)
    os.chdir(path.parent)  # the path of a socket is at most 107 bytes long
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


ODD_FILES: dict[str, Callable[[Path], object]] = {
    "fifo": fifo,
    "zero": lambda path: link(path, "/dev/zero"),
    "loop": lambda path: link(path, path.name),
    "folder": lambda path: remove(path).mkdir(),
    "sparse": sparse,
    "socket": listen,
}


def odd_files(place: str, template: str = "shipped", *arguments: str) -> None:
    for kind, make in ODD_FILES.items():
        case(f"{place} is {kind}", template, *arguments)(lambda folder, make=make: make(folder / place))


def bomb(path: Path, member: str, size: int = 150 << 20) -> None:
    """Write a small .npz of one float32 array of `size` bytes."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (size // 4,)})
    with zipfile.ZipFile(remove(path), "w", zipfile.ZIP_DEFLATED) as file, file.open(f"{member}.npy", "w", force_zip64=True) as out:
        out.write(header.getvalue())
        for _ in range(size >> 20):
            out.write(bytes(1 << 20))


def array(**header: object) -> bytes:
    """Return a .npy file with a header that promises more than it holds."""
    made = io.BytesIO()
    np.lib.format.write_array_header_1_0(made, {"descr": "<f4", "fortran_order": False, "shape": (2,)} | header)  # type: ignore[arg-type]
    return made.getvalue() + bytes(8)


def pickled() -> bytes:
    made = io.BytesIO()
    np.lib.format.write_array_header_1_0(made, {"descr": "|O", "fortran_order": False, "shape": (1,)})
    return made.getvalue() + pickle.dumps(np.array([Trap()], dtype=object))


def archive(path: Path, **members: bytes) -> None:
    with zipfile.ZipFile(remove(path), "w") as file:
        for name, content in members.items():
            file.writestr(f"{name.replace('__', '/')}.npy", content)


def rewrite(folder: Path, make: Callable[[Path], object]) -> None:
    """Replace every checkpoint by what `make` writes, and name the new hash in the manifest."""
    for line in ("checkpoints", "best"):
        for path in (folder / line).glob("step_*.ckpt"):
            make(path)
        if not (folder / line / "manifest.json").exists():
            continue

        def relist(entries: list[dict[str, Any]], line: str = line) -> list[dict[str, Any]]:
            for entry in entries:
                data = (folder / line / entry["file"]).read_bytes()
                entry |= {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
            return entries

        edit_json(folder / line / "manifest.json", relist)


def repack(path: Path, change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]) -> None:
    with np.load(path) as stored:
        content = change({name: stored[name] for name in stored.files})
    with open(path, "wb") as file:
        np.savez(file, **content)  # type: ignore[arg-type]


def reheader(path: Path, **values: object) -> None:
    def change(content: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        header = json.loads(content["header"].tobytes()) | values
        return content | {"header": np.frombuffer(json.dumps(header).encode(), np.uint8)}

    repack(path, change)


def plant(folder: Path, content: str = PLANTED) -> None:
    """Put code into the copy of the environment, with its hash."""
    path = folder / "environment" / "glider.py"
    path.write_text(content + path.read_text())
    rehash(folder, "glider", path)


def rehash(folder: Path, module: str, path: Path, **more: object) -> None:
    entry = {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()} | more
    edit_json(folder / "environment" / "manifest.json", lambda m: m | {"files": m["files"] | {module: entry}})


# Code and names -----------------------------------------------------------------------------------------------------------------

QUOTE = f'x"""\n{PLANTED}"""'
for title, value in {
    "code": QUOTE,
    "nul": "x\0y",
    "long": "x" * 300,
    "escape": "x\x1b[31m",
    "interpolation": "${oc.env:PATH}",
}.items():
    config_case(f"env.name {title}", env__name=value)

for title, value in {
    "system": "os:system",
    "planted": "planted_network:Net",
    "attributes": "os:path.join",
}.items():
    config_case(f"network {title}", agent__network__module=value)
config_case("network of a group", agent__groups={"agent": {"network": {"module": "subprocess:call"}}})
for title, value in {"import": "os:system", "mapping": {}}.items():
    config_case(f"agent.name {title}", agent__name=value)
config_case("agent is text", agent="a2c")


def without_copy(folder: Path, module: object) -> None:
    remove(folder / "environment")
    set_keys(folder, env__module=module)


for title, value in {
    "planted dotted": "planted_package.env",
    "planted file": "./planted.py",
    "shipped and up": "warprun.envs...planted_package",
    "newline": "warprun.envs.cartpole\nimport os",
    "list": ["warprun.envs.cartpole"],
    "nul": "x\0.py",
    "own code of warprun": "warprun.cli.main",
}.items():
    case(f"module {title}")(lambda folder, value=value: without_copy(folder, value))
case("module absolute file")(lambda folder: without_copy(folder, str(folder.parent / "planted.py")))
case("module in the run folder")(lambda folder: ((folder / "evil.py").write_text(PLANTED), without_copy(folder, str(folder / "evil.py"))))


@case("module is a folder with a copy", "file")
def _(folder: Path) -> None:
    plant(folder)
    (folder / "environment").rename(folder / "other")
    set_keys(folder, env__module=str(folder / "other"))


case("planted copy", "file")(plant)
case("planted copy, trusted, altered", "file", "trust=true")(lambda folder: (folder / "environment" / "glider.py").write_text(PLANTED))
case("planted neighbour", "file")(
    lambda folder: (
        (folder / "environment" / "evil.py").write_text(PLANTED),
        rehash(folder, "evil", folder / "environment" / "evil.py"),
        plant(folder, "import evil\n"),
    )
)
case("planted copy with text as seal", "file")(lambda folder: (plant(folder), (folder / "environment" / "seal").write_text("é" * 64)))
for title, make in ODD_FILES.items():
    case(f"planted copy, seal is {title}", "file")(lambda folder, make=make: (plant(folder), make(folder / "environment" / "seal")))


@case("planted copy of a shipped environment")
def _(folder: Path) -> None:
    copy = folder / "environment" / "warprun" / "envs" / "cartpole.py"
    copy.write_text(PLANTED + copy.read_text())
    digest = hashlib.sha256(copy.read_bytes()).hexdigest()
    entry = {"warprun.envs.cartpole": {"file": "warprun/envs/cartpole.py", "sha256": digest}}
    edit_json(folder / "environment" / "manifest.json", lambda m: m | {"place": "/", "files": entry})


case("report writes through a link")(lambda folder: link(folder / "eval", folder.parent))


@case("report writes through a linked file")
def _(folder: Path) -> None:
    (folder / "eval").mkdir()
    link(folder / "eval" / "paths.csv", folder.parent / "escaped.csv")


# The text of config.yaml --------------------------------------------------------------------------------------------------------

for title, text in {
    "empty": "",
    "list": "- 1\n- 2\n",
    "not utf-8": b"env: \xff\xfe\xfa\n",
    "python tag": "env: !!python/object/apply:os.system ['touch $CANARY']\n",
    "laughs": "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)),
    "recursive": "env: &x\n  name: *x\n",
    "deep flow": "[" * 100_000,
    "wide": "[" + "a," * 500_000 + "]",
    "sexagesimal": "n_envs: 1" + ":1" * 400_000 + "\n",
    "large": "#" * (64 << 20),
    "binary": b"\x7fELF" + bytes(range(256)) * 100,
}.items():
    text_case(title, text)
add_text("duplicate key", "n_envs: 4\nn_envs: 5\n")
add_text("unknown list as key", "\n? [1, 2]\n: 1\n")
odd_files("config.yaml")
case("config.yaml is missing")(lambda folder: (folder / "config.yaml").unlink())

# Values -------------------------------------------------------------------------------------------------------------------------

for title, values in {
    "n_envs 0": {"n_envs": 0},
    "n_envs infinite": {"n_envs": float("inf")},
    "n_envs huge": {"n_envs": 10**400},
    "hidden large": {"agent__network__hidden": [10**9, 10**9]},
    "hidden large enough for memory": {"agent__network__hidden": [6000, 6000]},
    "activation": {"agent__network__activation": "os:system"},
    "optimizer": {"agent__optimizer__name": "os:system"},
    "time limit": {"env__time_limit": 10**30},
    "max_steps": {"eval__max_steps": 10**30},
    "episodes": {"eval__final_episodes": 10**12},
    "params code": {"env__params": {f"x=1\n{PLANTED}": 1}},
    "params text": {"env__params": {"gravity": "heavy"}},
    "options deep": {"env__options": {"a": {"b": {"c": {"d": {"e": [[[[[[1]]]]]]}}}}}},
    "env text": {"env": "cartpole"},
    "interpolation of a secret": {"name": "${oc.env:SECRET}"},
    "missing value": {"env__name": "???"},
    "surrogate": {"name": "\\udc80" + "\u2028" + "/x"},
}.items():
    config_case(title, **values)

for title, value in {
    "fifo": "pes.fifo",
    "zero": "/dev/zero",
    "bomb": "bomb.npy",
    "pickle": "trap.npy",
}.items():

    @case(f"option pes {title}")
    def _(folder: Path, value: object = value) -> None:
        remove(folder / "environment")
        (folder / "trap.npy").write_bytes(pickled())
        (folder / "x.npy").write_text("x")
        (folder / "bomb.npy").write_bytes(array(shape=(1 << 12, 1 << 12, 1 << 9)))
        fifo(folder / "pes.fifo")
        options = {"pes": str(folder / value) if isinstance(value, str) else value, "start": [0, 0, 0], "goal": [1, 0, 0]}
        set_keys(folder, env__name="catalysis", env__module="warprun.envs.catalysis", env__options=options, env__solved_at=None)


# environment/ -------------------------------------------------------------------------------------------------------------------

odd_files("environment/manifest.json")
odd_files("environment/glider.py", "file", "trust=true")
odd_files("environment/tables.npz", "file", "trust=true")
for title, text in {
    "deep": "[" * 100_000,
    "digits": '{"time_limit": ' + "9" * 100_000 + "}",
}.items():
    case(f"manifest text {title}")(lambda folder, text=text: (folder / "environment" / "manifest.json").write_text(text))
TRUST = "trust=true"
for title, values in {
    "place nul": {"place": "/\0"},
    "files empty": {"files": {}},
    "files numbers": {"files": {"glider": {"file": 7, "sha256": 8}}},
    "entry up": {"entry": "../../planted"},
    "options list": {"options": [1]},
    "working folder nul": {"working_folder": "\0"},
    "module other": {"module": "warprun.envs.cartpole"},
    "unknown field": {"love": 1},
    "table shape": {"tables": {"rain": {"dtype": "<f4", "shape": ["x"], "sha256": "0" * 64, "array": True, "copied": True}}},
    "table large": {"tables": {"rain": {"dtype": "<f4", "shape": [1 << 40], "sha256": "0" * 64, "array": True, "copied": True}}},
    "table dtype": {"tables": {"rain": {"dtype": "|O", "shape": [1], "sha256": "0" * 64, "array": True, "copied": True}}},
    "table name": {"tables": {"x y\nimport os": {"dtype": "<f4", "shape": [2], "sha256": "0" * 64, "array": True, "copied": True}}},
}.items():
    manifest_case(title, "file", TRUST, **values)
for title, file in {
    "up": "../../planted.py",
    "absolute": "/etc/passwd",
    "nul": "x\0.py",
    "device": "/dev/zero",
}.items():
    manifest_case(f"file {title}", "file", TRUST, files={"glider": {"file": file, "sha256": hashlib.sha256(PLANTED.encode()).hexdigest()}})
for title, name in {"code": f"x\n{PLANTED}", "up": "..", "empty": "", "long": "x" * 5_000}.items():

    @case(f"manifest module name {title}", "file", TRUST)
    def _(folder: Path, name: str = name) -> None:
        edit_json(
            folder / "environment" / "manifest.json", lambda m: m | {"files": m["files"] | {name: m["files"]["glider"]}, "entry": name}
        )


@case("source is a link out", "file", TRUST)
def _(folder: Path) -> None:
    path = folder / "environment" / "glider.py"
    (folder.parent / "outside.py").write_text(PLANTED)
    rehash(folder, "glider", folder.parent / "outside.py", file="glider.py")
    link(path, "../../outside.py")


case("manifest is missing, module a file", "file")(lambda folder: (folder / "environment" / "manifest.json").unlink())
tables = "environment/tables.npz"
case("tables are a bomb", "file", TRUST)(lambda folder: bomb(folder / tables, "table/rain"))
case("tables promise too much", "file", TRUST)(lambda folder: archive(folder / tables, table__rain=array(shape=(1 << 36,))))
case("tables are pickles", "file", TRUST)(lambda folder: archive(folder / tables, table__rain=pickled()))
case("tables are cut", "file", TRUST)(lambda folder: (folder / tables).write_bytes((folder / tables).read_bytes()[:-30]))
case("tables are others", "file", TRUST)(lambda folder: archive(folder / tables, table__snow=array()))
case("tables have a bad header", "file", TRUST)(
    lambda folder: archive(folder / tables, table__rain=b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535)
)

# Checkpoints --------------------------------------------------------------------------------------------------------------------

for title in ("fifo", "zero", "sparse", "socket"):
    # Without its manifest the newest complete file would be used.
    case(f"checkpoint manifest is {title}, and no file")(
        lambda folder, make=ODD_FILES[title]: (
            make(folder / "checkpoints" / "manifest.json"),
            [path.unlink() for path in (folder / "checkpoints").glob("step_*")],
        )
    )
for title, make in ODD_FILES.items():
    case(f"checkpoint is {title}")(lambda folder, make=make: [make(path) for path in folder.glob("checkpoints/step_*")])
case("checkpoints missing")(lambda folder: remove(folder / "checkpoints"))
case("checkpoints is /dev")(lambda folder: link(folder / "checkpoints", "/dev"))
for title, content in {
    "up": [{"file": "../../escaped.ckpt", "sha256": "0" * 64, "size": 1, "env_steps": 1}],
    "nul": [{"file": "x\0", "sha256": "0" * 64, "size": 1, "env_steps": 1}],
    "deep": "[" * 100_000,
    "types": [{"file": 1, "sha256": 2, "size": "x", "env_steps": [1]}],
}.items():
    case(f"checkpoint manifest {title}")(
        lambda folder, content=content: (
            (folder / "checkpoints" / "manifest.json").write_text(content if isinstance(content, str) else json.dumps(content)),
            [path.unlink() for path in (folder / "checkpoints").glob("step_*")],
        )
    )
for title, make in {
    "bomb": lambda path: bomb(path, "tensor/x"),
    "pickle": lambda path: path.write_bytes(pickle.dumps(Trap())),
    "pickled tensor": lambda path: archive(path, header=pickled(), tensor__x=pickled()),
    "promise": lambda path: archive(path, header=array(shape=(1 << 40,))),
    "other shapes": lambda path: repack(path, lambda c: {n: a if n == "header" else np.zeros((3, 3), np.float32) for n, a in c.items()}),
    "other names": lambda path: repack(path, lambda c: {n if n == "header" else n + "x": a for n, a in c.items()}),
    "other dtypes": lambda path: repack(path, lambda c: {n: a if n == "header" else a.astype("U8") for n, a in c.items()}),
    "no header": lambda path: repack(path, lambda c: {n: a for n, a in c.items() if n != "header"}),
    "header deep": lambda path: repack(path, lambda c: c | {"header": np.frombuffer(b"[" * 100_000, np.uint8)}),
    "steps huge": lambda path: reheader(path, env_steps=10**400),
    "evaluation text": lambda path: reheader(path, meta={"steps": 1, "evaluation": {"mean": "x", "stderr": "y"}}),
}.items():
    case(f"checkpoint {title}")(lambda folder, make=make: rewrite(folder, make))

# The folder itself --------------------------------------------------------------------------------------------------------------

case("folder is a file")(lambda folder: remove(folder).write_text("x"))
case("folder is missing")(remove)
case("folder is a device")(lambda folder: link(folder, "/dev/zero"))
case("folder is /proc", target="/proc/self")(lambda folder: None)
case("folder has a long name", target="x" * 300)(lambda folder: None)
case("folder has a long path", target="x/" * 3_000)(lambda folder: None)

STATUS: dict[str, str | bytes] = {
    "deep": "[" * 100_000,
    "mapping": '{"started": {}}',
    "digits": '{"started": ' + "9" * 100_000 + "}",
}
for title, status in STATUS.items():
    content = status if isinstance(status, bytes) else status.encode()
    case(f"latest, status {title}", "parent", target="latest")(
        lambda root, content=content: (root / "run" / "status.json").write_bytes(content)
    )
for title, make in ODD_FILES.items():
    case(f"latest, status is {title}", "parent", target="latest")(lambda root, make=make: make(root / "run" / "status.json"))
case("latest, root is a file", "parent", target="latest")(lambda root: remove(root).write_text("x"))
case("latest, root is a loop", "parent", target="latest")(lambda root: link(root, root.name))
