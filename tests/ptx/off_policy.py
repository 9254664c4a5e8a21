"""The gradient steps of off-policy agents on the machine beside float64: losses, their gradients, and priorities."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from tests.agents import build
from tests.learning.helpers import environment, rollout
from tests.learning.torch_replay import TorchReplay
from tests.ptx.learning import Found
from tests.simulation.rollouts import Arrays
from warprun.algorithms.dqn import quantiles_loss, values_loss
from warprun.environment import Box, Discrete, Environment, Space
from warprun.learning.descent import Terms
from warprun.learning.kernels import choose
from warprun.learning.kernels.arguments import Drawn
from warprun.learning.kernels.cuda import gradient as cuda_gradient
from warprun.learning.kernels.cuda import updates as cuda_updates
from warprun.learning.kernels.cuda.replay import CudaReplay
from warprun.learning.kernels.cuda.updates import CudaKernels
from warprun.learning.kernels.steps import TileStep
from warprun.learning.off_policy import OffPolicyLearner
from warprun.learning.replay import Replay, TransitionBatch
from warprun.learning.settings.networks import LayersConfig
from warprun.learning.settings.off_policy import OffPolicyConfig, ReplayConfig
from warprun.spec import Field

NETWORKS = {"relu 17-5": LayersConfig(hidden=[17, 5]), "tanh 130-70": LayersConfig(hidden=[130, 70], activation="tanh")}

CASES: dict[str, tuple[str, Space, dict[str, Any]]] = {
    "dqn": ("dqn", Discrete(3), {}),
    "plain dqn": ("dqn", Discrete(3), {"double": False, "max_grad_norm": None, "n_step": 3, "normalize_obs": True}),
    "prioritized dqn": ("dqn", Discrete(3), {"replay": ReplayConfig(200, prioritized=True), "target_update_interval": 2, "tau": 0.3}),
    "dueling dqn": ("dqn", Discrete(3), {"dueling": True, "value_rescaling": 0.01}),
    "quantiles": ("dqn", Discrete(3), {"quantiles": 5, "replay": ReplayConfig(200, prioritized=True)}),
    "dueling quantiles": ("dqn", Discrete(2), {"quantiles": 4, "dueling": True, "double": False}),
    "ddpg": ("ddpg", Box(2), {"learning_rate_end": 1e-5}),
    "td3": ("td3", Box(2), {"network": LayersConfig(hidden=[24, 17], activation="tanh"), "max_grad_norm": 0.1}),
    "sac": ("sac", Box(2), {"network": LayersConfig(hidden=[24, 17], activation="tanh"), "max_grad_norm": 0.1}),
    "sac prioritized": ("sac", Box(1), {"replay": ReplayConfig(200, prioritized=True), "target_update_interval": 2, "n_step": 2}),
    "sac constant": ("sac", Box(1), {"temperature_learning_rate": None, "temperature": 0.2, "normalize_obs": True}),
}


def environment_of(space: Space) -> Environment:
    """Return an environment of one group with an action space."""
    env = environment(one=Box(1))
    object.__setattr__(env.groups[0], "action", space)
    return env


@contextmanager
def cuda_steps() -> Iterator[None]:
    """Let kernels for a GPU compute what those of a CPU would in agents that are made in this context."""

    def kernels_of(trained: Any, config: OffPolicyConfig, *_: Any) -> CudaKernels:
        return CudaKernels(trained, config.batch_size)

    with patch.object(choose, "kernels_of", kernels_of), patch.object(choose, "operations_of_replay", lambda context: CudaReplay):
        yield


def after_updates(case: str, by_kernels: bool) -> Arrays:
    """Return the state of an agent after two updates, and its metrics."""
    name, space, settings = CASES[case]
    env = environment_of(space)
    given = {"learning_starts": 0, "batch_size": 37, "replay": ReplayConfig(capacity=200), "network": LayersConfig(hidden=[9, 8])}
    given |= {"utd_ratio": 2 / 30, **settings}
    with cuda_steps() if by_kernels else nullcontext():
        agent = build(name, env, fused=by_kernels, **given)
    for update in range(2):
        metrics = agent.update(rollout(env, horizon=6, n_envs=5, seed=update), update / 2)
    found = agent.state() | {f"metrics/{key}": value for key, value in metrics.items()}
    return {key: np.array(float(value)) if isinstance(value, float) else value.numpy().copy() for key, value in found.items()}


def updates(case: str) -> Found:
    """Let an agent take two updates by kernels, beside the same by torch."""
    return after_updates(case, True), after_updates(case, False)


def learner_of(case: str, batch_size: int, network: str) -> OffPolicyLearner[Any]:
    """Return a learner with CUDA kernels for two multiprocessors and with a full replay memory."""
    name, space, settings = CASES[case]
    given = {"learning_starts": 10**6, "batch_size": batch_size, "replay": ReplayConfig(capacity=200), "utd_ratio": 0.1, **settings}
    few = [patch.object(module, "multiprocessors", lambda device: 2) for module in (cuda_gradient, cuda_updates)]
    with cuda_steps(), few[0], few[1]:
        agent = build(name, environment_of(space), fused=True, **given | {"network": NETWORKS[network]})
    for seed in range(6):
        agent.update(rollout(environment_of(space), horizon=8, n_envs=5, seed=seed), 0.0)
    (learner,) = agent.learners
    for each in learner.trained.values():
        each.parameters += 0.1 * torch.randn(each.parameters.shape, generator=torch.Generator().manual_seed(2))
    learner.schedule(0.0)
    return learner


def gradients(case: str, batch_size: int, network: str) -> Found:
    """Compute the gradients of all networks of an agent, the means of the terms, and the errors."""
    learner = learner_of(case, batch_size, network)
    batch = learner.replay.draw(learner.number.tensor)
    batch = batch._replace(weight=0.5 + torch.rand(batch_size, generator=torch.Generator().manual_seed(3)))
    found: dict[str, np.ndarray] = {}
    for name in ("values", "critics", "actor"):
        step = getattr(learner, f"{name}_step", None)
        if isinstance(step, TileStep):
            error = torch.zeros(batch_size)
            found[name] = torch.cat(step.gradient(Drawn.of(batch, error), batch_size)).double().numpy().copy()
            if name != "actor":
                found["error"] = error.double().numpy().copy()
    exact = exact_gradients(learner, batch)
    for name in found.keys() - {"error"}:
        for arrays in (found, exact):
            arrays[name], arrays[f"terms of {name}"] = arrays[name][:-2], arrays[name][-2:]
    scales = {name: np.abs(exact[name]).max() for name in ("values", "critics", "actor") if name in exact}
    return tuple({key: array / scales.get(key, 1.0) for key, array in arrays.items()} for arrays in (found, exact))  # type: ignore[return-value]


def exact_gradients(learner: Any, batch: TransitionBatch) -> dict[str, np.ndarray]:
    """Return the same by autograd of the losses of torch, in float64."""
    for each in learner.trained.values():
        for network in (each.network, getattr(each, "target", None)):
            if network is not None:
                own_double(network)
    batch = batch._replace(**{name: part.double() for name, part in batch._asdict().items() if part.is_floating_point()})
    losses: dict[str, Callable[[], Terms]] = {}
    if hasattr(learner, "values"):
        of_values = values_loss if learner.config.quantiles is None else quantiles_loss
        losses["values"] = lambda: of_values(learner.config, learner.values, batch)
    elif hasattr(learner, "temperature"):
        losses["critics"] = lambda: learner.critics_loss(batch, batch.next_obs, None)
        losses["actor"] = lambda: learner.actor_loss(batch, batch.obs, None)
    else:
        losses["critics"] = lambda: learner.critics_loss(batch, None, None)
        losses["actor"] = lambda: learner.actor_loss(batch, None, None)
    found: dict[str, np.ndarray] = {}
    for name, loss in losses.items():
        terms = loss()
        flat = torch.autograd.grad(terms.loss, list(getattr(learner, name).network.parameters()))
        value = terms.value.mean() if not (name == "actor" and not hasattr(learner, "temperature")) else torch.zeros(())
        found[name] = torch.cat([*(g.reshape(-1) for g in flat), value.double().view(1).detach(), terms.loss.view(1).detach()]).numpy()
        if name != "actor":
            found["error"] = terms.of_rows.detach().numpy()
    return found


def own_double(network: nn.Module) -> None:
    for name, parameter in [*network.named_parameters()]:
        owner, _, leaf = name.rpartition(".")
        setattr(network.get_submodule(owner), leaf, nn.Parameter(parameter.detach().double()))


REPLAYS: dict[str, dict[str, Any]] = {
    "uniform": {"capacity": 200},
    "returns of 3 steps": {"capacity": 107, "n_step": 3},
    "prioritized": {"capacity": 330, "prioritized": True},
    "smaller than a rollout": {"capacity": 47, "prioritized": True, "n_step": 2},
    "two sources": {"capacity": 300, "prioritized": True, "n_step": 3, "sources": 2},
    "bytes": {"capacity": 90, "bytes": True},
}


def replay_memory(case: str) -> Found:
    """Store rollouts, draw batches and change priorities; return all that is left, beside that of torch."""
    given = dict(REPLAYS[case])
    sources = given.pop("sources", None)
    env = environment(one=Discrete(4))
    group = env.spec.groups[0]
    if given.pop("bytes", False):
        group = replace(group, observation=Box(3, fields=(Field(0, (1, 3), kind="image"),)))
    settings = OffPolicyConfig(batch_size=23, n_step=given.pop("n_step", 1), gamma=0.9, replay=ReplayConfig(**{"beta": 0.5, **given}))
    arrays: Found = ({}, {})
    for found, form in zip(arrays, (CudaReplay, TorchReplay), strict=True):
        memory = Replay(settings, group, torch.device("cpu"), 5, 7, sources, form)
        for n in range(5):
            taken = rollout(env, horizon=5, n_envs=5, seed=n)
            if group.observation.bytes:
                for obs in (taken.groups["one"].obs, taken.groups["one"].final_obs):
                    obs.copy_((obs.abs() * 100).round().clamp(max=164) / 255)
            taken.continues.fill_(n != 3)
            taken.source.fill_(n % 2 if sources else 0)
            memory.advance(5)
            memory.store(taken, taken.groups["one"])
            batch = memory.draw(torch.tensor(n))
            found |= {f"{name} {n}": part.double().numpy().copy() for name, part in batch._asdict().items()}
            if settings.replay.prioritized:
                error = torch.randn(23, generator=torch.Generator().manual_seed(n))
                memory.update_priorities(batch.row.clone(), error)
        found |= {name: tensor.double().numpy().copy() for name, tensor in memory.tensors().items()}
        rows = memory.place.rows
        for name in memory.ring._fields:
            found[name] = found[name][:rows]
    return arrays


def parts() -> dict[str, Callable[[], Found]]:
    """Return the parts by name."""
    cases = [
        ("dqn", 37),
        ("plain dqn", 1),
        ("dueling dqn", 37),
        ("quantiles", 70),
        ("dueling quantiles", 5),
        ("td3", 70),
        ("ddpg", 37),
        ("sac", 37),
        ("sac", 100),
        ("sac constant", 5),
    ]
    replays = {f"replay memory: {case}": partial(replay_memory, case) for case in REPLAYS}
    whole = {f"updates: {case}": partial(updates, case) for case in CASES}
    return (
        replays
        | whole
        | {
            f"{case}, batch of {batch}, {network}": partial(gradients, case, batch, network)
            for case, batch in cases
            for network in NETWORKS
        }
    )
