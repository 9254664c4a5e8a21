"""The Gray-Scott reaction: its scheme against a spectral solution, what ends an episode, and its ports."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy.fft import dctn

import warprun
from warprun.envs import gray_scott as gs
from warprun.envs.gray_scott import PORTS, SIDE, SUBSTEPS, Params, advance

LENGTH = SIDE * Params().h


def laplacian(a: np.ndarray) -> np.ndarray:
    """Return that of fields [..., side, side] with walls, times h^2."""
    p = np.pad(a, [(0, 0)] * (a.ndim - 2) + [(1, 1), (1, 1)], mode="edge")
    found: np.ndarray = p[..., 2:, 1:-1] + p[..., :-2, 1:-1] + p[..., 1:-1, 2:] + p[..., 1:-1, :-2] - 4.0 * a
    return found


def euler(u: np.ndarray, v: np.ndarray, p: Params, steps: int) -> tuple[np.ndarray, np.ndarray]:
    ratio = p.dt / p.h**2
    for _ in range(steps):
        u = (u + ratio * p.diffusion_u * laplacian(u) + p.dt * p.feed) / (1.0 + p.dt * (p.feed + v**2))
        v = v + ratio * p.diffusion_v * laplacian(v) + p.dt * (u * v**2 - (p.feed + p.kill) * v)
    return u, v


def advanced(field: np.ndarray, p: Params, steps: int) -> np.ndarray:
    """Return a field [2, side, side] in float64 after time steps of the environment's own function."""
    now, side = field.ravel().astype(np.float64), field.shape[-1]
    after = np.empty_like(now)
    for _ in range(steps):
        advance(now, after, side, p)
        now, after = after, now
    return now.reshape(field.shape)


def waves(side: int) -> np.ndarray:
    """Return a smooth field at the middles of cells, [2, side, side], in a square without flow through its walls."""
    x = np.pi * (np.arange(side) + 0.5) / side
    m = 0.25 * (2.0 + np.cos(x)[:, None] * np.cos(2 * x)[None, :] + np.cos(2 * x)[:, None])
    return np.stack((1.0 - 0.5 * m, 0.3 * m))


def spectral(field: np.ndarray, p: Params, time: float, side: int, step: float = 0.1) -> np.ndarray:
    """Return a field after some time, at the middles of side x side cells: cosines in space, Runge-Kutta of fourth order in time."""
    modes = field.shape[-1]
    x = np.pi * (np.arange(modes) + 0.5) / modes
    second = -((np.pi * np.arange(modes) / LENGTH) ** 2)
    basis = np.cos(np.outer(x, np.arange(modes)))

    def coefficients(a: np.ndarray) -> np.ndarray:
        scale = np.where(np.arange(modes) == 0, 0.5, 1.0) / modes
        found: np.ndarray = dctn(a, type=2, axes=(-2, -1)) * scale[:, None] * scale[None, :]
        return found

    def slope(w: np.ndarray) -> np.ndarray:
        curved = basis @ (coefficients(w) * (second[:, None] + second[None, :])) @ basis.T
        u, v = w
        return np.stack(
            (p.diffusion_u * curved[0] - u * v**2 + p.feed * (1 - u), p.diffusion_v * curved[1] + u * v**2 - (p.feed + p.kill) * v)
        )

    w = field
    for _ in range(round(time / step)):
        a = slope(w)
        b = slope(w + step / 2 * a)
        c = slope(w + step / 2 * b)
        d = slope(w + step * c)
        w = w + step / 6 * (a + 2 * b + 2 * c + d)
    at = np.cos(np.outer(np.pi * (np.arange(side) + 0.5) / side, np.arange(modes)))
    found: np.ndarray = at @ coefficients(w) @ at.T
    return found


def shapes() -> np.ndarray:
    """Return b(x - x_j) of all ports, [PORTS^2, SIDE, SIDE]."""
    bump = gs.make_tables().bump
    return np.einsum("ay,bx->abyx", bump, bump).reshape(PORTS**2, SIDE, SIDE)


def environments(count: int = 3, **given: Any) -> Any:
    envs = warprun.make_vec("gray_scott", count, threads=1, **given)
    seen, _ = envs.reset(seed=3)
    return envs, seen.reshape(count, 2, SIDE, SIDE)


def stepped(envs: Any, actions: np.ndarray) -> tuple[np.ndarray, ...]:
    seen, rewards, terminated, truncated, infos = envs.step(actions)
    last = np.where(terminated[:, None], infos.get("final_obs", seen), seen)
    return last.reshape(-1, 2, SIDE, SIDE), rewards, terminated, truncated


def test_the_error_falls_with_the_square_of_the_cell() -> None:
    """Against a spectral solution in float64; the time step falls with the square of the cell, as stability demands."""
    time, errors = 4.0, []
    for side, dt in ((8, 1.0), (16, 0.25), (32, 0.0625)):
        p = Params(h=LENGTH / side, dt=dt)
        exact = spectral(waves(24), p, time, side)
        errors.append(np.abs(advanced(waves(side), p, round(time / dt)) - exact).max())
    assert errors[-1] < 0.02 * np.abs(exact - waves(32)).max()
    assert all(3.2 < coarse / fine < 4.7 for coarse, fine in pairwise(errors)), errors


@pytest.mark.long
def test_compiled_kernels_follow_the_scheme() -> None:
    """Float32 in kernels against float64 on whole arrays, with ports and rewards, over each of ten steps of the environment."""
    envs, seen = environments()
    p, draw = Params(), np.random.default_rng(0)
    ports = shapes()
    for _ in range(10):
        actions = draw.uniform(-1.0, 1.0, (3, PORTS**2)).astype(np.float32)
        u, v = np.moveaxis(seen.astype(np.float64), 1, 0)
        v = np.maximum(0.0, v + p.dose * np.einsum("np,pyx->nyx", actions, ports))
        u, v = euler(u, v, p, SUBSTEPS)
        seen, rewards, terminated, _ = stepped(envs, actions)
        np.testing.assert_allclose(seen, np.stack((u, v), 1), atol=2e-5)
        np.testing.assert_allclose(rewards, -10.0 * v.mean((1, 2)) - p.cost * np.abs(actions).mean(1), atol=1e-4)
        assert not terminated.any() and v.max((1, 2)).min() > p.feed + p.kill
    envs.close()


def test_a_fire_that_is_out_stays_out() -> None:
    """From v < F + k and u <= 1 the largest v only falls, wherever the rest is."""
    p, draw = Params(), np.random.default_rng(1)
    field = np.stack((draw.uniform(0.0, 1.0, (16, 16)), draw.uniform(0.0, p.feed + p.kill, (16, 16))))
    largest = [field[1].max()]
    for _ in range(60):
        field = advanced(field, p, 1)
        largest.append(field[1].max())
        assert field[0].max() <= 1.0 and field[1].min() >= 0.0
    assert all(later < earlier for earlier, later in pairwise(largest))


def test_an_episode_ends_when_the_fire_is_out() -> None:
    """Ports that add at the beginning burn all of U, which ends all episodes; without control most go on to the time limit."""
    ended = {}
    for doses in (0, 3):
        envs, _ = environments(20)
        over = np.zeros(20, bool)
        for step in range(100):
            seen, _, terminated, truncated = stepped(envs, np.full((20, PORTS**2), float(step < doses), np.float32))
            out = seen[:, 1].max((1, 2)) < Params().feed + Params().kill
            assert (terminated == out).all() and (step == 99 or not truncated.any())
            over |= terminated
        ended[doses] = over.sum()
        envs.close()
    assert ended[3] == 20 and ended[0] <= 5


def test_episodes_begin_with_sparks() -> None:
    envs, seen = environments(50)
    u, v = np.moveaxis(seen, 1, 0)
    np.testing.assert_allclose(u + 2.0 * v, 1.0, atol=1e-6)
    assert v.max((1, 2)).min() > 0.2 and v.max() <= 0.25
    assert np.abs(v[0] - v[1]).max() > 0.1
    middle = (v * np.arange(SIDE)).sum() / v.sum()
    assert abs(middle - (SIDE - 1) / 2) < 1.5  # of all places
    envs.close()


def test_ports_are_at_equal_distances_and_nothing_is_taken_that_is_not_there() -> None:
    ports = shapes()
    assert [np.unravel_index(port.argmax(), port.shape) for port in ports] == [(y, x) for y in (5, 15, 26) for x in (5, 15, 26)]
    np.testing.assert_allclose(ports.sum((1, 2)), 2 * np.pi * (gs.WIDTH / Params().h) ** 2, rtol=0.05)
    envs, _ = environments()
    draw = np.random.default_rng(0)
    for _ in range(60):
        seen, *_ = stepped(envs, np.sign(draw.uniform(-1.0, 2.0, (3, PORTS**2))).astype(np.float32))
        assert seen.min() >= 0.0 and seen[:, 0].max() <= 1.0
    envs.close()
