"""Values that live from one region of a loop over lanes to another, and their places on the stack.

An array holds a value for each lane, and one number what is the same for all lanes: LLVM keeps that in a register.
Addresses are computed again in each region, so that LLVM sees neighbouring lanes read neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from warprun.kernels.lane_regions import Instruction, Regions

LANES = 64
"""Most lanes of a tile."""
MARK = "@llvm.sideeffect("
"""Call that marks the body of a loop over lanes."""
DROPPED = (MARK, "@llvm.experimental.noalias.scope.decl(", "@llvm.lifetime.")
"""Calls that are left out."""
ADDRESSES = {"getelementptr", "add", "sub", "mul", "shl", "or", "sext", "zext", "trunc"}
"""Instructions of addresses."""


def suffixed(name: str, suffix: str) -> str:
    """Return a name with a suffix, within its quotes if it has any."""
    return f'{name[:-1]}{suffix}"' if name.endswith('"') else name + suffix


class Values:
    """Values that live from one region of a loop to another, and their places on the stack."""

    def __init__(self, regions: Regions, prefix: str, access: str) -> None:
        self.r, self.prefix = regions, prefix
        self.access = f", !llvm.access.group {access}"
        self.allocas: dict[str, str] = {}
        """Name of a slot on the stack -> type."""
        self.foreign = {cut: self._foreign(cut) for cut in regions.members}
        """Cut -> the values of other regions that a region reads, each after those that it is computed from."""
        self.shared = {name for names in self.foreign.values() for name in names}
        self.place = self._places_of_phis()
        """Phi behind a loop -> the phi at its header in whose slot it is; lanes need no copy of a value that they leave the loop with."""

    def type(self, name: str) -> str:
        """Return the LLVM type of a value."""
        return self.r.defined[name][1].type

    def load(self, name: str, at: str, lane: str) -> list[str]:
        """Return the load of a value of another region to the name `at`."""
        slot, new = self._slot(name), partial(suffixed, at)
        place = self._address(name, slot, new(".at"), lane)
        if self._in_halves(name):
            second = self._address(name, suffixed(slot, ".high"), new(".high.at"), lane)
            lines = [*place[:-1], *second[:-1]]
            for half, where in (("low", place[-1]), ("high", second[-1])):
                lines += [f"{new(f'.{half}')} = load i32, ptr {where}", f"{new(f'.{half}.wide')} = zext i32 {new(f'.{half}')} to i64"]
            lines.append(f"{new('.shifted')} = shl i64 {new('.high.wide')}, 32")
            return [*lines, f"{at} = or i64 {new('.shifted')}, {new('.low.wide')}"]
        if self.type(name) == "i1":
            return [*place[:-1], f"{new('.byte')} = load i8, ptr {place[-1]}", f"{at} = trunc i8 {new('.byte')} to i1"]
        return [*place[:-1], f"{at} = load {self._kept(name)}, ptr {place[-1]}"]

    def store(self, name: str, value: str, unique: str, lane: str) -> list[str]:
        """Return the store of `value` as that of `name`; `unique` is a new name."""
        slot, new = self._slot(name), partial(suffixed, unique)
        place = self._address(name, slot, new(".at"), lane)
        if self._in_halves(name):
            second = self._address(name, suffixed(slot, ".high"), new(".high.at"), lane)
            lines = [*place[:-1], *second[:-1], f"{new('.shifted')} = lshr i64 {value}, 32"]
            for half, of, where in (("low", value, place[-1]), ("high", new(".shifted"), second[-1])):
                lines += [f"{new(f'.{half}')} = trunc i64 {of} to i32", f"store i32 {new(f'.{half}')}, ptr {where}"]
            return lines
        if self.type(name) == "i1":
            return [*place[:-1], f"{new('.byte')} = zext i1 {value} to i8", f"store i8 {new('.byte')}, ptr {place[-1]}"]
        return [*place[:-1], f"store {self._kept(name)} {value}, ptr {place[-1]}"]

    def _slot(self, name: str) -> str:
        """Return the place on the stack of a value; that of the second half of a number of 64 bits has the same name with `.high`."""
        name = self.place.get(name, name)
        slot = suffixed(name, f".{self.prefix}.slot")
        parts = [slot, suffixed(slot, ".high")] if self._in_halves(name) else [slot]
        kind = self._kept(name)
        self.allocas |= {part: kind if self.r.is_uniform(name) else f"[{LANES} x {kind}]" for part in parts}
        return slot

    def _address(self, name: str, slot: str, unique: str, lane: str) -> list[str]:
        """Return what computes the address of a value in its slot, and as the last item the address with the mark of the access."""
        if self.r.is_uniform(name):
            return [slot]
        return [f"{unique} = getelementptr inbounds {self._kept(name)}, ptr {slot}, i64 {lane}", f"{unique}{self.access}"]

    def _kept(self, name: str) -> str:
        return "i32" if self._in_halves(name) else "i8" if self.type(name) == "i1" else self.type(name)

    def _in_halves(self, name: str) -> bool:
        """Return whether a value is kept in two arrays.

        LLVM chooses so many lanes for a vector as the widest numbers that a loop loads and stores fit into a register, and every integer of
        Python has 64 bits.
        """
        return self.type(name) == "i64" and not self.r.is_uniform(name)

    def recomputed(self, name: str) -> bool:
        """Return whether a value is an address, or part of one, that each region computes by itself."""
        made = self.r.defined[name][1]
        if name == self.r.lane:
            return True
        if self.r.is_uniform(name) or made.opcode not in ADDRESSES:
            return False
        return all(self.r.is_uniform(each) or self.recomputed(each) for each in made.operands)

    def _foreign(self, cut: str) -> list[str]:
        found: list[str] = []

        def add(name: str) -> None:
            if name not in self.r.defined or name in found or name == self.r.lane or self.r.region[self.r.defined[name][0]] == cut:
                return
            if self.recomputed(name):
                for each in self.r.defined[name][1].operands:
                    add(each)
            found.append(name)

        for name in self._needs(cut):
            add(name)
        return found

    def _needs(self, cut: str) -> Iterator[str]:
        """Yield the names that a region reads."""
        for label in self.r.members[cut]:
            for each in self.r.blocks[label].instructions:
                if each.opcode == "phi":
                    yield from () if label == cut else (value for value, _ in each.incoming)
                elif not any(dropped in each.text for dropped in DROPPED):
                    yield from each.operands
            for following in self.r.inside[label]:
                if self.r.is_cut(following):
                    yield from (value for phi in self.r.phis(following) for value, source in phi.incoming if source == label)

    def _places_of_phis(self) -> dict[str, str]:
        """Return phis behind loops that can be in the slot of a phi of the loop's header, with the latter.

        A lane writes such a phi when it leaves the loop, and reads it at once, before it comes to the header again.
        """
        r, found = self.r, dict[str, str]()
        for header, labels in r.loops.items():
            behind = {each for label in labels for each in r.inside[label]} - labels
            for phi in r.blocks[header].phis:
                for each in (other for label in sorted(behind) for other in r.phis(label)):
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
