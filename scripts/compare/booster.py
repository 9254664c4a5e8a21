"""The regulators that trained policies of env=booster are compared with, on the same disturbances, for docs/gallery.md.

`python scripts/results.py booster_regulators` measures them. They play the EPISODES episodes that the policies of
`booster` and `booster_compat` play, with the changes of VIMIN that an action space allows. Their gains were found on
other episodes. The best linear regulator adds a prediction of the disturbance to what the plant makes of the past; no
linear regulator of the last 15 samples has a smaller mean of |IMINER|, as long as actions have no limits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from result_tables import SPACES

from warprun.config.compose import compose
from warprun.envs.booster import control
from warprun.envs.booster.control import Course, Episodes
from warprun.envs.booster.model import SEEN, respond
from warprun.runs.build import make_engine, set_up
from warprun.state import derived_seed

EPISODES, SEARCHED = 1000, 500
"""Episodes that are compared, and those that gains are searched on."""
PLAYED, OTHERS = 1, 2
"""Their seeds."""
STEPS, HISTORY, WARM = 100, 15, 2
"""Steps of an episode, samples of an observation, and samples before the first known disturbance among them."""


class Recorded(NamedTuple):
    """Episodes, and all that a regulator with an observation of HISTORY samples could know in them."""

    episodes: Episodes
    features: np.ndarray
    """[N, STEPS, F]: past disturbances and signals before each step, and a constant."""
    params: Any
    tables: Any
    limits: dict[str, control.Limit]
    """By action space."""


def record(count: int, seed: int, mode: str) -> Recorded:
    """Return the first `count` episodes of an evaluation with `seed`."""
    setup = {action: set_up(compose(["env=booster", f"env.action={action}", f"env.mode={mode}"])) for action in ("discrete", "continuous")}
    engine = make_engine(setup["continuous"], count, 1, derived_seed(seed, "eval"), auto_reset=False)
    engine.reset()
    p, tables, group = engine.params, engine.tables, engine.trajectory.groups["agent"]
    low, high = engine.spec.groups[0].action.bounds()[0]
    group.action.fill_(-(low + high) / (high - low))  # no change of VIMIN

    def state(name: str) -> np.ndarray:
        values: np.ndarray = engine.state_of("agent")[name].cpu().double().numpy().reshape(count)
        return values

    start = [state(name) for name in ("delta", "delta_1", "iminer", "iminer_1")]
    seen = group.obs[0, :, 0].cpu().double().numpy().reshape(count, HISTORY, SEEN)
    signals, disturbance = [*np.moveaxis(seen, 1, 0)], []
    for _ in range(STEPS):
        engine.step(0)
        disturbance.append(state("disturbance"))
        signals.append(group.obs[1, :, 0, -SEEN:].cpu().double().numpy())
        engine.carry_over()
    engine.close()
    episodes = Episodes(*start, np.stack(disturbance, 1))
    limits = {name: control.limit_of(each.environment.spec.groups[0].action, tables.changes) for name, each in setup.items()}
    return Recorded(episodes, features(np.stack(signals, 1), episodes.disturbance, p, tables), p, tables, limits)


def features(signals: np.ndarray, disturbance: np.ndarray, p: Any, tables: Any) -> np.ndarray:
    """Return the features [N, STEPS, F] of scaled signals [N, HISTORY + STEPS, SEEN] and disturbances [N, STEPS]."""
    delta, iminer = np.moveaxis(signals[:, :HISTORY, :2] / tables.scale[:2] + tables.shift[:2], 2, 0)
    before = iminer[:, 2:] - respond(delta[:, 2:], delta[:, 1:-1], delta[:, :-2], iminer[:, 1:-1], iminer[:, :-2], p)
    known = np.concatenate([before, disturbance], 1)  # from sample WARM on
    columns = [known[:, lag : lag + STEPS] for lag in range(HISTORY - WARM)]
    columns += [signals[:, lag : lag + STEPS, signal] for lag in range(HISTORY) for signal in range(2, SEEN)]
    return np.stack([*columns, np.ones_like(disturbance)], 2)


class Predictive(NamedTuple):
    """Cancels what the plant makes of the past, and a predicted disturbance."""

    p: Any
    predicted: np.ndarray
    """[N, T]."""

    def __call__(self, now: control.Now) -> np.ndarray:
        """Return the VIMIN that gives IMINER = 0 if the prediction is right."""
        rest: np.ndarray = respond(0.0, now.delta, now.delta_1, now.iminer, now.iminer_1, self.p) + self.predicted[:, now.step]
        return -rest / self.p.vimin_0


def least_deviations(features: np.ndarray, target: np.ndarray, rounds: int = 30) -> np.ndarray:
    """Return the weights [F] of the linear prediction of `target` [n] from `features` [n, F] with the least mean absolute error.

    Iteratively reweighted least squares (Schlossmacher 1973); the problem is convex, so this is the global optimum up to the floor of
    weights.
    """
    weights, scale = np.zeros(features.shape[1]), np.abs(features).max(0).clip(1e-12)
    scaled = features / scale
    for _ in range(rounds):
        share = 1.0 / np.abs(target - scaled @ weights).clip(1e-4)
        normal = scaled.T @ (share[:, None] * scaled)
        weights = np.linalg.solve(normal + 1e-9 * np.trace(normal) * np.eye(len(weights)), scaled.T @ (share * target))
    found: np.ndarray = weights / scale
    return found


def regulators(searched: Recorded, played: Recorded, action: str) -> dict[str, Course]:
    """Return the courses of all regulators under the limits of an action space."""
    episodes, p, tables, limit = searched.episodes, searched.params, searched.tables, searched.limits[action]
    pid, quadratic = control.best_pid(episodes, p, tables, limit), control.best_quadratic(episodes, p, tables, limit)
    print(f"{action}: {pid}, {quadratic}", flush=True)
    weights = least_deviations(searched.features.reshape(-1, searched.features.shape[2]), episodes.disturbance.reshape(-1))
    chosen: dict[str, control.Regulator] = {
        "recorded regulator": control.recorded,
        "PI, published gains": control.Pid(),
        "PID, best gains": pid,
        "best quadratic regulator": quadratic,
        "best linear regulator": Predictive(p, played.features @ weights),
    }
    found = {name: control.run(each, played.episodes, p, tables, limit) for name, each in chosen.items()}
    return {"no control": control.run(control.none, played.episodes, p, tables)} | found


def references() -> dict[str, dict[str, float]]:
    """Return the numbers of all regulators under each action space, and in compat mode."""
    settings = (("corrected", "discrete"), ("corrected", "continuous"), ("compat", "discrete"))
    return {space: measured_in(*given) for space, given in zip(SPACES, settings, strict=True)}


def measured_in(mode: str, action: str) -> dict[str, float]:
    """Return mean return, its 95 % error over episodes, and mean length of each regulator, in a mode and action space."""
    searched, played = (record(count, seed, mode) for count, seed in ((SEARCHED, OTHERS), (EPISODES, PLAYED)))
    found: dict[str, float] = {}
    for name, course in regulators(searched, played, action).items():
        error = 1.96 * course.returns.std(ddof=1) / EPISODES**0.5
        found |= {f"{name}/return": course.returns.mean(), f"{name}/return_error": error, f"{name}/length": course.length.mean()}
    return {key: round(float(value), 4) for key, value in found.items()}
