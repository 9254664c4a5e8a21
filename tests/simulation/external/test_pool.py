"""The memory of a pool of environments and that of a device: what processes write arrives there, and nothing else."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.simulation.external import clock, misbehaving
from tests.simulation.external.simulators import CPU, act, environment, simulator
from warprun.simulation import stepped
from warprun.simulation.device import Device
from warprun.simulation.sampler import Sampler
from warprun.simulation.stepped import SteppedSimulator

APART = Device("cuda", "a test")


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a CUDA device be memory of the host apart from that of the processes; actions are drawn on the CPU."""

    class Cudart:
        cudaHostRegister = cudaHostUnregister = staticmethod(lambda *given: 0)

    class OnHost(Sampler):
        def __init__(self, *given: Any) -> None:
            super().__init__(*[CPU if each is APART else each for each in given])

    monkeypatch.setattr(Device, "torch", torch.device("cpu"))
    monkeypatch.setattr(stepped, "Sampler", OnHost)
    for name, does in {"cudart": Cudart, "check_error": lambda code: None, "synchronize": lambda: None}.items():
        monkeypatch.setattr(torch.cuda, name, does)


def taken(made: SteppedSimulator) -> list[torch.Tensor]:
    """Return copies of all that a rollout gives."""
    rollout = made.collect(act)
    group = rollout.groups["agent"]
    assert group.mask is not None
    tensors = (group.obs, group.mask, group.action, group.reward, rollout.terminated, rollout.truncated, rollout.continues)
    last = group.final_obs[rollout.final_slot(), torch.arange(rollout.n_envs)][rollout.truncated]
    return [tensor.clone() for tensor in (*tensors, last)]


def test_a_device_gets_what_the_processes_write(apart: None, tmp_path: Path) -> None:
    """Rollouts, also those of a simulator that a saved state is restored to."""
    (tmp_path / "saved.py").write_text(f"{Path(clock.__file__).read_text()}\n\nenvironment = Saved\n")
    of = environment(module=str(tmp_path / "saved.py"), kwargs={"masked": True}, time_limit=9)
    with simulator(of) as on_host, simulator(of, device=APART) as on_device, simulator(of, device=APART) as second:
        for made in (on_host, on_device, second):
            made.prepare()
        assert on_device.trajectory.groups["agent"].obs.data_ptr() != on_device.stepper.arrays["obs"].ctypes.data  # type: ignore[attr-defined]
        rows = on_host.trajectory.groups["agent"].obs
        for _ in range(3):
            last = rows[-1 if on_host.steps else 0].clone()
            expected = taken(on_host)
            assert torch.equal(rows[0], last)
            assert all(torch.equal(one, other) for one, other in zip(expected, taken(on_device), strict=True))
        assert expected[4].any() and expected[5].any() and len(expected[7])
        assert on_host.episodes() == on_device.episodes()
        saved = {name: tensor.clone() for name, tensor in on_device.state().items()}
        for name, tensor in second.state().items():
            tensor.copy_(saved[name])
        assert all(torch.equal(one, other) for one, other in zip(taken(on_device), taken(second), strict=True))


def test_a_state_has_the_names_and_shapes_of_checkpoints_of_1_0_0(tmp_path: Path) -> None:
    """Arrays of any type are there as bytes."""
    (tmp_path / "saved.py").write_text(f"{Path(clock.__file__).read_text()}\n\nenvironment = Saved\n")
    with simulator(environment(module=str(tmp_path / "saved.py"), kwargs={"masked": True})) as made:
        made.prepare()
        counted = dict.fromkeys(("ended", "ended_steps", "ended_return", "replaced"), (3,))
        of_episodes = {"clock": (24,), "episode_return": (24,), "state": (3, 24), "obs": (3, 1, 2), "mask": (3, 1, 2)}
        shapes = {"steps": (), "resets": (), **counted, **of_episodes}
        assert {name: tuple(tensor.shape) for name, tensor in made.state().items()} == shapes


@pytest.mark.parametrize("fault", ["nan_obs", "inf_reward", "mask"])
@pytest.mark.parametrize("device", [CPU, APART], ids=lambda device: device.kind)
def test_a_rollout_stops_at_a_fault_which_stays_until_a_reset(fault: str, device: Device, apart: None) -> None:
    of = environment(module=misbehaving.__name__, kwargs={"fault": fault, "when": 4})
    with simulator(of, n_envs=2, device=device) as made:
        misbehaving.made.clear()
        made.prepare()
        made.collect(act)
        found, steps = made.fault(), made.steps
        assert found and found.step == steps < 20 and found.environment == 1
        made.collect(act)
        assert made.fault() == found and made.steps == steps
        made.reset()
        assert made.fault() is None
