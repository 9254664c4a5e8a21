#!/bin/bash
# Train one run with LSF (docs/parallel.md#pbs-lsf-and-flux). bsub reads the script from its input, so the settings are words in
# WARPRUN_SETTINGS:
#
#   WARPRUN_SETTINGS="env=cartpole n_envs=10000" bsub < lsf/train.lsf
#   WARPRUN_SETTINGS="env=cartpole device=cuda concurrency=ddp" bsub -n 2 -R "span[ptile=1]" -gpu "num=4" < lsf/train.lsf   (8 GPUs)
#   WARPRUN_SETTINGS="env=myenv agent=ppo concurrency=rma" bsub -n 128 -R "span[ptile=32]" < lsf/train.lsf                 (128 ranks)
#   bash lsf/train.lsf env=cartpole                                  (without LSF: runs immediately)
#
# A run that is told to stop before its time limit exits with code 143, and LSF queues it again.
# Your cluster may need some of these; remove the first # (options of bsub on the command line win):
##BSUB -P PROJECT
##BSUB -q QUEUE
#
#BSUB -J warprun
#BSUB -n 8
#BSUB -R "span[hosts=1]"
#BSUB -W 4:00
#BSUB -Q "143"
#BSUB -r
#BSUB -o lsf-warprun-%J.out
set -e
cd "${LS_SUBCWD:-.}"
job="${LSB_JOBID:+lsf-$LSB_JOBID}"
threads="${LSB_DJOB_NUMPROC:-}"
hosts="${LSB_DJOB_HOSTFILE:-}"
on_each_node=(blaunch)

