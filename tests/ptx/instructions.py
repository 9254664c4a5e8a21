"""The instructions of PTX but those of memory, each as C for `machine.c`: registers are unsigned integers, and floats their bits.

What is not known, a modifier or a type, is an error that names the line: nothing is skipped, and nothing guessed.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

ORDERED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
UNORDERED = {"ltu": ">=", "leu": ">", "gtu": "<=", "geu": "<"}
"""True for nan, too: the opposite, negated."""
SIGNS = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
FUNCTIONS = {
    "sqrt": "sqrtf({})",
    "rcp": "(1 / {})",
    "rsqrt": "(float)(1.0 / sqrt((double){}))",
    "ex2": "exp2f({})",
    "lg2": "log2f({})",
    "sin": "sinf({})",
    "cos": "cosf({})",
    "tanh": "tanhf({})",
}
ROUNDINGS = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
MMA = "sync.m16n8k16.row.col.f32.bf16.bf16.f32"
WIDER = {16: "int32_t", 32: "int64_t", 64: "__int128"}


class Unknown(Exception):
    """Something of PTX that the translation does not know."""


def width_of(kind: str) -> int:
    """Return the bits of a type such as u32, or pred."""
    return 1 if kind == "pred" else int(kind[1:])


def c_type(kind: str) -> str:
    if kind == "pred":
        return "uint8_t"
    if kind[0] == "f":
        return {"f32": "float", "f64": "double"}[kind]
    return f"{'int' if kind[0] == 's' else 'uint'}{kind[1:]}_t"


def unsigned(kind: str) -> str:
    return f"u{width_of(kind)}"


class Instruction:
    """An instruction with its modifiers, the last of them its type, and its operands, the first of them the target.

    `scope` is the module that it stands in, of `translate.py`.
    """

    def __init__(self, scope: Any, name: str, operands: list[str]) -> None:
        self.scope, self.operands = scope, operands
        self.name, *self.modifiers = (part for part in re.split(r"\.|::", name) if part not in ("uni", "aligned"))
        self.kind = self.modifiers[-1] if self.modifiers else ""

    @property
    def real(self) -> bool:
        return self.kind[0] == "f"

    def allow(self, *modifiers: str, among: Iterable[str] | None = None) -> None:
        """Raise Unknown if there are other modifiers than these, besides the type."""
        for modifier in self.modifiers[:-1] if among is None else among:
            if modifier not in modifiers:
                raise self.scope.unknown(f"modifier .{modifier} of {self.name}")

    def value(self, n: int, kind: str | None = None) -> str:
        """Return operand `n` as a value of a type, that of the instruction by default; subnormal ones are zero with .ftz."""
        kind = kind or self.kind
        read = self.scope.read(self.operands[n], kind)
        return f"ftz({read})" if kind == "f32" and "ftz" in self.modifiers else str(read)

    def give(self, value: str, kind: str | None = None) -> None:
        self.scope.write(self.operands[0], kind or self.kind, value)

    def give_integer(self, value: str) -> None:
        """Set the target to an integer, of which the lowest bits are kept."""
        self.give(f"({c_type(self.kind)})({value})")


def leave(i: Instruction) -> None:
    i.scope.put("return;")


def trap(i: Instruction) -> None:
    i.scope.put(f"{{ trap(t, {i.scope.number}, TRAP); return; }}")


def branch(i: Instruction) -> None:
    i.scope.put(f"goto {i.scope.label(i.operands[0])};")


def barrier(i: Instruction) -> None:
    parts = [part for part in i.modifiers if part != "cta"]
    if parts == ["warp", "sync"]:  # threads of a warp never run at the same time here; what they share shows as a race
        return
    if parts == ["sync"] and i.operands == ["0"]:
        i.scope.put(f"barrier(t, {i.scope.number}, 0);")
        return
    how: dict[tuple[str, ...], str] = {
        ("red", "or", "pred"): "world.votes != 0",
        ("red", "and", "pred"): "world.all",
        ("red", "popc", "u32"): "world.votes",
    }
    if tuple(parts) not in how or i.operands[1] != "0":
        raise i.scope.unknown("this kind of barrier")
    vote = i.operands[-1]
    read = f"{'!' if vote.startswith('!') else ''}{i.scope.read(vote.lstrip('!'), 'pred')}"
    i.scope.put(f"barrier(t, {i.scope.number}, {read});")
    i.give(how[tuple(parts)])


def move(i: Instruction) -> None:
    scope, (target, given) = i.scope, i.operands
    if target.startswith("{") or given.startswith("{"):
        parts = [part.strip() for part in (target if target.startswith("{") else given).strip("{}").split(",")]
        each = width_of(i.kind) // len(parts)
        if target.startswith("{"):
            for n, part in enumerate(parts):
                scope.write(part, f"b{each}", f"(uint{each}_t)({i.value(1)} >> {n * each})")
        else:
            values = [scope.read(part, f"b{each}") for part in parts]
            i.give(" | ".join(f"(uint64_t){value} << {n * each}" for n, value in enumerate(values)))
    elif scope.is_register(given) or given.startswith("%") or re.match(r"-?\d", given):
        i.give(i.value(1))
    else:
        i.give(scope.symbol(given))


def flushed(i: Instruction, value: str) -> str:
    return f"ftz({value})" if "ftz" in i.modifiers else value


def sum_or_product(i: Instruction) -> None:
    if i.real:
        i.allow("rn", "ftz")
        i.give(flushed(i, f"({i.value(1)} {SIGNS[i.name]} {i.value(2)})"))
    elif i.name == "mul":
        i.allow("lo", "hi", "wide")
        i.give(*product(i))
    else:
        i.allow()
        i.give_integer(f"{i.value(1, unsigned(i.kind))} {SIGNS[i.name]} {i.value(2, unsigned(i.kind))}")


def product(i: Instruction) -> tuple[str, str]:
    width, kind = width_of(i.kind), i.kind
    if "wide" in i.modifiers:
        wide = f"{kind[0]}{2 * width}"
        return f"({c_type(wide)})({c_type(wide)}){i.value(1)} * ({c_type(wide)}){i.value(2)}", wide
    if "hi" in i.modifiers:
        whole = f"{'' if kind[0] == 's' else 'unsigned '}{WIDER[width]}".replace("unsigned int", "uint")
        return f"({c_type(kind)})((({whole}){i.value(1)} * ({whole}){i.value(2)}) >> {width})", kind
    return f"({c_type(kind)})((uint64_t){i.value(1, unsigned(kind))} * (uint64_t){i.value(2, unsigned(kind))})", kind


def multiply_add(i: Instruction) -> None:
    """mad, and fma: one rounding."""
    if i.real:
        i.allow("rn", "ftz")
        i.give(flushed(i, f"{'fmaf' if i.kind == 'f32' else 'fma'}({i.value(1)}, {i.value(2)}, {i.value(3)})"))
        return
    i.allow("lo", "wide")
    value, kind = product(i)
    i.give(f"({c_type(kind)})((uint64_t)({value}) + (uint64_t){i.value(3, kind)})", kind)


def divide(i: Instruction) -> None:
    a, b = i.value(1), i.value(2)
    if not i.real:
        i.allow()
        i.give(f"div_{i.kind}(t, {a}, {b}, {i.scope.number})")
        return
    i.scope.put("t->mufu++;")  # a reciprocal, and steps of Newton where all digits must be right
    if "approx" in i.modifiers:
        i.allow("approx")
        i.give(f"div_approx({a}, {b})")
    elif "full" in i.modifiers:
        i.allow("full")
        i.give(f"approximate({a} / {b}, b32({a}), b32({b}))")
    else:
        i.allow("rn")
        i.give(f"{a} / {b}")


def remainder(i: Instruction) -> None:
    i.allow()
    i.give(f"rem_{i.kind}(t, {i.value(1)}, {i.value(2)}, {i.scope.number})")


def function(i: Instruction) -> None:
    """Functions of one float, most of them approximate: `world.ulps` says how far off."""
    i.scope.put("t->mufu++;")
    if i.name == "rcp" and i.kind == "f64" and "ftz" in i.modifiers:
        i.allow("approx", "ftz")
        i.give(f"rcp_upper({i.value(1)})")
        return
    exact = "rn" in i.modifiers
    i.allow("rn" if exact else "approx", "ftz")
    value = ("sqrt({})" if i.name == "sqrt" and i.kind == "f64" else FUNCTIONS[i.name]).format(i.value(1))
    i.give(flushed(i, value if exact else f"approximate({value}, b32({i.value(1)}), 0)"))


def matrix_product(i: Instruction) -> None:
    """mma, at which the threads of a warp meet."""
    parts = [[part.strip() for part in operand.strip("{}").split(",")] for operand in i.operands]
    if ".".join(i.modifiers) != MMA or list(map(len, parts)) != [4, 4, 2, 4]:
        raise i.scope.unknown("this kind of mma")
    given = ", ".join(i.scope.read(part, "b32") for operand in parts[1:] for part in operand)
    taken = " ".join(f"{i.scope.register(part)} = result_[{n}];" for n, part in enumerate(parts[0]))
    i.scope.put(f"{{ uint32_t given_[] = {{{given}}}, result_[4]; t->mma++; mma(t, {i.scope.number}, given_, result_); {taken} }}")


def negate(i: Instruction) -> None:
    i.allow()
    i.give(f"-{i.value(1)}") if i.real else i.give_integer(f"0 - {i.value(1, unsigned(i.kind))}")


def absolute(i: Instruction) -> None:
    i.allow()
    x = i.value(1)
    if i.real:
        i.give(f"{'fabsf' if i.kind == 'f32' else 'fabs'}({x})")
    else:
        i.give_integer(f"{x} < 0 ? 0 - (uint64_t){x} : (uint64_t){x}")


def extreme(i: Instruction) -> None:
    i.allow(*(("NaN", "ftz") if i.kind == "f32" else ()))
    a, b = i.value(1), i.value(2)
    real = f"{i.name}{'_nan' if 'NaN' in i.modifiers else ''}_{i.kind}({a}, {b})"
    i.give(real if i.real else f"({a} {'<' if i.name == 'min' else '>'} {b} ? {a} : {b})")


def bitwise(i: Instruction) -> None:
    value = f"({i.value(1)} {SIGNS[i.name]} {i.value(2)})"
    i.give(f"{value} & 1") if i.kind == "pred" else i.give_integer(value)


def complement(i: Instruction) -> None:
    i.give(f"!{i.value(1)}") if i.kind == "pred" else i.give_integer(f"~{i.value(1)}")


def shift(i: Instruction) -> None:
    """shl and shr: by the width or more, all bits are gone."""
    width, by, x = width_of(i.kind), i.value(2, "u32"), i.value(1)
    if i.name == "shl":
        i.give_integer(f"{by} < {width} ? (uint64_t){x} << {by} : 0")
    else:
        beyond = f"({x} < 0 ? -1 : 0)" if i.kind[0] == "s" else "0"
        i.give_integer(f"{by} < {width} ? {x} >> ({by} & {width - 1}) : {beyond}")


def funnel(i: Instruction) -> None:
    i.allow("l", "r", "wrap")
    both, by = f"(((uint64_t){i.value(2, 'u32')} << 32) | {i.value(1, 'u32')})", f"({i.value(3, 'u32')} & 31)"
    i.give(f"(uint32_t)({both} << {by} >> 32)" if "l" in i.modifiers else f"(uint32_t)({both} >> {by})", "b32")


def count_bits(i: Instruction) -> None:
    x, width = i.value(1), width_of(i.kind)
    leading = f"({x} ? (uint32_t)__builtin_clzll({x}) - {64 - width} : {width})"
    i.give(f"(uint32_t)__builtin_popcountll({x})" if i.name == "popc" else leading, "u32")


def extract(i: Instruction) -> None:
    if i.kind != "u32":
        raise i.scope.unknown("bfe of this type")
    x, at, count = i.value(1), i.value(2), i.value(3)
    mask = f"(({count} & 255) > 31 ? 0xFFFFFFFFu : (1ull << ({count} & 31)) - 1)"
    i.give(f"(uint32_t)(((uint64_t){x} >> ({at} & 63)) & {mask})")


def insert(i: Instruction) -> None:
    """bfi: the low bits of a number in the place of some bits of another one."""
    x, into, at, count = i.value(1), i.value(2), f"({i.value(3, 'u32')} & 255)", f"({i.value(4, 'u32')} & 255)"
    mask = f"({at} > 63 ? 0 : ({count} > 63 ? ~0ull : (1ull << {count}) - 1) << {at})"
    i.give(f"(uint{width_of(i.kind)}_t)(((uint64_t){into} & ~{mask}) | (((uint64_t){x} << ({at} & 63)) & {mask}))")


def permute(i: Instruction) -> None:
    if i.modifiers != ["b32"] or not re.match(r"\d", i.operands[3]) or int(i.operands[3].rstrip("U"), 0) & 0x8888:
        raise i.scope.unknown("this kind of prmt")
    by = int(i.operands[3].rstrip("U"), 0)
    both = f"((uint64_t){i.value(2, 'u32')} << 32 | {i.value(1, 'u32')})"
    i.give(" | ".join(f"((uint32_t)({both} >> {8 * (by >> 4 * n & 7)}) & 255u) << {8 * n}" for n in range(4)))


def compare(i: Instruction) -> None:
    """setp: a comparison, and another predicate."""
    how, (target, first, second, *other) = i.modifiers[0], i.operands
    joined = [name for name in i.modifiers[1:-1] if name in ("and", "or", "xor")]
    i.allow("and", "or", "xor", among=i.modifiers[1:-1])
    if "|" in target:
        raise i.scope.unknown("setp with two results")
    x, y = i.scope.read(first, i.kind), i.scope.read(second, i.kind)
    if how in UNORDERED:
        value = f"!({x} {UNORDERED[how]} {y})"
    elif how in ("equ", "ne") and i.real:
        value = f"{'!' if how == 'equ' else ''}({x} < {y} || {x} > {y})"
    elif how in ("ne", "neu"):
        value = f"({x} != {y})"
    elif how in ("num", "nan"):
        value = f"({'' if how == 'num' else '!'}({x} == {x} && {y} == {y}))"
    else:
        value = f"({x} {ORDERED[how]} {y})"
    for name in joined:
        value += f" {SIGNS[name]} {'!' if other[0].startswith('!') else ''}{i.scope.register(other[0].lstrip('!'))}"
    i.give(value, "pred")


def select(i: Instruction) -> None:
    bits = f"b{width_of(i.kind)}"
    i.give(f"({i.scope.register(i.operands[3])} ? {i.value(1, bits)} : {i.value(2, bits)})", bits)


def convert(i: Instruction) -> None:
    *rounding, to, given = i.modifiers
    if i.modifiers == ["rn", "bf16x2", "f32"]:  # the first operand has the upper half
        i.give(f"(to_bf16({i.value(1)}) << 16 | to_bf16({i.value(2)}))", "b32")
        return
    x, real = i.value(1), to[0] == "f"
    if given[0] == "f" and (not real or to == given):
        i.allow(*ROUNDINGS, among=rounding)
        for name in rounding:
            x = f"{ROUNDINGS[name]}((double){x})"
    else:
        i.allow(*(["rn"] if real else []), among=rounding)
    if not real and given[0] == "f":
        bits = width_of(to)
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if to[0] == "s" else (0, (1 << bits) - 1)
        x = f"to_{to}({x})" if bits == 64 else f"clamp_to({x}, {low}.0, {high}.0)"
    i.give(f"({c_type(to)}){x}", to)


Emit = Callable[[Instruction], None]
ALONE: dict[str, Emit] = {"trap": trap, "bra": branch, "mov": move, "div": divide}
ALONE |= {"rem": remainder, "neg": negate, "abs": absolute, "not": complement, "shf": funnel, "bfe": extract}
ALONE |= {"bfi": insert, "prmt": permute, "setp": compare, "selp": select, "cvt": convert}
EMIT: dict[str, Emit] = {
    **ALONE,
    "mma": matrix_product,
    **dict.fromkeys(("ret", "exit"), leave),
    **dict.fromkeys(("bar", "barrier"), barrier),
    **dict.fromkeys(("mad", "fma"), multiply_add),
    **dict.fromkeys(("add", "sub", "mul"), sum_or_product),
    **dict.fromkeys(("min", "max"), extreme),
    **dict.fromkeys(("and", "or", "xor"), bitwise),
    **dict.fromkeys(("shl", "shr"), shift),
    **dict.fromkeys(("popc", "clz"), count_bits),
    **dict.fromkeys(FUNCTIONS, function),
}
