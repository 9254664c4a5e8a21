"""Slices: the same bits for any number of threads, and the gradient of the whole."""

import threading

import pytest
import torch

from tests.learning.helpers import CPU, close
from warprun.learning.network_settings import NetworkConfig
from warprun.learning.networks import ActorCritic, flatten_parameters
from warprun.learning.slices import ROWS, Slices, split

N_ROWS = 5 * ROWS + 77


@pytest.mark.parametrize("rows", [1, ROWS, ROWS + 1, N_ROWS])
def test_slices_cover_the_batch_once(rows: int) -> None:
    parts = Slices(CPU, 1).cut(rows)
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(rows))
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) <= ROWS
    assert max(sizes) - min(sizes) <= 1


def test_split_has_no_remainder_left_over() -> None:
    assert [part.stop - part.start for part in split(11, 4)] == [2, 3, 3, 3]


def gradient(threads: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the sliced gradient and terms, and the gradient of the whole batch in one piece."""
    torch.manual_seed(0)
    network = ActorCritic(4, 2, NetworkConfig()).to(dtype)
    flatten_parameters(network)
    leaves = list(network.parameters())
    obs = torch.randn(N_ROWS, 4, dtype=dtype)

    def terms(part: slice) -> tuple[torch.Tensor, ...]:
        output, value = network(obs[part])
        return (output.log_softmax(-1)[:, 0].square() + value.sin()).mean(), value.mean()

    found, means = Slices(CPU, threads).gradient(terms, leaves, N_ROWS)
    whole = torch.autograd.grad(terms(slice(0, N_ROWS))[0], leaves)
    return found, means, torch.cat([g.flatten() for g in whole])


def test_one_and_two_threads_give_the_same_bits() -> None:
    one, two = gradient(1, torch.float32), gradient(2, torch.float32)
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1], two[1])


def test_sliced_gradient_is_that_of_the_whole() -> None:
    found, _, whole = gradient(2, torch.float64)
    close(found, whole, 1e-12)


def test_every_thread_computes_slices() -> None:
    """The calling one, too, at the same time as the other: each waits in its first slice until both are there."""
    both = threading.Barrier(2, timeout=20)

    def meet(part: slice) -> int:
        if part.start in (0, parts[len(parts) // 2].start):
            both.wait()
        return threading.get_ident()

    slices = Slices(CPU, 2)
    parts = slices.cut(N_ROWS)
    found = slices.map(meet, N_ROWS)
    assert len(found) == len(parts)
    assert set(found) > {threading.get_ident()}


def test_errors_of_a_slice_arrive() -> None:
    def fail(part: slice) -> None:
        raise ArithmeticError(part)

    with pytest.raises(ArithmeticError):
        Slices(CPU, 2).map(fail, N_ROWS)
