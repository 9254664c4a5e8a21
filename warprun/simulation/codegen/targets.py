"""The targets that kernels are written for: how loops, indices, barriers and the code around a kernel's body look.

State is stored in tiles [tile, slot, actor, lane]. Lanes are neighbouring environments: SIMD lanes on CPU, neighbouring threads on CUDA.
"""

from __future__ import annotations

from warprun.environment import Environment, Group
from warprun.simulation.codegen import called
from warprun.simulation.codegen.inference import cpu_calls, cpu_inference, cuda_inference
from warprun.simulation.codegen.templates import Names, block, fill, index, lines

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
        $enter
        for t in range(steps):
            $infer
            if deterministic:
                greedy_tile(tile, t, np.uint32(now + t), common, $arrays$logits)
            else:
                sample_tile(tile, t, np.uint32(now + t), common, $arrays$logits)
            step_tile(tile, t, np.uint32(now + t), common, $arrays)
        $leave


@njit(cache=True, **BOUND)
def retrace(first_tile, last_tile, thread, steps, now, common, $arrays):
    now = np.uint32((common.began[0] + now) & 0xFFFFFFFF)
    for tile in range(first_tile, last_tile):
        for t in range(steps):
            step_tile(tile, t, np.uint32(now + t), common, $arrays)
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


@cuda.jit(cache=CACHE, fastmath=False)
def retrace(steps, now, common, $arrays):
    now = np.uint32((common.began[0] + now) & 0xFFFFFFFF)
    $begin_env
    for t in range(steps):
        $barrier
        step_env($own, t, np.uint32(now + t), common, $arrays)
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


class Target:
    """A GPU thread runs one environment of one actor. The other targets override what they write in another way."""

    name = "thread"
    imports = "from numba import cuda, float32"
    at = "env"
    """Index of the environment in a row of a rollout array, as a kernel's body sees that row."""
    environment = "env"
    """Number of the environment."""
    barrier = ""
    """Statement that waits for all threads of the environment."""
    agree = ""
    """Statement after which `sound` is False in all threads of the environment if it was in one."""
    lane_loop = ""
    """Statement at the beginning of a loop over lanes that becomes vectors, loops of the user within it included."""
    own = "env"
    """Arguments that tell the body of a kernel on a GPU what it runs."""
    begin = "env = cuda.grid(1)\nif env >= common.n_envs:\n    return"
    """Statements at the beginning of a kernel on a GPU that define `own`."""
    note_end = ""
    """Statement that stores for `if_ended` whether an episode ends."""
    begins_in_batches = False
    """Whether `advance` begins the next episodes of many environments together, after the step of all."""

    def lanes(self, environment: Environment) -> int:
        """Return the number of environments in a tile, a compile-time constant of the layout."""
        return 32  # a warp

    def kernel(self, name: str, body: str, groups: tuple[Group, ...]) -> str:
        """Return the kernel `name` around its body."""
        actor = "actor = 0" if self.own == "env" else ""
        return fill(CUDA_KERNEL, kernel=name, own=self.own, actor=actor, begin=self.begin, body=body, arrays=arrays(groups))

    def rollout(self, groups: tuple[Group, ...], memory: tuple[str, ...]) -> str:
        """Return the kernels that run all steps of a rollout; `memory`: the groups whose networks have memory, none on a GPU."""
        begin = fill(COLUMNS_OF_BLOCK, columns=f"{groups[0].name}_inference.network.columns")
        act = block("if thread < count:", "env = first + thread", fill(ACT, own=self.own, arrays=arrays(groups)))
        return self.rollouts(groups, begin, lines(*map(cuda_inference, groups)), act)

    def rollouts(self, groups: tuple[Group, ...], begin: str, inference: str, act: str) -> str:
        """Return the kernels of rollouts on a GPU; of one with networks: what comes before the steps, the networks and the step of each."""
        of_target = {"own": self.own, "barrier": self.barrier, "begin_env": self.begin}
        return fill(CUDA_ROLLOUT, **rollout_arguments(groups), **of_target, begin=begin, inference=inference, act=act)

    def per_actor(self, group: Group, *body: str) -> str:
        """Return the loops that run `body` for all actors of a group in all environments."""
        return lines(*body)

    def per_environment(self, *body: str) -> str:
        """Return the loop that runs `body` once for every environment."""
        return self.once(*body)

    def actors_of(self, group: Group, *body: str) -> str:
        """Return the loop over the actors of a group within one environment."""
        return self.per_actor(group, *body)

    def once(self, *body: str) -> str:
        """Return statements that one thread runs, within one environment."""
        return lines(*body)

    def per_reduction(self, n: int, *body: str) -> str:
        """Return the loop that runs reduction `n` of a group for every environment."""
        return self.per_environment(*body)

    def per_ended(self, *body: str) -> str:
        """Return the loop that runs `body` for each environment whose episode ends, within `if_ended`."""
        return lines(*body)

    def tile(self, array: str, shape: tuple[int, ...]) -> str:
        """Return the part of an array of this shape, [tiles, ...], that belongs to the tile of a kernel's body."""
        return f"{array}[tile]"

    def part(self, width: int) -> str:
        """Return the slice of a flat row for the environments of a kernel's body, `width` numbers for each environment."""
        return ""

    def logits(self, group: Group) -> str:
        """Return the statement that defines the policy outputs of a group, [P, actor, environment]."""
        return f"{group.name}_logits = {group.name}_arrays.policy_output.T"

    def sort(self, name: str, cells: int, names: Names) -> str:
        """Return the statements that sort the actors of index `name`, whose cells are in NAME_place."""
        sort = names.use("sort_actors", called.sort_actors)
        return self.per_environment(f"{sort}({name}_place, {name}_first, {name}_actor, {cells}, lane)")

    def terminate(self, over: str) -> str:
        """Return the statement that ends the episode if `over` is true."""
        return block(f"if {over}:", f"terminated[{self.at}] = True")

    def if_ended(self, reductions: str, body: str) -> str:
        """Return `body` for the environments whose episode ends, after the reductions that it needs."""
        return block(f"if terminated[{self.at}] or truncated[{self.at}]:", reductions, body)

    def if_unsound(self, body: str) -> str:
        """Return statements that one thread runs for each environment if `sound` is False."""
        return block("if not sound:", self.once(body))

    def replace_unsound(self, check: str, end: str) -> str:
        """Return `end` for the environments that are unsound; `check` checks one environment."""
        return block("if not sound:", end, "sound = True")

    def check(self, group: Group, width: int, statement: str) -> str:
        """Return a check of a row, `width` numbers for each actor; `statement` has placeholders for first number and actors."""
        return self.per_actor(group, fill(statement, first=index(group, self.at, 0, width), actors="1"))


class CpuTarget(Target):
    """A CPU thread owns tiles of environments; LLVM vectorises the loops over the lanes of a tile."""

    name = "cpu"
    imports = "from numba import njit\n\nfrom warprun.kernels.lanes import lane_loop, of_tile"
    lane_loop = "lane_loop()"
    at = "lane"
    note_end = f"any_over |= {OVER}"
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

    def rollout(self, groups: tuple[Group, ...], memory: tuple[str, ...]) -> str:
        inference = []
        for group in groups:
            views = self.part(group.size * group.observation.size), self.part(group.size)
            inference += cpu_inference(group, group.name in memory, *views)
        logits = "".join(f", {g.name}_inference.logits[thread]" for g in groups)
        enter, infer, leave = cpu_calls(groups, memory)
        parts = rollout_arguments(groups) | {"logits": logits, "enter": enter, "infer": infer, "leave": leave}
        return "\n\n\n".join([*inference, fill(CPU_ROLLOUT, **parts)])

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


class BlockTarget(Target):
    """A CUDA block runs one environment of several actors; its threads share the actors, with barriers between phases."""

    name = "block"
    own = "env, thread, threads"  # the environment that the threads of a block share, and which of its threads they are
    begin = "env = cuda.blockIdx.x\nthread = cuda.threadIdx.x\nthreads = cuda.blockDim.x"
    barrier = "cuda.syncthreads()"
    agree = "sound = cuda.syncthreads_or(np.int32(0 if sound else 1)) == 0"

    def lanes(self, environment: Environment) -> int:
        return 1  # the threads of a block are actors, so the numbers of neighbouring actors are contiguous

    def rollout(self, groups: tuple[Group, ...], memory: tuple[str, ...]) -> str:
        inference, act = lines(*map(self._inference, groups)), fill(ACT, own=self.own, arrays=arrays(groups))
        return self.rollouts(groups, "env = cuda.blockIdx.x", inference, act)

    def _inference(self, group: Group) -> str:
        """Return inference for all actors, as many at a time as the network has columns."""
        columns = f"{group.name}_inference.network.columns"
        return block(
            f"for begin in range(0, {group.size}, {columns}):",
            f"first = env * {group.size} + begin",
            f"count = min({columns}, {group.size} - begin)",
            cuda_inference(group),
        )

    def per_actor(self, group: Group, *body: str) -> str:
        return block(f"for actor in range(thread, {group.size}, threads):", *body)

    def once(self, *body: str) -> str:
        return block("if thread == 0:", *body)

    def sort(self, name: str, cells: int, names: Names) -> str:
        functions = (called.count_actors, called.begin_cells, called.place_actors, called.number_places)
        count, begin, place, number = (names.use(function.__name__, function) for function in functions)
        given = f"({name}_place, {name}_first, {name}_actor, {cells}, thread, threads)"
        steps = f"{count}{given}", self.once(f"{begin}({name}_first, {cells})"), f"{place}{given}", f"{number}{given}"
        return f"\n{self.barrier}\n".join(steps)

    def per_reduction(self, n: int, *body: str) -> str:
        return block(f"if thread == {n} % threads:", *body)


def arrays(groups: tuple[Group, ...]) -> str:
    """Return the arguments of a kernel that hold the arrays of the groups."""
    return ", ".join(f"{group.name}_arrays" for group in groups)


def rollout_arguments(groups: tuple[Group, ...]) -> dict[str, str]:
    """Return the arguments of a rollout that hold the arrays and the networks of the groups, by the placeholders for them."""
    return {"arrays": arrays(groups), "inferences": ", ".join(f"{group.name}_inference" for group in groups)}


CPU, THREAD, BLOCK = CpuTarget(), Target(), BlockTarget()


def target_for(environment: Environment, device_kind: str) -> Target:
    """Return the target for an environment on a device: cpu, cuda or cudasim."""
    if device_kind == "cpu":
        return CPU
    return THREAD if all(group.size == 1 for group in environment.groups) else BLOCK
