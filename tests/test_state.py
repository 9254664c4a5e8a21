"""Seeds of the parts of a run."""

from warprun.state import derived_seed


def test_a_seed_is_the_same_in_every_process() -> None:
    assert derived_seed(0, "evaluation") == 6070859771558012766


def test_seeds_and_purposes_do_not_meet() -> None:
    purposes = [(), ("evaluation",), ("shuffle",), ("group", 0), ("group", 1), ("replay", 3)]
    found = {derived_seed(seed, *purpose) for seed in range(1000) for purpose in purposes}
    assert len(found) == 1000 * len(purposes)


def test_a_seed_fits_into_an_int64() -> None:
    assert all(0 <= derived_seed(seed, "shuffle") < 2**63 for seed in (0, 1, 2**63, 2**64 - 1))
