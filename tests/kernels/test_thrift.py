"""Work of Numba that no kernel needs is left out, and what others need is as before."""

import copy
import gc
import operator
import subprocess
import sys
from types import ModuleType

import llvmlite.binding
import numba
import numpy as np
import pytest
from llvmlite.binding import ffi
from numba import literal_unroll
from numba.core import errors, ir, types, utils
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.target_extension import target_registry
from numba.core.typing import context

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


def test_variables_of_code_are_found_as_before() -> None:
    loc = ir.Loc("file.py", 1)
    scope = ir.Scope(None, loc)
    x, y, n = (scope.define(name, loc) for name in "xyn")
    call = ir.Expr.call(x, [y, n], {"of": y}, loc)
    assert ir.Assign(call, n, loc).list_vars() == [*call.list_vars(), n]
    assert sorted(each.name for each in call.list_vars()) == ["n", "x", "y", "y"]
    assert ir.Expr.binop(operator.add, x, y, loc).list_vars() == [x, y]
    assert ir.Assign(ir.Const(3, loc), n, loc).list_vars() == [n]
    assert ir.Expr.build_map([(x, [y]), (call, None)], 2, (), (), loc).list_vars() == [x, y, *call.list_vars()]


def test_copies_of_code_have_its_places_and_variables_of_their_own() -> None:
    loc = ir.Loc("file.py", 1)
    scope = ir.Scope(None, loc)
    block = ir.Block(scope, loc)
    block.append(ir.Assign(ir.Const(3, loc), scope.define("n", loc), loc))
    (made,) = copy.deepcopy(block).body
    assert made.loc is loc
    assert made.target == block.body[0].target
    assert made.target is not block.body[0].target


def test_operators_are_those_of_numbers_and_of_arrays() -> None:
    add = resolved(operator.add)
    assert add(types.float32, types.float32) == types.float32
    assert add(types.int64, types.float32) == types.float64
    assert add(types.float32[::1], types.float32) == types.float32[::1]
    assert resolved(operator.neg)(types.float32[::1]) == types.float32[::1]
    assert resolved(operator.add)(types.unicode_type, types.unicode_type) == types.unicode_type


def resolved(function):
    """Return a function from the types of arguments to the type that the function returns for them."""
    context = cpu_target.typing_context
    context.refresh()
    return lambda *kinds: context.resolve_function_type(context.resolve_value_type(function), kinds, {}).return_type


@pytest.mark.parametrize("place", [utils, context])
def test_definitions_of_a_function_are_sorted_by_their_targets_as_before(place: ModuleType) -> None:
    cpu, sort = target_registry["cpu"], place.order_by_target_specificity
    general, of_cpu, of_gpu = (type(name, (), {"metadata": {"target": name}}) for name in ("generic", "cpu", "gpu"))
    for _ in range(2):
        assert sort(cpu, [general, of_gpu, of_cpu]) == [of_cpu, general]
        assert sort(target_registry["gpu"], [general, of_gpu, of_cpu]) == [of_gpu, general]
        assert sort(cpu, (general,)) == [general]
        assert sort(cpu, []) == []
        with pytest.raises(errors.UnsupportedError, match="'f'"):
            sort(cpu, [of_gpu], fnkey="f")


def test_kinds_of_types_are_told_apart_as_before() -> None:
    array, number = types.float32[::1], types.float32
    assert isinstance(array, types.ArrayCompatible) and not isinstance(number, types.ArrayCompatible)
    assert issubclass(types.Array, types.Type) and not issubclass(types.Array, types.Number)
    assert isinstance(number, types.Number | types.Boolean)


def test_who_watches_the_lock_of_llvm_still_does() -> None:
    seen = []
    told = (lambda: seen.append("taken"), lambda: seen.append("given back"))
    ffi.register_lock_callback(*told)
    llvmlite.binding.get_host_cpu_name()
    ffi.unregister_lock_callback(*told)
    assert seen[:2] == ["taken", "given back"]
    assert not [each for each in ffi.lib._lock._cblist if each[0].__module__ == "numba.core.base"]


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


def test_what_reads_where_variables_live_finds_it() -> None:
    """Passes of Numba that delete variables, generators and code with Python objects do."""

    @numba.njit
    def counted(n):
        for i in range(n):
            yield 2 * i

    @numba.njit
    def added(n):
        total = 0
        for number in counted(n):
            total += number
        return total

    @numba.jit(forceobj=True, looplift=False)
    def described(n):
        parts = []
        for i in range(n):
            parts.append(str(i))
        return ", ".join(parts)

    @numba.njit
    def summed(values):
        total = 0.0
        for value in literal_unroll(values):
            total += value
        return total

    assert (added(5), described(3), summed((1, 2.5))) == (20, "0, 1, 2", 3.5)
