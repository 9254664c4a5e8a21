"""What is wrong with an environment is told before the run begins, and before an action is chosen that cannot be chosen."""

import pytest

from tests.simulation.external import odd
from tests.simulation.external.simulators import act, simulator
from tests.simulation.external.test_sources import examined
from warprun.checking.external import single
from warprun.errors import ContractError, UserError


def test_a_rollout_ends_at_a_mask_that_forbids_every_action() -> None:
    """The environment gets no action that it forbids."""
    with simulator(examined("Masked")) as made:
        made.prepare()
        made.collect(act)
        told = str(made.fault())
    assert told.startswith(f"{odd.__file__}:") and " in step: environment 0 of Masked forbade every action at step 3" in told


def test_an_environment_with_an_empty_mask_is_reset_if_the_user_wants() -> None:
    with simulator(examined("Masked"), replaces=True) as made:
        made.prepare()
        made.collect(act)
        assert made.fault() is None and made.episodes().replaced == 3 * (20 // 3)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("MaskedAtOnce", " in reset: environment 0 of MaskedAtOnce forbade every action at step 0"),
        ("FourValues", r"failed at step 1: .*odd.py:\d+ in step: it must return \(observation, reward, terminated, truncated, info\)"),
        ("InLibrary", r"failed at step 1: .*odd.py:\d+ in step: TypeError"),
    ],
)
def test_the_first_step_is_tried_before_the_run(kind: str, told: str) -> None:
    with simulator(examined(kind)) as made, pytest.raises(UserError, match=told):
        made.prepare()


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("NoSeed", r"odd.py:\d+ in reset: .*unexpected keyword argument 'seed'; write reset\(self, seed=None\)$"),
        ("NoInfo", r"odd.py:\d+ in reset: reset of NoInfo must return \(observation, info\)"),
    ],
)
def test_what_is_wrong_with_reset_names_its_line(kind: str, told: str) -> None:
    with pytest.raises(ContractError, match=told):
        examined(kind)


def test_the_check_takes_only_allowed_actions() -> None:
    assert [str(problem) for problem in single(examined("Sound"))] == []
