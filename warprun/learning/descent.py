"""Gradient descent of the off-policy agents: networks with their optimizers, and gradient steps on losses by torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Generic, NamedTuple, ParamSpec, TypeVar

import torch
from torch import nn

from warprun.learning.communicator import Communicator, mean_
from warprun.learning.networks import buffers, flatten_parameters
from warprun.learning.optimizers import OPTIMIZERS, clip_norm
from warprun.learning.settings.off_policy import OffPolicyConfig
from warprun.state import setting

N_co = TypeVar("N_co", bound=nn.Module, covariant=True)
P = ParamSpec("P")


class DeviceScalar:
    """A number that the host sets and a device reads: a tensor [], int64 or float64 as `value` is int or float.

    The tensor stays the same one: a CUDA graph repeats operations with the Python numbers of its capture, but reads
    tensors again.
    """

    def __init__(self, value: float, device: torch.device) -> None:
        self.tensor = torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64, device=device)
        self.set = setting(self.tensor)
        """Set the number for the operations that are launched from now on."""


class Optimized(Generic[N_co]):
    """A network and its optimizer; the parameters are one flat tensor [P]."""

    def __init__(self, network: N_co, config: OffPolicyConfig, rate: float, device: torch.device) -> None:
        """`rate`: the learning rate; the optimizer and the limit of the gradient's norm are those of `config`."""
        self.network: N_co = network.to(device).eval()
        self.parameters = flatten_parameters(self.network)
        self.layer_parameters = list(self.network.parameters())
        """The parameters by layer, views of `parameters`."""
        self.optimizer = OPTIMIZERS[config.optimizer.name](self.parameters, config.optimizer)
        self.initial_learning_rate = rate
        self.learning_rate = DeviceScalar(float(rate), device)
        self.max_norm = config.max_grad_norm

    def scale_learning_rate(self, scale: float) -> None:
        """Set the learning rate to `scale` times the initial one."""
        self.learning_rate.set(self.initial_learning_rate * scale)

    def gradient(self, loss: torch.Tensor, communicator: Communicator, rows: int) -> torch.Tensor:
        """Return the gradient [P] of a loss [] that is a mean over `rows` rows: the mean over the rows of all processes."""
        # Networks of the user may have layers that they do not use.
        gradients = torch.autograd.grad(loss, self.layer_parameters, allow_unused=True, materialize_grads=True)
        gradient = torch.cat([g.reshape(-1) for g in gradients])
        mean_(communicator, rows, gradient)
        return gradient

    def step(self, gradient: torch.Tensor) -> torch.Tensor:
        """Move the parameters against `gradient` [P], clipped in place; return the norm it had, []."""
        norm = clip_norm(gradient, self.max_norm)
        self.optimizer.step(self.parameters, gradient, self.learning_rate.tensor)
        return norm

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the state by name."""
        found = {"parameters": self.parameters} | buffers(self.network)
        return found | {f"optimizer/{name}": tensor for name, tensor in self.optimizer.tensors().items()}


AnyOptimized = Optimized[nn.Module]


class Trained(Optimized[N_co]):
    """A network with its optimizer and its target network, whose parameters are one flat tensor [P], too."""

    def __init__(self, network: N_co, config: OffPolicyConfig, rate: float, device: torch.device) -> None:
        super().__init__(network, config, rate, device)
        self.target: N_co = copy.deepcopy(self.network).requires_grad_(False)
        self.target_parameters = flatten_parameters(self.target)

    def update_target(self, tau: float) -> None:
        """Move the parameters of the target network towards those of the network, 1 copies them; buffers are copied."""
        self.target_parameters.lerp_(self.parameters, tau)
        for own, trained in zip(self.target.buffers(), self.network.buffers(), strict=True):
            own.copy_(trained)

    def tensors(self) -> dict[str, torch.Tensor]:
        of_target = {f"target_{name}": tensor for name, tensor in buffers(self.target).items()}
        return super().tensors() | {"target": self.target_parameters} | of_target


class Due(NamedTuple):
    """The steps of an update beside that of the value networks."""

    target: bool
    """Move the target networks."""
    actor: bool = True
    """Take a gradient step of the actor."""


class Terms(NamedTuple):
    """A loss of a batch, and what is to be known of it."""

    loss: torch.Tensor
    """[]: a mean over the rows of the batch."""
    value: torch.Tensor
    """Numbers whose mean is shown beside the loss, of any shape."""
    of_rows: torch.Tensor
    """[R], without gradients: temporal-difference errors, or the log-densities of actions."""


class Taken(NamedTuple):
    """A gradient step that was taken, with means over all processes; the next one may overwrite the tensors."""

    loss: torch.Tensor
    """[]."""
    value: torch.Tensor
    """[]: mean of `Terms.value`."""
    of_rows: torch.Tensor
    """[R], see `Terms`; kernels give temporal-difference errors alone."""
    norm: torch.Tensor
    """[]: norm of the gradient before clipping."""


class TorchStep(Generic[P]):
    """A gradient step of one network on a loss by torch, with the step of its target network when that is due."""

    def __init__(
        self,
        loss: Callable[P, Terms],
        trained: AnyOptimized,
        step: Callable[[torch.Tensor], torch.Tensor],
        tau: float,
        communicator: Communicator,
    ) -> None:
        """`step` is `trained.step` or does the same."""
        self.loss, self.trained, self.step, self.tau, self.communicator = loss, trained, step, tau, communicator

    def __call__(self, due: Due, *given: P.args, **named: P.kwargs) -> Taken:
        """Take a step on `loss(*given)`."""
        terms = self.loss(*given, **named)
        norm = self.step(self.trained.gradient(terms.loss, self.communicator, len(terms.of_rows)))
        if due.target and isinstance(self.trained, Trained):
            self.trained.update_target(self.tau)
        means = torch.stack((terms.loss.detach(), terms.value.detach().mean()))
        mean_(self.communicator, len(terms.of_rows), means)
        return Taken(means[0], means[1], terms.of_rows, norm)
