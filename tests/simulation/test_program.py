"""The text of kernel modules: what a person reads in the cache, and the table of arrays in the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.environments import market
from tests.simulation.rollouts import ROOT
from warprun.envs import cartpole
from warprun.simulation.arrays import COMMON, PER_GROUP, PER_INDEX, ArrayPlan, describe
from warprun.simulation.codegen.program import write
from warprun.simulation.codegen.targets import BLOCK, CPU, THREAD
from warprun.simulation.codegen.templates import block, fill

TARGETS = pytest.mark.parametrize("target", [CPU, THREAD], ids=lambda target: target.name)


def test_holes_take_lines_at_their_indentation():
    assert fill("\nif x:\n    $body\n    $nothing\n    y = ${x}_$x\n", body="a\nb", nothing="", x="n") == "if x:\n    a\n    b\n    y = n_n"


def test_a_block_of_nothing_is_nothing():
    assert block("for n in range(3):", "", "") == ""
    assert block("for n in range(3):", "", "a\nb") == "for n in range(3):\n    a\n    b"


@TARGETS
def test_every_call_of_a_user_function_has_its_file_and_line_above(target):
    lines = write(ArrayPlan(cartpole.environment(), target, 1, 1)).source.splitlines()
    calls = [n for n, line in enumerate(lines) if re.search(r"\bagent_\w+_function\(", line)]
    assert len(calls) == 6  # reset and observe; step, observe the final state, reset, observe
    for n in calls:
        function = re.search(r"agent_(\w+)_function\(", lines[n])[1]
        code = getattr(cartpole, function).__code__
        assert lines[n - 1].strip() == f"# envs/cartpole.py:{code.co_firstlineno} {function}"


@TARGETS
def test_streams_and_faults_have_names(target):
    source = write(ArrayPlan(cartpole.environment(), target, 1, 1)).source
    assert "STEP_0" not in source  # CartPole's step draws nothing
    assert re.search(r"^RESET = 0 << 24$", source, re.MULTILINE)
    assert not re.search(r"np\.uint32\(\d", source)
    assert not re.search(r"note_numbers\(fault, any_fault, lane, \d", source)


@pytest.mark.parametrize("target", [CPU, BLOCK], ids=lambda target: target.name)
def test_kernels_take_one_tuple_for_each_group(target):
    source = write(ArrayPlan(market.environment, target, 1, 1)).source
    for kernel in ("reset", "sample", "greedy", "step"):
        taken = re.search(rf"^def {kernel}\((.*)\):$", source, re.MULTILINE)[1]
        assert taken.endswith("common, producers_arrays, regulator_arrays")


def test_no_array_is_called_as_the_end_of_another():
    """The local names of kernels are GROUP_ARRAY; of arrays that have local names none may be read in two ways."""
    local = [a.name for a in (*COMMON, *PER_GROUP, *PER_INDEX) if a.tiled or a.axes[0] in ("T", "T+1")]
    assert not [(a, b) for a in local for b in local if a.endswith(f"_{b}")]


def test_the_docs_have_the_table_of_arrays():
    text = Path(ROOT / "docs" / "architecture.md").read_text()
    between = text.partition("<!-- arrays -->\n")[2].partition("\n<!-- end -->")[0]
    assert between == describe(), "python -c 'from warprun.simulation.arrays import describe; print(describe())' writes it"
