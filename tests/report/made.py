"""Run folders with the files that a run writes, and with returns that a test chooses."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml


def made(
    folder: Path,
    returns: Sequence[float],
    *,
    state: str = "finished",
    every: int = 1000,
    began_s: float = 0.0,
    settings: Mapping[str, object] | None = None,
) -> Path:
    """Make a run: an evaluation each `every` env_steps, 1000 of them per second; training returns are half as high."""
    folder.mkdir(parents=True)
    config: dict[str, object] = {
        "env": {"name": "cartpole", "id": None, "solved_at": 475.0},
        "agent": {"name": "ppo", "learning_rate": 1e-3, "clip": 0.2},
        "concurrency": {"name": "single"},
        "n_envs": 8,
        "seed": 0,
        "eval": {"group": None},
    }
    for key, value in (settings or {}).items():
        section, _, name = key.rpartition(".")
        own = config[section] if section else config
        assert isinstance(own, dict)
        own[name] = value
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "status.json").write_text(json.dumps({"state": state, "pid": 1, "host": "elsewhere"}))
    rows = []
    for n, value in enumerate(returns, 1):
        steps = n * every
        row = {"env_steps": steps, "wall_s": began_s + steps / 1000, "perf/env_steps_per_s": 1000.0 if n > 1 else 1.0}
        rows.append(row | {"train/return": value / 2, "eval/return": value, "perf/eval_ms": 1.0})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
