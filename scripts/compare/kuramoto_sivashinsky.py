"""Policies of env=kuramoto_sivashinsky beside no control and regulators: `python scripts/results.py kuramoto_sivashinsky`.

Policies and linear-quadratic regulators steer the same EPISODES episodes, which begin with fields that training has not seen. Policies take
their most probable actions and see the sensors; regulators see the field. A regulator is that of the linearisation about the target, over a
control period; the weight of its actions is the one of WEIGHTS with the highest return in other episodes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from common import DOCS, figure
from result_tables import NEAR

import warprun
from warprun.envs.kuramoto_sivashinsky import LENGTH, POINTS, Flow, KuramotoSivashinsky, actuator_shapes, steady_state
from warprun.report.style import logarithmic
from warprun.runs import rundir

PICTURE = DOCS / "figures" / "kuramoto_sivashinsky.png"
STEPS, PERIOD = 200, 0.5
EPISODES, SEARCHED = 500, 100
"""Episodes that are compared, and those that the weight of actions is chosen on."""
PLAYED, OTHERS = 11, 12
"""Seeds of their beginnings."""
WEIGHTS = (0.1, 1.0, 10.0, 100.0)
TARGETS = (1, 2, 3)
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


# Numbers and picture ---------------------------------------------------------------------------------------------------


def policy(folder: Path) -> Controller:
    """Return the last policy of a run."""
    torch.set_num_threads(1)
    loaded = warprun.load(folder)
    return lambda env, seen: loaded.act(seen)


def target_of(folder: Path) -> int:
    """Return the target of a run."""
    return int(rundir.read_config(folder)["env"]["kwargs"]["target"])


def measured(folder: Path) -> Numbers:
    """Return the numbers of the policy of a run."""
    return steered(target_of(folder), policy(folder)).numbers()


def references() -> dict[str, Numbers]:
    """Return the numbers of no control and of the best regulator of every target."""
    found = {}
    for target in TARGETS:
        weight, best = best_regulator(target)
        found[f"E{target}, no control"] = steered(target, no_control).numbers()
        found[f"E{target}, regulator"] = steered(target, best).numbers() | {"weight": weight}
    return found


def draw(folder: Path) -> None:
    """Draw a field without control and under the policy of a run, and the distances of all episodes under each controller."""
    target = target_of(folder)
    courses = {
        "no control": steered(target, no_control),
        "linear-quadratic regulator": steered(target, best_regulator(target)[1]),
        "SAC": steered(target, policy(folder)),
    }
    times = PERIOD * np.arange(1, STEPS + 1)
    with figure(PICTURE, 3, (9.0, 3.4)) as panels:
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
