"""The targets that kernels are written for."""

from __future__ import annotations

from warprun.environment import Environment
from warprun.simulation.codegen.cpu_target import CpuTarget
from warprun.simulation.codegen.cuda_targets import BlockTarget, ThreadTarget
from warprun.simulation.codegen.target import Target

CPU, THREAD, BLOCK = CpuTarget(), ThreadTarget(), BlockTarget()


def target_for(environment: Environment, device_kind: str) -> Target:
    """Return the target for an environment on a device: cpu, cuda or cudasim."""
    if device_kind == "cpu":
        return CPU
    return THREAD if all(group.size == 1 for group in environment.groups) else BLOCK
