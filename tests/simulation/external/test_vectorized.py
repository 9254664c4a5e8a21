"""Vectorized environments: exact where a mode of autoreset allows it, refused where not."""

from typing import Any

import pytest
import torch

from tests.simulation.external import vectors
from tests.simulation.external.simulators import act, environment, simulator
from warprun.cli import main as cli
from warprun.errors import UserError

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
    """The episodes of single environments are compared with Gymnasium's in test_gymnasium_ids.py."""
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
