"""Kernels for CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING

from warprun.environment import Environment, Group
from warprun.simulation import indexing
from warprun.simulation.codegen.target import Target, arrays, inferences
from warprun.simulation.codegen.templates import block, fill, lines

if TYPE_CHECKING:
    from warprun.simulation.codegen.expressions import Names

THREAD_KERNEL = """
@cuda.jit(**INLINED)
def ${kernel}_env(env, row, now, common, $arrays):
    tile = env // LANES
    lane = env % LANES
    actor = 0
    $body


@cuda.jit(cache=CACHE, fastmath=False)
def $kernel(row, now, common, $arrays):
    now = np.uint32((common.began[0] + now) & 0xFFFFFFFF)
    env = cuda.grid(1)
    if env >= common.n_envs:
        return
    ${kernel}_env(env, row, now, common, $arrays)
"""

THREAD_ROLLOUT = """
@cuda.jit(cache=CACHE, fastmath=False)
def rollout(steps, deterministic, now, common, $arrays, $inferences):
    now = np.uint32((common.began[0] + now) & 0xFFFFFFFF)
    thread = cuda.threadIdx.x
    threads = cuda.blockDim.x
    block = cuda.shared.array(0, float32)
    # A block runs as many environments as the network has columns; its other threads only compute layers.
    first = cuda.blockIdx.x * $columns
    count = min($columns, common.n_envs - first)
    for t in range(steps):
        # Other threads wrote the observations and read the shared memory.
        cuda.syncthreads()
        $inference
        # Actions and the step.
        if thread < count:
            env = first + thread
            if deterministic:
                greedy_env(env, t, np.uint32(now + t), common, $arrays)
            else:
                sample_env(env, t, np.uint32(now + t), common, $arrays)
            step_env(env, t, np.uint32(now + t), common, $arrays)
"""

BLOCK_KERNEL = """
@cuda.jit(**INLINED)
def ${kernel}_env(env, thread, threads, row, now, common, $arrays):
    tile = env // LANES
    lane = env % LANES
    $body


@cuda.jit(cache=CACHE, fastmath=False)
def $kernel(row, now, common, $arrays):
    now = np.uint32((common.began[0] + now) & 0xFFFFFFFF)
    env = cuda.blockIdx.x
    thread = cuda.threadIdx.x
    threads = cuda.blockDim.x
    ${kernel}_env(env, thread, threads, row, now, common, $arrays)
"""

BLOCK_ROLLOUT = """
@cuda.jit(cache=CACHE, fastmath=False)
def rollout(steps, deterministic, now, common, $arrays, $inferences):
    now = np.uint32((common.began[0] + now) & 0xFFFFFFFF)
    thread = cuda.threadIdx.x
    threads = cuda.blockDim.x
    block = cuda.shared.array(0, float32)
    env = cuda.blockIdx.x
    for t in range(steps):
        # Other threads wrote the observations and read the shared memory.
        cuda.syncthreads()
        $inference
        # Actions and the step.
        if deterministic:
            greedy_env(env, thread, threads, t, np.uint32(now + t), common, $arrays)
        else:
            sample_env(env, thread, threads, t, np.uint32(now + t), common, $arrays)
        step_env(env, thread, threads, t, np.uint32(now + t), common, $arrays)
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


class ThreadTarget(Target):
    """A GPU thread runs one environment of one actor."""

    name = "thread"
    imports = "from numba import cuda, float32"
    at = "env"
    environment = "env"

    def lanes(self, environment: Environment) -> int:
        return 32  # a warp

    def kernel(self, name: str, body: str, groups: tuple[Group, ...]) -> str:
        return fill(THREAD_KERNEL, kernel=name, body=body, arrays=arrays(groups))

    def rollout(self, groups: tuple[Group, ...]) -> str:
        columns = f"{groups[0].name}_inference.network.columns"
        inference = lines(*(_cuda_inference(group) for group in groups))
        return fill(THREAD_ROLLOUT, arrays=arrays(groups), inferences=inferences(groups), inference=inference, columns=columns)

    def per_actor(self, group: Group, *body: str) -> str:
        return lines(*body)

    def per_environment(self, *body: str) -> str:
        return lines(*body)


class BlockTarget(Target):
    """A CUDA block runs one environment of several actors; its threads share the actors, with barriers between phases."""

    name = "block"
    imports = "from numba import cuda, float32"
    at = "env"
    environment = "env"
    barrier = "cuda.syncthreads()"
    agree = "sound = cuda.syncthreads_or(np.int32(0 if sound else 1)) == 0"

    def lanes(self, environment: Environment) -> int:
        return 1  # the threads of a block are actors, so the numbers of neighbouring actors are contiguous

    def kernel(self, name: str, body: str, groups: tuple[Group, ...]) -> str:
        return fill(BLOCK_KERNEL, kernel=name, body=body, arrays=arrays(groups))

    def rollout(self, groups: tuple[Group, ...]) -> str:
        inference = lines(*(self._inference(group) for group in groups))
        return fill(BLOCK_ROLLOUT, arrays=arrays(groups), inferences=inferences(groups), inference=inference)

    def _inference(self, group: Group) -> str:
        """Return inference for all actors, as many at a time as the network has columns."""
        columns = f"{group.name}_inference.network.columns"
        return block(
            f"for begin in range(0, {group.size}, {columns}):",
            f"first = env * {group.size} + begin",
            f"count = min({columns}, {group.size} - begin)",
            _cuda_inference(group),
        )

    def per_actor(self, group: Group, *body: str) -> str:
        return block(f"for actor in range(thread, {group.size}, threads):", *body)

    def per_environment(self, *body: str) -> str:
        return self.once(*body)

    def once(self, *body: str) -> str:
        return block("if thread == 0:", *body)

    def sort(self, name: str, cells: int, names: Names) -> str:
        count, begin, place = (names.use(f.__name__, f) for f in (indexing.count_actors, indexing.begin_cells, indexing.place_actors))
        number = names.use("number_places", indexing.number_places)
        given = f"{name}_place, {name}_first, {name}_actor, {cells}"
        return lines(
            f"{count}({given}, thread, threads)",
            self.barrier,
            self.once(f"{begin}({name}_first, {cells})"),
            self.barrier,
            f"{place}({given}, thread, threads)",
            self.barrier,
            f"{number}({given}, thread, threads)",
        )

    def per_reduction(self, n: int, *body: str) -> str:
        return block(f"if thread == {n} % threads:", *body)


def _cuda_inference(group: Group) -> str:
    given = f"{group.name}_inference"
    return fill(
        CUDA_INFERENCE,
        group=group.name,
        network=f"{given}.network",
        features=str(group.observation.size),
        outputs=str(group.action.outputs),
        logits=f"{given}.logits",
    )
