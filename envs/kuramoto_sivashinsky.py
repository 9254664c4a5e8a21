"""The Kuramoto-Sivashinsky equation, a chaotic flow in one dimension: steer it to an unstable steady state, and stay.

    du/dt + u du/dx + d2u/dx2 + d4u/dx4 = sum_j a_j b(x - x_j),    b(d) = exp(-(d / WIDTH)^2 / 2)

on a periodic domain of the length 22, where the flow is chaotic. The amplitudes a_j in -0.5..0.5 of a few actuators
at equal distances are the action, which stays the same for a control period. The observation is u at a few sensors at
equal distances. The reward is -sqrt(mean((u - target)^2)) at the end of the period. The task is that of M. A. Bucci
et al., Control of chaotic systems by deep reinforcement learning, Proc. R. Soc. A 475 (2019) 20190351;
docs/gallery.md says what follows that paper.

Targets: the steady states without control 0, E1, E2 and E3 of P. Cvitanovic, R. L. Davidchack and E. Siminos, On the
state space geometry of the Kuramoto-Sivashinsky flow in a periodic domain, SIAM J. Appl. Dyn. Syst. 9 (2010) 1-33, at
the place where they are odd in x.

Discretisation: Fourier modes in space, of which products keep two thirds, and ETDRK4 in time (S. M. Cox and P. C.
Matthews, J. Comput. Phys. 176 (2002) 430; A.-K. Kassam and L. N. Trefethen, SIAM J. Sci. Comput. 26 (2005) 1214). All
environments are rows of one tensor. torch is imported where one is made: `warprun envs` lists this file without it.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import cache, cached_property
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from warprun.environment import Box
from warprun.errors import UserError, shown

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LENGTH, POINTS, MODES = 22.0, 64, 22
"""Length of the domain, points of its grid, and Fourier modes of a field, the mean included: products alias on none."""
WIDTH, AMPLITUDE = 0.4, 0.5
TIME_STEP = 0.125
"""Longest time step: fields have errors below 1e-4 after 2 units of time (tests/envs/test_kuramoto_sivashinsky.py)."""
LONGEST_PERIOD = 10.0
STARTS, SETTLING = 64, 200.0
"""Episodes begin with one of as many fields, which the flow has reached from random waves after as much time."""
GRID = LENGTH / POINTS * np.arange(POINTS)
WAVENUMBERS = 2.0 * np.pi / LENGTH * np.arange(MODES)
GROWTH = WAVENUMBERS**2 - WAVENUMBERS**4
"""Growth rates of small waves: the linear part of the equation."""
GUESSES = ((0.0,), (0.8, -0.2, 0.4, -0.4), (0.0, 1.1, 0.0, -0.7), (0.0, 0.0, 2.5, 0.0, 0.0, -0.4))
"""Of 0, E1, E2 and E3: amplitudes of sin(2 pi k x / LENGTH), k = 1, 2, ..., from which Newton's method converges."""
NEWTON_STEPS = 20


@cache
def steady_state(target: int) -> np.ndarray:
    """Return 0, E1, E2 or E3 on the grid, [POINTS] float64, by Newton's method for the amplitudes of sines."""
    waves, growth = WAVENUMBERS[1:], GROWTH[1:]
    sines, slopes = np.sin(np.outer(GRID, waves)), waves * np.cos(np.outer(GRID, waves))
    project = 2.0 / POINTS * sines.T
    amplitudes = np.zeros(len(waves))
    amplitudes[: len(GUESSES[target])] = GUESSES[target]
    for _ in range(NEWTON_STEPS):
        u, slope = sines @ amplitudes, slopes @ amplitudes
        residual = growth * amplitudes - project @ (u * slope)
        jacobian = np.diag(growth) - project @ (sines * slope[:, None] + u[:, None] * slopes)
        amplitudes = amplitudes - np.linalg.solve(jacobian, residual)
    found: np.ndarray = sines @ amplitudes
    return found


def actuator_shapes(actuators: int) -> np.ndarray:
    """Return b(x - x_j) for actuators at x_j = j LENGTH / actuators on the grid, [actuators, POINTS] float64."""
    away = GRID - LENGTH / actuators * np.arange(actuators)[:, None]
    away = np.remainder(away + LENGTH / 2, LENGTH) - LENGTH / 2
    shapes: np.ndarray = np.exp(-0.5 * (away / WIDTH) ** 2)
    return shapes


class Flow:
    """Advances fields [N, POINTS] by ETDRK4 with a fixed time step. Of fields and forces it keeps the first MODES."""

    def __init__(self, time_step: float, dtype: torch.dtype | None = None, device: str = "cpu") -> None:
        """`dtype` None: float32."""
        import torch

        dtype = dtype or torch.float32
        # The contours are circles around the growth rates; the lower half of each is the mirror image of the upper one.
        points = 32
        z = time_step * GROWTH[:, None] + np.exp(1j * np.pi * (np.arange(points) + 0.5) / points)
        e = np.exp(z)

        def mean(values: np.ndarray) -> Tensor:
            return torch.as_tensor(time_step * values.mean(1).real, dtype=dtype, device=device)

        self._half = mean((np.exp(z / 2) - 1) / z)
        self._first = mean((-4 - z + e * (4 - 3 * z + z**2)) / z**3)
        self._middle = 2.0 * mean((2 + z + e * (z - 2)) / z**3)
        self._last = mean((-4 - 3 * z - z**2 + e * (4 - z)) / z**3)
        growth = torch.as_tensor(time_step * GROWTH, device=device)
        self._grown, self._half_grown = growth.exp().to(dtype), (growth / 2).exp().to(dtype)
        self._slope = torch.as_tensor(-0.5j * WAVENUMBERS, device=device).to(dtype.to_complex())

    def advance(self, u: Tensor, force: Tensor, steps: int) -> Tensor:
        """Return the fields after some time steps under forces that stay the same; all are [N, POINTS]."""
        modes, forced = modes_of(u), modes_of(force)
        for _ in range(steps):
            modes = self._step(modes, forced)
        return on_grid(modes)

    def _step(self, v: Tensor, forced: Tensor) -> Tensor:
        """Return the modes [N, MODES] after a time step."""

        def rest(v: Tensor) -> Tensor:
            """Return all but the linear part, -(u^2)_x / 2 + force."""
            return self._slope * modes_of(on_grid(v).square()) + forced

        begin, halfway = rest(v), self._half_grown * v
        a = halfway + self._half * begin
        rest_a = rest(a)
        rest_b = rest(halfway + self._half * rest_a)
        rest_c = rest(self._half_grown * a + self._half * (2.0 * rest_b - begin))
        return self._grown * v + self._first * begin + self._middle * (rest_a + rest_b) + self._last * rest_c


def modes_of(u: Tensor) -> Tensor:
    """Return the first MODES Fourier modes of fields [N, POINTS]."""
    import torch

    return torch.fft.rfft(u)[..., :MODES]


def on_grid(modes: Tensor) -> Tensor:
    """Return the fields [N, POINTS] with these first modes [N, MODES]."""
    import torch

    return torch.fft.irfft(modes, POINTS)


@cache
def attractor() -> Tensor:
    """Return fields of the flow without control, long after random waves, [STARTS, POINTS] float64."""
    import torch

    rng = torch.Generator().manual_seed(0)
    waves = torch.zeros((STARTS, MODES), dtype=torch.complex128)
    waves[:, 1:4] = POINTS / 4 * torch.randn((STARTS, 3), dtype=waves.dtype, generator=rng)
    u = on_grid(waves)
    return Flow(TIME_STEP, torch.float64).advance(u, torch.zeros_like(u), round(SETTLING / TIME_STEP))


class KuramotoSivashinsky:
    """A batch of flows.

    `target`: 0, or 1 to 3 for E1 to E3. `control_period`: units of time for which an action stays the same. `noise`:
    standard deviation of the error of each sensor, new in each step.
    """

    def __init__(
        self,
        n_envs: int,
        device: str = "cpu",
        target: int = 2,
        actuators: int = 4,
        sensors: int = 8,
        control_period: float = 0.5,
        noise: float = 0.0,
    ) -> None:
        import torch

        self.observation_space, self.action_space = self.spaces(target, actuators, sensors, control_period, noise)
        self.substeps = math.ceil(control_period / TIME_STEP)
        self.flow = Flow(control_period / self.substeps, device=device)
        self.target = torch.as_tensor(steady_state(target), dtype=torch.float32, device=device)
        self.shapes = torch.as_tensor(actuator_shapes(actuators), dtype=torch.float32, device=device)
        self._waves = torch.as_tensor(WAVENUMBERS, dtype=torch.float32, device=device)
        self.noise, self._every = noise, POINTS // sensors
        self.u = torch.zeros((n_envs, POINTS), device=device)
        """[N, POINTS]."""
        self._rng = torch.Generator(device)

    @property
    def arrays(self) -> ModuleType:
        """The library of the arrays."""
        import torch

        return torch

    @staticmethod
    def spaces(target: int, actuators: int, sensors: int, control_period: float, noise: float) -> tuple[Box, Box]:
        """Return the spaces of observations and actions."""
        check_whole("target", target, range(len(GUESSES)))
        check_whole("actuators", actuators, range(1, POINTS + 1))
        check_whole("sensors", sensors, [n for n in range(1, POINTS + 1) if POINTS % n == 0])
        check_number("control_period", control_period, 0.001, LONGEST_PERIOD)
        check_number("noise", noise, 0.0, 1e6)
        return Box(sensors), Box(actuators, -AMPLITUDE, AMPLITUDE)

    @cached_property
    def _starts(self) -> Tensor:
        """Modes of the fields of `attractor`, [STARTS, MODES]."""
        import torch

        return modes_of(attractor()).to(self.u.device, torch.complex64)

    def reset(self, seed: int, mask: Tensor) -> Tensor:
        """Begin with a field of the attractor, moved by a random distance, and mirrored or not: both are on it, too."""
        import torch

        self._rng.manual_seed(seed)
        n_envs, place = len(self.u), self.u.device
        number = torch.randint(STARTS, (n_envs,), generator=self._rng, device=place)
        distance = LENGTH * torch.rand((n_envs, 1), generator=self._rng, device=place)
        side = 2.0 * torch.randint(2, (n_envs, 1), generator=self._rng, device=place) - 1.0
        angles = distance * self._waves
        modes = torch.polar(torch.ones_like(angles), angles) * self._starts[number]
        fresh = on_grid(torch.complex(side * modes.real, modes.imag))  # -u(-x) has the modes -conj(v)
        self.u = torch.where(mask[:, None], fresh, self.u)
        return self.observe()

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Advance by a control period with the amplitudes `actions` [N, actuators]."""
        import torch

        self.u = self.flow.advance(self.u, actions @ self.shapes, self.substeps)
        never = torch.zeros(len(self.u), dtype=torch.bool, device=self.u.device)
        return self.observe(), -self.distance(), never, never

    def distance(self) -> Tensor:
        """Return the root mean square of u - target, [N]."""
        return (self.u - self.target).square().mean(1).sqrt()

    def observe(self) -> Tensor:
        """Return what the sensors measure, [N, sensors]."""
        seen = self.u[:, :: self._every]
        if self.noise == 0.0:
            return seen
        import torch

        return seen + self.noise * torch.randn(seen.shape, generator=self._rng, device=seen.device)

    def get_state(self) -> tuple[Tensor, Tensor]:
        """Return the fields, and the state of the generator."""
        return self.u, self._rng.get_state()

    def set_state(self, state: tuple[Tensor, Tensor]) -> None:
        """Continue from a result of `get_state`."""
        self.u, rng = state
        self._rng.set_state(rng)


def check_whole(name: str, value: object, allowed: Collection[int]) -> None:
    """Raise UserError unless an argument is one of the numbers that are allowed."""
    if type(value) is not int or value not in allowed:
        ordered = sorted(allowed)
        wanted = f"{ordered[0]} to {ordered[-1]}" if isinstance(allowed, range) else ", ".join(map(str, ordered))
        raise UserError(f"env.kwargs.{name}={shown(value)}: it must be a whole number, {wanted}")


def check_number(name: str, value: object, low: float, high: float) -> None:
    """Raise UserError unless an argument is a number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise UserError(f"env.kwargs.{name}={shown(value)}: it must be a number, {low:g} to {high:g}")


def draw(axes):
    """Draw u at the sensors, and the amplitudes of the actuators where they are."""
    axes.axhline(0.0, color="0.6", linewidth=0.8)
    (line,) = axes.plot((), (), "o-", color="#0072b2", linewidth=2, clip_on=False, label="u at the sensors")
    (forces,) = axes.plot((), (), "D", color="#e69f00", clip_on=False, label="amplitudes of the actuators")
    axes.set(xlim=(0.0, LENGTH), ylim=(-4.0, 4.0), xlabel="x")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)  # above the data
    axes.figure.set_size_inches(6, 3)

    def show(observation, action):
        around = (*observation, observation[0])  # the domain is periodic
        line.set_data(np.linspace(0.0, LENGTH, len(around)), around)
        amplitudes = () if action is None else action
        forces.set_data(np.arange(len(amplitudes)) * LENGTH / max(1, len(amplitudes)), amplitudes)

    return show


environment = KuramotoSivashinsky
