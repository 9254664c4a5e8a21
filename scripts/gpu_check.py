"""Check warprun on a machine with a CUDA GPU, in ten minutes at most, and write a report: docs/gpu.md says what it shows.

    python scripts/gpu_check.py [--out gpu_report] [--minutes 10] [--device cuda] [PART ...]

in a checkout, after `pip install -c constraints.txt -e ".[cuda13]" pytest pytest-xdist` (or cuda12). First everything that the chosen parts
measure is compiled, in processes side by side, and beside it run the tests. Then the other parts measure, one after the other, each in its
share of the time that is left. What has no time left is not begun, the report says so, and what was found before is kept. `--device cpu`
tries the parts on a machine without a GPU.

It writes gpu_report.md, gpu_report.json (a raw file of scripts/reproduce.py) and gpu_report.zip, which has both, the output of all commands
and the records of runs. Exit code 0: passed, or there is no GPU; 1: a part failed; 2: the installation is incomplete.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import date
from pathlib import Path

from gpu_parts import ALONE, BESIDE, ROOT, Found, Machine, Part, Row, Turn

ARCHIVED = ("status.json", "versions.json", "metrics.jsonl", "config.yaml")
"""Files of runs in the archive."""
ABOUT = """
import json, pytest, torch
from importlib.metadata import PackageNotFoundError, version
from warprun.kernels.driver import cuda_version
from warprun.runs.rundir import versions
from warprun.simulation.device import cuda_problem
packages = {}
for name in ("torch", "numba", "numba-cuda", "llvmlite", "numpy", "jax"):
    try:
        packages[name] = version(name)
    except PackageNotFoundError:
        pass
found = {key: value for key, value in versions().items() if key in ("gpu", "cores", "python", "platform", "commit")}
found |= {"problem": cuda_problem(), "driver_cuda": ".".join(map(str, cuda_version())), "packages": packages}
if torch.cuda.is_available():
    found |= {"capability": torch.cuda.get_device_capability(), "memory_bytes": torch.cuda.get_device_properties(0).total_memory}
print(json.dumps(found))
"""


def main() -> int:
    """Write the report; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["tests", *ALONE]
    parser.add_argument("part", nargs="*", metavar="PART", help=", ".join(names))
    parser.add_argument("--out", type=Path, default=ROOT / "gpu_report", help="name of the report: .md, .json, .zip")
    parser.add_argument("--device", default="cuda", help="cpu: try the parts without a GPU")
    parser.add_argument("--minutes", type=float, default=10.0, help="longest time of all parts together")
    options = parser.parse_args()
    unknown = [name for name in options.part if name not in names]
    if unknown:
        parser.error(f"no part {unknown[0]}; there are: {', '.join(names)}")
    options.part = options.part or names
    read = about()
    problem = read.get("missing") or (read["problem"] if options.device == "cuda" else None)
    if problem:
        there = "missing" in read or read["gpu"] is not None
        print(f"gpu_check: {'' if there else 'nothing to check: '}{problem}", file=sys.stderr)
        return 2 if there else 0
    return _check(options, read)


def about() -> Row:
    """Return the card, its driver and the packages, or what is missing of these."""
    ran = subprocess.run([sys.executable, "-c", ABOUT], cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode:
        error = (ran.stderr.strip().splitlines() or ["Python ended"])[-1]
        return {"missing": f'{error}; run: pip install -c constraints.txt -e ".[cuda13]" pytest pytest-xdist (or cuda12)'}
    return dict(json.loads(ran.stdout.splitlines()[-1]))


def _safely(part: Part, turn: Turn) -> Found:
    try:
        return part.run(turn)
    except Exception as error:  # a part must not end the others
        broken = Found()
        broken.failed["part"] = f"{type(error).__name__}: {error}"
        return broken


def _check(options: argparse.Namespace, read: Row) -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(options, Path(folder), read)
        alone = [name for name in ALONE if name in options.part]
        share = 1.0 if not alone else BESIDE["compile"].seconds / (BESIDE["compile"].seconds + sum(ALONE[name].seconds for name in alone))
        beside = [name for name in BESIDE if name == "compile" or name in options.part]
        print(f"gpu_check: {', '.join(beside)} ...", flush=True)
        with ThreadPoolExecutor() as pool:
            running: dict[str, Future[Found]] = {name: pool.submit(_safely, BESIDE[name], Turn(machine, share)) for name in beside}
            machine.found |= {name: run.result() for name, run in running.items()}
        for number, name in enumerate(alone):
            _write(machine, time.monotonic() - began)  # kept even if the machine goes away
            print(f"gpu_check: {name} ...", flush=True)
            turn = Turn(machine, ALONE[name].seconds / sum(ALONE[later].seconds for later in alone[number:]))
            machine.found[name] = _safely(ALONE[name], turn)
        _write(machine, time.monotonic() - began)
    print(f"gpu_check: {_verdict(machine.found)}; send {options.out.with_suffix('.zip')}")
    return int(any(part.failed for part in machine.found.values()))


def _verdict(found: Mapping[str, Found]) -> str:
    failed, cut = ([name for name, part in found.items() if getattr(part, what)] for what in ("failed", "cut"))
    return (f"failed: {', '.join(failed)}" if failed else "passed") + (f"; cut: {', '.join(cut)}" if cut else "")


def _write(machine: Machine, seconds: float) -> None:
    """Write the report as markdown and as data, and the archive with both, all that was printed, and the records of runs."""
    options, found = machine.options, machine.found
    title = f"# GPU check of {machine.about['gpu'] or 'a machine without a GPU'}, {date.today()}, device={options.device}"
    marks = {name: " (failed)" if part.failed else " (cut)" if part.cut else "" for name, part in found.items()}
    parts = [f"## {name}{marks[name]}\n\n{part.text}\n" for name, part in found.items()]
    report, data = options.out.with_suffix(".md"), options.out.with_suffix(".json")
    report.write_text("\n".join([f"{title}\n", f"{_verdict(found)}; {seconds:.0f} s\n", *parts]))
    content: Row = {"date": str(date.today()), "device": options.device, "machine": machine.about}
    content |= {"verdict": _verdict(found), "seconds": round(seconds)}
    content["parts"] = {
        name: {"good": not part.failed, "failed": part.failed, "cut": part.cut, "found": part.data} for name, part in found.items()
    }
    data.write_text(json.dumps(content, indent=1) + "\n")
    with zipfile.ZipFile(options.out.with_suffix(".zip"), "w", zipfile.ZIP_DEFLATED) as archive:
        for path in (report, data):
            archive.write(path, path.name)
        for path in sorted(machine.work.rglob("*")):
            if path.name in ARCHIVED or path.parent.name == "logs":
                archive.write(path, path.relative_to(machine.work))


if __name__ == "__main__":
    sys.exit(main())
