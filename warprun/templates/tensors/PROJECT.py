"""Heat one face of a slab so that the other face has its target temperature: a class that steps tensors.

Fourier's law in cells of thickness dx; the heater warms the first one, water cools the last one; explicit Euler steps:

    capacity dT_i/dt = (q_i - q_{i+1}) / dx,    q_i = conductivity (T_{i-1} - T_i) / dx

Any library with DLPack will do; comments say what JAX has in place of torch.
"""

import torch  # JAX: import jax, and jax.numpy as jnp
from warprun.environment import Box


class Slabs:
    """All environments of a run: a row of a tensor is a slab."""

    arrays = torch  # JAX: jnp, here and below

    def __init__(
        self,
        n_envs,
        device="cpu",  # JAX: without it, arrays are on the default device of JAX
        cells=5,
        thickness=0.02,  # m, of a slab
        conductivity=15.0,  # W/(m K)
        capacity=4e6,  # J/(m^3 K)
        heating=1e5,  # W/m^2, at full power
        cooling=1e3,  # W/(m^2 K), from the last cell to the water
        water=293.0,  # K
        band=1.0,  # K, a step with the last cell within target +- band is worth 1
        dt=1.0,  # s
    ):
        """Arguments are set by `warprun env=PROJECT env.kwargs.heating=2e5`."""
        self.dx = thickness / cells  # m
        between = conductivity / self.dx  # W/(m^2 K)
        if dt * (between + max(between, cooling)) > capacity * self.dx:
            raise ValueError(f"dt={dt:g} s is too long for cells of {self.dx:g} m: the steps would be unstable")
        self.conductivity, self.capacity, self.heating, self.cooling = conductivity, capacity, heating, cooling
        self.water, self.band, self.dt = water, band, dt
        self.observation_space = Box(cells + 1)
        self.action_space = Box(1, 0.0, 1.0)  # one number, from no heating to full power
        # Temperatures and targets in kelvin: all that later steps depend on, so that a resumed run goes on exactly.
        self.state = torch.zeros((n_envs, cells), device=device), torch.zeros(n_envs, device=device)

    def reset(self, seed, mask):
        """Begin an episode where `mask` [N] is true; return observations [N, cells + 1], of which those count."""
        temperature, target = self.state
        # JAX: start, wanted = 300.0 + 60.0 * jax.random.uniform(jax.random.PRNGKey(seed), (2, len(target)))
        rng = torch.Generator(target.device).manual_seed(seed)
        start, wanted = 300.0 + 60.0 * torch.rand((2, len(target)), generator=rng, device=target.device)
        self.state = torch.where(mask[:, None], start[:, None], temperature), torch.where(mask, wanted, target)
        return self.observations()

    def step(self, actions):
        """Return observations, rewards [N], terminated [N] and truncated [N] after dt; reset nothing."""
        temperature, target = self.state
        between = self.conductivity * (temperature[:, :-1] - temperature[:, 1:]) / self.dx
        to_water = self.cooling * (temperature[:, -1:] - self.water)
        flux = torch.cat((self.heating * actions, between, to_water), 1)  # W/m^2. JAX: jnp.concatenate
        # JAX: this is slow as it is; make it a function of state and actions under jax.jit that returns the next state.
        temperature = temperature + self.dt * (flux[:, :-1] - flux[:, 1:]) / (self.capacity * self.dx)
        self.state = temperature, target
        rewards = torch.where(abs(temperature[:, -1] - target) < self.band, 1.0, 0.0)
        never = torch.zeros_like(target, dtype=torch.bool)  # conf/env has a time limit, which warprun counts
        return self.observations(), rewards, never, never

    def observations(self):
        """Return what the policy sees [N, cells + 1], in units of about 1."""
        temperature, target = self.state
        return torch.cat((temperature - target[:, None], target[:, None] - 330.0), 1) / 20.0


def draw(axes, observation):
    """Draw the temperatures in the slab; warprun calls this for every frame of a film."""
    *profile, target = [20.0 * number for number in observation]
    axes.axhline(target + 330.0, color="0.6", linestyle="--", label="target of the last cell")
    axes.plot([330.0 + target + difference for difference in profile], "o-", color="#d55e00", label="slab")
    axes.set(ylim=(280.0, 420.0), xlabel="cell", ylabel="temperature (K)")
    axes.legend(loc="upper right")


environment = Slabs  # the class, not an object of it
