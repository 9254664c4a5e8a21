"""What shortens the start of a command."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from warprun.cli.process import uncollected


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the libraries of a process are listed on Linux only")
def test_the_library_of_torch_is_loaded_before_torch_is_imported() -> None:
    code = """
import sys, threading
from warprun.cli.process import begin_to_load_torch
begin_to_load_torch()
(thread,) = (thread for thread in threading.enumerate() if thread.name == "warprun-torch")
thread.join()
loaded = "libtorch_cpu" in open("/proc/self/maps").read()
imported = "torch" in sys.modules
import torch
print(loaded, imported, float(torch.ones(3).sum()))
"""
    assert python(code) == "True False 3.0"


def test_an_update_does_not_import_the_compiler_of_torch() -> None:
    code = """
import sys, torch
from warprun.kernels.repeat import Recording
print(Recording(lambda: torch.ones(3) + 1).torch_computes, "torch._dynamo" in sys.modules)
"""
    assert python(code) == "True False"


def test_collections_go_on_after_a_failed_import() -> None:
    with pytest.raises(ImportError), uncollected():
        assert not gc.isenabled()
        import warprun.not_there  # type: ignore[import-not-found]  # noqa: F401
    assert gc.isenabled() and gc.get_freeze_count() > 0
    gc.unfreeze()
