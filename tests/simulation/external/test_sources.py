"""Environments of one process, and of one worker, that do something unusual."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.simulation.external import odd, vectors
from tests.simulation.external.simulators import act, environment, simulator
from warprun.checking.external import single
from warprun.cli import main as cli
from warprun.errors import ContractError, UserError
from warprun.simulation.external.examination import examine
from warprun.simulation.external.recipe import ExternalEnvironment, Recipe
from warprun.simulation.external.slice import RESET, STEP, Job, SharedArrays, layout
from warprun.simulation.external.sources import EnvironmentFailed, Outcome, Singles
from warprun.simulation.external.workers import Workers


def recipe(kind: str, **arguments: Any) -> Recipe:
    return Recipe(f"{odd.__name__}:make", {"kind": kind, **arguments}, False)


def examined(kind: str, timeout_s: float = 20.0) -> ExternalEnvironment:
    return examine(kind, recipe(kind), None, timeout_s=timeout_s, masks=True)


def one(kind: str, **arguments: Any) -> tuple[Singles, Outcome]:
    """Return one environment of this process, and where it writes."""
    out = Outcome(np.zeros((1, 1), np.float32), None, np.zeros(1, np.float32), np.zeros(1, np.bool_), np.zeros(1, np.bool_))
    return Singles(recipe(kind, **arguments), 0, 1, np.zeros(2, np.int64)), out


@contextmanager
def worker(kind: str, timeout_s: float = 20.0) -> Iterator[tuple[Workers, dict[str, np.ndarray]]]:
    """Yield a worker with one environment that has been reset, and the arrays."""
    of = examined(kind, timeout_s)
    shared = SharedArrays(layout(of, 1, 1, 1))
    job = Job(recipe=asdict(of.recipe), worker=0, begin=0, end=1, time_limit=None, choices=[2], replaces=False)
    made = Workers(shared, [job], timeout_s)
    try:
        made.run(RESET)
        yield made, shared.arrays
    finally:
        made.close()
        shared.close()


def test_the_limit_of_time_holds_for_one_call() -> None:
    with worker("Slow", timeout_s=1.2) as (made, arrays):
        made.run(STEP)
        assert arrays["ended"][0] == 1


def test_a_process_that_ends_is_noticed_though_a_child_of_it_lives() -> None:
    with worker("LeavesChild", timeout_s=60.0) as (made, _):
        began = time.monotonic()
        with pytest.raises(EnvironmentFailed, match="its process ended with exit code 3"):
            made.run(STEP)
        assert time.monotonic() - began < 30.0


def test_programs_of_an_environment_do_not_ignore_signals() -> None:
    with worker("StartsProgram") as (made, arrays):
        made.run(STEP)
        assert arrays["reward"].ravel().tolist() == [1.0]


def test_paths_of_modules_can_be_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, Path("a path that is no text")])
    with worker("Plain") as (made, arrays):
        made.run(STEP)
        assert arrays["ended"][0] == 1


def test_every_kind_of_real_number_is_a_reward_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for reward in (2, True, np.float64(1.5), np.array(3), np.uint8(4)):
        monkeypatch.setattr(odd.Plain, "reward", reward)
        made, out = one("Plain")
        made.step(np.zeros((1, 1), np.int32), out)
        assert out.reward[0] == float(reward)
    for reward in (None, "1.5", 1.0j, [1.0]):
        monkeypatch.setattr(odd.Plain, "reward", reward)
        with pytest.raises(EnvironmentFailed, match="one number as the reward; it returned"):
            made.step(np.zeros((1, 1), np.int32), out)


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (np.zeros(3), r"an array of the shape \(2,\)"),
        (np.array([0.5, 1.0]), "numbers that fit in int64"),
        (np.array([1, 2**63], np.uint64), "numbers that fit in int64"),
    ],
)
def test_a_state_keeps_its_shape_and_type(state: Any, told: str) -> None:
    made, _ = one("Saves", states=[np.array([1, 2], np.int32), state])
    states = np.zeros((1, 2), np.int64)
    made.save(states)
    assert states.tolist() == [[1, 2]]
    with pytest.raises(EnvironmentFailed, match=told):
        made.save(states)


def test_a_wrapper_can_save_the_state() -> None:
    assert examined("wrapped").state == ("<f8", (1,))
    made, _ = one("wrapped")
    states = np.zeros((1, 1))
    made.save(states)
    assert states.tolist() == [[7.0]]


def test_prints_of_the_environment_that_is_examined_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    examined("Loud")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "the licence is valid\n")


def test_close_hides_no_error() -> None:
    with pytest.raises(RuntimeError, match="no such machine"):
        examined("CannotClose")


# What is wrong is told before the run begins, and before an action is chosen that cannot be chosen --------------------------


@pytest.mark.parametrize("replaces", [False, True])
def test_a_rollout_ends_at_a_mask_that_forbids_every_action_or_begins_anew(replaces: bool) -> None:
    """The environment gets no action that it forbids."""
    with simulator(examined("Masked"), replaces=replaces) as made:
        made.prepare()
        made.collect(act)
        told = str(made.fault())
        assert made.episodes().replaced == (3 * (20 // 3) if replaces else 0)
    if replaces:
        assert told == "None"
    else:
        assert told.startswith(f"{odd.__file__}:") and " in step: environment 0 of Masked forbade every action at step 3" in told


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("MaskedAtOnce", " in reset: environment 0 of MaskedAtOnce forbade every action at step 0"),
        ("FourValues", r"failed at step 1: .*odd.py:\d+ in step: it must return \(observation, reward, terminated, truncated, info\)"),
        ("InLibrary", r"failed at step 1: .*odd.py:\d+ in step: TypeError"),
        ("NoSeed", r"odd.py:\d+ in reset: .*unexpected keyword argument 'seed'; write reset\(self, seed=None\)$"),
        ("NoInfo", r"odd.py:\d+ in reset: reset of NoInfo must return \(observation, info\)"),
    ],
)
def test_reset_and_the_first_step_are_tried_before_the_run(kind: str, told: str) -> None:
    with pytest.raises((UserError, ContractError), match=told), simulator(examined(kind)) as made:
        made.prepare()


def test_the_check_takes_only_allowed_actions() -> None:
    assert [str(problem) for problem in single(examined("Sound"))] == []


# Vectorized environments: exact where a mode of autoreset allows it, refused where not --------------------------------

OWN: dict[str, Any] = {"module": str(vectors.__file__), "vector": True}
VECTORIZED: dict[str, dict[str, Any]] = {
    "same step": OWN | {"kwargs": {"mode": "SameStep"}},
    "disabled": OWN | {"kwargs": {"mode": "Disabled"}},
    "by id": {"id": "CartPole-v1", "vector": True, "time_limit": 25, "kwargs": {"vectorization_mode": "sync"}},
}


def rollouts(settings: dict[str, Any], workers: int = 0) -> list[torch.Tensor]:
    with simulator(environment(**settings), 4, 40, workers) as made:
        made.prepare()
        found = []
        for _ in range(2):
            taken = made.collect(act)
            group = taken.groups["agent"]
            tensors = (group.obs, group.action, group.reward, group.final_obs, taken.terminated, taken.truncated)
            found += [tensor.clone() for tensor in tensors]
        assert bool(taken.terminated.any()) and bool(taken.truncated.any())
        ended = made.episodes()
        return [*found, torch.tensor([ended.count, ended.mean_length, ended.mean_return["agent"]])]


@pytest.mark.by_default(3)
@pytest.mark.parametrize("workers", [2, 0])
@pytest.mark.parametrize("name", VECTORIZED)
def test_vectorized_environments_are_single_ones(name: str, workers: int) -> None:
    """The episodes of single environments are compared with Gymnasium's in test_spaces.py."""
    single = rollouts({"id": "CartPole-v1", "time_limit": 25})
    for one, other in zip(single, rollouts(VECTORIZED[name], workers), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("settings", [OWN | {"kwargs": {"mode": "NextStep"}}, {"id": "CartPole-v1", "vector": True}], ids=["own", "by id"])
def test_a_mode_that_ignores_actions_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"NEXT_STEP.*use env.vector=false") as refused:
        environment(**settings)
    assert "\n" not in str(refused.value)


def test_the_time_limit_of_the_user_is_known() -> None:
    """Evaluations collect as many steps as the time limit says."""
    assert environment(**VECTORIZED["by id"]).spec.time_limit == 25
    by_default: dict[str, Any] = {"id": "CartPole-v1", "vector": True, "kwargs": {"vectorization_mode": "sync"}}
    assert environment(**by_default).spec.time_limit == 500


def test_a_time_limit_of_its_own_stays(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="has a time limit of its own"):
        environment(**OWN, time_limit=7)
    given = ["env=gymnasium", "env.id=CartPole-v1", "env.vector=true", "env.kwargs.vectorization_mode=sync", "env.on_nan=reset"]
    assert cli.run(given) == 2
    assert "resets no single environments" in capfd.readouterr().err
