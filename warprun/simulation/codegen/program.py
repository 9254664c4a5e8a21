"""Writes the kernels of one environment as a readable Python module.

The kernels are `reset`, `sample` and `greedy` (actions from policy outputs), `step`, and `rollout`: all steps of a rollout with the
networks of the policies between them. `retrace` is the steps of a rollout with given actions. The body of a kernel (`bodies.py`) is a
function of its own, which rollouts share with the single kernels. The code around a body depends on the target (`targets.py`).

For callers with actions of their own (`ArrayPlan.by_caller`) there are only `reset` and `advance`, a step and the beginning of the next
episodes. On CUDA a thread or block that steps an environment also begins its next episode. On CPU an episode ends in few lanes of a tile,
and code for single lanes is slow: drawing the random numbers of a reset takes longer than many steps. So `advance` steps all tiles of a
thread and lists the environments whose episode has ended. Then `begin` resets LANES of them at a time, with SIMD instructions, in a tile
that belongs to the thread, its batch, and moves them to their places. These are two kernels because LLVM optimises both less well in one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from warprun.environment import Group
from warprun.kernels.lanes import AT_ONCE, lowest_bit, set_flags
from warprun.kernels.memory import begin_tile, end_tile, own_block, with_memory
from warprun.kernels.mlp import infer_by, same_block, without_memory
from warprun.kernels.mlp_cuda import load_columns, store_outputs
from warprun.simulation.arrays import ArrayPlan
from warprun.simulation.codegen.bodies import Bodies
from warprun.simulation.codegen.expressions import Expressions, seen
from warprun.simulation.codegen.targets import CPU, CpuTarget, arrays
from warprun.simulation.codegen.templates import Function, Names, block, fill, lines

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

CPU_ADVANCE = """
@njit(forceinline=True, **FLAGS)
def advance_tile(tile, now, common, $arrays):
    first = tile * LANES
    count = min(LANES, common.n_envs - first)
    last = first + count
    $step


@njit(nogil=True, cache=True, **FLAGS)
def advance(first_tile, last_tile, thread, now, envs, common, $arrays, batch, $batches):
    now = np.uint32((common.began[0] + now) & 0xFFFFFFFF)
    terminated = common.terminated
    truncated = common.truncated
    for tile in range(first_tile, last_tile):
        advance_tile(tile, now, common, $arrays)
    # List the environments whose episode has ended.
    first = first_tile * LANES
    last = min(last_tile * LANES, common.n_envs)
    end = first
    for place in range(first, last, AT_ONCE):
        if place + AT_ONCE <= last:
            over = set_flags(terminated, place) | set_flags(truncated, place)
        else:
            over = np.uint64(0)
            for lane in range(last - place):
                over |= np.uint64(terminated[place + lane] | truncated[place + lane]) << np.uint64(lane)
        while over != np.uint64(0):
            envs[end] = place + lowest_bit(over)
            end += 1
            over &= over - np.uint64(1)
    return end - first


@njit(forceinline=True, **FLAGS)
def begin_batch(tile, now, envs, common, $arrays):
    count = len(envs)
    first = tile * LANES
    last = first + count
    $reset


@njit(nogil=True, cache=True, **FLAGS)
def begin(first_tile, over, thread, now, envs, common, $arrays, batch, $batches):
    now = np.uint32((common.began[0] + now) & 0xFFFFFFFF)
    end = first_tile * LANES + over
    for place in range(first_tile * LANES, end, LANES):
        together = envs[place : min(place + LANES, end)]
        $gather
        begin_batch(thread, now, together, batch, $batches)
        # Keep the final observation, move the next episode to its place.
        for n in range(len(together)):
            env = together[n]
            tile = env // LANES
            lane = env % LANES
            common.clock[tile, lane] = 0
            $varied
            $move
"""

CPU_TAKE = """
@njit(nogil=True, cache=True, **FLAGS)
def take_$group(given, action):
    wrong = 0
    for n in range(0, len(action), $components):
        $take
    return wrong == 0
"""


@dataclass(frozen=True)
class Program:
    """The source of a kernel module and its globals.

    The module defines the NamedTuples that its kernels take: `Common` and, for each group, `GROUP_Arrays`.
    """

    source: str
    functions: dict[str, Function]
    """Globals of the module: the functions and classes of the environment, by the name that the source uses."""


def write(plan: ArrayPlan, auto_reset: bool = True) -> Program:
    """Write the kernels of an environment, those of the last few plans once in a process: the runs of a sweep have them in common.

    The source holds no text but names that Python accepts as identifiers: no names of environments, and of paths only plain characters.
    Without `auto_reset` an environment whose episode has ended stays in its final state.
    """
    return _written(plan, auto_reset, () if plan.by_caller else tuple(_inference(plan).items()))


@lru_cache(maxsize=16)
def _written(plan: ArrayPlan, auto_reset: bool, inference: tuple[tuple[str, Function], ...]) -> Program:
    """Write the kernels with functions that compute networks, by name: they depend on the GPU, too."""
    names = Names()
    expressions = Expressions(plan, names)
    for group in expressions.groups:
        names.use(f"{group.name}_State", group.state)
    if expressions.params:
        names.use("Params", plan.environment.params)
    bodies = Bodies(expressions, auto_reset).by_name()
    if plan.by_caller:
        kernels = advance_kernels(expressions, bodies)
    else:
        for name, function in inference:
            names.use(name, function)
        kernels = [plan.target.kernel(kernel, body, expressions.groups) for kernel, body in bodies.items()]
        kernels.append(plan.target.rollout(expressions.groups, plan.memory))
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


def _inference(plan: ArrayPlan) -> dict[str, Function]:
    """Return the functions that compute a network within a rollout, by the names that the source uses."""
    if plan.target is CPU:
        of_memory: dict[str, Function] = {
            "infer_with_memory": infer_by(with_memory, own_block),
            "begin_tile": begin_tile,
            "end_tile": end_tile,
        }
        return {"infer": infer_by(without_memory, same_block), **(of_memory if plan.memory else {})}
    # Imports Numba's CUDA part, which may be absent where there is no GPU.
    from warprun.simulation.cuda_layers import chosen

    return {"load_columns": load_columns, "compute_layer": chosen(plan.network_rows).compute_layer, "store_outputs": store_outputs}


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
        *(["time_limit"] if plan.environment.time_limit else []),
    ]
    fields = {"Common": [*common, *plan.common()]} | {f"{g.name}_Arrays": list(expressions.arrays[g.name]) for g in expressions.groups}
    return lines(*(f'{name} = namedtuple("{name}", {tuple(given)!r})' for name, given in fields.items()))


def advance_kernels(expressions: Expressions, bodies: dict[str, str]) -> list[str]:
    """Return `reset` and `advance` for the target of `expressions`; `bodies` are those of its plan."""
    target, groups = expressions.target, expressions.groups
    if not target.begins_in_batches:
        return [target.kernel(kernel, body, groups) for kernel, body in bodies.items()]
    for name, function in (("set_flags", set_flags), ("lowest_bit", lowest_bit)):
        expressions.names.use(name, function)
    expressions.names.define("AT_ONCE", str(AT_ONCE))
    in_batch = Expressions(replace(expressions.plan, target=CpuTarget("envs[lane]")), expressions.names)
    advance = fill(
        CPU_ADVANCE,
        arrays=arrays(groups),
        batches=", ".join(f"{group.name}_batch" for group in groups),
        step=bodies["advance"],
        reset=Bodies(in_batch, auto_reset=True).by_name()["reset"],
        gather=_gather(groups),
        varied=lines(*(f"common.varied[tile, {n}, lane] = batch.varied[thread, {n}, n]" for n in range(len(expressions.plan.vary)))),
        move=lines(*(_move(group) for group in groups)),
    )
    return [
        target.kernel("reset", bodies["reset"], groups),
        advance,
        *(_take(group) for group in groups if group.action.choices),
    ]


def _take(group: Group) -> str:
    """Return the kernel that copies actions of a caller, and returns whether all of them exist."""
    take = [
        line
        for n, count in enumerate(group.action.choices)
        for line in (f"wrong += np.uint64(given[n + {n}]) >= np.uint64({count})", f"action[n + {n}] = np.int32(given[n + {n}])")
    ]
    return fill(CPU_TAKE, group=group.name, components=str(group.action.components), take=lines(*take))


def _gather(groups: tuple[Group, ...]) -> str:
    """Return the copies of array fields to the batch: what `reset` does not write keeps its value."""
    copies = []
    for group in groups:
        for f in group.fields:
            if f.length:
                kind = "i" if f.integer else "f"
                copy = f"{group.name}_batch.{kind}[thread, slot, actor, n] = {group.name}_arrays.{kind}[tile, slot, actor, lane]"
                copies.append(_per_slot(group, f.first, f.first + f.length, copy))
    place = ("tile = together[n] // LANES", "lane = together[n] % LANES")
    return block("for n in range(len(together)):", *place, *copies) if copies else ""


def _move(group: Group) -> str:
    """Return the statements that move the new episode of one environment from the batch to its place."""
    of, batch, name = f"{group.name}_arrays", f"{group.name}_batch", group.name
    parts = []
    for kind, integer in (("f", False), ("i", True)):
        slots = sum(f.slots for f in group.fields if f.integer == integer)
        if slots:
            move = f"{of}.{kind}[tile, slot, actor, lane] = {batch}.{kind}[thread, slot, actor, n]"
            parts.append(_per_slot(group, 0, slots, move))
    for array, of_actor in seen(group):
        entries = group.size * of_actor
        parts.append(
            block(
                f"for k in range({entries}):",
                f"{of}.final_{array}[env * {entries} + k] = {of}.{array}[env * {entries} + k]",
                f"{of}.{array}[env * {entries} + k] = {batch}.{array}[(thread * LANES + n) * {entries} + k]",
            )
        )
    return lines(f"# Group {name}.", *parts)


def _per_slot(group: Group, first: int, last: int, statement: str) -> str:
    return block(f"for slot in range({first}, {last}):", block(f"for actor in range({group.size}):", statement))
