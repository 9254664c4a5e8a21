"""Networks of the user: a torch module made by CLASS(inputs, outputs, **kwargs), whose forward takes rows [B, inputs] to [B, outputs]."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from warprun.errors import UserError, shown
from warprun.run_folder import named
from warprun.user_code import errors_of_user

KEY = "agent.network.module"


def own_network(inputs: int, outputs: int, module: str, kwargs: Mapping[str, object]) -> nn.Module:
    """Make a network of the user, and try it on two rows. Raises UserError."""
    own = named(KEY, module)
    made_by = own.load(KEY)
    if not isinstance(made_by, type) or not issubclass(made_by, nn.Module):
        raise UserError(f"{KEY}={module}: {own.name} is {shown(made_by)}, not a class derived from torch.nn.Module")
    with errors_of_user(f"{KEY}={module} fails", "a network"):
        network = made_by(inputs, outputs, **kwargs)
        network.eval()
        rows = torch.randn(2, inputs, generator=torch.Generator().manual_seed(0))
        before = rows.clone()
        given = network(rows)
    if not isinstance(given, torch.Tensor) or given.shape != (2, outputs) or given.dtype != torch.float32:
        found = f"{given.dtype} {tuple(given.shape)}" if isinstance(given, torch.Tensor) else shown(given)
        raise UserError(f"{KEY}={module}: of rows [2, {inputs}] forward must return a float32 tensor [2, {outputs}], not {found}")
    if not given.requires_grad or any(parameter.dtype != torch.float32 for parameter in network.parameters()):
        raise UserError(f"{KEY}={module}: forward must compute with parameters, all of them float32; else nothing can be learned")
    if not torch.equal(rows, before):
        raise UserError(f"{KEY}={module}: forward must not change the rows that it gets; it does so in place")
    frozen = [name for name, parameter in network.named_parameters() if not parameter.requires_grad]
    if frozen:
        raise UserError(f"{KEY}={module}: the parameter {frozen[0]} has requires_grad=False; keep what is not trained in a buffer")
    return network
