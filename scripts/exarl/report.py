"""Writes section EXARL of docs/reproductions.md: the table between its markers, and the figures."""

from __future__ import annotations

from pages import DOCS, replace

from exarl import figures
from exarl.answers import Kept, errors
from exarl.claims import CLAIMS

MOST_LOAD = 4.0
"""Processes that want a core, beyond which the ranks of a run did not have one whenever they needed it."""
BUSY = (
    " Other programs kept the machine busy during these runs, so ranks waited for a core, which the model does not know. Its errors, and"
    " the times of push, pop, show and read, are not those of a quiet machine."
)
HEADER = "| # | claim | here | found | command |\n|---|---|---|---|---|\n"


def table(kept: Kept) -> str:
    """Return the rows of all claims that are measured."""
    rows = []
    for number, claim in CLAIMS.items():
        if claim.is_measured(kept):
            answer = claim.answer(kept)
            rows.append(f"| {number} | {claim.text} | {answer.verdict} | {answer.found} | `--only {claim.parts}` |\n")
    return HEADER + "".join(rows)


def validation(kept: Kept) -> str:
    """Return the relative errors of the model as a table, and the times that it is given."""
    found = errors(kept) if CLAIMS[8].is_measured(kept) else {}
    if not found:
        return ""
    worst = max(found, key=lambda case: abs(found[case]))
    rows = "".join(
        f"| `{case}` | {kept['sleepy'][case]['rate']:.2f} | {error:+.1%} | {kept['sleepy'][case]['lag']:.1f} | "
        f"{kept['sleepy'][case]['learner_waiting']:.0%} | {kept['sleepy'][case]['load']:.0f} |\n"
        for case, error in found.items()
    )
    measured = ", ".join(f"{name} {1e3 * seconds:.2f} ms" for name, seconds in kept["times"].items())
    mean = sum(abs(error) for error in found.values()) / len(found)
    busy = max(kept["sleepy"][case]["load"] for case in found)
    shared = BUSY if busy > MOST_LOAD else ""
    return (
        "| run | rollouts/s, real ranks | model | lag | learner waits | load |\n|---|---|---|---|---|---|\n"
        f"{rows}\nMean of the absolute errors {mean:.1%}; largest {found[worst]:+.1%} (`{worst}`). Measured: {measured}.{shared}\n"
    )


def write(kept: Kept) -> None:
    """Write the tables and the figures, and print the tables."""
    figures.draw(kept)
    pictures = "".join(f"![{text}](figures/{path.name})\n\n" for path, text in figures.CAPTIONS.items() if path.exists())
    for name, text in (("claims", table(kept)), ("figures", pictures), ("model", validation(kept))):
        print(text)
        replace(DOCS / "reproductions.md", f"exarl {name}", text)
