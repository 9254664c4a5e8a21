#!/bin/bash
# Train one run with Flux (docs/parallel.md#pbs-lsf-and-flux). The arguments are passed to `warprun train`:
#
#   flux batch flux/train.flux env=cartpole n_envs=10000
#   flux batch -N 2 -n 2 -c 8 -g 4 flux/train.flux env=cartpole device=cuda concurrency=ddp        (8 GPUs)
#   flux batch -N 4 -n 128 -c 1 flux/train.flux env=myenv agent=ppo concurrency=rma               (128 ranks)
#   bash flux/train.flux env=cartpole                                (without Flux: runs immediately)
#
# Your cluster may need --bank=PROJECT or --queue=QUEUE: write them like the options below (those on the command line win).
#
#flux: --job-name=warprun
#flux: --nslots=1
#flux: --cores-per-slot=8
#flux: --time-limit=4h
#flux: --output=flux-warprun-{{id}}.out
set -e
job="" threads=""
if id=$(flux getattr jobid 2> /dev/null); then # threads are as many as the cores that Flux binds a process to
    job="flux-$(flux job id --to=dec "$id")"
    nodes=$(flux resource list -s up -no '{nnodes}') first=$(flux hostlist --nth=0 local)
    one=(flux run -N 1 -n 1 --exclusive)
    on_each_node=(flux run -N "$nodes" -n "$nodes" --exclusive)
    all_ranks=(flux run -n "${RANKS:-$(flux resource list -s up -no '{ncores}')}")
fi

