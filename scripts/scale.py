"""How training scales with environments, units and actors: curves that scripts/reproduce.py measures, and their tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from campaign import Parts, Values, read
from common import DOCS, described, table

from warprun.config.compose import compose
from warprun.errors import UserError
from warprun.runs.bench import bench

KEPT, PAGE = DOCS / "benchmarks" / "scale.json", DOCS / "benchmarks" / "throughput.md"
HORIZON = 16
"""Steps of a rollout of all settings."""
PLAIN = ["device=cpu", "agent.normalize_obs=false", "agent.normalize_reward=false"]
TAG = [
    *("env=tag_continuous", "env.params.exits=false", "agent=ppo", "tuned=none", "device=cpu"),
    *(f"agent.horizon={HORIZON}", "agent.epochs=1", "agent.minibatches=4", "agent.learning_rate=0.001"),
]
"""Tagged runners stay, so that all actors work all the time."""
ONE_PASS, OF_ROLLOUT = 8, 2
"""Operations for each weight: of a step with an update that reads it once, as all of these do, and of its rollout."""
KINDS = ("simulation", "rollout", "training")


class Curve(NamedTuple):
    """Points that differ in one number."""

    points: tuple[int, ...]
    threads: tuple[int, ...]
    settings: Callable[[int], list[str]]


def _of_environments(agent: str, n: int) -> list[str]:
    return ["env=cartpole", f"agent={agent}", *PLAIN, f"n_envs={n}"]


def _of_width(width: int) -> list[str]:
    return [*_of_environments("a2c", 1_000), f"agent.network.hidden=[{width},{width}]"]


def _of_actors(actors: int) -> list[str]:
    taggers = max(1, actors // 11)
    return [*TAG, f"env.options.taggers={taggers}", f"env.options.runners={actors - taggers}", "n_envs=128"]


ENVIRONMENTS = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
CURVES = {
    "scale_a2c": Curve(ENVIRONMENTS, (2,), partial(_of_environments, "a2c")),
    # A rollout of one environment has too few rows for 16 minibatches.
    "scale_ppo": Curve(ENVIRONMENTS[1:], (2,), partial(_of_environments, "ppo")),
    "scale_width": Curve((16, 32, 64, 128, 256, 512), (1, 2), _of_width),
    "scale_actors": Curve((2, 5, 10, 25, 100, 1_000), (2,), _of_actors),
}


def point(curve: Curve, n: int) -> Values:
    """Return what `warprun bench` measures of a point, by threads: environment steps per second, and their arithmetic limit."""
    found = {}
    for measured in bench([compose(curve.settings(n))], curve.threads):
        if measured.limit_share is None:
            raise UserError(f"scale: {' '.join(curve.settings(n))}: not fused, so there is no arithmetic limit")
        rates = {kind: getattr(measured, f"{kind}_steps_per_s") for kind in KINDS}
        limit = measured.training_steps_per_s / measured.limit_share
        found[str(measured.threads)] = {**rates, "limit": limit, "bytes_per_env": measured.bytes_per_env}
    return found


def parts(name: str) -> Parts:
    """Return a part for every point of a curve."""
    return {f"{n} round=0": partial(point, CURVES[name], n) for n in CURVES[name].points}


# The tables -----------------------------------------------------------------------------------------------------------

Kept = Mapping[str, Any]


def numbers(kept: Kept, name: str, n: int, threads: int = 2) -> dict[str, float]:
    """Return the numbers of a point."""
    found: dict[str, float] = kept[name]["parts"][f"{n} round=0"]["values"][str(threads)]
    return found


def share(found: Mapping[str, float], kind: str) -> float:
    """Return the share of the arithmetic limit."""
    return found[kind] / found["limit"] / (ONE_PASS / OF_ROLLOUT if kind == "rollout" else 1)


def cells(found: Mapping[str, float], kind: str) -> tuple[str, str]:
    """Return million steps per second of a point, and the share of the limit."""
    reached = share(found, kind)
    return f"{found[kind] / 1e6:.3g}", f"{100 * reached:.{0 if reached > 0.095 else 1}f} %"


def of_environments(kept: Kept) -> str:
    """Return the table of environments."""
    rows = []
    for n in ENVIRONMENTS:
        a2c = numbers(kept, "scale_a2c", n)
        ppo = cells(numbers(kept, "scale_ppo", n), "training") if n in CURVES["scale_ppo"].points else ("", "")
        sizes = f"{1e6 * HORIZON * n / a2c['training']:,.0f}", f"{n * a2c['bytes_per_env'] / 2**20:,.3g}"
        rows.append((f"{n:,}", *cells(a2c, "rollout"), *cells(a2c, "training"), *ppo, *sizes))
    titles = ["environments", "rollouts", "limit", "A2C", "limit", "PPO", "limit", "iteration of A2C, µs", "rollout, MiB"]
    return table(titles, rows)


def of_widths(kept: Kept) -> str:
    """Return the table of widths."""
    columns = {f"{kind}, {t} thread{'s' * (t - 1)}": (kind, t) for kind in KINDS[1:] for t in (1, 2)}
    points = CURVES["scale_width"].points
    rows = [(n, *(cell for kind, t in columns.values() for cell in cells(numbers(kept, "scale_width", n, t), kind))) for n in points]
    return table(["units", *(title for column in columns for title in (column, "limit"))], rows)


def of_actors(kept: Kept) -> str:
    """Return the table of actors."""
    rows = []
    for n in CURVES["scale_actors"].points:
        found = numbers(kept, "scale_actors", n)
        rates = [f"{found[kind] * n / 1e6:.3g}" for kind in KINDS]
        rows.append((f"{n:,}", *rates, cells(found, "training")[1], f"{found['training'] / 1e3:.3g}"))
    return table(["actors", "simulation", "rollouts", "training", "limit", "thousand environment steps/s"], rows)


def measured_on(kept: Kept) -> str:
    """Return where and when the numbers were measured."""
    every = [part for own in kept.values() for part in own["parts"].values()]
    return (
        f"{min(part['date'] for part in every)[:10]}, {' and '.join(dict.fromkeys(described(own['machine']) for own in kept.values()))}. "
        f"Load average before at most {max(load for own in kept.values() for load in own['load_before'])}; "
        f"{sum(not part['quiet'] for part in every)} of {len(every)} points were measured beside other work.\n"
    )


def places() -> Iterator[tuple[Path, str, str]]:
    """Yield page, mark and text of the tables, empty before all points are measured."""
    kept = read(KEPT)
    complete = all(set(parts(name)) <= set(kept.get(name, {"parts": {}})["parts"]) for name in CURVES)
    tables = {"environments": of_environments, "widths": of_widths, "actors": of_actors, "scale": measured_on}
    for mark, write in tables.items():
        yield PAGE, mark, write(kept) if complete else ""
