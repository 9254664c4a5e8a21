

def test_a_cosine_decays_as_its_closed_form_says():
    """Without heater and water the cosines are the modes of the cells: a step multiplies each by a number."""
    import torch

    cells, waves = 8, 3
    slabs = env.Slabs(2, cells=cells, cooling=0.0, dt=0.5)
    mode = torch.cos(torch.pi * waves * (torch.arange(cells) + 0.5) / cells)
    slabs.state = 300.0 + torch.tensor([[5.0], [-20.0]]) * mode, torch.zeros(2)
    for _ in range(10):
        slabs.step(torch.zeros(2, 1))
    share = slabs.dt * slabs.conductivity / (slabs.capacity * slabs.dx**2)
    left = (1.0 - 4.0 * share * torch.sin(torch.tensor(torch.pi * waves / (2 * cells))) ** 2) ** 10
    assert torch.allclose(slabs.state[0] - 300.0, left * torch.tensor([[5.0], [-20.0]]) * mode, atol=1e-3)


def test_the_energy_is_that_of_heater_and_water():
    import numpy as np
    import torch

    slabs = env.Slabs(64)
    slabs.reset(7, torch.ones(64, dtype=torch.bool))
    before, power = slabs.state[0].double().numpy(), torch.linspace(0.0, 1.0, 64)
    slabs.step(power[:, None])
    gained = slabs.capacity * slabs.dx * (slabs.state[0].double().numpy() - before).sum(1)  # J/m^2
    given = slabs.dt * (slabs.heating * power.numpy() - slabs.cooling * (before[:, -1] - slabs.water))
    np.testing.assert_allclose(gained, given, atol=4.0)  # that of 2e-4 K: temperatures are float32


def test_a_reset_begins_where_the_mask_says_so_and_depends_on_its_seed_alone():
    import torch

    slabs, other = env.Slabs(4), env.Slabs(4)
    mask = torch.tensor([True, False, True, False])
    for each in (slabs, other):
        each.reset(3, mask)
    assert all(torch.equal(*pair) for pair in zip(slabs.state, other.state, strict=True))
    assert (slabs.state[1][mask] >= 300.0).all() and not slabs.state[1][~mask].any()
