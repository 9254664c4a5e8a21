"""Kernels for CPU threads."""

from __future__ import annotations

from warprun.environment import Environment, Group
from warprun.simulation.codegen.target import Target, arrays, inferences
from warprun.simulation.codegen.templates import block, fill, lines

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


class CpuTarget(Target):
    """A CPU thread owns tiles of environments; LLVM vectorises the loops over the lanes of a tile."""

    name = "cpu"
    imports = "from numba import njit\n\nfrom warprun.kernels.lanes import lane_loop\nfrom warprun.kernels.views import of_tile"
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
