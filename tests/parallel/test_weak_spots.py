"""Weak spots of EXARL (github.com/exalearn/EXARL, read in 2021), a test for each.

| weak spot | test |
|---|---|
| an end mark is lost, and the run hangs | `test_an_end_mark_is_never_lost` |
| left-over rollouts are dropped, or filled up with old ones | `test_exchanges.py`, `test_learners_and_actors.py` |
| the state of a transition is that after the step | `test_transitions_follow_the_equations_of_motion` |
| terminal steps are bootstrapped | the same, `tests/learning/test_formulas.py` |
| a batch shares one draw of noise | `test_every_environment_and_actor_draws_noise_of_its_own` |
| nobody sees the lag, and nothing bounds it | `test_lag_is_seen_and_bounded`, `test_rollouts_that_are_too_old_are_dropped_and_counted` |
"""

from pathlib import Path

import pytest
import torch

from tests.finished import weights
from tests.learning.test_off_policy import explore
from tests.parallel.ranks import train
from tests.parallel.test_exchanges import exchange
from tests.selection import few
from tests.simulation.rollouts import CPU, make
from warprun.config.registry import import_environment
from warprun.environment import Box
from warprun.learning.replay import GOES_ON, TERMINATED, TRUNCATED
from warprun.simulation.exploration import Exploration

QUEUE = 2
"""`concurrency.queue`."""
THETA, X = 0.20943951023931953, 2.4
"""Limits of CartPole."""


@pytest.mark.by_default(0)
@pytest.mark.parametrize("rollouts", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_an_end_mark_is_never_lost(rollouts: int, tmp_path: Path) -> None:
    """Three learners and five actors for a few rollouts: most actors end before they have made one, and learners help each other."""
    received = exchange("rma", "queue", 3, 5, rollouts, 2000, tmp_path)
    assert sum(len(own) for own in received) == rollouts


@pytest.mark.by_default(0)
@pytest.mark.parametrize("mode", few(["seed", "rma", "async"], "rma"))
def test_transitions_follow_the_equations_of_motion(mode: str, tmp_path: Path) -> None:
    """What a learner has in replay memory, against CartPole in float64: the next state is not the state, and ends are where they belong."""
    settings = ["env=cartpole", "agent=dqn", "env.time_limit=15", "n_envs=12", "agent.horizon=8", "agent.learning_starts=96"]
    train(3, tmp_path / "run", *settings, "total_steps=1920", f"concurrency={mode}")
    ring = {name.rpartition("/")[2]: tensor for name, tensor in weights(tmp_path / "run").items() if "/replay/" in name}
    obs, following, action, ends = (ring[name][:1920] for name in ("obs", "next_obs", "action", "ends"))
    expected = moved(obs.double(), action[:, 0])
    over = (expected[:, 0].abs() > X) | (expected[:, 2].abs() > THETA)
    assert torch.equal(ends == TERMINATED, over)
    assert set(ends.tolist()) == {GOES_ON, TERMINATED, TRUNCATED}
    torch.testing.assert_close(following[~over].double(), expected[~over], atol=2e-5, rtol=2e-5)
    assert (following - obs)[~over].abs().sum(1).min() > 1e-4


def moved(state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Return the states after a step from `state` [B, 4], by the equations of envs/cartpole.py."""
    x, speed, theta, turning = state.unbind(1)
    push = (torch.where(action == 1, 10.0, -10.0) + 0.05 * turning**2 * theta.sin()) / 1.1
    turning_up = (9.8 * theta.sin() - theta.cos() * push) / (0.5 * (4.0 / 3.0 - 0.1 * theta.cos() ** 2 / 1.1))
    speeding_up = push - 0.05 * turning_up * theta.cos() / 1.1
    return torch.stack([x + 0.02 * speed, speed + 0.02 * speeding_up, theta + 0.02 * turning, turning + 0.02 * turning_up], 1)


@pytest.mark.by_default(0)
def test_every_environment_and_actor_draws_noise_of_its_own() -> None:
    noise = explore(Box(2, -1.0, 1.0), (0.0, 0.1, 1.0), [0.0, 0.0], 2)
    assert noise.numel() == 2 * 2000 * 2
    assert noise.flatten().unique().numel() > 0.99 * noise.numel()  # float32 draws coincide now and then
    # Environments 0 to 5 and 6 to 11, of two actors.
    pendulum, numbers = import_environment("warprun.envs.pendulum", {})[0], torch.tensor([0.0, 0.1, 1.0])
    first, second = (
        make(pendulum, "pendulum", n_envs=6, first_env=first, horizon=4, exploration=Exploration("explored", {"agent": numbers}))
        for first in (0, 6)
    )
    assert first.device == CPU
    drawn = [engine.collect(lambda trajectory, row: None).groups["agent"].action for engine in (first, second)]
    assert torch.cat(drawn).unique().numel() == 2 * 4 * 6


@pytest.mark.by_default(0)
def test_lag_is_seen_and_bounded(tmp_path: Path) -> None:
    """A ring holds `concurrency.queue` rollouts, and an actor makes one more meanwhile."""
    actors = 3
    (received,) = exchange("rma", "queue", 1, actors, 300, 500, tmp_path)
    lags = [update - version for update, (_, _, version, _) in enumerate(received)]
    assert 0 < max(lags) <= actors * (QUEUE + 2)


@pytest.mark.slow
def test_rollouts_that_are_too_old_are_dropped_and_counted(tmp_path: Path) -> None:
    settings = ["env=cartpole", "agent=a2c", "agent.horizon=8", "n_envs=12", "total_steps=3840", "log.every=never"]
    record = train(4, tmp_path / "run", *settings, "concurrency=rma", "concurrency.max_lag=0")
    assert record["actors/rollouts_dropped"] > 0
    assert record["actors/lag_max"] == 0
    assert record["actors/rollouts"] == record["actors/rollouts_trained"] + record["actors/rollouts_dropped"] == 120
