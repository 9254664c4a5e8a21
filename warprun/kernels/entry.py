"""The entry point of a kernel in machine code, through which `bound.Call` calls it:

    int32 entry(void *arguments, int64 first, int64 last, int64 thread)

It reads the arguments from memory and returns Numba's status, 0 if all went well. It takes the place of Numba's wrapper for C, to which
all arguments are passed by value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir
from numba.core import cgutils
from numba.core.compiler import Compiler
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import NativeLowering

if TYPE_CHECKING:
    from numba.core.base import BaseContext as TargetContext
    from numba.core.codegen import CodeLibrary
    from numba.core.compiler_machinery import PassManager
    from numba.core.funcdesc import FunctionDescriptor

SPAN = 3
"""Arguments of a kernel that differ in each call: first, last, thread."""


def with_entry(managers: list[PassManager]) -> list[PassManager]:
    """Return Numba's passes, changed so that the compiled kernel has an entry point."""
    for manager in managers:
        manager.passes = [(EntryLowering if each is NativeLowering else each, text) for each, text in manager.passes]
        manager.finalize()
    return managers


class Bound(Compiler):
    """Numba's compiler for kernels that a `bound.Call` calls."""

    def define_pipelines(self) -> list[PassManager]:
        """Return the passes of the compiler."""
        return with_entry(super().define_pipelines())


class _Lower(Lower):
    """Writes the entry point in the place of the wrapper for C."""

    def create_cfunc_wrapper(self) -> None:
        """Add the entry point to the library of the kernel."""
        write_entry(self.context, self.library, self.fndesc)


@register_pass(mutates_CFG=True, analysis_only=False)
class EntryLowering(NativeLowering):
    """Numba's translation to LLVM's code, with the entry point."""

    _name = "entry_lowering"

    @property
    def lowering_class(self) -> type[Lower]:
        """Return the class that translates a function."""
        return _Lower


def write_entry(context: TargetContext, library: CodeLibrary, described: FunctionDescriptor) -> None:
    """Add the entry point of a kernel to its library, under the name of the wrapper for C."""
    module, index = context.create_module("entry"), ir.IntType(64)
    kernel_type = context.call_conv.get_function_type(described.restype, described.argtypes)
    kernel = ir.Function(module, kernel_type, described.llvm_func_name)
    entry_type = ir.FunctionType(ir.IntType(32), [ir.IntType(8).as_pointer(), *[index] * SPAN])
    entry = ir.Function(module, entry_type, described.llvm_cfunc_wrapper_name)
    builder = ir.IRBuilder(entry.append_basic_block("entry"))
    memory, *span = entry.args
    kinds = described.argtypes[SPAN:]
    record = builder.bitcast(memory, ir.LiteralStructType([context.get_data_type(kind) for kind in kinds]).as_pointer())
    given = [context.unpack_value(builder, kind, cgutils.gep_inbounds(builder, record, 0, n)) for n, kind in enumerate(kinds)]
    status, _ = context.call_conv.call_function(
        builder, kernel, described.restype, described.argtypes, [*span, *given], attrs=("noinline",)
    )
    builder.ret(status.code)
    library.add_ir_module(module)
