"""Numba's compilers for kernels: what LLVM does to them and when, how pieces are linked, and the entry point.

A kernel (`Kernels`) gets its loops over lanes cut (`lanes.py`), and then LLVM vectorises it. What it calls for each
tile (`Tiles`) is optimised the same way on its own and joins it after that; what it calls for each lane (`Inlined`) is
only translated, and optimised where LLVM inlines it. Kernels without loops over lanes take `Bound`.

`bound.Call` calls a kernel through its entry point

    int32 entry(void *arguments, int64 first, int64 last, int64 thread)

which reads the arguments from memory and returns Numba's status, 0 if all went well. It takes the place of Numba's
wrapper for C, to which all arguments are passed by value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import NativeLowering

from warprun.kernels.lanes import MARK, with_cut_loops

if TYPE_CHECKING:
    from numba.core.codegen import CodeLibrary, CPUCodegen
    from numba.core.compiler_machinery import PassManager

SPAN = 3
"""Arguments of a kernel that differ in each call: first, last, thread."""


class Bound(Compiler):
    """Numba's compiler for kernels that a `bound.Call` calls."""

    def define_pipelines(self) -> list[PassManager]:
        """Return the passes of the compiler."""
        return _with_entry(super().define_pipelines())

    def compile_extra(self, func: Callable[..., object]) -> object:
        """Compile a kernel."""
        codegen = self.state.targetctx.codegen()
        self.state.library = _BoundLibrary(codegen, func.__qualname__)
        self.state.library.enable_object_caching()
        with _linked(codegen):
            return super().compile_extra(func)


class Kernels(Compiler):
    """Numba's compiler for kernels of an engine: LLVM knows that the arrays among their arguments do not overlap (`noalias`).

    Otherwise LLVM does not vectorise loops over many arrays. The arrays of an engine are separate allocations. A kernel without a wrapper
    for Python gets an entry point for a `bound.Call`.
    """

    def define_pipelines(self) -> list[PassManager]:
        """Return the passes of the compiler."""
        managers = super().define_pipelines()
        return _with_entry(managers) if self.state.flags.no_cpython_wrapper else managers

    def compile_extra(self, func: Callable[..., object]) -> object:
        """Compile a kernel, with its loops over lanes cut where they contain loops."""
        self.state.flags.noalias = True
        codegen = self.state.targetctx.codegen()
        self.state.library = _KernelLibrary(codegen, func.__qualname__)
        self.state.library.enable_object_caching()
        with _linked(codegen):
            return super().compile_extra(func)


class Tiles(Compiler):
    """Numba's compiler for what kernels call for each tile, with the same promise."""

    def compile_extra(self, func: Callable[..., object]) -> object:
        """Compile a function, with its loops over lanes cut where they contain loops."""
        self.state.flags.noalias = True
        self.state.library = LinkedLibrary(self.state.targetctx.codegen(), func.__qualname__)
        self.state.library.is_tile = True
        return super().compile_extra(func)


class Inlined(Compiler):
    """Numba's compiler for functions that kernels inline."""

    def compile_extra(self, func: Callable[..., object]) -> object:
        """Translate a function; LLVM optimises it where it is inlined."""
        self.state.library = LinkedLibrary(self.state.targetctx.codegen(), func.__qualname__)
        return super().compile_extra(func)


class _BoundLibrary(JITCodeLibrary):
    """Code of a kernel without loops over lanes."""

    def _finalize_final_module(self) -> None:
        with _quick_addresses():
            super()._finalize_final_module()


class _KernelLibrary(JITCodeLibrary):
    """Code of a kernel: its loops over lanes are cut before it is vectorised. Its tiles join it after that."""

    _linking_libraries: list[CodeLibrary]
    """The libraries whose functions it calls."""

    def finalize(self) -> None:
        self._tiles = [each for each in self._linking_libraries if isinstance(each, LinkedLibrary) and each.is_tile]
        self._linking_libraries = [each for each in self._linking_libraries if each not in self._tiles]
        super().finalize()

    def _optimize_final_module(self) -> None:
        _cut(self)
        super()._optimize_final_module()
        for tile in dict.fromkeys(self._tiles):
            self._final_module.link_in(tile._get_module_for_linking(), preserve=True)
        self._inline_tiles()

    def _finalize_final_module(self) -> None:
        with _quick_addresses():
            super()._finalize_final_module()

    def _inline_tiles(self) -> None:
        """Put the code of tiles in the place of their calls, each of which would pass hundreds of sizes and addresses through memory."""
        tiles = {each.name for tile in self._tiles for each in tile._final_module.functions if not each.is_declaration}
        for function in self._final_module.functions:
            if function.name in tiles and not function.is_declaration:
                function.add_function_attribute("alwaysinline")
                function.linkage = "internal"
        manager = llvm.create_new_module_pass_manager()
        manager.add_always_inliner_pass()
        manager.run(self._final_module, _builder(self, unrolls=False))


class LinkedLibrary(JITCodeLibrary):
    """Code that runs within the machine code of a kernel only, and has none of its own."""

    is_tile = False
    """True: it is optimised here, and not again in the kernel. False: in the kernel only, where LLVM inlines it."""
    recall: Callable[[JITCodeLibrary, Callable[[], bytes]], bytes] = staticmethod(lambda tile, optimized: optimized())
    """Returns what a tile is optimised to, in LLVM's bitcode; `pieces` keeps it."""

    def __init__(self, codegen: CPUCodegen, name: str) -> None:
        super().__init__(codegen, name)
        self.own: list[bytes] = []
        """The modules of the function itself, without what it calls, in LLVM's bitcode."""

    def add_llvm_module(self, module: llvm.ModuleRef) -> None:
        """Add a module of the function itself."""
        self._optimize_functions(module)
        self.add_own(module, module.as_bitcode())

    def _optimize_functions(self, module: llvm.ModuleRef) -> None:
        """Only put variables into registers, which leaves less to link: LLVM optimises the code where it is inlined."""
        module.data_layout = self._codegen._data_layout
        manager, builder = llvm.create_new_function_pass_manager(), _builder(self, unrolls=False)
        manager.add_simplify_cfg_pass()
        manager.add_sroa_pass()
        manager.add_simplify_cfg_pass()
        manager.add_instruction_combine_pass()
        for function in module.functions:
            if not function.is_declaration:
                manager.run(function, builder)

    def add_own(self, module: llvm.ModuleRef, bitcode: bytes) -> None:
        """Add a module that is optimised, with its bitcode."""
        self.own.append(bitcode)
        self._final_module.link_in(module)

    @property
    def codegen(self) -> _NoEnvironment:
        return _NoEnvironment()

    def get_pointer_to_function(self, name: str) -> int:
        """Return 0: there is no machine code."""
        self._ensure_finalized()
        return 0

    def _optimize_final_module(self) -> None:
        if self.is_tile:
            code = self.recall(self, self._optimized)
            self._final_module = llvm.parse_bitcode(code)
            self._final_module.name = cgutils.normalize_ir_text(self.name)

    def _optimized(self) -> bytes:
        _cut(self)
        super()._optimize_final_module()
        return self._final_module.as_bitcode()

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


@contextmanager
def _linked(codegen: CPUCodegen) -> Iterator[None]:
    """Let what Numba has in Python of the functions that a kernel calls, such as `min`, be code that is linked into the kernel only.

    Else each becomes machine code, too, which nobody calls.
    """
    outside, codegen._library_class = codegen._library_class, LinkedLibrary
    try:
        yield
    finally:
        codegen._library_class = outside


@contextmanager
def _quick_addresses() -> Iterator[None]:
    """Let LLVM write machine code without its search for cheaper addresses in loops: it takes long, and changes no result.

    What is computed is the same. The code of others in this process is compiled as before.
    """
    llvm.set_option("", "-disable-lsr")
    try:
        yield
    finally:
        llvm.set_option("", "-disable-lsr=false")


class _NoEnvironment:
    """Stands for Numba's code generator where it would write to machine code."""

    @staticmethod
    def set_env(name: str, environment: object) -> None:
        """Do nothing."""


def _cut(library: JITCodeLibrary) -> None:
    """Cut the marked loops over lanes, once LLVM has inlined and simplified the code and unrolled its short loops of constant length."""
    module: llvm.ModuleRef = library._final_module
    if MARK not in str(module):
        return
    builder = _builder(library, unrolls=False)
    builder.getModulePassManager().run(module, builder)
    # The pipeline for modules would also unroll loops of unknown length, by a factor. The form of the others is what `lanes.py` reads.
    builder = _builder(library, unrolls=True)
    manager = builder.getFunctionPassManager()
    manager.add_loop_simplify_pass()
    manager.add_lcssa_pass()
    for function in module.functions:
        if not function.is_declaration:
            manager.run(function, builder)
    library._final_module = llvm.parse_assembly(with_cut_loops(module))
    library._final_module.name = module.name
    library._final_module.verify()


def _builder(library: JITCodeLibrary, unrolls: bool) -> llvm.PassBuilder:
    """Return what builds LLVM's passes without vectors."""
    options = llvm.create_pipeline_tuning_options()
    options.speed_level = 3
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_unrolling = unrolls
    return llvm.create_pass_builder(library._codegen._tm, options)


def _with_entry(managers: list[PassManager]) -> list[PassManager]:
    """Return Numba's passes, changed so that the compiled kernel has an entry point."""
    for manager in managers:
        manager.passes = [(_EntryLowering if each is NativeLowering else each, text) for each, text in manager.passes]
        manager.finalize()
    return managers


class _Lower(Lower):
    """Writes the entry point in the place of the wrapper for C, under its name."""

    def create_cfunc_wrapper(self) -> None:
        """Add the entry point to the library of the kernel."""
        context, described = self.context, self.fndesc
        module, index = context.create_module("entry"), ir.IntType(64)
        kernel_type = context.call_conv.get_function_type(described.restype, described.argtypes)
        kernel = ir.Function(module, kernel_type, described.llvm_func_name)
        entry_type = ir.FunctionType(ir.IntType(32), [ir.IntType(8).as_pointer(), *[index] * SPAN])
        entry = ir.Function(module, entry_type, described.llvm_cfunc_wrapper_name)
        builder = ir.IRBuilder(entry.append_basic_block("entry"))
        memory, *span = entry.args
        kinds = described.argtypes[SPAN:]
        layout = ir.LiteralStructType([context.get_data_type(kind) for kind in kinds])
        record = builder.bitcast(memory, layout.as_pointer())
        places = [cgutils.gep_inbounds(builder, record, 0, n) for n in range(len(kinds))]
        given = [context.unpack_value(builder, kind, place) for kind, place in zip(kinds, places, strict=True)]
        status, _ = context.call_conv.call_function(
            builder, kernel, described.restype, described.argtypes, [*span, *given], attrs=("noinline",)
        )
        builder.ret(status.code)
        self.library.add_ir_module(module)


@register_pass(mutates_CFG=True, analysis_only=False)
class _EntryLowering(NativeLowering):
    """Numba's translation to LLVM's code, with the entry point."""

    _name = "entry_lowering"

    @property
    def lowering_class(self) -> type[Lower]:
        """Return the class that translates a function."""
        return _Lower
