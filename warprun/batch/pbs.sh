#!/bin/bash
# Train one run with PBS Pro or OpenPBS (docs/parallel.md#pbs-lsf-and-flux). qsub passes no arguments, so the settings are words in
# WARPRUN_SETTINGS:
#
#   WARPRUN_SETTINGS="env=cartpole n_envs=10000" qsub pbs/train.pbs
#   WARPRUN_SETTINGS="env=cartpole device=cuda concurrency=ddp" qsub -l select=2:ncpus=8:ngpus=4:mpiprocs=1 pbs/train.pbs    (8 GPUs)
#   WARPRUN_SETTINGS="env=myenv agent=ppo concurrency=rma" qsub -l select=4:ncpus=32:mpiprocs=32 pbs/train.pbs               (128 ranks)
#   bash pbs/train.pbs env=cartpole                                  (without PBS: runs immediately)
#
# Your cluster may need some of these; remove the first # (options of qsub on the command line win):
##PBS -A PROJECT
##PBS -q QUEUE
#
#PBS -N warprun
#PBS -l select=1:ncpus=8:mpiprocs=1
#PBS -l walltime=04:00:00
#PBS -j oe
#PBS -r y
#PBS -V
set -e
cd "${PBS_O_WORKDIR:-.}"
job="${PBS_JOBID:+pbs-${PBS_JOBID%%.*}}"
threads="${NCPUS:-}"
hosts="${PBS_NODEFILE:-}"

