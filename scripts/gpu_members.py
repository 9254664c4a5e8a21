"""Members of a population that train together on a GPU (scripts/gpu_check.py): their time, and whether one has the bits of a run alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

STEPS = 500_000
SETTINGS = (
    "env=cartpole agent=ppo tuned=none agent.network.hidden=[64,64] agent.network.shared=false n_envs=64 agent.horizon=128"
    f" agent.minibatches=4 agent.epochs=4 total_steps={STEPS} stop_when_solved=false log.every=10% eval.every=50%"
    " log.live=false log.tensorboard=false"
)
"""Those of PureJaxRL."""
COUNTS = (8, 128, 2048)


def members(turn: Any, found: Any, train: list[str]) -> Any:
    """Train populations by the command `train`, and one member of each alone, in a `gpu_parts.Turn`; return what was found."""
    lines = ["| members | seconds | million steps/s together | one of them alone |", "|---|---|---|---|"]
    for count in COUNTS:
        folder, alone = turn.machine.work / f"members_{count}", turn.machine.work / f"member_of_{count}"
        ran = turn.run(f"{count} members", [*train, f"population={count}", f"sweep_dir={folder}"], 10.0)
        if not found.take(f"{count} members", ran):
            break
        own = turn.run(f"one of {count}", [*train, f"seed={count - 1}", f"run_dir={alone}"], 10.0)
        same = "not compared"
        if found.take(f"one of {count}", own):
            differ = different(next(folder.glob(f"{count - 1:04}_*")), alone)
            same = f"{len(differ)} tensors differ, such as {differ[0]}" if differ else "the same bits"
        found.data.append({"members": count, "seconds": round(ran.seconds, 1), "alone": same})
        lines.append(f"| {count:,} | {ran.seconds:.1f} | {count * STEPS / ran.seconds / 1e6:.1f} | {same} |")
    found.texts.insert(0, "\n".join(lines))
    return found


def different(run: Path, other: Path) -> list[str]:
    """Return the names of tensors that two runs have not in common, bit for bit."""
    from warprun.runs import checkpoint

    one, two = (checkpoint.load(folder).tensors for folder in (run, other))
    names = set(one) ^ set(two)
    names |= {name for name in set(one) & set(two) if one[name].numpy().tobytes() != two[name].numpy().tobytes()}
    return sorted(names)
