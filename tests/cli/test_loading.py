"""What shortens the start of a command, and what it does not load."""

import gc
import pkgutil
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.words import words
from warprun.cli.loading import WITH_META_KERNELS, uncollected
from warprun.config.compose import compose
from warprun.config.schema import to_dict
from warprun.learning import settings
from warprun.runs import rundir


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="the library is loaded in a thread on Linux only")
def test_the_libraries_of_torch_are_loaded_beside_python_and_before_torch_is_imported() -> None:
    code = """
import sys, threading
import warprun.cli.main
from warprun.cli.loading import begin_to_load_torch
begin_to_load_torch()
(thread,) = (thread for thread in threading.enumerate() if thread.name == "warprun-torch")
rounds = 0
while thread.is_alive():
    rounds += 1
loaded = all(f"libtorch_{name}.so" in open("/proc/self/maps").read() for name in ("cpu", "python"))
imported, before = "torch" in sys.modules, set(sys.modules)
from warprun.cli.train import compose
compose(["env=cartpole", "n_envs=10", "device=cpu"])
waited = [each for each in set(sys.modules) - before if str(getattr(sys.modules[each], "__file__", "")).endswith(".so")]
import torch
print(rounds > 10_000, loaded, imported, waited, float(torch.ones(3).sum()))
"""
    assert python(code) == "True True False [] 3.0"


def test_a_run_imports_neither_the_compiler_of_torch_nor_kernels_for_meta_tensors() -> None:
    code = """
import sys
from warprun.cli import main, train
def run(asked):
    import warprun.runs.train
    from warprun.kernels.repeat import Recording
    print(Recording(lambda: sys.modules["torch"].ones(3) + 1).torch_computes, {"torch._dynamo", "torch._decomp"} & set(sys.modules))
train._run = run
main.run(["env=cartpole", "n_envs=8"])
"""
    assert python(code) == "True set()"


@pytest.mark.parametrize(("module", "expected"), [("warprun.envs.cartpole", "[False, True]"), ("mine.cartpole", "[True, True]")])
def test_an_evaluation_imports_kernels_for_meta_tensors_only_for_code_of_the_user(module: str, expected: str, tmp_path: Path) -> None:
    text = rundir.config_text(to_dict(compose(["env=cartpole"]))).decode()
    (tmp_path / "config.yaml").write_text(text.replace("warprun.envs.cartpole", module))
    code = f"""
import sys
from warprun.cli import main
main.run(["eval", "{tmp_path}"])  # which has no checkpoint
print([name in sys.modules for name in ("torch._decomp", "torch")])
"""
    assert python(code) == expected


@pytest.mark.parametrize("setting", ["agent.network.module", "+agent.groups.agent.network.module"])
def test_a_run_with_a_network_of_its_own_imports_all_of_torch(setting: str, tmp_path: Path) -> None:
    network = tmp_path / "net.py"
    network.write_text("def make(*arguments):\n    raise NotImplementedError\n")
    code = f"""
import sys
from warprun.cli import main, train
def run(asked):
    import torch
    rows, weights = torch.zeros(2, 3, dtype=torch.long, device="meta"), torch.zeros(4, 5, device="meta")
    print(list(torch.nn.functional.embedding_bag(rows, weights).shape))
train._run = run
main.run(["env=cartpole", "n_envs=8", "{setting}={network}:make"])
"""
    assert python(code) == "[2, 5]"


@pytest.mark.by_default(1)
@pytest.mark.parametrize("module", WITH_META_KERNELS[::-1])
def test_what_a_run_does_not_import_of_torch_can_be_imported(module: str) -> None:
    code = f"""
from warprun.cli.loading import import_torch
from warprun.config.compose import compose
import_torch(compose(["env=cartpole"]))
import torch
import {module}
rows, weights = torch.zeros(2, 3, dtype=torch.long, device="meta"), torch.zeros(4, 5, device="meta")
print({module}.__spec__.origin == {module}.__file__, list(torch.nn.functional.embedding_bag(rows, weights).shape))
"""
    assert python(code) == "True [2, 5]"


def test_collections_go_on_after_a_failed_import() -> None:
    kept = gc.get_freeze_count()
    with pytest.raises(ImportError), uncollected():
        assert not gc.isenabled()
        import warprun.not_there  # type: ignore[import-not-found]  # noqa: F401
    assert gc.isenabled() and gc.get_freeze_count() > kept


# A mistake on the command line is told quickly: neither torch nor numba is imported before a config is composed and checked

HEAVY = words("torch numba tensorflow matplotlib")
LIGHT = words("""
    warprun.algorithms warprun.interop.registration warprun.report.report warprun.cli.trained warprun.runs.records
    warprun.runs.rundir
""")
QUICK = ["envs", "--help", "--version", "scripts slurm"]
REFUSED = [
    "env=cartpole agent.lr=1",
    "env=cartpole agent.gamma=2",
    "env=covid agent=td3",
    "env=pendulum agent=td3 agent.replay.capacity=1",
    "env=catalysis eval.group=nobody",
    "env=cartpole n_envs=2e9",
    "play env=cartpole policy=random record=a.txt",
    "env=cartpole agent.network.module=./nonet.py:Net",
]


def loaded_by(folder: Path, arguments: str, heavy: list[str]) -> str:
    """Return the exit code of a command in a new process, which of these it has imported, and the lines that it told as errors."""
    code = f"import sys; from warprun.cli.main import run; print(run(sys.argv[1:]), sorted({set(heavy)} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code, *arguments.split()], capture_output=True, text=True, check=True, cwd=folder)
    return f"{done.stdout.splitlines()[-1]} {len(done.stderr.splitlines())}"


@pytest.mark.parametrize("arguments", QUICK)
def test_a_command_that_trains_nothing_imports_neither_torch_nor_numba_nor_hydra(arguments: str, tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    assert loaded_by(tmp_path, arguments, [*HEAVY, *words("hydra jax tensorboard scipy")]) == "0 [] 0"
    if arguments == "--help":
        assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 2  # 1 s on a quiet machine


def test_what_commands_begin_with_is_light() -> None:
    assert python(f"import sys, {', '.join(LIGHT)}; print(sorted({set(HEAVY)} & set(sys.modules)))") == "[]"


def test_settings_of_agents_import_neither_torch_nor_numba_nor_hydra() -> None:
    shared = [module.name for module in pkgutil.iter_modules(settings.__path__, f"{settings.__name__}.")]
    modules, heavy = [*shared, "warprun.algorithms.settings", "warprun.algorithms.defaults"], {*HEAVY, "hydra"}
    assert python(f"import sys, {', '.join(modules)}; print(sorted({heavy} & set(sys.modules)))") == "[]"


@pytest.mark.by_default(1)
@pytest.mark.parametrize("arguments", REFUSED)
def test_a_refused_config_imports_neither_torch_nor_numba(arguments: str, tmp_path: Path) -> None:
    assert loaded_by(tmp_path, arguments, HEAVY) == "2 [] 1"


def test_numba_learns_of_the_simulator_from_a_file(tmp_path: Path) -> None:
    """Numba reads at its import whether to simulate CUDA, so the config is composed before."""
    file = tmp_path / "conf" / "experiment" / "simulated.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("# @package _global_\ndevice: cudasim\nn_envs: 2\n")
    code = (
        "from warprun.config.compose import compose; from warprun.kernels.driver import prepare\n"
        "prepare(compose(['env=cartpole', 'agent.minibatches=1', 'experiment=simulated']).device)\n"
        "import numba; print(numba.config.ENABLE_CUDASIM)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "1\n"


def test_a_report_imports_neither_torch_nor_tensorboard() -> None:
    code = 'import sys, warprun.report.report\nprint({"torch", "numba", "tensorboard"} & set(sys.modules))'
    assert python(code) == "set()"
