"""The LLVM code of one function as blocks of instructions, and what a control-flow graph says: order, dominators, loops."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import llvmlite.binding as llvm

NAME = re.compile(r'%(?:"[^"]*"|[-\w.$]+)')
"""A value or a label."""
_LABEL = re.compile(r'^("[^"]*"|[-\w.$]+):')
_INCOMING = re.compile(r"\[ (.*?), (%(?:\"[^\"]*\"|[-\w.$]+)) \]")

Graph = Mapping[str, Iterable[str]]
"""A node -> the nodes that follow it."""


@dataclass
class Instruction:
    """One instruction; `text` is its line without indentation."""

    text: str
    name: str
    """`%name` of its result; empty if it has none."""
    opcode: str
    value: llvm.ValueRef

    @property
    def type(self) -> str:
        """LLVM type of the result."""
        return str(self.value.type)

    @property
    def operands(self) -> list[str]:
        """`%names` that it reads, labels included."""
        return NAME.findall(self.text.partition(" = ")[2] if self.name else self.text)

    @property
    def incoming(self) -> list[tuple[str, str]]:
        """Of a phi: value and label of each edge."""
        return _INCOMING.findall(self.text)


@dataclass
class Block:
    """One basic block."""

    label: str
    """`%label`, as branches name it."""
    instructions: list[Instruction] = field(default_factory=list)

    @property
    def phis(self) -> list[Instruction]:
        """The phis at its beginning."""
        return [each for each in self.instructions if each.opcode == "phi"]

    @property
    def body(self) -> list[Instruction]:
        """What is neither a phi nor its last instruction."""
        return [each for each in self.instructions[:-1] if each.opcode != "phi"]

    @property
    def end(self) -> Instruction:
        """Its last instruction."""
        return self.instructions[-1]

    @property
    def next(self) -> list[str]:
        """Labels of the blocks that may follow."""
        return list(dict.fromkeys(re.findall(r"label (%(?:\"[^\"]*\"|[-\w.$]+))", self.end.text)))


def blocks_of(lines: Sequence[str], function: llvm.ValueRef) -> dict[str, Block]:
    """Return the blocks of a function by label; `lines` are those of its body, between the braces."""
    blocks: dict[str, Block] = {}
    block = Block("")
    for line in lines:
        label, text = _LABEL.match(line), line.strip()
        if label:
            block = blocks[f"%{label[1]}"] = Block(f"%{label[1]}")
        elif not text or text.startswith(("#dbg", ";")):
            continue
        elif line.startswith("    ") or text.startswith("]"):
            block.instructions[-1].text += " " + text
        else:
            name, equals, rest = text.partition(" = ")
            named = bool(equals) and NAME.fullmatch(name) is not None
            words = (rest if named else text).removeprefix("tail ").split()
            block.instructions.append(Instruction(text, name if named else "", words[0], function))
    for block, found in zip(blocks.values(), function.blocks, strict=True):
        for instruction, value in zip(block.instructions, found.instructions, strict=True):
            instruction.value = value
    return blocks


def ordered(graph: Graph, start: str) -> list[str]:
    """Return the nodes that `start` reaches, each before those that follow it, loops aside (reverse post-order)."""
    found: list[str] = []
    seen = {start}
    waiting = [(start, iter(graph[start]))]
    while waiting:
        node, rest = waiting[-1]
        following = next((each for each in rest if each not in seen), None)
        if following is None:
            found.append(node)
            waiting.pop()
        else:
            seen.add(following)
            waiting.append((following, iter(graph.get(following, ()))))
    return found[::-1]


def dominators(graph: Graph, start: str) -> dict[str, str]:
    """Return the immediate dominator of every node; that of `start` is `start`. Source: Cooper, Harvey and Kennedy, 2001."""
    order = ordered(graph, start)
    place = {node: n for n, node in enumerate(order)}
    before: dict[str, list[str]] = {node: [] for node in order}
    for node in order:
        for following in graph.get(node, ()):
            before[following].append(node)
    found = {start: start}

    def common(a: str, b: str) -> str:
        while a != b:
            a, b = (found[a], b) if place[a] > place[b] else (a, found[b])
        return a

    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            known = [each for each in before[node] if each in found]
            nearest = known[0]
            for each in known[1:]:
                nearest = common(nearest, each)
            changed |= found.get(node) != nearest
            found[node] = nearest
    return found


def chain(of: Mapping[str, str], node: str) -> list[str]:
    """Return `node` and its dominators, nearest first."""
    found = [node]
    while of[found[-1]] != found[-1]:
        found.append(of[found[-1]])
    return found


def reversed_graph(graph: Graph) -> dict[str, list[str]]:
    """Return the graph with all its edges turned around."""
    found: dict[str, list[str]] = {node: [] for node in graph}
    for node, following in graph.items():
        for each in following:
            found.setdefault(each, []).append(node)
    return found


def loops(graph: Graph, start: str) -> dict[str, set[str]]:
    """Return the blocks of every loop by its header. Raises ValueError for a loop that can be entered in two places."""
    of = dominators(graph, start)
    place = {node: n for n, node in enumerate(ordered(graph, start))}
    before = reversed_graph({node: graph.get(node, ()) for node in place})
    found: dict[str, set[str]] = {}
    for node in place:
        for header in graph.get(node, ()):
            if place[header] > place[node]:
                continue
            if header not in chain(of, node):
                raise ValueError("its loops can be entered in two places")
            body = found.setdefault(header, {header})
            waiting = [node]
            while waiting:
                each = waiting.pop()
                if each not in body:
                    body.add(each)
                    waiting += before[each]
    return found
