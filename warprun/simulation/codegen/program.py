"""Writes the kernels of one environment as a Python module, as a person would write them by hand.

The kernels are `reset`, `sample` and `greedy` (actions from what the policies give), `step`, and `rollout`: all steps of a rollout with
the policies' networks between them. What they do to an environment is in `bodies.py`; a body is a function of its own, `step_tile` on CPU
and `step_env` on CUDA, so that a rollout runs the statements of the single kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from warprun.environment import Environment, Group
from warprun.kernels.mlp import infer
from warprun.kernels.mlp_cuda import compute_layer, load_columns, store_outputs
from warprun.simulation.codegen.bodies import Bodies
from warprun.simulation.codegen.statements import Target, lanes


@dataclass(frozen=True)
class Program:
    """The source of a kernel module and what it needs."""

    source: str
    functions: dict[str, Any]
    """Globals of the module: the functions and classes of the environment, by the name that the source uses."""
    arguments: tuple[str, ...]
    """What every kernel takes: `row`, `now`, `n_envs`, `seed_low`, `seed_high`, ... , then the arrays of the store by name.

    On CUDA `now` counts from `began`, an array of one number, for a CUDA graph repeats a kernel with the numbers of its first launch.
    """


def write(
    environment: Environment,
    name: str,
    target: Target,
    vary: tuple[str, ...],
    auto_reset: bool = True,
    explores: bool = False,
    replaces: bool = False,
) -> Program:
    """Write the kernels of `environment` for `target`; the parameters in `vary` differ between environments.

    Without `auto_reset` an environment whose episode has ended stays in its final state, to be looked at. Where policies explore,
    they give the values of choices or real actions, not distributions, and `sample` adds the randomness.
    `replaces`: an environment that is not finite begins anew.
    """
    bodies = Bodies(environment, target, vary, auto_reset, explores, replaces)
    module = (_CpuModule if target == "cpu" else _CudaModule)(bodies)
    head(bodies, name)
    for kernel, body in bodies.by_name().items():
        module.kernel(kernel, body)
    module.rollout()
    return Program("\n".join(bodies.lines) + "\n", bodies.functions, module.arguments)


def head(bodies: Bodies, name: str) -> None:
    """Write the imports and what all kernels share."""
    environment, target = bodies.environment, bodies.target
    bodies.line(f'"""Kernels of {name}, written by warprun for target {target!r}; to change them, change the environment."""')
    bodies.line()
    bodies.line("import numpy as np")
    bodies.line("from numba import njit" if target == "cpu" else "from numba import cuda, float32")
    bodies.line()
    bodies.line(f"LANES = {lanes(target, environment)}")
    for group in environment.groups:
        bodies.use(f"{group.name}_State", group.state)
    if environment.params._fields:  # type: ignore[attr-defined]
        bodies.use("Params", environment.params)


def kernel_arguments(bodies: Bodies) -> tuple[str, ...]:
    """Return the names of what every kernel takes."""
    env = bodies.environment
    scalars = ["row", "now", "n_envs", "seed_low", "seed_high"]
    if bodies.target != "cpu":
        scalars.append("began")
    if env.params._fields:  # type: ignore[attr-defined]
        scalars.append("p")
    if env.tables:
        scalars.append("tables")
    if bodies.vary:
        scalars += ["varied", "vary_bounds"]
    per_environment = ["clock", "cuts", "ended", "ended_steps", "fault", "any_fault", "terminated", "truncated"]
    per_environment += ["replaced"] if bodies.replaces else []
    per_group = []
    for group in env.groups:
        names = ["f", "i", "return", "return_ended", "obs", "policy_output", "action", "log_prob", "reward", "obs_final"]
        names += ["mask"] if group.mask else []
        names += ["sum"] if group.sums else []
        names += ["max"] if group.maxima else []
        names += ["f_before", "i_before"] if bodies.reads_itself(group) else []
        names += ["exploration"] if bodies.explores else []
        names += ["noise"] if bodies.has_noise(group) else []
        per_group += [f"{group.name}_{n}" for n in names]
    return tuple(scalars + per_environment + per_group)


class _Module:
    """The kernels around the bodies."""

    def __init__(self, bodies: Bodies) -> None:
        self.bodies = bodies
        self.groups = bodies.environment.groups
        self.arguments = kernel_arguments(bodies)
        self.taken = ", ".join(self.arguments)
        self.taken_in_rollout = ", ".join(["row + t", "np.uint32(now + t)", *self.arguments[2:]])


class _CpuModule(_Module):
    """A body works on one tile; kernels take the tiles of one thread."""

    def kernel(self, name: str, body: Callable[[], None]) -> None:
        b = self.bodies
        logits = self.logits() if name in ("sample", "greedy") else []
        b.gap()
        b.line("@njit(**FLAGS)")
        with b.block(f"def {name}_tile({', '.join(['tile', self.taken, *logits])}):"):
            b.line("first = tile * LANES")
            b.line("count = min(LANES, n_envs - first)")
            b.line("last = first + count")
            body()
        b.gap()
        b.line("@njit(nogil=True, cache=True, **FLAGS)")
        with b.block(f"def {name}(first_tile, last_tile, {self.taken}):"), b.block("for tile in range(first_tile, last_tile):"):
            # Reversed, [P, actor, lane], as the fused path has them.
            given = [f"{group.name}_policy_output[tile * LANES : (tile + 1) * LANES].T" for group in self.groups if logits]
            b.line(f"{name}_tile({', '.join(['tile', self.taken, *given])})")

    def rollout(self) -> None:
        """Write the fused path: for every tile, all steps, with the networks' inference between them."""
        b = self.bodies
        b.use("infer", infer)
        networks = [f"{group.name}_{n}" for group in self.groups for n in ("network", "value", "block", "logits")]
        call = self.taken_in_rollout
        b.gap()
        b.line("@njit(nogil=True, cache=True, **FLAGS)")
        head = f"def rollout(first_tile, last_tile, thread, steps, greedy, {', '.join([self.taken, *networks])}):"
        with b.block(head), b.block("for tile in range(first_tile, last_tile):"):
            b.line("first = tile * LANES")
            b.line("last = min(first + LANES, n_envs)")
            with b.block("for t in range(steps):"):
                for group in self.groups:
                    g = group.name
                    seen, value = f"{g}_obs[row + t]{b.rows(group, group.observation.size)}", f"{g}_value[row + t]{b.rows(group)}"
                    sizes = f"{group.size}, {group.observation.size}"
                    b.line(f"infer({g}_network, {seen}, {sizes}, {g}_block[thread], {g}_logits[thread], {value})")
                logits = ", ".join(f"{name}[thread]" for name in self.logits())
                with b.block("if greedy:"):
                    b.line(f"greedy_tile(tile, {call}, {logits})")
                with b.block("else:"):
                    b.line(f"sample_tile(tile, {call}, {logits})")
                b.line(f"step_tile(tile, {call})")
        self.retrace()

    def retrace(self) -> None:
        """Write the kernel that takes steps with the actions that are there already."""
        b = self.bodies
        b.gap()
        b.line("@njit(nogil=True, cache=True, **FLAGS)")
        with (
            b.block(f"def retrace(first_tile, last_tile, steps, {self.taken}):"),
            b.block("for tile in range(first_tile, last_tile):"),
            b.block("for t in range(steps):"),
        ):
            b.line(f"step_tile(tile, {self.taken_in_rollout})")

    def logits(self) -> list[str]:
        return [f"{group.name}_logits" for group in self.groups]


class _CudaModule(_Module):
    """A body works on one environment, in a thread of its own or, where there are several actors, in a block."""

    def __init__(self, bodies: Bodies) -> None:
        super().__init__(bodies)
        self.place = "env, " if bodies.target == "thread" else "env, thread, threads, "

    def kernel(self, name: str, body: Callable[[], None]) -> None:
        b = self.bodies
        b.gap()
        b.line("@cuda.jit(**INLINED)")
        with b.block(f"def {name}_env({self.place}{self.taken}):"):
            b.line("tile = env // LANES")
            b.line("lane = env % LANES")
            if b.target == "thread":
                b.line("actor = 0")
            body()
        b.gap()
        b.line("@cuda.jit(cache=CACHE, fastmath=False)")
        with b.block(f"def {name}({self.taken}):"):
            self.clock()
            if b.target == "thread":
                b.line("env = cuda.grid(1)")
                with b.block("if env >= n_envs:"):
                    b.line("return")
            else:
                b.line("env = cuda.blockIdx.x")
                self.threads()
            b.line(f"{name}_env({self.place}{self.taken})")

    def rollout(self) -> None:
        """Write the fused path: all steps of a block's environments, with the networks' inference between them."""
        b = self.bodies
        for function in (load_columns, compute_layer, store_outputs):
            b.use(function.__name__, function)
        networks = [f"{group.name}_{n}" for group in self.groups for n in ("network", "value", "logits")]
        b.gap()
        b.line("@cuda.jit(cache=CACHE, fastmath=False)")
        with b.block(f"def rollout(steps, greedy, {', '.join([self.taken, *networks])}):"):
            self.clock()
            self.threads()
            b.line("block = cuda.shared.array(0, float32)")
            if b.target == "thread":
                b.comment("As many environments as the network has columns; the threads beyond them only compute layers.")
                columns = f"{self.groups[0].name}_network.columns"
                b.line(f"first = cuda.blockIdx.x * {columns}")
                b.line(f"count = min({columns}, n_envs - first)")
            else:
                b.line("env = cuda.blockIdx.x")
            with b.block("for t in range(steps):"):
                b.comment("Other threads have written the observations, and need the shared memory no longer.")
                b.line("cuda.syncthreads()")
                for group in self.groups:
                    self.inference(group)
                b.comment("Actions, and the step.")
                if b.target == "thread":
                    with b.block("if thread < count:"):
                        b.line("env = first + thread")
                        self.act_and_step()
                else:
                    self.act_and_step()

    def inference(self, group: Group) -> None:
        """Write what fills `policy_output` and `value` of a group, as many actors at a time as the block has columns."""
        b = self.bodies
        b.comment(f"What the network of {group.name} makes of what {group.name} sees.")
        if b.target == "thread":
            self.columns(group)
            return
        columns = f"{group.name}_network.columns"
        with b.block(f"for begin in range(0, {group.size}, {columns}):"):
            b.line(f"first = env * {group.size} + begin")
            b.line(f"count = min({columns}, {group.size} - begin)")
            self.columns(group)

    def columns(self, group: Group) -> None:
        b, g, sizes = self.bodies, group.name, (group.observation.size, group.action.outputs)
        b.line(f"load_columns({g}_network, {g}_obs[row + t], first, count, {sizes[0]}, block, thread, threads)")
        b.line("cuda.syncthreads()")
        with b.block(f"for layer in range({g}_network.layers.shape[0]):"):
            b.line(f"compute_layer({g}_network, layer, block, thread, threads)")
            b.line("cuda.syncthreads()")
        b.line(f"store_outputs({g}_network, block, first, count, {sizes[1]}, {g}_logits, {g}_value[row + t], thread, threads)")
        b.line("cuda.syncthreads()")

    def act_and_step(self) -> None:
        b, call = self.bodies, self.place + self.taken_in_rollout
        with b.block("if greedy:"):
            b.line(f"greedy_env({call})")
        with b.block("else:"):
            b.line(f"sample_env({call})")
        b.line(f"step_env({call})")

    def clock(self) -> None:
        self.bodies.line("now = np.uint32((began[0] + now) & 0xFFFFFFFF)")

    def threads(self) -> None:
        self.bodies.line("thread = cuda.threadIdx.x")
        self.bodies.line("threads = cuda.blockDim.x")
