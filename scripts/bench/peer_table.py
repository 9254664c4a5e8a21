"""Write the table of `peers.py`."""

from __future__ import annotations

from typing import Any

from peer_work import EPISODES, HORIZON, SOLVED_AT, WORKS


def markdown(found: dict[str, Any]) -> str:
    """Return the measurements as Markdown."""
    lines = [
        f"Measured {found['date']} on {found['machine']}; load {found['load'][0]:.1f} at the start, {found['load'][1]:.1f} at the end; "
        f"medians of {found['rounds']} interleaved rounds. Versions: " + ", ".join(f"{k} {v}" for k, v in found["versions"].items()) + ".",
        "",
        f"CartPole, horizon {HORIZON}, float32, tanh; only advantages are normalised. M steps/s of wall time, and M steps for each "
        "second of CPU time; ratios are warprun's median over the peer's, at the same number of trunks.",
        "",
    ]
    if found["throughput"]:
        lines += [
            "| work | who | environments | trunks | settings | M steps/s | per CPU s | cores it got | warprun is | per CPU s |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        lines += [_row(row) for row in found["throughput"]]
    if found["solve"]:
        lines += [
            "",
            f"From command to solved (greedy mean of {EPISODES} episodes, for warprun 100, at least {SOLVED_AT:g}), caches warm:",
            "",
        ]
        lines += ["| who | wall s | CPU s | last line |", "|---|---|---|---|"]
        lines += [f"| {row['name']} | {row['wall_median']:.1f} | {row['cpu_median']:.1f} | {row['line']} |" for row in found["solve"]]
    lines += ["", *found["skipped"]] if found["skipped"] else []
    return "\n".join(lines) + "\n"


def _row(row: dict[str, Any]) -> str:
    label = WORKS[row["work"]].label
    who, environments, settings = row["name"], f"{row['n_envs']:,}", row["settings"]
    if "wall_flops" in row:
        flop = WORKS[row["work"]].flop_per_step()
        who, environments = "arithmetic limit", ""
        settings = f"{row['wall_flops'] / 1e9:.0f} GFLOP/s ({row['cpu_flops'] / 1e9:.0f} per CPU s) over {flop / 1e3:.1f} kFLOP a step"
    rates = f"{row['wall_median'] / 1e6:.3g} | {row['cpu_median'] / 1e6:.3g} | {sum(row['cores']) / len(row['cores']):.2f}"
    ratios = " | ".join(f"{row[f'{clock}_ratio']:.2f} x" if f"{clock}_ratio" in row else "" for clock in ("wall", "cpu"))
    return f"| {label} | {who} | {environments} | {row['trunk']} | {settings} | {rates} | {ratios} |"
