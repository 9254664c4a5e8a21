"""With engine.debug what a rollout has to write is NaN before it; nothing reads it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

from tests.simulation.rollouts import CASES, RandomPolicies, engine_of, make
from warprun.environment import Box, Discrete, Environment, Group, Phase, float32
from warprun.simulation.device import choose
from warprun.simulation.memory import POISON
from warprun.simulation.trajectory import GroupTrajectory


class State(NamedTuple):
    x: float32


def observe(s, i, out):
    out[0] = s.x
    out[1 + i] = 1.0


def test_entries_that_are_never_written_are_0():
    """Also those that are others for each actor."""
    actors = Group("actors", 3, State, Box(5), Discrete(2), lambda: State(1.0), observe)
    made = make(Environment((actors,), (Phase("actors", lambda s: (s, 0.0, False)),)), "one_of_three", debug=True)
    seen = made.collect(RandomPolicies(made)).groups["actors"].obs
    assert (seen.numpy() == np.concatenate([np.ones((3, 1)), np.eye(3), np.zeros((3, 1))], 1)).all()


@pytest.mark.parametrize("name", ["leaving", "market"])
def test_all_that_a_rollout_has_to_write_is_filled(name, monkeypatch):
    made = engine_of(CASES[name], name, choose("cpu"), debug=True)
    monkeypatch.setattr(made, "_roll_out", lambda *given: None)
    taken = made.collect(None)
    kept = {"began", "clock", "cuts", "ended", "ended_steps", "fault", "any_fault", "varied", "vary_bounds", "f", "i"}
    kept |= {"episode_return", "ended_return", "noise", "exploration"}
    tensors = {name: tensor for name, tensor in made.arrays.by_name().items() if name.rpartition(".")[2] not in kept}
    for name, group in taken.groups.items():
        tensors |= {f"{name}.{n}": tensor[1:] if n in ("obs", "mask", "alive") else tensor for n, tensor in named(group).items()}
    assert tensors
    for name, tensor in tensors.items():
        assert (tensor.isnan() if tensor.is_floating_point() else tensor == (tensor.dtype == torch.bool or POISON)).all(), name


def named(group: GroupTrajectory) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in vars(group).items() if tensor is not None}
