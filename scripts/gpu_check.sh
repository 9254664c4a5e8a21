#!/bin/bash
# Check warprun on a machine with a CUDA GPU, in less than ten minutes, and write a report in markdown.
#
#   bash scripts/gpu_check.sh [--out gpu_report.md] [--device cuda] [PART ...]
#
# in a checkout, with warprun and its extras `test` and `cuda12` or `cuda13` installed (README.md). Parts, by default all of them: versions,
# tests (those marked `gpu`), training, bench, profile, peers. Each has a time limit, and the others continue if one fails.
# `--device cpu` tries the parts on a machine without a GPU.
#
# Exit code 0: passed, or there is no GPU; 1: a part failed; 2: the installation is incomplete.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec "${PYTHON:-python}" scripts/gpu_check.py "$@"
