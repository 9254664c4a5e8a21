"""Writes the regions of a loop over lanes as loops over lanes of their own, within the loops that were inside of it.

A value that a region gives to another one goes through the stack: an array with an element for each lane, or one number if it is the same
for all lanes. LLVM keeps the latter in registers. Addresses are computed again, so that LLVM sees neighbouring lanes read neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from warprun.kernels.lane_code import NAME, Block, Instruction
from warprun.kernels.lane_regions import END, Regions, Stays

LANES = 64
"""Most lanes of a tile."""
MARK = "@llvm.sideeffect("
"""Call that marks the body of a loop over lanes."""
_AGAIN = {"getelementptr", "add", "sub", "mul", "shl", "or", "sext", "zext", "trunc"}
"""Instructions of addresses."""
_DROPPED = (MARK, "@llvm.experimental.noalias.scope.decl(", "@llvm.lifetime.")
_MEMORY = {"load", "store", "call"}
_BRANCH = re.compile(r"br i1 (%\S+), label (%\S+?), label (%\S+?)(?:,|$)")
"""A branch of two ways: its condition and where they lead."""


def suffixed(name: str, suffix: str) -> str:
    """Return a name with a suffix, within its quotes if it has any."""
    return f'{name[:-1]}{suffix}"' if name.endswith('"') else name + suffix


class Metadata:
    """Nodes of metadata at the end of a module."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.lines: list[str] = []

    def add(self, text: str) -> str:
        """Add a node and return its number; SELF stands for it."""
        number = f"!{self.first + len(self.lines)}"
        self.lines.append(f"{number} = {text.replace('SELF', number)}")
        return number

    def loop(self, access: str, place: str) -> str:
        """Return the node of a loop over lanes: no two lanes depend on each other by the accesses to memory of the group `access`.

        `place` is the node of its line in the source, for LLVM's remarks; empty if there is none.
        """
        parallel = self.add(f'!{{!"llvm.loop.parallel_accesses", {access}}}')
        return self.add(f"distinct !{{{', '.join(filter(None, ('SELF', place, parallel)))}}}")


class Counter:
    """How a loop over lanes counts: the lane, the one after it, and the condition of its last branch."""

    def __init__(self, blocks: dict[str, Block], header: str, latch: str) -> None:
        phis = blocks[header].phis
        end = blocks[latch].end
        if len(phis) != 1 or phis[0].type != "i64":
            raise Stays("a value is carried from one lane to the next")
        self.lane, self.latch = phis[0].name, latch
        begin, following = (next(v for v, of in phis[0].incoming if (of == latch) == back) for back in (False, True))
        made = {each.name: each for block in blocks.values() for each in block.instructions if each.name}
        condition = _BRANCH.match(end.text)
        if begin != "0" or following not in made or not condition or not re.search(r" i64 \S+, 1\b", made[following].text):
            raise Stays("it does not count lanes one by one")
        compared = made.get(condition[1])
        if compared is None or compared.opcode != "icmp" or set(compared.operands) & (made.keys() - {self.lane, following}):
            raise Stays("it does not count lanes one by one")
        self.following, self.condition = made[following], compared
        self.stays = [condition[2], condition[3]].index(header) == 0
        self.out = condition[3] if self.stays else condition[2]
        place = re.search(r"!dbg (!\d+)", end.text)
        self.place = place[1] if place else ""
        """Metadata of the line in the source of the kernel."""


class Writer:
    """Writes the blocks in place of one loop over lanes."""

    def __init__(self, regions: Regions, counter: Counter, prefix: str, metadata: Metadata) -> None:
        self.r, self.counter, self.prefix = regions, counter, prefix
        self.metadata, self.access = metadata, metadata.add("distinct !{}")
        self.numbers = {cut: n for n, cut in enumerate(regions.members)}
        self.number = "i8" if len(self.numbers) < 128 else "i32"
        """Type of the number of a region: a register holds those of all lanes."""
        self.allocas: dict[str, str] = {}
        self.last = f"%{prefix}.last"
        self.lines: list[str] = []
        self.shared = {name for cut in regions.members for name in self._foreign(cut)}
        self.place = self._places_of_phis()
        """Phi behind a loop -> the phi at its header in whose slot it is; lanes need no copy of a value that they leave the loop with."""

    def write(self) -> list[str]:
        """Return the blocks."""
        for cut in self.r.members:
            if cut in self.r.masked and cut in self.r.loops:
                self._any(cut)
            self._region(cut)
        self._label(self.last)
        self._line(f"br label {self.counter.out}")
        return self.lines

    # Text -----------------------------------------------------------------------------------------------------------------

    def _label(self, label: str) -> None:
        self.lines.append(f"{label[1:]}:")

    def _line(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def _slot(self, name: str) -> str:
        """Return the place on the stack of a value; that of the second half of a number of 64 bits has the same name with `.high`."""
        name = self.place.get(name, name)
        slot = suffixed(name, f".{self.prefix}.slot")
        parts = [slot, suffixed(slot, ".high")] if self._in_halves(name) else [slot]
        kind = self._kept(name)
        self.allocas |= {part: kind if self.r.is_uniform(name) else f"[{LANES} x {kind}]" for part in parts}
        return slot

    def _type(self, name: str) -> str:
        return self.r.defined[name][1].type

    def _kept(self, name: str) -> str:
        return "i32" if self._in_halves(name) else "i8" if self._type(name) == "i1" else self._type(name)

    def _in_halves(self, name: str) -> bool:
        """Return whether a value is kept in two arrays.

        LLVM chooses so many lanes for a vector as the widest numbers that a loop loads and stores fit into a register, and every integer of
        Python has 64 bits.
        """
        return self._type(name) == "i64" and not self.r.is_uniform(name)

    def _access(self) -> str:
        return f", !llvm.access.group {self.access}"

    def _at(self, name: str, slot: str, unique: str, lane: str) -> str:
        """Return the address of a value in its slot, and what the access to it is marked with; `unique` is a new name."""
        if self.r.is_uniform(name):
            return slot
        self._line(f"{unique} = getelementptr inbounds {self._kept(name)}, ptr {slot}, i64 {lane}")
        return f"{unique}{self._access()}"

    def _load(self, name: str, at: str, lane: str) -> None:
        """Write the load of a value of another region to the name `at`."""
        slot, kind, new = self._slot(name), self._kept(name), partial(suffixed, at)
        place = self._at(name, slot, new(".at"), lane)
        if self._in_halves(name):
            second = self._at(name, suffixed(slot, ".high"), new(".high.at"), lane)
            for half, where in (("low", place), ("high", second)):
                self._line(f"{new(f'.{half}')} = load i32, ptr {where}")
                self._line(f"{new(f'.{half}.wide')} = zext i32 {new(f'.{half}')} to i64")
            self._line(f"{new('.shifted')} = shl i64 {new('.high.wide')}, 32")
            self._line(f"{at} = or i64 {new('.shifted')}, {new('.low.wide')}")
        elif self._type(name) == "i1":
            self._line(f"{new('.byte')} = load i8, ptr {place}")
            self._line(f"{at} = trunc i8 {new('.byte')} to i1")
        else:
            self._line(f"{at} = load {kind}, ptr {place}")

    def _store(self, name: str, value: str, unique: str, lane: str) -> None:
        """Write the store of `value` as that of `name`; `unique` is a new name."""
        slot, kind, new = self._slot(name), self._kept(name), partial(suffixed, unique)
        place = self._at(name, slot, new(".at"), lane)
        if self._in_halves(name):
            second = self._at(name, suffixed(slot, ".high"), new(".high.at"), lane)
            self._line(f"{new('.shifted')} = lshr i64 {value}, 32")
            for half, of, where in (("low", value, place), ("high", new(".shifted"), second)):
                self._line(f"{new(f'.{half}')} = trunc i64 {of} to i32")
                self._line(f"store i32 {new(f'.{half}')}, ptr {where}")
            return
        if self._type(name) == "i1":
            self._line(f"{new('.byte')} = zext i1 {value} to i8")
            value = new(".byte")
        self._line(f"store {kind} {value}, ptr {place}")

    # Values ---------------------------------------------------------------------------------------------------------------

    def _needs(self, cut: str) -> Iterator[str]:
        """Yield the names that a region reads."""
        for label in self.r.members[cut]:
            block = self.r.blocks[label]
            for each in block.instructions:
                if each.opcode == "phi":
                    if label == cut:
                        continue
                    yield from (value for value, _ in each.incoming)
                elif not any(dropped in each.text for dropped in _DROPPED):
                    yield from each.operands
            for following in self.r.inside[label]:
                if following != END and self.r.is_cut(following):
                    for phi in self.r.blocks[following].phis:
                        yield from (value for value, source in phi.incoming if source == label)

    def _recomputed(self, name: str) -> bool:
        """Return whether a value is an address, or part of one, that each region computes by itself."""
        made = self.r.defined[name][1]
        if name == self.r.lane:
            return True
        if self.r.is_uniform(name) or made.opcode not in _AGAIN:
            return False
        return all(self.r.is_uniform(each) or self._recomputed(each) for each in made.operands)

    def _foreign(self, cut: str) -> list[str]:
        """Return the values of other regions that a region reads, each after those that it is computed from."""
        found: list[str] = []

        def add(name: str) -> None:
            if name not in self.r.defined or name in found or name == self.r.lane or self.r.region[self.r.defined[name][0]] == cut:
                return
            if self._recomputed(name):
                for each in self.r.defined[name][1].operands:
                    add(each)
            found.append(name)

        for name in self._needs(cut):
            add(name)
        return found

    def _places_of_phis(self) -> dict[str, str]:
        """Return phis behind loops that can be in the slot of a phi of the loop's header, with the latter.

        A lane writes such a phi when it leaves the loop, and reads it at once, before it comes to the header again.
        """
        r, found = self.r, dict[str, str]()
        for header, labels in r.loops.items():
            behind = {each for label in labels for each in r.inside[label]} - labels - {END}
            for phi in r.blocks[header].phis:
                for each in (other for label in sorted(behind) for other in r.blocks[label].phis):
                    place = found.get(phi.name, phi.name)
                    together = [place, *(name for name, of in found.items() if of == place), each.name]
                    if each.name not in found and self._can_follow(each, phi, header) and self._agree(together):
                        found[each.name] = place
        return found

    def _can_follow(self, behind: Instruction, phi: Instruction, header: str) -> bool:
        """Return whether a phi behind a loop is written only by lanes that no longer need `phi`, and needed by one region only."""
        r = self.r
        if behind.name in self.shared or r.is_uniform(behind.name) or r.is_uniform(phi.name) or behind.type != phi.type:
            return False
        # Lanes may prepare a way out and yet stay.
        leaving = (source for value, source in behind.incoming if source in r.loops[header] and value != phi.name)
        return all(set(r.inside[source]) & r.loops[header] <= {header} for source in leaving)

    def _agree(self, phis: Iterable[str]) -> bool:
        """Return whether each block gives the same value to all of the phis to which it gives one."""
        given: dict[str, str] = {}
        return all(given.setdefault(source, value) == value for each in phis for value, source in self.r.defined[each][1].incoming)

    # A region -------------------------------------------------------------------------------------------------------------

    def _region(self, cut: str) -> None:
        r, p = self.r, f"%{self.prefix}.{self.numbers[cut]}"
        foreign = self._foreign(cut)
        names = {name: suffixed(name, f".{p[1:]}") for name in foreign} | {r.lane: f"{p}.lane"}
        self._label(cut)
        self._uniform_part(cut, [name for name in foreign if r.is_uniform(name)], names)
        self._line(f"br label {p}.lanes")
        self._label(f"{p}.lanes")
        self._line(f"{p}.lane = phi i64 [ 0, {cut} ], [ {p}.lane.next, {p}.next ]")
        for name in foreign:
            if not r.is_uniform(name):
                if self._recomputed(name):
                    self._line(_renamed(r.defined[name][1].text, names))
                else:
                    self._load(name, names[name], f"{p}.lane")
        for phi in r.blocks[cut].phis:
            if not r.is_uniform(phi.name):
                self._load(phi.name, phi.name, f"{p}.lane")
        self.chosen = self._chosen(cut)
        for n, name in enumerate(self.chosen):
            self._load(name, f"{p}.old{n}", f"{p}.lane")
        self.ways: dict[str, tuple[dict[str, str], str]] = {}
        self._enter(cut, p)
        for label in r.members[cut]:
            self._block(cut, label, names, p)
        self._label(f"{p}.next")
        self._leave(cut, p)
        self._count(p, f"{p}.lanes", f"{p}.done")
        self._label(f"{p}.done")
        self._choose(cut, names, p)

    def _uniform_part(self, cut: str, foreign: Iterable[str], names: dict[str, str]) -> None:
        """Write what is the same for all lanes, once."""
        for name in foreign:
            self._load(name, names[name], "0")
        for label in self.r.members[cut]:
            for each in self.r.blocks[label].instructions:
                if not each.name or not self.r.is_uniform(each.name):
                    continue
                if each.opcode == "phi":
                    self._load(each.name, each.name, "0")
                    continue
                self._line(_renamed(each.text, names))
                if each.name in self.shared:
                    self._store(each.name, each.name, suffixed(each.name, f".{self.prefix}.kept"), "0")

    def _enter(self, cut: str, p: str) -> None:
        """Write the branch into the region, past it for lanes that are elsewhere."""
        if cut not in self.r.masked:
            self._line(f"br label {suffixed(cut, '.body')}")
            return
        self._here(cut, p)
        self._line(f"br i1 {p}.here, label {suffixed(cut, '.body')}, label {p}.next")

    def _chosen(self, cut: str) -> list[str]:
        """Return the phis of the next regions whose value depends on the way by which a lane leaves a region."""
        r, found = self.r, []
        for label in r.members[cut]:
            following = [each for each in r.inside[label] if r.is_cut(each)]
            if not self._all_edges(cut, label):
                following = [target for _, target in self._decided(label) or ()] or following
                found += [phi.name for each in following if each != END for phi in r.blocks[each].phis if not r.is_uniform(phi.name)]
        return list(dict.fromkeys(self.place.get(each, each) for each in found))

    def _leave(self, cut: str, p: str) -> None:
        """Write what a lane leaves behind, whichever way it goes: without a branch, so that LLVM needs no masks."""
        ways = self.ways | ({f"{p}.lanes": ({}, f"{p}.place")} if cut in self.r.masked else {})
        phis = []
        for n, name in enumerate(self.chosen):
            given = ", ".join(f"[ {values.get(name, f'{p}.old{n}')}, {way} ]" for way, (values, _) in ways.items())
            self._line(f"{p}.new{n} = phi {self._type(name)} {given}")
            phis.append((name, f"{p}.new{n}"))
        if self._notes(cut) and ways:
            given = ", ".join(f"[ {place}, {way} ]" for way, (_, place) in ways.items())
            self._line(f"{p}.then = phi {self.number} {given}")
            self._line(f"{p}.then.at = getelementptr inbounds {self.number}, ptr {self._places()}, i64 {p}.lane")
            self._line(f"store {self.number} {p}.then, ptr {p}.then.at{self._access()}")
        for name, value in phis:
            self._store(name, value, value, f"{p}.lane")

    def _block(self, cut: str, label: str, names: dict[str, str], p: str) -> None:
        r = self.r
        block, inside = r.blocks[label], r.inside[label]
        own = names | {each: suffixed(each, ".body") for each in r.members[cut]}
        edges = {each: f"{p}.edge{self.numbers.get(each, '')}.{r.members[cut].index(label)}" for each in inside if r.is_cut(each)}
        self._label(suffixed(label, ".body"))
        for each in block.instructions[:-1]:
            if any(dropped in each.text for dropped in _DROPPED) or (each.name and r.is_uniform(each.name)):
                continue
            if each.opcode == "phi" and label == cut:
                continue
            self._line(_renamed(each.text, own) + (self._access() if each.opcode in _MEMORY else ""))
        for each in block.instructions[:-1]:
            stored = each.name in self.shared and not r.is_uniform(each.name) and not self._recomputed(each.name)
            if stored and not (each.opcode == "phi" and label == cut):
                self._store(each.name, each.name, suffixed(each.name, f".{self.prefix}.kept"), f"{p}.lane")
        together = self._all_edges(cut, label)
        decided = None if together else self._decided(label)
        if decided:
            self._select(cut, label, decided, names, p)
            return
        self._line(f"br label {next(iter(edges.values()))}" if together else _renamed(block.end.text, own | edges))
        ends = [*list(edges.values())[1:], f"{p}.next"] if together else [f"{p}.next"] * len(edges)
        self.prepared: dict[str, str] = {}
        for (target, edge), end in zip(edges.items(), ends, strict=True):
            self._edge(cut, label, target, edge, names, p)
            self._line(f"br label {end}")

    def _all_edges(self, cut: str, label: str) -> bool:
        """Return whether lanes can prepare every way out of a block: a branch that is the same for all is taken after the lanes.

        Not if one way begins the next iteration of a loop and another one stays in it, where its values are still needed.
        """
        r = self.r
        inside = r.inside[label]
        if inside == [END]:
            return True
        if self._notes(cut) or not all(r.is_cut(each) for each in inside):
            return False
        return not any(each in r.loops and other != each and other in r.loops[each] for each in inside for other in inside)

    def _decided(self, label: str) -> list[tuple[str, str]] | None:
        """Return the two ways out of its region of a block whose last branch is the same for all lanes: the last block and the target.

        None if it has no such branch, or if something is computed on a way out.
        """
        ends = _BRANCH.match(self.r.blocks[label].end.text)
        if not ends or not self.r.is_uniform(ends[1]):
            return None
        found = []
        for target in ends.groups()[1:]:
            source = label
            while not self.r.is_cut(target) and len(self.r.blocks[target].instructions) == len(self.r.inside[target]) == 1:
                source, target = target, self.r.inside[target][0]
            if not self.r.is_cut(target):
                return None
            found.append((source, target))
        return found

    def _select(self, cut: str, label: str, ways: list[tuple[str, str]], names: dict[str, str], p: str) -> None:
        """Write a branch out of a region, the same for all lanes, as selections: LLVM would make it an end of the loop over lanes."""
        ends = _BRANCH.match(self.r.blocks[label].end.text)
        assert ends
        condition, way = names.get(ends[1], ends[1]), f"{p}.decided.{self.r.members[cut].index(label)}"
        (first, here), (second, there) = ((self._given(*each, names), self._number(each[1])) for each in ways)
        self._line(f"br label {way}")
        self._label(way)
        values: dict[str, str] = {}
        for name in dict.fromkeys([*first, *second]):
            values[name] = f"{way}.{len(values)}"
            kind, kept = self._type(name), f"{p}.old{self.chosen.index(name)}"
            given = f"{kind} {first.get(name, kept)}, {kind} {second.get(name, kept)}"
            self._line(f"{values[name]} = select i1 {condition}, {given}")
        self._line(f"{way}.then = select i1 {condition}, {self.number} {here}, {self.number} {there}")
        self.ways[way] = values, f"{way}.then"
        self._line(f"br label {p}.next")

    def _given(self, label: str, target: str, names: dict[str, str]) -> dict[str, str]:
        """Return the values that a region begins with for lanes that come from a block, by the phi in whose slot they are."""
        found: dict[str, str] = {}
        for phi in () if target == END else self.r.blocks[target].phis:
            if not self.r.is_uniform(phi.name):
                value = next(value for value, source in phi.incoming if source == label)
                found[self.place.get(phi.name, phi.name)] = names.get(value, value)
        return found

    def _number(self, target: str) -> str:
        """Return what a lane notes that goes to a region."""
        return str(self.numbers[target] if target in self.r.masked else -1)

    def _edge(self, cut: str, label: str, target: str, edge: str, names: dict[str, str], p: str) -> None:
        """Write what a lane does that leaves a region: keep the values that the next one begins with, or note them for `_leave`."""
        self._label(edge)
        values = self._given(label, target, names)
        if self._all_edges(cut, label):
            for n, (name, value) in enumerate(values.items()):
                if name not in self.prepared and name not in self.chosen:
                    self._store(name, value, f"{edge}.{n}", f"{p}.lane")
            self.prepared |= values
            # `_leave` writes what depends on the way, by which it may also be left elsewhere in the region.
            values = {name: value for name, value in self.prepared.items() if name in self.chosen}
        if not self._all_edges(cut, label) or self._last_edge(label, target):
            self.ways[edge] = values, self._number(target)

    def _last_edge(self, label: str, target: str) -> bool:
        """Return whether an edge is the one from which lanes go on, of those that all of them prepare."""
        return self.r.inside[label][-1] == target

    def _notes(self, cut: str) -> bool:
        """Return whether lanes note where they go from a region."""
        return cut in self.r.masked or bool(self.r.masked & set(self.r.targets(cut)))

    # Control --------------------------------------------------------------------------------------------------------------

    def _choose(self, cut: str, names: dict[str, str], p: str) -> None:
        """Write which region runs after one."""
        r = self.r
        following = r.then.get((r.home[cut], cut))
        if following is not None:
            for target in r.targets(cut):
                self._begin(cut, target, names, p)
            self._line(f"br label {self._entry(following)}")
            return
        joins, inside = r.joins(cut), r.graph(cut)

        def way(node: str) -> str:
            while not node.startswith(">") and (len(inside[node]) == 1 or not joins[node].startswith("%any")):
                node = inside[node][0] if len(inside[node]) == 1 else joins[node]
            return f"{p}.to{self.numbers.get(node[1:], '')}" if node.startswith(">") else suffixed(node, ".choose")

        self._line(f"br label {way(cut)}")
        for label in r.choices(cut):
            self._label(suffixed(label, ".choose"))
            ways = {each: way(f">{each}" if r.is_cut(each) else each) for each in r.inside[label]}
            self._line(_renamed(r.blocks[label].end.text, names | ways))
        for target in r.targets(cut):
            self._label(f"{p}.to{self.numbers.get(target, '')}")
            self._begin(cut, target, names, p)
            self._line(f"br label {self._entry(target)}")

    def _begin(self, cut: str, target: str, names: dict[str, str], p: str) -> None:
        """Write the uniform values that a region begins with if another one comes before it."""
        for n, phi in enumerate(() if target == END else self.r.blocks[target].phis):
            if self.r.is_uniform(phi.name):
                value = next(value for value, source in phi.incoming if self.r.region[source] == cut)
                self._store(phi.name, names.get(value, value), f"{p}.begin{self.numbers[target]}.{n}", "0")

    def _entry(self, target: str) -> str:
        """Return the label with which a region, or the loop that it begins, starts."""
        if target == END:
            return self.last
        return suffixed(target, ".any") if target in self.r.loops and target in self.r.masked else target

    def _any(self, header: str) -> None:
        """Write the head of a masked loop: run it while a lane is at its beginning."""
        p, start = f"%{self.prefix}.any{self.numbers[header]}", suffixed(header, ".any")
        self._label(start)
        self._line(f"br label {p}.lanes")
        self._label(f"{p}.lanes")
        self._line(f"{p}.lane = phi i64 [ 0, {start} ], [ {p}.lane.next, {p}.lanes ]")
        self._line(f"{p}.found = phi {self.number} [ 0, {start} ], [ {p}.either, {p}.lanes ]")
        self._here(header, p)
        self._line(f"{p}.one = zext i1 {p}.here to {self.number}")
        self._line(f"{p}.either = or {self.number} {p}.found, {p}.one")
        self._count(p, f"{p}.lanes", f"{p}.done")
        self._label(f"{p}.done")
        self._line(f"{p}.some = icmp ne {self.number} {p}.either, 0")
        self._line(f"br i1 {p}.some, label {header}, label {self._entry(self.r.then[self.r.parent[header], header])}")

    def _places(self) -> str:
        """Return the array of the region that each lane runs next."""
        self.allocas[f"%{self.prefix}.places"] = f"[{LANES} x {self.number}]"
        return f"%{self.prefix}.places"

    def _here(self, cut: str, p: str) -> None:
        """Write whether a lane runs a region next."""
        self._line(f"{p}.at = getelementptr inbounds {self.number}, ptr {self._places()}, i64 {p}.lane")
        self._line(f"{p}.place = load {self.number}, ptr {p}.at{self._access()}")
        self._line(f"{p}.here = icmp eq {self.number} {p}.place, {self.numbers[cut]}")

    def _count(self, p: str, again: str, out: str) -> None:
        """Write the end of a loop over lanes."""
        c = self.counter
        names = {c.lane: f"{p}.lane", c.following.name: f"{p}.lane.next", c.condition.name: f"{p}.more"}
        self._line(f"{p}.lane.next = add nuw nsw i64 {p}.lane, 1")
        self._line(_renamed(c.condition.text, names))
        first, second = (again, out) if c.stays else (out, again)
        self._line(f"br i1 {p}.more, label {first}, label {second}, !llvm.loop {self.metadata.loop(self.access, c.place)}")


def incoming_from(text: str, labels: Mapping[str, str]) -> str:
    """Return the text of a phi with other labels of the blocks before it."""
    return re.sub(r", (%(?:\"[^\"]*\"|[-\w.$]+)) \]", lambda found: f", {labels.get(found[1], found[1])} ]", text)


def _renamed(text: str, names: dict[str, str]) -> str:
    return NAME.sub(lambda found: names.get(found[0], found[0]), text)
