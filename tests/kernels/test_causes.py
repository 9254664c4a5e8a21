"""Messages of Numba in words of the user."""

import pytest

from warprun.kernels.causes import cause_of

UNKNOWN = "No implementation of function Function({}) found for signature:\n\n >>> {}\n\nThere are 14 candidate implementations:"
CAUSES = {
    UNKNOWN.format("<built-in function mul>", "mul(UniTuple(float32 x 1), float32)"): "take an element, such as action[0]",
    UNKNOWN.format("<built-in function getitem>", "getitem(int32, Literal[int](0))"): "the action of Discrete is a number, written without",
    "Unknown attribute 'soil' of type farms_sum_Fields(float32 x 1)": "farms_sum has no 'soil'; add 'soil' to sums= of the group farms",
}


@pytest.mark.parametrize("text", CAUSES)
def test_what_was_mistaken_for_a_number_a_tuple_or_a_sum_is_named(text: str) -> None:
    assert CAUSES[text] in cause_of(text, [])
