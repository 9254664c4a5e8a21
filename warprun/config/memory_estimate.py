"""Estimates the memory of a run before anything is built, and refuses a run that does not fit."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from warprun.config.planning import make_plan
from warprun.config.registry import Defined
from warprun.config.schema import Config, load_environment
from warprun.environment import Environment
from warprun.errors import UserError
from warprun.kernels.driver import available_memory, cuda_memory, why_no_cuda
from warprun.learning.settings.agent import group_config
from warprun.learning.settings.byte_counts import COLUMNS, RunSizes, working_memory
from warprun.learning.settings.plan import Choice
from warprun.processes import usable_cores
from warprun.simulation.arrays import ArrayPlan, rollout_bytes
from warprun.simulation.codegen.targets import target_for
from warprun.simulation.external.recipe import ExternalEnvironment

EVALUATION_STEPS = 64
"""Steps of a rollout of an evaluation (`runs.evaluation.CHUNK`)."""
PROCESS = 350 * 2**20
"""Bytes of a process that trains next to nothing on CPU: Python, torch, Numba and LLVM. Measured: 330 MiB, 70 more if torch computes
gradients, 100 more if kernels are compiled. Builds of torch for CUDA map 300 MiB more, most of it from files, which the system can take
back."""
WORKER = 60 * 2**20
"""Bytes of a worker process without its environments: Python, NumPy and Gymnasium."""
CUDA_CONTEXT = 600 * 2**20
"""Bytes of GPU memory that a process takes before it allocates anything."""

LOWEST: dict[str, int | list[int]] = {
    "n_envs": 1,
    "agent.horizon": 1,
    "agent.network.hidden": [1],
    "agent.network.units": [1],
    "agent.replay.capacity": 1,
    "eval.episodes": 1,
    "eval.final_episodes": 1,
}
"""Settings that the memory of a run depends on, with values that need next to none."""


class Estimate(NamedTuple):
    """The memory of a run at its peak."""

    parts: dict[str, int]
    """Part -> bytes."""

    @property
    def bytes(self) -> int:
        return sum(self.parts.values())

    def __str__(self) -> str:
        """Return the total, and the parts from the largest on that make up nine tenths of it."""
        named: list[str] = []
        shown = 0
        for name, size in sorted(self.parts.items(), key=lambda part: -part[1]):
            if shown < 0.9 * self.bytes:
                named.append(f"{name} {size_text(size)}")
                shown += size
        return f"{size_text(self.bytes)} ({', '.join(named)})"


def estimate(config: Config, environment: Defined, on_gpu: bool) -> Estimate:
    """Return the memory of a run at its peak, without the tables of the environment."""
    spec, agent = environment.spec, config.agent
    threads = config.concurrency.threads or usable_cores()
    plan = make_plan(config, environment, "cuda" if on_gpu else "cpu")
    by_kernels = plan.networks.by == "kernels", plan.gradients.by == "kernels"
    recurrent_slopes = on_gpu and plan.recurrent == Choice("kernels")
    sizes = RunSizes(config.n_envs, threads, *by_kernels, recurrent_slopes, plan.keeps, on_gpu)
    of_agent = agent.memory(spec, sizes)
    limit = spec.time_limit or config.eval.max_steps
    steps = min(EVALUATION_STEPS, limit)
    episodes = [config.eval.episodes, config.eval.episodes_at_end]
    counts = [evaluation_envs(config, environment, count) for count in episodes]
    evaluation = sum(simulator_bytes(config, environment, on_gpu, count, steps) for count in counts)
    evaluation += sum(agent.carry_bytes(spec, count * (1 + steps)) for count in counts)
    trajectory = simulator_bytes(config, environment, on_gpu, config.n_envs, agent.horizon)
    trajectory += agent.carry_bytes(spec, config.n_envs * (1 + agent.horizon))
    if plan.fused and isinstance(environment, Environment) and not on_gpu:
        rows = agent.fusion(spec).network_rows or {}
        together = COLUMNS // target_for(environment, "cpu").lanes(environment)  # actors of a block of their own where they remember
        blocks = {g.name: -(-g.size // together) if group_config(agent, g.name).network.remembers else 1 for g in spec.groups}
        inference = threads * sum((rows[g.name] * blocks[g.name] + g.action.outputs) * COLUMNS * 4 for g in spec.groups)
        trajectory, evaluation = trajectory + inference, evaluation + 2 * inference
    counted = steps * max(counts)
    phases = [*of_agent.phases, [counted, 8 * counted, 8 * counted, 8 * counted, counted]]
    return Estimate(
        {
            "process": CUDA_CONTEXT if on_gpu else PROCESS,
            "trajectory": trajectory,
            "networks": of_agent.networks,
            "replay": of_agent.replay,
            "evaluation": evaluation,
            "working memory": working_memory(phases, on_gpu),
            # The graph of each group's update keeps its own memory, beside that of the updates before it was captured.
            "CUDA graphs": len(spec.groups) * working_memory(of_agent.phases, on_gpu) if plan.repeated.by == "graphs" else 0,
            # Those of training, evaluations and final evaluations; they take no memory of a GPU.
            "worker processes": 0 if on_gpu else 3 * workers(config, environment) * WORKER,
        }
    )


def most_on_gpu(configs: Iterable[Config]) -> int:
    """Return the bytes of GPU memory that the largest of some runs takes at its peak, by all its processes; 0 without runs.

    Every process has a context and networks of its own, and counts as if it had all environments.
    """
    return max(map(_on_gpu, configs), default=0)


def _on_gpu(config: Config) -> int:
    environment = load_environment(config.env, config.concurrency.parallel)[0]
    return estimate(config, environment, on_gpu=True).bytes * (config.concurrency.wanted or 1)


def evaluation_envs(config: Config, environment: Defined, episodes: int) -> int:
    """Return in how many environments an evaluation plays: one for each episode, but of an environment in Python no more than `n_envs`."""
    return min(episodes, config.n_envs) if isinstance(environment, ExternalEnvironment) else episodes


def workers(config: Config, environment: Defined) -> int:
    """Return how many processes step environments: what the config says, else one per core, or one for a `VectorEnv`."""
    if not isinstance(environment, ExternalEnvironment):
        return 0
    given = config.concurrency.workers
    return min(given if given is not None else 1 if config.env.vector else usable_cores(), config.n_envs)


def simulator_bytes(config: Config, environment: Defined, on_gpu: bool, n_envs: int, horizon: int) -> int:
    """Return the bytes of the arrays of a simulator."""
    if not isinstance(environment, Environment):
        return rollout_bytes(environment.spec, n_envs, horizon)
    target = target_for(environment, "cuda" if on_gpu else "cpu")
    randomized, replaces = tuple(config.env.randomize), config.env.on_nan == "reset"
    sizes = (n_envs, horizon, randomized, config.agent.policies, replaces)
    return ArrayPlan(environment, target, *sizes, staggered=config.staggered).bytes_needed()


def check_memory(config: Config, environment: Defined) -> None:
    """Raise UserError if a run does not fit into the memory that is there; the line names the setting that matters most."""
    on_gpu, there = _memory_of_device(config)
    needed = estimate(config, environment, on_gpu)
    if there is None or needed.bytes <= there:
        return
    without = {key: estimate(changed, environment, on_gpu).bytes for key in LOWEST if (changed := _lowered(config, key))}
    largest = min(without, key=lambda key: without[key])
    where = "the GPU has" if on_gpu else "this machine has free"
    fits = fitting(largest, config, environment, on_gpu, there)
    advice = f"lower {largest}" if fits is None else f"lower {largest}, {fits} fits"
    raise UserError(f"{largest}={_given(config, largest)} needs {needed}; {where} {size_text(there)}: {advice}")


def fitting(key: str, config: Config, environment: Defined, on_gpu: bool, there: int) -> int | None:
    """Return about the largest value of a setting of LOWEST with which a run needs no more than `there` bytes, rounded down to two digits.

    None if no value fits, or if the setting is a list.
    """
    given = _given(config, key)
    low = LOWEST[key]
    if given is None or not given.isdigit() or isinstance(low, list):
        return None

    def fits(value: int) -> bool:
        return estimate(_changed(config, key, value), environment, on_gpu).bytes <= there

    if not fits(low):
        return None
    high = int(given) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    unit = 10 ** max(0, len(str(low)) - 2)
    return low // unit * unit


def check_evaluation_memory(config: Config, environment: Defined, episodes: int) -> None:
    """Raise UserError if an evaluation of a run by `episodes` episodes, in as many environments, does not fit into the memory.

    It takes no gradient steps and collects no rollout for them. On CPU its replay memory is zeros that take no space until they are used.
    """
    on_gpu, there = _memory_of_device(config)
    lowered = replace(config, eval=replace(config.eval, final_episodes=episodes))
    in_python = isinstance(environment, ExternalEnvironment)  # its evaluations have `n_envs` environments
    for key in (*([] if in_python else ["n_envs"]), "agent.horizon", "eval.episodes", *([] if on_gpu else ["agent.replay.capacity"])):
        lowered = _lowered(lowered, key) or lowered
    needed = estimate(lowered, environment, on_gpu)
    if there is None or needed.bytes <= there:
        return
    least = estimate(_lowered(lowered, "eval.final_episodes") or lowered, environment, on_gpu)
    advice = "lower episodes" if least.bytes <= there else "use device=cpu" if on_gpu else "use a machine with more memory"
    where = "the GPU has" if on_gpu else "this machine has free"
    raise UserError(f"an evaluation with episodes={episodes} needs {needed}; {where} {size_text(there)}: {advice}")


def _memory_of_device(config: Config) -> tuple[bool, int | None]:
    """Return whether a run computes on the GPU, and the bytes of memory that are there; None if they are not known."""
    on_gpu = config.device == "cuda"
    if config.device == "auto" and why_no_cuda() is None:
        from warprun.simulation.device import cuda_problem  # imports torch; only where there is a GPU

        on_gpu = cuda_problem() is None
    return on_gpu, cuda_memory() if on_gpu else available_memory()


def _lowered(config: Config, key: str) -> Config | None:
    """Return `config` with the value of LOWEST for a setting; None if it has no such setting or does not set it."""
    return None if _given(config, key) is None else _changed(config, key, LOWEST[key])


def _changed(config: Config, key: str, value: object) -> Config:
    changed = copy.deepcopy(config)
    *sections, name = key.split(".")
    section: object = changed
    for part in sections:
        section = vars(section)[part]
    setattr(section, name, value)
    return changed


def _given(config: Config, key: str) -> str | None:
    """Return the value of a setting as it is typed; None if there is no such setting or it is null."""
    found: object = config
    for part in key.split("."):
        found = vars(found).get(part)
        if found is None:
            return None
    return str(found).replace(" ", "")


def size_text(count: float) -> str:
    """Return a number of bytes in a unit for people."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"
