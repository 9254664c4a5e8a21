"""Mistakes in environments that step as one batch of arrays: one line for each, before the run begins."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.simulation.batches import Changed, Walkers, simulator
from tests.simulation.external.simulators import act
from warprun.config.batched import batched_environment, is_batched
from warprun.config.external import External
from warprun.errors import TrainingFailed, UserError
from warprun.spec import Box, Discrete, MultiDiscrete


def without(*names: str) -> type:
    members = {name: getattr(Walkers, name) for name in vars(Walkers) if name not in ("__dict__", "__weakref__", *names)}
    return type("Walkers", (), members)


def having(**members: Any) -> type:
    return type("Walkers", (Walkers,), members)


def boom(*given: object) -> Any:
    raise ZeroDivisionError("no\nsuch place")


def fails(self: Any, state: Any) -> Any:
    boom()


def far(tensor: torch.Tensor) -> Any:
    raise BufferError("of another device")


BEFORE: dict[str, tuple[type, str]] = {
    "no step": (without("step"), "has no step; a batched environment has arrays"),
    "no spaces": (without("observation_space", "action_space"), "has no observation_space, action_space"),
    "no arrays": (type("Walkers", (without("arrays", "__init__"),), {"__init__": lambda self, n_envs: None}), "has no arrays"),
    "arrays by name": (having(arrays="torch", __init__=lambda self, n_envs: None), "must be the module of its arrays"),
    "no n_envs": (having(__init__=lambda self: None), "the first argument of the class must be `n_envs`"),
    "fails at once": (having(__init__=lambda self, n_envs: boom()), "cannot be made: .*in boom: ZeroDivisionError: no such place"),
    "needs an argument": (having(__init__=lambda self, n_envs, size: None), "missing 1 required positional argument: 'size'"),
    "space of a number": (having(observation_space=3), "observation_space must be a Box"),
    "actions of a number": (having(action_space=2), "action_space must be a Discrete, a MultiDiscrete or a Box"),
    "a mask of a Box": (having(action_space=Box(1), action_mask=boom), "action_mask of Walkers is for choices, and its action_space is"),
    "time limit": (having(time_limit=0), "time_limit must be a whole number"),
}


@pytest.mark.parametrize("kind", BEFORE)
def test_a_class_that_is_no_batch_is_refused_in_one_line(kind: str) -> None:
    made, told = BEFORE[kind]
    assert is_batched(made)
    with pytest.raises(UserError, match=told) as refused:
        batched_environment(made, External(), None, "walk", "./walk.py")
    assert "\n" not in str(refused.value) and "./walk.py" in str(refused.value)


def test_a_function_that_takes_the_number_of_environments_and_returns_no_batch() -> None:
    """It may make an environment with the interface of Gymnasium."""

    def environment(n_envs: int = 3) -> Any:
        return SimpleNamespace(observation_space=Box(2), action_space=Discrete(2), reset=boom, step=boom)

    told = "environment takes `n_envs`, so it must return a batch; the SimpleNamespace that it returns has no arrays: .* another name"
    assert is_batched(environment)
    with pytest.raises(UserError, match=told):
        batched_environment(environment, External(), None, "walk", "./walk.py")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        (External(vector=True), "env.vector is for environments with the interface of Gymnasium, and walk steps a batch"),
        (External(timeout_s=3.0), "env.timeout_s is for environments"),
        (External(id="Walk-v1"), "the class Walkers of walk has no argument `id`"),
        (External(kwargs={"limt": 1}), "env.kwargs.limt: Limited of ./walk.py has no argument 'limt'; did you mean 'limit'?"),
    ],
)
def test_settings_that_a_batch_does_not_have(chosen: External, told: str) -> None:
    made = type("Limited", (Walkers,), {"__init__": lambda self, n_envs, limit=3: None}) if chosen.kwargs else Walkers
    with pytest.raises(UserError, match=told):
        batched_environment(made, chosen, None, "walk", "./walk.py")


def test_a_mask_can_be_ignored() -> None:
    made = having(action_mask=boom)
    for mask in (True, False):
        assert batched_environment(made, External(mask=mask), None, "walk", "./walk.py").spec.groups[0].masked == mask


def telling(spaces: Callable[..., Any], **members: Any) -> type:
    """Return a class that tells its spaces, and whose objects cannot be made."""
    return having(spaces=staticmethod(spaces), __init__=lambda self, n_envs, device="cpu", size=3, edge=1.0: boom(), **members)


def test_a_class_that_tells_its_spaces_is_not_made() -> None:
    told = telling(lambda size, edge: (Box(size), Box(1, -edge, edge)), time_limit=9, get_state=None, set_state=None)
    for kwargs, size, edge in (({}, 3, 1.0), ({"size": 5, "edge": 2.0}, 5, 2.0)):
        known = batched_environment(told, External(kwargs=kwargs), None, "walk", "./walk.py")
        assert known.spec.groups[0].observation == Box(size) and known.spec.groups[0].action == Box(1, -edge, edge)
        assert (known.shape, known.spec.time_limit, known.resumes) == ((size,), 9, True)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (telling(lambda size, edge: Box(size)), "spaces of Walkers must return .observation_space, action_space.; it returned Box"),
        (telling(lambda size, edge: (3, Box(1))), "observation_space must be a Box"),
        (telling(lambda size: (Box(size), Box(1))), "unexpected keyword argument 'edge'"),
        (type("Walkers", (without("step"),), {"spaces": staticmethod(lambda: (Box(1), Box(1)))}), "has no step"),
    ],
)
def test_spaces_that_are_told_wrongly(made: type, told: str) -> None:
    with pytest.raises(UserError, match=told):
        batched_environment(made, External(), None, "walk", "./walk.py")


def test_spaces_of_gymnasium() -> None:
    from gymnasium import spaces

    def spec(**members: Any) -> Any:
        environment = batched_environment(having(**members), External(), None, "walk", "./walk.py")
        return environment.spec.groups[0].observation.size, environment.spec.groups[0].action, environment.shape

    field = spaces.Box(-1, 1, (2, 3), np.float32)
    assert spec(observation_space=field, action_space=spaces.Discrete(4)) == (6, Discrete(4), (2, 3))
    assert spec(action_space=spaces.MultiDiscrete([2, 3], start=[0, -1]))[1] == MultiDiscrete((2, 3), (0, -1))
    assert spec(action_space=spaces.Box(-2, 2, (1,)))[1] == Box(1, (-2.0,), (2.0,))
    with pytest.raises(UserError, match="must be a Box"):
        spec(observation_space=spaces.Dict({"camera": spaces.Box(0, 255, (3, 8, 8), np.uint8)}))


AT_FIRST: dict[str, tuple[Callable[..., Any], int, str]] = {
    "observations of fewer": (lambda part: part[1:], 0, r"observations of the shape \(6, 2\); it must be \(7, 2\)"),
    "complex observations": (lambda part: part.cfloat(), 0, "dtype complex64; they must be real numbers"),
    "observations on another device": (lambda part: part.to("meta"), 0, "on meta, and the run computes on cpu"),
    "nothing": (lambda part: None, 0, "observations that cannot be read: None is no array"),
    "one reward": (lambda part: part.sum(), 1, r"rewards of the shape \(\); it must be \(7,\)"),
    "a number as reward": (lambda part: 1.0, 1, r"rewards that cannot be read: 1.0 is no array.*; return an array of the shape \(7,\)$"),
    "true or false": (lambda part: part > 0, 1, "rewards of the dtype bool; they must be real numbers"),
    "truncated of real numbers": (lambda part: part.float(), 3, "truncated of the dtype float32; they must be booleans"),
    "an exception": (boom, 0, r"at step 1: step failed: .*in boom: ZeroDivisionError: no such place"),
}


@pytest.mark.parametrize("kind", AT_FIRST)
def test_a_wrong_step_is_told_before_the_run_begins(kind: str) -> None:
    value, part, told = AT_FIRST[kind]
    with pytest.raises(UserError, match=told) as refused, simulator(Changed, part=part, value=value):
        pass
    assert "\n" not in str(refused.value) and str(refused.value).startswith("walk at step ")


def changes_its_dtype(self: Any, actions: Any) -> Any:
    given = Walkers.step(self, actions)
    self.state = self.state | {"age": self.state["age"].double()}
    return given


def resets_all(self: Any, seed: int, mask: Any) -> Any:
    return Walkers.reset(self, seed, torch.ones_like(mask))


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "another dtype of the state": (
        {"step": changes_its_dtype},
        rf"{__file__}:\d+ in step: state\['age'\] has the dtype float64, and had float32 before",
    ),
    "a reset of every episode": (
        {"reset": resets_all},
        rf"{__file__}:\d+ in reset: reset changed state\['(place|age)'\] of environment 1, where `mask` is false",
    ),
    "three results": ({"step": lambda self, actions: (1, 2, 3)}, r"must return \(observations, rewards, terminated, truncated\)"),
    "reset gives info": ({"reset": lambda self, seed, mask: (self.observe(), {})}, "reset returned observations that cannot be read"),
    "reset fails": ({"reset": lambda self, seed, mask: boom()}, "reset failed: .*ZeroDivisionError"),
    "reset takes no seed": (
        {"reset": lambda self, mask: None},
        rf"{__file__}:\d+ in reset: .*takes 2 positional arguments.*; write reset\(self, seed, mask\)$",
    ),
    "step takes nothing": (
        {"step": lambda self: None},
        rf"{__file__}:\d+ in step: .*takes 1 positional argument.*; write step\(self, actions\)$",
    ),
    "masks of others": (
        {"action_mask": lambda self: self.index > 0},
        r"action_mask returned masks of the shape \(7,\); it must be \(7, 2\)",
    ),
    "masks of numbers": ({"action_mask": lambda self: torch.ones((7, 2))}, "masks of the dtype float32; they must be booleans"),
    "a state of texts": ({"get_state": lambda self: ["a"], "set_state": fails}, "get_state failed: 'a' is no array with DLPack"),
    "a state that is refused": ({"get_state": lambda self: [torch.zeros(2)], "set_state": fails}, "set_state failed: .*ZeroDivisionError"),
    "half of the state": (
        {"get_state": lambda self: self.state["age"], "set_state": lambda self, state: None},
        "get_state returns not all it depends on",
    ),
    "arrays that take no memory": (
        {"arrays": SimpleNamespace(**{**vars(torch), "from_dlpack": far, "__name__": "none"})},
        "arrays failed: none takes no memory on cpu",
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_mistakes_are_told_before_the_run_begins(kind: str) -> None:
    members, told = OTHERS[kind]
    with pytest.raises(UserError, match=told) as refused, simulator(having(**members)):
        pass
    assert "\n" not in str(refused.value)


def test_a_batch_that_changes_ends_the_run() -> None:
    told = r"walk at step 6: .*batches.py:\d+ in step: step returned observations of the shape \(5, 2\); it must be \(7, 2\)"
    with simulator(Changed, part=0, value=lambda part: part[:5], when=7) as made, pytest.raises(TrainingFailed, match=told):
        made.collect(act)


def test_a_state_that_changes_its_form_is_refused() -> None:
    states = [torch.zeros(2)] * 20 + [torch.zeros(3)]
    made = having(get_state=lambda self: states.pop(0), set_state=lambda self, state: None, observe=lambda self: self.index[:, None] * 1.0)
    made = type("Still", (made,), {"observation_space": Box(1), "step": still})
    with simulator(made) as found:
        del states[:-1]
        with pytest.raises(TrainingFailed, match=r"get_state has the shape \(3,\), and had \(2,\) before: keep"):
            found.state()


def still(self: Any, actions: Any) -> Any:
    never = self.index < 0
    return self.observe(), 1.0 * self.index, never, never


def test_half_of_the_methods_for_the_state_is_told() -> None:
    stateless, init = without("get_state", "set_state", "__init__"), {"__init__": lambda self, n_envs: None}
    told = f"{__file__}:{boom.__code__.co_firstlineno} in get_state: Walkers has no set_state, so "
    for base, more in ((stateless, "a resumed run begins new episodes"), (Walkers, "its attribute `state` is saved in place of it")):
        made = type("Walkers", (base,), {"get_state": boom, **(init if base is stateless else {})})
        found = batched_environment(made, External(), None, "walk", "./walk.py")
        assert found.note == told + more and found.resumes == (base is Walkers)
    with simulator(made) as one:
        assert "state/0" in one.state()
    assert not batched_environment(type("Walkers", (stateless,), init), External(), None, "walk", "./walk.py").note
