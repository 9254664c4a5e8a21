"""Put the runs of a sweep into docs/benchmarks/results.json as a case of a study, and the table of the study into its page.

    warprun -m experiment=a2c_or_dqn agent=dqn 'seed=range(0,5)' sweep_dir=outputs/dqn
    python scripts/results.py comparisons DQN outputs/dqn
    python scripts/results.py STUDY CASE SWEEP [--episodes N] [--checkpoints last best]
    python scripts/results.py STUDY

The runs take the place of those that the file has of this case. With --episodes their checkpoints play so many episodes, as
`warprun eval RUN episodes=N seed=1` does; a module of scripts/compare may measure more. Without a sweep it measures the references
of the study. The studies are in scripts/result_tables.py; the commands of their runs are in the pages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from common import DOCS, described, replace, settings, stop
from result_tables import TABLES, Run

from warprun.files import write_atomic
from warprun.run_folder import LINES, PLAN
from warprun.runs import rundir
from warprun.runs.evaluation import evaluate_run
from warprun.runs.records.jsonl import JsonLines, read_rows

KEPT = DOCS / "benchmarks" / "results.json"
POINTS = 60
"""Most points of a curve."""
Rows = Sequence[Mapping[str, float]]


def recorded(folder: Path) -> Run:
    """Return the numbers of the records of a run: its end, the last value of every metric of evaluations, and the courses of returns."""
    status, about = rundir.read_status(folder), json.loads((folder / "versions.json").read_text())
    rows = read_rows(folder / JsonLines.name)
    found: Run = {"state": status["state"], "env_steps": status["env_steps"], "wall_s": round(float(str(status["wall_s"])), 2)}
    env: Any = rundir.read_config(folder)["env"]
    found["bar"] = env.get("solved_at")
    for name in dict.fromkeys(tag for row in rows for tag in row if tag.startswith("eval/")):
        found[f"last/{name.removeprefix('eval/')}"] = next(row[name] for row in reversed(rows) if name in row)
    found |= {name: value for name, value in rows[-1].items() if name == "actors/lag_mean"}
    found |= mean_of("training/return", *points(rows, "train/return"))
    for name in ("eval/return", "eval/terminated"):
        found |= mean_of(f"during/{name}", *points(rows, name))
    found["curve/eval/return"] = thinned(*points(rows, "eval/return"))
    machine = {"processor": about["cpu"], **{key: about[key] for key in ("cores", "python", "warprun", "torch", "numba", "numpy")}}
    return found | {"machine": described(machine)}


def points(rows: Rows, metric: str) -> tuple[list[float], list[float]]:
    """Return environment steps and values of the records of a metric; of a record without an ended episode the return does not count."""
    known = [row for row in rows if metric in row and (row.get("train/episodes") or not metric.startswith("train/"))]
    return [row["env_steps"] for row in known], [row[metric] for row in known]


def mean_of(name: str, steps: Sequence[float], values: Sequence[float]) -> dict[str, float]:
    """Return the mean of values over environment steps as `name`: records may lie apart unevenly. Nothing if there are none."""
    return {name: float(np.interp(np.linspace(0.0, steps[-1], 200), steps, values).mean())} if steps else {}


def thinned(steps: Sequence[float], values: Sequence[float]) -> list[list[float]]:
    """Return at most `POINTS` environment steps and values, with five digits."""
    shown = np.unique(np.linspace(0, len(steps) - 1, min(POINTS, len(steps))).round().astype(int))
    return [[int(steps[n]) for n in shown], [float(f"{values[n]:.5g}") for n in shown]]


def comparing(study: str) -> ModuleType | None:
    """Return the module of scripts/compare with whose name a study begins.

    It may have `measured(folder)`, the numbers of a run beside those of its records; `references()`, by case the numbers of what needs no
    run; and `draw(folder)`, which draws the picture of the page with a run.
    """
    names = [file.stem for file in (Path(__file__).parent / "compare").glob("[a-z]*.py") if study.startswith(file.stem)]
    return import_module(f"compare.{names[0]}") if names else None


def runs_of_sweep(sweep: Path) -> dict[Path, str]:
    """Return the run folders of a sweep and their overrides. Raises OSError if there is no plan."""
    jobs = json.loads((sweep / PLAN).read_text())["jobs"]
    return {sweep / job["run"]: " ".join(job["overrides"]) for job in jobs}


def keep(study: str, cases: Mapping[str, Mapping[str, Run]]) -> None:
    """Write cases of a study into the file; lists of numbers are lines."""
    kept = json.loads(KEPT.read_text())
    kept[study] = kept.get(study, {}) | cases
    text = re.sub(r"\[\s([^\[\]{}\"]*)\s\]", lambda found: f"[{' '.join(found[1].split())}]", json.dumps(kept, indent=1))
    write_atomic(KEPT, f"{text}\n".encode())


def main() -> None:
    """Measure runs or references, keep their numbers, and write the table and the picture."""
    chosen = settings(__doc__, "study", "sweep*", choices={"study": TABLES, "checkpoints": LINES}, episodes=0, checkpoints=["last"])
    module, runs, folders = comparing(chosen.study), {}, {}
    if not chosen.sweep:
        if not hasattr(module, "references"):
            stop(f"{chosen.study} has no references: name a case and the folder of its sweep")
        keep(chosen.study, {case: {"0": numbers} for case, numbers in module.references().items()})
    else:
        if len(chosen.sweep) != 2:
            stop("write a study, a case, such as 'E1, SAC', and the folder of a sweep")
        case, sweep = chosen.sweep
        if not (Path(sweep) / PLAN).is_file():
            stop(f"{sweep} is no folder of a sweep")
        folders = runs_of_sweep(Path(sweep))
        for folder, overrides in folders.items():
            found: dict[str, Any] = recorded(folder) | {"overrides": overrides}
            for name in chosen.checkpoints if chosen.episodes else ():
                played = evaluate_run(folder, chosen.episodes, True, "cpu", 1, LINES[name])
                found |= {f"{name}/{key}": value for key, value in played.items()}
            if hasattr(module, "measured"):
                found |= module.measured(folder)
            runs[str(rundir.read_config(folder)["seed"])] = found
            print(folder, {key: value for key, value in found.items() if not key.startswith("curve/")}, flush=True)
        keep(chosen.study, {case: runs})
    shown = TABLES[chosen.study]
    replace(shown.page, shown.mark, shown.write(json.loads(KEPT.read_text())[chosen.study]))
    if folders and hasattr(module, "draw") and find_spec("matplotlib"):
        module.draw(next(iter(folders)))


if __name__ == "__main__":
    main()
