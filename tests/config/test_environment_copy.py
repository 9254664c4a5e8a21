"""What a run keeps of its environment, and what an evaluation uses: the run's own, from anywhere."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.gliders import SMALL, glider, uncompiled
from tests.written import add_environment
from warprun.config import environment_copy
from warprun.config.registry import import_environment
from warprun.config.schema import EnvConfig, load_environment, make_tables
from warprun.errors import UserError

ROOT = Path(__file__).parents[2]
PARTS = """
class Tables(NamedTuple):
    rain: np.ndarray
    beside: np.ndarray
    large: np.ndarray
    count: int

    def total(self):
        return self.rain.sum()


def tables(file, size):
    from shapes import make

    beside = np.load(Path(__file__).with_name("beside.npy"))
    return Tables(np.load(file).astype(np.float32), beside, make(size), 3)
"""
ENVIRONMENT = glider(
    "import numpy as np\nfrom pathlib import Path\nfrom helper import reward",
    PARTS,
    "s, tables",
    "reward(tables.rain[0])",
    'tables=tables, options={"file": "rain.npy", "size": 4}',
)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A folder with an environment that reads data; rewards are 5."""
    folder = tmp_path / "lab"
    add_environment(folder, "glider")
    (folder / "glider.py").write_text(ENVIRONMENT)
    (folder / "helper.py").write_text("from units import SCALE\n\n\ndef reward(rain):\n    return SCALE * rain\n")
    (folder / "units.py").write_text("SCALE = 1.0\n")
    (folder / "shapes.py").write_text("import numpy as np\n\n\ndef make(size):\n    return np.arange(size, dtype=np.int32)\n")
    (folder / "unrelated.py").write_text("X = 1\n")
    np.save(folder / "rain.npy", np.array([5.0, 6.0]))
    np.save(folder / "beside.npy", np.array([1, 2], np.int32))
    monkeypatch.chdir(folder)
    return folder


def keep(run: Path, **options) -> EnvConfig:
    """Keep ./glider.py as a run does; return the config of an evaluation."""
    run.mkdir()
    env = EnvConfig("glider", "./glider.py", options=options)
    environment, _ = load_environment(env)
    environment_copy.keep(run, env.module, env.options, env.time_limit, environment, make_tables(environment, env))
    return EnvConfig("glider", str(run / "environment"), options=options)


def differences(env: EnvConfig) -> list[str]:
    own = environment_copy.find(env.module)
    assert own
    return own.differences(env.options, env.time_limit)


def first_reward(env: EnvConfig) -> float:
    environment, module = load_environment(env)
    return float(module.step(module.State(0.0), make_tables(environment, env))[1])


def test_a_run_keeps_the_files_that_its_environment_imports(lab):
    keep(lab / "run")
    folder = lab / "run" / "environment"
    assert sorted(path.name for path in folder.iterdir()) == [
        "glider.py", "helper.py", "manifest.json", "shapes.py", "tables.npz", "units.py"
    ]  # fmt: skip
    manifest = json.loads((folder / "manifest.json").read_text())
    assert set(manifest["files"]) == {"glider", "helper", "shapes", "units"}
    assert manifest["tables"]["rain"] | {"sha256": ""} == {"dtype": "<f4", "shape": [2], "sha256": "", "array": True, "copied": True}


@pytest.mark.parametrize("name, old, new", [("glider.py", "0.0", "1.0"), ("units.py", "1.0", "2.0")])
def test_an_edited_file_is_told_and_not_used(lab, tmp_path, monkeypatch, name, old, new):
    env = keep(lab / "run")
    assert differences(env) == []
    (lab / name).write_text((lab / name).read_text().replace(old, new))
    for folder in (lab, tmp_path):
        monkeypatch.chdir(folder)
        assert first_reward(env) == 5.0
        assert differences(env) == [f"./{name} has changed since the run; the run's own copy is used"]


def test_a_table_that_changed_is_told_by_name_and_not_used(lab):
    env = keep(lab / "run")
    np.save(lab / "rain.npy", np.array([7.0, 6.0]))
    assert first_reward(env) == 5.0
    assert differences(env) == ["table 'rain' has changed since the run; the run's own copy is used"]
    environment, _ = load_environment(env)
    tables = make_tables(environment, env)
    assert tables.total() == 11.0  # of the environment's own class
    assert type(tables.count) is int


def test_what_is_said_of_a_table_is_what_is_used(lab):
    env = keep(lab / "run")
    np.save(lab / "rain.npy", np.array([7.0, 6.0]))
    longer = replace(env, time_limit=env.time_limit or 7)
    assert first_reward(longer) == 7.0
    assert differences(longer) == ["table 'rain' has changed since the run; with other settings of env the current table is used"]
    (lab / "run" / "environment" / "tables.npz").unlink()
    with pytest.raises(
        UserError, match=r"tables.npz, the copy of the tables of the run, is missing: copy the whole folder of the run again"
    ):
        first_reward(env)


def test_of_a_large_table_the_hash_is_kept(lab):
    np.save("big.npy", np.ones(300_000))
    env = keep(lab / "run", file="big.npy", size=300_000)  # of 4 bytes
    assert (lab / "run" / "environment" / "tables.npz").stat().st_size < 5_000
    assert differences(env) == []
    environment, _ = load_environment(env)
    assert len(make_tables(environment, env).large) == 300_000
    np.save("big.npy", np.zeros(300_000))
    assert differences(env) == ["table 'rain' has changed since the run; the run keeps no copy of it, so the current table is used"]
    (lab / "big.npy").unlink()
    missing = r"cannot be made: FileNotFoundError: .*big.npy.*; the run keeps no copy of its tables .*large$"
    with pytest.raises(UserError, match=missing):
        make_tables(environment, env)


def test_other_options_make_other_tables(lab):
    env = keep(lab / "run")
    np.save(lab / "other.npy", np.array([9.0]))
    env.options = {"file": "other.npy"}
    assert first_reward(env) == 9.0


@pytest.mark.parametrize("name", ["units.py", "tables.npz"])
def test_a_copy_that_was_changed_is_refused(lab, name):
    env = keep(lab / "run")
    path = lab / "run" / "environment" / name
    if name == "units.py":
        path.write_text("SCALE = 3.0\n")
    else:
        with np.load(path) as arrays:
            np.savez(path, **{key: arrays[key] + 1 for key in arrays.files})
    with pytest.raises(UserError, match=f"{name} was altered after the run"):
        first_reward(env)


def test_a_file_that_changes_while_the_run_is_set_up_is_refused(lab):
    environment, _ = import_environment("./glider.py")
    (lab / "units.py").write_text("SCALE = 2.0\n")
    with pytest.raises(UserError, match=r"\./glider.py has changed during the set-up of the run"):
        environment_copy.keep(lab, "./glider.py", {}, None, environment, None)


def test_a_dotted_environment_is_told_apart_by_hash_and_without_control_characters(lab):
    (lab / "run").mkdir()
    environment, _ = import_environment("warprun.envs.cartpole")
    environment_copy.keep(lab / "run", "warprun.envs.cartpole", {}, None, environment, None)
    env = EnvConfig("cartpole", str(lab / "run" / "environment"))
    copy = lab / "run" / "environment" / "warprun" / "envs" / "cartpole.py"
    assert copy.read_bytes() == (ROOT / "envs" / "cartpole.py").read_bytes()
    assert differences(env) == []
    assert load_environment(env)[0] == environment
    path = lab / "run" / "environment" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"]["warprun.envs.cartpole"]["sha256"] = "0" * 64
    path.write_text(json.dumps(manifest | {"version": "\x1b]0;owned\x07 0.0.9"}))
    (told,) = differences(env)
    assert told.isprintable() and told.startswith(r"warprun.envs.cartpole has changed since the run (\x1b]0;owned\x07 0.0.9 then, ")
    assert told.endswith("; what is installed now is used")


def test_eval_from_anywhere(lab, tmp_path):
    """The whole way, uncompiled: train, then evaluate where the file is not, where it was edited, and where it is gone."""
    program = f"""
import os, shutil
from pathlib import Path
from warprun.cli.main import run

assert run(["env=glider", "run_dir=run", *{SMALL}]) == 0
again = ["episodes=4", "device=cpu"]
os.chdir("..")
print("EVAL"); assert run(["eval", "lab/run", *again]) == 0
Path("lab/units.py").write_text("SCALE = 2.0")
print("EVAL"); assert run(["eval", "lab/run", *again]) == 0
shutil.move("lab/run", "run"); shutil.rmtree("lab")
print("EVAL"); assert run(["eval", "run", *again]) == 0
"""
    _, first, edited, gone = uncompiled(program).split("EVAL\n")
    for told in (first, edited, gone):
        assert "50.000" in told
    assert "changed" not in first
    assert "./units.py has changed since the run; the run's own copy is used\n" in edited
    assert "cannot be read (FileNotFoundError" in gone
