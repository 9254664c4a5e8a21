"""Long work in one moving line: what it is, how long it has taken, and how long it took last time.

Work that may take long happens within `on`. The line stands on standard error; a live view that has the terminal shows it instead
(`shown_by`). Where a line cannot move, as in the log of a job, there is one after FIRST_LINE_S seconds, and then one every LINE_S seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from warprun.kernels.cache import cache_root, module_name, replace

Show: TypeAlias = Callable[[str], None]
"""Shows a text in the place of the last one; removes it if the text is empty."""

PATIENCE_S = 1.0
"""A shorter wait has no line, and its time is not kept."""
TICK_S = 0.25
FIRST_LINE_S = 5.0
LINE_S = 30.0
_views: list[Show] = []
_busy = threading.Lock()


@contextmanager
def shown_by(view: Show) -> Iterator[None]:
    """Let `view` show the line within the block."""
    _views.append(view)
    try:
        yield
    finally:
        _views.remove(view)


@contextmanager
def on(work: str, owner: str) -> Iterator[None]:
    """Show that `work` for `owner`, such as an environment, happens within the block, and keep how long it takes.

    The time before is the last one of the same words. A block within another one, also of another thread, shows nothing of its own.
    """
    if not _busy.acquire(blocking=False):
        yield
        return
    try:
        done, began = threading.Event(), time.monotonic()
        teller = threading.Thread(target=_tell, args=(f"{work} of {owner}", _times(owner).get(work), began, done), name="warprun-waiting")
        teller.start()
        try:
            yield
        finally:
            done.set()
            teller.join()
    finally:
        _busy.release()
    _keep(work, owner, time.monotonic() - began)


def _tell(what: str, before: float | None, began: float, done: threading.Event) -> None:
    """Show the line until `done`."""
    if done.wait(PATIENCE_S):
        return
    view = _views[-1] if _views else None
    moves = view is not None or (sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb"))
    last = "" if before is None else f" ({before:.0f} s last time)"
    pause = TICK_S if moves else FIRST_LINE_S - PATIENCE_S
    while not done.wait(pause):
        pause = TICK_S if moves else LINE_S
        text = f"{what}: {time.monotonic() - began:.0f} s{last}"
        with suppress(OSError, ValueError):  # a full disk, or a stream that is closed
            if view:
                view(text)
            elif moves:
                print(f"\r{text[: shutil.get_terminal_size().columns - 1]}\x1b[K", end="", file=sys.stderr, flush=True)
            else:
                print(text, file=sys.stderr, flush=True)
    with suppress(OSError, ValueError):
        if view:
            view("")
        elif moves:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _file(owner: str) -> Path:
    return cache_root().with_name("waits") / f"{module_name(owner)}.json"


def _times(owner: str) -> dict[str, float]:
    """Return the seconds that work for `owner` took last time, by its name; nothing if the file is damaged."""
    try:
        kept = json.loads(_file(owner).read_text())
    except (OSError, ValueError):
        return {}
    return {str(name): float(each) for name, each in kept.items() if isinstance(each, int | float)} if isinstance(kept, dict) else {}


def _keep(work: str, owner: str, seconds: float) -> None:
    """Keep the time of a wait. A folder that cannot be written to has no times; that is said where kernels are kept."""
    if seconds >= PATIENCE_S:
        with suppress(OSError):
            _file(owner).parent.mkdir(parents=True, exist_ok=True)
            replace(_file(owner), json.dumps(_times(owner) | {work: round(seconds, 1)}).encode())
