"""The instructions of PTX that load, store and convert addresses, as C for `machine.c`, which watches every access."""

import re

from tests.ptx.instructions import Emit, Instruction, c_type, width_of

ACCESS = ("global", "shared", "volatile", "v2", "v4", "relaxed", "weak", "cta", "gpu")
"""Modifiers of loads and stores; their order among blocks is not modelled."""


def to_address(i: Instruction) -> None:
    """Addresses of shared memory begin at 0 in its own space, and at `world.shared` in the general one."""
    given = i.operands[1]
    value = i.value(1, "u64") if i.scope.is_register(given) else i.scope.symbol(given)
    if "shared" in i.modifiers:
        value += f" {'-' if 'to' in i.modifiers else '+'} (uint64_t)(uintptr_t)world.shared"
    elif not {"global", "const", "param"} & set(i.modifiers):
        raise i.scope.unknown(f"cvta.{'.'.join(i.modifiers)}")
    i.give(value, "u64")


def parts_of(i: Instruction, operand: str) -> list[str]:
    return [part.strip() for part in operand.strip("{}").split(",")] if {"v2", "v4"} & set(i.modifiers) else [operand]


def space_of(i: Instruction) -> str:
    if "local" in i.modifiers:
        raise i.scope.unknown("local memory")
    return "SHARED" if "shared" in i.modifiers else "GLOBAL"


def check_vector(i: Instruction, address: str, size: int) -> None:
    """The bytes of a vector lie at a multiple of their number."""
    if {"v2", "v4"} & set(i.modifiers):
        i.scope.put(f"aligned(t, {space_of(i)}, {i.scope.address(address)}, {size}, {i.scope.number});")


def load(i: Instruction) -> None:
    i.allow(*ACCESS, "param", "const", "nc", "ca", "cg")
    scope, size, sign = i.scope, width_of(i.kind) // 8, "s" if i.kind[0] == "s" else "u"
    kind = f"{sign}{8 * size}"
    if "param" in i.modifiers:
        found = re.fullmatch(r"\[([\w$]+)(?:\+(\d+))?\]", i.operands[1])
        if not found:
            raise scope.unknown(f"parameter {i.operands[1]}")
        i.give(f"*({c_type(kind)} *)((char *)world.parameters[{scope.parameter(found[1])}] + {found[2] or 0})", kind)
        return
    parts = parts_of(i, i.operands[0])
    if i.operands[1].strip("[] ").split("+")[0] in parts[:-1]:
        raise scope.unknown("a vector that replaces its own address")
    check_vector(i, i.operands[1], size * len(parts))
    for n, target in enumerate(parts):
        at = f"{scope.address(i.operands[1])} + {n * size}"
        scope.write(target, kind, f"LOAD({c_type(kind)}, {space_of(i)}, {at}, {scope.number})")


def store(i: Instruction) -> None:
    i.allow(*ACCESS, "wb", "cg")
    size = width_of(i.kind) // 8
    parts = parts_of(i, i.operands[1])
    check_vector(i, i.operands[0], size * len(parts))
    for n, given in enumerate(parts):
        at = f"{i.scope.address(i.operands[0])} + {n * size}"
        value = i.scope.read(given, f"b{8 * size}")
        i.scope.put(f"{{ STORE(uint{8 * size}_t, {space_of(i)}, {at}, {value}, {i.scope.number}); }}")


EMIT: dict[str, Emit] = {"cvta": to_address, "ld": load, "ldu": load, "st": store}
