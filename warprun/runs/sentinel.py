"""The checks that stop a run if a number is not finite, before that number reaches a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from warprun.config.schema import EnvConfig
from warprun.errors import TrainingFailed
from warprun.learning.interfaces import Metrics
from warprun.simulation.faults import Arriving, Fault
from warprun.simulation.simulator import Episodes, Simulator
from warprun.spec import GroupSpec

UNBOUNDED = ("explained_variance",)
"""Metrics of an update that may be NaN or infinite without a fault, by the last part of their names."""


class Sentinel:
    """Checks every rollout, update, evaluation and checkpoint; each method raises TrainingFailed for numbers that are not finite.

    The error names the first cause: an observation rather than the loss that is computed from it. On CUDA the checks of rollouts and
    updates do not wait for the device. They find a fault when its flag has arrived on the host, at the latest before the next
    checkpoint.
    """

    def __init__(self, simulator: Simulator, note: Callable[[str, str], None], env: EnvConfig, replaced: int = 0) -> None:
        """Watch a simulator of `env`. `note`: see `Notes.once`; `replaced`: the resets because of `env.on_nan=reset` so far."""
        self.simulator = simulator
        self._note = note
        self._env, self._replaces = env, env.on_nan == "reset"
        self.replaced = replaced
        self._arriving = Arriving()
        self._is_first = True

    def after_rollout(self, is_whole: bool) -> None:
        """Check the outputs of the environments and of the policies; say which observations of the first whole rollout look wrong."""
        refuse(self.simulator.fault())
        if self._is_first and is_whole:
            self._is_first = False
            for group in self.simulator.spec.groups:
                text = odd_observation(group.name, bounds_of(group, self._env), self.simulator.trajectory.groups[group.name].obs)
                if text:
                    self._note(f"observation of {group.name}", text)

    def after_update(self, metrics: Metrics) -> None:
        """Check the losses and gradient norms, `loss/...`, of an update."""
        for name, value in (self._arrived(metrics) if self.simulator.device.kind == "cuda" else metrics).items():
            # The cheapest test comes first: this runs in every iteration, which may take microseconds.
            if not math.isfinite(value) and name.startswith("loss/") and not name.endswith(UNBOUNDED):
                refuse(self.simulator.fault(wait=True))
                raise TrainingFailed(f"{_named(name)} is {float(value)} {self._when()}: {ADVICE}")

    def _arrived(self, metrics: Metrics) -> dict[str, float]:
        """Return the metrics on the host, and those of an earlier update that have arrived from the device; start to copy the others."""
        on_device = {name: value for name, value in metrics.items() if isinstance(value, torch.Tensor) and value.is_cuda}
        there = {name: float(value) for name, value in metrics.items() if name not in on_device}
        if on_device:
            sent = torch.stack([value.detach().float() for value in on_device.values()])
            arrived = self._arriving.exchange(sent, tuple(on_device))
            there |= {} if arrived is None else dict(zip(arrived[1], arrived[0].tolist(), strict=True))
        return there

    def before_save(self, state: Mapping[str, torch.Tensor]) -> None:
        """Check all tensors that a checkpoint would hold (waits for the device)."""
        refuse(self.simulator.fault(wait=True))
        for name, tensor in state.items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                group, _, rest = name.partition("/")
                advice = LARGE_RETURNS if rest.startswith("reward/") else ADVICE
                raise TrainingFailed(f"{rest} of group {group} are not finite {self._when()}: {advice}")

    def after_evaluation(self, result: Mapping[str, float]) -> None:
        """Check the returns of an evaluation."""
        for name, value in result.items():
            if not math.isfinite(value):
                raise TrainingFailed(f"{name} of the evaluation is {value} {self._when()}")

    def metrics(self, ended: Episodes) -> dict[str, float]:
        """Return the number of environments that were reset because of a fault, if `env.on_nan=reset`; show a note at the first.

        `ended` counts those since the last call.
        """
        if not self._replaces:
            return {}
        if ended.replaced:
            self._note(
                "resets on nan",
                "an environment with NaN, infinity or an empty mask was reset (env.on_nan=reset); env/resets_on_nan counts these resets",
            )
        self.replaced += ended.replaced
        return {"env/resets_on_nan": self.replaced}

    def _when(self) -> str:
        return f"after step {self.simulator.steps:,} of every environment"


ROUNDING = 1e-5
"""Share of a bound, and of 1, by which a number may lie beyond it."""
COARSE = 2.0**24
"""From here on float32 has no longer all whole numbers."""


Bounds = Sequence[tuple[float, float]]
"""(low, high) of each number of an observation."""


def bounds_of(group: GroupSpec, env: EnvConfig) -> Bounds:
    """Return the bounds that the observations of a group have to keep.

    These are the declared ones, and none if the user has set or randomized parameters: they can move what an environment declares for its
    own parameters.
    """
    return [(-math.inf, math.inf)] * group.observation.size if env.params or env.randomize else group.observation.bounds()


def odd_observation(group: str, bounds: Bounds, obs: torch.Tensor) -> str:
    """Return a line about a number of a group's observations [T + 1, N, A, F] that is beyond its bounds, or too large for float32: the
    first such number of a row, where it is so first.

    Empty if there is none. Waits for the device.
    """
    low, high = torch.tensor(bounds, dtype=torch.float32, device=obs.device).unbind(-1)
    slack = ROUNDING * torch.stack((low.abs(), high.abs(), torch.ones_like(low))).nan_to_num(posinf=1.0).amax(0)
    low, high = low - slack, high + slack
    # By the extremes of each number: copies of all observations can be more than the memory that is left. Those over steps come first:
    # there torch compares whole rows of memory, and otherwise F numbers at a time, which takes ten times as long.
    least, most = obs.amin(0).amin((0, 1)), obs.amax(0).amax((0, 1))
    outside, coarse = (least < low) | (most > high), torch.maximum(least.abs(), most.abs()) >= COARSE
    if not bool((outside | coarse).any()):
        return ""
    is_outside = bool(outside.any())
    number = int((outside if is_outside else coarse).nonzero()[0])
    column = obs[..., number]
    wrong = (column < low[number]) | (column > high[number]) if is_outside else column.abs() >= COARSE
    row, env, actor = (int(place) for place in wrong.nonzero()[0])
    value = float(column[row, env, actor])
    where = f"environment {env}: number {number} of an observation of group {group} is {value:.9g}"
    if is_outside:
        kept = "{:.6g} to {:.6g}".format(*bounds[number])
        return f"{where}, beyond its bounds {kept}: correct the space or the observation; agents learn from it as it is"
    steps = float(np.spacing(np.float32(abs(value))))
    return f"{where}: agents compute in float32, which has steps of {steps:g} there; shift or scale it if smaller differences matter"


ADVICE = "the networks cannot recover; lower agent.learning_rate or check the scale of the rewards"
LARGE_RETURNS = "discounted returns are beyond float32; divide the rewards by a constant"


def refuse(fault: Fault | None, where: str = "") -> None:
    """Raise TrainingFailed for a fault."""
    if fault is None:
        return
    line = f"{where}{fault}"
    if fault.field == "action":
        line += f": {ADVICE}"
    if fault.field == "mask":
        line += "; a mask must allow at least one action"
    if fault.field != "action" and fault.step and fault.replaceable:
        line += "; with env.on_nan=reset such environments are reset"
    raise TrainingFailed(line)


def _named(metric: str) -> str:
    """Return the loss or gradient that a metric measures, in words: for "loss/value" or "loss/GROUP/grad_norm"."""
    _, *group, name = metric.split("/")
    what = "the norm of the gradient" if name == "grad_norm" else f"the loss ({name})"
    return what + (f" of group {group[0]}" if group else "")
