#!/bin/sh
# The comparisons of docs/agents.md, five seeds each, and their plots: sh scripts/comparisons.sh [OUT] (default: outputs/comparisons)
set -eu
out=${1:-outputs/comparisons}
seeds=seed=0,1,2,3,4

compare() { # name, bar, overrides
    name=$1 bar=$2
    shift 2
    warprun -m experiment="$name" "$@" "$seeds" output_root="$out/$name"
    python "$(dirname "$0")/plot_runs.py" "$out/$name" -o "$out/$name.png" --solved "$bar"
}

compare td3_or_ddpg -200 agent=td3,ddpg
compare prioritized_ddpg -200 agent.replay.prioritized=false,true
compare a2c_or_dqn 200 agent=a2c,dqn
