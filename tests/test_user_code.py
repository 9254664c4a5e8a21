"""Errors of code of the user."""

import pytest

from warprun.errors import TrainingFailed, UserError
from warprun.user_code import errors_of_user


def test_a_failed_rollout_is_told_without_the_name_of_a_class() -> None:
    with pytest.raises(UserError) as error, errors_of_user("a rollout of ./rover.py fails"):
        raise TrainingFailed("rover: environment 2 failed at step 3")
    assert str(error.value) == "a rollout of ./rover.py fails: rover: environment 2 failed at step 3"
