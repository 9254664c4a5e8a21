#!/bin/bash
# Check warprun on a machine with a CUDA GPU, in ten minutes at most, and write a report: docs/gpu.md says what it shows.
#
#   bash scripts/gpu_check.sh [--out gpu_report] [--minutes 10] [--device cuda] [PART ...]
#
# in a checkout, after `pip install -c constraints.txt -e ".[cuda13]" pytest pytest-xdist` (or cuda12, README.md). It writes gpu_report.md,
# gpu_report.json and gpu_report.zip; the archive has both of the others and the output of all commands. Parts, by default all of them:
# versions, training, bench, tests (those marked `gpu`), profile, peers. Each has a time limit, and the others continue if one fails.
# `--device cpu` tries the parts on a machine without a GPU. PYTHON names another Python than `python`.
#
# Exit code 0: passed, or there is no GPU; 1: a part failed; 2: the installation is incomplete.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec "${PYTHON:-python}" scripts/gpu_check.py "$@"
