"""A trained policy for programs: it takes observations and returns actions of the environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import nn

from warprun.errors import UserError, did_you_mean, shown
from warprun.learning.acting import Acting
from warprun.learning.normalization import normalized
from warprun.policies.actions import ACTIONS
from warprun.policies.observations import device_of, is_observation, rows_of, shape_of, tensor_of
from warprun.spec import GroupSpec, Spec

Array: TypeAlias = np.ndarray | torch.Tensor


@dataclass(frozen=True)
class Policy:
    """The policies of all groups of a run, as `warprun.load` returns them."""

    spec: Spec
    """Groups, their spaces and masks."""
    modules: Mapping[str, GroupPolicy]
    """The torch module of every group."""
    device: torch.device
    path: Path
    """The checkpoint."""
    env_steps: int
    """Environment steps of the training up to the checkpoint."""

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups."""
        return tuple(self.modules)

    def act(self, obs: object, mask: object = None, greedy: bool = True, rng: torch.Generator | int | None = None) -> Any:
        """Return actions for observations of the environment, numpy arrays for numpy arrays, tensors for tensors.

        `obs` is as the environment gives it, or rows [..., F], with any leading dimensions, none for a single observation; `mask` is
        [..., M] bool, True for an allowed action.
        Actions are integers [...] for Discrete and [..., C] for MultiDiscrete, counted from the `start` of the space, and float32 [..., C]
        within the bounds for Box. With several groups `obs` and `mask` are dicts by the name of the group, and so is the result; only the
        groups in `obs` act.

        `greedy`: the most probable actions, of SAC the tanh of the mean; else they are drawn, with `rng`, a seed or a generator (None:
        torch's own). DQN, DDPG and TD3 have no distribution to draw from. Raises UserError for what does not fit, and for a policy with
        memory, see `step`.
        """
        for name, module in self.modules.items():
            if module.carry:
                raise UserError(f"the policy of group {name!r} has memory: action, carry = policy.step(obs, carry), None at first")
        return self.step(obs, None, mask, greedy, rng)[0]

    def step(
        self, obs: object, carry: object = None, mask: object = None, greedy: bool = True, rng: torch.Generator | int | None = None
    ) -> tuple[Any, Any]:
        """Return actions as `act`, and the `carry` of the next step of the same episodes: what the policy remembers.

        `carry` None: all episodes begin. A carry is [..., H] float32, an array or a tensor as obs; where an episode
        begins, set it to 0. With several groups it is a dict by the name of the group, of which any can be left out.
        """
        generator = self._generator(rng)
        if isinstance(obs, Mapping) and not (len(self.modules) == 1 and is_observation(self.modules[self.groups[0]].group, obs)):
            return self._step_groups(obs, _by_group("mask", mask), _by_group("carry", carry), greedy, generator)
        if len(self.modules) > 1:
            raise UserError(f"the policy has the groups {', '.join(self.groups)}: give obs as a dict with their names")
        return self._step(self.groups[0], obs, carry, mask, greedy, generator)

    def _step_groups(
        self,
        obs: Mapping[str, object],
        mask: Mapping[str, object],
        carry: Mapping[str, object],
        greedy: bool,
        rng: torch.Generator | None,
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        for name in (*obs, *mask, *carry):
            if name not in self.modules:
                raise UserError(f"the policy has no group {shown(name)}; {did_you_mean(name, self.groups)}")
        taken = {name: self._step(name, own, carry.get(name), mask.get(name), greedy, rng) for name, own in obs.items()}
        return {name: action for name, (action, _) in taken.items()}, {name: after for name, (_, after) in taken.items()}

    @torch.no_grad()
    def _step(self, name: str, obs: object, carry: object, mask: object, greedy: bool, rng: torch.Generator | None) -> tuple[Array, Array]:
        module = self.modules[name]
        if not greedy and module.gives in ("values", "actions"):
            given = "values of actions" if module.gives == "values" else "an action"
            raise UserError(f"the network of group {name!r} gives {given}, not a distribution to draw from: use greedy=True")
        rows = read(module.group, obs, mask, self.device)
        output, after = module.step(rows.obs, read_carry(module.group, module.carry, carry, rows))
        action = module.best(output, rows.mask) if greedy else module.sampled(output, rows.mask, rng)
        action, after = (tensor.reshape((*rows.leading, *tensor.shape[1:])) for tensor in (action, after))
        if (device := device_of(obs)) is not None:
            return action.to(device), after.to(device)
        # [()] makes an integer of an array without dimensions.
        return action.cpu().numpy()[()], after.cpu().numpy()

    def _generator(self, rng: torch.Generator | int | None) -> torch.Generator | None:
        if isinstance(rng, torch.Generator | None):
            return rng
        if not isinstance(rng, int | np.integer):
            raise UserError(f"rng must be a seed, a torch.Generator or None, not {shown(rng)}")
        if not -(2**63) <= rng < 2**63:
            raise UserError(f"rng must be a seed of 64 bits, not {shown(rng)}")
        return torch.Generator(self.device).manual_seed(int(rng))


class GroupPolicy(nn.Module):
    """The torch module of a group: it normalises observations, computes the network, and chooses actions.

    `shift` and `scale` [F] normalise observations; None: the network gets them as they are.
    """

    shift: torch.Tensor | None
    scale: torch.Tensor | None

    def __init__(self, group: GroupSpec, acting: Acting, shift: torch.Tensor | None, scale: torch.Tensor | None) -> None:
        super().__init__()
        self.group = group
        self.gives = acting.gives
        self.layers = acting.layers
        self.carry, self.sequence = acting.carry, acting.sequence
        """See `Acting`."""
        self.network = acting.module
        self.register_buffer("shift", shift)
        self.register_buffer("scale", scale)
        self.actions = ACTIONS[group.action.kind](group.action, acting.gives)

    def forward(
        self, obs: torch.Tensor, mask: torch.Tensor | None = None, carry: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the best actions, the policy outputs [B, P] and the next carry [B, H] for `obs` [B, F], `mask` [B, M] bool and `carry`.

        A carry is what the policy remembers of an episode, H = 0 numbers without memory; None: the episode begins.

        Actions are [B] int64 for Discrete, [B, C] int64 for MultiDiscrete, and [B, C] float32 within the bounds for Box. An action that
        the mask forbids is never the best, unless it forbids all of a choice: then it is the first one.
        """
        output, carry = self.step(obs, obs.new_zeros((obs.shape[0], self.carry)) if carry is None else carry)
        return self.best(output, mask), output, carry

    def step(self, obs: torch.Tensor, carry: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the network gives, see `Acting.gives`, [B, P], and the next carry [B, H]."""
        if self.shift is not None and self.scale is not None:
            obs = normalized(obs, self.shift, self.scale)
        if self.carry:
            begins = torch.zeros_like(obs[None, :, 0], dtype=torch.bool)
            output, *_, carry = self.network.unroll(obs[None], carry, begins)  # type: ignore[operator]
            return output[0], carry
        given = self.network(obs)
        return given[0] if isinstance(given, tuple) else given, carry

    def policy_output(self, obs: torch.Tensor) -> torch.Tensor:
        """Return what the network gives at the beginning of an episode, see `Acting.gives`, [B, P]."""
        return self.step(obs, obs.new_zeros((obs.shape[0], self.carry)))[0]

    def best(self, output: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return the actions that the network prefers: the most probable ones, those of the largest value, or its
        bounded actions.
        """
        return self.actions.best(output, mask)

    def sampled(self, output: torch.Tensor, mask: torch.Tensor | None, rng: torch.Generator | None) -> torch.Tensor:
        """Return actions drawn from the distribution, squashed or not; only if `gives` is one."""
        return self.actions.sampled(output, mask, rng)


def _by_group(what: str, given: object) -> Mapping[str, object]:
    """Return the dict that a caller gave; an empty one for None. Raises UserError for anything else."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise UserError(f"{what} must be a dict by the name of the group, as obs is, not {shown(given)}")
    return given


class Rows(NamedTuple):
    """The observations and masks of a call, with all leading dimensions as one."""

    obs: torch.Tensor
    """[B, F] float32."""
    mask: torch.Tensor | None
    """[B, M] bool."""
    leading: tuple[int, ...]
    """The leading dimensions that became B."""


def read(group: GroupSpec, obs: object, mask: object | None, device: torch.device) -> Rows:
    """Return observations and a mask [..., M], or None, of a group as rows on a device. Raises UserError."""
    given = rows_of(group, obs)
    rows = given.to(device).reshape(-1, group.observation.size)
    if not bool(rows.isfinite().all()):
        raise UserError(f"obs of group {group.name!r} has NaN or infinity")
    leading = tuple(given.shape[:-1])
    return Rows(rows, _mask(group, mask, leading, device), leading)


def read_carry(group: GroupSpec, numbers: int, carry: object | None, rows: Rows) -> torch.Tensor:
    """Return a carry [..., H] that a program gave for observations, as rows [B, H]; zeros for None. Raises UserError."""
    if carry is None:
        return rows.obs.new_zeros((len(rows.obs), numbers))
    name = f"carry of group {group.name!r}"
    given = tensor_of(name, carry)
    if tuple(given.shape) != (*rows.leading, numbers):
        raise UserError(f"{name} must have the shape {[*rows.leading, numbers]}, not {shape_of(given)}")
    found = given.to(rows.obs.device, torch.float32).reshape(-1, numbers)
    if not bool(found.isfinite().all()):
        raise UserError(f"{name} has NaN or infinity")
    return found.view(len(rows.obs), numbers)


def _mask(group: GroupSpec, mask: object | None, leading: Sequence[int], device: torch.device) -> torch.Tensor | None:
    name, entries = f"mask of group {group.name!r}", group.action.mask_entries
    if mask is None:
        if group.masked:
            raise UserError(f"group {group.name!r} has action masks: give mask, of the shape [..., {entries}]")
        return None
    if not entries:
        raise UserError(f"{name}: the actions of a {type(group.action).__name__} have no mask")
    given = tensor_of(name, mask)
    if given.is_floating_point() or given.is_complex():
        raise UserError(f"{name} must be bool, True for an allowed action, not {given.dtype}")
    if tuple(given.shape) != (*leading, entries):
        raise UserError(f"{name} must have the shape {[*leading, entries]}, not {shape_of(given)}")
    rows = (given != 0).to(device).reshape(-1, entries)
    for number, choice in enumerate(rows.split(list(group.action.choices), -1)):
        forbidden = ~choice.any(-1)
        if bool(forbidden.any()):
            where = f" in choice {number}" if len(group.action.choices) > 1 else ""
            raise UserError(f"{name} allows no action{where}, in row {int(forbidden.nonzero()[0])}")
    return rows
