"""Environments that step as one batch of arrays: what the config and their class say before a run begins. No torch."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

from warprun.config.external import External, check_arguments, first_argument
from warprun.errors import ContractError, UserError, shown
from warprun.kernels import waiting
from warprun.simulation.batch import MASK, BatchClass
from warprun.simulation.external.recipe import METHODS_OF_STATE, Closes, told, unpaired
from warprun.simulation.simulator import Simulator
from warprun.spec import Box, GroupSpec, Space, Spec
from warprun.user_code import staying

if TYPE_CHECKING:
    from warprun.simulation.device import Device
    from warprun.simulation.exploration import Exploration

N_ENVS = "n_envs"
"""First argument of the class of a batched environment, by which it is recognised."""
GROUP = "agent"
"""Name of the only group."""
MEMBERS = ("arrays", "observation_space", "action_space", "reset", "step")
SPACES = "spaces"
"""A static or class method that returns both spaces; a class that has it is not made to be known."""
SETTINGS = ("vector", "register", "timeout_s")
"""Settings of `External` that a batched environment does not have."""


@dataclass(frozen=True)
class BatchedEnvironment(BatchClass):
    """A `SimulatorFactory` of such a class."""

    def make_simulator(
        self, *, n_envs: int, first_env: int, horizon: int, seed: int, device: Device, exploration: Exploration | None
    ) -> Simulator:
        """Return a simulator, see `SimulatorFactory`."""
        from warprun.simulation.batched import BatchStepper  # imports torch
        from warprun.simulation.stepped import SteppedSimulator

        stepper = BatchStepper(self, n_envs=n_envs, first_env=first_env, horizon=horizon, seed=seed, device=device)
        return SteppedSimulator(stepper, first_env=first_env, seed=seed, device=device, exploration=exploration)


def is_batched(made: object) -> bool:
    """Return whether the `environment` of a module is a class of batches, or a function that returns one.

    Its first argument is `n_envs`, or `reset` has an argument `mask`.
    """
    if not isinstance(made, type | FunctionType):
        return False
    first = first_argument(made)
    try:
        masked = "mask" in inspect.signature(cast(Any, made).reset).parameters if "reset" in dir(made) else False
    except (TypeError, ValueError):  # no function with a signature
        masked = False
    return masked or (first is not None and first.name == N_ENVS and "collect" not in dir(made))  # a Simulator has `collect`


def batched_environment(made: type, chosen: External, limit: int | None, name: str, module: str) -> BatchedEnvironment:
    """Return the environment of a class; makes a batch of one. Raises UserError."""
    for key in SETTINGS:
        if key in chosen.given():
            raise UserError(f"env.{key} is for environments with the interface of Gymnasium, and {name} steps a batch (`{N_ENVS}`)")
    if chosen.parallel.ranks_per_env > 1:
        ranks = chosen.parallel.ranks_per_env
        raise UserError(f"concurrency.ranks_per_env={ranks}: {name} is no parallel program; the first argument of one is `comm`")
    takes_id = "id" in inspect.signature(made).parameters
    if chosen.id is not None and not takes_id:
        raise UserError(f"env.id: the class {made.__name__} of {name} has no argument `id`")
    check_arguments(made, chosen.kwargs, f"{made.__name__} of {module}")
    arguments = dict(chosen.kwargs) | ({"id": chosen.id} if takes_id else {})
    title = chosen.id or name
    known = (made, title, repr(arguments), limit, chosen.channels, chosen.mask)
    if known not in _known:
        try:
            with waiting.on("making", title), staying():
                _known[known] = _examined(title, made, arguments, limit, chosen)
        except ContractError as error:
            raise UserError(f"environment {module}: {error}") from error
        except UserError:
            raise
        except Exception as error:  # the code of an environment can raise anything
            raise UserError(f"environment {module} cannot be made: {told(error)}") from error
    return _known[known]


_known: dict[tuple[type, str, str, int | None, str | None, bool], BatchedEnvironment] = {}
"""Environments that this process knows: a run asks several times."""


def _examined(title: str, made: type, arguments: Mapping[str, object], limit: int | None, chosen: External) -> BatchedEnvironment:
    first = first_argument(made)
    if first is None or first.name != N_ENVS:
        raise ContractError(
            f"reset of {made.__name__} takes `mask`, so it steps a batch: the first argument of the class must be `{N_ENVS}`"
        )
    if SPACES in dir(made):
        _refuse_incomplete(made, made, [member for member in MEMBERS if not member.endswith("_space")])
        return _known_as(title, made, arguments, made, _told_spaces(made, arguments), limit, chosen)
    blank = BatchedEnvironment(title, made, arguments, Spec((GroupSpec(GROUP, 1, Box(1), Box(1)),)), (1,), False)
    batch = blank.make(1, "cpu")
    try:
        _refuse_incomplete(made, batch, MEMBERS)
        return _known_as(title, made, arguments, batch, (batch.observation_space, batch.action_space), limit, chosen)
    finally:
        if isinstance(batch, Closes):
            batch.close()


def _refuse_incomplete(made: type, known: object, members: Sequence[str]) -> None:
    missing = [member for member in members if member not in dir(known)]
    if missing and isinstance(made, FunctionType):
        raise ContractError(
            f"{made.__name__} takes `{N_ENVS}`, so it must return a batch; the {type(known).__name__} that it returns has no"
            f" {', '.join(missing)}: a function that makes no batch needs another name for this argument"
        )
    if missing:
        raise ContractError(f"{made.__name__} has no {', '.join(missing)}; a batched environment has {', '.join(MEMBERS)}")


def _told_spaces(made: type, arguments: Mapping[str, object]) -> tuple[object, object]:
    """Return the spaces that a class tells for all its arguments, those with their defaults included."""
    try:
        bound = inspect.signature(made).bind_partial(**arguments)
    except TypeError as error:
        raise ContractError(f"env.kwargs: {made.__name__} {error}") from None
    bound.apply_defaults()
    given: dict[str, object] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            given |= value
        elif kind is not inspect.Parameter.VAR_POSITIONAL and name not in (N_ENVS, "device"):
            given[name] = value
    told = getattr(made, SPACES)(**given)
    if not isinstance(told, tuple) or len(told) != 2:
        raise ContractError(f"{SPACES} of {made.__name__} must return (observation_space, action_space); it returned {shown(told)}")
    return told


def _known_as(
    title: str,
    made: type,
    arguments: Mapping[str, object],
    known: object,
    spaces: tuple[object, object],
    limit: int | None,
    chosen: External,
) -> BatchedEnvironment:
    """Return the environment with these spaces; `known`, a batch or its class, says the rest."""
    observation, shape = _observation(spaces[0], chosen.channels)
    action, masked = _actions(spaces[1]), chosen.mask and MASK in dir(known)
    if masked and not action.mask_entries:
        raise ContractError(f"{MASK} of {made.__name__} is for choices, and its action_space is {shown(action)}")
    group = GroupSpec(GROUP, 1, observation, action, masked)
    arrays = getattr(known, "arrays", None)
    told_later = isinstance(arrays, property)  # of a class that has not been made
    if not told_later and not callable(getattr(arrays, "from_dlpack", None)):
        raise ContractError(
            f"arrays of {made.__name__} must be the module of its arrays (numpy, torch, jax.numpy or another with from_dlpack),"
            f" not {shown(arrays)}"
        )
    limit = getattr(known, "time_limit", None) if limit is None else limit
    if isinstance(limit, property):
        raise ContractError(f"time_limit of {made.__name__} is known only of a batch, and {SPACES} is asked of the class: write a number")
    has_state = "state" in dir(known)
    resumes = has_state or set(METHODS_OF_STATE) <= set(dir(known))
    of = known if isinstance(known, type) else type(known)
    note = unpaired(of, "its attribute `state` is saved in place of it") if has_state else unpaired(of)
    return BatchedEnvironment(title, made, arguments, Spec((group,), limit, early_truncation=True), shape, resumes, note)


def _observation(space: object, channels: str | None) -> tuple[Box, tuple[int, ...]]:
    """Return the space of the rows and the shape of one observation: of a Box that is one field, that of the field."""
    if isinstance(space, Box):
        if channels is not None:
            raise ContractError(f"env.channels={channels} is for spaces of Gymnasium; fields of a Box of warprun say it themselves")
        return space, space.fields[0].order if len(space.fields) == 1 and not space.rest else (space.size,)
    if type(space).__module__.startswith("gymnasium."):
        from gymnasium.spaces import Box as OfGymnasium  # an extra, which others do without

        from warprun.simulation.external.spaces import bounds_of, observations

        if isinstance(space, OfGymnasium):
            seen = observations(space, channels)
            return Box(seen.size, *bounds_of(space), seen.fields), tuple(map(int, space.shape)) or (1,)
    raise ContractError(f"observation_space must be a Box of warprun or Gymnasium, such as Box(2), not {shown(space)}")


def _actions(space: object) -> Space:
    if isinstance(space, Space):
        return space
    if type(space).__module__.startswith("gymnasium."):
        from warprun.simulation.external.spaces import actions

        return actions(cast(Any, space)).space
    raise ContractError(
        f"action_space must be a Discrete, a MultiDiscrete or a Box of warprun or Gymnasium, such as Discrete(2), not {shown(space)}"
    )
