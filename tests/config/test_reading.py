"""Saved configs are read section by section as they are read whole."""

from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from warprun.config import reading
from warprun.errors import UserError

WHOLE = "# saved by warprun\nname: x\nagent:\n  gamma: 0.99\n  hidden: [64, 64]\nlist:\n- 1\n- 2e-3\n\nlast: {a: null}\n"


TEXTS = [
    WHOLE,
    WHOLE.partition("\n")[2],
    "--- \na: 1\nb: 2\n",
    "a: 1\n...\nb: 2\n",
    "a: 1\n--- {b: 2}\n",
    'a: "one\nb: two"\nc: 3\n',
    "a: 1\n",
]


OF_A_RUN = ["7", "0", "010", "1_000", "0x1f", "1e3", "-1", "+1", "1 # one", "1.0", "yes"]
OF_A_RUN += ["/a/b.c-d_e", "/a b", "'/a'", "/a: b", "/a #b", "/ä", "~", "~/a", "/", "./a", "[/a]"]


ORIGINS = ["origin:\n  tuned: x\n  overrides:\n  - env=a\n  - b.c=1e-3,2\n", "origin:\n  overrides:\n  - a=b\n  more\n  c: d\n"]
ORIGINS += [
    f"{ORIGINS[0]}{rest}"
    for rest in ("  n_envs: null\n", "  - 'x=1'\n  n: 1\n", "    more\n", "# no\n  n: 1\n", "  overrides: []\n", "  x\n")
]
ORIGINS += [
    "origin: |\n  overrides:\n  - a=b\n",
    'origin:\n  a: "b\n  overrides:\n  - a=b\n  "\n',
    "origin:\n  a: b\n   c\n  overrides:\n  - a=b\n",
]


@pytest.mark.parametrize("text", [*TEXTS, *ORIGINS, *(f"{key}: {value}\nlast: 1\n" for value in OF_A_RUN for key in ("seed", "run_dir"))])
def test_a_config_is_what_yaml_takes_its_text_for(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    try:
        wanted = yaml.load(text, Loader=reading._SavedLoader)
    except (yaml.YAMLError, ValueError):
        with pytest.raises(UserError):
            reading.read_config(file)
    else:
        assert str(reading.read_config(file)) == str(wanted)
        assert reading.read_settings(file) == dict(reading.flat_items(wanted))


OF_OMEGACONF = """
numbers: {a: 1e-3, b: 1.0e-05, c: 3, d: -2.5, e: 1_000, f: .5, g: .inf, h: 0x10, i: 010, j: 1:30}
words: {a: 2026-01-02, b: yes, c: 'on', d: null, e: ~, f: "1e-3", g: tag:x, 3: three}
lists: [[], [1, 2.0, text], {}]
"""


def test_saved_values_are_those_of_omegaconf(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(OF_OMEGACONF)
    assert repr(reading.read_config(file)) == repr(OmegaConf.to_container(OmegaConf.load(file)))


def test_what_one_reader_changes_no_other_sees(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(WHOLE)
    first = reading.read_config(file)
    agent = first["agent"]
    assert isinstance(agent, dict)
    agent["gamma"] = 0.5
    assert reading.read_config(file) != first


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: 1\na: 2\n", "line 1: a key is there twice"),
        ("a:\n  b: 1\n  b: 1\n", "line 2: a key is there twice"),
        ("", "it holds no config"),
        ("- 1\n", "it holds no config"),
        ("a: 1\nb: &x [1]\nc: *x\n", "line 2: anchors"),
        ("a: 1\nb: !!python/name:os.system\n", "line 2: tags"),
        ("a: 1\nb: [1\n", "while parsing"),
        ("a: 1\nb: ${oc.env:HOME}\n", "b is an interpolation"),
    ],
)
def test_what_a_config_may_not_hold_is_refused_with_its_line(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=why.replace("(", r"\(").replace("$", r"\$")):
        reading.read_config(tmp_path / "config.yaml")


def test_many_values_are_too_many_however_they_are_divided(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("".join(f"k{n}: [1, 2, 3, 4]\n" for n in range(reading.MAX_NODES // 4)))
    with pytest.raises(UserError, match="more than 20,000 values"):
        reading.read_config(file)
