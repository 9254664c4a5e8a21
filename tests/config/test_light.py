"""A mistake on the command line is told quickly: neither torch nor numba is imported before a config is composed and checked."""

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = "sorted({'torch', 'numba'} & set(sys.modules))"
REFUSED = [
    ["env=cartpole", "agent.lr=1"],
    ["env=cartpole", "agent.gamma=2"],
    ["env=covid", "agent=td3"],
    ["env=pendulum", "agent=td3", "agent.replay.capacity=1"],
    ["env=catalysis", "eval.group=nobody"],
]


@pytest.mark.by_default(2)
@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_a_refused_config_imports_neither_torch_nor_numba(arguments: list[str]) -> None:
    code = f"import sys; from warprun.cli.main import run; code = run(sys.argv[1:]); print(code, {HEAVY})"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == "2 []\n"
    assert len(done.stderr.splitlines()) == 1


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
