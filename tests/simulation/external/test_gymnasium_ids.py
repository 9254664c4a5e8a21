"""Rollouts of env=gymnasium are those of Gymnasium alone: same seeds and actions, same observations, rewards and ends of episodes."""

import gymnasium
import numpy as np
import pytest

from tests.simulation.external.simulators import act, chosen, environment, seeds, simulator

FAMILIES = {
    "CartPole-v1": {},
    "Acrobot-v1": {},
    "MountainCar-v0": {},
    "MountainCarContinuous-v0": {},
    "Pendulum-v1": {},
    "LunarLander-v3": {},
    "LunarLanderContinuous-v3": {},
    "BipedalWalker-v3": {},
    "FrozenLake-v1": {"is_slippery": False},
    "Taxi-v4": {},
    "CliffWalking-v1": {},
    "Blackjack-v1": {"natural": True},
}


def follow(name: str, steps: int, workers: int, time_limit: int | None = None) -> int:
    """Compare `steps` steps of three environments; return how many episodes ended."""
    kwargs = FAMILIES[name]
    horizon, n_envs = 50, 3
    of = environment(id=name, kwargs=dict(kwargs), time_limit=time_limit)
    theirs = [gymnasium.make(name, **kwargs, **({"max_episode_steps": time_limit} if time_limit else {})) for _ in range(n_envs)]
    space = theirs[0].observation_space
    ended = 0
    with simulator(of, n_envs, horizon, workers) as made:
        made.prepare()
        obs = [gymnasium.spaces.flatten(space, env.reset(seed=seed)[0]) for env, seed in zip(theirs, seeds(made), strict=True)]
        for _ in range(steps // horizon):
            taken = made.collect(act)
            group, slot = taken.groups["agent"], taken.final_slot()
            for row in range(horizon):
                for n, env in enumerate(theirs):
                    np.testing.assert_array_equal(group.obs[row, n, 0].numpy(), np.asarray(obs[n], np.float32), f"{name} {row}")
                    after, reward, terminated, truncated, _ = env.step(chosen(of, group.action[row, n, 0], env.action_space))
                    assert group.reward[row, n, 0] == np.float32(reward)
                    assert taken.terminated[row, n] == terminated
                    assert taken.truncated[row, n] == (truncated and not terminated)
                    after = gymnasium.spaces.flatten(space, after)
                    if taken.truncated[row, n]:
                        np.testing.assert_array_equal(group.final_obs[slot[row, n], n, 0].numpy(), np.asarray(after, np.float32))
                    if terminated or truncated:
                        ended += 1
                        after = gymnasium.spaces.flatten(space, env.reset()[0])
                    obs[n] = after
        assert made.fault() is None
        assert made.episodes().count == ended
    return ended


@pytest.mark.by_default(4)
@pytest.mark.parametrize("name", sorted(FAMILIES, key=lambda name: not name.startswith(("CartPole", "Pendulum", "Taxi", "Blackjack"))))
def test_hundred_steps_are_those_of_gymnasium(name: str) -> None:
    # Most of them end no episode within 100 steps, so a time limit ends some.
    assert follow(name, 100, workers=0, time_limit=30) >= 9


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_thousand_steps_in_workers_are_those_of_gymnasium(name: str) -> None:
    follow(name, 1000, workers=2)


@pytest.mark.long
def test_steps_do_not_depend_on_the_workers() -> None:
    found = []
    for workers in (0, 1, 2, 3):
        with simulator(environment(id="CartPole-v1"), 3, 40, workers) as made:
            made.prepare()
            made.collect(act)
            taken = made.collect(act)
            found.append([tensor.clone() for tensor in (taken.groups["agent"].obs, taken.groups["agent"].action, taken.terminated)])
    for others in found[1:]:
        assert all(bool((a == b).all()) for a, b in zip(found[0], others, strict=True))
