"""PTX to C: every kernel of a PTX module becomes a C function for `machine.c`.

A register becomes an unsigned integer of its width, a label a label, an instruction a statement (`instructions.py`, `memory.py`).
Loads, stores and barriers carry the number of their line of PTX, by which the machine reports.
"""

import re
from collections import ChainMap
from dataclasses import dataclass, field

from tests.ptx import instructions, memory
from tests.ptx.instructions import Instruction, Unknown, c_type, width_of

EMIT = instructions.EMIT | memory.EMIT
AXES = list(enumerate("xyz"))
SPECIAL = {f"%{name}.{axis}": f"world.{name}[{n}]" for name in ("ntid", "nctaid", "ctaid") for n, axis in AXES}
SPECIAL |= {f"%tid.{axis}": f"t->tid[{n}]" for n, axis in AXES}
SPECIAL |= {"%dynamic_smem_size": "world.dynamic_bytes", "%total_smem_size": "world.shared_bytes"}
SPECIAL |= {"%laneid": "(t->index & 31)", "%warpid": "(t->index >> 5)"}
PARAMETER = re.compile(r"\.param\s+(?:\.align \d+\s+)?\.(\w+)\s+(?:\.ptr\s+(?:\.\w+\s+)?(?:\.align \d+\s+)?)?([\w$]+)")
VARIABLE = re.compile(r"\.align (\d+) \.[bus](\d+) ([\w$]+)(?:\[(\d*)\])?(?:\s*=\s*\{?([^}]*)\}?)?\s*;")
IGNORED = (".loc", ".pragma", ".version", ".target", ".address_size", ".file", ".section")
FLOAT = re.compile(r"0[fF]([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16})")
INTEGER = re.compile(r"-?(0[xX][0-9a-fA-F]+|\d+)U?")


@dataclass
class Kernel:
    name: str
    symbol: str
    parameters: dict[str, int] = field(default_factory=dict)
    """Bytes by name, in order."""
    body: list[str] = field(default_factory=list)


class Module:
    """A translated PTX module: its kernels, `source` in C, and the bytes of shared memory of a fixed size."""

    def __init__(self, ptx: str) -> None:
        self.kernels: list[Kernel] = []
        self.shared_bytes = 0
        self.number = 0
        self._globals: dict[str, tuple[int, list[int]]] = {}
        self._shared: dict[str, int | None] = {}
        """Where arrays in shared memory begin; None: what a launch asks for, after all that is fixed."""
        self._registers: ChainMap[str, int] = ChainMap()
        """Bits by the name in C, those of the innermost braces first."""
        self._guard = ""
        self._read(ptx)
        self.source = self._source()

    def unknown(self, what: str) -> Unknown:
        return Unknown(f"line {self.number} of the PTX: {what}")

    def _read(self, ptx: str) -> None:
        state, text = "outside", ""
        without = re.sub(r"/\*.*?\*/", lambda found: "\n" * found[0].count("\n"), ptx, flags=re.DOTALL)
        for self.number, whole in enumerate(without.splitlines(), 1):
            line = re.sub(r"//.*", "", whole).strip()
            if not line or line.startswith(IGNORED):
                continue
            if state == "outside" and re.match(r"(\.visible |\.weak )?\.entry", line):
                self.kernels.append(Kernel(line.split()[-1].rstrip("(){"), f"kernel_{len(self.kernels)}"))
                self._registers = ChainMap({})
                state = "parameters"
            elif state == "parameters":
                for kind, name in PARAMETER.findall(line):
                    self.kernels[-1].parameters[name] = width_of(kind) // 8
                if line.startswith("{"):
                    self._registers = self._registers.new_child()
                    state = "body"
            elif state == "body" and line == "{":  # names within hide those outside, as in C
                self._registers = self._registers.new_child()
                self.kernels[-1].body.append("{")
            elif state == "body" and line.startswith("}"):
                self.kernels[-1].body.append("}")
                self._registers = self._registers.parents
                state = "body" if len(self._registers.maps) > 1 else "outside"
            elif state == "body" and line.endswith(":"):
                self.kernels[-1].body.append(f"{self.label(line[:-1])}: ;")
            elif ".func" in line:
                raise self.unknown("functions that are not inlined")
            else:
                text += line + " "
                if line.endswith(";"):
                    if state == "outside":
                        self._declare(text)
                    else:
                        for statement in filter(None, map(str.strip, text.split(";"))):
                            self._statement(statement)
                    text = ""

    def _declare(self, text: str) -> None:
        found = VARIABLE.search(text)
        if not found or ".local" in text:
            raise self.unknown(text)
        align, width, name, count, values = found.groups()
        each = int(width) // 8
        size = each * (int(count) if count else 1 if count is None else 0)
        if ".shared" in text:
            if ".extern" in text or not size:
                self._shared[name] = None
            else:
                self.shared_bytes = -(-self.shared_bytes // int(align)) * int(align)
                self._shared[name] = self.shared_bytes
                self.shared_bytes += size
        elif ".global" in text or ".const" in text:
            numbers = [int(value, 0) % (1 << int(width)) for value in (values or "").split(",") if value.strip()]
            self._globals[name] = size, list(b"".join(number.to_bytes(each, "little") for number in numbers))
        else:
            raise self.unknown(text)

    def _statement(self, text: str) -> None:
        if text.startswith(".reg"):
            kind, names = re.fullmatch(r"\.reg \.(\w+)\s+(.*)", text).groups()  # type: ignore[union-attr]
            for name in re.split(r"\s*,\s*", names):
                many = re.fullmatch(r"(%\w+)<(\d+)>", name)
                for one in [f"{many[1]}{n}" for n in range(int(many[2]))] if many else [name]:
                    self._registers[self.register(one)] = width_of(kind)
                    self.kernels[-1].body.append(f"uint{max(8, width_of(kind))}_t {self.register(one)} = 0;")
            return
        if text.startswith((".shared", ".local")):
            self._declare(text + ";")
            return
        guarded = re.match(r"@(!?)(%\w+)\s+(.*)", text)
        self._guard = f"if ({guarded[1]}{self.register(guarded[2])}) " if guarded else ""
        name, *rest = (guarded[3] if guarded else text).split(maxsplit=1)
        operands = [part.strip() for part in re.split(r",(?![^{\[]*[}\]])", rest[0])] if rest else []
        instruction = Instruction(self, name, operands)
        if instruction.name not in EMIT:
            raise self.unknown(f"instruction {name}")
        if instruction.name != "mov":
            self.kernels[-1].body.append("t->executed++;")
        EMIT[instruction.name](instruction)

    def _source(self) -> str:
        out = ['#include "machine.h"', ""]
        for name, (size, values) in self._globals.items():
            value = ", ".join(map(str, values))
            out.append(f"static __attribute__((aligned(16))) uint8_t V_{name}[{max(size, 1)}] = {{{value}}};")
        for kernel in self.kernels:
            out += ["", f"void {kernel.symbol}(struct thread *t)", "{", *kernel.body]
        return "\n".join(out) + "\n"

    # The scope of an instruction ------------------------------------------------------------------------------

    def label(self, name: str) -> str:
        return "L_" + re.sub(r"\W", "_", name)

    def register(self, name: str) -> str:
        return "r_" + name[1:].replace("%", "_")

    def is_register(self, text: str) -> bool:
        return text.startswith("%") and self.register(text) in self._registers

    def parameter(self, name: str) -> int:
        names = list(self.kernels[-1].parameters)
        if name not in names:
            raise self.unknown(f"parameter {name}")
        return names.index(name)

    def read(self, text: str, kind: str) -> str:
        if text in SPECIAL:
            return f"(({c_type(kind)}){SPECIAL[text]})"
        if self.is_register(text):
            name, width = self.register(text), width_of(kind)
            if kind[0] != "f":
                return f"(({c_type(kind)}){name})" if kind != "pred" else name
            if self._registers[name] != width:
                raise self.unknown(f"{text} as {kind}")
            return f"f{width}({name})"
        if found := FLOAT.fullmatch(text):
            bits = f"0x{found[1]}u" if found[1] else f"0x{found[2]}ull"
            return f"f{32 if found[1] else 64}({bits})" if kind[0] == "f" else bits
        if INTEGER.fullmatch(text):
            value = int(text.rstrip("U"), 0)
            return f"(({c_type(kind)}){value % (1 << 64):#x}ull)" if kind != "pred" else str(int(value != 0))
        raise self.unknown(f"operand {text}")

    def symbol(self, text: str) -> str:
        """Return the address of a variable, in its own space."""
        if text in self._shared:
            at = self._shared[text]
            return f"{self.shared_bytes if at is None else at}ull"
        if text in self._globals:
            return f"(uint64_t)(uintptr_t)V_{text}"
        raise self.unknown(f"operand {text}")

    def address(self, text: str) -> str:
        found = re.fullmatch(r"\[\s*([%\w$.]+?)\s*(?:\+\s*(-?\w+))?\s*\]", text)
        if not found:
            raise self.unknown(f"address {text}")
        base, offset = found[1], int(found[2] or "0", 0)
        start = f"(uint64_t){self.register(base)}" if self.is_register(base) else self.symbol(base)
        return f"{start} + {offset % (1 << 64)}ull"

    def write(self, target: str, kind: str, value: str) -> None:
        """Set a register to a C expression of `kind`; a narrower value is extended as `kind` says."""
        if target == "_":
            return
        if not self.is_register(target):
            raise self.unknown(f"register {target}")
        name = self.register(target)
        width = self._registers[name]
        if kind[0] == "f":
            if width != width_of(kind):
                raise self.unknown(f"{kind} in {target}")
            value = f"b{width}({value})"
        elif kind[0] == "s" and width > width_of(kind):
            value = f"(int{width}_t)({value})"
        self.put(f"{name} = {value};")

    def put(self, text: str) -> None:
        self.kernels[-1].body.append(self._guard + text)
