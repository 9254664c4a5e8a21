"""Train policies with and without memory over seeds where velocities or a sign are hidden, and write the table of docs/memory.md.

    python scripts/memory_results.py [--seeds 5] [--only CASE ...] [--write]

Each run is `warprun.train([...])` in its own process, one after the other, until it reaches the bar or its steps end. The policy at the end
of the run is then evaluated over 2,000 episodes that it has not seen. Results are stored in docs/benchmarks/memory.json, so a table
can be measured in several calls.
"""

import argparse
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

from offpolicy_results import train

DOCS = Path(__file__).parents[1] / "docs"
PAGE, KEPT = DOCS / "memory.md", DOCS / "benchmarks" / "memory.json"
CARTPOLE = "env=cartpole env.velocity=false tuned=none total_steps=1e6 eval.every=5% env.solved_at=475"
PENDULUM = "env=pendulum env.velocity=false tuned=none eval.every=5% env.solved_at=-230"
ON_CARTPOLE = "agent=ppo n_envs=64 agent.horizon=64 agent.minibatches=4 agent.learning_rate=2e-3 agent.network.hidden=[32]"
ON_PENDULUM = "agent=ppo n_envs=64 agent.horizon=64 agent.minibatches=4 agent.learning_rate=1e-3 agent.epochs=10 agent.gamma=0.95"
CASES: dict[str, tuple[str, float]] = {
    **{f"t_maze ppo {kind}": (f"env=t_maze env.length=20 agent=ppo agent.network={kind}", 3.8) for kind in ("lstm", "gru", "mlp")},
    **{f"t_maze dqn {kind}": (f"env=t_maze env.length=20 agent=dqn agent.network={kind}", 3.8) for kind in ("lstm", "gru")},
    **{
        f"cartpole ppo {kind}": (f"{CARTPOLE} {ON_CARTPOLE} agent.network.units=[32] agent.network={kind}", 475) for kind in ("lstm", "gru")
    },
    "cartpole ppo mlp": (f"{CARTPOLE} {ON_CARTPOLE}", 475),
    "cartpole dqn lstm": ("experiment=cartpole_positions_dqn", 475),
    **{
        f"pendulum ppo {kind}": (f"{PENDULUM} {ON_PENDULUM} total_steps=6e5 agent.normalize_obs=true agent.network={kind}", -250)
        for kind in ("lstm", "gru", "mlp")
    },
}
"""Case -> overrides, and the bar of the mean return."""
HEADER = """\
| environment, agent, network | bar | seeds at the bar | mean return, least | median | env steps, median | processor s, median |
|---|---|---|---|---|---|---|
"""


def row(case: str, runs: list[dict[str, Any]]) -> str:
    """Return the table row of one case."""
    bar, returns = CASES[case][1], [run["last"] for run in runs]
    steps, seconds = (statistics.median(run[key] for run in runs) for key in ("env_steps", "cpu_s"))
    reached = f"{sum(value >= bar for value in returns)}/{len(runs)}"
    return f"| {case} | {bar:g} | {reached} | {min(returns):.2f} | {statistics.median(returns):.2f} | {steps:,.0f} | {seconds:.0f} |"


def main() -> int:
    """Run the cases, print the table and write it with --write; return 1 if a policy with memory is below the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="CASE", default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--write", action="store_true", help="write the table into docs/memory.md")
    chosen = parser.parse_args()
    kept: dict[str, dict[str, Any]] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for case in chosen.only:
        for seed in range(chosen.seeds):
            overrides, name = CASES[case][0], f"{case} {seed}"
            if kept.get(name, {}).get("overrides") == overrides:
                continue
            found = train([*overrides.split(), f"seed={seed}"])
            print(name, found or "failed", flush=True)
            if found:
                kept[name] = found | {"overrides": overrides}
                KEPT.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")
    same = {name: run for name, run in kept.items() if run["overrides"] == CASES.get(name.rpartition(" ")[0], ("",))[0]}
    of_case = {case: [run for name, run in same.items() if name.rpartition(" ")[0] == case] for case in CASES}
    text = HEADER + "\n".join(row(case, runs) for case, runs in of_case.items() if runs) + "\n"
    print(text)
    if chosen.write:
        between = re.compile(r"(<!-- results -->\n).*?(<!-- end -->)", re.DOTALL)
        PAGE.write_text(between.sub(lambda match: match[1] + text + match[2], PAGE.read_text()))
    asked = [case for case in chosen.only if not case.endswith("mlp")]
    good = [run for case in asked for run in of_case[case] if run["last"] >= CASES[case][1]]
    return int(len(good) < chosen.seeds * len(asked))


if __name__ == "__main__":
    sys.exit(main())
