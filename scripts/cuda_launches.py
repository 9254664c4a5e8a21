"""The launches of a run on a GPU, recorded without one: kernels, types of their arguments, grids and shared memory.

Everything is built as for a GPU, but on torch's device `meta`, where tensors have shapes and no numbers. So any
number of environments takes no memory."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

import torch
import torch.fx.experimental._config
from numba import typeof
from numba.core import types
from numba.np.numpy_support import from_dtype
from torch.utils._pytree import tree_leaves

from warprun.config import memory_estimate as estimates
from warprun.config.compose import compose
from warprun.config.planning import make_plan
from warprun.config.schema import Config, parameters
from warprun.environment import Environment
from warprun.learning.kernels import cuda as of_learners
from warprun.learning.kernels.cuda import recurrent_slopes
from warprun.learning.off_policy import OffPolicyAgent
from warprun.learning.on_policy import OnPolicyAgent
from warprun.learning.settings.plan import Choice
from warprun.runs.build import Setup, make_agent, make_training_simulator, prepare, set_up
from warprun.simulation import cuda, cuda_launch, cuda_layers, kernel_module
from warprun.simulation.device import Device
from warprun.simulation.trajectory import GroupTrajectory
from warprun.simulation.vector_engine import VectorEngine

if TYPE_CHECKING:
    from types import ModuleType

    from numba.cuda.dispatcher import CUDADispatcher

MULTIPROCESSORS = 132
"""Of the GPU that is launched on: an H200, and an H100 with NVLink."""
ENDLESS = 2**60
"""Bytes of its memory."""
QUIET = ("device=cpu", "engine.compare=false", "concurrency.threads=1", "eval.every=never")


class Launch(NamedTuple):
    """A kernel, and what it was launched with."""

    kernel: CUDADispatcher
    name: str
    grid: Callable[[int], tuple[int, int]]
    """Returns blocks and threads of a block, for the most threads that the registers of the kernel allow."""
    shared: int
    """Bytes of dynamic shared memory."""
    arguments: tuple[object, ...]

    @property
    def types(self) -> tuple[types.Type, ...]:
        """Numba's types of the arguments."""
        return tuple(map(type_of, self.arguments))

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield the arrays among the arguments."""
        yield from (leaf for leaf in tree_leaves(self.arguments) if isinstance(leaf, torch.Tensor))


@dataclass(frozen=True)
class Recorded(Device):
    """A GPU for warprun, and `meta` for torch."""

    @property
    def torch(self) -> torch.device:
        """Device of the tensors."""
        return torch.device("meta")

    @property
    def name(self) -> str:
        """Name for messages."""
        return "a GPU that only records"


GPU = Recorded("cuda", "recorded")
CAPABILITY = (9, 0)


def of_learner(launch: Launch) -> bool:
    """Return whether a kernel is a learner's, and not an environment's."""
    return "_cuda_" in str(launch.kernel.py_func.__module__)


def type_of(value: object) -> types.Type:
    """Return the type that Numba gives an argument on a GPU: of tensors that of a device array on the same memory."""
    if isinstance(value, torch.Tensor):
        plain = value.is_contiguous() and (0 not in value.stride() or not value.numel())
        number = from_dtype(torch.empty(0, dtype=value.dtype).numpy().dtype)
        return types.Array(number, value.ndim, "C" if plain else "A")
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return types.NamedTuple([type_of(part) for part in value], type(value))
    if isinstance(value, tuple):
        return types.BaseTuple.from_types([type_of(part) for part in value])
    return typeof(value)


@contextmanager
def recording(capability: tuple[int, int] = CAPABILITY) -> Iterator[list[Launch]]:
    """Yield a list to which every launch is added, as on a GPU of a compute capability; none runs, and no environment is tried out."""
    found = list[Launch]()

    def by_environment(
        self: cuda_launch.Launcher, name: str, grid: tuple[int, int] | None, arguments: Sequence[object], shared_bytes: int = 0
    ) -> None:
        chosen = partial(cuda_launch.grid_for, self._plan) if grid is None else partial(_given, grid)
        found.append(Launch(getattr(self._module, name), name, chosen, shared_bytes, tuple(arguments)))

    def by_learner(module: ModuleType, name: str, grid: tuple[int, int], arguments: Sequence[object], shared_bytes: int = 0) -> None:
        found.append(Launch(getattr(module, name), name, partial(_given, grid), shared_bytes, tuple(arguments)))

    with ExitStack() as stack:
        replaced: list[tuple[object, str, object]] = [
            (cuda_launch.Launcher, "on", by_environment),
            (cuda_launch.Launcher, "each", lambda self, name, arguments: by_environment(self, name, None, arguments)),
            (cuda, "on_device", lambda value: value),
            (cuda_layers, "capability", lambda: capability),
            # What blocks of all GPUs with tensor cores for bfloat16 can ask for.
            (cuda_layers, "most_shared_bytes", lambda: 99 * 1024),
            (torch.cuda, "mem_get_info", lambda device=None: (ENDLESS, ENDLESS)),
            (estimates, "available_memory", lambda: ENDLESS),
            (kernel_module.kernels, "is_tried", lambda module: True),
            # No number says which actors have left an episode, so none has.
            (torch.fx.experimental._config, "meta_nonzero_assume_all_nonzero", True),
            (GroupTrajectory, "rows", property(lambda self: self.reward.numel())),
        ]
        learners = [import_module(f"{of_learners.__name__}.{each.name}") for each in pkgutil.iter_modules(of_learners.__path__)]
        for module in (cuda_layers, *learners):
            stand_ins = {"launch": by_learner, "on_device": lambda value: value, "want": lambda *_: None}
            stand_ins["multiprocessors"] = lambda device: MULTIPROCESSORS
            replaced += [(module, name, stand_in) for name, stand_in in stand_ins.items() if hasattr(module, name)]
        # Those for a GPU of another compute capability have other limits.
        recurrent_slopes.weight_slopes_of.cache_clear()
        for place, name, stand_in in replaced:
            stack.enter_context(patch.object(place, name, stand_in))
        yield found


def _given(grid: tuple[int, int], most: int) -> tuple[int, int]:
    return grid


def config_of(*overrides: str) -> Config:
    """Return the config of a run, whatever memory it needs. Raises UserError."""
    with patch.object(estimates, "available_memory", lambda: ENDLESS):
        return compose([*overrides, *QUIET])


def setup_of(*overrides: str) -> Setup:
    """Return a run's config and its plan on a GPU without CUDA graphs, whatever memory it needs. Raises UserError."""
    setup = set_up(config_of(*overrides))
    plan = make_plan(setup.config, setup.environment, GPU.kind)
    return replace(setup, device=GPU, plan=replace(plan, repeated=Choice("Python")))


def of_run(*overrides: str, capability: tuple[int, int] = CAPABILITY) -> list[Launch]:
    """Return the launches of a reset, of a rollout with drawn actions and of what an agent learns from it: off policy a gradient step."""
    with recording(capability) as found:
        setup = setup_of(*overrides)
        agent = make_agent(setup)
        simulator = make_training_simulator(setup, agent)
        prepare(setup, simulator)
        taken = simulator.collect(agent.act)
        if isinstance(agent, OnPolicyAgent):
            agent.learn(taken)
        elif isinstance(agent, OffPolicyAgent):
            for learner in agent.learners:
                learner.add(taken)
                for _ in range(2):  # a delayed actor learns in the second step
                    learner.update()
    return found


def of_steps(*overrides: str, capability: tuple[int, int] = CAPABILITY) -> list[Launch]:
    """Return the launches of a reset and a step of environments whose caller chooses the actions."""
    with recording(capability) as found:
        setup = setup_of(*overrides)
        assert isinstance(setup.environment, Environment)
        given = parameters(setup.environment, setup.config.env)
        engine = VectorEngine(
            setup.environment, setup.config.env.name, device=GPU, n_envs=setup.config.n_envs, params=given, tables=setup.tables
        )
        engine.prepare()
    return found
