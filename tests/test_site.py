"""The site of the documentation (mkdocs.yml): every page is in its navigation, and it builds without a warning."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import warprun
from tests.commands import ROOT
from tests.scripts import load

DOCS = ROOT / "docs"
CONFIG = (ROOT / "mkdocs.yml").read_text()
MISSING = not all(importlib.util.find_spec(name) for name in ("material", "mkdocstrings_handlers"))


def test_every_page_is_in_the_navigation_once() -> None:
    shown = re.findall(r"[\w/]+\.md", CONFIG.partition("\nnav:")[2])
    assert sorted(shown) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


def test_every_public_name_is_in_the_reference() -> None:
    named = re.findall(r"^::: warprun\.(\w+)$", (DOCS / "api.md").read_text(), flags=re.MULTILINE)
    assert {*warprun.__all__} <= {*named} <= {*dir(warprun), "neighbours", "spec"}


def test_pages_for_github_become_pages_of_the_site() -> None:
    """Links to the code lead to the repository, or are text if it has no address; links between pages stay."""
    rewritten = load("site_links").rewritten
    for page, path, shown in (
        ("architecture.md", "../warprun/runs/run.py#L7", "warprun/runs/run.py#L7"),
        ("benchmarks/off_policy.md", "../../README.md", "README.md"),
        ("api.md", "notebook.ipynb", "docs/notebook.ipynb"),
    ):
        assert rewritten(f"[a]({path})", page, "https://at") == f"[a](https://at/blob/main/{shown})"
    stays = "[a](../gallery.md#b), ![c](../figures/c.png), [a](https://b/c), [d](mailto:e@f), [g](#h)"
    assert rewritten(stays, "benchmarks/off_policy.md", "https://at") == stays
    assert rewritten(r"| `a\|b` | |x\|", "glossary.md", "https://at") == r"| `a|b` | |x\|"
    assert rewritten("see [`a`](../setup.cfg), [b](glossary.md)", "architecture.md", "") == "see `a`, [b](glossary.md)"


@pytest.mark.long
@pytest.mark.skipif(MISSING, reason='needs pip install "warprun[docs]"')
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    # Not --quiet, with which --strict sees no warnings.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    reference = (tmp_path / "api" / "index.html").read_text()
    assert not [name for name in warprun.__all__ if f'id="warprun.{name}"' not in reference]
    for page in tmp_path.rglob("*.html"):
        text = page.read_text()
        assert not re.findall(r"<(?:script|img) [^>]*src=\"https?:|<link rel=\"stylesheet\" href=\"https?:", text), page
