"""What the kernels do to environments, statement by statement; what stands around the statements is in `source.py`.

The bodies are those of `reset`, `sample` and `greedy` (actions from what the policies give) and `step`. They are the same statements
for every target; loops, indices and barriers are in `statements.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from warprun.environment import ARGUMENTS, Box, Field, Group, MultiDiscrete, arguments
from warprun.kernels.sampling import best_choice, best_gaussian, explore_choice, explore_real, sample_choice, sample_gaussian, to_bounds
from warprun.random import ACTION, EXPLORATION, RESET, STEP, VARIATION, Rng, uniform
from warprun.simulation.codegen.fault_checks import FaultChecks
from warprun.simulation.codegen.statements import Statements


@dataclass
class Bodies(Statements):
    """Writes what happens to the environments of a tile, or to one environment, in one call of a kernel."""

    vary: tuple[str, ...]
    auto_reset: bool
    explores: bool
    replaces: bool = False
    """Whether an environment that is not finite ends its episode, which then does not count, and begins a new one in the same step."""

    def __post_init__(self) -> None:
        self.faults = FaultChecks(self, self.explores, self.auto_reset and self.environment.time_limit is not None)

    def by_name(self) -> dict[str, Callable[[], None]]:
        """Return what writes each body."""
        return {"reset": self.reset_body, "sample": self.sample_body, "greedy": self.greedy_body, "step": self.step_body}

    def step_body(self) -> None:
        self.views("row + 1")
        self.line("terminated = terminated[row]" + self.part)
        self.line("truncated = truncated[row]" + self.part)
        for group in self.environment.groups:
            self.line(f"{group.name}_action = {group.name}_action[row]{self.rows(group, group.action.components)}")
            self.line(f"{group.name}_reward = {group.name}_reward[row]{self.rows(group)}")
            if not self.explores:
                self.line(f"{group.name}_log_prob = {group.name}_log_prob[row]{self.rows(group)}")
        self.line("sound = True")
        with self.per_environment():
            self.line(f"terminated[{self.at}] = False")
        self.barrier()
        rewarded: set[str] = set()
        for number, phase in enumerate(self.environment.phases):
            group = self.environment.group(phase.group)
            self.phase(number, group, phase.function, "+=" if group.name in rewarded else "=")
            rewarded.add(group.name)
        self.clock()
        if self.replaces:
            self.observe()
            self.faults.replace()
        if self.auto_reset:
            self.episode_ends()
        self.observe()
        self.faults.look_for(("action", "reward", "final observation", "observation", "mask"))

    def reset_body(self) -> None:
        self.views("0")
        if self.vary:
            with self.per_environment():
                self.draw_variation()
            self.barrier()
        for group in self.environment.groups:
            with self.per_actor(group):
                self.reset_actor(group)
                self.line(f"{group.name}_return[actor, lane] = 0.0")
                self.line(f"{group.name}_return_ended[actor, lane] = 0.0")
                self.silence(group)
        with self.per_environment():
            for counter in ("clock", "cuts", "ended", "ended_steps"):
                self.line(f"{counter}[lane] = 0")
        self.barrier()
        self.observe()
        self.line("sound = True")
        self.faults.look_for(("observation", "mask"))

    def sample_body(self) -> None:
        if self.explores:
            self.exploring_actions()
        else:
            self.actions(sample_choice, sample_gaussian)

    def greedy_body(self) -> None:
        self.actions(best_choice, best_gaussian)

    # Parts of a step ------------------------------------------------------------------------------------------------------

    def views(self, obs_row: str) -> None:
        self.comment("This tile's part of every array.")
        for name in ("clock", "cuts", "ended", "ended_steps", "fault"):
            self.line(f"{name} = {name}[tile]")
        if self.replaces:
            self.line("replaced = replaced[tile]")
        if self.vary:
            self.line("varied = varied[tile]")
        for group in self.environment.groups:
            names = ["f", "i", "return", "return_ended"]
            names += ["sum"] if group.sums else []
            names += ["max"] if group.maxima else []
            names += ["f_before", "i_before"] if self.reads_itself(group) else []
            names += ["noise"] if self.has_noise(group) else []
            for n in names:
                self.line(f"{group.name}_{n} = {group.name}_{n}[tile]")
            self.line(f"{group.name}_obs = {group.name}_obs[{obs_row}]{self.rows(group, group.observation.size)}")
            if group.mask:
                self.line(f"{group.name}_mask = {group.name}_mask[{obs_row}]{self.rows(group, group.masked_actions)}")

    def phase(self, number: int, group: Group, function: Callable[..., Any], assign: str) -> None:
        self.comment(f"Phase {number}: {group.name} {function.__name__}.")
        called = self.use_function(group, function)
        self.reductions(function)
        names = arguments(function)
        if group.name in names:
            with self.per_actor(group):
                self.copy_slots(group)
            self.barrier()
        with self.per_actor(group):
            # Numbered, for the types of two phases differ.
            s, reward, over = f"s{number}", f"reward{number}", f"over{number}"
            self.line(f"{s}, {reward}, {over} = {called}({self.call(group, names, STEP + 16 * number)})")
            self.store(group, s)
            self.line(f"{self.entry(group, 'reward')} {assign} {reward}")
            if self.target == "cpu":
                self.line(f"terminated[{self.at}] |= {over}")
            else:
                with self.block(f"if {over}:"):
                    self.line(f"terminated[{self.at}] = True")
        self.barrier()

    def clock(self) -> None:
        self.comment("The clock, and which episodes end.")
        if self.target == "cpu":
            self.line("any_over = False")
        for group in self.environment.groups:
            with self.per_actor(group):
                self.line(f"{group.name}_return[actor, lane] += {self.entry(group, 'reward')}")
        limit = self.environment.time_limit
        with self.per_environment():
            self.line("elapsed = clock[lane] + 1")
            self.line("clock[lane] = elapsed")
            cut = f"elapsed >= {limit} and not terminated[{self.at}]" if limit else "False"
            self.line(f"truncated[{self.at}] = {cut}")
            if limit:
                with self.block("if row == 0:"):
                    self.line("cuts[lane] = 0")
            if self.target == "cpu":
                self.line(f"any_over |= terminated[{self.at}] | truncated[{self.at}]")
        self.barrier()

    def episode_ends(self) -> None:
        self.comment("Where an episode ends: keep its final observation, count it, begin the next one in the same step.")
        observers = [group.observe for group in self.environment.groups] if self.environment.time_limit else []
        if self.target == "cpu":
            with self.block("if any_over:"):
                self.reductions(*observers)
                with self.block("for lane in range(count):"):
                    with self.block("if not (terminated[lane] or truncated[lane]):"):
                        self.line("continue")
                    self.end_episode(lambda group: self.block(f"for actor in range({group.size}):"))
        else:
            with self.block(f"if terminated[{self.at}] or truncated[{self.at}]:"):
                self.reductions(*observers)
                self.end_episode(self.per_actor)

    def end_episode(self, each_actor: Callable[[Group], Any]) -> None:
        env = self.environment
        env_index = "first + lane" if self.target == "cpu" else "env"
        if env.time_limit:
            with self.block(f"if truncated[{self.at}]:"):
                for group in env.groups:
                    with each_actor(group):
                        final_obs = f"{group.name}_obs_final[cuts[lane]]"
                        self.observe_actor(group, final_obs, env_index)
                        size = group.observation.size
                        self.faults.check(f"{final_obs}, {self.index(group, env_index, 0, size)}, {size}")
                self.barrier()
                with self.one_thread():
                    self.line("cuts[lane] += 1")
        with self.one_thread():
            counts = " * (1 - replaced[1, lane])" if self.replaces else ""
            self.line(f"ended[lane] += 1{counts}")
            self.line(f"ended_steps[lane] += clock[lane]{counts}")
            self.line("clock[lane] = 0")
            self.draw_variation()
        self.barrier()
        for group in env.groups:
            with each_actor(group):
                with self.block("if replaced[1, lane] == 0:") if self.replaces else nullcontext():
                    self.line(f"{group.name}_return_ended[actor, lane] += {group.name}_return[actor, lane]")
                self.line(f"{group.name}_return[actor, lane] = 0.0")
                self.silence(group)
                self.reset_actor(group)
        self.barrier()

    def observe(self) -> None:
        self.comment("What the actors see now.")
        for group in self.environment.groups:
            self.reductions(group.observe, *([group.mask] if group.mask else []))
        for group in self.environment.groups:
            with self.per_actor(group):
                self.observe_actor(group, f"{group.name}_obs", self.at)
            # A loop of its own: bytes side by side for an actor, which LLVM writes together.
            if group.mask:
                called = self.use_function(group, group.mask)
                with self.per_actor(group), self.block(f"for k in range({group.masked_actions}):"):
                    allowed = f"{called}({self.call(group, arguments(group.mask), 0)})"
                    self.line(f"{self.entry(group, 'mask', 'k', group.masked_actions)} = {allowed}")

    def observe_actor(self, group: Group, array: str, at: str) -> None:
        """Write what an actor sees to its place in `array`, whose environments begin at index 0."""
        called = self.use_function(group, group.observe)
        names, size = arguments(group.observe), group.observation.size
        if "out" in names:
            self.line(f"place = {self.index(group, at, 0, size)}")
            self.line(f"{called}({self.call(group, names, 0, out=f'{array}[place : place + {size}]')})")
            return
        seen = f"{group.name}_seen"
        self.line(f"{seen} = {called}({self.call(group, names, 0)})")
        for n in range(size):
            self.line(f"{array}[{self.index(group, at, n, size)}] = {seen}[{n}]")

    def reset_actor(self, group: Group) -> None:
        called = self.use_function(group, group.reset)
        fresh = f"{group.name}_fresh"
        self.line(f"{fresh} = {called}({self.call(group, arguments(group.reset), RESET)})")
        self.store(group, fresh)

    def draw_variation(self) -> None:
        if not self.vary:
            return
        drawn, rng = self.use("uniform", uniform), self.rng(str(VARIATION << 24))
        for n in range(len(self.vary)):
            self.line(f"varied[{n}, lane] = {drawn}({rng}, {n}, vary_bounds[{n}, 0], vary_bounds[{n}, 1])")

    def reductions(self, *functions: Callable[..., Any]) -> None:
        asked = {name for function in functions for name in arguments(function)}
        for group in self.environment.groups:
            for kind, fields in (("sum", group.sums), ("max", group.maxima)):
                if f"{group.name}_{kind}" not in asked:
                    continue
                for n, name in enumerate(fields):
                    at = next(f for f in group.fields if f.name == name)
                    value = f"{group.name}_{'i' if at.integer else 'f'}[{at.first}, actor, lane]"
                    with self.per_reduction(n):
                        self.line("total = np.float32(0.0)" if kind == "sum" else "total = np.float32(-np.inf)")
                        with self.block(f"for actor in range({group.size}):"):
                            self.line(f"total += {value}" if kind == "sum" else f"total = max(total, np.float32({value}))")
                        self.line(f"{group.name}_{kind}[{n}, lane] = total")
                self.barrier()

    def silence(self, group: Group) -> None:
        """Let the noise of an actor begin anew with its episode."""
        if self.has_noise(group):
            with self.block(f"for k in range({group.action.components}):"):
                self.line(f"{group.name}_noise[k, actor, lane] = 0.0")

    @contextmanager
    def each_acting(self, group: Group, names: tuple[str, ...], purpose: int) -> Iterator[str]:
        """Write what every choice of actions begins with, and yield the name of the policy's outputs, forbidden ones at -inf."""
        for n in names:
            width = group.action.components if n == "action" else 1
            self.line(f"{group.name}_{n} = {group.name}_{n}[row]{self.rows(group, width)}")
        if group.mask:
            self.line(f"{group.name}_mask = {group.name}_mask[row]{self.rows(group, group.masked_actions)}")
        if self.target != "cpu":
            self.line(f"{group.name}_logits = {group.name}_policy_output.T")
        logits = f"{group.name}_logits"
        if group.mask:
            # A loop of its own, for masks are not vectorised and draws are. No branch: which actions are allowed is hard to predict.
            with self.per_actor(group), self.block(f"for k in range({group.masked_actions}):"):
                given, allowed = f"{logits}[k, actor, {self.at}]", self.entry(group, "mask", "k", group.masked_actions)
                self.line(f"{given} = {given} if {allowed} else np.float32(-np.inf)")
        with self.per_actor(group):
            self.line(f"rng = {self.rng(self.source(group, purpose))}")
            yield logits

    def exploring_actions(self) -> None:
        """Write the action of every actor: the best one or another, or the policy's own with noise."""
        for group in self.environment.groups:
            space, g = group.action, group.name
            if self.has_noise(group):
                self.line(f"{g}_noise = {g}_noise[tile]")
            with self.each_acting(group, ("action",), EXPLORATION) as logits:
                first = 0
                for n in range(space.components):
                    if isinstance(space, Box):
                        noise = f"{g}_noise[{n}, actor, lane]"
                        given = f"rng, {n}, {logits}[{n}, actor, {self.at}], {noise}, {g}_exploration"
                        self.line(f"{g}_chosen, {noise} = {self.use('explore_real', explore_real)}({given})")
                    else:
                        count = space.nvec[n] if isinstance(space, MultiDiscrete) else space.n
                        given = f"rng, {n}, {logits}, actor, {self.at}, {first}, {count}, {g}_exploration"
                        self.line(f"{g}_chosen = {self.use('explore_choice', explore_choice)}({given})")
                        first += count
                    self.line(f"{self.entry(group, 'action', n, space.components)} = {g}_chosen")

    def actions(self, choose: Callable[..., Any], draw: Callable[..., Any]) -> None:
        """Write the action of every actor and its log-probability, by `choose` for choices and `draw` for real numbers."""
        for group in self.environment.groups:
            space = group.action
            with self.each_acting(group, ("action", "log_prob"), ACTION) as logits:
                self.line("total = np.float32(0.0)")
                first = 0
                for n in range(space.components):
                    if isinstance(space, Box):
                        given = f"{logits}[{n}, actor, {self.at}], {logits}[{space.size + n}, actor, {self.at}]"
                    else:
                        count = space.nvec[n] if isinstance(space, MultiDiscrete) else space.n
                        given = f"{logits}, actor, {self.at}, {first}, {count}"
                        first += count
                    function = self.use(*(("draw", draw) if isinstance(space, Box) else ("choose", choose)))
                    self.line(f"{group.name}_chosen, log_prob = {function}(rng, {n}, {given})")
                    self.line(f"{self.entry(group, 'action', n, space.components)} = {group.name}_chosen")
                    self.line("total += log_prob")
                self.line(f"{self.entry(group, 'log_prob')} = total")

    # Calls, loads and stores ----------------------------------------------------------------------------------------------

    def call(self, group: Group, names: tuple[str, ...], source: int, out: str = "") -> str:
        return ", ".join(self.argument(group, name, source, out) for name in names)

    def argument(self, group: Group, name: str, source: int, out: str) -> str:
        if name == "s":
            return self.load(group, "actor")
        if name == "action":
            return self.action(group)
        if name == "rng":
            return self.rng(self.source(group, source))
        if name == "p" and self.vary:
            fields = self.environment.params._fields  # type: ignore[attr-defined]
            values = (f"varied[{self.vary.index(f)}, lane]" if f in self.vary else f"p.{f}" for f in fields)
            return f"Params({', '.join(values)})"
        if name == "t":
            return "clock[lane]"
        if name == "i":
            return "actor"
        if name == "out":
            return out
        if name in ARGUMENTS:
            return name
        in_phase = source % 16 == STEP  # only there is a group written while it is read
        return self.view_of_others(name, "_before" if name == group.name and in_phase else "")

    def view_of_others(self, name: str, before: str) -> str:
        for other in self.environment.groups:
            if name == other.name:
                return self.load(other, "0") if other.size == 1 else self.load(other, ":", before)
            for kind, fields in (("sum", other.sums), ("max", other.maxima)):
                if name == f"{other.name}_{kind}":
                    made = self.reduction_class(name, fields)
                    return f"{made}({', '.join(f'{name}[{n}, lane]' for n in range(len(fields)))})"
        raise AssertionError(name)

    def reduction_class(self, name: str, fields: tuple[str, ...]) -> str:
        """Define, once, the NamedTuple that carries the sums of a group."""
        made = f"{name}_Fields"
        if made not in self.functions:
            self.functions[made] = None  # defined in the source itself
            at = next(n for n, text in enumerate(self.lines) if text.startswith("LANES")) + 1
            joined = ", ".join(repr(f) for f in fields)
            self.lines[at:at] = [f'{made} = namedtuple("{made}", ({joined},))']
            if "from collections import namedtuple" not in self.lines:
                self.lines.insert(self.lines.index("import numpy as np"), "from collections import namedtuple")
                self.lines.insert(self.lines.index("import numpy as np"), "")
        return made

    def load(self, group: Group, actor: str, suffix: str = "") -> str:
        return f"{group.name}_State({', '.join(self.slot(group, f, actor, suffix) for f in group.fields)})"

    def slot(self, group: Group, f: Field, actor: str, suffix: str = "") -> str:
        array = f"{group.name}_{'i' if f.integer else 'f'}{suffix}"
        if not f.length:
            return f"{array}[{f.first}, {actor}, lane]"
        return f"{array}[{f.first}:{f.first + f.length}, {actor}, lane]"

    def store(self, group: Group, value: str) -> None:
        for f in group.fields:
            if not f.length:  # array fields are written in place
                given = f"{value}.{f.name}"
                self.line(f"{self.slot(group, f, 'actor')} = {f'np.int32({given})' if f.integer else given}")

    def copy_slots(self, group: Group) -> None:
        for kind in ("f", "i"):
            with self.block(f"for slot in range({group.name}_{kind}.shape[0]):"):
                self.line(f"{group.name}_{kind}_before[slot, actor, lane] = {group.name}_{kind}[slot, actor, lane]")

    def action(self, group: Group) -> str:
        space = group.action
        values = [self.entry(group, "action", n, space.components) for n in range(space.components)]
        if isinstance(space, Box):
            values = [self.scaled(v, low, high) for v, (low, high) in zip(values, space.bounds(), strict=True)]
        if isinstance(space, Box | MultiDiscrete):
            return f"({', '.join(values)},)"
        return values[0]

    def scaled(self, value: str, low: float, high: float) -> str:
        """Map the policy's -1..1 to low..high; where a bound is infinite pass the action through, clipped at a finite other one."""
        lowest, highest = f"np.float32({low!r})", f"np.float32({high!r})"
        bounded_below, bounded_above = low != -float("inf"), high != float("inf")
        if bounded_below and bounded_above:
            return f"{self.use('to_bounds', to_bounds)}({value}, {lowest}, {highest})"
        if bounded_below:
            return f"max({value}, {lowest})"
        return f"min({value}, {highest})" if bounded_above else value

    def source(self, group: Group, purpose: int) -> str:
        """Number the actor among all actors of the environment, below the purpose: no two share a stream."""
        first = sum(g.size for g in self.environment.groups[: self.environment.groups.index(group)])
        return f"{(purpose << 24) + first} + actor"

    def rng(self, source: str) -> str:
        made = self.use("Rng", Rng)
        env = "first + lane" if self.target == "cpu" else "env"
        return f"{made}(seed_low, seed_high, np.uint32({env}), now, np.uint32({source}))"

    def has_noise(self, group: Group) -> bool:
        return self.explores and isinstance(group.action, Box)

    def reads_itself(self, group: Group) -> bool:
        return any(p.group == group.name and group.name in arguments(p.function) for p in self.environment.phases) and group.size > 1
