"""Compare trained policies of env=kuramoto_sivashinsky with no control and with linear-quadratic regulators.

    python scripts/kuramoto_sivashinsky_results.py [--targets 1 2 3] [--seeds 3] [--again] [--write]

Trains SAC with its tuned settings for every target and seed, unless docs/benchmarks/kuramoto_sivashinsky.json has the
run with the same settings, and lets the policies and the regulators steer the same EPISODES episodes, which begin with
fields that training has not seen. Policies take their most probable actions and see the sensors; regulators see the
field. A regulator is that of the linearisation about the target, over a control period; the weight of its actions is
the one of WEIGHTS with the highest return in other episodes. --write puts the table and the picture into
docs/gallery.md; the picture needs matplotlib, and trains the run that it shows if its folder is gone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from common import DOCS, ROOT, figure, over_seeds, replace, settings, table

import warprun
from warprun.envs.kuramoto_sivashinsky import LENGTH, POINTS, Flow, KuramotoSivashinsky, actuator_shapes, steady_state
from warprun.report.style import logarithmic

PAGE, MARK, KEPT = DOCS / "gallery.md", "kuramoto_sivashinsky results", DOCS / "benchmarks" / "kuramoto_sivashinsky.json"
PICTURE = DOCS / "figures" / "kuramoto_sivashinsky.png"
RUNS = ROOT / "outputs" / "kuramoto_sivashinsky"
STEPS, PERIOD = 200, 0.5
EPISODES, SEARCHED = 500, 100
"""Episodes that are compared, and those that the weight of actions is chosen on."""
PLAYED, OTHERS = 11, 12
"""Seeds of their beginnings."""
NEAR = 0.3
"""Distance within which the target counts as reached; without control it is 1.3 to 2.1 on average."""
WEIGHTS = (0.1, 1.0, 10.0, 100.0)
TRAINED = {1: 400_000, 2: 200_000, 3: 200_000}
"""Target -> environment steps of a run."""
SHOWN = 1
"""Target of the picture."""
QUIETLY = "device=cpu log.live=false log.tensorboard=false concurrency.threads=1"
Controller = Callable[[KuramotoSivashinsky, torch.Tensor], torch.Tensor]
"""The batch and what its sensors measure [N, sensors] -> actions [N, actuators]."""
Numbers = dict[str, Any]


class Course(NamedTuple):
    """Episodes under a controller."""

    distances: np.ndarray
    """[STEPS, N], after each step."""
    field: np.ndarray
    """[STEPS + 1, POINTS] of the first episode."""

    def numbers(self) -> Numbers:
        """Return means over episodes, the standard error of the return, and the median time until NEAR is reached."""
        returns, near = -self.distances.sum(0), self.distances < NEAR
        reached = np.where(near.any(0), PERIOD * (1 + near.argmax(0)), np.inf)
        return {
            "return": float(returns.mean()),
            "stderr": float(returns.std(ddof=1) / len(returns) ** 0.5),
            "near_at_end": float(near[-1].mean()),
            "time_to_near": float(np.median(reached)) if np.isfinite(np.median(reached)) else None,
            "last_distance": float(np.median(self.distances[-1])),
        }


def steered(target: int, controller: Controller, episodes: int = EPISODES, seed: int = PLAYED) -> Course:
    """Return the course of episodes of STEPS steps; the same seed gives the same beginnings to every controller."""
    env = KuramotoSivashinsky(episodes, target=target, control_period=PERIOD)
    seen = env.reset(seed, torch.ones(episodes, dtype=torch.bool))
    distances, field = [], [env.u[0].numpy()]
    for _ in range(STEPS):
        seen = env.step(controller(env, seen))[0]
        distances.append(env.distance().numpy())
        field.append(env.u[0].numpy())
    return Course(np.array(distances), np.array(field))


# Controllers ----------------------------------------------------------------------------------------------------------


def no_control(env: KuramotoSivashinsky, seen: torch.Tensor) -> torch.Tensor:
    """Return actions of 0."""
    return torch.zeros(len(seen), env.action_space.size)


def linearised(target: int) -> tuple[np.ndarray, np.ndarray]:
    """Return A [POINTS, POINTS] and B [POINTS, 4] of small changes over a period, by central differences in float64."""
    steps, small = 8, 1e-5
    flow, steady = Flow(PERIOD / steps, torch.float64), torch.as_tensor(steady_state(target))
    shapes, none = torch.as_tensor(actuator_shapes(4)), torch.zeros(1, POINTS, dtype=torch.float64)

    def difference(fields: torch.Tensor, forces: torch.Tensor) -> np.ndarray:
        after = [flow.advance(steady + sign * small * fields, sign * small * forces, steps) for sign in (1, -1)]
        found: np.ndarray = ((after[0] - after[1]) / (2 * small)).numpy().T
        return found

    eye = torch.eye(POINTS, dtype=torch.float64)
    return difference(eye, none.expand_as(eye)), difference(none.expand_as(shapes), shapes)


def regulator(target: int, weight: float, rounds: int = 5000) -> np.ndarray:
    """Return the gain [4, POINTS] of the linear-quadratic regulator for mean((u - target)^2) + weight sum(a^2).

    The Riccati equation is iterated to its fixed point (Bertsekas, Dynamic Programming and Optimal Control, vol. 1).
    Raises RuntimeError if there is none: no action reaches a direction that grows.
    """
    a, b = linearised(target)
    cost = value = np.eye(POINTS) / POINTS
    for _ in range(rounds):
        gain = np.linalg.solve(weight * np.eye(b.shape[1]) + b.T @ value @ b, b.T @ value @ a)
        before, value = value, cost + a.T @ value @ (a - b @ gain)
        if np.abs(value - before).max() < 1e-10 * np.abs(value).max():
            return gain
    raise RuntimeError(f"no regulator of target {target}: the Riccati equation does not converge")


def linear(target: int, gain: np.ndarray) -> Controller:
    """Return the controller of a gain, which sees the whole field."""
    steady, gains = (torch.as_tensor(each, dtype=torch.float32) for each in (steady_state(target), gain))
    return lambda env, seen: (-(env.u - steady) @ gains.T).clamp(*env.action_space.bounds()[0])


def best_regulator(target: int) -> tuple[float, Controller]:
    """Return the weight of WEIGHTS with the highest return, and its controller."""
    found = {weight: linear(target, regulator(target, weight)) for weight in WEIGHTS}
    best = max(found, key=lambda weight: steered(target, found[weight], SEARCHED, OTHERS).numbers()["return"])
    return best, found[best]


# Runs -----------------------------------------------------------------------------------------------------------------


def overrides_of(target: int, seed: int) -> str:
    """Return the settings of a run."""
    return f"env=kuramoto_sivashinsky agent=sac env.kwargs.target={target} total_steps={TRAINED[target]} seed={seed}"


def folder_of(target: int, seed: int) -> Path:
    """Return the folder of a run; trains it if there is none that has ended."""
    folder = RUNS / f"target_{target}_seed_{seed}"
    if not (folder / "status.json").exists() or json.loads((folder / "status.json").read_text())["state"] != "finished":
        given = [*overrides_of(target, seed).split(), *QUIETLY.split(), f"run_dir={folder}", "resume=auto"]
        subprocess.run([sys.executable, "-m", "warprun", *given], check=True, cwd=ROOT)
    return folder


def policy(folder: Path) -> Controller:
    """Return the last policy of a run."""
    loaded = warprun.load(folder)
    return lambda env, seen: loaded.act(seen)


def measured(target: int, seed: int) -> Numbers:
    """Return the numbers of a run and of its policy."""
    folder = folder_of(target, seed)
    status = json.loads((folder / "status.json").read_text())
    about = {"overrides": overrides_of(target, seed), "env_steps": status["env_steps"]}
    return about | steered(target, policy(folder)).numbers()


def references(target: int) -> Numbers:
    """Return the numbers of no control and of the best regulator."""
    weight, best = best_regulator(target)
    return {"none": steered(target, no_control).numbers(), "lqr": steered(target, best).numbers() | {"weight": weight}}


# Page -----------------------------------------------------------------------------------------------------------------


def table_of(kept: Numbers) -> str:
    """Return the table of all targets."""
    rows = []
    for name, found in kept.items():
        runs = list(found["sac"].values())
        for label, numbers in (("no control", found["none"]), ("regulator, whole field", found["lqr"])):
            time_to = "" if numbers["time_to_near"] is None else f"{numbers['time_to_near']:.1f}"
            spread = f"{numbers['return']:.1f} ± {1.96 * numbers['stderr']:.1f}"
            near, last = f"{100 * numbers['near_at_end']:.0f} %", f"{numbers['last_distance']:.2g}"
            rows.append([name, label, spread, near, time_to, last])
        cells = [over_seeds([run[key] for run in runs], scale, form) for key, scale, form in CELLS]
        rows.append([name, f"SAC, 8 sensors, {len(runs)} seeds", *cells])
    return table(COLUMNS, rows)


COLUMNS = ("target", "controller", "return", f"within {NEAR} at the end", "time to get there", "distance at the end")
CELLS = (("return", 1, ".1f"), ("near_at_end", 100, ".0f"), ("time_to_near", 1, ".1f"), ("last_distance", 1, ".2g"))
"""Number of a run, its factor in the table, and its format."""


def draw(target: int, path: Path) -> None:
    """Draw a field without control and under a policy, and the distances of all episodes under each controller."""
    courses = {
        "no control": steered(target, no_control),
        "linear-quadratic regulator": steered(target, best_regulator(target)[1]),
        "SAC": steered(target, policy(folder_of(target, 0))),
    }
    times = PERIOD * np.arange(1, STEPS + 1)
    with figure(path, 3, (9.0, 3.4)) as panels:
        for panel, name in zip(panels, ("no control", "SAC"), strict=False):
            shape: Numbers = {"origin": "lower", "aspect": "auto", "extent": (0.0, PERIOD * STEPS, 0.0, LENGTH)}
            shown = panel.imshow(courses[name].field.T, cmap="RdBu_r", vmin=-3, vmax=3, **shape)
            panel.set(title=f"u(x, t), {name}", xlabel="time", ylabel="x")
            panel.grid(False)
        panels[1].figure.colorbar(shown, ax=panels[1])
        for name, course in courses.items():
            low, middle, high = np.quantile(course.distances, (0.25, 0.5, 0.75), axis=1)
            panels[2].plot(times, middle, label=name)
            panels[2].fill_between(times, low, high, alpha=0.2)
        panels[2].set(title=f"distance to E{target}, median and quartiles", xlabel="time")
        logarithmic(panels[2].yaxis)


def main() -> None:
    """Train and measure what is missing, print the table, and write table and picture with --write."""
    chosen = settings(__doc__, targets=[1, 2, 3], seeds=3, again=False, write=False)
    torch.set_num_threads(1)
    kept: Numbers = json.loads(KEPT.read_text()) if KEPT.exists() and not chosen.again else {}
    for target in chosen.targets:
        found = kept.setdefault(f"E{target}", {"sac": {}})
        for seed in range(chosen.seeds):
            if found["sac"].get(str(seed), {}).get("overrides") != overrides_of(target, seed):
                found["sac"][str(seed)] = measured(target, seed)
                print(target, seed, found["sac"][str(seed)], flush=True)
        if "lqr" not in found:
            began = time.perf_counter()
            found |= references(target)
            print(target, found["none"], found["lqr"], f"{time.perf_counter() - began:.0f} s", flush=True)
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    print(table_of(kept))
    if chosen.write:
        replace(PAGE, MARK, table_of(kept))
        draw(SHOWN, PICTURE)


if __name__ == "__main__":
    main()
