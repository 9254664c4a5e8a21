"""Keep the line numbers of docs/architecture.md true: every reference quotes the code that stands on its line.

    python scripts/walkthrough.py --check | --write

A reference is [`FILE`, line N](../FILE#LN): `code`. The code must stand on exactly one line of the file.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
REFERENCE = re.compile(r"\[`(?P<name>[\w.]+)`, line (?P<shown>\d+)\]\(\.\./(?P<file>[\w/.]+)#L(?P<line>\d+)\): `(?P<code>[^`]+)`")


def line_of(file: str, code: str) -> int:
    """Return the number of the one line of `file` that is `code`, but for indentation. Raises ValueError."""
    found = [n for n, line in enumerate((ROOT / file).read_text().splitlines(), 1) if line.strip() == code]
    if len(found) != 1:
        raise ValueError(f"docs/architecture.md quotes {code!r}, which stands on {len(found)} lines of {file}")
    return found[0]


def numbered(text: str) -> str:
    """Return the page with the line numbers of today."""

    def written(match: re.Match[str]) -> str:
        line = line_of(match["file"], match["code"])
        return f"[`{match['name']}`, line {line}](../{match['file']}#L{line}): `{match['code']}`"

    return REFERENCE.sub(written, text)


def main() -> None:
    """Check or write the page."""
    text = PAGE.read_text()
    try:
        expected = numbered(text)
    except ValueError as error:
        sys.exit(f"walkthrough: {error}")
    if "--write" in sys.argv:
        PAGE.write_text(expected)
    elif text != expected:
        sys.exit("walkthrough: line numbers of docs/architecture.md are old; run: python scripts/walkthrough.py --write")


if __name__ == "__main__":
    main()
