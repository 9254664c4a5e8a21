"""The ring of transitions and its draws: against the golden numbers, by statistics, and both forms of every operation together."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from tests.compiled import compiled
from tests.learning.helpers import CPU, SPACES, Golden, close, environment, rollout
from tests.learning.torch_replay import TorchReplay
from warprun.environment import Box, Discrete, Environment, Group, Phase, Space
from warprun.errors import UserError
from warprun.learning.kernels import replay as rows
from warprun.learning.kernels.cpu import replay as kernels
from warprun.learning.kernels.cpu.replay import CpuReplay
from warprun.learning.replay import Replay, ReplayOperations, Transitions
from warprun.learning.settings.off_policy import OffPolicyConfig, ReplayConfig
from warprun.simulation.trajectory import Trajectory, allocate
from warprun.spec import Field

Form = Callable[[Replay], ReplayOperations]
FORMS = [pytest.param(CpuReplay, id="kernels"), pytest.param(TorchReplay, id="torch")]


def single(space: Space, features: int = 1) -> Environment:
    """Return an environment of one actor that nobody steps."""
    base = environment(one=space).groups[0]
    group = Group("one", 1, base.state, Box(features), space, base.reset, base.observe)
    return Environment((group,), (Phase("one", base.reset),), time_limit=50)


def make(
    env: Environment,
    n_envs: int,
    form: Form = CpuReplay,
    n_step: int = 1,
    gamma: float = 0.9,
    batch_size: int = 8,
    sources: int | None = None,
    **config: Any,
) -> Replay:
    group = env.spec.groups[0]
    settings = OffPolicyConfig(batch_size=batch_size, n_step=n_step, gamma=gamma, replay=ReplayConfig(**{"beta": 0.5, **config}))
    return Replay(settings, group, CPU, n_envs, 5, sources, form)


def store(replay: Replay, taken: Trajectory) -> None:
    """Take in a rollout."""
    replay.advance(taken.horizon)
    replay.store(taken, taken.groups["one"])


def everything(replay: Replay) -> Transitions[torch.Tensor]:
    """Return all transitions of the ring, in the order of its rows."""
    found = TorchReplay(replay).gather(torch.arange(replay.size))
    if isinstance(replay.operations, CpuReplay):
        arrays = Transitions(*(part.numpy() for part in found))
        for part in (found.obs, found.action, found.reward, found.discount, found.next_obs):
            part.fill_(-7)
        compiled(kernels.gather_batch)(replay.operations._memory[0], replay.operations._memory[2], replay.n_step, replay.gamma, arrays)
    return found


def find(replay: Replay, mass: torch.Tensor) -> torch.Tensor:
    """Return the rows whose interval of the cumulative priorities contains `mass` [B]."""
    if not isinstance(replay.operations, CpuReplay):
        return TorchReplay(replay).find(mass)
    found = compiled(rows.find_row)
    return torch.tensor([found(replay.operations._memory[1], float(each)) for each in mass])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("g", [0, 1])
def test_nstep_returns_are_the_golden_ones(form: Form, n: int, g: int, golden: Golden) -> None:
    """64 steps of 8 environments in rollouts of 16; an observation is the number of its transition, and finds its value."""
    given, expected = golden("gae"), golden("nstep")
    gamma = float(expected["gamma"][g])
    env = single(Discrete(2))
    replay = make(env, 8, form, n, gamma, capacity=64 * 8)
    number = torch.arange(64 * 8.0).view(64, 8)
    for begin in range(0, 64, 16):
        taken = allocate(env.spec, 16, 8, CPU)
        group, part = taken.groups["one"], slice(begin, begin + 16)
        taken.terminated.copy_(given["terminated"][part])
        taken.truncated.copy_(given["truncated"][part] & ~given["terminated"][part])
        group.reward[..., 0] = given["reward"][part].float()
        # The observation that follows a step bears its number, but where truncated only the final one does.
        group.obs[1:, :, 0, 0] = torch.where(taken.truncated, -1.0, number[part])
        slots = taken.final_slot()
        final = torch.full((16, 8, 1, 1), -1.0)
        for t, n_env in taken.truncated.nonzero().tolist():
            final[slots[t, n_env], n_env] = number[begin + t, n_env]
        object.__setattr__(group, "final_obs", final)
        store(replay, taken)
    _, _, reward, discount, next_obs, _, _ = everything(replay)
    at = next_obs[:, 0].long()
    value = given["next_value"].flatten()[at.clamp(min=0)].float()
    bootstraps = discount > 0
    assert (at[bootstraps] >= 0).all()
    close(reward + discount * value, expected[f"ret_n{n}_g{g}"].flatten(), 1e-5)
    horizon = expected[f"horizon_n{n}_g{g}"].flatten()
    close(discount[bootstraps], gamma ** horizon[bootstraps].double(), 1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_rollout_that_does_not_continue_the_last_one_cuts_its_episodes_off(form: Form) -> None:
    """As when a run continues, and its environments cannot: returns of 3 steps end where the first rollout ended."""
    env = single(Discrete(2))
    replay = make(env, 2, form, n_step=3, gamma=0.5, capacity=12)
    for begin in (0, 4, 8):
        taken = allocate(env.spec, 2, 2, CPU)
        group = taken.groups["one"]
        group.reward.fill_(1.0)
        group.obs[:, :, 0, 0] = torch.arange(begin, begin + 3.0)[:, None]
        taken.terminated[1, 1] = begin == 0
        taken.continues.fill_(begin != 4)
        store(replay, taken)
    found = everything(replay)
    assert found.reward.view(6, 2)[:4].tolist() == [[1.5, 1.5], [1.0, 1.0], [1.75, 1.75], [1.75, 1.75]]
    assert found.discount.view(6, 2)[:2].tolist() == [[0.25, 0.0], [0.5, 0.0]]
    assert found.next_obs.view(6, 2)[:2, 0].tolist() == [2.0, 2.0]


@pytest.mark.parametrize("form", FORMS)
def test_priorities_are_the_golden_ones(form: Form, golden: Golden) -> None:
    g = golden("per")
    count = len(g["td_error"])
    settings = {"alpha": float(g["alpha"]), "eps": float(g["eps"])}
    replay = make(single(Discrete(2)), 1, form, capacity=count, prioritized=True, **settings)
    tree = replay.tree
    replay.update_priorities(torch.arange(count), g["td_error"].float())
    close(tree.priority[:count], g["priority"], 1e-5)
    close(tree.sums[-1], g["total"], 1e-5)
    assert find(replay, g["uniform_mass"]).tolist() == g["index"].tolist()
    probability = tree.priority[:count].double() / tree.sums[-1]
    weight = (count * probability) ** -float(g["beta"])
    close(weight, g["weight_raw"], 1e-5)
    close(weight[g["index"]] / weight[g["index"]].max(), g["weight_norm_by_batch_max"], 1e-5)
    beyond = torch.tensor([float(g["total"]) * (1 - 1e-16), float(g["total"]), float(g["total"]) * 1.001])
    assert (find(replay, beyond) < count).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_row_of_several_errors_has_the_largest_priority_in_any_order(form: Form) -> None:
    random = torch.Generator().manual_seed(0)
    rows, errors = torch.randint(40, (64,), generator=random), torch.randn(64, generator=random)
    assert len(rows.unique()) < 40
    found = []
    for _ in range(5):
        replay = make(single(Discrete(2)), 1, form, capacity=40, prioritized=True)
        replay.update_priorities(torch.arange(40), torch.full((40,), 9.0))  # what a row had before does not count
        order = torch.randperm(64, generator=random)
        replay.update_priorities(rows[order], errors[order])
        found.append(replay.tree)
    for tree in found[1:]:
        assert torch.equal(tree.priority, found[0].priority) and torch.equal(tree.sums, found[0].sums)
    config = replay.config
    for row in rows.unique():
        expected = (errors[rows == row].double().abs().max() + config.eps) ** config.alpha
        close(found[0].priority[row], expected, 1e-6)


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("space", SPACES.values(), ids=str)
def test_both_forms_keep_and_draw_the_same(prioritized: bool, space: Space) -> None:
    """Three actors of two kinds of end, a ring that wraps around, and 17 x 16 rows: three levels of sums."""
    env = environment(one=space)
    settings = {"n_step": 3, "capacity": 305, "prioritized": prioritized, "batch_size": 64}
    forms = [make(env, 5, form, **settings) for form in (CpuReplay, TorchReplay)]
    for number in range(12):
        taken = rollout(env, horizon=6, n_envs=5, seed=number)
        batches = []
        for replay in forms:
            store(replay, taken)
            batches.append(replay.draw(torch.tensor(number)))
            if prioritized:
                replay.update_priorities(batches[-1].row, (batches[-1].row % 7).float() - 3.0)
        for a, b in zip(*batches, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
        for a, b in zip(forms[0].tensors().values(), forms[1].tensors().values(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    assert forms[0].size == 300


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["image", "binary"])
def test_bytes_are_kept_exactly(form: Form, kind: Any) -> None:
    """What comes back has the bits of what was stored, which are those of 255 float32 quotients."""
    base = single(Discrete(2)).groups[0]
    of_bytes = Box(256, fields=(Field(0, (4, 8, 8), kind=kind),))
    group = Group("one", 1, base.state, of_bytes, Discrete(2), base.reset, base.observe)
    env = Environment((group,), (Phase("one", base.reset),), time_limit=50)
    replay = make(env, 3, form, capacity=12, batch_size=64)
    assert replay.ring.obs.dtype == replay.ring.next_obs.dtype == torch.uint8
    taken = allocate(env.spec, 4, 3, CPU)
    every = torch.from_numpy(np.arange(256, dtype=np.float32) / np.float32(255))
    every = every.round() if kind == "binary" else every
    for t in range(5):
        for n in range(3):
            taken.groups["one"].obs[t, n, 0] = every.roll(17 * t + n)
    taken.truncated[2, 1] = True
    taken.groups["one"].final_obs[0, 1, 0] = every.roll(101)
    store(replay, taken)
    obs, _, _, _, next_obs, _, row = replay.draw(torch.tensor(1))
    given = taken.groups["one"].obs[:, :, 0].clone()
    assert obs.dtype == next_obs.dtype == torch.float32
    assert torch.equal(obs, given[:-1].flatten(0, 1)[row])
    given[3, 1] = every.roll(101)
    assert torch.equal(next_obs, given[1:].flatten(0, 1)[row])


def test_the_ring_keeps_the_last_transitions() -> None:
    env = single(Discrete(2))
    replay = make(env, 3, capacity=10)
    taken = allocate(env.spec, 1, 3, CPU)
    group = taken.groups["one"]
    for step in range(7):
        group.obs[0] = step
        group.obs[1] = step + 1
        store(replay, taken)
        assert replay.size == min(3 * (step + 1), 9)
    obs, _, _, _, next_obs, _, _ = everything(replay)
    assert sorted(obs[:, 0].tolist()) == sorted([4.0, 5.0, 6.0] * 3)
    assert torch.equal(next_obs, obs + 1)


def test_new_transitions_have_the_largest_priority() -> None:
    env = single(Discrete(2))
    replay = make(env, 2, capacity=64, prioritized=True, alpha=1.0, eps=1e-9)
    taken = allocate(env.spec, 4, 2, CPU)
    store(replay, taken)
    assert replay.tree.priority[:8].tolist() == [1.0] * 8
    replay.update_priorities(torch.tensor([3]), torch.tensor([-7.0]))
    store(replay, taken)
    assert replay.tree.priority[8:16].tolist() == [7.0] * 8
    assert replay.tree.priority[16:].sum() == 0
    assert float(replay.tree.sums[-1]) == pytest.approx(7 + 7 + 8 * 7)


@pytest.mark.parametrize("prioritized", [False, True])
def test_draws_follow_their_probabilities(prioritized: bool) -> None:
    """Chi-square over two million draws."""
    env = single(Discrete(2))
    rows, batch, draws = 1000, 2000, 1000
    replay = make(env, rows, capacity=rows, prioritized=prioritized, batch_size=batch)
    taken = allocate(env.spec, 1, rows, CPU)
    store(replay, taken)
    error = torch.from_numpy(np.random.default_rng(1).exponential(size=rows)).float()
    if prioritized:
        replay.update_priorities(torch.arange(rows), error)
    counts = torch.zeros(rows, dtype=torch.int64)
    for number in range(draws):
        counts += torch.bincount(replay.draw(torch.tensor(number)).row, minlength=rows)
    weight = (error.double() + 1e-6) ** 0.6 if prioritized else torch.ones(rows, dtype=torch.float64)
    expected = weight / weight.sum() * batch * draws
    # Draws from equal shares of the total vary less than independent ones: only too much is a fault.
    assert stats.chisquare(counts.numpy(), expected.numpy()).pvalue > 1e-4


def test_a_million_cartpole_transitions_take_less_than_60_megabytes() -> None:
    replay = make(single(Discrete(2), features=4), 1, capacity=1_000_000, prioritized=True)
    assert sum(t.numel() * t.element_size() for t in (*replay.ring, *replay.tree[1:])) < 60e6


def test_a_step_that_does_not_fit_is_refused() -> None:
    env = single(Discrete(2))
    with pytest.raises(UserError, match=r"agent\.replay\.capacity=10"):
        make(env, 11, capacity=10)


@pytest.mark.slow
def test_prioritized_draws_from_a_million_are_quick() -> None:
    """A draw of 256 and the update of their priorities in less than 200 microseconds (the median: other processes run, too)."""
    env = single(Discrete(2), features=4)
    replay = make(env, 10_000, capacity=1_000_000, prioritized=True, batch_size=256)
    taken = allocate(env.spec, 1, 10_000, CPU)
    for _ in range(100):
        store(replay, taken)
    error = torch.from_numpy(np.random.default_rng(4).exponential(size=1_000_000)).float()
    replay.update_priorities(torch.arange(1_000_000), error)
    took = []
    for number in range(2000):
        began = time.perf_counter()
        batch = replay.draw(torch.tensor(number))
        replay.update_priorities(batch.row, error[:256])
        took.append(time.perf_counter() - began)
    assert np.median(took) < 200e-6, f"{np.median(took) * 1e6:.0f} microseconds"


@pytest.mark.parametrize("form", FORMS)
def test_rollouts_of_several_sources_are_continued_by_those_of_the_same_source(form: Form) -> None:
    """Three sources take turns at random, one loses a rollout; every n-step return is that of the stream of its source."""
    rng, horizon, n_envs, n = np.random.default_rng(1), 3, 2, 5
    env = single(Discrete(2))
    capacity = 20 * n_envs * horizon
    replay = make(env, n_envs, form, n, 0.5, sources=3, capacity=capacity)
    taken = allocate(env.spec, horizon, n_envs, CPU)
    streams: dict[int, list[list[float]]] = {source: [[]] for source in range(3)}  # pieces without a gap, of rewards by step
    last_of: dict[float, tuple[int, int, int]] = {}  # reward -> source, piece, place in it
    number = 0.0
    for turn in range(60):
        source = int(rng.integers(3))
        gap = source == 1 and turn % 7 == 0
        taken.source.fill_(source)
        taken.continues.fill_(not gap)
        if gap:
            streams[source].append([])
        for t in range(horizon):
            number += 1.0
            taken.groups["one"].reward[t, :, 0] = torch.tensor([number, -number])
            taken.groups["one"].obs[t + 1].fill_(number)
            piece = streams[source][-1]
            piece.append(number)
            last_of[number] = (source, len(streams[source]) - 1, len(piece) - 1)
        store(replay, taken)
    drawn, rewards = everything(replay), replay.ring.reward
    assert replay.size == capacity
    for row in range(replay.size):
        source, piece, at = last_of[abs(float(rewards[row]))]
        summed = streams[source][piece][at : at + n]
        sign = 1.0 if rewards[row] > 0 else -1.0
        assert float(drawn.reward[row]) == sign * sum(0.5**k * r for k, r in enumerate(summed))
        assert float(drawn.discount[row]) == 0.5 ** len(summed)
        assert float(drawn.next_obs[row]) == summed[-1]
