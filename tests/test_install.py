"""Every documented combination of extras in a fresh environment from PyPI: versions that pip chooses compile and link a kernel.

    pytest -m install        minutes, and about 300 MB for each combination

Pythons: those of `WARPRUN_PYTHONS` (paths, separated by spaces), else the one that runs this. The packages are those that pip resolves for
the command of README.md, torch with CUDA included; torch itself and the libraries of CUDA that only torch calls are not installed.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHONS = os.environ.get("WARPRUN_PYTHONS", sys.executable).split()
OF_TORCH = ("nvidia-cublas", "nvidia-cudnn", "nvidia-cufft", "nvidia-cufile", "nvidia-curand", "nvidia-cusolver", "nvidia-cusparse")
OF_TORCH += ("nvidia-nccl", "nvidia-nvshmem", "nvidia-nvtx", "nvidia-cuda-cupti", "triton", "torch")
LINKS = ("ptx", "cuda12", "cuda13", "test,ptx", "test,cuda12", "test,cuda13")
"""Extras with which kernels compile and link."""
PROBE = """
import sys, types
stub = types.ModuleType("torch")  # only `link` is tested here
stub.__version__ = "0"
sys.modules["torch"] = stub
from warprun.kernels.driver import installed, link
for capability in ((7, 5), (8, 0), (9, 0)):
    code = link(capability)
    assert code[:4] == b"\\x7fELF", code[:16]
print(installed())
"""
UNUSED = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
"""Wheels of this machine must not stand in for those of PyPI."""

pytestmark = [pytest.mark.install, pytest.mark.skipif(sys.platform != "linux", reason="the CUDA libraries of PyPI are for Linux")]


def resolved(python: str, extras: str, folder: Path) -> list[dict[str, str]]:
    """Return name, version and address of every package that pip would install."""
    report = folder / "report.json"
    command = [python, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", str(report)]
    done = subprocess.run(
        [*command, "-c", str(ROOT / "constraints.txt"), f"{ROOT}[{extras}]"], env=os.environ | UNUSED, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(report.read_text())["install"]
    return [{"name": one["metadata"]["name"], "version": one["metadata"]["version"], "url": one["download_info"]["url"]} for one in found]


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("extras", LINKS)
def test_what_pip_chooses_links_a_kernel(python: str, extras: str, tmp_path: Path) -> None:
    subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True)
    fresh = str(tmp_path / "venv" / "bin" / "python")
    # The pip of a fresh environment may download what it only asks about.
    subprocess.run([fresh, "-m", "pip", "install", "--quiet", "--upgrade", "pip"], check=True)
    packages = resolved(fresh, extras, tmp_path)
    torch = next(package["version"] for package in packages if package["name"] == "torch")
    wanted = [f"{p['name']} @ {p['url']}" for p in packages if needed(p["name"])]
    subprocess.run([fresh, "-m", "pip", "install", "--quiet", "--no-deps", *wanted], check=True, env=os.environ | UNUSED)
    done = subprocess.run([fresh, "-c", PROBE], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    print(f"\n{Path(python).name} [{extras}] torch {torch}, {done.stdout.strip()}")
    assert ("cuda12" in extras) == torch.startswith("2.10"), torch


def needed(name: str) -> bool:
    """Return whether a package takes part in compiling and linking."""
    return (
        name != "warprun"
        and name.startswith(("numba", "llvmlite", "numpy", "cuda", "nvidia", "packaging"))
        and not name.startswith(OF_TORCH)
    )


@pytest.mark.parametrize("extras", ["submitit", "psij", "ray", "test,submitit,psij,ray,tune,wandb,mlflow,notebook,onnx,gymnasium,docs"])
def test_extras_fit_the_versions_that_are_pinned(extras: str, tmp_path: Path) -> None:
    assert {extra for extra in ("submitit", "ray") if extra in extras} <= {
        one["name"] for one in resolved(sys.executable, extras, tmp_path)
    }


@pytest.mark.parametrize("extras", ["ptx,cuda12", "cuda12,cuda13"])
def test_extras_that_do_not_fit_are_refused(extras: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ResolutionImpossible"):
        resolved(sys.executable, extras, tmp_path)


def test_the_line_for_all_commands_of_the_readme_has_what_its_python_needs() -> None:
    text = (ROOT / "README.md").read_text()
    (extras,) = re.findall(r'\*\*All commands of this page\*\*: `pip install .*?\[([a-z0-9,]+)\]"', text)
    assert "result.frame()" in text and {"notebook", "plot"} <= set(extras.split(","))
