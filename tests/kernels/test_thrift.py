"""Work of Numba that no kernel needs is left out, and what others need is as before."""

import gc
import subprocess
import sys

import numba
import numpy as np
import pytest
from numba.core import errors
from numba.core.compiler_lock import global_compiler_lock

from warprun.checking.machine_code import nvvm_problem
from warprun.kernels import thrift
from warprun.kernels.without_gpu import compiling_for

CODE = """
import sys
import numpy as np
from warprun.kernels.compile import FLAGS, load_module
source = "from numba import njit\\n\\n@njit(cache=True, **FLAGS)\\ndef twice(x):\\n    return x * number\\n"
print(load_module("thrift", source, {"number": 2.0, "FLAGS": FLAGS}).twice(np.float32(3.0)), "scipy.linalg" in sys.modules)
"""


def test_a_kernel_needs_no_scipy(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("WARPRUN_CACHE_DIR", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout == "6.0 False\n"


def test_products_of_matrices_still_find_scipy() -> None:
    pytest.importorskip("scipy")

    @numba.njit
    def product(a, b):
        return np.dot(a, b)

    a = np.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(product(a, a.T.copy()), a @ a.T)


def test_messages_have_no_colours_and_collections_are_rare_while_numba_compiles() -> None:
    assert str(errors.TypingError("no such thing")) == "no such thing"
    before = gc.get_threshold()
    with global_compiler_lock:
        assert gc.get_threshold()[0] >= 200_000
    assert gc.get_threshold() == before


def test_options_of_compilers_are_as_before() -> None:
    flags = numba.core.compiler.Flags()
    flags.nrt = True
    assert flags.values() == {name: getattr(flags, name) for name in flags.options}
    assert flags == flags.copy() != numba.core.compiler.Flags()


def linked(kernel, *types):
    """Return the code library of a CUDA kernel after its link, and the options of every call of libnvvm for it."""
    from numba.cuda import dispatcher
    from numba.cuda.cudadrv import nvvm

    thrift.spare_cuda()
    calls, compile_ir = [], nvvm.compile_ir
    with compiling_for(None, (9, 0)), pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvvm, "compile_ir", lambda code, **options: calls.append(options) or compile_ir(code, **options))
        library = dispatcher._Kernel(kernel, types, lto=True).library
        library.get_cubin()
    return library, calls


@pytest.mark.skipif(nvvm_problem() != "", reason=nvvm_problem())
def test_libnvvm_gets_a_cuda_kernel_once_and_each_function_once_and_what_it_needs_of_numba_is_linked() -> None:
    from numba import cuda

    @cuda.jit(device=True)
    def twice(x):
        return x + x

    @cuda.jit(device=True)
    def fourfold(x):
        return twice(twice(x))

    def kernel(x):
        x[0] = fourfold(x[0]) + twice(x[1])
        x.reshape((2, 2))[1, 1] = 0.0

    library, calls = linked(kernel, numba.float32[::1])
    assert ["gen-lto" in options for options in calls] == [True]
    assert sum("define" in code and "twice" in code.partition("define")[2].splitlines()[0] for code in library.llvm_strs) == 1
    assert len(library.llvm_strs) == len({id(module) for module in library.modules}) < len(library.modules)
    assert any("reshape_funcs" in str(file) for file in library._linking_files)
