"""The Kuramoto-Sivashinsky equation: its scheme against another one, its steady states, and runs."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.scripts import load
from tests.words import words
from warprun.cli import main as cli
from warprun.config.schema import EnvConfig, load_environment
from warprun.envs import kuramoto_sivashinsky as ks
from warprun.envs.kuramoto_sivashinsky import AMPLITUDE, GRID, LENGTH, POINTS, Flow, KuramotoSivashinsky, steady_state
from warprun.errors import UserError
from warprun.runs import checkpoint

WAVES = 2 * np.pi / LENGTH * np.arange(POINTS // 2 + 1)
KEPT = np.arange(POINTS // 2 + 1) <= POINTS // 3
"""The rule of two thirds."""
TARGETS = range(1, 4)
DOUBLE = torch.float64
EIGENVALUES = [(1, 0.1308, 0.3341), (2, 0.1390, 0.2384), (3, 0.0933, 0.0)]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of torch wait for each other where other programs use the cores; a run has one as well."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def derivative(u: np.ndarray, order: int) -> np.ndarray:
    found: np.ndarray = np.fft.irfft((1j * WAVES) ** order * np.fft.rfft(u), POINTS)
    return found


def kept(u: np.ndarray) -> np.ndarray:
    """Return fields without the waves that the rule of two thirds leaves out."""
    found: np.ndarray = np.fft.irfft(KEPT * np.fft.rfft(u), POINTS)
    return found


def slope(u: np.ndarray, force: np.ndarray) -> np.ndarray:
    """Return du/dt as the equation says it, with u du/dx in another form than that of `Flow`."""
    return kept(force - u * derivative(u, 1) - derivative(u, 2) - derivative(u, 4))


def runge_kutta(u: np.ndarray, force: np.ndarray, time: float, step: float = 2e-3) -> np.ndarray:
    """Return fields after some time by the classical method, whose step is stable for the fastest decay."""
    for _ in range(round(time / step)):
        a = slope(u, force)
        b = slope(u + step / 2 * a, force)
        c = slope(u + step / 2 * b, force)
        d = slope(u + step * c, force)
        u = u + step / 6 * (a + 2 * b + 2 * c + d)
    return u


def some_fields(count: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Return fields of the attractor, and forces of four actuators, [count, POINTS]."""
    amplitudes = np.random.default_rng(1).uniform(-AMPLITUDE, AMPLITUDE, (count, 4))
    return ks.attractor()[:count].numpy(), amplitudes @ ks.actuator_shapes(4)


def advanced(u: np.ndarray, force: np.ndarray, time: float, step: float, dtype: torch.dtype = DOUBLE) -> np.ndarray:
    given = (torch.as_tensor(each, dtype=dtype) for each in (u, force))
    found: np.ndarray = Flow(step, dtype).advance(*given, round(time / step)).double().numpy()
    return found


def test_a_field_follows_the_equation() -> None:
    """The run's own step in float32; in float64 errors fall with the third power of the step or faster."""
    u, force = some_fields()
    exact = runge_kutta(u, force, 2.0)
    assert np.abs(exact - u).max() > 0.5
    assert np.abs(advanced(u, force, 2.0, ks.TIME_STEP, torch.float32) - exact).max() < 1e-4
    errors = [np.abs(advanced(u, force, 2.0, step) - exact).max() for step in (0.25, 0.125, 0.0625)]
    assert all(coarse / fine > 6 for coarse, fine in pairwise(errors)), errors


@pytest.mark.parametrize("target", TARGETS)
def test_targets_are_the_published_steady_states(target: int) -> None:
    """Energies of Cvitanovic, Davidchack and Siminos 2010."""
    u = steady_state(target)
    assert np.abs(slope(u, np.zeros(POINTS))).max() < 1e-9
    assert 0.5 * np.square(u).mean() == pytest.approx((0.2609, 0.4382, 1.5876)[target - 1], abs=5e-5)
    np.testing.assert_allclose(u, -np.roll(u[::-1], 1), atol=1e-12)
    assert not steady_state(0).any()


@pytest.mark.parametrize(("target", "growth", "frequency"), EIGENVALUES)
def test_targets_are_unstable(target: int, growth: float, frequency: float) -> None:
    """The two largest eigenvalues of the linearised flow are those of the same paper."""
    found = np.linalg.eigvals(load("compare.kuramoto_sivashinsky").linearised(target)[0])
    rates = np.log(found[np.abs(found) > 0.5]) / 0.5
    largest = rates[rates.real > rates.real.max() - 1e-3]
    assert len(largest) == 2
    np.testing.assert_allclose(largest.real, growth, atol=1e-4)
    np.testing.assert_allclose(np.abs(largest.imag), frequency, atol=1e-4)


@pytest.mark.parametrize("target", TARGETS)
def test_a_regulator_holds_the_target(target: int) -> None:
    """The linearisation by differences, and the environment with its limits and float32, about the target."""
    script = load("compare.kuramoto_sivashinsky")
    gain = script.regulator(target, 1.0)
    a, b = script.linearised(target)
    assert np.abs(np.linalg.eigvals(a - b @ gain)).max() < 0.99
    held = {}
    for name, controller in (("free", script.no_control), ("held", script.linear(target, gain))):
        env = KuramotoSivashinsky(8, target=target)
        env.u = env.target + 0.02 * torch.randn((8, POINTS), generator=torch.Generator().manual_seed(3))
        for _ in range(200):
            env.step(controller(env, env.observe()))
        held[name] = env.distance()
    assert held["free"].min() > 0.3 and held["held"].max() < 1e-3


# The environment ------------------------------------------------------------------------------------------------------


def begun(n_envs: int = 6, **arguments: object) -> KuramotoSivashinsky:
    env = KuramotoSivashinsky(n_envs, **arguments)  # type: ignore[arg-type]
    env.reset(7, torch.ones(n_envs, dtype=torch.bool))
    return env


def test_a_step_holds_the_action_for_a_period_and_rewards_nearness() -> None:
    env = begun(target=3, control_period=0.3)
    before = env.u.clone()
    actions = torch.linspace(-AMPLITUDE, AMPLITUDE, 24).reshape(6, 4)
    seen, reward, terminated, truncated = env.step(actions)
    away = np.abs(GRID - LENGTH / 4 * np.arange(4)[:, None])
    bumps = np.exp(-0.5 * (np.minimum(away, LENGTH - away) / 0.4) ** 2)
    after = runge_kutta(before.double().numpy(), actions.double().numpy() @ bumps, 0.3)
    np.testing.assert_allclose(env.u, after, atol=1e-4)
    np.testing.assert_allclose(reward, -np.sqrt(np.square(after - steady_state(3)).mean(1)), atol=1e-4)
    assert torch.equal(seen, env.u[:, ::8]) and not terminated.any() and not truncated.any()


def test_episodes_begin_on_the_attractor_each_with_another_field() -> None:
    """Where the mask says so. Moving a field keeps v_1^2 conj(v_2) of its modes v; mirroring takes it to -conj."""
    env = begun(128)
    first = env.u.clone()
    mask = torch.arange(128) % 3 == 0
    env.reset(8, mask)
    assert torch.equal(env.u[~mask], first[~mask]) and not (env.u[mask] == first[mask]).all(1).any()
    assert len(torch.unique(first, dim=0)) == 128 and first.mean(1).abs().max() < 1e-5

    def invariant(fields: torch.Tensor) -> torch.Tensor:
        v = ks.modes_of(fields.double())
        return v[:, 1].square() * v[:, 2].conj()

    known, found = invariant(ks.attractor()), invariant(first)[:, None]
    moved, mirrored = ((found - known).abs().amin(1), (found + known.conj()).abs().amin(1))
    size = float(known.abs().mean())
    assert torch.minimum(moved, mirrored).max() < 1e-4 * size
    assert 40 < (moved < 1e-4 * size).sum() < 88


def test_fields_of_the_attractor_stay_on_it() -> None:
    """The mean energy is the same after as long a time without control as an episode has."""
    fields = ks.attractor()
    later = Flow(ks.TIME_STEP, DOUBLE).advance(fields, torch.zeros_like(fields), 800)
    before, after = (0.5 * float(each.square().mean()) for each in (fields, later))
    assert before == pytest.approx(after, rel=0.2) and before > 0.5


def test_noise_is_of_the_sensors_only() -> None:
    quiet, noisy = begun(200), begun(200, noise=0.3)
    actions = torch.zeros(200, 4)
    exact, seen = quiet.step(actions), noisy.step(actions)
    assert torch.equal(quiet.u, noisy.u) and torch.equal(exact[1], seen[1])
    errors = seen[0] - exact[0]
    assert float(errors.std()) == pytest.approx(0.3, rel=0.1) and abs(float(errors.mean())) < 0.03


def test_a_whole_episode_at_the_limits_stays_finite() -> None:
    """All actuators push the same way, so that the mean of u grows to 9."""
    env = begun()
    for _ in range(200):
        env.step(torch.full((6, 4), AMPLITUDE))
    assert env.u.isfinite().all() and float(env.u.mean()) == pytest.approx(9.1, abs=0.1)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"target": 4}, r"env.kwargs.target=4: it must be a whole number, 0 to 3"),
        ({"target": True}, r"env.kwargs.target=True: "),
        ({"actuators": 0}, r"env.kwargs.actuators=0: it must be a whole number, 1 to 64"),
        ({"sensors": 10}, r"env.kwargs.sensors=10: it must be a whole number, 1, 2, 4, 8, 16, 32, 64"),
        ({"control_period": 0}, r"env.kwargs.control_period=0: it must be a number, 0.001 to 10"),
        ({"noise": "much"}, r"env.kwargs.noise='much': "),
        ({"viscosity": 2}, r"has no argument 'viscosity'"),
    ],
)
def test_mistakes_are_told_in_one_line(given: dict[str, object], told: str) -> None:
    with pytest.raises(UserError, match=told):
        load_environment(EnvConfig("flow", "warprun.envs.kuramoto_sivashinsky", kwargs=given))


def test_options_make_the_spaces() -> None:
    kwargs = {"actuators": 5, "sensors": 64}
    (group,) = load_environment(EnvConfig("flow", "warprun.envs.kuramoto_sivashinsky", kwargs=kwargs))[0].spec.groups
    assert (group.observation.size, group.action.size, group.action.bounds()[0]) == (64, 5, (-0.5, 0.5))


@pytest.mark.long
def test_a_resumed_run_continues_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With noise, whose generator is a part of the state; interrupted in the middle of episodes."""
    monkeypatch.chdir(tmp_path)
    given = words("""
        env=kuramoto_sivashinsky env.kwargs.noise=0.1 env.time_limit=12 agent=ppo agent.horizon=8 agent.minibatches=2
        agent.epochs=1 n_envs=4 eval.every=never eval.final_episodes=2 device=cpu log.live=false log.tensorboard=false
        tuned=none checkpoint.keep=9
    """)
    assert cli.run([*given, "total_steps=320", "run_dir=whole"]) == 0
    assert cli.run([*given, "total_steps=160", "run_dir=parts"]) == 0
    assert cli.run(["resume=parts", "total_steps=320"]) == 0
    whole, parts = (checkpoint.load(Path(run)).tensors for run in ("whole", "parts"))
    names = [name for name in whole if name.startswith(("agent/", "simulator/"))]
    assert "simulator/state/1" in names
    assert [name for name in names if not torch.equal(whole[name], parts[name])] == []
