"""Claim 11: central inference (`seed`) against copies of the policy (`async`), for policies of several sizes."""

from __future__ import annotations

from collections.abc import Iterator

from exarl.launch import Record, Run, train

WIDTHS = {"10 k": 100, "1 M": 1000, "10 M": 3160}
"""Parameters -> units of each of two hidden layers."""
MODES = ("async", "seed")
ACTORS, HORIZON, STEP_MS, UPDATES = 4, 16, 8.0, 16
FEATURES, OUTPUTS = 4, 2
"""Of the environment in sleepy.py."""


def parameters(width: int) -> int:
    """Return the parameters of a network with two hidden layers that gives logits and the value."""
    return (FEATURES + 1) * width + (width + 1) * width + (width + 1) * (OUTPUTS + 1)


def bytes_per_step(mode: str, width: int) -> float:
    """Return the bytes between learner and actor for a step of one environment, without what travels once a rollout in both modes.

    `async` sends the weights once a rollout; `seed` sends the observation, and gets outputs and value, in every step.
    """
    return 4.0 * parameters(width) / HORIZON if mode == "async" else 4.0 * (FEATURES + OUTPUTS + 1)


def job(size: str, mode: str) -> Run:
    """Return a run with policies of a size."""
    width = WIDTHS[size]
    network = [f"agent.network.hidden=[{width},{width}]", "agent.network.shared=true"]
    sizes = [f"n_envs={ACTORS}", f"agent.horizon={HORIZON}", f"total_steps={UPDATES * ACTORS * HORIZON}", "log.every=1iterations"]
    return Run(1 + ACTORS, ("env=sleepy", "agent=a2c", *network, *sizes, f"concurrency={mode}"))


def steps_per_s(records: list[Record]) -> float:
    """Return the environment steps per second after the first quarter of a run, without the evaluation at its end."""
    first, last = records[len(records) // 4], records[-2]
    return float((last["env_steps"] - first["env_steps"]) / (last["wall_s"] - first["wall_s"]))


def measure() -> Iterator[tuple[str, dict[str, float]]]:
    """Run both modes with all sizes, and yield the steps per second of each."""
    names = {job(size, mode): (size, mode) for size in WIDTHS for mode in MODES}
    for run, records in train(list(names), SLEEPY_STEP_MS=str(STEP_MS)):
        size, mode = names[run]
        yield f"{size} {mode}", {"steps_per_s": steps_per_s(records), "bytes_per_step": bytes_per_step(mode, WIDTHS[size])}
