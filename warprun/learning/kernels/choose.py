"""The choice of what computes the operations of an agent: torch, or kernels for the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeAlias, cast

import torch
from torch import nn

from warprun.kernels.mlp import Network
from warprun.learning.descent import AnyOptimized, Due, Taken, Terms, TorchStep
from warprun.learning.interfaces import Context
from warprun.learning.kernels.cpu import recurrent as cpu_recurrent
from warprun.learning.kernels.cpu.acting import CpuActing
from warprun.learning.kernels.cpu.gradient import CpuGradient, stack_of, tiles_together
from warprun.learning.kernels.cpu.memory import MemoryGradient
from warprun.learning.kernels.cpu.minibatches import CpuMinibatches
from warprun.learning.kernels.cpu.optimizer import CpuAdam
from warprun.learning.kernels.cpu.replay import CpuReplay
from warprun.learning.kernels.cpu.returns import CpuReturns
from warprun.learning.kernels.cpu.statistics import CpuObservations, CpuRewards
from warprun.learning.kernels.cpu.updates import CpuKernels
from warprun.learning.kernels.policy_gradient import PolicyGradient, tile_loss_of
from warprun.learning.kernels.steps import KernelSteps
from warprun.learning.kernels.tile_loss import MeanLoss, TileLoss
from warprun.learning.operations import Operations, TorchOperations, average, averaging
from warprun.learning.optimizers import Adam, Optimizer
from warprun.learning.replay import Replay, ReplayOperations
from warprun.learning.settings.off_policy import OffPolicyConfig
from warprun.spec import GroupSpec, Space

if TYPE_CHECKING:
    from warprun.learning.kernels.cuda.optimizer import CudaAdam
    from warprun.learning.kernels.cuda.updates import CudaKernels

SHARE_TILES = 4
"""Tiles of a share of a policy's gradient: the sums over the columns of so many cost a quarter of those of single ones."""

P = ParamSpec("P")
Act: TypeAlias = Callable[[torch.Tensor, torch.Tensor], None]


def recurrence(module: nn.Module, context: Context) -> None:
    """Let kernels compute the recurrent layers of the networks in `module` if the plan says so; torch computes the others."""
    if context.plan.recurrent.by == "torch":
        return
    if context.device.type == "cpu":
        return cpu_recurrent.compute_by_kernels(module)
    # Imports Numba's CUDA part, which may be absent where there is no GPU.
    from warprun.learning.kernels.cuda import recurrent as cuda_recurrent

    cuda_recurrent.compute_by_kernels(module)


# On policy ----------------------------------------------------------------------------------------------------------


def operations(reference: TorchOperations, context: Context) -> Operations:
    """Return the operations of a group as the plan says: those of torch, or kernels in the place of some or all of them."""
    plan = context.plan
    if plan.networks.by == "kernels" and context.device.type == "cpu":
        return on_cpu(reference, context)
    if plan.gradients.by == "kernels":
        return on_cuda(reference)
    found, step = reference.operations(), adam_of(reference, context)
    return found._replace(step=step.step, step_of_many=averaging(step.step, average)) if step else found


def on_cpu(reference: TorchOperations, context: Context) -> Operations:
    """Return the operations on a CPU, and let another process compile their kernels; the plan says whether torch computes gradients."""
    policy, group, threads = reference.policy, reference.group, context.threads
    network = policy.kernel_network()
    returns = CpuReturns(network, group, reference.config, threads)
    returns.compile_ahead()
    acting = CpuActing(network, threads)
    found = reference.operations()._replace(advantages=returns)
    found = found._replace(remember=acting.remember) if policy.carry else found._replace(act=acting, keep=acting.keep)
    if step := adam_of(reference, context):
        step.compile_ahead()
        found = found._replace(step=step.step)
    if reference.config.passes() * reference.config.steps_per_pass() > 1:
        steps = CpuMinibatches(reference)
        steps.compile_ahead()
        found = found._replace(permutation=steps.permutation, adapt=steps.adapt, step_of_many=averaging(found.step, steps.average))
        found = found if policy.carry else found._replace(pick=steps.pick)
    if policy.normalizer:
        observations = CpuObservations(policy.normalizer, threads)
        observations.compile_ahead()
        found = found._replace(observe=observations)
    if reference.reward_normalizer and not group.leaves:
        rewards = CpuRewards(reference.reward_normalizer, group.name, threads)
        rewards.compile_ahead()
        found = found._replace(rewards=rewards)
    if context.plan.gradients.by == "kernels":
        loss = tile_loss_of(policy.space, reference.loss, reference.entropy_coef, network.log_std, network.log_std)
        gradient = MemoryGradient(policy, loss, threads) if policy.carry else tile_gradient(network, loss, policy.space, context)
        gradient.compile_ahead()  # wanted last, because it takes longest: this process begins with it, see `ahead.share`
        found = found._replace(gradient=gradient)
    keeps = context.plan.keeps and not policy.carry and reference.config.kept_activations(group, context.n_envs, network.rows, threads)
    return found._replace(kept=network.rows if keeps else 0)


def tile_gradient(network: Network, loss: TileLoss, space: Space, context: Context) -> PolicyGradient:
    """Return the gradient of a policy without memory on a CPU."""
    together = min(tiles_together(network.rows), SHARE_TILES)
    return PolicyGradient(CpuGradient([stack_of(network, context.threads)], loss, context.threads, together), space, context.device)


def adam_of(reference: TorchOperations, context: Context) -> CpuAdam | CudaAdam | None:
    """Return what `adam` does for a group."""
    policy, config = reference.policy, reference.config
    return adam(reference.optimizer, policy.parameters, reference.learning_rate, config.max_grad_norm, context)


def on_cuda(reference: TorchOperations) -> Operations:
    """Return the operations on a GPU, and let other processes compile their kernels.

    Statistics of several processes or of several sources of rollouts stay with torch.
    """
    # Imports Numba's CUDA part, which may be absent where there is no GPU.
    from warprun.learning.kernels.cuda.gradient import COLUMNS, CudaGradient, Packed, Placed, gradient_rows
    from warprun.learning.kernels.cuda.minibatches import CudaMinibatches
    from warprun.learning.kernels.cuda.optimizer import CudaAdam
    from warprun.learning.kernels.cuda.returns import CudaReturns
    from warprun.learning.kernels.cuda.statistics import THREADS, CudaObservations, CudaRewards
    from warprun.simulation.cuda_layers import chosen

    policy, group, rewards = reference.policy, reference.group, reference.reward_normalizer
    network = policy.kernel_network()
    normalizes = rewards and rewards.statistics.communicator.size == 1 and rewards.sources == 1 and not group.leaves
    returns = CudaReturns(network, reference, CudaRewards(rewards, group.name) if rewards and normalizes else None)
    loss = tile_loss_of(policy.space, reference.loss, reference.entropy_coef, 0, network.log_std)
    layers = chosen(rows := gradient_rows(network.rows, loss.scratch, loss.terms))
    packed = Packed(*Placed.of(network), layers)
    of_tiles = CudaGradient([packed], network.rows, loss, layers, layers.columns_for(rows, COLUMNS), bounded=True)
    gradient = PolicyGradient(of_tiles, policy.space, reference.entropy_coef.device)
    returns.compile_ahead()
    gradient.compile_ahead()
    found = reference.operations()._replace(advantages=returns, gradient=gradient)
    if reference.config.passes() * reference.config.steps_per_pass() > 1:
        steps = CudaMinibatches(reference)
        steps.compile_ahead()
        found = found._replace(permutation=steps.permutation, pick=steps.pick, adapt=steps.adapt)
    if isinstance(reference.optimizer, Adam):
        given = reference.optimizer, policy.parameters, reference.learning_rate, reference.config.max_grad_norm
        optimizer = CudaAdam(*given, sums=of_tiles.sums, terms=len(reference.loss.terms) + 1)
        optimizer.compile_ahead()
        found = found._replace(step=optimizer.step, step_of_many=optimizer.step_of_many)
    if policy.normalizer and policy.normalizer.statistics.communicator.size == 1 and group.observation.size <= THREADS:
        observations = CudaObservations(policy.normalizer)
        observations.compile_ahead()
        found = found._replace(observe=observations)
    if normalizes:
        found = found._replace(rewards=lambda trajectory: trajectory.groups[group.name].reward)
    return found


def adam(
    optimizer: Optimizer, parameters: torch.Tensor, rate: torch.Tensor, max_norm: float | None, context: Context
) -> CpuAdam | CudaAdam | None:
    """Return the kernels that clip and take a step of Adam, if the plan says so; None: torch does.

    torch reads and writes the parameters a dozen times, and lets moments of units without gradient become denormal numbers.
    """
    if context.plan.optimizer.by == "torch" or not isinstance(optimizer, Adam):
        return None
    if context.device.type == "cpu":
        return CpuAdam(optimizer, parameters, rate, max_norm, threads=context.threads)
    from warprun.learning.kernels.cuda.optimizer import CudaAdam

    return CudaAdam(optimizer, parameters, rate, max_norm)


# Off policy ---------------------------------------------------------------------------------------------------------


def replay_memory(config: OffPolicyConfig, group: GroupSpec, context: Context, seed: int) -> Replay:
    """Return the replay memory of a group; kernels compute it, whatever the plan."""
    return Replay(config, group, context.device, context.n_envs, seed, context.sources, operations_of_replay(context))


def operations_of_replay(context: Context) -> Callable[[Replay], ReplayOperations]:
    """Return what makes the operations on replay memory on the device."""
    if context.device.type == "cpu":
        return CpuReplay
    from warprun.learning.kernels.cuda.replay import CudaReplay

    return CudaReplay


class GradientSteps:
    """Makes the gradient steps of one learner, by kernels where the plan says so and the algorithm states its loss for them."""

    def __init__(self, trained: Iterable[AnyOptimized], group: GroupSpec, config: OffPolicyConfig, context: Context) -> None:
        """`trained`: what the learner of a group trains."""
        self._trained, self._group, self._config, self._context = list(trained), group, config, context

    def __call__(
        self, trained: AnyOptimized, loss: Callable[P, Terms], in_kernels: TileLoss | MeanLoss | None
    ) -> Callable[Concatenate[Due, P], Taken]:
        """Return the gradient step of a network on a loss, that of torch and, if there is one, the same for kernels."""
        if in_kernels and self._context.plan.gradients.by == "kernels":
            return cast("Callable[Concatenate[Due, P], Taken]", self._kernels.step(trained, in_kernels))
        step = adam(trained.optimizer, trained.parameters, trained.learning_rate.tensor, trained.max_norm, self._context)
        return TorchStep(loss, trained, step.step if step else trained.step, self._config.tau, self._context.communicator)

    @cached_property
    def _kernels(self) -> KernelSteps:
        config, context = self._config, self._context
        return KernelSteps(kernels_of(self._trained, config, context), self._group, config, context)


def kernels_of(trained: Iterable[AnyOptimized], config: OffPolicyConfig, context: Context) -> CpuKernels | CudaKernels:
    """Return the kernels of the device for what a learner trains."""
    if context.device.type == "cpu":
        return CpuKernels(trained, config.batch_size, context.threads)
    from warprun.learning.kernels.cuda.updates import CudaKernels

    return CudaKernels(trained, config.batch_size)


def acting(network: Callable[[], Network], reference: Act, context: Context) -> Act:
    """Return what writes the policy outputs [R, P] of observations [R, F] between two steps: kernels on a CPU, or `reference`."""
    by_kernels = context.plan.networks.by == "kernels" and context.device.type == "cpu"
    return CpuActing(network(), context.threads) if by_kernels else reference
