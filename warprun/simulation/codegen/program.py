"""Writes the kernels of one environment as a readable Python module.

The kernels are `reset`, `sample` and `greedy` (actions from policy outputs), `step`, and `rollout`: all steps of a rollout with the
networks of the policies between them. On CPU there is also `retrace`: the steps of a rollout with given actions. The body of a kernel
(`bodies.py`) is a function of its own, which rollouts share with the single kernels. The code around a body depends on the target
(`targets.py`). For callers with actions of their own (`ArrayPlan.external`) there are only `reset` and `advance` (`advance.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from warprun.kernels.mlp import infer
from warprun.kernels.mlp_cuda import compute_layer, load_columns, store_outputs
from warprun.simulation.arrays import ArrayPlan
from warprun.simulation.codegen.advance import advance_kernels
from warprun.simulation.codegen.bodies import Bodies
from warprun.simulation.codegen.expressions import Expressions
from warprun.simulation.codegen.target import Target
from warprun.simulation.codegen.targets import BLOCK, CPU, THREAD
from warprun.simulation.codegen.templates import Function, Names, fill, lines

MODULE = '''
"""Kernels written by warprun for target '$target'; to change them, change the environment."""

from collections import namedtuple

import numpy as np
$imports

LANES = $lanes
$constants

$classes


$kernels
'''


CUDA_INFERENCE = (load_columns, compute_layer, store_outputs)
INFERENCE: dict[Target, tuple[Function, ...]] = {CPU: (infer,), THREAD: CUDA_INFERENCE, BLOCK: CUDA_INFERENCE}
"""Functions with which a rollout computes networks."""


@dataclass(frozen=True)
class Program:
    """The source of a kernel module and its globals.

    The module defines the NamedTuples that its kernels take: `Common` and, for each group, `GROUP_Arrays`.
    """

    source: str
    functions: dict[str, Function]
    """Globals of the module: the functions and classes of the environment, by the name that the source uses."""


def write(plan: ArrayPlan, auto_reset: bool = True) -> Program:
    """Write the kernels of an environment.

    The source holds no text but names that Python accepts as identifiers: no names of environments, and of paths only plain characters.
    Without `auto_reset` an environment whose episode has ended stays in its final state.
    """
    names = Names()
    expressions = Expressions(plan, names)
    for group in expressions.groups:
        names.use(f"{group.name}_State", group.state)
    if expressions.params:
        names.use("Params", plan.environment.params)
    bodies = Bodies(expressions, auto_reset).by_name()
    if plan.external:
        kernels = advance_kernels(expressions, bodies)
    else:
        for function in INFERENCE[plan.target]:
            names.use(function.__name__, function)
        kernels = [plan.target.kernel(kernel, body, expressions.groups) for kernel, body in bodies.items()]
        kernels.append(plan.target.rollout(expressions.groups))
    source = fill(
        MODULE,
        target=plan.target.name,
        imports=plan.target.imports,
        lanes=str(plan.target.lanes(plan.environment)),
        constants=lines(*(f"{constant} = {value}" for constant, value in sorted(names.definitions.items()))),
        classes=_classes(expressions),
        kernels="\n\n\n".join(kernels),
    )
    return Program(source + "\n", names.functions)


def _classes(expressions: Expressions) -> str:
    """Return the definitions of the NamedTuples that kernels take."""
    plan = expressions.plan
    common = [
        "n_envs",
        "first_env",
        "seed_low",
        "seed_high",
        *(["p"] if expressions.params else []),
        *(["tables"] if plan.environment.tables else []),
    ]
    fields = {"Common": [*common, *plan.common()]} | {f"{g.name}_Arrays": list(expressions.arrays[g.name]) for g in expressions.groups}
    return lines(*(f'{name} = namedtuple("{name}", {tuple(given)!r})' for name, given in fields.items()))
