"""Observations in every form that programs give them in, against the rows that training gets."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from warprun.errors import UserError
from warprun.learning.acting import Acting
from warprun.policies.export import pictures
from warprun.policies.policy import GroupPolicy, Policy, read
from warprun.runs.saved_spec import from_data, to_data
from warprun.spec import Box, Discrete, Field, GroupSpec, Spec

spaces = pytest.importorskip("gymnasium.spaces")
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array  # noqa: E402

from warprun.simulation.external.examination import _spec  # noqa: E402
from warprun.simulation.external.spaces import observations  # noqa: E402

CPU = torch.device("cpu")
PICTURE = spaces.Box(0, 255, (4, 5, 3), np.uint8)
SPEED = spaces.Box(-10.0, 10.0, (2,), np.float32)
DIALS = spaces.MultiDiscrete([2, 3], start=[1, 9])
SPACES: dict[str, Any] = {
    "numbers": SPEED,
    "a number without axes": spaces.Box(-1.0, 1.0, ()),
    "bytes of one axis, no picture": spaces.Box(0, 255, (6,), np.uint8),
    "picture": PICTURE,
    "grey picture": spaces.Box(0, 255, (4, 5), np.uint8),
    "true and false": spaces.Box(0, 1, (2, 3), np.bool_),
    "bits of two axes": spaces.MultiBinary((2, 3)),
    "choice": spaces.Discrete(3, start=10),
    "choices": spaces.MultiDiscrete([3, 2], start=[5, -1]),
    "choices of two axes": spaces.MultiDiscrete([[3, 2], [2, 4]]),
    "picture beside numbers": spaces.Dict(camera=PICTURE, speed=SPEED),
    "picture beside bytes": spaces.Dict(camera=PICTURE, level=spaces.Box(0, 255, (3,), np.uint8)),
    "picture beside a choice": spaces.Tuple((PICTURE, spaces.Discrete(4, start=2))),
    "all": spaces.Dict(
        eyes=spaces.Tuple((PICTURE, spaces.Box(0, 255, (6, 4), np.uint8))),
        inside=spaces.Dict(gear=spaces.Discrete(3, start=-1), lamps=spaces.MultiBinary(3), dials=DIALS),
        speed=SPEED,
    ),
}


def saved(space: Any) -> GroupSpec:
    """Return the group of an environment as a checkpoint has it."""
    (group,) = from_data(json.loads(json.dumps(to_data(_spec(space, spaces.Discrete(2), {}, None, None))))).groups
    return group


def drawn(space: Any, number: int = 7) -> list[Any]:
    space.seed(3)
    return [space.sample() for _ in range(number)]


def together(space: Any, samples: list[Any]) -> Any:
    return concatenate(space, samples, create_empty_array(space, len(samples)))


@pytest.mark.parametrize("name", SPACES)
def test_each_form_gives_the_rows_of_training(name: str) -> None:
    space, (group, samples) = SPACES[name], (saved(SPACES[name]), drawn(SPACES[name]))
    conversion = observations(space)
    expected = np.stack([conversion.flatten(sample) for sample in samples])
    flat = [np.asarray(spaces.flatten(space, sample)) for sample in samples]
    for sample, row, right in zip(samples, flat, expected, strict=True):
        for form in (sample, row, row.astype(np.float32), row.astype(np.float64), right):
            found = read(group, form, None, CPU)
            np.testing.assert_array_equal(found.obs.numpy(), right[None])
            assert found.leading == ()
    for form in (np.stack(flat), np.stack(flat).astype(np.float32), expected, torch.from_numpy(np.stack(flat).astype(np.float32))):
        np.testing.assert_array_equal(read(group, form, None, CPU).obs.numpy(), expected)
        assert read(group, form, None, CPU).leading == (7,)
    if not isinstance(space, spaces.Discrete) and space.shape != ():  # those have no axis that tells a list of them from a row
        batch = together(space, samples)
        assert batch_space(space, 7).contains(batch)
        found = read(group, batch, None, CPU)
        np.testing.assert_array_equal(found.obs.numpy(), expected)
        assert found.leading == (7,)


def group_of(name: str) -> GroupSpec:
    return saved(SPACES[name])


DARK = np.zeros((4, 5, 3), np.uint8)
EYES = (DARK, np.zeros((6, 4), np.uint8))
DIM = np.where(np.arange(60).reshape(4, 5, 3) == 7, 1, DARK).astype(np.uint8)


def test_a_picture_of_the_bytes_0_and_1_is_told_by_its_dtype_only() -> None:
    group, seen = group_of("picture"), np.float32(DIM.ravel()) / np.float32(255)
    for form in (DIM, DIM.ravel(), DIM.astype(np.int64), DIM.ravel().astype(np.int16)):
        np.testing.assert_array_equal(read(group, form, None, CPU).obs[0], seen)
    with pytest.raises(UserError, match=r"columns 0 to 59, must be a picture, and has only 0\.0 and 1\.0: of 255 or of 1\? .* uint8"):
        read(group, DIM.ravel().astype(np.float32), None, CPU)
    assert not read(group, DARK.ravel().astype(np.float32), None, CPU).obs.any()  # 0 is 0 in both
    beside = group_of("picture beside numbers")
    np.testing.assert_array_equal(read(beside, {"camera": DIM, "speed": np.ones(2, np.float32)}, None, CPU).obs[0], [*seen, 1.0, 1.0])
    with pytest.raises(UserError, match="of 255 or of 1"):
        read(beside, np.array([*DIM.ravel(), 1.0, 1.0], np.float32), None, CPU)


def row(picture: float, *rest: float) -> np.ndarray:
    return np.array([picture] * 60 + list(rest))


BESIDE, CHOSEN = "picture beside numbers", "picture beside a choice"
REFUSED: dict[str, tuple[str, Any, str]] = {
    "neither bytes nor shares": ("picture", row(1.5), "must be a picture of bytes, 0 to 255, or these divided by 255, and"),
    "more than a byte": ("picture", row(256.0), "columns 0 to 59, must be a picture of bytes, 0 to 255, and has 256 to 256"),
    "signed bytes": ("picture", row(-3).astype(np.int8), "must be a picture of bytes, 0 to 255, and has -3 to -3"),
    "a picture of bool": ("picture", row(1).astype(bool), "must be a picture of bytes, 0 to 255, and has True and False"),
    "NaN in a picture": ("picture", row(np.nan), "obs of group 'agent' has NaN or infinity"),
    "another size": (BESIDE, np.zeros(61), "must have the shape [..., 62], not [61]"),
    "a part is missing": (BESIDE, {"camera": DARK}, "obs of group 'agent' has no 'speed'; it must have camera, speed"),
    "a part in another shape": (BESIDE, {"camera": DARK[:3], "speed": np.zeros(2)}, "'camera' must have the shape [..., 4, 5, 3]"),
    "parts of several sizes": (BESIDE, {"camera": DARK[None], "speed": np.zeros((2, 2))}, "batches of different shapes: [1], [2]"),
    "no part of the space": (CHOSEN, (DARK, 6), "obs of group 'agent', part 1 has 6, which is not in its space"),
    "a choice of floats": (CHOSEN, (DARK, 3.0), "part 1 must hold integers, as of a Discrete, not torch.float64"),
    "too few parts": (CHOSEN, (DARK,), "obs of group 'agent' must be a tuple of 2 parts, not"),
    "no tuple inside": ("all", {"eyes": 3, "inside": {}, "speed": 0}, "'eyes' must be a tuple of 2 parts, not 3"),
    "no dict inside": ("all", {"eyes": EYES, "inside": 3, "speed": 0}, "'inside' must be a dict with gear, lamps, dials, not 3"),
    "choices that are not one-hot": ("choice", np.array([2, 0, 1]), "columns 0 to 2, must be one-hot"),
    "several bare choices": ("choice", np.array([10, 11, 12, 10]), "not [4]; a Discrete observation is"),
    "a choice out of range": ("choice", 0, "obs of group 'agent' has 0, which is not in its space"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_forms_are_refused_in_one_line(case: str) -> None:
    name, obs, says = REFUSED[case]
    with pytest.raises(UserError) as failure:
        read(group_of(name), obs, None, CPU)
    assert says in str(failure.value) and "\n" not in str(failure.value)


def test_rows_of_environments_that_give_rows_are_not_divided() -> None:
    group = GroupSpec("a", 1, Box(6, fields=(Field(1, (1, 2, 2), kind="image"),)), Discrete(2))
    given = np.array([7.0, 0.0, 1.0, 1.0, 0.0, 200.0], np.float32)
    np.testing.assert_array_equal(read(group, given, None, CPU).obs[0], given)
    of_bytes = read(group, np.array([7, 0, 255, 51, 0, 200]), None, CPU).obs[0]
    np.testing.assert_array_equal(of_bytes, np.float32([7, 0, 1, 0.2, 0, 200]))
    with pytest.raises(UserError, match="columns 1 to 4, must be a picture with floats from 0 to 1"):
        read(group, np.array([7.0, 0.0, 255.0, 51.0, 0.0, 200.0]), None, CPU)


def test_export_tells_which_columns_are_pictures() -> None:
    assert pictures(policy_for("all")) == [f"obs, columns {n}: a picture; give bytes divided by 255" for n in ("0 to 59", "60 to 83")]
    assert pictures(policy_for("bits of two axes")) == []


def policy_for(name: str) -> Policy:
    group = group_of(name)
    layer = torch.nn.Linear(group.observation.size, 2)
    module = GroupPolicy(group, Acting(layer, "distribution", [layer], {}), None, None).requires_grad_(False)
    return Policy(Spec((group,)), {group.name: module}, CPU, None, 0)  # type: ignore[arg-type]


def test_a_dict_is_an_observation_or_has_the_names_of_groups() -> None:
    space = SPACES["picture beside numbers"]
    policy, (sample, *_) = policy_for("picture beside numbers"), drawn(space)
    action = policy.act(sample)
    assert action == policy.act({"agent": sample})["agent"] == policy.act(spaces.flatten(space, sample))
    tensors = {name: torch.from_numpy(part) for name, part in sample.items()}
    assert isinstance(policy.act(tensors), torch.Tensor) and policy.act(tensors) == action
    assert policy.act(together(space, drawn(space))).shape == (7,)
    with pytest.raises(UserError, match="has no 'speed'"):
        policy.act({"camera": sample["camera"]})
