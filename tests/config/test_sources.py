"""Modules of an environment belong to that environment, and what is on disk is what runs."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gliders import SMALL, glider, uncompiled
from tests.written import add_environment
from warprun import user_code
from warprun.config.registry import import_environment
from warprun.errors import TrainingFailed, UserError

PARAMS = """
class Params(NamedTuple):
    scale: float = 1.0
"""
ENVIRONMENT = glider("from helper import reward", PARAMS, "s, action, p", "reward(p.scale)", "params=Params")
HELPER = "REWARD = {reward}\n\n\ndef reward(scale):\n    return REWARD * scale\n"


def make(folder: Path, reward: float = 1.0, text: str = ENVIRONMENT) -> Path:
    """Write an environment whose episodes return 10 times `reward`; its neighbour says so."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "glider.py").write_text(text)
    (folder / "helper.py").write_text(HELPER.format(reward=reward))
    return folder / "glider.py"


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("one", "two"):
        add_environment(tmp_path, name, module=f"./{name}/glider.py")
    return tmp_path


def reward(module) -> float:
    return module.step(module.State(0.0), 0, module.Params())[1]


def test_two_environments_with_a_helper_of_one_name(workplace):
    loaded = [import_environment(str(make(workplace / name, value)))[1] for name, value in (("one", 1.0), ("two", 2.0))]
    assert [reward(module) for module in loaded] == [1.0, 2.0]
    assert loaded[0].__name__ != loaded[1].__name__
    for module in loaded:
        assert type(pickle.loads(pickle.dumps(module.State(1.0)))) is module.State
    assert "helper" not in sys.modules and str(workplace / "one") not in sys.path


@pytest.mark.by_default(0)
def test_runs_of_one_process_have_their_own_helper(workplace):
    make(workplace / "one", 1.0), make(workplace / "two", 2.0)
    program = f"""
from pathlib import Path
from warprun.cli.train import train

small = {SMALL}
for name in ("one", "two", "two", "one"):
    train([f"env={{name}}", *small])
helper, file = Path("one/helper.py"), Path("one/glider.py")
helper.write_text(helper.read_text().replace("1.0", "3.0"))
train(["env=one", *small])
file.write_text(file.read_text().replace("reward(p.scale)", "2.0 * reward(p.scale)"))
train(["env=one", *small])
"""
    uncompiled(program)
    assert returns(workplace / "outputs") == [("one", 10.0), ("two", 20.0), ("two", 20.0), ("one", 10.0), ("one", 30.0), ("one", 60.0)]


def returns(outputs: Path) -> list[tuple[str, float]]:
    """Return the environment and the last evaluation of every run, in the order of their start."""
    told = [(json.loads(path.read_text()), path.parent.name) for path in outputs.glob("*/status.json")]
    return [(name.partition("_")[0], status["eval"]) for status, name in sorted(told, key=lambda run: run[0]["started"])]


@pytest.mark.parametrize("edited", ["glider.py", "helper.py", "deep/constants.py"])
def test_an_edited_file_is_read_again(workplace, edited):
    file = make(workplace)
    (workplace / "deep").mkdir()
    (workplace / "deep" / "__init__.py").write_text("from .constants import X as REWARD\n")
    (workplace / "deep" / "constants.py").write_text("X = 1.0\n")
    (workplace / "helper.py").write_text(
        "from deep import REWARD\nFACTOR = 1.0\n\n\ndef reward(scale):\n    return REWARD * FACTOR * scale\n"
    )
    before = import_environment(str(file))
    assert reward(before[1]) == 1.0
    assert import_environment(str(file))[1] is before[1]
    changes = {"glider.py": ("scale: float = 1.0", "scale: float = 7.0"), "helper.py": ("FACTOR = 1", "FACTOR = 7")}
    old, new = changes.get(edited, ("1.0", "7.0"))
    path = workplace / edited
    path.write_text(path.read_text().replace(old, new))  # of the same size, within the time that a clock of files resolves
    assert reward(import_environment(str(file))[1]) == 7.0
    assert not list(workplace.rglob("__pycache__"))


STATEMENTS = """
import tools.speed; return tools.speed.LIMIT
import tools.speed as speed; return speed.LIMIT
from tools import speed; return speed.LIMIT
from tools.speed import LIMIT; return LIMIT
from .tools.speed import LIMIT; return LIMIT
from . import tools; return tools.NEXT
from tools import LIMIT; return LIMIT
import plain.speed; return plain.speed.LIMIT
from plain.speed import LIMIT; return LIMIT
"""


def test_imports_inside_functions_find_their_neighbour(workplace):
    functions = [f"\n\ndef limit{n}():\n    {statement}\n" for n, statement in enumerate(STATEMENTS.strip().splitlines())]
    found = []
    for value in (1, 2):
        folder = workplace / str(value)
        for package in ("tools", "plain"):
            (folder / package).mkdir(parents=True)
            (folder / package / "speed.py").write_text(f"LIMIT = {value}\n")
        (folder / "tools" / "__init__.py").write_text("from tools.speed import LIMIT\nfrom .speed import LIMIT as NEXT\n")
        found.append(import_environment(str(make(folder, text=ENVIRONMENT + "".join(functions))))[1])

    def limits(module) -> set[int]:
        return {getattr(module, f"limit{n}")() for n in range(len(functions))}

    assert [limits(module) for module in found] == [{1}, {2}]
    (workplace / "1" / "tools" / "speed.py").write_text("LIMIT = 5\n")
    (workplace / "1" / "plain" / "speed.py").write_text("LIMIT = 5\n")
    assert limits(found[0]) == {1}  # what was read together stays together
    assert limits(import_environment(str(workplace / "1" / "glider.py"))[1]) == {5}


def test_a_neighbour_stands_in_for_a_library_but_not_for_python_or_warprun(workplace):
    (workplace / "typing.py").write_text("raise AssertionError\n")
    (workplace / "warprun").mkdir()
    (workplace / "warprun" / "__init__.py").write_text("raise AssertionError\n")
    (workplace / "rich.py").write_text("X = 3\n")
    _, module = import_environment(str(make(workplace, text="import rich\nimport typing\n" + ENVIRONMENT)))
    import rich

    assert module.rich.X == 3 and module.rich is not rich


def test_a_missing_neighbour_is_told_by_its_own_name(workplace):
    file = make(workplace)
    (workplace / "helper.py").unlink()
    with pytest.raises(UserError, match=r"glider.py:5: ModuleNotFoundError: No module named 'helper'"):
        import_environment(str(file))
    (workplace / "helper.py").write_text("import sub.gone\n")
    (workplace / "sub").mkdir()
    (workplace / "sub" / "__init__.py").touch()
    with pytest.raises(UserError, match=r"helper.py:1: ModuleNotFoundError: No module named 'sub.gone'"):
        import_environment(str(file))


def test_a_dotted_module_that_changed_is_told_and_stays(workplace, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(workplace))
    for folder in ("mylab", "mylab/envs"):
        (workplace / folder).mkdir()
        (workplace / folder / "__init__.py").touch()
    make(workplace / "mylab" / "envs", text=ENVIRONMENT.replace("from helper import", "from mylab.envs.helper import"))
    for _ in range(2):
        assert reward(import_environment("mylab.envs.glider")[1]) == 1.0
    assert not capsys.readouterr().err
    (workplace / "mylab" / "envs" / "helper.py").write_text(HELPER.format(reward=2.0))
    for _ in range(2):
        assert reward(import_environment("mylab.envs.glider")[1]) == 1.0
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "mylab/envs/helper.py changed since this process imported mylab.envs.glider" in told
    assert sorted(user_code.imported("mylab.envs.glider").modules) == ["mylab.envs", "mylab.envs.glider", "mylab.envs.helper"]


def test_files_of_shipped_environments_are_those_of_the_environment():
    assert list(user_code.read_package("warprun.envs.cartpole").modules) == ["warprun.envs.cartpole"]
    covid = user_code.read_package("warprun.envs.covid").modules
    assert {"warprun.envs.covid", "warprun.envs.covid.model", "warprun.envs.covid.figures"} <= set(covid)
    assert all(name.startswith("warprun.envs.covid") for name in covid)


@pytest.mark.by_default(0)
def test_compiled_kernels_are_found_whatever_the_folder(workplace):
    """Numba keeps the types of arguments by name, and names of modules depend on their folder."""
    program = (
        "import sys; from warprun.simulation import kernel_engine as engine, device\n"
        "from warprun.config.registry import import_environment as load\n"
        "made = load(sys.argv[1])[0]; said = []\n"
        "engine.KernelEngine(made, 'moved', device=device.Device('cpu', 'a test'), n_envs=2, horizon=2, seed=0, threads=1,\n"
        "    params=made.params(), announce=said.append).reset()\n"
        "print(len(said))"
    )
    said = []
    for name in ("one", "two"):
        file = make(workplace / name)
        command = [sys.executable, "-c", program, str(file)]
        asked = os.environ | {"WARPRUN_CACHE_DIR": str(workplace / "cache"), "PYTHONPATH": str(Path(__file__).parents[2])}
        done = subprocess.run(command, env=asked, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said.append((done.stdout.strip(), sorted(path.name for path in workplace.rglob("*.nbc"))))
    assert said[0][0] == "1" and said[1] == ("0", said[0][1])


def test_a_failed_rollout_is_told_without_the_name_of_a_class() -> None:
    with pytest.raises(UserError) as error, user_code.errors_of_user("a rollout of ./rover.py fails"):
        raise TrainingFailed("rover: environment 2 failed at step 3")
    assert str(error.value) == "a rollout of ./rover.py fails: rover: environment 2 failed at step 3"
