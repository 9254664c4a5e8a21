"""Write a policy to a file for other programs: ONNX, torch.export, or arrays for numpy."""

from __future__ import annotations

import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import nn

from warprun.errors import UserError, nearest, printable
from warprun.files import write_atomic
from warprun.learning.encoders import Encoder
from warprun.learning.networks import ACTIVATIONS
from warprun.policies.policy import GroupPolicy, Policy
from warprun.spec import OBS_LIMIT

TRACED_ROWS = 3
"""Rows of the observations that a network is traced with; 0 and 1 are special cases of torch.export."""


def export(policy: Policy, path: Path, overwrite: bool = False) -> list[str]:
    """Write `policy` to a file whose format follows from its name; return the names of its inputs and outputs, or of its arrays.

    The file is replaced only with `overwrite`, and only when the new one is complete. Raises UserError.
    """
    check_file(path, overwrite)
    content, names = FORMATS[path.suffix.lower()](policy)
    try:
        write_atomic(path, content)
    except OSError as error:
        raise UserError(f"cannot write {printable(path)}: {error.strerror}") from None
    return names


def check_file(path: Path, overwrite: bool) -> None:
    """Raise UserError if `export` would refuse to write this file."""
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise UserError(f"{printable(path)}: the name must end with {', '.join(FORMATS)}{nearest(kind, FORMATS)}")
    if path.exists() and not overwrite:
        raise UserError(f"{printable(path)} exists; overwrite=true replaces it")
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"{printable(path)} is a folder" if path.is_dir() else f"there is no folder {printable(path.parent)}")


def pictures(policy: Policy) -> list[str]:
    """Return a line for each picture in the inputs of a file, which takes rows as training has them."""
    return [
        f"{f'{name}_' if len(policy.modules) > 1 else ''}obs, columns {field.columns.start} to {field.columns.stop - 1}: a picture;"
        " give bytes divided by 255"
        for name, module in policy.modules.items()
        for field in module.group.observation.fields
        if field.kind == "image"
    ]


class Named(nn.Module):
    """The policies of all groups. Inputs are `obs` and `mask`, outputs `action` and `policy_output`; of several groups `GROUP_obs`, ...

    A policy with memory also has the input `carry` and the output `next_carry`.
    """

    def __init__(self, modules: Mapping[str, GroupPolicy]) -> None:
        super().__init__()
        self.prefixes = [f"{name}_" if len(modules) > 1 else "" for name in modules]
        self.of_groups = nn.ModuleList([copy.deepcopy(module).cpu() for module in modules.values()])
        for parameter in self.parameters():
            parameter.data = parameter.data.clone()  # instead of a view of one tensor for all, which a file would hold many times

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the best actions and the policy outputs."""
        outputs: dict[str, torch.Tensor] = {}
        for prefix, module in zip(self.prefixes, self.of_groups, strict=True):
            assert isinstance(module, GroupPolicy)
            action, output, after = module(*(inputs.get(f"{prefix}{name}") for name in ("obs", "mask", "carry")))
            outputs |= {f"{prefix}action": action, f"{prefix}policy_output": output}
            if module.carry:
                outputs[f"{prefix}next_carry"] = after
        return outputs

    def example(self) -> dict[str, torch.Tensor]:
        """Return inputs of the right shapes and types."""
        return {name: tensor for own in self._inputs().values() for name, tensor in own.items()}

    def _inputs(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return, for the prefix of each group, its part of `example`."""
        found = {}
        for prefix, module in zip(self.prefixes, self.of_groups, strict=True):
            assert isinstance(module, GroupPolicy)
            own = {"obs": torch.zeros(TRACED_ROWS, module.group.observation.size)}
            if module.group.masked:
                own["mask"] = torch.ones(TRACED_ROWS, module.group.masked_actions, dtype=torch.bool)
            if module.carry:
                own["carry"] = torch.zeros(TRACED_ROWS, module.carry)
            found[prefix] = {f"{prefix}{name}": tensor for name, tensor in own.items()}
        return found

    def names(self) -> list[str]:
        """Return the names of the inputs, then those of the outputs."""
        inputs = self.example()
        return [*inputs, *self(inputs)]

    def dynamic(self) -> dict[str, dict[int, object]]:
        """Return the dimensions of any size: the rows of each group, whose number may differ between groups."""
        rows = {prefix: torch.export.Dim(f"{prefix}rows") for prefix in self.prefixes}
        return {name: {0: rows[prefix]} for prefix, own in self._inputs().items() for name in own}


def _torch(policy: Policy) -> tuple[bytes, list[str]]:
    module, content = Named(policy.modules).eval(), io.BytesIO()
    with _tracing():
        program = torch.export.export(module, (module.example(),), dynamic_shapes=(module.dynamic(),))
    torch.export.save(program, content)
    return content.getvalue(), module.names()


def _onnx(policy: Policy) -> tuple[bytes, list[str]]:
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(f"the ONNX format needs the package {error.name}: pip install 'warprun[onnx]'") from None
    module = Named(policy.modules).eval()
    inputs = list(module.example())
    outputs = module.names()[len(inputs) :]
    with _tracing():
        written = torch.onnx.export(
            module,
            kwargs={"inputs": module.example()},
            dynamic_shapes={"inputs": module.dynamic()},
            input_names=inputs,
            output_names=outputs,
            dynamo=True,
            verbose=False,
        )
    assert written is not None
    return written.model_proto.SerializeToString(), [*inputs, *outputs]


def _npz(policy: Policy) -> tuple[bytes, list[str]]:
    content, found = io.BytesIO(), arrays(policy)
    np.savez(content, allow_pickle=False, **found)
    return content.getvalue(), list(found)


@contextmanager
def _tracing() -> Iterator[None]:
    """Silence the remarks of the exporters in this context. Raises UserError if a network cannot be traced."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # torch raises many kinds for what a network of the user does
        while error.__cause__ is not None:
            error = error.__cause__  # type: ignore[assignment]
        reason = next(iter(str(error).strip().splitlines()), "")
        raise UserError(f"torch.export cannot trace the network: {type(error).__name__}: {printable(reason)}") from error
    finally:
        logger.setLevel(level)


FORMATS: dict[str, Callable[[Policy], tuple[bytes, list[str]]]] = {".onnx": _onnx, ".pt2": _torch, ".npz": _npz}
"""End of a file name -> the function that returns the content of the file and its names."""


NAMES = {kind: name for name, kind in ACTIVATIONS.items()}


def arrays(policy: Policy) -> dict[str, np.ndarray]:
    """Return all arrays by name; of several groups the names begin with `GROUP_`. Raises UserError for a network of the user."""
    found: dict[str, np.ndarray] = {}
    for name, module in policy.modules.items():
        prefix = f"{name}_" if len(policy.modules) > 1 else ""
        found |= {f"{prefix}{key}": array for key, array in _of_group(name, module).items()}
    return found


def _of_group(name: str, module: GroupPolicy) -> dict[str, np.ndarray]:
    if not module.layers:
        raise UserError(f"the network of group {name!r} is a module of yours (agent.network.module), not layers: export .onnx or .pt2")
    if any(isinstance(layer, Encoder) for layer in module.layers):
        raise UserError(f"the network of group {name!r} has convolutions (agent.network.encoder), not only layers: export .onnx or .pt2")
    features = module.group.observation.size
    clip = OBS_LIMIT if module.shift is not None else np.inf
    found: dict[str, np.ndarray] = {
        "obs_shift": np.zeros(features, np.float32) if module.shift is None else module.shift.cpu().numpy(),
        "obs_scale": np.ones(features, np.float32) if module.scale is None else module.scale.cpu().numpy(),
        "obs_clip": np.array(clip, np.float32),
    }
    weighted = [layer for layer in module.layers if isinstance(layer, nn.Linear | nn.LSTMCell | nn.GRUCell)]
    for number, layer in enumerate(weighted):
        found |= {f"{name}_{number}": tensor.cpu().numpy() for name, tensor in _weights(layer).items()}
    # Behind the policy's outputs a shared network has the value.
    for name in ("weight", "bias"):
        found[f"{name}_{len(weighted) - 1}"] = found[f"{name}_{len(weighted) - 1}"][: module.group.acting_outputs]
    ends_linear = module.layers[-1] is weighted[-1]
    hidden = [NAMES[type(layer)] for layer in (module.layers if ends_linear else module.layers[:-1]) if type(layer) in NAMES]
    found["activation"] = np.array(next(iter(hidden), "linear"))
    found["output_activation"] = np.array("linear" if ends_linear else "tanh")
    cells = [layer for layer in weighted if not isinstance(layer, nn.Linear)]
    if cells:
        states = sum(layer.hidden_size * (2 if isinstance(layer, nn.LSTMCell) else 1) for layer in cells)
        found["carry"] = np.zeros(states + (module.sequence is not None), np.float32)
        found["sequence"] = np.array(np.inf if module.sequence is None else module.sequence)
    return found | module.actions.arrays()


def _weights(layer: nn.Linear | nn.LSTMCell | nn.GRUCell) -> dict[str, torch.Tensor]:
    if isinstance(layer, nn.Linear):
        return {"weight": layer.weight, "bias": layer.bias}
    own = {"state_weight": layer.weight_hh, "state_bias": layer.bias_hh}
    return {"weight": layer.weight_ih, "bias": layer.bias_ih} | own
