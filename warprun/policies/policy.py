"""A trained policy for programs: observations in, actions of the environment out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from warprun.errors import UserError, did_you_mean, shown
from warprun.policies.group_policy import GroupPolicy
from warprun.policies.inputs import read, read_carry
from warprun.spec import Spec


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

    def act(self, obs: Any, mask: Any = None, greedy: bool = True, rng: torch.Generator | int | None = None) -> Any:
        """Return actions for observations of the environment, numpy arrays for numpy arrays, tensors for tensors.

        `obs` is [..., F] with any leading dimensions, none for a single observation, and `mask` [..., M] bool, True for an allowed action.
        Actions are integers [...] for Discrete and [..., C] for MultiDiscrete, and float32 [..., C] within the bounds for Box. With several
        groups `obs` and `mask` are dicts by the name of the group, and so is the result; only the groups in `obs` act.

        `greedy`: the most probable actions; else they are drawn, with `rng`, a seed or a generator (None: torch's own). DQN, DDPG and TD3
        have no distribution to draw from. Raises UserError for what does not fit, and for a policy with memory, see `step`.
        """
        for name, module in self.modules.items():
            if module.carry:
                raise UserError(f"the policy of group {name!r} has memory: action, carry = policy.step(obs, carry), None at first")
        return self.step(obs, None, mask, greedy, rng)[0]

    def step(self, obs: Any, carry: Any = None, mask: Any = None, greedy: bool = True, rng: torch.Generator | int | None = None) -> Any:
        """Return actions as `act`, and what the policy remembers after this step: the `carry` of the next step of the same episodes.

        None: all episodes begin. A carry is [..., H] float32, an array or a tensor as obs; where an episode begins, set it to 0. With
        several groups it is a dict by the name of the group, of which any can be left out.
        """
        generator = self._generator(rng)
        if isinstance(obs, Mapping):
            return self._step_groups(obs, {} if carry is None else carry, {} if mask is None else mask, greedy, generator)
        if len(self.modules) > 1:
            raise UserError(f"the policy has the groups {', '.join(self.groups)}: give obs as a dict with their names")
        return self._step(self.groups[0], obs, carry, mask, greedy, generator)

    def _step_groups(
        self, obs: Mapping[str, Any], carry: Any, mask: Any, greedy: bool, rng: torch.Generator | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        for what, given in {"mask": mask, "carry": carry}.items():
            if not isinstance(given, Mapping):
                raise UserError(f"{what} must be a dict by the name of the group, as obs is, not {shown(given)}")
        for name in (*obs, *mask, *carry):
            if name not in self.modules:
                raise UserError(f"the policy has no group {shown(name)}; {did_you_mean(name, self.groups)}")
        taken = {name: self._step(name, own, carry.get(name), mask.get(name), greedy, rng) for name, own in obs.items()}
        return {name: action for name, (action, _) in taken.items()}, {name: after for name, (_, after) in taken.items()}

    @torch.no_grad()
    def _step(self, name: str, obs: Any, carry: Any, mask: Any, greedy: bool, rng: torch.Generator | None) -> tuple[Any, Any]:
        module = self.modules[name]
        if not greedy and module.gives != "distribution":
            given = "values of actions" if module.gives == "values" else "an action"
            raise UserError(f"the network of group {name!r} gives {given}, not a distribution to draw from: use greedy=True")
        rows = read(module.group, obs, mask, self.device)
        output, after = module.step(rows.obs, read_carry(module.group, module.carry, carry, rows))
        action = module.best(output, rows.mask) if greedy else module.sampled(output, rows.mask, rng)
        action, after = (tensor.reshape((*rows.leading, *tensor.shape[1:])) for tensor in (action, after))
        if isinstance(obs, torch.Tensor):
            return action.to(obs.device), after.to(obs.device)
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
