"""Settings of short runs, and what runs the files of a policy."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.words import words

SHORT = words("""
    tuned=none stop_when_solved=false n_envs=8 concurrency.threads=1 device=cpu log.live=false log.tensorboard=false
    eval.episodes=4 eval.final_episodes=4 env.time_limit=20
""")


def by_onnx(file: Path, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = pytest.importorskip("onnxruntime").InferenceSession(file)
    names = [output.name for output in session.get_outputs()]
    assert {given.name for given in session.get_inputs()} == inputs.keys()
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def by_torch(file: Path, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    given = {name: torch.from_numpy(array) for name, array in inputs.items()}
    return {name: tensor.detach().numpy() for name, tensor in torch.export.load(file).module()(given).items()}
