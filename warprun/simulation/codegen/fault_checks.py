"""What a step does about numbers that are not finite and masks that forbid everything: the statements that call `faults.py`.

`sound` is a local of the kernel: whether everything that was looked at so far is right, in the tile (CPU) or the environment (CUDA).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from warprun.environment import Box, Group, MultiDiscrete
from warprun.simulation.codegen.statements import Statements
from warprun.simulation.faults import all_can_act, all_finite, code_of, note_mask, note_numbers

REPLACED_FOR = ("reward", "observation", "mask")
"""Fields for which an environment is replaced; an action is the policy's."""


@dataclass
class FaultChecks:
    """Writes the checks among the other statements of a kernel."""

    statements: Statements
    explores: bool
    """Whether actions have no log-probability."""
    truncates: bool
    """Whether episodes are cut by a time limit, and their final observations kept."""

    def look_for(self, fields: tuple[str, ...]) -> None:
        """Write what looks for faults in the rows of `fields`, and notes them if there are any."""
        b = self.statements
        b.comment("Whether all is finite.")
        self.check_all(fields)
        with b.block("if not sound:"):
            if b.target == "cpu":
                with b.block("for lane in range(count):"):
                    self.note(fields)
            else:
                with b.one_thread():
                    self.note(fields)

    def replace(self) -> None:
        """Write what ends the episode of an environment whose rewards, observations or masks are wrong; it then begins the next one."""
        b = self.statements
        b.comment("Environments that are not finite begin anew.")
        with b.per_environment():
            b.line("replaced[1, lane] = 0")
        b.barrier()
        self.check_all(REPLACED_FOR)
        with b.block("if not sound:"):
            if b.target == "cpu":
                with b.block("for lane in range(count):"):
                    self.replace_lane()
            else:
                self.mark_replaced(b.per_actor)
            b.line("sound = True")
        b.barrier()

    def replace_lane(self) -> None:
        """Write what finds out whether it is this environment of the tile that is wrong, and ends its episode."""
        b = self.statements
        b.line("sound = True")
        for group in b.environment.groups:
            for field, array, width in self.numbers(group):
                if field in REPLACED_FOR:
                    self.check(f"{group.name}_{array}, lane * {group.size * width}, {group.size * width}")
            for _, begin, choices in self.choices(group):
                self.check_masks(group, f"lane * {group.size * group.masked_actions}", f"{group.size}", begin, choices)
        with b.block("if not sound:"):
            b.line("any_over = True")
            self.mark_replaced(lambda group: b.block(f"for actor in range({group.size}):"))

    def mark_replaced(self, each_actor: Callable[[Group], Any]) -> None:
        b = self.statements
        for group in b.environment.groups:
            with each_actor(group):
                b.line(f"{b.entry(group, 'reward')} = 0.0")
        with b.one_thread():
            b.line(f"terminated[{b.at}] = True")
            b.line(f"truncated[{b.at}] = False")
            b.line("replaced[0, lane] += 1")
            b.line("replaced[1, lane] = 1")

    # Looking --------------------------------------------------------------------------------------------------------------

    def check_all(self, fields: tuple[str, ...]) -> None:
        """Write what makes `sound` False if anything in the rows of `fields` is wrong."""
        b = self.statements
        for group in b.environment.groups:
            for field, array, width in self.numbers(group):
                if field in fields:
                    self.check_rows(group, f"{group.name}_{array}", width)
            for _, begin, choices in self.choices(group) if "mask" in fields else ():
                self.check_mask(group, begin, choices)
        if b.target == "block":
            b.line("sound = cuda.syncthreads_or(np.int32(0 if sound else 1)) == 0")

    def check(self, given: str) -> None:
        """Write the look at some numbers of a row: `given` is the row, the first and their count."""
        b = self.statements
        b.line(f"sound &= {b.use('all_finite', all_finite)}({given})")

    def check_rows(self, group: Group, array: str, width: int) -> None:
        b = self.statements
        if b.target == "cpu":  # the numbers of a tile lie side by side
            self.check(f"{array}, 0, count * {group.size * width}")
            return
        with b.per_actor(group):
            self.check(f"{array}, {b.index(group, b.at, 0, width)}, {width}")

    def check_mask(self, group: Group, begin: int, choices: int) -> None:
        b = self.statements
        if b.target == "cpu":
            self.check_masks(group, "0", f"count * {group.size}", begin, choices)
            return
        with b.per_actor(group):
            self.check_masks(group, b.index(group, b.at, 0, group.masked_actions), "1", begin, choices)

    def check_masks(self, group: Group, first: str, actors: str, begin: int, choices: int) -> None:
        b = self.statements
        called = b.use("all_can_act", all_can_act)
        b.line(f"sound &= {called}({group.name}_mask, {first}, {actors}, {group.masked_actions}, {begin}, {choices})")

    # Noting ---------------------------------------------------------------------------------------------------------------

    def note(self, fields: tuple[str, ...]) -> None:
        """Write what notes the first fault of an environment, the fields in their order."""
        for field in fields:
            for number, group in enumerate(self.statements.environment.groups):
                self.note_field(field, group, f"fault, any_fault, lane, {code_of(number, field)}, now")

    def note_field(self, field: str, group: Group, head: str) -> None:
        b, size, features = self.statements, group.size, group.observation.size
        numbers, masks = b.use("note_numbers", note_numbers), b.use("note_mask", note_mask)
        for kind, array, width in self.numbers(group):
            if kind == field:
                place = f"({b.at}) * {size * width}, {size * width}, {width}"
                stride = group.action.components if field == "action" else width
                b.line(f"{numbers}({head}, {group.name}_{array}, {place}, {stride})")
        if field == "final observation" and self.truncates:
            environment = "first + lane" if b.target == "cpu" else "env"
            with b.block(f"if truncated[{b.at}]:"):
                place = f"({environment}) * {size * features}, {size * features}, {features}"
                b.line(f"{numbers}({head}, {group.name}_obs_final[cuts[lane] - 1], {place}, {features})")
        if field == "mask":
            for component, begin, choices in self.choices(group):
                place = f"({b.at}) * {size * group.masked_actions}, {size}, {group.masked_actions}"
                b.line(f"{masks}({head}, {group.name}_mask, {place}, {begin}, {choices}, {component}, {group.action.components})")

    # What there is --------------------------------------------------------------------------------------------------------

    def numbers(self, group: Group) -> Iterator[tuple[str, str, int]]:
        """Yield the rows that can be at fault: field, array, and numbers of an actor."""
        if not self.explores:
            yield "action", "log_prob", 1
        if isinstance(group.action, Box):
            yield "action", "action", group.action.components
        yield "reward", "reward", 1
        yield "observation", "obs", group.observation.size

    def choices(self, group: Group) -> Iterator[tuple[int, int, int]]:
        """Yield every choice that a mask is for: its component, its first entry and their number; nothing without a mask."""
        begin = 0
        counts = group.action.nvec if isinstance(group.action, MultiDiscrete) else (group.action.outputs,)
        for n, choices in enumerate(counts if group.mask else ()):
            yield n, begin, choices
            begin += choices
