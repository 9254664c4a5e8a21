"""The targets that kernels are written for: CPU threads, and on CUDA one thread or one block for each environment."""

from __future__ import annotations

from warprun.environment import Environment, Group
from warprun.simulation import indexing
from warprun.simulation.codegen.target import Target, arrays, inferences
from warprun.simulation.codegen.templates import Names, block, fill, lines

CPU_KERNEL = """
@njit(**INLINED)
def ${kernel}_tile(tile, row, now, common, $arrays$logits):
    first = tile * LANES
    count = min(LANES, common.n_envs - first)
    last = first + count
    $body


@njit(cache=True, **BOUND)
def $kernel(first_tile, last_tile, thread, at, common, $arrays):
    row = at[0]
    now = np.uint32((common.began[0] + at[1]) & 0xFFFFFFFF)
    for tile in range(first_tile, last_tile):
        ${kernel}_tile(tile, row, now, common, $arrays$policy_outputs)
"""

CPU_ROLLOUT = """
@njit(cache=True, **BOUND)
def rollout(first_tile, last_tile, thread, steps, deterministic, now, common, $arrays, $inferences):
    now = np.uint32((common.began[0] + now) & 0xFFFFFFFF)
    for tile in range(first_tile, last_tile):
        first = tile * LANES
        last = min(first + LANES, common.n_envs)
        for t in range(steps):
            $inference
            if deterministic:
                greedy_tile(tile, t, np.uint32(now + t), common, $arrays$logits)
            else:
                sample_tile(tile, t, np.uint32(now + t), common, $arrays$logits)
            step_tile(tile, t, np.uint32(now + t), common, $arrays)


@njit(cache=True, **BOUND)
def retrace(first_tile, last_tile, thread, steps, now, common, $arrays):
    now = np.uint32((common.began[0] + now) & 0xFFFFFFFF)
    for tile in range(first_tile, last_tile):
        for t in range(steps):
            step_tile(tile, t, np.uint32(now + t), common, $arrays)
"""

CPU_INFERENCE = """
infer(${group}_inference, thread, tile, t, $actors, $features, ${group}_arrays.obs[t]$obs_part, ${group}_arrays.value[t]$value_part)
"""

SOME_END = """
for part in range((count + $together - 1) // $together):
    begin = part * $together
    width = min($together, count - begin)
    some_over = False
    for n in range(width):
        lane = begin + n
        some_over |= $over
    if not some_over:
        continue
    $body
"""

OVER = "terminated[lane] | truncated[lane]"
"""Whether the episode of a lane ends in this step."""
TOGETHER = 16
"""Lanes that begin their next episodes together: those of a vector of AVX-512."""

CUDA_KERNEL = """
@cuda.jit(**INLINED)
def ${kernel}_env($own, row, now, common, $arrays):
    tile = env // LANES
    lane = env % LANES
    $actor
    $body


@cuda.jit(cache=CACHE, fastmath=False)
def $kernel(row, now, common, $arrays):
    now = np.uint32((common.began[0] + now) & 0xFFFFFFFF)
    $begin
    ${kernel}_env($own, row, now, common, $arrays)
"""

CUDA_ROLLOUT = """
@cuda.jit(cache=CACHE, fastmath=False)
def rollout(steps, deterministic, now, common, $arrays, $inferences):
    now = np.uint32((common.began[0] + now) & 0xFFFFFFFF)
    thread = cuda.threadIdx.x
    threads = cuda.blockDim.x
    block = cuda.shared.array(0, float32)
    $begin
    for t in range(steps):
        # Other threads wrote the observations and read the shared memory.
        cuda.syncthreads()
        $inference
        # Actions and the step.
        $act
"""

ACT = """
if deterministic:
    greedy_env($own, t, np.uint32(now + t), common, $arrays)
else:
    sample_env($own, t, np.uint32(now + t), common, $arrays)
step_env($own, t, np.uint32(now + t), common, $arrays)
"""

COLUMNS_OF_BLOCK = """
# A block runs as many environments as the network has columns; its other threads only compute layers.
first = cuda.blockIdx.x * $columns
count = min($columns, common.n_envs - first)
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


OF_BLOCK = "env, thread, threads"
"""What the threads of a block give to the body of a kernel: the environment that they share, and which of its threads they are."""


class CpuTarget(Target):
    """A CPU thread owns tiles of environments; LLVM vectorises the loops over the lanes of a tile."""

    name = "cpu"
    imports = "from numba import njit\n\nfrom warprun.kernels.lanes import lane_loop, of_tile"
    lane_loop = "lane_loop()"
    at = "lane"
    begins_in_batches = True

    def __init__(self, environment: str = "first + lane") -> None:
        self.environment = environment

    def lanes(self, environment: Environment) -> int:
        # A tile should stay in the first-level cache; 64 lanes are four AVX-512 vectors of float32.
        slots = sum(group.size * sum(f.slots for f in group.fields) for group in environment.groups)
        return 64 if slots <= 128 else 16

    def kernel(self, name: str, body: str, groups: tuple[Group, ...]) -> str:
        acts = name in ("sample", "greedy")
        logits = "".join(f", {g.name}_logits" for g in groups if acts)
        # Transposed to [P, actor, lane], as in a fused rollout.
        outputs = "".join(f", {g.name}_arrays.policy_output[tile * LANES : (tile + 1) * LANES].T" for g in groups if acts)
        return fill(CPU_KERNEL, kernel=name, body=body, arrays=arrays(groups), logits=logits, policy_outputs=outputs)

    def rollout(self, groups: tuple[Group, ...]) -> str:
        inference = lines(*(self._inference(group) for group in groups))
        logits = "".join(f", {g.name}_inference.logits[thread]" for g in groups)
        return fill(CPU_ROLLOUT, arrays=arrays(groups), inferences=inferences(groups), inference=inference, logits=logits)

    def _inference(self, group: Group) -> str:
        features = group.observation.size
        return fill(
            CPU_INFERENCE,
            group=group.name,
            obs_part=self.part(group.size * features),
            actors=str(group.size),
            features=str(features),
            value_part=self.part(group.size),
        )

    def tile(self, array: str, shape: tuple[int, ...]) -> str:
        return f"of_tile({array}, tile, {shape[1:]!r})"

    def part(self, width: int) -> str:
        return "[first:last]" if width == 1 else f"[first * {width} : last * {width}]"

    def logits(self, group: Group) -> str:
        return ""  # an argument of the kernel

    def per_actor(self, group: Group, *body: str) -> str:
        return self.actors_of(group, self.per_environment(*body))

    def per_environment(self, *body: str) -> str:
        return block("for lane in range(count):", *body)

    def actors_of(self, group: Group, *body: str) -> str:
        return block(f"for actor in range({group.size}):", *body)

    def terminate(self, over: str) -> str:
        return f"terminated[lane] |= {over}"

    def note_end(self) -> str:
        return f"any_over |= {OVER}"

    def if_ended(self, reductions: str, body: str) -> str:
        # Few episodes end in a step, unless all began together. So these loops are over the lanes of one vector, if one of them ends.
        some = fill(SOME_END, over=OVER, together=str(TOGETHER), body=body)
        return block("if any_over:", reductions, some)

    def per_ended(self, *body: str) -> str:
        return block("for n in range(width):", "lane = begin + n", block(f"if {OVER}:", *body))

    def if_unsound(self, body: str) -> str:
        return block("if not sound:", self.per_environment(body))

    def replace_unsound(self, check: str, end: str) -> str:
        found = block("if not sound:", "any_over = True", end)
        return block("if not sound:", self.per_environment("sound = True", check, found), "sound = True")

    def check(self, group: Group, width: int, statement: str) -> str:
        actors = "count" if group.size == 1 else f"count * {group.size}"
        return fill(statement, first="0", actors=actors)  # the numbers of a tile are contiguous


class ThreadTarget(Target):
    """A GPU thread runs one environment of one actor."""

    name = "thread"
    imports = "from numba import cuda, float32"
    at = "env"
    environment = "env"

    def lanes(self, environment: Environment) -> int:
        return 32  # a warp

    def kernel(self, name: str, body: str, groups: tuple[Group, ...]) -> str:
        begin = lines("env = cuda.grid(1)", block("if env >= common.n_envs:", "return"))
        return fill(CUDA_KERNEL, kernel=name, own="env", actor="actor = 0", begin=begin, body=body, arrays=arrays(groups))

    def rollout(self, groups: tuple[Group, ...]) -> str:
        begin = fill(COLUMNS_OF_BLOCK, columns=f"{groups[0].name}_inference.network.columns")
        inference = lines(*(_cuda_inference(group) for group in groups))
        act = block("if thread < count:", "env = first + thread", fill(ACT, own="env", arrays=arrays(groups)))
        return fill(CUDA_ROLLOUT, arrays=arrays(groups), inferences=inferences(groups), begin=begin, inference=inference, act=act)

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
        begin = lines("env = cuda.blockIdx.x", "thread = cuda.threadIdx.x", "threads = cuda.blockDim.x")
        return fill(CUDA_KERNEL, kernel=name, own=OF_BLOCK, actor="", begin=begin, body=body, arrays=arrays(groups))

    def rollout(self, groups: tuple[Group, ...]) -> str:
        inference = lines(*(self._inference(group) for group in groups))
        act = fill(ACT, own=OF_BLOCK, arrays=arrays(groups))
        begin = "env = cuda.blockIdx.x"
        return fill(CUDA_ROLLOUT, arrays=arrays(groups), inferences=inferences(groups), begin=begin, inference=inference, act=act)

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


CPU, THREAD, BLOCK = CpuTarget(), ThreadTarget(), BlockTarget()


def target_for(environment: Environment, device_kind: str) -> Target:
    """Return the target for an environment on a device: cpu, cuda or cudasim."""
    if device_kind == "cpu":
        return CPU
    return THREAD if all(group.size == 1 for group in environment.groups) else BLOCK
