"""Where the time goes from a command to the first update: with an empty cache, after one constant in `step` has changed, with a full cache.

    python scripts/bench/compile.py [cartpole|acrobot|catalysis|tag_continuous|covid|new ...]

Prints a table of seconds on the clock and of processor time of all processes, one of the processor time of each stage of
compiling, for the kernels of the environment, those of the learner, and the trial of the functions, and what each process
compiled when. `catalysis` and `covid` need their data (`warprun data covid`). `new` is the environment of `warprun new`.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple


class Edited(NamedTuple):
    """An environment, with a number in a step that an edit multiplies."""

    file: str
    old: str
    new: str
    arguments: tuple[str, ...] = ("n_envs=1000", "total_steps=1000")


ENVIRONMENTS = {
    "cartpole": Edited("cartpole.py", "4.0 / 3.0", "4.004 / 3.0", ("n_envs=10000", "total_steps=160000")),
    "acrobot": Edited("acrobot.py", "dt / 6.0", "dt / 6.006"),
    "catalysis": Edited("catalysis/lattice.py", "where(cancelled, -1.0, clip", "where(cancelled, -1.001, clip"),
    "tag_continuous": Edited("tag/continuous.py", "fastest = p.max_speed", "fastest = 1.001 * p.max_speed"),
    "covid": Edited("covid/model.py", "removals = GAMMA", "removals = 1.001 * GAMMA", ("n_envs=60", "total_steps=100")),
    "new": Edited("new.py", "inflow = p.inflow + keep", "inflow = 1.001 * p.inflow + keep"),
}
STAGES = {
    "types": r"pass nopython_type_inference",
    "lowering": r"pass \w*lowering",
    "other passes": r"pass ",
    "parse, link": r"add_ir_module|finalize$",
    "function passes": r"_optimize_functions",
    "cut": r"_cut|with_cut_loops",
    "module passes": r"_optimize_final_module",
    "machine code": r"_finalize_final_module",
}
"""Columns -> the work in them; the first pattern that fits counts."""


# Inside the processes that are measured -----------------------------------------------------------------------------------

Span = tuple[str, float]
open_work: list[Span] = []
within: list[float] = []
spent: Counter[tuple[str, str]] = Counter()
"""Kernel and work -> seconds of processor time, without the work inside it."""


def note(**said: object) -> None:
    with open(os.environ["COMPILE_NOTES"], "a") as file:
        file.write(json.dumps({"pid": os.getpid(), "s": time.time(), **said}) + "\n")


def begin(work: str) -> None:
    open_work.append((work, time.thread_time()))
    within.append(0.0)


def end() -> None:
    work, began = open_work.pop()
    taken = time.thread_time() - began
    owner = next((name for name, _ in reversed(open_work) if name.startswith("kernel ")), "kernel -")
    spent[owner.removeprefix("kernel "), work] += taken - within.pop()
    if within:
        within[-1] += taken


def timed(place: Any, name: str) -> None:
    inner = getattr(place, name)

    @functools.wraps(inner)
    def call(*given: object, **named: object) -> object:
        begin(name)
        try:
            return inner(*given, **named)
        finally:
            end()

    setattr(place, name, call)


def install() -> None:
    """Note what this process compiles from now on."""
    import atexit

    from numba.core import event
    from numba.core.codegen import CPUCodeLibrary, JITCodeLibrary

    from warprun.kernels import compilers, kept

    class Passes(event.Listener):
        def on_start(self, event: Any) -> None:
            begin(f"pass {event.data['name']}")

        def on_end(self, event: Any) -> None:
            end()

    event.register("numba:run_pass", Passes())
    for name in ("add_ir_module", "finalize", "_optimize_functions", "_optimize_final_module"):
        timed(CPUCodeLibrary, name)
    timed(JITCodeLibrary, "_finalize_final_module")
    timed(compilers, "_cut")
    timed(compilers, "with_cut_loops")
    keep = kept.keep

    def noted(kernel: Any, module: Any, owner: str) -> None:
        keep(kernel, module, owner)
        inner, own = kernel.compile, kernel._cache
        name = f"{owner}.{kernel.py_func.__name__}"

        def compile_noted(signature: Any) -> object:
            known = tuple(signature) in kernel.overloads
            there = own._cache_file.path(own._index_key(tuple(signature), kernel.targetctx.codegen())).exists()
            if known or there:
                return inner(signature)
            note(begins=name)
            begin(f"kernel {name}")
            try:
                return inner(signature)
            finally:
                end()
                note(ends=name)

        kernel.compile = compile_noted

    kept.keep = noted
    atexit.register(lambda: note(spent=[[*key, value] for key, value in spent.items()]))


def inside(arguments: list[str]) -> int:
    """Run warprun with `arguments`, and note when the first update has ended."""
    from warprun.cli import loading
    from warprun.cli.main import main
    from warprun.kernels import ahead

    here = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import compile as notes; sys.path.pop(0)\n"
    ahead.PROGRAM = here + ahead.PROGRAM.replace("\nserve(*given)", "\nnotes.install()\nserve(*given)")

    import_torch = loading.import_torch

    def then_install(config: Any) -> None:
        """Import what is watched no earlier than a command without a watch does."""
        import_torch(config)
        install()
        from warprun.runs.run import Run

        iterate, done = Run._iterate, []

        def first(run: Any) -> None:
            iterate(run)
            if not done:
                done.append(True)
                note(first=time.process_time())

        Run._iterate = first  # type: ignore[method-assign]

    loading.import_torch = then_install
    sys.argv = ["warprun", *arguments]
    return main()


# Outside ----------------------------------------------------------------------------------------------------------------


def copied(folder: Path) -> Path:
    """Copy the package with its environments and config groups; return the folder for PYTHONPATH."""
    import warprun
    import warprun.conf
    import warprun.envs

    for package, place in ((warprun, "warprun"), (warprun.envs, "warprun/envs"), (warprun.conf, "warprun/conf")):
        shutil.copytree(next(iter(package.__path__)), folder / place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def start(name: str, folder: Path) -> tuple[float, float, list[dict[str, Any]]]:
    """Start a run; return seconds to its end, of processor time, and the notes of its processes."""
    notes, place = folder / "notes", folder / name if name == "new" else folder
    notes.unlink(missing_ok=True)
    given = {"COMPILE_NOTES": str(notes), "PYTHONPATH": str(folder), "WARPRUN_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, __file__, "--inside", f"env={name}", "device=cpu", *ENVIRONMENTS[name].arguments, "eval.every=never"]
    began, before = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=os.environ | given, cwd=place, check=True, stdout=subprocess.DEVNULL)
    ended, after = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    found = [json.loads(line) | {"s": json.loads(line)["s"] - began} for line in notes.read_text().splitlines()]
    return ended - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, found


def stages(name: str, notes: list[dict[str, Any]]) -> None:
    """Print the processor time of each stage."""
    rows: dict[str, Counter[str]] = {}
    modules: Counter[str] = Counter()
    for kernel, work, seconds in (each for note in notes for each in note.get("spent", ())):
        row = "environment" if kernel.startswith(f"{name}.") else "trial" if kernel == "-" else "learner"
        stage = next((stage for stage, pattern in STAGES.items() if re.match(pattern, work)), None)
        if stage:
            rows.setdefault(row, Counter())[stage] += seconds
    for note in notes:
        modules["environment" if note.get("ends", "").startswith(f"{name}.") else "learner"] += "ends" in note
    print(f"  {'':18}" + "".join(f"{stage:>16}" for stage in STAGES) + f"{'kernels':>9}")
    for row, of in rows.items():
        print(f"  {row:18}" + "".join(f"{of[stage]:16.2f}" for stage in STAGES) + f"{modules[row] or '':>9}")
    numbers = {pid: n for n, pid in enumerate(dict.fromkeys(note["pid"] for note in notes))}
    begun: dict[tuple[int, str], float] = {}
    for note in notes:
        if "begins" in note:
            begun[note["pid"], note["begins"]] = note["s"]
        elif "ends" in note:
            print(f"  process {numbers[note['pid']]}: {begun[note['pid'], note['ends']]:6.2f} to {note['s']:6.2f} s {note['ends']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", nargs="*", metavar="ENVIRONMENT", help=f"some of {', '.join(ENVIRONMENTS)}; all by default")
    names = parser.parse_args().environments or list(ENVIRONMENTS)
    if not set(names) <= set(ENVIRONMENTS):
        parser.error(f"environments are some of {', '.join(ENVIRONMENTS)}")
    for name in names:
        with tempfile.TemporaryDirectory() as made:
            folder, edited = copied(Path(made)), ENVIRONMENTS[name]
            file = folder / "warprun" / "envs" / edited.file
            if name == "new":
                subprocess.run([sys.executable, "-m", "warprun", "new", "new"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
                file = folder / "new" / edited.file
            text = file.read_text()
            if edited.old not in text:
                raise SystemExit(f"{file} has no {edited.old!r}")
            for case in ("empty cache", "edited", "full cache"):
                if case == "edited":
                    file.write_text(text.replace(edited.old, edited.new))
                total, cpu, notes = start(name, folder)
                (first,) = (note for note in notes if "first" in note)
                print(f"{name}, {case}: first update after {first['s']:.2f} s ({first['first']:.2f} s of processor time in its process),")
                print(f"  end after {total:.2f} s ({cpu:.2f} s of processor time); load average {os.getloadavg()[0]:.1f}")
                stages(name, notes)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        sys.exit(inside(sys.argv[2:]))
    main()
