"""Environments that step as one batch of arrays, of any library that speaks DLPack."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from warprun.errors import TrainingFailed, shown
from warprun.simulation import batch_state
from warprun.simulation.batch import MASK, STEP_AND_RESET, Array, Batch, BatchClass
from warprun.simulation.batch_ends import Ends, KernelEnds
from warprun.simulation.conversions import converter, giver, host_array, tensor_of
from warprun.simulation.device import Device
from warprun.simulation.external.recipe import Closes, is_silent, method_place, told
from warprun.simulation.stepped import SEEDS
from warprun.simulation.trajectory import allocate
from warprun.spec import BYTE
from warprun.state import Counter, State, derived_seed

PARTS = ("observations", "rewards", "terminated", "truncated")
"""Names in messages of what a step returns."""
TRUTHS = ("terminated", "truncated", "masks")
"""Names in messages of what must be booleans."""
FLOAT, BOOL = np.dtype(np.float32), np.dtype(bool)
"""What kernels take."""
SIGNATURES = {"reset": "self, seed, mask", "step": "self, actions", STEP_AND_RESET: "self, actions, seed", MASK: "self"}
"""Arguments of methods, as a class of the user writes them."""
CLOSE = 1e-4
"""Relative difference between a step and the same step after `set_state`: sums on a GPU can have another order."""


class BatchStepper:
    """A `Stepper` of a batch of `n_envs` environments in this process.

    What goes to the environment and what comes back are the same memory on both sides, by DLPack, but for rows of the trajectory at
    addresses that the library may not take (`giver`). What a step returns is written once, into the trajectory; on a CPU one kernel does it
    and counts (`batch_ends`), from arrays that are read as NumPy reads them, without DLPack where that can be (`host_array`). The seed of
    a reset depends on `seed`, on `first_env`, on how often all environments were reset, and on the step. On a GPU `reset` is called in
    every step, since the host does not wait to know whether an episode ended, and no step looks for faults.
    """

    stopped: None = None
    tried = replaceable = False

    def __init__(self, environment: BatchClass, *, n_envs: int, first_env: int, horizon: int, seed: int, device: Device) -> None:
        self.environment = environment
        self.steps, self.resets = Counter(), Counter()
        self._n_envs, self._first_env, self._seed = n_envs, first_env, seed
        self.trajectory = allocate(environment.spec, horizon, n_envs, device.torch)
        (group_spec,) = environment.spec.groups
        self._group = self.trajectory.groups[group_spec.name]
        self._obs = self._group.obs[:, :, 0]
        self._shape = (n_envs, *environment.shape)
        self._shapes = dict.fromkeys(PARTS, (n_envs,)) | {PARTS[0]: self._shape, "masks": (n_envs, group_spec.action.mask_entries)}
        """Of what methods give, by its name in messages."""
        kinds = {field.kind for field in group_spec.observation.fields}
        self._image, self._binary = kinds == {"image"} and not group_spec.observation.rest, "binary" in kinds
        self._byte = torch.tensor(BYTE, device=device.torch)  # a GPU would multiply by the inverse of a number, which is not exact
        self._actions = converter(group_spec.action, self._obs.device)
        self._made: Batch | None = None
        self._give = giver(torch)
        self._writes_out = self._resets_too = False
        on_host = device.kind == "cpu"
        self._ends = (KernelEnds if on_host else Ends)(self.trajectory, group_spec.name, environment.spec.time_limit)
        self._action_rows: list[Array] = []
        """The actions of each row as the batch takes them, if these are arrays of numpy or torch on the same memory; else empty."""
        self._leaves: list[torch.Tensor] = []
        """Copies of the arrays and numbers of the state of the batch, as of the last call of `save`."""
        self._stepping = False
        """Whether a step is being taken, which `steps` does not count yet."""

    @property
    def started(self) -> bool:
        return self._made is not None

    @property
    def _batch(self) -> Batch:
        assert self._made is not None, "the simulator is not prepared"
        return self._made

    def start(self) -> None:
        torch.set_num_threads(1)  # of the process: on small tensors threads wait for each other, as with an agent
        with self._calling("the construction"):
            self._made = self.environment.make(self._n_envs, str(self._obs.device))
            self._give = giver(self._batch.arrays)
            self._writes_out = "out" in inspect.signature(self._batch.step).parameters
            self._resets_too = isinstance(self._ends, KernelEnds) and hasattr(self._batch, STEP_AND_RESET)
        taken = [(row, self._actions(row)) for row in self._group.action[:, :, 0]]
        if self._batch.arrays in (np, torch) and all(row.data_ptr() == given.data_ptr() for row, given in taken):
            self._action_rows = [self._given(given) for _, given in taken]

    def begin(self) -> None:
        self._ends.begin()
        self._obs[0].copy_(self._fresh(torch.ones_like(self.trajectory.terminated[0])))
        self._allow(0)

    def step(self, row: int) -> torch.Tensor:
        if row == 0:
            self._ends.cuts.zero_()
        if isinstance(self._ends, KernelEnds):
            over = self._step_on_host(self._ends, row)
        else:
            over = self._ends.account(row, *self._tensors(*self._stepped(row, self._obs[row + 1])))
            self._ends.renew(row, over, self._fresh(over))
        self._allow(row + 1)
        self._stepping = False
        return over

    def take_totals(self) -> tuple[int, int, float, int]:
        count, steps, rewards = self._ends.ended.tolist()
        self._ends.ended.zero_()
        return int(count), int(steps), rewards, 0

    def save(self) -> None:
        self._leaves = self._told()

    def load(self) -> None:
        with self._calling("set_state"):
            batch_state.give(self._batch, self._leaves, self._given)

    def state(self) -> State:
        state = {"ended": self._ends.ended}
        if self.environment.resumes:
            state |= {"clock": self._ends.clock, "returns": self._ends.returns, "obs": self._obs[0]}  # [N, F], as in checkpoints of 1.0.0
            state |= {f"state/{n}": leaf for n, leaf in enumerate(self._leaves)}
        return state

    def place(self, method: str, field: str) -> str:
        return method_place(type(self._batch), MASK if field == "mask" else method)

    def close(self) -> None:
        """Close the batch, if it has `close`."""
        batch, self._made = self._made, None
        if isinstance(batch, Closes):
            batch.close()

    def try_step(self) -> None:
        """Take a step; of a batch that tells its state, twice, and see that the step depends on the state alone."""
        self._leaves = self._told() if self.environment.resumes else []
        spare = torch.empty_like(self._obs[0])
        first = [part.clone() for part in self._tried(spare)]
        if self._image and any(bool(((seen < -CLOSE) | (seen > 1.0 + CLOSE)).any()) for seen in (self._obs[0], first[0])):
            raise self._wrong("step", "returned images with real numbers that are not from 0 to 1; return uint8 for 0 to 255")
        if self.environment.resumes:
            self._told()
            self._stepping = False
            self.load()
            again = self._tried(spare)
            pairs = zip(first, again, strict=True)
            if not all(torch.allclose(a.double(), b.double(), CLOSE, CLOSE, equal_nan=True) for a, b in pairs):
                lacking = "get_state returns not" if batch_state.has_methods(self._batch) else "its attribute `state` is not"
                raise self._wrong("step", f"gave other results after its state was set back: {lacking} all it depends on")
            self._try_reset()
        self._stepping = False

    # A step ----------------------------------------------------------------------------------------------------------------------

    def _fresh(self, mask: torch.Tensor) -> torch.Tensor:
        """Begin an episode where `mask` says so; return observations [N, F], of which those count."""
        return self._taken("reset", PARTS[0], self._begun(mask)).reshape(self._n_envs, -1)

    def _begun(self, mask: torch.Tensor) -> object:
        """Return what a reset where `mask` says so gives."""
        with self._calling("reset"):
            return self._batch.reset(self._reset_seed(), self._given(mask))

    def _reset_seed(self) -> int:
        return derived_seed(self._seed, "batch", self._first_env, self.resets.value, self.steps.value) % SEEDS

    def _step_on_host(self, ends: KernelEnds, row: int) -> torch.Tensor:
        """Take a step with the actions of a row, and begin episodes; return where one has ended."""
        method, given = self._stepped(row, self._obs[row + 1], self._reset_seed() if self._resets_too else None)
        seen, gained, ended, cut, *fresh = [self._on_host(method, *part) for part in zip((*PARTS, PARTS[0]), given, strict=False)]
        ends.account(row, seen, gained, ended, cut)
        if ends.counts[0]:
            if not fresh:
                begun = self._on_host("reset", PARTS[0], self._begun(ends.over))
            elif ends.counts[1]:
                begun = np.where(ends.late.numpy()[:, None], self._on_host("reset", PARTS[0], self._begun(ends.late)), *fresh)
            else:
                (begun,) = fresh
            ends.renew(row, begun)
        return ends.over

    def _stepped(self, row: int, after: torch.Tensor, seed: int | None = None) -> tuple[str, tuple[object, ...]]:
        """Return the method that took a step with the actions of a row, and what it gave; it may write observations to `after` [N, F].

        With a `seed`, the batch also begins episodes where others end, and their observations are the last part.
        """
        self._stepping = True
        actions = self._action_rows[row][:] if self._action_rows else self._given(self._actions(self._group.action[row, :, 0]))
        method, parts = ("step", PARTS) if seed is None else (STEP_AND_RESET, (*PARTS, PARTS[0]))
        more: dict[str, Array] = {} if seed is None else {"seed": seed}
        if self._writes_out and seed is None:
            more["out"] = self._given(after.view(self._shape))
        with self._calling(method):
            given: object = getattr(self._batch, method)(actions, **more)
        if not isinstance(given, tuple) or len(given) != len(parts):
            raise self._wrong(method, f"must return ({', '.join(parts)}); it returned {shown(given)}")
        return method, given

    def _tensors(self, method: str, given: tuple[object, ...]) -> list[torch.Tensor]:
        """Return what a step gave as tensors that are checked."""
        return [self._taken(method, name, part) for name, part in zip(PARTS, given, strict=True)]

    def _on_host(self, method: str, name: str, given: object) -> np.ndarray:
        """Return what a method gave as a contiguous array that is checked, on the same memory if it is one of the dtype for kernels.

        These are observations [N, F] and rewards [N] of float32, and ends [N] of bool.
        """
        array, dtype = host_array(given), BOOL if name in TRUTHS else FLOAT
        if array is None or array.dtype != dtype or array.shape != self._shapes[name] or not array.flags.c_contiguous:
            tensor = self._taken(method, name, given)
            array = (tensor if name in TRUTHS else tensor.float()).detach().contiguous().numpy()
        return array.reshape(self._n_envs, -1) if name == PARTS[0] else array

    def _allow(self, row: int) -> None:
        """Write which actions are allowed in row `row`, if the batch says so."""
        if self._group.mask is not None:
            mask = self._group.mask[row, :, 0]
            with self._calling(MASK):
                given = self._batch.action_mask()
            mask.copy_(self._taken(MASK, "masks", given))

    def _given(self, tensor: torch.Tensor) -> Array:
        """Return a tensor as an array of the batch, see `giver`. Raises TrainingFailed."""
        try:
            return self._give(tensor)
        except (TypeError, ValueError, RuntimeError, BufferError) as error:
            name, where = getattr(self._batch.arrays, "__name__", "arrays"), tensor.device
            raise self._wrong("arrays", f"failed: {name} takes no memory on {where} ({told(error)}); write device=cpu") from None

    def _taken(self, method: str, name: str, given: object) -> torch.Tensor:
        """Return an array of the batch as a tensor, on the same memory; images of uint8 divided by 255.

        Raises TrainingFailed if it is not what it must be.
        """
        shape = self._shapes[name]
        try:
            tensor = tensor_of(given)
        except (TypeError, ValueError, RuntimeError, BufferError) as error:
            raise self._wrong(method, f"returned {name} that cannot be read: {told(error)}; return an array of the shape {shape}") from None
        truth, observed = name in TRUTHS, name == PARTS[0]
        if tuple(tensor.shape) != shape:
            raise self._wrong(method, f"returned {name} of the shape {tuple(tensor.shape)}; it must be {shape}")
        if tensor.is_complex() or (truth != (tensor.dtype == torch.bool) and not (observed and self._binary)):
            wanted = "booleans" if truth else "real numbers"
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise self._wrong(method, f"returned {name} of the dtype {dtype}; they must be {wanted}")
        if observed and self._image and not (tensor.dtype == torch.uint8 or tensor.is_floating_point()):
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise self._wrong(method, f"returned images of the dtype {dtype}; they must be uint8, or real numbers from 0 to 1")
        if tensor.device != self._obs.device:
            where = f"{name} on {tensor.device}, and the run computes on {self._obs.device}"
            raise self._wrong(method, f"returned {where}: make the arrays there, or write device=cpu")
        return tensor.float() / self._byte if observed and self._image and tensor.dtype == torch.uint8 else tensor

    @contextmanager
    def _calling(self, method: str) -> Iterator[None]:
        """Raise TrainingFailed for what the code of the user raises."""
        try:
            yield
        except (Exception, SystemExit) as error:
            is_call = method in SIGNATURES and isinstance(error, TypeError) and is_silent(error)  # the call itself fails
            place, wanted = (method_place(type(self._batch), method), f"; write {method}({SIGNATURES[method]})") if is_call else ("", "")
            raise self._failed(f"{method} failed: {place}{told(error)}{wanted}") from error

    def _wrong(self, method: str, problem: str) -> TrainingFailed:
        """Return the error for what a method did, or the state is, with the place of the method in the code of the user."""
        return self._failed(f"{method_place(type(self._batch), method)}{method} {problem}")

    def _failed(self, problem: str) -> TrainingFailed:
        return TrainingFailed(f"{self.environment.title} at step {self.steps.value + self._stepping:,}: {problem}")

    # The state of the batch ------------------------------------------------------------------------------------------------------

    def _told(self, after: str = "step") -> list[torch.Tensor]:
        """Return copies of the arrays and numbers of the state, of the same shapes and dtypes as before the method `after`."""
        with self._calling(batch_state.source_of(self._batch)):
            state = batch_state.told_by(self._batch)
            made = batch_state.leaves_of(state)
        if self._leaves and batch_state.form_of(made) != batch_state.form_of(self._leaves):
            changed = batch_state.changed_form(batch_state.source_of(self._batch), state, self._leaves, made)
            raise self._failed(method_place(type(self._batch), after) + changed)
        return [leaf.clone() for leaf in made]

    def _tried(self, spare: torch.Tensor) -> list[torch.Tensor]:
        """Return what a step gives, and the masks after it if there are any; `spare` [N, F] is for observations."""
        found = self._tensors(*self._stepped(0, spare))
        if self._group.mask is None:
            return found
        self._allow(1)
        return [*found, self._group.mask[1, :, 0]]

    def _try_reset(self) -> None:
        """Reset every second environment, and see that the state of the others stays."""
        before = self._told()
        mask = torch.arange(self._n_envs, device=self._obs.device) % 2 == 0
        self._fresh(mask)
        changed = batch_state.changed_rows(self._batch, before, self._told("reset"), mask)
        if changed:
            raise self._wrong("reset", f"changed {changed}, where `mask` is false: begin an episode only where it is true")
