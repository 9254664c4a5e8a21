"""Writes the regions of a loop over lanes as loops over lanes of their own, within the loops that were inside of it.

A region with the cut `%b` becomes

    b:            what is the same for all lanes, once
    b.lanes:      for each lane: load what other regions have left; if the region is masked, skip lanes elsewhere
    b.body ...    the blocks of the region; what other regions read is stored
    edge ...      by each way out: what the next region begins with
    next:         store what depends on the way, and where the lane goes if that is masked; next lane
    done:         the host of all lanes branches to the next region

(`_Region`), and a masked loop gets a head (`Writer._any`) that runs it while a lane is at its beginning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from warprun.kernels.lane_regions import END, NAME, Block, Instruction, Regions, Stays
from warprun.kernels.lane_values import DROPPED, LANES, Values, suffixed

_MEMORY = {"load", "store", "call"}
_BRANCH = re.compile(r"br i1 (%\S+), label (%\S+?), label (%\S+?)(?:,|$)")
"""A branch of two ways: its condition and where they lead."""


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Return an instruction in which other names stand for values and labels."""
    return NAME.sub(lambda found: names.get(found[0], found[0]), text)


class Metadata:
    """Nodes of metadata at the end of a module; `first` is the first number that is free."""

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
    """How a loop over lanes counts: the lane, the one after it, and the condition of its last branch. Raises Stays."""

    def __init__(self, blocks: dict[str, Block], header: str, latch: str) -> None:
        phis, end = blocks[header].phis, blocks[latch].end
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
        self.r, self.counter, self.prefix, self.metadata = regions, counter, prefix, metadata
        self.access = metadata.add("distinct !{}")
        self.values = Values(regions, prefix, self.access)
        self.numbers = {cut: n for n, cut in enumerate(regions.members)}
        self.number = "i8" if len(self.numbers) < 128 else "i32"
        """Type of the number of a region: a register holds those of all lanes."""
        self.places = f"%{prefix}.places"
        """Array of the number of the region that each lane runs next."""
        self.last = f"%{prefix}.last"
        self.lines: list[str] = []

    def write(self) -> list[str]:
        """Return the blocks."""
        for cut in self.r.members:
            if cut in self.r.masked and cut in self.r.loops:
                self._any(cut)
            _Region(self, cut).write()
        self.block(self.last, f"br label {self.counter.out}")
        return self.lines

    def block(self, label: str, *instructions: str) -> None:
        """Begin a block."""
        self.lines.append(f"{label[1:]}:")
        self.add(*instructions)

    def add(self, *instructions: str) -> None:
        """Add instructions to the block that was begun last."""
        self.lines += [f"  {each}" for each in instructions]

    def entry(self, target: str) -> str:
        """Return the label with which a region, or the loop that it begins, starts."""
        if target == END:
            return self.last
        return suffixed(target, ".any") if target in self.r.loops and target in self.r.masked else target

    def here(self, cut: str, p: str) -> None:
        """Write whether a lane runs a region next."""
        self.values.allocas[self.places] = f"[{LANES} x {self.number}]"
        self.add(
            f"{p}.at = getelementptr inbounds {self.number}, ptr {self.places}, i64 {p}.lane",
            f"{p}.place = load {self.number}, ptr {p}.at{self.values.access}",
            f"{p}.here = icmp eq {self.number} {p}.place, {self.numbers[cut]}",
        )

    def count(self, p: str) -> None:
        """Write the end of a loop over lanes, which begins at `p`.lanes and continues at `p`.done."""
        c = self.counter
        names = {c.lane: f"{p}.lane", c.following.name: f"{p}.lane.next", c.condition.name: f"{p}.more"}
        first, second = (f"{p}.lanes", f"{p}.done") if c.stays else (f"{p}.done", f"{p}.lanes")
        loop = self.metadata.loop(self.access, c.place)
        self.add(
            f"{p}.lane.next = add nuw nsw i64 {p}.lane, 1",
            renamed(c.condition.text, names),
            f"br i1 {p}.more, label {first}, label {second}, !llvm.loop {loop}",
        )

    def _any(self, header: str) -> None:
        """Write the head of a masked loop: run it while a lane is at its beginning."""
        p, start, kind = f"%{self.prefix}.any{self.numbers[header]}", self.entry(header), self.number
        self.block(start, f"br label {p}.lanes")
        self.block(f"{p}.lanes", f"{p}.lane = phi i64 [ 0, {start} ], [ {p}.lane.next, {p}.lanes ]")
        self.add(f"{p}.found = phi {kind} [ 0, {start} ], [ {p}.either, {p}.lanes ]")
        self.here(header, p)
        self.add(f"{p}.one = zext i1 {p}.here to {kind}", f"{p}.either = or {kind} {p}.found, {p}.one")
        self.count(p)
        out = self.entry(self.r.then[self.r.parent[header], header])
        self.block(f"{p}.done", f"{p}.some = icmp ne {kind} {p}.either, 0", f"br i1 {p}.some, label {header}, label {out}")


class _Region:
    """Writes one region; `p` begins the names of its own values and labels."""

    def __init__(self, loop: Writer, cut: str) -> None:
        self.loop, self.r, self.values, self.cut = loop, loop.r, loop.values, cut
        self.labels = loop.r.members[cut]
        self.p = p = f"%{loop.prefix}.{loop.numbers[cut]}"
        self.lane = f"{p}.lane"
        self.names = {name: suffixed(name, f".{p[1:]}") for name in loop.values.foreign[cut]} | {loop.r.lane: self.lane}
        self.notes = cut in loop.r.masked or bool(loop.r.masked & set(loop.r.targets(cut)))
        """Whether lanes note where they go."""
        self.chosen = self._chosen()
        """The phis of the next regions whose value depends on the way by which a lane leaves."""
        self.ways: dict[str, tuple[dict[str, str], str]] = {}
        """Block from which lanes leave -> what it gives to `chosen`, and the number of the region where they go."""

    def write(self) -> None:
        """Write the region."""
        r, p, loop = self.r, self.p, self.loop
        loop.block(self.cut)
        self._uniform_part()
        loop.add(f"br label {p}.lanes")
        loop.block(f"{p}.lanes", f"{self.lane} = phi i64 [ 0, {self.cut} ], [ {self.lane}.next, {p}.next ]")
        for name in self.values.foreign[self.cut]:
            if self.values.recomputed(name):
                loop.add(renamed(r.defined[name][1].text, self.names))
            elif not r.is_uniform(name):
                self._load(name, self.names[name])
        for phi in r.blocks[self.cut].phis:
            if not r.is_uniform(phi.name):
                self._load(phi.name, phi.name)
        for n, name in enumerate(self.chosen):
            self._load(name, f"{p}.old{n}")
        self._enter()
        for label in self.labels:
            self._block(label)
        loop.block(f"{p}.next")
        self._leave()
        loop.count(p)
        loop.block(f"{p}.done")
        self._choose()

    def _load(self, name: str, at: str, lane: str = "") -> None:
        self.loop.add(*self.values.load(name, at, lane or self.lane))

    def _store(self, name: str, value: str, unique: str, lane: str = "") -> None:
        self.loop.add(*self.values.store(name, value, unique, lane or self.lane))

    def _kept(self, name: str, lane: str = "") -> None:
        """Write the store of a value of this region that others read."""
        self._store(name, name, suffixed(name, f".{self.loop.prefix}.kept"), lane)

    def _uniform_part(self) -> None:
        """Write what is the same for all lanes, once."""
        r = self.r
        for name in self.values.foreign[self.cut]:
            if r.is_uniform(name):
                self._load(name, self.names[name], "0")
        for each in (made for label in self.labels for made in r.blocks[label].instructions if made.name and r.is_uniform(made.name)):
            if each.opcode == "phi":
                self._load(each.name, each.name, "0")
                continue
            self.loop.add(renamed(each.text, self.names))
            if each.name in self.values.shared:
                self._kept(each.name, "0")

    def _enter(self) -> None:
        """Write the branch into the region, past it for lanes that are elsewhere."""
        body = suffixed(self.cut, ".body")
        if self.cut in self.r.masked:
            self.loop.here(self.cut, self.p)
            self.loop.add(f"br i1 {self.p}.here, label {body}, label {self.p}.next")
        else:
            self.loop.add(f"br label {body}")

    def _block(self, label: str) -> None:
        """Write a block, and what lanes do on each way from it out of the region."""
        r, p, block, inside = self.r, self.p, self.r.blocks[label], self.r.inside[label]
        own = self.names | {each: suffixed(each, ".body") for each in self.labels}
        self.loop.block(suffixed(label, ".body"))
        for each in (written := [each for each in block.instructions[:-1] if self._varies(label, each)]):
            self.loop.add(renamed(each.text, own) + (self.values.access if each.opcode in _MEMORY else ""))
        for each in written:
            if each.name in self.values.shared and not self.values.recomputed(each.name):
                self._kept(each.name)
        together = self._prepares_all(label)
        decided = None if together else self._decided(label)
        if decided:
            self._select(label, decided)
            return
        edges = {each: f"{p}.edge{self.loop.numbers.get(each, '')}.{self.labels.index(label)}" for each in inside if r.is_cut(each)}
        self.loop.add(f"br label {next(iter(edges.values()))}" if together else renamed(block.end.text, own | edges))
        prepared: dict[str, str] = {}
        for target, edge in edges.items():
            values = self._given(label, target)
            self.loop.block(edge)
            if together:
                for n, (name, value) in enumerate(values.items()):
                    if name not in prepared and name not in self.chosen:
                        self._store(name, value, f"{edge}.{n}")
                prepared |= values
                # `_leave` writes what depends on the way, by which it may also be left elsewhere in the region.
                values = {name: value for name, value in prepared.items() if name in self.chosen}
            last = target == inside[-1]
            if last or not together:
                self.ways[edge] = values, self._number(target)
            self.loop.add(f"br label {edges[inside[inside.index(target) + 1]] if together and not last else f'{p}.next'}")

    def _varies(self, label: str, each: Instruction) -> bool:
        """Return whether each lane computes an instruction by itself."""
        if any(dropped in each.text for dropped in DROPPED) or (each.opcode == "phi" and label == self.cut):
            return False
        return not each.name or not self.r.is_uniform(each.name)

    def _prepares_all(self, label: str) -> bool:
        """Return whether lanes can prepare every way out of a block: a branch that is the same for all is taken after the lanes.

        Not if one way begins the next iteration of a loop and another one stays in it, where its values are still needed.
        """
        r, inside = self.r, self.r.inside[label]
        if inside == [END]:
            return True
        if self.notes or not all(r.is_cut(each) for each in inside):
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

    def _select(self, label: str, ways: list[tuple[str, str]]) -> None:
        """Write a branch out of a region, the same for all lanes, as selections: LLVM would make it an end of the loop over lanes."""
        ends = _BRANCH.match(self.r.blocks[label].end.text)
        assert ends
        condition, way = self.names.get(ends[1], ends[1]), f"{self.p}.decided.{self.labels.index(label)}"
        (first, here), (second, there) = ((self._given(*each), self._number(each[1])) for each in ways)
        self.loop.add(f"br label {way}")
        self.loop.block(way)
        values: dict[str, str] = {}
        for name in dict.fromkeys([*first, *second]):
            values[name] = f"{way}.{len(values)}"
            kind, kept = self.values.type(name), f"{self.p}.old{self.chosen.index(name)}"
            given = f"{kind} {first.get(name, kept)}, {kind} {second.get(name, kept)}"
            self.loop.add(f"{values[name]} = select i1 {condition}, {given}")
        self.loop.add(f"{way}.then = select i1 {condition}, {self.loop.number} {here}, {self.loop.number} {there}")
        self.ways[way] = values, f"{way}.then"
        self.loop.add(f"br label {self.p}.next")

    def _chosen(self) -> list[str]:
        found: list[str] = []
        for label in self.labels:
            if not self._prepares_all(label):
                following = [target for _, target in self._decided(label) or ()] or filter(self.r.is_cut, self.r.inside[label])
                found += [phi.name for each in following for phi in self.r.phis(each) if not self.r.is_uniform(phi.name)]
        return list(dict.fromkeys(self.values.place.get(each, each) for each in found))

    def _given(self, label: str, target: str) -> dict[str, str]:
        """Return the values that a region begins with for lanes that come from a block, by the phi in whose slot they are."""
        found: dict[str, str] = {}
        for phi in self.r.phis(target):
            if not self.r.is_uniform(phi.name):
                value = next(value for value, source in phi.incoming if source == label)
                found[self.values.place.get(phi.name, phi.name)] = self.names.get(value, value)
        return found

    def _number(self, target: str) -> str:
        """Return what a lane notes that goes to a region."""
        return str(self.loop.numbers[target] if target in self.r.masked else -1)

    def _leave(self) -> None:
        """Write what a lane leaves behind, whichever way it goes: without a branch, so that LLVM needs no masks."""
        p, number = self.p, self.loop.number
        ways = self.ways | ({f"{p}.lanes": ({}, f"{p}.place")} if self.cut in self.r.masked else {})
        for n, name in enumerate(self.chosen):
            given = ", ".join(f"[ {values.get(name, f'{p}.old{n}')}, {way} ]" for way, (values, _) in ways.items())
            self.loop.add(f"{p}.new{n} = phi {self.values.type(name)} {given}")
        if self.notes and ways:
            self.values.allocas[self.loop.places] = f"[{LANES} x {number}]"
            given = ", ".join(f"[ {place}, {way} ]" for way, (_, place) in ways.items())
            self.loop.add(
                f"{p}.then = phi {number} {given}",
                f"{p}.then.at = getelementptr inbounds {number}, ptr {self.loop.places}, i64 {self.lane}",
                f"store {number} {p}.then, ptr {p}.then.at{self.values.access}",
            )
        for n, name in enumerate(self.chosen):
            self._store(name, f"{p}.new{n}", f"{p}.new{n}")

    def _choose(self) -> None:
        """Write which region runs next: the one that follows a masked one, or the one that lanes leave for together."""
        r, p = self.r, self.p
        following = r.then.get((r.home[self.cut], self.cut))
        if following is not None:
            for target in r.targets(self.cut):
                self._begin(target)
            self.loop.add(f"br label {self.loop.entry(following)}")
            return
        joins, inside = r.joins(self.cut), r.graph(self.cut)

        def way(node: str) -> str:
            while not node.startswith(">") and (len(inside[node]) == 1 or not joins[node].startswith("%any")):
                node = inside[node][0] if len(inside[node]) == 1 else joins[node]
            return f"{p}.to{self.loop.numbers.get(node[1:], '')}" if node.startswith(">") else suffixed(node, ".choose")

        self.loop.add(f"br label {way(self.cut)}")
        for label in r.choices(self.cut):
            ways = {each: way(f">{each}" if r.is_cut(each) else each) for each in r.inside[label]}
            self.loop.block(suffixed(label, ".choose"), renamed(r.blocks[label].end.text, self.names | ways))
        for target in r.targets(self.cut):
            self.loop.block(f"{p}.to{self.loop.numbers.get(target, '')}")
            self._begin(target)
            self.loop.add(f"br label {self.loop.entry(target)}")

    def _begin(self, target: str) -> None:
        """Write the uniform values that a region begins with if this one comes before it."""
        for n, phi in enumerate(self.r.phis(target)):
            if self.r.is_uniform(phi.name):
                value = next(value for value, source in phi.incoming if self.r.region[source] == self.cut)
                self._store(phi.name, self.names.get(value, value), f"{self.p}.begin{self.loop.numbers[target]}.{n}", "0")
