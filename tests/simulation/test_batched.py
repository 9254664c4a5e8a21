"""Environments that step as one batch of arrays: rollouts, copies, resume and mistakes."""

import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.pretended import CUDA, pretended
from tests.selection import few
from tests.simulation import batches
from tests.simulation.batches import EDGE, LIMIT, Changed, Fenced, Forgets, Numpy, Pushes, Saves, Turns, Walkers, simulator, stepper
from tests.simulation.external.simulators import act
from tests.written import add_environment
from warprun.cli import main as cli
from warprun.config.batched import GROUP, batched_environment
from warprun.config.external import External
from warprun.errors import TrainingFailed, UserError
from warprun.runs import checkpoint
from warprun.simulation import batched, stepped
from warprun.simulation.device import Device
from warprun.simulation.units import in_environment_units, to_bounds
from warprun.spec import Box, Field, MultiDiscrete


def of_jax() -> type[Walkers]:
    jax = pytest.importorskip("jax")
    return type("Jax", (Walkers,), {"arrays": jax.numpy})


LIBRARIES = {"numpy": lambda: Numpy, "torch": lambda: Walkers, "jax": of_jax}


@pytest.mark.parametrize("library", LIBRARIES)
def test_rollouts_are_those_of_plain_python(library: str) -> None:
    """Three rollouts with ends of all kinds: walks that reach the edge, at the time limit or before, and others that do not."""
    with simulator(LIBRARIES[library]()) as made:
        n_envs, batch = made.n_envs, stepper(made)._batch
        batch.seeds = batch.seeds[-1:]

        def fresh(seed: int, n: int) -> int:
            return (n * 7 + seed % 1000) % 5 - 2

        place, age = [fresh(batch.seeds[0], n) for n in range(n_envs)], [0] * n_envs
        count, steps, returns, totals, resets = 0, 0, 0.0, [0.0] * n_envs, 1
        for _ in range(3):
            taken = made.collect(act)
            group, cuts = taken.groups[GROUP], [0] * n_envs
            for row in range(taken.horizon):
                over = []
                for n in range(n_envs):
                    assert group.obs[row, n, 0].tolist() == [place[n], age[n]]
                    place[n] += 2 * int(group.action[row, n, 0, 0]) - 1
                    age[n] += 1
                    totals[n] += 0.5 * place[n]
                    assert group.reward[row, n, 0] == 0.5 * place[n]
                    ended = abs(place[n]) >= EDGE
                    cut = not ended and age[n] >= LIMIT
                    assert (taken.terminated[row, n], taken.truncated[row, n]) == (ended, cut)
                    if cut:
                        assert group.final_obs[cuts[n], n, 0].tolist() == [place[n], age[n]]
                        cuts[n] += 1
                    if ended or cut:
                        over.append(n)
                        count, steps, returns = count + 1, steps + age[n], returns + totals[n]
                for n in over:
                    place[n], age[n], totals[n] = fresh(batch.seeds[resets], n), 0, 0.0
                resets += bool(over)
        assert count > 20 and taken.truncated.any() and taken.terminated.any()
        assert len(set(batch.seeds)) == len(batch.seeds) == resets
        found = made.episodes()
        assert (found.count, found.mean_length, found.mean_return[GROUP]) == pytest.approx((count, steps / count, returns / count))
        assert made.episodes().count == 0 and made.fault() is None and made.steps == 60


class Both(Numpy):
    """Steps and resets in one call; only the time limit of the run ends its episodes early."""

    def step(self, actions: Any) -> Any:
        return *super().step(actions)[:3], self.state["age"] >= 4

    def step_and_reset(self, actions: Any, seed: int) -> Any:
        found = self.step(actions)
        over = found[2] | found[3]
        return *found, self.reset(seed, over) if over.any() else np.full((len(over), 2), np.nan)


def test_step_and_reset_in_one_call_is_both() -> None:
    """Also if the time limit of the run ends an episode that goes on for the class."""
    apart = type("Apart", (Both,), {"step_and_reset": property()})
    for limit in (None, 3):
        with simulator(Both, limit=limit) as one, simulator(apart, limit=limit) as other:
            assert (stepper(one)._resets_too, stepper(other)._resets_too) == (True, False)
            for _ in range(2):
                taken = one.collect(act), other.collect(act)
                for name in ("obs", "action", "reward"):
                    assert torch.equal(*(getattr(each.groups[GROUP], name) for each in taken)), name
                assert torch.equal(*(each.truncated for each in taken)) and taken[0].truncated.any()
            assert one.episodes() == other.episodes()


class ReadOnly(Numpy):
    """Gives arrays of float32, or of float64 that are not contiguous, which nobody may write to."""

    dtype: Any = np.float32

    def step(self, actions: Any) -> Any:
        results = super().step(actions)
        order: Any = "C" if self.dtype == np.float32 else "F"
        given = (*(each.astype(self.dtype, order) for each in results[:2]), *results[2:])
        for each in given:
            each.flags.writeable = False
        return given


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrays_that_are_read_only_or_of_another_layout_are_read(dtype: Any) -> None:
    with simulator(Numpy) as one, simulator(type("Other", (ReadOnly,), {"dtype": dtype})) as other:
        taken = one.collect(act), other.collect(act)
        for name in ("obs", "reward", "final_obs"):
            assert torch.equal(*(getattr(each.groups[GROUP], name) for each in taken)), name
        assert torch.equal(*(each.terminated for each in taken)) and one.episodes() == other.episodes()


class Copies(TorchDispatchMode):
    """Counts copies of whole batches of observations or actions."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.numbers, self.count = numbers, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in ("copy_", "clone", "_to_copy", "contiguous") and args[0].numel() >= self.numbers:
            self.count += 1
        return func(*args, **(kwargs or {}))


def pointer(array: Any) -> int:
    if isinstance(array, np.ndarray):
        return int(array.ctypes.data)
    return int(array.data_ptr() if isinstance(array, torch.Tensor) else array.unsafe_buffer_pointer())


@pytest.mark.parametrize(("library", "n_envs"), [("numpy", 64), ("numpy", 7), ("torch", 64), ("torch", 7), ("jax", 64)])
def test_actions_and_observations_are_not_copied(library: str, n_envs: int) -> None:
    """Both sides have the same memory; what a step returns is written once, into the trajectory, by a kernel.

    Rows of 7 environments begin at any address, and jax takes memory that is aligned to 64 bytes.
    """
    pairs = []
    with simulator(LIBRARIES[library](), n_envs, 4) as made:
        batch, real = stepper(made)._batch, stepper(made)._on_host

        def step(actions: Any) -> Any:
            row = made.trajectory.groups[GROUP].action[made.steps % 4, :, 0, 0]
            pairs.append((pointer(actions), row.data_ptr()))
            return type(batch).step(batch, actions)

        def on_host(method: str, name: str, given: Any) -> np.ndarray:
            array = real(method, name, given)
            if str(given.dtype).removeprefix("torch.") == array.dtype:  # numbers of numpy are of 64 bits
                pairs.append((pointer(given), pointer(array)))
            return array

        batch.step, stepper(made)._on_host = step, on_host  # type: ignore[method-assign]
        with Copies(2 * n_envs) as copies:
            made.collect(act)
        assert len(pairs) >= 4 * (3 if library == "numpy" else 5) and all(one == other for one, other in pairs)
        assert copies.count == 0 or library == "numpy"


class Sixteen(ModuleType):
    """A library of arrays that takes no address but multiples of 16 bytes; it keeps the shapes that it was given."""

    def __init__(self) -> None:
        super().__init__("sixteen")
        self.shapes: set[tuple[int, ...]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def from_dlpack(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() % 16:
            raise BufferError("a bad address")
        self.shapes.add(tuple(tensor.shape))
        return tensor


class SavesAndFenced(Saves, Fenced):
    """Has a state, and masks."""


@pytest.mark.parametrize("kind", [Pushes, SavesAndFenced], ids=lambda kind: kind.__name__)
def test_arrays_begin_where_every_library_takes_them(kind: type[Walkers]) -> None:
    """At multiples of 16 bytes, for all numbers of environments: actions, `out`, where to reset, and a state."""
    library = Sixteen()
    made_of = type(kind.__name__, (kind,), {"arrays": library})
    for n_envs in range(1, 34):
        with simulator(made_of, n_envs, 5, **({"limit": None} if kind is Pushes else {})) as made:
            made.collect(act)
            if made.environment.resumes:
                stepper(made).save()
                stepper(made).load()
    assert len(library.shapes) >= 33


@pytest.mark.parametrize("copies", [True, False])
def test_what_is_written_to_out_arrives(copies: bool) -> None:
    """Of 3 environments and 3 numbers most rows do not begin at such an address, and `out` is a copy for a library that needs one."""
    kind = type("Pushes", (Pushes,), {"arrays": Sixteen()}) if copies else Pushes
    with simulator(kind, 3, 3, None) as made:
        with Copies(9) as counted:
            group = made.collect(act).groups[GROUP]
        assert copies or counted.count == 3  # those of the environment
        actions = to_bounds(group.action[:, :, 0].numpy(), np.array(Pushes.action_space.bounds(), np.float32))
        assert {row.data_ptr() % 16 for row in group.obs} != {0}
        assert (stepper(made)._batch.out.data_ptr() != group.obs[3].data_ptr()) == copies  # type: ignore[attr-defined]
        np.testing.assert_array_equal(group.obs[1:, :, 0].numpy(), actions)


class Unsampled:
    """Stands for a sampler, whose kernels a pretended GPU does not run."""

    noise = None

    def __init__(self, *given: Any) -> None:
        pass

    def prepare(self, *given: Any, **named: Any) -> None:
        pass

    draw = forget = prepare


def test_steps_on_a_gpu_wait_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class There(Walkers):
        def __init__(self, n_envs: int, device: str) -> None:
            super().__init__(n_envs)
            self.state, self.index = {name: part.to(device) for name, part in self.state.items()}, self.index.to(device)

        def action_mask(self) -> torch.Tensor:
            place = self.state["place"]
            return torch.stack((place > 1 - EDGE, place < EDGE - 1), -1)

    monkeypatch.setattr(stepped, "Sampler", Unsampled)
    monkeypatch.setattr(batched.BatchStepper, "try_step", lambda self: None)
    monkeypatch.setattr(Device, "torch", CUDA)
    environment = batched_environment(There, External(), LIMIT, "walk", "./walk.py")
    with pretended() as device:
        made = environment.make_simulator(n_envs=3, first_env=0, horizon=5, seed=5, device=Device("cuda", "a test"), exploration=None)
        made.prepare()
        device.watches = True
        for _ in range(2):
            made.collect(act)
        made.reset()
    assert device.operations


@pytest.mark.parametrize("kind", [Pushes, Turns])
def test_actions_of_a_box_are_in_its_bounds_and_a_step_that_ends_twice_is_terminal(kind: type[Pushes]) -> None:
    with simulator(kind, 8, 11, None) as made:
        taken = made.collect(act)
        group = taken.groups[GROUP]
        given = to_bounds(group.action[:, :, 0].numpy(), np.array(kind.action_space.bounds(), np.float32))
        goes_on = ~(taken.terminated | taken.truncated)
        np.testing.assert_array_equal(group.obs[1:, :, 0][goes_on].numpy(), given[goes_on.numpy()])
        np.testing.assert_array_equal(group.final_obs[0, 1::2, 0].numpy(), given[4, 1::2])
        assert taken.terminated[:, ::2].sum() == taken.truncated[:, 1::2].sum() == 8
        assert not taken.truncated[:, ::2].any() and not taken.terminated[:, 1::2].any()


class Pictures(Walkers):
    """Observes the low bits of its place as a picture, in bytes or as truth."""

    def __init__(self, n_envs: int, space: Any) -> None:
        self.observation_space = space
        super().__init__(n_envs)

    def observe(self) -> Any:
        numbers = (self.state["place"][:, None, None, None] * 31 + torch.arange(24.0).view(3, 4, 2)) % 256
        return numbers.byte() if self.observation_space.dtype == np.uint8 else numbers > 100


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_])
def test_pictures_of_gymnasiums_spaces(dtype: Any) -> None:
    spaces = pytest.importorskip("gymnasium.spaces")
    space = spaces.Box(0, 255 if dtype == np.uint8 else 1, (3, 4, 2), dtype)
    with simulator(Pictures, space=space) as made:
        kind = "image" if dtype == np.uint8 else "binary"
        assert made.spec.groups[0].observation == Box(24, 0.0, 1.0, (Field(0, (2, 3, 4), True, kind),))
        taken = made.collect(act)
        rows, seen = taken.groups[GROUP].obs[-1, :, 0], stepper(made)._batch.observe().flatten(1)
        expected = seen.numpy() / np.float32(255) if dtype == np.uint8 else seen.numpy()
        np.testing.assert_array_equal(rows.numpy(), expected)


@pytest.mark.parametrize(("kind", "told"), [(torch.int32, "images of the dtype int32"), (torch.float32, "that are not from 0 to 1")])
def test_pictures_of_other_numbers_are_refused(kind: torch.dtype, told: str) -> None:
    spaces = pytest.importorskip("gymnasium.spaces")

    class Others(Pictures):
        def observe(self) -> Any:
            return super().observe().to(kind)

    with pytest.raises(UserError, match=told), simulator(Others, space=spaces.Box(0, 255, (3, 4, 2), np.uint8)):
        pass


@pytest.mark.parametrize("box", [Box((2, 3, 4)), Box(24, fields=(Field(0, (2, 3, 4), channels_last=True),)), Box(24)])
def test_an_array_has_the_shape_of_its_field(box: Box) -> None:
    class Made(Walkers):
        observation_space = box

        def observe(self) -> Any:
            return (self.state["place"][:, None] + torch.arange(24.0)).view(len(self.index), *shape)

    shape = box.fields[0].order if box.fields else (24,)
    with simulator(Made) as made:
        taken = made.collect(act)
        assert torch.equal(taken.groups[GROUP].obs[-1, :, 0], stepper(made)._batch.observe().flatten(1))


def test_torch_has_one_thread_also_without_an_agent() -> None:
    torch.set_num_threads(2)
    with simulator(Walkers):
        assert torch.get_num_threads() == 1


def test_choices_are_counted_as_the_class_counts_them() -> None:
    class Counts(Pushes):
        observation_space, action_space = Box(3), MultiDiscrete((2, 3), (5, -1))

        def step(self, actions: Any, out: Any) -> Any:
            out[:, :2] = actions
            never = torch.zeros(len(out), dtype=torch.bool)
            return out, actions[:, 0].float(), never, never

    with simulator(Counts, limit=None) as found:
        taken = found.collect(lambda trajectory, row: trajectory.groups["agent"].policy_output.zero_()).groups["agent"]
        got = taken.obs[1:, :, 0, :2].numpy()
        assert set(got[..., 0].flat) == {5.0, 6.0} and set(got[..., 1].flat) == {-1.0, 0.0, 1.0}
        np.testing.assert_array_equal(in_environment_units(found.spec.groups[0].action, taken.action[:, :, 0].numpy()), got)


def test_the_time_limit_of_the_config_comes_before_that_of_the_class() -> None:
    made = type("Limited", (Walkers,), {"time_limit": 5})
    limits = [batched_environment(made, External(), given, "walk", "./walk.py").spec.time_limit for given in (None, 3)]
    assert limits == [5, 3]


def restored(simulator: Any, saved: dict[str, torch.Tensor]) -> Any:
    for name, tensor in simulator.state().items():
        tensor.copy_(saved[name])
    return simulator.collect(act)


@pytest.mark.parametrize("kind", [*LIBRARIES, "methods", "none"])
def test_a_restored_simulator_continues_exactly_if_it_can(kind: str) -> None:
    made, exact = LIBRARIES[kind]() if kind in LIBRARIES else Saves if kind == "methods" else Forgets, kind != "none"
    with simulator(made) as first, simulator(made) as second:
        assert not first.collect(act).continues
        saved = {name: tensor.clone() for name, tensor in first.state().items()}
        taken = first.collect(act)
        assert taken.continues
        expected, found = taken.groups[GROUP].obs.clone(), restored(second, saved)
        assert torch.equal(expected, found.groups[GROUP].obs) == bool(found.continues) == first.environment.resumes == exact
        assert first.steps == second.steps == 40
        assert not exact or first.episodes() == second.episodes()
        assert second.collect(act).continues


def test_a_state_has_the_names_and_shapes_of_checkpoints_of_1_0_0() -> None:
    with simulator(Walkers) as made:
        of_batch = {"state/0": (7,), "state/1": (7,)}
        shapes = {"steps": (), "resets": (), "ended": (3,), "clock": (7,), "returns": (7,), "obs": (7, 2), **of_batch}
        assert {name: tuple(tensor.shape) for name, tensor in made.state().items()} == shapes


class Strict(Fenced):
    """Takes no action that its mask forbids, not in the trial either."""

    def step(self, actions: Any) -> Any:
        assert self.action_mask().gather(1, actions[:, :1].long()).all(), "forbidden"
        return super().step(actions)


@pytest.mark.parametrize("library", LIBRARIES)
def test_masks_of_every_row_are_those_of_its_state(library: str) -> None:
    kind = Strict if library == "torch" else type("Fences", (Fenced,), {"arrays": LIBRARIES[library]().arrays})
    with simulator(kind) as first, simulator(Fenced) as second:
        assert first.spec.groups[0].masked and first.spec.groups[0].masked_actions == 5
        for _ in range(2):
            saved = {name: tensor.clone() for name, tensor in first.state().items()}
            group = first.collect(act).groups[GROUP]
            places, action = group.obs[..., 0], group.action
            assert group.mask is not None
            assert torch.equal(group.mask[..., 0], places > -2) and torch.equal(group.mask[..., 1], places < 2)
            assert group.mask[:-1].gather(-1, action[..., :1].long()).all() and group.mask[:-1].gather(-1, action[..., 1:].long() + 2).all()
            assert (places.abs() <= 2).all() and not group.mask.all() and first.fault() is None
        if library == "torch":
            expected = group.mask.clone()
            found = restored(second, saved).groups[GROUP].mask
            assert found is not None and torch.equal(found, expected)


def test_a_mask_that_forbids_every_value_of_a_choice_is_found() -> None:
    with simulator(Fenced, limit=100, fence=0.0) as made:
        made.collect(act)
        found = made.fault()
        assert found and (found.field, found.component, found.value) == ("mask", 0, 0.0)
        assert "forbade every action" in str(found)


class Tires(Fenced):
    """Allows fewer steps, the more it has taken, which its state does not tell."""

    taken = 0

    def step(self, actions: Any) -> Any:
        self.taken += 1
        return super().step(actions)

    def action_mask(self) -> Any:
        found = super().action_mask()
        return found & (torch.arange(5) != 4) if self.taken > 1 else found


class Breaks(Fenced):
    """Fails to tell its mask after some steps."""

    calls = 0

    def action_mask(self) -> Any:
        self.calls += 1
        return super().action_mask()[: -1 if self.calls > 6 else None]


def test_masks_depend_on_the_state_alone() -> None:
    with pytest.raises(UserError, match="step gave other results after its state was set back"), simulator(Tires):
        pass


def test_a_failure_of_a_mask_names_the_step_after_which_it_is_asked() -> None:
    with (
        simulator(Breaks, limit=100) as made,
        pytest.raises(TrainingFailed, match=r"at step 3: .* action_mask returned masks of the shape"),
    ):
        made.collect(act)


def test_numbers_that_are_not_finite_are_found() -> None:
    def spoilt(part: torch.Tensor) -> torch.Tensor:
        part = part.clone()
        part.view(part.shape[0], -1)[2, -1] = math.inf
        return part

    for part, field, component in ((0, "observation", 1), (1, "reward", 0)):
        with simulator(Changed, limit=100, part=part, value=spoilt, when=6) as made:
            made.collect(act)
            found = made.fault()
            assert found and (found.environment, found.step, found.field, found.component) == (2, 5, field, component)
            assert "on_nan" not in str(found) and not found.replaceable
            made.reset()
            assert made.fault() is None

    def policy(trajectory: Any, row: int) -> None:
        act(trajectory, row)
        trajectory.groups[GROUP].policy_output[1, 0, :3] = math.nan if row == 2 else 0.0

    with simulator(Pushes) as made:
        made.collect(policy)
        assert str(made.fault()).startswith("environment 1 of walk was given an action of nan by the policy at step 3")


# Runs ------------------------------------------------------------------------------------------------------------------------

SMALL = ["agent=ppo", "agent.horizon=16", "agent.minibatches=2", "n_envs=8", "eval.every=never", "eval.final_episodes=3"]
SMALL += ["device=cpu", "log.live=false", "log.tensorboard=false", "checkpoint.keep=9"]


@pytest.mark.parametrize("kind", few(["Saves", "Forgets"], "Saves"))
def test_a_resumed_run_goes_on(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("walk.py").write_text(Path(batches.__file__).read_text() + f"\n\nenvironment = {kind}\n")
    add_environment(tmp_path, "walk", f"time_limit: {LIMIT}\n")
    given = ["env=walk", *SMALL]
    assert cli.run([*given, "total_steps=640", "run_dir=whole"]) == 0
    assert cli.run([*given, "total_steps=384", "run_dir=parts"]) == 0
    Path("walk.py").write_text("raise RuntimeError('the run has a copy')\n")
    assert cli.run(["resume=parts", "total_steps=640"]) == 0
    assert ("all environments begin new ones" in capfd.readouterr().out) == (kind == "Forgets")
    whole, parts = (checkpoint.load(Path(run)).tensors for run in ("whole", "parts"))
    same = all(torch.equal(whole[each], parts[each]) for each in whole if each.startswith(("agent/", "simulator/")))
    assert same == (kind == "Saves")
