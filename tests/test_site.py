"""The site of the documentation (mkdocs.yml): every page is in its navigation, and it builds without a warning."""

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import warprun
from tests.commands import ROOT
from tests.scripts import load

DOCS = ROOT / "docs"
CONFIG = (ROOT / "mkdocs.yml").read_text()
MISSING = not all(importlib.util.find_spec(name) for name in ("material", "mkdocstrings_handlers"))


def pages(entry: object) -> Iterator[str]:
    """Yield the pages of an entry of the navigation: a page, a title with pages, or a list of entries."""
    if isinstance(entry, str):
        yield entry
    else:
        for below in entry.values() if isinstance(entry, dict) else entry:  # type: ignore[attr-defined]
            yield from pages(below)


def test_every_page_is_in_the_navigation_once() -> None:
    # Other parts of the file name Python objects, which only MkDocs reads.
    navigation = yaml.safe_load("nav:" + CONFIG.partition("\nnav:")[2])["nav"]
    assert sorted(pages(navigation)) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


def test_every_public_name_is_in_the_reference() -> None:
    named = re.findall(r"^::: warprun\.(\w+)$", (DOCS / "api.md").read_text(), flags=re.MULTILINE)
    assert {*warprun.__all__} <= {*named} <= {*dir(warprun), "neighbours", "spec"}


@pytest.mark.parametrize(
    ("page", "written", "shown"),
    [
        ("architecture.md", "[a](../warprun/runs/run.py#L7)", "[a](https://at/blob/main/warprun/runs/run.py#L7)"),
        ("benchmarks/off_policy.md", "[a](../../README.md)", "[a](https://at/blob/main/README.md)"),
        ("api.md", "[a](notebook.ipynb)", "[a](https://at/blob/main/docs/notebook.ipynb)"),
        ("benchmarks/off_policy.md", "[a](../gallery.md#b), ![c](../figures/c.png)", None),
        ("glossary.md", "[a](https://b/c), [d](mailto:e@f), [g](#h)", None),
        ("glossary.md", r"| `a\|b` | |x\|", r"| `a|b` | |x\|"),
    ],
)
def test_pages_for_github_become_pages_of_the_site(page: str, written: str, shown: str | None) -> None:
    assert load("site_links").rewritten(written, page, "https://at") == (shown or written)


def test_without_an_address_of_the_repository_links_to_it_are_text() -> None:
    assert load("site_links").rewritten("see [`a`](../setup.cfg), [b](glossary.md)", "architecture.md", "") == "see `a`, [b](glossary.md)"


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
