"""The text with which a rollout computes networks."""

from __future__ import annotations

from warprun.environment import Group
from warprun.simulation.codegen.templates import fill, lines

CPU_INFERENCE = """
@njit(**INLINED)
def ${group}_infer(tile, first, last, thread, t, inference, common, arrays):
    $infer(inference, thread, tile, t, $actors, $features, arrays.obs[t]$obs_part, arrays.value[t]$value_part, $ends)
"""

ENDS = "(common.terminated[max(t - 1, 0)][first:last], common.truncated[max(t - 1, 0)][first:last], first)"
"""The part of the step before that `memory.with_memory` takes."""

CPU_MEMORY = """
@njit(**INLINED)
def ${group}_enter(first, last, thread, inference, common):
    row = common.terminated.shape[0] - 1
    begin_tile(inference, thread, first, $actors, common.terminated[row][first:last], common.truncated[row][first:last])


@njit(**INLINED)
def ${group}_leave(first, last, thread, inference):
    end_tile(inference, thread, first, last - first, $actors)
"""

CUDA_INFERENCE = """
load_columns($network, ${group}_arrays.obs[t], first, count, $features, block, thread, threads)
cuda.syncthreads()
for layer in range($network.layers.shape[0]):
    compute_layer($network, layer, block, thread, threads)
    cuda.syncthreads()
store_outputs($network, block, first, count, $outputs, $logits, ${group}_arrays.value[t], thread, threads)
cuda.syncthreads()
"""


def cpu_inference(group: Group, remembers: bool, obs_part: str, value_part: str) -> list[str]:
    """Return the functions that compute the network of a group for a tile, which `cpu_calls` calls.

    `obs_part` and `value_part` are slices of flat rows, those of the tile.
    """
    sizes = {"group": group.name, "actors": str(group.size), "features": str(group.observation.size)}
    way = {"infer": "infer_with_memory", "ends": ENDS} if remembers else {"infer": "infer", "ends": "()"}
    infer = fill(CPU_INFERENCE, **sizes, **way, obs_part=obs_part, value_part=value_part)
    return [infer, fill(CPU_MEMORY, **sizes)] if remembers else [infer]


def cpu_calls(groups: tuple[Group, ...], memory: tuple[str, ...]) -> tuple[str, str, str]:
    """Return the statements for a tile before all steps, before each, and after all; `memory`: groups whose networks have memory."""
    enter = (f"{name}_enter(first, last, thread, {name}_inference, common)" for name in memory)
    infer = (f"{g.name}_infer(tile, first, last, thread, t, {g.name}_inference, common, {g.name}_arrays)" for g in groups)
    leave = (f"{name}_leave(first, last, thread, {name}_inference)" for name in memory)
    return lines(*enter), lines(*infer), lines(*leave)


def cuda_inference(group: Group) -> str:
    """Return the statements with which the threads of a block compute the network of a group."""
    given = f"{group.name}_inference"
    return fill(
        CUDA_INFERENCE,
        group=group.name,
        network=f"{given}.network",
        features=str(group.observation.size),
        outputs=str(group.action.outputs),
        logits=f"{given}.logits",
    )
