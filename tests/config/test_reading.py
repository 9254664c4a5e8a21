"""Saved configs are read as OmegaConf reads what it has written."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from warprun.config.reading import read_config
from warprun.errors import UserError

TEXT = """
numbers: {a: 1e-3, b: 1.0e-05, c: 3, d: -2.5, e: 1_000, f: .5, g: .inf, h: 0x10, i: 010, j: 1:30}
words: {a: 2026-01-02, b: yes, c: 'on', d: null, e: ~, f: "1e-3", g: tag:x, 3: three}
lists: [[], [1, 2.0, text], {}]
"""


def test_values_are_those_of_omegaconf(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(TEXT)
    expected = OmegaConf.to_container(OmegaConf.load(path))
    assert repr(read_config(path)) == repr(expected)


@pytest.mark.parametrize("text", ["a: 1\na: 2\n", "a:\n  b: 1\n  b: 1\n", "", "- 1\n", "a: ${b}\n", "a: 1\nb: [\n"])
def test_what_no_run_has_written_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match="cannot read"):
        read_config(path)
