"""The blocks of a loop over lanes, its *regions*, which lanes run each of them, and what is the same for all lanes.

A region is a piece of the body without a loop, with one entry, its *cut*. The cuts are the first block of the body, the
headers of the loops within it, and the blocks after them. Lanes run a region together. If they leave it by the same
way, the host of all lanes, one scalar branch, chooses the next region. If they do not, each lane notes where it goes
next, and the regions of that part of the body are *masked*: only lanes that have come there run them. The regions of a
loop that lanes leave at different times are masked, too, and the loop runs until its last lane has left.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise

import llvmlite.binding as llvm

NAME = re.compile(r'%(?:"[^"]*"|[-\w.$]+)')
"""A value or a label."""
END = "%end of lanes"
"""Stands for the end of the body, in graphs."""
_LABEL = re.compile(r'^("[^"]*"|[-\w.$]+):')
_INCOMING = re.compile(rf"\[ (.*?), ({NAME.pattern}) \]")
_NEXT = re.compile(rf"label ({NAME.pattern})")
_ANY = "%any way out"
_PURE = re.compile(
    r"@llvm\.(?:sqrt|fabs|floor|ceil|trunc|rint|nearbyint|round|roundeven|fma|fmuladd|minnum|maxnum|minimum|maximum|copysign"
    r"|smin|smax|umin|umax|abs|ctpop|ctlz|cttz|fshl|fshr)\."
)
_SAFE = {"getelementptr", "select", "icmp", "fcmp", "freeze", "fneg", "fadd", "fsub", "fmul", "fdiv", "frem", "extractvalue", "insertvalue"}
_SAFE |= {"add", "sub", "mul", "shl", "lshr", "ashr", "and", "or", "xor", "trunc", "zext", "sext", "fptrunc", "fpext", "fptoui", "fptosi"}
_SAFE |= {"uitofp", "sitofp", "bitcast", "ptrtoint", "inttoptr"}
"""Instructions that read no memory and cannot fail."""
_GUARDED = {"load", "sdiv", "udiv", "srem", "urem"}
"""Instructions that may run only where the program runs them."""

Graph = Mapping[str, Iterable[str]]
"""A node -> the nodes that follow it."""


class Stays(Exception):
    """Why a loop over lanes stays as it is."""


# LLVM's code as blocks --------------------------------------------------------------------------------------------------


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

    instructions: list[Instruction] = field(default_factory=list)

    @property
    def phis(self) -> list[Instruction]:
        """The phis at its beginning."""
        return [each for each in self.instructions if each.opcode == "phi"]

    @property
    def end(self) -> Instruction:
        """Its last instruction."""
        return self.instructions[-1]

    @property
    def next(self) -> list[str]:
        """Labels of the blocks that may follow."""
        return list(dict.fromkeys(_NEXT.findall(self.end.text)))


def blocks_of(lines: Sequence[str], function: llvm.ValueRef) -> dict[str, Block]:
    """Return the blocks of a function by `%label`; `lines` are those of its body, between the braces."""
    blocks: dict[str, Block] = {}
    block = Block()
    for line in lines:
        label, text = _LABEL.match(line), line.strip()
        if label:
            block = blocks[f"%{label[1]}"] = Block()
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
    before = reversed_graph({node: graph.get(node, ()) for node in order})
    found = {start: start}

    def common(a: str, b: str) -> str:
        while a != b:
            a, b = (found[a], b) if place[a] > place[b] else (a, found[b])
        return a

    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            nearest = reduce(common, (each for each in before[node] if each in found))
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
    """Return the blocks of every loop by its header. Raises Stays for a loop that can be entered in two places."""
    of = dominators(graph, start)
    place = {node: n for n, node in enumerate(ordered(graph, start))}
    before = reversed_graph({node: graph.get(node, ()) for node in place})
    found: dict[str, set[str]] = {}
    for node in place:
        for header in graph.get(node, ()):
            if place[header] > place[node]:
                continue
            if header not in chain(of, node):
                raise Stays("its loops can be entered in two places")
            body = found.setdefault(header, {header})
            waiting = [node]
            while waiting:
                each = waiting.pop()
                if each not in body:
                    body.add(each)
                    waiting += before[each]
    return found


# The regions of a loop ---------------------------------------------------------------------------------------------------


class Regions:
    """The regions of the body of a loop over lanes; `blocks` are those of the body, in the order of the code."""

    def __init__(self, blocks: Mapping[str, Block], header: str, latch: str, lane: str) -> None:
        self.blocks, self.first, self.lane = blocks, header, lane
        self.defined = {each.name: (label, each) for label, block in blocks.items() for each in block.instructions if each.name}
        self.inside = {label: [END] if label == latch else block.next for label, block in blocks.items()}
        self.loops = loops(self.inside | {END: []}, header)
        """Header -> the blocks of a loop within the body."""
        if not all(self.inside.values()):
            raise Stays("it can end in the middle")
        nested = sorted(self.loops, key=lambda each: len(self.loops[each]))
        self.home = {label: next((each for each in nested if label in self.loops[each]), "") for label in [*blocks, END]}
        self.parent = {each: next((o for o in nested if o != each and each in self.loops[o]), "") for each in nested}
        self.region = self._regions()
        self.members = {cut: [b for b in self.region if self.region[b] == cut] for cut in dict.fromkeys(self.region.values())}
        self.masked: set[str] = set()
        self.then: dict[tuple[str, str], str] = {}
        self.varying: set[str] = {lane}
        self._divide()

    def _regions(self) -> dict[str, str]:
        """Return the cut of every block's region."""
        found: dict[str, str] = {}
        before = reversed_graph(self.inside)
        for label in ordered(self.inside, self.first):
            if label == END:
                continue
            sources = [each for each in before[label] if each in found]
            cut = label == self.first or label in self.loops or any(self.home[each] != self.home[label] for each in sources)
            of = {found[each] for each in sources}
            found[label] = label if cut or len(of) != 1 else of.pop()
        return found

    # Ways out -------------------------------------------------------------------------------------------------------------

    def phis(self, label: str) -> list[Instruction]:
        """Return the phis of a block; none for the end."""
        return [] if label == END else self.blocks[label].phis

    def is_cut(self, label: str) -> bool:
        """Return whether a block begins a region, or is the end."""
        return label == END or self.region[label] == label

    def graph(self, cut: str) -> dict[str, list[str]]:
        """Return the graph of a region: its blocks, the cuts behind them, each followed by one node for all ways out."""
        found = {label: [f">{each}" if self.is_cut(each) else each for each in self.inside[label]] for label in self.members[cut]}
        return found | {each: [_ANY] for following in found.values() for each in following if each.startswith(">")} | {_ANY: []}

    def joins(self, cut: str) -> dict[str, str]:
        """Return for each block of a region where all ways from it meet again: a block, `>CUT`, or else `_ANY`."""
        return dominators(reversed_graph(self.graph(cut)), _ANY)

    def targets(self, cut: str) -> list[str]:
        """Return the cuts that follow a region."""
        return [each[1:] for each in self.graph(cut) if each.startswith(">")]

    def choices(self, cut: str) -> list[str]:
        """Return the blocks of a region whose last instruction decides by which way lanes leave it."""
        joins = self.joins(cut)
        return [label for label in self.members[cut] if joins[label] == _ANY and len(self.inside[label]) > 1]

    def _leaves_apart(self, cut: str) -> bool:
        """Return whether lanes may leave a region by different ways: a condition of its last branches differs between them."""
        ends = [self.blocks[label] for label in self.choices(cut)]
        return any(name in self.varying for block in ends for name in block.end.operands if name not in block.next)

    # Which regions are masked ---------------------------------------------------------------------------------------------

    def _divide(self) -> None:
        """Find what is uniform and which regions are masked; each depends on the other."""
        while True:
            known = len(self.varying)
            self._spread()
            self._mask()
            if len(self.varying) == known:
                return

    def _mask(self) -> None:
        self.masked, self.then = set(), {}
        self._mask_level("", masked=False)
        self.masked.discard(self.first)  # all lanes begin there

    def _node(self, level: str, label: str) -> str:
        """Return the node of a level, a region or a loop, in which a cut lies; the cut itself if it lies elsewhere."""
        if label == END or (level and label not in self.loops[level]):
            return f">{label}"
        if self.home[label] == level:
            return ">again" if label == level else label
        loop = self.home[label]
        while self.parent[loop] != level:
            loop = self.parent[loop]
        return loop

    def nodes(self, level: str) -> dict[str, list[str]]:
        """Return the regions and loops of a level, each with those that follow, in order."""
        found: dict[str, list[str]] = {}
        for cut in self.members:
            if self.home[cut] == level:
                found[cut] = [self._node(level, each) for each in self.targets(cut)]
        for loop, parent in self.parent.items():
            if parent == level:
                leaving = [each for cut in self.members if cut in self.loops[loop] for each in self.targets(cut)]
                found[loop] = [self._node(level, each) for each in dict.fromkeys(leaving) if each not in self.loops[loop]]
        start = level or self.first
        return {node: list(dict.fromkeys(found[node])) for node in ordered(found, start) if node in found}

    def _disagreement(self, level: str) -> dict[str, list[str]] | None:
        """Return the nodes after which lanes go different ways, with the nodes until they meet and the one where they do.

        None if they do not meet in the level.
        """
        nodes = self.nodes(level)
        ends = {each: [_ANY] for following in nodes.values() for each in following if each.startswith(">")}
        meet = dominators(reversed_graph(nodes | ends | {_ANY: []}), _ANY)
        found: dict[str, list[str]] = {}
        for node, following in nodes.items():
            loop = node != level and node in self.loops
            apart = self._disagreement(node) is None if loop else self._leaves_apart(node)
            if len(following) == 1 or not apart or any(node in zone[:-1] for zone in found.values()):
                continue
            if meet[node] == _ANY:
                return None
            between = ordered({each: [n for n in then if n != meet[node]] for each, then in nodes.items()}, node)
            zone = [each for each in nodes if each in between and each != node]
            if any(each in zone and before not in (node, *zone) for before, then in nodes.items() for each in then):
                return None
            found[node] = [*zone, level if meet[node] == ">again" else meet[node].removeprefix(">")]
        return found

    def _mask_level(self, level: str, masked: bool) -> None:
        nodes = self.nodes(level)
        zones = None if masked else self._disagreement(level)
        runs = [[*nodes, level or END]] if zones is None else [[node, *zone] for node, zone in zones.items()]
        self.then |= {(level, node): following for run in runs for node, following in pairwise(run)}
        for node, following in nodes.items():
            within = zones is None or any(node in zone[:-1] for zone in zones.values())
            self.masked |= {node} if within else set()
            if node != level and node in self.loops:
                apart = within or self._disagreement(node) is None  # lanes leave the loop at different times
                if apart and (level, node) not in self.then:
                    self.then[level, node] = level if following[0] == ">again" else following[0].removeprefix(">")
                self.masked |= {node} if apart else set()
                self._mask_level(node, apart)

    # What is uniform ------------------------------------------------------------------------------------------------------

    def is_uniform(self, name: str) -> bool:
        """Return whether a value is the same for all lanes that run where it is defined."""
        return name not in self.varying

    def _spread(self) -> None:
        """Add to `varying` all that depends on it."""
        always = {cut: set(chain(self.joins(cut), cut)) for cut in self.members}
        changed = True
        while changed:
            changed = False
            for name, (label, made) in self.defined.items():
                if name not in self.varying and not self._stays_uniform(label, made, always):
                    self.varying.add(name)
                    changed = True

    def _stays_uniform(self, label: str, made: Instruction, always: Mapping[str, set[str]]) -> bool:
        if made.opcode == "phi":
            return self._same_phi(label, made)
        if any(name in self.varying for name in made.operands):
            return False
        if made.opcode in _GUARDED:
            cut = self.region[label]
            # In a masked region there may be no lane at all, but not at the beginning of a loop.
            return label in always[cut] and (cut not in self.masked or cut in self.loops)
        return made.opcode in _SAFE or (made.opcode == "call" and _PURE.search(made.text) is not None)

    def _same_phi(self, label: str, phi: Instruction) -> bool:
        """Return whether a phi is uniform: at a cut, and each region before gives one value, the same for all lanes."""
        if self.region[label] != label or label == self.first:
            return False
        if any(value in self.varying for value, _ in phi.incoming):
            return False
        given: dict[str, set[str]] = {}
        for value, source in phi.incoming:
            given.setdefault(self.region[source], set()).add(value)
        if any(len(values) > 1 for values in given.values()):
            return False
        if label in self.loops:
            return len(given) == 2
        return label not in self.masked and not self.masked & given.keys()
