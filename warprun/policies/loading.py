"""Read the policy of a run from its folder: config.yaml and a checkpoint. The code that trains and the environment are not imported."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Literal

import torch

from warprun.config.saved import agent_settings
from warprun.errors import UserError, did_you_mean, shown
from warprun.learning.acting import Acting
from warprun.learning.networks import seeded
from warprun.learning.settings.agent import AgentConfig, check_groups, check_settings, group_config
from warprun.policies.policy import GroupPolicy, Policy
from warprun.run_folder import LINES
from warprun.runs import checkpoint as checkpoints
from warprun.runs import rundir
from warprun.runs.saved_spec import from_data
from warprun.runs.sealing import open_networks
from warprun.spec import GroupSpec, Spec
from warprun.state import restore


def load(
    run: str | os.PathLike[str], checkpoint: Literal["last", "best"] = "last", *, trust: bool = False, device: str | torch.device = "cpu"
) -> Policy:
    """Return the trained policy of a run folder.

    `checkpoint` selects the newest checkpoint or the one with the best evaluation. `trust`: a network of the user may run code that lies in
    the folder, even if no run of this user put it there. Raises UserError.
    """
    if checkpoint not in LINES:
        raise UserError(f"checkpoint={shown(checkpoint)}: {did_you_mean(checkpoint, list(LINES))}")
    folder, where = Path(run), _device(device)
    agent = open_networks(folder, agent_settings(rundir.read_config(folder)), trust)
    check_settings(agent)
    if not agent.acting:
        raise UserError(f"{folder}: only the agent {agent.name} itself can act; its settings name nothing else that does (`acting`)")
    saved = checkpoints.load(folder, LINES[checkpoint])
    spec = _spec(saved)
    check_groups(agent, [group.name for group in spec.groups])
    size = saved.path.stat().st_size
    checkpoints.check_size(agent, size)
    for group in spec.groups:
        checkpoints.check_size_of_group(group_config(agent, group.name), group, size)
    modules = {group.name: _group_policy(agent, group, saved).to(where).eval().requires_grad_(False) for group in spec.groups}
    return Policy(spec, modules, where, saved.path, saved.env_steps)


def _spec(saved: checkpoints.Loaded) -> Spec:
    try:
        return from_data(saved.meta.get("spec"))
    except ValueError as error:
        raise UserError(f"{saved.path}: {error}") from None


def _group_policy(agent: AgentConfig, group: GroupSpec, saved: checkpoints.Loaded) -> GroupPolicy:
    module, _, function = agent.acting.partition(":")
    # First weights are drawn, and the numbers of the program stay as they are.
    acting: Acting = seeded(0, lambda: getattr(import_module(module), function)(group_config(agent, group.name), group))
    before = f"agent/{group.name}/"
    try:
        restore(acting.tensors, {name: saved.tensors[f"{before}{name}"] for name in acting.tensors if f"{before}{name}" in saved.tensors})
    except UserError as error:
        raise UserError(f"{saved.path} does not fit the config of the run: {error}") from None
    names = [f"{before}obs/{name}" for name in ("shift", "scale")]
    statistics = [saved.tensors[name].float() if name in saved.tensors else None for name in names]
    if any(tensor is not None and tensor.shape != (group.observation.size,) for tensor in statistics):
        raise UserError(f"{saved.path} does not fit the config of the run: statistics of observations of another size")
    return GroupPolicy(group, acting, *statistics)


def _device(device: str | torch.device) -> torch.device:
    try:
        found = torch.device(device)
        torch.zeros(0, device=found)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise UserError(f"device={shown(device)}: {str(error).splitlines()[0]}") from None
    return found
