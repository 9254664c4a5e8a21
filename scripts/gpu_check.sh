#!/bin/bash
# Check warprun on a machine with a CUDA GPU: scripts/gpu_check.py has the options and the exit codes. PYTHON names another Python.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec "${PYTHON:-python}" scripts/gpu_check.py "$@"
