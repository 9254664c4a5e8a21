"""Batches of other libraries: environments by id of gymnax, Brax and Jumanji, and the example in Warp."""

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.commands import ROOT
from tests.simulation.external.simulators import CPU, act
from tests.test_docs import make_files
from warprun.config.batched import GROUP
from warprun.config.schema import EnvConfig, load_environment
from warprun.errors import UserError
from warprun.spec import Box, Discrete, Field, MultiDiscrete


def load(library: str, **settings: Any) -> Any:
    pytest.importorskip(library)
    return load_environment(EnvConfig(library, f"warprun.envs.{library}", **settings))[0]


def prepared(environment: Any, n_envs: int, horizon: int) -> Any:
    made = environment.make_simulator(n_envs=n_envs, first_env=0, horizon=horizon, seed=1, device=CPU, exploration=None)
    made.prepare()
    return made


def state_of(simulator: Any, part: int | None = None) -> Any:
    """Return a copy of the state of a batch in jax."""
    import jax

    state = simulator.stepper._batch.state
    return jax.tree.map(lambda leaf: leaf.copy(), state if part is None else state[part])


def test_gymnax_by_id() -> None:
    """Steps of CartPole are those of the class of gymnax."""
    environment = load("gymnax", id="CartPole-v1", kwargs={"force_mag": 5.0})
    import gymnax
    import jax

    assert (environment.title, environment.spec.time_limit, environment.resumes) == ("CartPole-v1", 500, True)
    assert environment.spec.groups[0].action == Discrete(2) and environment.spec.groups[0].observation.size == 4
    taken = prepared(environment, 3, 40).collect(act)
    group, (env, params) = taken.groups[GROUP], gymnax.make("CartPole-v1")
    state = env.reset(jax.random.PRNGKey(0))[1]
    assert taken.terminated.any()
    for n in range(3):
        for row in range(40):
            x, x_dot, theta, theta_dot = group.obs[row, n, 0].numpy()
            before = state.replace(x=x, x_dot=x_dot, theta=theta, theta_dot=theta_dot)
            given = (before, int(group.action[row, n, 0, 0]), params.replace(force_mag=5.0))
            obs, _, reward, terminated, _ = env.step_env(jax.random.PRNGKey(0), *given)
            assert bool(terminated) == bool(taken.terminated[row, n]) and float(reward) == float(group.reward[row, n, 0])
            if not terminated:
                np.testing.assert_allclose(group.obs[row + 1, n, 0].numpy(), obs, rtol=1e-5, atol=1e-6)


def test_steps_and_resets_of_gymnax_in_one_call_are_both(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = load("gymnax", id="CartPole-v1")
    from warprun.envs.in_jax import InJax

    found = []
    for _ in range(2):
        taken = prepared(environment, 5, 40).collect(act)
        assert taken.terminated.any()
        found.append(taken.groups[GROUP].obs)
        monkeypatch.delattr(InJax, "step_and_reset", raising=False)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_brax_by_id() -> None:
    """Steps are those of the class of Brax, and episodes end where it says so."""
    environment = load("brax", id="inverted_pendulum", kwargs={"backend": "spring"})
    import jax
    from brax import envs

    assert (environment.title, environment.spec.time_limit, environment.resumes) == ("inverted_pendulum", 1000, True)
    assert environment.spec.groups[0].action == Box(1, -1.0, 1.0)
    simulator = prepared(environment, 3, 30)
    states, taken = state_of(simulator), simulator.collect(act)
    group, env = taken.groups[GROUP], envs.get_environment("inverted_pendulum", backend="spring")
    step, begun = jax.jit(jax.vmap(env.step)), np.ones(3, bool)
    for row in range(30):
        states = step(states, np.clip(group.action[row, :, 0].numpy(), -1.0, 1.0))
        np.testing.assert_allclose(group.reward[row, begun, 0].numpy(), np.asarray(states.reward)[begun], rtol=1e-5)
        assert (taken.terminated[row].numpy()[begun] == (np.asarray(states.done)[begun] > 0.5)).all()
        begun &= ~taken.terminated[row].numpy()  # until the first episode ends
        np.testing.assert_allclose(group.obs[row + 1, begun, 0].numpy(), np.asarray(states.obs)[begun], rtol=1e-4, atol=1e-5)
    assert not begun.all()


def test_pictures_of_gymnax() -> None:
    """The field of a game of MinAtar has its cells, channels last."""
    environment = load("gymnax", id="Breakout-MinAtar")
    import gymnax
    import jax

    assert environment.spec.groups[0].observation == Box(400, 0.0, 1.0, (Field(0, (4, 10, 10), channels_last=True),))
    simulator = prepared(environment, 2, 3)
    taken = simulator.collect(act)
    seen = jax.vmap(gymnax.make("Breakout-MinAtar")[0].get_obs)(simulator.stepper._batch.state[1])
    np.testing.assert_array_equal(taken.groups[GROUP].obs[-1, :, 0].numpy(), np.asarray(seen, np.float32).reshape(2, -1))


OF_JUMANJI = {
    "Snake-v1": (("grid", "step_count"), Discrete(4), (Field(0, (5, 12, 12), channels_last=True),)),
    "Minesweeper-v0": (("board", "num_mines", "step_count"), Discrete(100), (Field(0, (1, 10, 10)),)),
    "LevelBasedForaging-v0": (("agents_view", "step_count"), MultiDiscrete((6, 6)), ()),
}
"""Id -> the parts of its observations, its actions, and its pictures. The mask of Minesweeper is one of rows and columns together."""


@pytest.mark.long
@pytest.mark.parametrize("id", OF_JUMANJI)
def test_jumanji_by_id(id: str) -> None:
    """Observations, masks, rewards and ends of first episodes are those of Jumanji, stepped with the same actions."""
    parts, action, fields = OF_JUMANJI[id]
    environment = load("jumanji", id=id)
    import jax
    import jumanji

    (group_spec,) = environment.spec.groups
    assert (group_spec.action, group_spec.observation.fields, group_spec.masked) == (action, fields, True)
    simulator = prepared(environment, 4, 30)
    states, taken = state_of(simulator, 0), simulator.collect(act)
    group, step, goes_on = taken.groups[GROUP], jax.jit(jax.vmap(jumanji.make(id).step)), np.ones(4, bool)
    chosen = group.action[:, :, 0].numpy()
    for row in range(30):
        given = {"Snake-v1": chosen[row, :, 0], "Minesweeper-v0": np.concatenate(np.divmod(chosen[row], 10), 1)}.get(id, chosen[row])
        assert group.mask[row, :, 0].gather(1, torch.from_numpy(chosen[row][:, :1]).long()).all()
        states, timestep = step(states, given)
        rewards = np.asarray(timestep.reward).reshape(4, -1).sum(1)
        np.testing.assert_allclose(group.reward[row, goes_on, 0].numpy(), rewards[goes_on], rtol=1e-6)
        last = np.asarray(timestep.step_type) == 2
        assert ((taken.terminated[row] | taken.truncated[row]).numpy()[goes_on] == last[goes_on]).all()
        goes_on &= ~last
        seen = [np.asarray(getattr(timestep.observation, part), np.float32).reshape(4, -1) for part in parts]
        np.testing.assert_array_equal(group.obs[row + 1, goes_on, 0].numpy(), np.concatenate(seen, 1)[goes_on])
        allowed = np.asarray(timestep.observation.action_mask).reshape(4, -1)
        np.testing.assert_array_equal(group.mask[row + 1, goes_on, 0].numpy(), allowed[goes_on])
    assert goes_on.all() == (id != "Minesweeper-v0") and simulator.fault() is None


@pytest.mark.parametrize(
    ("library", "settings", "told"),
    [
        *((library, {}, "env.id is missing") for library in ("gymnax", "brax", "jumanji")),
        ("gymnax", {"id": "CartPol-v1"}, "did you mean 'CartPole-v1'?"),
        ("gymnax", {"id": "CartPole-v1", "kwargs": {"mass": 1.0}}, "env.kwargs.mass: CartPole-v1 has no such parameter; it has max_steps"),
        ("brax", {"id": "atn"}, "did you mean 'ant'?"),
        ("jumanji", {"id": "Snak-v1"}, "did you mean 'Snake-v1'?"),
        ("jumanji", {"id": "Snake-v1", "kwargs": {"colour": 1}}, "unexpected keyword argument 'colour'"),
    ],
)
def test_mistakes_with_ids(library: str, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        load(library, **settings)


@pytest.mark.long
def test_pendulums_of_the_page_in_warp_are_those_in_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same steps, and no copies: kernels of Warp read the actions and write the observations in the rollout."""
    warp = pytest.importorskip("warp")
    make_files(ROOT / "docs" / "external.md", tmp_path)
    shutil.copytree(ROOT / "examples" / "warp", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    made = [load_environment(EnvConfig(name, f"./{name}.py", time_limit=200))[0] for name in ("warped", "pendulums")]
    ours, reference = (prepared(environment, 16, 30) for environment in made)
    batch, step, pointers = ours._batch, ours._batch.step, []

    def noted(actions: Any, out: Any) -> Any:
        row = len(pointers)
        group = ours.trajectory.groups[GROUP]
        pointers.append((out.ptr == group.obs[row + 1].data_ptr(), type(actions) is warp.array))
        return step(actions, out)

    monkeypatch.setattr(batch, "step", noted)
    reference._batch.state = torch.from_dlpack(batch.state).clone()
    group = ours.collect(act).groups[GROUP]
    assert len(pointers) == 30 and all(all(pair) for pair in pointers)
    for row in range(30):
        torque = 2.0 * group.action[row, :, 0].clamp(-1.0, 1.0)
        obs, rewards, _, _ = reference._batch.step(torque)
        torch.testing.assert_close(group.obs[row + 1, :, 0], obs, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(group.reward[row, :, 0], rewards, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("library", "id"), [("gymnax", "CartPole-v1"), ("brax", "ant"), ("jumanji", "Snake-v1")])
def test_libraries_of_environments_are_extras(library: str, id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setitem(sys.modules, f"{library}.envs", None)
    monkeypatch.delitem(sys.modules, f"warprun.envs.{library}", raising=False)
    with pytest.raises(UserError, match=rf'{library} is not installed; run: pip install "warprun\[{library}\]"'):
        load_environment(EnvConfig(library, f"warprun.envs.{library}", id=id))
