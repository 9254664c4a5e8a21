"""Kernels compile to code for ARM processors: vectors of NEON, fused multiply-adds, no intrinsics of x86. Nothing of it is executed.

Numba links what it compiles with functions of this process, so files of objects have the format of Linux (elf) for macOS, too.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.rollouts import ROOT

PROGRAM = """
import json, platform, sys
import llvmlite.binding as llvm

llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
llvm.get_process_triple = lambda: sys.argv[1]  # what Numba compiles for
platform.machine = lambda: "arm64"

import numpy as np
from numba import typeof
from tests.kernels import test_lanes, test_simd
from warprun.kernels import threads, vectors

assert vectors.WIDTH == 4, vectors.WIDTH
numbers = test_simd.numbers
calls = {
    "forward": (test_simd.forward, [numbers(64, 64), numbers(64), numbers(64, 64), numbers(64, 64)]),
    "gradient": (test_simd.gradient, [numbers(64, 64), numbers(2, 64, 64), numbers(2, 64, 64)]),
    "row_sums": (test_simd.row_sums, [numbers(64), numbers(2, 64, 64)]),
    "lanes": (test_lanes.kernel(test_lanes.uniform_loop, "lane_loop()"), [64, 6, *test_lanes.state()]),
}
found = {}
for name, (kernel, arguments) in calls.items():
    kernel.compile(tuple(map(typeof, arguments)))
    (code,), (assembly,) = kernel.inspect_llvm().values(), kernel.inspect_asm().values()
    found[name] = code, assembly
threads._functions()
found["threads"] = threads.CODE, threads._kept[0].get_asm_str()
print(json.dumps(found))
"""


@pytest.mark.long
@pytest.mark.parametrize(("triple", "processor"), [("aarch64-unknown-linux-gnu", "neoverse-n1"), ("arm64-apple-darwin-elf", "apple-m1")])
def test_kernels_compile_for_arm(triple: str, processor: str, tmp_path: Path) -> None:
    asked = {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": "+neon", "WARPRUN_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", PROGRAM, triple], env=os.environ | asked, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for code, _ in found.values():
        assert "llvm.x86." not in code
    for name in ("forward", "gradient"):
        assert re.search(r"\bfmla(?:\.4s\b|\s+v\d+\.4s)", found[name][1]), name
    for name in ("row_sums", "lanes"):
        assert re.search(r"\bf(?:add|sub|mul|mla|mls)(?:\.4s\b|\s+v\d+\.4s)", found[name][1]), name
    assert re.search(r"\b(?:yield|hint)\b", found["threads"][1])
