"""A hook of MkDocs (mkdocs.yml): what pages say to GitHub in another way than to MkDocs.

Links to files that are not part of the site, such as `../warprun/runs/run.py#L147` or a notebook, lead to the repository, `repo_url`;
without one, only their text is left. In code within tables `\\|` is a bar: GitHub needs the backslash, MkDocs shows it.
"""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

LINK = re.compile(r"\[([^\]]*)\]\((?![\w+]+:|#)([^)\s]+)\)")
CODE = re.compile(r"`[^`\n]+`")
BRANCH = "main"


def rewritten(markdown: str, page: str, repository: str) -> str:
    """Return the text of a page, named by its path in docs/, as MkDocs needs it."""

    def address(match: re.Match[str]) -> str:
        path, mark, anchor = match[2].partition("#")
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), path))
        on_site = target.startswith("docs/") and not target.endswith(".ipynb")
        if on_site:
            return match[0]
        return f"[{match[1]}]({repository}/blob/{BRANCH}/{target}{mark}{anchor})" if repository else match[1]

    return CODE.sub(lambda code: code[0].replace("\\|", "|"), LINK.sub(address, markdown))


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Return the text of a page for the site; MkDocs calls it for each page."""
    return rewritten(markdown, page.file.src_uri, (config.repo_url or "").rstrip("/"))
