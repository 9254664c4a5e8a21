"""Watches over a run: stops it where a number is not finite, before such a number reaches a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from warprun.errors import TrainingFailed
from warprun.simulation.faults import Arriving, Fault
from warprun.simulation.kernel_engine import Engine

UNBOUNDED = ("explained_variance",)
"""Metrics of an update, by the last part of their names, that say nothing of it where they are not finite."""


class Sentinel:
    """Looks at every rollout, update, evaluation and checkpoint; each method raises TrainingFailed for what is not finite.

    The cause that is named is the first: an observation before the loss that follows from it. On CUDA nothing waits for the device: what
    a rollout or an update did comes to light as soon as it has arrived, and before a checkpoint in any case.
    """

    def __init__(self, engine: Engine, message: Callable[[str], None]) -> None:
        self.engine = engine
        self._message = message
        self._replaced = 0
        self._arriving = Arriving()

    def after_rollout(self) -> None:
        """Look at what the environments gave and what the policies answered."""
        refuse(self.engine.fault())

    def after_update(self, metrics: Mapping[str, Any]) -> None:
        """Look at the losses and gradients, `loss/...`, of an update."""
        for name, value in (self._arrived(metrics) if self.engine.device.kind == "cuda" else metrics).items():
            # The number first: this runs in every iteration, which may take microseconds.
            if not math.isfinite(value) and name.startswith("loss/") and not name.endswith(UNBOUNDED):
                refuse(self.engine.wait_for_fault())
                raise TrainingFailed(f"{_named(name)} is {float(value)} {self._when()}: {ADVICE}")

    def _arrived(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics that the host has, and those of an earlier update that have come from the device; send the others."""
        on_device = {name: value for name, value in metrics.items() if isinstance(value, torch.Tensor) and value.is_cuda}
        there = {name: value for name, value in metrics.items() if name not in on_device}
        if on_device:
            sent = torch.stack([value.detach().float() for value in on_device.values()])
            arrived = self._arriving.exchange(sent, tuple(on_device))
            there |= {} if arrived is None else dict(zip(arrived[1], arrived[0].tolist(), strict=True))
        return there

    def before_save(self, state: Mapping[str, torch.Tensor]) -> None:
        """Look at all that a checkpoint would hold (waits for the device)."""
        refuse(self.engine.wait_for_fault())
        for name, tensor in state.items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                group, _, rest = name.partition("/")
                raise TrainingFailed(f"{rest} of group {group} are not finite {self._when()}: {ADVICE}")

    def after_evaluation(self, result: Mapping[str, float]) -> None:
        """Look at the returns of an evaluation."""
        for name, value in result.items():
            if not math.isfinite(value):
                raise TrainingFailed(f"{name} of the evaluation is {value} {self._when()}")

    def metrics(self) -> dict[str, float]:
        """Return how many environments have been replaced so far, where they may be (waits for the device); tell of the first."""
        if not self.engine.replaces:
            return {}
        before, self._replaced = self._replaced, self.engine.replacements()
        if self._replaced and not before:
            self._message("an environment was not finite and has begun anew (env.on_nan=reset); env/resets_on_nan counts them")
        return {"env/resets_on_nan": self._replaced}

    def _when(self) -> str:
        return f"after step {self.engine.steps:,} of every environment"


ADVICE = "the networks are lost; lower agent.learning_rate or look at the size of rewards"


def refuse(fault: Fault | None, where: str = "") -> None:
    """Raise TrainingFailed for a fault."""
    if fault is None:
        return
    line = f"{where}{fault}"
    if fault.field == "action":
        line += f": {ADVICE}"
    elif fault.field == "mask":
        line += ": its mask must allow one at least"
    else:
        line += "; env.on_nan=reset replaces such environments"
    raise TrainingFailed(line)


def _named(metric: str) -> str:
    """Say which loss or gradient a metric is: "loss/value", "loss/GROUP/grad_norm"."""
    _, *group, name = metric.split("/")
    what = "the norm of the gradient" if name == "grad_norm" else f"the loss ({name})"
    return what + (f" of group {group[0]}" if group else "")
