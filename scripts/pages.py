"""Tables that scripts write into pages of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def replace(page: Path, mark: str, text: str) -> None:
    """Replace what stands between the lines `<!-- mark -->` and `<!-- end -->` of a page. Raises ValueError unless there is one."""
    between = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- end -->)", re.DOTALL)
    written, count = between.subn(lambda match: match[1] + text + match[2], page.read_text())
    if count != 1:
        raise ValueError(f"{page} has {count} places called {mark}")
    page.write_text(written)
