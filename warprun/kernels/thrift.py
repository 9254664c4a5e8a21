"""Work of Numba, at its first use and in every compilation, that no kernel needs: how it is left out."""

from __future__ import annotations

import gc
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from llvmlite.binding import ffi
from numba.core import errors, ir, postproc, targetconfig, types, utils
from numba.core.event import Listener, register
from numba.core.types.abstract import _TypeMetaclass
from numba.core.typing import context
from numba.core.typing.npydecl import NumpyRulesArrayOperator
from numba.np import linalg

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from numba.core.postproc import PostProcessor
    from numba.cuda.codegen import CUDACodeLibrary


class _RareCollection(Listener):
    """Lets Python look for reference cycles less often while Numba compiles: it makes millions of objects, most of which stay."""

    OBJECTS = 200_000

    def __init__(self) -> None:
        self._outside: list[tuple[int, ...]] = []

    def on_start(self, event: object) -> None:
        first, *others = gc.get_threshold()
        self._outside.append((first, *others))
        gc.set_threshold(first and max(self.OBJECTS, first), *others)  # 0: never

    def on_end(self, event: object) -> None:
        gc.set_threshold(*self._outside.pop())


@cache
def spare() -> None:
    """Spare this process what kernels do not need. A second call changes nothing.

    To learn whether products of matrices can be compiled, Numba imports SciPy, if it is installed, for 0.2 s. It looks
    again where a function has one.
    """
    register("numba:compiler_lock", _RareCollection())  # that of both compilers, held while a function is compiled
    look = linalg.ensure_blas
    linalg.ensure_blas = lambda: None
    try:
        from numba.np import arraymath  # noqa: F401  looks at its import
    finally:
        linalg.ensure_blas = look
    _spare_compiler(errors, targetconfig, postproc)
    _spare_typing()


@cache
def spare_cuda() -> None:
    """Spare this process what CUDA kernels do not need; they are the same machine code. A second call changes nothing.

    numba-cuda hands the code of a function to libnvvm as often as functions call it. It also has libnvvm optimise a kernel a second time,
    only to read from the result which functions of its own must be linked: their names are in the code before, too.
    """
    from numba.cuda.codegen import CUDACodeLibrary
    from numba.cuda.core import config, errors, postproc, targetconfig

    _spare_compiler(errors, targetconfig, postproc)
    asm = CUDACodeLibrary.get_asm_str

    def get_asm_str(library: CUDACodeLibrary, cc: object = None) -> str:
        reads_names = cc is None and library._lto and not config.CUDA_ENABLE_NRT
        return str(library.get_llvm_str() if reads_names else asm(library, cc))

    def llvm_strs(library: CUDACodeLibrary) -> list[str]:
        if library._llvm_strs is None:
            library._llvm_strs = [str(module) for module in {id(module): module for module in library.modules}.values()]
        return library._llvm_strs

    CUDACodeLibrary.get_asm_str, CUDACodeLibrary.llvm_strs = get_asm_str, property(llvm_strs)


def _spare_compiler(errors: ModuleType, targetconfig: ModuleType, postproc: ModuleType) -> None:
    """Spare a compiler, that of Numba or of numba-cuda, given some of its modules.

    Its errors are coloured with colorama, if that is installed, thousands of them in a compilation that succeeds; messages of warprun have
    no colours. It compares its options in every search for a function, one property after the other. After each pass it finds where
    variables live, which only generators and the passes that delete variables read.
    """
    vars(errors.termcolor())["_markup"] = lambda text, *style: text
    defaults = cache(lambda kind: {name: option.default for name, option in kind.options.items()})
    targetconfig.TargetConfig.values = lambda options: defaults(options.__class__) | options._values
    after_pass = postproc.PostProcessor.run

    def run(processor: PostProcessor, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
        code = processor.func_ir
        if emit_dels or code.is_generator:
            after_pass(processor, emit_dels, extend_lifetimes)
        else:
            code.blocks = postproc.transforms.canonicalize_cfg(code.blocks)
            code.variable_lifetime, code.generator_info = postproc.VariableLifetime(code.blocks), None  # found when it is asked for

    postproc.PostProcessor.run = run


def _spare_typing() -> None:
    """Spare Numba searches whose results are known."""
    # It asks of every number and every place in the code whether it holds variables, and copies the places of code that it inlines.
    search, without = ir.Inst._rec_list_vars, frozenset({ir.Loc, str, int, float, bool, type(None)})
    ir.Inst._rec_list_vars = lambda inst, value: [] if type(value) in without else search(inst, value)
    ir.Loc.__deepcopy__ = lambda place, copied: place
    # It takes `a + b` of two numbers for an operation on arrays until it knows the loops of NumPy for it.
    of_arrays = NumpyRulesArrayOperator.generic

    def generic(rules: NumpyRulesArrayOperator, args: tuple[types.Type, ...], kws: object) -> object:
        return of_arrays(rules, args, kws) if any(isinstance(kind, types.ArrayCompatible) for kind in args) else None

    NumpyRulesArrayOperator.generic = generic
    # It sorts the definitions of a function by their targets in every call of it that it looks at.
    sort = lru_cache(maxsize=4096)(utils.order_by_target_specificity)

    def order(target: type, templates: Sequence[type], fnkey: str = "") -> list[type]:
        return sort(target, tuple(templates), fnkey) if templates else []

    utils.order_by_target_specificity = context.order_by_target_specificity = order
    # No class of types has others than its own subclasses, which Python finds faster than `abc` does.
    _TypeMetaclass.__instancecheck__ = type.__instancecheck__  # type: ignore[method-assign]
    _TypeMetaclass.__subclasscheck__ = type.__subclasscheck__  # type: ignore[method-assign]
    # Nobody listens to the lock of LLVM, which is taken in every call of a function of LLVM.
    for told in [each for each in getattr(ffi.lib._lock, "_cblist", ()) if each[0].__module__ == "numba.core.base"]:
        ffi.unregister_lock_callback(*told)
