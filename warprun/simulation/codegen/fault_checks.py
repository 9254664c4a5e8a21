"""The statements of a step that check for numbers that are not finite and for masks that forbid every action; they call `called.py`.

`sound` is a local of the kernel: whether all checks so far have passed, in the tile (CPU) or in the environment (CUDA).
"""

from __future__ import annotations

from collections.abc import Iterator

from warprun.environment import Group
from warprun.simulation.codegen.called import all_can_act, all_finite, note_mask, note_numbers
from warprun.simulation.codegen.expressions import Expressions, choices_of
from warprun.simulation.codegen.templates import block, fill, lines, operand

FIELDS = ("action", "reward", "final observation", "observation", "mask")
"""Numbers that can have a fault, in the order in which a step writes it."""
REPLACED_FOR = ("reward", "observation", "mask")
"""Fields whose faults replace an environment. Replacing does not help if actions are not finite: they come from the policy."""

LOOK = """
# Look for faults.
$check
$agree
$note
"""

REPLACE = """
# Replace environments that are not finite.
$begin
$barrier
$check
$agree
$replace
$barrier
"""


def code_of(group: int, field: str) -> int:
    """Return the code of a field of the group with this number."""
    return 1 + len(FIELDS) * group + FIELDS.index(field)


class FaultChecks:
    """Writes the checks of a kernel."""

    def __init__(self, expressions: Expressions, keeps_final: bool) -> None:
        self.e = expressions
        self.target = expressions.target
        self.groups = expressions.groups
        self.keeps_final = keeps_final
        """Whether a time limit truncates episodes, whose final observations are kept."""

    def look_for(self, fields: tuple[str, ...]) -> str:
        """Return the statements that check the rows of `fields` and record the first fault of each environment."""
        # By field, then by group: the order of `fields` decides which fault is the first.
        notes = (self._note(field, number, group) for field in fields for number, group in enumerate(self.groups))
        return fill(LOOK, check=self._check_rows(fields), agree=self.target.agree, note=self.target.if_unsound(lines(*notes)))

    def replace(self) -> str:
        """Return the statements that end the episode of an environment with a fault in its rewards, observations or masks."""
        return fill(
            REPLACE,
            begin=self.target.per_environment("replaced[1, lane] = 0"),
            barrier=self.target.barrier,
            check=self._check_rows(REPLACED_FOR),
            agree=self.target.agree,
            replace=self.target.replace_unsound(self._check_environment(), self._end_episode()),
        )

    def _end_episode(self) -> str:
        t = self.target
        rewards = (t.actors_of(group, f"{self.e.entry(group, 'reward')} = 0.0") for group in self.groups)
        end = t.once(f"terminated[{t.at}] = True", f"truncated[{t.at}] = False", "replaced[0, lane] += 1", "replaced[1, lane] = 1")
        return lines(*rewards, end)

    # Checks ---------------------------------------------------------------------------------------------------------------

    def all_finite(self, row: str, first: str, count: str) -> str:
        """Return the check of `count` numbers of a row."""
        return f"sound &= {self.e.names.use('all_finite', all_finite)}({row}, {first}, {count})"

    def _check_rows(self, fields: tuple[str, ...]) -> str:
        """Return the checks of all environments of a kernel's body."""
        return lines(*(self.target.check(group, width, check) for group, width, check in self._checks(fields)))

    def _check_environment(self) -> str:
        """Return the checks of one environment of a tile."""
        checks = self._checks(REPLACED_FOR)
        return lines(*(fill(check, first=f"lane * {group.size * width}", actors=str(group.size)) for group, width, check in checks))

    def _checks(self, fields: tuple[str, ...]) -> Iterator[tuple[Group, int, str]]:
        """Yield each check: the group, the numbers of an actor, and a statement with placeholders for first number and actors."""
        for group in self.groups:
            for field, array, width in self._numbers(group):
                if field in fields:
                    yield group, width, self.all_finite(f"{group.name}_{array}", "$first", f"$actors * {width}")
            for begin, count in self._choices(group) if "mask" in fields else ():
                called, width = self.e.names.use("all_can_act", all_can_act), group.masked_actions
                yield group, width, f"sound &= {called}({group.name}_mask, $first, $actors, {width}, {begin}, {count})"

    # Notes ----------------------------------------------------------------------------------------------------------------

    def _note(self, field: str, number: int, group: Group) -> str:
        """Return the statements that record the first fault in a field of a group."""
        name = f"{group.name}_{field.upper().replace(' ', '_')}_FAULT"
        head = f"fault, any_fault, lane, {name}, now"
        numbers, masks = self.e.names.use("note_numbers", note_numbers), self.e.names.use("note_mask", note_mask)
        at, components, found = self.target.at, group.action.components, []
        for kind, array, width in self._numbers(group):
            if kind == field:
                stride = components if field == "action" else width
                found.append(f"{numbers}({head}, {group.name}_{array}, {self._place(group, at, width)}, {width}, {stride})")
        if field == "final observation" and self.keeps_final:
            row, width = f"{group.name}_arrays.final_obs[cuts[lane] - 1]", group.observation.size
            note = f"{numbers}({head}, {row}, {self._place(group, self.target.environment, width)}, {width}, {width})"
            found.append(block(f"if truncated[{at}]:", note))
        if field == "mask":
            width = group.masked_actions
            for n, (begin, count) in enumerate(self._choices(group)):
                first = f"{operand(at)} * {group.size * width}"
                found.append(f"{masks}({head}, {group.name}_mask, {first}, {group.size}, {width}, {begin}, {count}, {n}, {components})")
        if found:
            self.e.names.define(name, str(code_of(number, field)))
        return lines(*found)

    def _place(self, group: Group, at: str, width: int) -> str:
        """Return the first number of an environment in a row, and how many it has."""
        count = group.size * width
        return f"{operand(at)} * {count}, {count}"

    # Rows to check --------------------------------------------------------------------------------------------------------

    def _numbers(self, group: Group) -> Iterator[tuple[str, str, int]]:
        """Yield the rows that can have a fault: field, array, and number of entries of an actor."""
        if not self.e.plan.explores:
            yield "action", "log_prob", 1
        if group.action.reals:
            yield "action", "action", group.action.reals
        yield "reward", "reward", 1
        yield "observation", "obs", group.observation.size

    def _choices(self, group: Group) -> list[tuple[int, int]]:
        """Return the first mask entry and the number of entries of every choice; nothing without a mask."""
        return choices_of(group.action) if group.mask else []
