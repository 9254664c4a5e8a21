#!/bin/bash
# Check warprun on a machine with a CUDA GPU. Runs the tests marked `gpu` (trajectories of the fused and the stepwise path against the CPU,
# training with CUDA graphs against training without), two short trainings with a table of speed and return, and the throughput of both
# paths with and without CUDA graphs.
#
#   bash scripts/gpu_check.sh       in a checkout, with warprun and its extras `test` and `cuda12` or `cuda13` installed
#
# Exit code 0: passed, or there is no GPU; 1: a check failed; 2: the installation is incomplete.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-python}"

"$python" -c 'import warprun.kernels.driver' || { echo "gpu_check: install warprun first, see README.md" >&2; exit 2; }
reason="$("$python" -c 'from warprun.kernels.driver import why_no_cuda; print(why_no_cuda() or "")')"
if [[ "$("$python" -c 'from warprun.kernels.driver import cuda_memory; print(cuda_memory())')" == None ]]; then
    echo "gpu_check: nothing to check: $reason"
    exit 0
fi
if ! "$python" -c 'import sys, numpy; sys.exit(tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 5))'; then
    echo "gpu_check: numba-cuda does not work with numpy 2.5 or later; run: pip install 'numpy<2.5'" >&2
    exit 2
fi
reason="${reason:-$("$python" -c 'from warprun.simulation.device import cuda_problem; print(cuda_problem() or "")')}"
if [[ -n "$reason" ]]; then
    echo "gpu_check: $reason" >&2
    exit 2
fi
"$python" -c 'import pytest, gymnasium' || { echo "gpu_check: the extra test is missing; run: pip install -e '.[test]'" >&2; exit 2; }

failed=0
"$python" -m pytest -m gpu || failed=1

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
for agent in a2c ppo; do
    "$python" -m warprun env=cartpole agent="$agent" n_envs=10000 device=cuda max_minutes=3 log.every=0.2s log.live=false \
        run_dir="$work/$agent" || failed=1
done

"$python" - "$work" << 'END' || failed=1
import json, statistics, sys
from pathlib import Path

import torch

print(f"\n{torch.cuda.get_device_name()}, CartPole, 10,000 environments")
print(f"{'agent':6} {'state':12} {'env steps/s':>14} {'greedy return':>14} {'env steps':>12} {'wall s':>8}")
good = True
for agent in ("a2c", "ppo"):
    folder = Path(sys.argv[1]) / agent
    status = json.loads((folder / "status.json").read_text()) if (folder / "status.json").exists() else {"state": "failed"}
    if status["state"] not in ("solved", "finished"):
        print(f"{agent:6} {status['state']}")
        good = False
        continue
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    # The first record includes loading and compiling.
    speed = statistics.median(record["perf/env_steps_per_s"] for record in records[1:] or records)
    print(f"{agent:6} {status['state']:12} {speed:14,.0f} {status['eval']:14.1f} {status['env_steps']:12,} {status['wall_s']:8.1f}")
    good &= status["state"] == "solved"
sys.exit(not good)
END
# bench NAME OVERRIDE...: throughput with and without CUDA graphs.
bench() {
    for graph in true false; do
        echo; echo "engine.cuda_graph=$graph ${*:2}"
        "$python" -m warprun bench "${@:2}" engine.cuda_graph="$graph" device=cuda out="$work/bench_$1_$graph" || failed=1
    done
}
for hidden in 32,32 64,64; do
    for fused in true false; do
        bench "a2c_${hidden/,/_}_$fused" env=cartpole agent=a2c agent.network.hidden="[$hidden]" engine.fused="$fused" \
            sizes=1000,10000,100000,1000000
    done
done
bench ppo env=cartpole agent=ppo sizes=1000,10000,100000
bench dqn env=cartpole agent=dqn agent.utd_ratio=0.02 sizes=100,1000,10000
bench td3 env=pendulum agent=td3 agent.utd_ratio=0.02 sizes=100,1000,10000
if [[ $failed == 0 ]]; then echo "gpu_check: passed"; else echo "gpu_check: failed" >&2; fi
exit $failed
