"""Every command of warprun that the project shows, the words that a shell makes of it, and how it runs within seconds.

    python -m tests.commands WORD ...

is `warprun WORD ...` with a tiny budget.
"""

import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from warprun.__main__ import main
from warprun.cli.help import HELP
from warprun.runs import rundir
from warprun.sweeps.launch import is_of_sweep

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELLS = [shell for shell in ("bash", "dash", "zsh") if shutil.which(shell)]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CALL = r"(?:\w+=\S+ |mpiexec -n \d+ )*warprun [^`\n]+"
INLINE = re.compile(rf"`({CALL})`")
PLACEHOLDER = re.compile(r"\.\.\.|[|{}]|(?<!=)\[|\b(?!RUN\b|SIGUSR1\b)[A-Z]{2,}\b|^warprun (\w+|-m)$")
"""What a form has, in place of something that its reader fills in; or the name of a verb alone."""
LINE = re.compile(r"(^|[\s\"])(warprun|\S+\.sbatch) |^(mkdir|cc) |^python \w+\.py$")
"""A line of shell that the tests execute: not the installation of something, and no script that measures."""
TINY = ["max_minutes=1e-6", "eval.episodes=2", "eval.final_episodes=2"]
"""One iteration."""
STEPWISE = ["engine.fused=false"]
"""A third of the time to compile; other tests compile the fused rollouts of these environments, and here those of CartPole."""
SEEDS = re.compile(r"seed=range\(0,(\d+)\)")
"""Of a sweep; a quarter of these are trained."""
MORE_S = 0.5
"""Of training, after what a run that is continued has taken."""


def scripts(page: Path) -> list[str]:
    """Return the blocks of shell in a page."""
    return [text for language, text in BLOCK.findall(page.read_text()) if language in ("sh", "bash", "shell")]


def commands_of_page(page: Path) -> list[str]:
    """Return the lines of shell of a page and the complete commands within its text, in their order, each from the folder of the page.

    A `cd` lasts until the next one, as in the shell of a reader. Blocks of the language `shell` are left out: they take minutes, and tests
    compare them with what is measured.
    """
    found: list[str] = []
    place, end = ".", 0
    text = page.read_text()
    for block in BLOCK.finditer(text):
        found += _complete(INLINE.findall(text[end : block.start()]), place)
        if block[1] in ("sh", "bash"):
            for line in block[2].splitlines():
                if line.startswith("cd "):
                    place = posixpath.normpath(posixpath.join(place, line.split()[1]))
                elif LINE.search(line.partition("  #")[0]):
                    found += _complete([line], place)
        end = block.end()
    return list(dict.fromkeys([*found, *_complete(INLINE.findall(text[end:]), place)]))


def shown() -> dict[str, list[str]]:
    """Return the commands of every page, of the help and of every file whose comments or strings show some, by its path."""
    found = {page: commands_of_page(page) for page in PAGES}
    for file in sorted((ROOT / "conf").rglob("*.yaml")):
        found[file] = _complete(re.findall(rf"^# (?:.*?[^`])??({CALL})$", file.read_text(), re.MULTILINE))
    for file in sorted(path for folder in ("warprun", "envs", "scripts") for path in (ROOT / folder).rglob("*.py")):
        found[file] = _complete(INLINE.findall(file.read_text()))
    found[ROOT / "warprun" / "cli" / "main.py"] += [line.strip() for line in HELP.partition("\nExamples\n")[2].splitlines()]
    return {str(path.relative_to(ROOT)): commands for path, commands in found.items() if commands}


def _complete(commands: Sequence[str], place: str = ".") -> list[str]:
    """Return the commands that have no placeholder, once each, as they are called from a folder."""
    complete = [command for command in dict.fromkeys(commands) if not PLACEHOLDER.search(command.partition("  #")[0])]
    return [command if place == "." else f"cd {place} && {command}" for command in complete]


READ = """
shopt -s failglob
cd() { :; }
command_not_found_handle() { printf '%s\\0' "$@"; printf '\\n'; }
"""
"""Calls print their words. A pattern that matches no file is an error, as in zsh."""


def words(command: str, folder: Path) -> list[list[str]]:
    """Return the words of each call of warprun in a line of shell, as bash passes them in a folder."""
    bash = shutil.which("bash")
    assert bash
    done = subprocess.run([bash, "-c", READ + command], capture_output=True, text=True, cwd=folder, env={"PATH": "/nowhere"})
    assert done.returncode == 0 and not done.stderr, f"{command}\n{done.stderr}"
    found = []
    for call in (line.split("\0")[:-1] for line in done.stdout.splitlines()):
        if "--wrap" in call:
            found += words(call[call.index("--wrap") + 1], folder)
        elif "warprun" in call:
            found.append(call[call.index("warprun") + 1 :])
        else:
            found += [["train", *call[n + 1 :]] for n, word in enumerate(call) if word.endswith(".sbatch")]
    return found


def tiny(given: list[str]) -> list[str]:
    """Return the words of a command with a budget, and few seeds, with which it takes seconds."""
    resumed = next((word.removeprefix("resume=") for word in given if word.startswith("resume=") and word != "resume=auto"), None)
    if resumed:
        taken = rundir.read_status(rundir.latest(Path("outputs")) if resumed == "latest" else Path(resumed)).get("wall_s", 0.0)
        more = any(word.startswith("total_steps=") for word in given)
        budget = [f"max_minutes={(taken + MORE_S) / 60}", f"total_steps={500_000 if more else 400_000}"]
        return [*given, *budget, "eval.episodes=2", "eval.final_episodes=2"]
    verb = given[0] if "=" not in given[0] and not given[0].startswith("-") else "train"
    if verb == "bench":
        return [*given, "sizes=10", "threads=1"]
    given = [SEEDS.sub(lambda found: f"seed=range(0,{max(2, int(found[1]) // 4)})", word) for word in given]
    trains = verb in ("train", "tune") and not any(word.startswith("--") for word in given)
    if not trains or all(is_of_sweep(word) or word == "-m" for word in given):
        return given
    own = not any(word.startswith(("env=cartpole", "engine.")) for word in given) and any(word.startswith("env=") for word in given)
    return [*given, *TINY, *(STEPWISE if own else []), *(["trials=2"] if verb == "tune" else [])]


if __name__ == "__main__":
    sys.argv = ["warprun", *tiny(sys.argv[1:])]
    main()
