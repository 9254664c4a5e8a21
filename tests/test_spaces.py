"""Action spaces: what they say of themselves, and that every table of what depends on them is complete."""

from typing import get_args

import numpy as np
import pytest
import torch

from warprun.cli.environments import DESCRIBED
from warprun.errors import ContractError
from warprun.interop.environments import NUMBERS, OF_GYMNASIUM, space_of
from warprun.kernels import sampling
from warprun.learning.distributions import EVALUATE
from warprun.learning.settings.byte_counts import EVALUATION_TENSORS
from warprun.policies.actions import ACTIONS
from warprun.runs.saved_spec import READ, WRITE, from_data, to_data
from warprun.simulation.codegen.bodies import NAMES
from warprun.simulation.conversions import CONVERTERS, converter
from warprun.simulation.units import CONVERSIONS, in_environment_units
from warprun.spec import ActionKind, Box, Discrete, GroupSpec, MultiDiscrete, Space, Spec

ONE, SEVERAL, REAL = Discrete(4, 7), MultiDiscrete((3, 2), (5, -1)), Box(2, (-2.0, 0.0), (6.0, np.inf))
SPACES = (ONE, SEVERAL, REAL, Discrete(1), MultiDiscrete((2, 2, 2)), Box(1))
BY_KIND = {
    "to numpy": CONVERSIONS,
    "to torch": CONVERTERS,
    "distribution": EVALUATE,
    "policies": ACTIONS,
    "memory": EVALUATION_TENSORS,
    "words": DESCRIBED,
    "names": NAMES,
    "drawn": sampling.DRAWN,
    **{f"best {policies}": table for policies, table in sampling.BEST.items()},
    **{f"explored {policies}": table for policies, table in sampling.EXPLORED.items()},
}


def test_what_a_space_says() -> None:
    """Logits of all choices, or a mean and a log standard deviation for every number."""
    said = [(s.kind, s.dtype, s.shape, s.choices, s.starts, s.reals, s.components, s.outputs, s.mask_entries) for s in (ONE, SEVERAL, REAL)]
    assert said == [
        ("choices", "int32", (), (4,), (7,), 0, 1, 4, 4),
        ("choices", "int32", (2,), (3, 2), (5, -1), 0, 2, 5, 5),
        ("reals", "float32", (2,), (), (), 2, 2, 4, 0),
    ]
    assert [GroupSpec("agent", 1, Box(1), space).acting_outputs for space in (ONE, SEVERAL, REAL)] == [4, 5, 2]
    assert (ONE.bounds(), SEVERAL.bounds(), REAL.bounds()) == ((), (), ((-2.0, 6.0), (0.0, np.inf)))
    assert [DESCRIBED[space.kind](space) for space in (ONE, SEVERAL, REAL)] == [
        "4 choices from 7",
        "3 x 2 choices from 5, -1",
        "2 in -2..6 x 0..inf",
    ]


def test_a_space_equals_another_by_its_arguments() -> None:
    assert Discrete(4, 7) == ONE != Discrete(4) and Discrete(4) != MultiDiscrete((4,)) and hash(Box(2)) == hash(Box(2))
    assert repr(ONE) == "Discrete(n=4, start=7)" and repr(Box(1, 0.0)) == "Box(size=1, low=0.0, high=inf, fields=())"


@pytest.mark.parametrize("table", BY_KIND.values(), ids=BY_KIND)
def test_every_kind_is_in_each_table(table: dict[ActionKind, object]) -> None:
    assert list(table) == list(get_args(ActionKind))


def test_every_space_is_in_each_table() -> None:
    ours = {space for space in Space.__subclasses__() if space.__module__ == Space.__module__}
    assert ours == OF_GYMNASIUM.keys() == WRITE.keys() and len(READ) == len(ours)
    assert {space.dtype for space in ours} == NUMBERS.keys()


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_are_saved_and_read(space: Space) -> None:
    spec = Spec((GroupSpec("agent", 2, Box(3), space),), 5)
    assert from_data(to_data(spec)) == spec
    data = to_data(spec)
    data["groups"][0]["action"] = {"circle": 3}  # type: ignore[index]
    with pytest.raises(ValueError, match="damaged"):
        from_data(data)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_numpy_and_torch_give_the_environment_the_same_actions(space: Space) -> None:
    """Those of Gymnasium contain them, counted from 0."""
    random = np.random.default_rng(0)
    counted = [random.integers(0, n, 50) for n in space.choices] or list(random.normal(size=(space.reals, 50)))
    actions = np.stack(counted, -1).astype(space.dtype)
    found, own = in_environment_units(space, actions), converter(space, torch.device("cpu"))(torch.from_numpy(actions)).numpy()
    assert found.dtype == own.dtype == space.dtype and own.shape == (50, *space.shape)
    np.testing.assert_array_equal(found.reshape(own.shape), own)
    gymnasium = space_of(space)
    assert gymnasium.shape == space.shape
    first = np.array(space.starts or 0, space.dtype)
    assert all(gymnasium.contains(one.reshape(space.shape).astype(gymnasium.dtype)[()]) for one in found - first)


def test_only_choices_have_a_mask() -> None:
    assert [GroupSpec("agent", 1, Box(1), space, masked=True).masked_actions for space in (ONE, SEVERAL)] == [4, 5]
    with pytest.raises(ContractError, match=r"group 'agent' has a mask, which is for choices; of Box\(.*\) remove it"):
        GroupSpec("agent", 1, Box(1), REAL, masked=True)
