"""Compare trained policies of env=gray_scott with no control, with simple programs of the ports and with feedback.

    python scripts/gray_scott_results.py [--seeds 5] [--again] [--write]

Trains PPO with its tuned settings for every seed, unless docs/benchmarks/gray_scott.json has the run with the same
settings, and lets all controllers act in the same EPISODES episodes, which training has not seen. Policies draw their
actions, as in training, or take the most probable ones. The numbers that references depend on are the best of a grid,
by the mean return in other episodes. --write puts the table and the picture into docs/gallery.md; the picture needs
matplotlib, and trains the run that it shows if its folder is gone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from common import DOCS, ROOT, figure, over_seeds, replace, settings, table

import warprun
from warprun.envs.gray_scott import PORTS, SIDE, SUBSTEPS, Params, make_tables
from warprun.report.statistics import interval, mean
from warprun.report.style import logarithmic

PAGE, MARK, KEPT = DOCS / "gallery.md", "gray_scott results", DOCS / "benchmarks" / "gray_scott.json"
PICTURE = DOCS / "figures" / "gray_scott.png"
RUNS = ROOT / "outputs" / "gray_scott"
STEPS, PERIOD = 100, SUBSTEPS * Params().dt
"""Steps of an episode, and the time between two."""
EPISODES, SEARCHED = 500, 100
"""Episodes that are compared, and those that the references are chosen on."""
PLAYED, OTHERS = 11, 12
"""Seeds of their beginnings."""
SHOWN = (5, 15)
"""Steps of the picture."""
SEED_SHOWN = 1
QUIETLY = "device=cpu log.live=false log.tensorboard=false concurrency.threads=1"
Controller = Callable[[np.ndarray, int], np.ndarray]
"""Fields [N, 2, SIDE, SIDE] and the number of steps taken -> actions [N, PORTS^2]."""
Numbers = dict[str, Any]


class Course(NamedTuple):
    """Episodes under a controller; an episode that has ended has no reaction and no effort."""

    rewards: np.ndarray
    """[STEPS, N]."""
    concentration: np.ndarray
    """The mean of v before each step, [STEPS, N]."""
    effort: np.ndarray
    """The mean of |a|, [STEPS, N]."""
    burning: np.ndarray
    """Whether the episode goes on after each step, [STEPS, N]."""
    fields: np.ndarray
    """v of the first episode before each step, [STEPS, SIDE, SIDE]."""

    def numbers(self) -> Numbers:
        """Return means over episodes, the standard error of the return, and the median time until the fire is out."""
        returns, steps = self.rewards.sum(0), 1 + self.burning.sum(0)
        time_out = float(np.median(np.where(self.burning[-1], np.inf, PERIOD * steps)))
        return {
            "return": float(returns.mean()),
            "stderr": float(returns.std(ddof=1) / len(returns) ** 0.5),
            "out": float(1.0 - self.burning[-1].mean()),
            "time_to_out": time_out if np.isfinite(time_out) else None,
            "effort": float(self.effort.sum(0).mean()),
        }


def acted(controller: Controller, episodes: int = EPISODES, seed: int = PLAYED) -> Course:
    """Return the course of the first episode of each environment; the same seed gives all controllers the same beginnings."""
    envs = warprun.make_vec("gray_scott", episodes, threads=1)
    seen, _ = envs.reset(seed=seed)
    goes_on = np.ones(episodes, bool)
    rows = []
    for step in range(STEPS):
        fields = np.asarray(seen).reshape(episodes, 2, SIDE, SIDE)
        actions = np.clip(controller(fields, step), -1.0, 1.0).astype(np.float32)
        concentration = goes_on * fields[:, 1].mean((1, 2))
        first = goes_on[0] * fields[0, 1]
        seen, rewards, terminated, _, _ = envs.step(actions)
        rows.append((goes_on * rewards, concentration, goes_on * np.abs(actions).mean(1), goes_on & ~terminated, first))
        goes_on = goes_on & ~terminated
    envs.close()
    return Course(*(np.array(column) for column in zip(*rows, strict=True)))


# Controllers ----------------------------------------------------------------------------------------------------------

BUMP = make_tables().bump
PLACES = np.einsum("ay,bx->abyx", BUMP, BUMP).reshape(PORTS**2, SIDE, SIDE)
WEIGHTS = PLACES / PLACES.sum((1, 2), keepdims=True)
"""What a sensor at each port sees: a mean of its surroundings."""


def no_control(fields: np.ndarray, step: int) -> np.ndarray:
    """Return actions of 0."""
    return np.zeros((len(fields), PORTS**2))


def program(doses: int, dose: float) -> Controller:
    """Return the controller whose ports all do the same for some steps, and nothing after them."""
    return lambda fields, step: np.full((len(fields), PORTS**2), dose if step < doses else 0.0)


def steps(count: int) -> str:
    """Return a number of steps as text."""
    return f"{count} step{'s' * (count > 1)}"


def feedback(gain: float, doses: int) -> Controller:
    """Return the controller of ports that take away in proportion to v around them, after all have added for some steps."""

    def act(fields: np.ndarray, step: int) -> np.ndarray:
        around = np.einsum("nyx,pyx->np", fields[:, 1], WEIGHTS)
        return np.ones_like(around) if step < doses else -gain * around

    return act


def policy(folder: Path, greedy: bool) -> Controller:
    """Return the last policy of a run, with its most probable actions or with actions that are drawn."""
    loaded, draw = warprun.load(folder), torch.Generator().manual_seed(PLAYED)
    return lambda fields, step: np.asarray(loaded.act(fields.reshape(len(fields), -1), greedy=greedy, rng=draw))


REFERENCES: dict[str, dict[str, Controller]] = {
    "no control": {"": no_control},
    "all ports add, then nothing": {steps(n): program(n, 1.0) for n in (1, 2, 3, 5, 8, 12)},
    "all ports take away, then nothing": {steps(n): program(n, -1.0) for n in (5, 10, 20, 40, 100)},
    "feedback at each port": {f"gain {gain:g}": feedback(gain, 0) for gain in (1, 2, 5, 10, 20, 50, 100)},
    "all ports add, then feedback": {f"{steps(n)}, gain {gain:g}": feedback(gain, n) for n in (1, 2, 3, 5) for gain in (2, 5, 10, 20, 50)},
}
"""Name -> its variants, of which the one with the highest return is shown."""


def best(variants: dict[str, Controller]) -> str:
    """Return the name of the variant with the highest mean return in episodes that are not those of the comparison."""
    found = {name: acted(variant, SEARCHED, OTHERS).numbers()["return"] for name, variant in variants.items()}
    return max(found, key=lambda name: found[name])


# Runs -----------------------------------------------------------------------------------------------------------------


WAYS = ("drawn", "most probable")
"""How a policy chooses its actions."""


def overrides_of(seed: int) -> str:
    """Return the settings of a run."""
    return f"env=gray_scott agent=ppo seed={seed}"


def folder_of(seed: int) -> Path:
    """Return the folder of a run; trains it if there is none that has ended."""
    folder = RUNS / f"seed_{seed}"
    if not (folder / "status.json").exists() or json.loads((folder / "status.json").read_text())["state"] != "finished":
        given = [*overrides_of(seed).split(), *QUIETLY.split(), f"run_dir={folder}", "resume=auto"]
        subprocess.run([sys.executable, "-m", "warprun", *given], check=True, cwd=ROOT)
    return folder


def measured(seed: int) -> Numbers:
    """Return the numbers of a run and of its policy."""
    folder = folder_of(seed)
    status = json.loads((folder / "status.json").read_text())
    about = {"overrides": overrides_of(seed), "env_steps": status["env_steps"], "wall_s": round(status["wall_s"])}
    return about | {way: acted(policy(folder, way == "most probable")).numbers() for way in WAYS}


# Page -----------------------------------------------------------------------------------------------------------------


def table_of(kept: Numbers) -> str:
    """Return the table of all controllers."""
    rows = []
    for name, found in kept["references"].items():
        label = f"{name}: {found['variant']}" if found["variant"] else name
        spread = f"{found['return']:.2f} ± {1.96 * found['stderr']:.2f}"
        time_out = "" if found["time_to_out"] is None else f"{found['time_to_out']:.0f}"
        rows.append([label, spread, f"{100 * found['out']:.0f} %", time_out, f"{found['effort']:.1f}"])
    for way in WAYS:
        runs = [run[way] for run in kept["ppo"].values()]
        reached = interval(np.array([run["return"] for run in runs]), mean)
        cells = [over_seeds([run[key] for run in runs], scale, form) for key, scale, form in CELLS]
        label = f"PPO, {way} actions, {len(runs)} seeds"
        rows.append([label, f"{reached.value:.2f} [{reached.low:.2f}, {reached.high:.2f}]", *cells])
    return table(COLUMNS, rows)


COLUMNS = ("controller", "return", "fires put out", "time until half are out", "effort")
CELLS = (("out", 100, ".0f"), ("time_to_out", 1, ".0f"), ("effort", 1, ".1f"))
"""Number of a run, its factor in the table, and its format."""


def draw(kept: Numbers, path: Path) -> None:
    """Draw v of an episode under three controllers, and the mean of v under these and the other references."""
    courses = {name: acted(REFERENCES[name][found["variant"]]) for name, found in kept["references"].items()}
    courses["PPO"] = acted(policy(folder_of(SEED_SHOWN), greedy=False))
    shown = ("no control", "feedback at each port", "PPO")
    with figure(path, len(shown) + 1, (9.0, 3.6)) as panels:
        for panel, label in zip(panels, shown, strict=False):
            gap = np.full((2, SIDE), np.nan)
            below = np.vstack([courses[label].fields[SHOWN[1]], gap, courses[label].fields[SHOWN[0]]])
            panel.imshow(below, cmap="inferno", vmin=0.0, vmax=0.4, origin="lower")
            panel.set(title=label, xticks=(), yticks=())
            panel.spines[:].set_visible(False)
            panel.grid(False)
        times = [f"v at time {PERIOD * step:.0f}" for step in reversed(SHOWN)]
        panels[0].set_yticks([SIDE / 2, 1.5 * SIDE + len(gap)], times, rotation=90, va="center")
        panels[0].tick_params(length=0)
        for label, course in courses.items():
            panels[-1].plot(PERIOD * np.arange(STEPS), course.concentration.mean(1), label=label)
        panels[-1].set(xlabel="time", title="mean of v, all episodes")
        logarithmic(panels[-1].yaxis)


def main() -> None:
    """Train and measure what is missing, print the table, and write table and picture with --write."""
    chosen = settings(__doc__, seeds=5, again=False, write=False)
    torch.set_num_threads(1)
    kept: Numbers = json.loads(KEPT.read_text()) if KEPT.exists() and not chosen.again else {"references": {}, "ppo": {}}
    for name, variants in REFERENCES.items():
        if name not in kept["references"]:
            variant = best(variants)
            kept["references"][name] = {"variant": variant} | acted(variants[variant]).numbers()
            print(name, kept["references"][name], flush=True)
    for seed in range(chosen.seeds):
        if kept["ppo"].get(str(seed), {}).get("overrides") != overrides_of(seed):
            kept["ppo"][str(seed)] = measured(seed)
            print(seed, kept["ppo"][str(seed)], flush=True)
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    print(table_of(kept))
    if chosen.write:
        replace(PAGE, MARK, table_of(kept))
        draw(kept, PICTURE)


if __name__ == "__main__":
    main()
