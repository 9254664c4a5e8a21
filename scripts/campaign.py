"""Campaigns of measurements: parts that are measured one after the other on a quiet machine, and kept as soon as each has ended.

Measurements that were interrupted go on where they ended.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from common import machine, stop

MOST_LOAD = 0.3
"""Load average of a minute before a measurement."""
MOST_FOREIGN = 0.1
"""Cores that other processes may use during a part."""
ATTEMPTS = 3
Values = dict[str, Any]
Parts = dict[str, Callable[[], Values]]
"""Title -> what measures it."""


def busy_s() -> float:
    """Return the seconds for which all cores together were busy, those taken by other machines of the host included."""
    user, nice, system, _, _, irq, soft, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Return the processor time of a process, of its threads, of all processes below it and of those that these have waited for, s."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        found[int(path.parent.name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    below = {pid}
    while more := {child for child, (parent, _) in found.items() if parent in below} - below:
        below |= more
    return sum(found[each][1] for each in below if each in found) / os.sysconf("SC_CLK_TCK")


def wait_for_quiet(minutes: float) -> float:
    """Return the load average as soon as it is low enough. Exits with code 2 if it is not within the minutes."""
    deadline = time.monotonic() + 60 * minutes
    while (load := os.getloadavg()[0]) >= MOST_LOAD:
        if time.monotonic() > deadline:
            stop(f"load average {load:.2f} is not below {MOST_LOAD}: end other programs, or --wait")
        time.sleep(5.0)
    return load


def quietly(part: Callable[[], Values]) -> Values:
    """Return what a part measures, and the cores that other processes used beside it; repeat it if these are too many."""
    for attempt in range(1, ATTEMPTS + 1):  # noqa: B007 - the last one is kept with the values
        before = time.monotonic(), busy_s(), cpu_s(os.getpid())
        values = part()
        wall, busy, own = time.monotonic() - before[0], busy_s() - before[1], cpu_s(os.getpid()) - before[2]
        foreign = max(0.0, busy - own) / wall
        if foreign <= MOST_FOREIGN:
            break
    return {
        "values": values,
        "wall_s": round(wall, 2),
        "foreign_cores": round(foreign, 3),
        "quiet": foreign <= MOST_FOREIGN,
        "attempts": attempt,
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }


def read(file: Path) -> dict[str, Any]:
    """Return the measurements that a file keeps: name -> machine, load before, parts."""
    return json.loads(file.read_text()) if file.exists() else {}


def measure(
    measurements: Mapping[str, Parts],
    file: Path,
    wait: float,
    minutes: float,
    again: Collection[str] = (),
    about: Mapping[str, Any] | None = None,
) -> None:
    """Measure all parts that the file does not keep, and keep each, with `about`, which says on what, by default the machine.

    Measurements that are named in `again` begin anew. Exits with code 2 if kept parts of others were measured on something else. The load
    average must be low before the first part; later it is that of the measurement itself. No part starts after so many minutes.
    """
    deadline, kept, load = time.monotonic() + 60 * minutes, read(file), None
    about = about or {"machine": machine()}
    for name, parts in measurements.items():
        if name in again or name not in kept:
            kept[name] = {**about, "load_before": [], "parts": {}}
        own = kept[name]
        missing = [part for part in parts.items() if part[0] not in own["parts"]]
        if missing and any(own.get(key) != value for key, value in about.items()):
            stop(f"{name} was begun with {', '.join(str(own.get(key)) for key in about)}: use --again")
        if missing:
            load = wait_for_quiet(wait) if load is None else load
            own["load_before"].append(round(load, 2))
        for title, part in missing:
            if time.monotonic() > deadline:
                return
            own["parts"][title] = quietly(part)
            print(name, title, {key: value for key, value in own["parts"][title].items() if key != "values"}, flush=True)
            file.write_text(json.dumps(kept) + "\n")
