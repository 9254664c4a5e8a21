"""`make_vec` against the engine that training uses, against Gymnasium's CartPole, and against Gymnasium's own wrappers."""

from __future__ import annotations

import copy
import pickle

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import warprun
from tests.environments import clockwork
from tests.gliders import glider
from tests.simulation.rollouts import make
from warprun.config.environments import environment_config
from warprun.config.external import BY_ID
from warprun.config.registry import import_environment, options
from warprun.config.schema import load_environment
from warprun.environment import Environment
from warprun.errors import UserError
from warprun.interop.registration import IDS
from warprun.interop.vector import WarprunEnv

N = 130
"""Two tiles and a part of one."""
CLOCKWORK = "tests.environments.clockwork"
VARY = {"weight": (-1.0, 3.0), "length": (5.0, 6.0)}


def engine_of(module: str, n_envs: int = N, seed: int = 7, **options):
    environment, _ = import_environment(module)
    return make(environment, module.rpartition(".")[2], n_envs=n_envs, horizon=1, seed=seed, **options)


@pytest.mark.by_default(2)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("module", "randomize"),
    [("warprun.envs.cartpole", {}), (CLOCKWORK, VARY), pytest.param("warprun.envs.pendulum", {}, marks=pytest.mark.slow)],
    ids=["cartpole", "clockwork", "pendulum"],
)
def test_episodes_are_those_of_training(module, randomize, threads):
    """Bit for bit, with the same seed and actions; one thread or two."""
    engine = engine_of(module, vary=randomize)
    envs = warprun.make_vec(module, N, randomize=randomize, threads=threads)
    envs.engine._kernels._alone = threads == 1
    agent = engine.trajectory.groups["agent"]
    obs, _ = envs.reset(seed=7)
    np.testing.assert_array_equal(obs, agent.obs[0, :, 0].numpy())
    draw, ends = np.random.default_rng(3), 0
    for _ in range(60):
        if module.endswith("pendulum"):
            # Multiples of 1/8, some of them beyond the bounds, which both units hold exactly.
            actions = draw.integers(-20, 21, (N, 1)).astype(np.float32) / 8
            agent.action[0, :, 0] = torch.from_numpy(actions / 2)
        else:
            actions = (draw.random(N) < 0.3).astype(np.int64)
            agent.action[0, :, 0, 0] = torch.from_numpy(actions)
        engine.step(0)
        obs, reward, terminated, truncated, infos = envs.step(actions)
        np.testing.assert_array_equal(obs, agent.obs[1, :, 0].numpy())
        np.testing.assert_array_equal(reward, agent.reward[0, :, 0].numpy())
        np.testing.assert_array_equal(terminated, engine.trajectory.terminated[0].numpy())
        np.testing.assert_array_equal(truncated, engine.trajectory.truncated[0].numpy())
        if truncated.any():
            np.testing.assert_array_equal(infos["final_obs"][truncated], agent.final_obs[0, :, 0].numpy()[truncated])
        ends += int((terminated | truncated).sum())
    assert ends > N or module.endswith("pendulum")


def test_every_end_has_its_final_observation():
    """Of terminated episodes, too: clockwork counts its steps in its observation."""
    envs = warprun.make_vec(CLOCKWORK, N, statistics=True)
    before, _ = envs.reset(seed=1)
    before = before.copy()
    draw = np.random.default_rng(0)
    kinds = set()
    for _ in range(30):
        obs, _, terminated, truncated, infos = envs.step((draw.random(N) < 0.2).astype(np.int32))
        over = terminated | truncated
        assert ("final_obs" in infos) == over.any()
        assert not (terminated & truncated).any()
        if over.any():
            np.testing.assert_array_equal(infos["_final_obs"], over)
            final = infos["final_obs"][over]
            np.testing.assert_array_equal(final[:, 0], before[over, 0])  # the ticket of the episode
            np.testing.assert_array_equal(final[:, 1], before[over, 1] + 1)  # its steps
            np.testing.assert_array_equal(infos["episode"]["l"][over], final[:, 1])
            np.testing.assert_array_equal(infos["episode"]["r"], np.where(over, infos["episode"]["l"] * (infos["episode"]["l"] + 1) / 2, 0))
            assert (obs[over, 1] == 0).all()
            assert (final[:, 1][truncated[over]] == clockwork.environment.time_limit).all()
        kinds |= {name for name, any_of in (("terminated", terminated), ("truncated", truncated)) if any_of.any()}
        before = obs.copy()
    assert kinds == {"terminated", "truncated"}


def test_seeds_decide_the_episodes():
    envs = warprun.make_vec("cartpole", N)
    first, _ = envs.reset(seed=3)
    first = first.copy()
    ran = [envs.step(np.ones(N, np.int64))[0].copy() for _ in range(20)]
    again, _ = envs.reset(seed=3)
    np.testing.assert_array_equal(again, first)
    for expected in ran:
        np.testing.assert_array_equal(envs.step(np.ones(N, np.int64))[0], expected)
    other, _ = envs.reset()
    following, _ = envs.reset()
    assert (other != first).all() and (other != following).all()
    assert (envs.reset(seed=4)[0] != first).all()
    unseeded = warprun.make_vec("cartpole", N)
    assert (unseeded.reset()[0] != first).all()


def test_results_belong_to_the_caller():
    """Also a view of a part of them: memory is used again only if nothing refers to it, or with copy=False."""
    envs = warprun.make_vec("cartpole", N)
    envs.reset(seed=0)
    kept, copies = [], []
    for _ in range(40):
        results = envs.step(np.ones(N, np.int64))
        part = results[0][5:9]
        kept.append((part, *results[1:4], results[4].get("final_obs")))
        copies.append([None if array is None else array.copy() for array in kept[-1]])
        del results, part
    for arrays, expected in zip(kept, copies, strict=True):
        for array, copied in zip(arrays, expected, strict=True):
            np.testing.assert_array_equal(array, copied)
    reused = warprun.make_vec("cartpole", N, copy=False)
    reused.reset(seed=0)
    first, second = (reused.step(np.ones(N, np.int64))[:4] for _ in range(2))
    assert all(np.shares_memory(one, other) for one, other in zip(first, second, strict=True))


def test_torch_tensors_share_the_memory_of_the_kernels():
    envs, numpy = (warprun.make_vec("cartpole", N, output=output) for output in ("torch", "numpy"))
    assert torch.equal(envs.reset(seed=2)[0], torch.from_numpy(numpy.reset(seed=2)[0]))
    kept = []
    for _ in range(30):
        actions = torch.randint(0, 2, (N,))
        found, expected = envs.step(actions), numpy.step(actions.numpy())
        for ours, theirs in zip(found[:4], expected[:4], strict=True):
            assert torch.equal(ours, torch.from_numpy(theirs))
        kept.append((found[0][:3], found[0][:3].clone()))
    assert all(torch.equal(part, copied) for part, copied in kept)


def test_actions_are_checked_before_anything_is_stepped():
    envs = warprun.make_vec("cartpole", N)
    envs.reset(seed=0)
    for actions, told in (
        *((np.array([0] * (N - 1) + [value]), r"not in Discrete\(n=2, start=0\)") for value in (2, -1, 2**32)),
        (np.zeros(3, np.int64), r"shape \[3\]"),
        (np.zeros(N), "whole numbers"),
        ([[0], [0, 1]], "actions cannot be read"),
        (torch.zeros(N, requires_grad=True), "actions cannot be read"),
    ):
        with pytest.raises(UserError, match=told):
            envs.step(actions)
    found = envs.step(np.zeros(N, np.uint8))[0].copy()
    envs.reset(seed=0)
    np.testing.assert_array_equal(envs.step(np.zeros(N, np.int32))[0], found)


def test_actions_of_any_layout_run_the_same_kernel():
    envs = warprun.make_vec("cartpole", N)
    envs.reset(seed=0)
    kernel = envs.engine._kernels._takes[0]
    envs.step(np.zeros(N, np.int64))
    compiled = len(kernel.signatures)
    read_only = np.zeros(N, np.int64)
    read_only.flags.writeable = False
    shifted = np.zeros(8 * N + 1, np.int8)[1:].view(np.int64)
    for actions in (read_only, shifted, np.zeros(2 * N, np.int64)[::2], np.zeros(N, ">i8"), np.zeros(N, np.uint8), [0] * N):
        envs.step(actions)
    assert len(kernel.signatures) == compiled


def test_box_actions_are_in_the_units_of_the_environment():
    envs = warprun.make_vec("pendulum", N)
    theirs = gymnasium.make("Pendulum-v1").unwrapped
    obs, _ = envs.reset(seed=1)
    torque = np.linspace(-3.0, 3.0, N)
    found = envs.step(torque[:, None])
    for n in range(0, N, 13):
        theirs.reset(seed=0)
        theirs.state = np.array([np.arctan2(obs[n, 1], obs[n, 0]), obs[n, 2]], np.float64)
        expected = theirs.step(np.array([torque[n]]))
        np.testing.assert_allclose(found[0][n], expected[0], atol=1e-5)
        assert found[1][n] == pytest.approx(expected[1], rel=1e-4, abs=1e-4)


def test_spaces_and_metadata_are_those_of_gymnasium():
    envs = warprun.make_vec("cartpole", 3)
    theirs = gymnasium.make_vec("CartPole-v1", num_envs=3)
    assert envs.single_observation_space == theirs.single_observation_space
    assert envs.observation_space == theirs.observation_space
    assert envs.action_space == theirs.action_space
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    obs, _ = envs.reset(seed=0)
    assert obs in envs.observation_space


def test_settings_reach_the_environment():
    envs = warprun.make_vec("cartpole", 4, params={"start": 0.0}, time_limit=6)
    assert (envs.reset(seed=0)[0] == 0).all()
    ends = [envs.step(np.array([0, 1, 0, 1]))[3].all() for _ in range(12)]
    assert ends == [*5 * [False], True] * 2
    for given, message in (
        ({"env": "cartpoel"}, "did you mean 'cartpole'"),
        ({"env": "cartpole", "num_envs": 0}, "num_envs"),
        ({"env": "cartpole", "device": "gpu"}, "device=gpu is not one of"),
        ({"env": "cartpole", "output": "jax"}, "output='jax'"),
        ({"env": "cartpole", "randomize": {"length": 0.5}}, "two numbers"),
        ({"env": "cartpole", "randomize": ["length"]}, "randomize=.* must be a dict"),
        ({"env": "cartpole", "params": {3: 3}}, "params=.* must be a dict"),
        ({"env": "cartpole", "params": {"strat": 0.0}}, "no parameter 'strat'"),
        ({"env": "cartpole", "options": ["x"]}, "options=.* must be a dict"),
        ({"env": "cartpole", "time_limit": 2.5}, "^time_limit must be"),
    ):
        with pytest.raises(UserError, match=message):
            warprun.make_vec(**given)


def test_several_actors_are_refused_before_anything_is_compiled(monkeypatch):
    monkeypatch.setattr("warprun.interop.vector.make_engine", None)
    with pytest.raises(UserError, match="make_parallel"):
        warprun.make_vec("tests.environments.market")


def test_closed_environments_refuse_to_step():
    envs = warprun.make_vec("cartpole", 2)
    with pytest.raises(gymnasium.error.ResetNeeded):
        envs.step(np.zeros(2, np.int64))
    envs.reset(seed=0)
    envs.close()
    envs.close()
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        envs.step(np.zeros(2, np.int64))


def test_environments_refuse_to_be_copied():
    """The kernels of a copy would write into the arrays of the original."""
    for made in (warprun.make_vec("cartpole", 2), gymnasium.make("warprun.interop.registration:warprun/CartPole-v0").unwrapped):
        for attempt in (copy.deepcopy, copy.copy, pickle.dumps):
            with pytest.raises(UserError, match="cannot be copied"):
                attempt(made.engine)
        with pytest.raises(UserError, match="cannot be copied"):
            copy.deepcopy(made)


MASKED = glider(
    "",
    "",
    "s, action",
    settings="mask=lambda s, k: k != s.x",
    after="action",
    over="action == 2",
    start="0",
    kind="int32",
    choices=3,
    limit=9,
)


def test_masks_are_in_infos(tmp_path):
    """The last action is forbidden, and action 2 ends the episode, after which 0 is."""
    file = tmp_path / "masked.py"
    file.write_text(MASKED)
    envs = warprun.make_vec(str(file), 6)
    _, infos = envs.reset(seed=0)
    np.testing.assert_array_equal(infos["action_mask"], [[False, True, True]] * 6)
    infos = envs.step(np.array([1, 2, 1, 2, 1, 2]))[4]
    np.testing.assert_array_equal(infos["action_mask"], [[True, False, True], [False, True, True]] * 3)
    assert infos["_action_mask"].all()
    np.testing.assert_array_equal(infos["final_obs"][1::2], [[2.0]] * 3)
    np.testing.assert_array_equal(infos["final_info"]["action_mask"][1::2], [[True, True, False]] * 3)
    np.testing.assert_array_equal(infos["final_info"]["_action_mask"], [False, True] * 3)
    assert "final_info" not in envs.step(np.zeros(6, np.int64))[4]
    alone = WarprunEnv(str(file))
    alone.reset(seed=0)
    np.testing.assert_array_equal(alone.step(2)[4]["action_mask"], [True, True, False])
    np.testing.assert_array_equal(alone.reset()[1]["action_mask"], [False, True, True])
    several = warprun.make_parallel(str(file))
    several.reset(seed=0)
    np.testing.assert_array_equal(several.step({"agent_0": 2})[0]["agent_0"]["action_mask"], [1, 1, 0])


# Environments registered with Gymnasium: its own checks, and the episodes of the vector environment


def test_every_shipped_environment_of_one_actor_is_registered():
    alone = []
    for name in options("env"):
        if environment_config(name).module in BY_ID:
            continue  # stands for all environments of a library
        environment, _ = load_environment(environment_config(name))
        if not isinstance(environment, Environment):
            continue  # steps by itself, not in an engine
        if [group.size for group in environment.spec.groups] == [1]:
            alone.append(name)
    assert sorted(IDS.values()) == sorted(alone)
    assert all(id_ in gymnasium.registry for id_ in IDS)


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize(
    "id_", ["CartPole", "Pendulum", *(pytest.param(name, marks=pytest.mark.slow) for name in ("Acrobot", "MountainCar", "Catalysis"))]
)
def test_gymnasium_finds_nothing_wrong(id_):
    check_env(gymnasium.make(f"warprun/{id_}-v0").unwrapped)


def test_an_episode_ends_with_its_final_observation_and_waits_for_reset():
    env = gymnasium.make("warprun/CartPole-v0", params={"force": 20.0}, time_limit=6)
    envs = warprun.make_vec("cartpole", 1, params={"force": 20.0}, time_limit=6)
    obs, _ = env.reset(seed=3)
    np.testing.assert_array_equal(obs, envs.reset(seed=3)[0][0])
    several = gymnasium.make_vec("warprun/CartPole-v0", num_envs=3)
    np.testing.assert_array_equal(several.reset(seed=1)[0], warprun.make_vec("cartpole", 3).reset(seed=1)[0])
    for step in range(1, 7):
        found, expected = env.step(step % 2), envs.step(np.array([step % 2]))
        seen = expected[4]["final_obs"] if "final_obs" in expected[4] else expected[0]
        np.testing.assert_array_equal(found[0], seen[0])
        assert found[1:4] == (expected[1][0], expected[2][0], expected[3][0])
    assert found[3] and not found[2]
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(0)
    assert (env.reset()[0] != obs).all()


TABLED = glider(
    "import numpy as np",
    "\nclass Tables(NamedTuple):\n    numbers: np.ndarray\n",
    "s, action, tables",
    settings='tables=lambda whole: Tables(np.array([4, 5, 6], np.int32 if whole else np.float32)), options={"whole": True}',
    after="float32(tables.numbers[action])",
    choices=3,
    limit=9,
)


def test_an_option_can_change_the_type_of_a_table(tmp_path):
    """Kernels of one source are compiled for tables of several types."""
    file = tmp_path / "tabled.py"
    file.write_text(TABLED)
    for whole in (True, False, True):
        envs = warprun.make_vec(str(file), 3, options={"whole": whole})
        envs.reset(seed=0)
        assert envs.step([2, 0, 1])[0].tolist() == [[6.0], [4.0], [5.0]]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_cannot_be_drawn_says_so():
    with pytest.raises(UserError, match="cannot be drawn"):
        gymnasium.make("warprun/CartPole-v0", render_mode="rgb_array", disable_env_checker=True)
