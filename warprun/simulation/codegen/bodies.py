"""The bodies of the kernels `reset`, `sample`, `greedy` and `step`, for the environments of a tile (CPU) or for one environment (CUDA)."""

from __future__ import annotations

import re

from warprun.environment import Group, arguments
from warprun.kernels.flow import writes_the_same
from warprun.kernels.sampling import BEST, DRAWN, EXPLORED, FunctionOfKind, explore_real
from warprun.random import uniform
from warprun.simulation.codegen.called import whole
from warprun.simulation.codegen.expressions import Expressions, choices_of, seen
from warprun.simulation.codegen.fault_checks import FaultChecks
from warprun.simulation.codegen.templates import Function, block, fill, index, lines

NAMES = {"choices": "choose", "reals": "draw"}
"""Kind of the actions -> the name of what draws a component in kernels of policies that do not explore."""

STEP = """
sound = True
$begin
$phases
# Count the step; end episodes at the time limit.
$clock
$replace
$next_episodes
$observe
$check
"""

RESET = """
$vary
$reset
$counters
$observe
$check
"""

ADVANCE = """
$begin
$phases
# Count the step; end episodes at the time limit.
$clock
$observe
$next_episodes
"""

PHASE = """
# Phase $number: $group.
$reductions
$copy
$act
$barrier
"""

ENDED = """
# At the end of an episode: keep its final observation, count it, begin the next one in the same step.
$keep
$barrier
$reset
$barrier
"""

BEGIN_NEXT = """
# At the end of an episode: keep its final observation, begin the next one in the same step.
$keep
$barrier
$count
$barrier
$reset
$barrier
$observe
"""

ADD = """
added = $number - $excess
rounded = $total + added
$excess = (rounded - $total) - added
$total = rounded
"""


class Bodies:
    """Writes the body of each kernel."""

    def __init__(self, expressions: Expressions, auto_reset: bool) -> None:
        self.e = expressions
        self.plan = expressions.plan
        self.target = expressions.target
        self.environment = expressions.plan.environment
        self.auto_reset = auto_reset
        self.faults = FaultChecks(expressions, keeps_final=auto_reset and self.environment.time_limit is not None)

    def by_name(self) -> dict[str, str]:
        """Return the body of each kernel, with the definitions of its local names."""
        if self.plan.by_caller:
            bodies = {"reset": self._reset(), "advance": self._advance()}
            return {kernel: self._with_views(body) for kernel, body in bodies.items()}
        sample = self._exploring_actions() if self.plan.explores else self._actions(DRAWN)
        return {
            "reset": self._with_views(self._reset(), observation_row="0"),
            "sample": self._with_views(sample, observation_row="row"),
            "greedy": self._with_views(self._actions(BEST[self.plan.policies]), observation_row="row"),
            "step": self._with_views(self._step(), observation_row="row + 1"),
        }

    def _with_views(self, body: str, observation_row: str = "") -> str:
        """Return `body` after the definitions of its local names: the parts of arrays for this tile or row, and values for all groups."""
        used = set(re.findall(r"\w+", body))
        of_all = {"p": True, "tables": self.environment.tables, "time_limit": self.environment.time_limit}
        views = {name: f"common.{name}" for name in (*filter(of_all.get, of_all), "first_env", "seed_low", "seed_high")}
        for name, layout in self.plan.common().items():
            part = self._row("row") + self.target.part(1) if layout.array.rows else ""
            views[name] = self.target.tile(f"common.{name}", layout.shape) if layout.array.tiled else f"common.{name}{part}"
        for group in self.environment.groups:
            for name, (array, shape, _) in self.e.arrays[group.name].items():
                if array.tiled:
                    views[f"{group.name}_{name}"] = self.target.tile(f"{group.name}_arrays.{name}", shape)
                elif array.axes[0] in ("T", "T+1") or (array.rows and self.plan.by_caller):
                    row = observation_row if array.axes[0] == "T+1" else "row"
                    width = shape[2] * (shape[3] if len(shape) > 3 else 1)
                    views[f"{group.name}_{name}"] = f"{group.name}_arrays.{name}{self._row(row)}{self.target.part(width)}"
        return lines("# Views of the arrays that this kernel uses.", *(f"{n} = {v}" for n, v in views.items() if n in used), body)

    def _row(self, row: str) -> str:
        return "" if self.plan.by_caller else f"[{row}]"

    # The step -------------------------------------------------------------------------------------------------------------

    def _step(self) -> str:
        return fill(
            STEP,
            begin=self._begin(),
            phases=self._phases(),
            clock=self._clock(),
            replace=lines(self._observe(), self.faults.replace()) if self.plan.replaces else "",
            next_episodes=self._next_episodes() if self.auto_reset else "",
            observe=self._observe(),
            check=self.faults.look_for(("action", "reward", "final observation", "observation", "mask")),
        )

    def _advance(self) -> str:
        """Return the step for a caller of its own: no check for faults, and the final observation of every episode that ends.

        On CPU the kernel around the body begins the next episodes (`program.py`).
        """
        t = self.target
        next_episodes = "" if t.begins_in_batches else t.if_ended("", self._begin_next())
        parts = {"begin": self._begin(), "phases": self._phases(), "clock": self._clock(), "observe": self._observe()}
        return fill(ADVANCE, **parts, next_episodes=next_episodes)

    def _begin(self) -> str:
        t = self.target
        return lines(t.per_environment(f"terminated[{t.at}] = False"), t.barrier)

    def _phases(self) -> str:
        rewarded: set[str] = set()
        phases = []
        for number, phase in enumerate(self.environment.phases):
            phases.append(self._phase(number, self.environment.group(phase.group), phase.function, first=phase.group not in rewarded))
            rewarded.add(phase.group)
        return lines(*phases)

    def _phase(self, number: int, group: Group, function: Function, first: bool) -> str:
        """Return the step of all actors of a group; later phases of the group add to its reward."""
        e, t = self.e, self.target
        # Numba gives a name one type, and the types of two phases differ.
        state, reward, over = f"s{number}", f"reward{number}", f"over{number}"
        place, call = e.call(group, function, f"STEP_{number}", phase=True)
        copies = "f_before" in e.arrays[group.name] and group.name in arguments(function)
        return fill(
            PHASE,
            number=str(number),
            group=group.name,
            reductions=e.reductions([function]),
            copy=lines(t.per_actor(group, e.copy_state(group)), t.barrier) if copies else "",
            act=t.per_actor(
                group,
                self.target.lane_loop,
                place,
                f"{state}, {reward}, {over} = {call}",
                e.store(group, state),
                f"{e.entry(group, 'reward')} {'=' if first else '+='} {reward}",
                t.terminate(over),
            ),
            barrier=t.barrier,
        )

    def _clock(self) -> str:
        t, limit = self.target, self.environment.time_limit
        note = "" if self.plan.by_caller else t.note_end
        counted = () if self.plan.by_caller else self.environment.groups
        returns = (
            t.per_actor(g, self._no_reward_after_leaving(g), _add(f"{g.name}_episode_return", self.e.entry(g, "reward"))) for g in counted
        )
        count = t.per_environment(
            "elapsed = clock[lane] + 1",
            "clock[lane] = elapsed",
            f"truncated[{t.at}] = " + (f"{self.e.late()} and not terminated[{t.at}]" if limit else "False"),
            block("if row == 0:", "cuts[lane] = 0") if limit and not self.plan.by_caller else "",
            note,
        )
        return lines("any_over = False" if note else "", *returns, count, t.barrier)

    def _no_reward_after_leaving(self, group: Group) -> str:
        """Return the statement that sets the reward of an actor to 0 if it had left the episode before this step."""
        if "alive" not in self.e.arrays[group.name]:
            return ""
        before = f"{group.name}_arrays.alive[row]{self.target.part(group.size)}[{index(group, self.target.at, 0, 1)}]"
        reward = self.e.entry(group, "reward")
        return f"{reward} = {reward} if {before} else np.float32(0.0)"

    def _begin_next(self) -> str:
        """Return the statements with which `advance` ends an episode, on one thread or block."""
        t, groups, keep = self.target, self.environment.groups, []
        for group in groups:
            for kept, entries in seen(group):
                at = index(group, t.environment, "k", entries)
                copy = f"{group.name}_final_{kept}[{at}] = {group.name}_{kept}[{at}]"
                keep.append(t.actors_of(group, block(f"for k in range({entries}):", copy)))
        return fill(
            BEGIN_NEXT,
            keep=lines(*keep),
            count=t.once("clock[lane] = 0", self._vary()),
            reset=lines(*(t.actors_of(group, self._reset_actor(group)) for group in groups)),
            barrier=t.barrier,
            observe=self._observe(),
        )

    def _next_episodes(self) -> str:
        """Return the statements for the environments whose episode has ended."""
        e, t, groups = self.e, self.target, self.environment.groups
        counted = f" * np.int32({e.counts()})" if e.counts() else ""
        ended = fill(
            ENDED,
            keep=t.per_ended(
                self._final_observations(),
                t.once(
                    f"ended[lane] += 1{counted}",
                    f"ended_steps[lane] += clock[lane]{counted}",
                    "clock[lane] = 0",
                    self._vary(),
                ),
            ),
            reset=lines(*(t.actors_of(group, t.per_ended(*self._begin_actor(group))) for group in groups)),
            barrier=t.barrier,
        )
        observers = [group.observe for group in groups] if self.environment.time_limit else []
        return t.if_ended(e.reductions(observers), ended)

    def _begin_actor(self, group: Group) -> tuple[str, ...]:
        """Return the statements that count the return of an actor, and with which its next episode begins."""
        count = _add(f"{group.name}_ended_return", f"{group.name}_episode_return[0, actor, lane]")
        counted = block(f"if {self.e.counts()}:", count) if self.e.counts() else count
        return self.target.lane_loop, counted, self._reset_actor(group)

    def _final_observations(self) -> str:
        if not self.environment.time_limit:
            return ""
        t, found = self.target, []
        for group in self.environment.groups:
            row, size = f"{group.name}_arrays.final_obs[cuts[lane]]", group.observation.size
            check = self.faults.all_finite(row, index(group, t.environment, 0, size), str(size))
            left = ""
            if "final_alive" in self.e.arrays[group.name]:
                left = f"{group.name}_arrays.final_alive[cuts[lane]][{index(group, t.environment, 0, 1)}] = {self.e.is_alive(group)}"
            found.append(t.actors_of(group, self._observe_actor(group, row, t.environment), left, check))
        return block(f"if truncated[{t.at}]:", *found, t.barrier, t.once("cuts[lane] += 1"))

    # Reset and observe ----------------------------------------------------------------------------------------------------

    def _reset(self) -> str:
        t, by_caller = self.target, self.plan.by_caller
        counters = ("clock",) if by_caller else ("clock", "cuts", "ended", "ended_steps")
        returns = {g.name: "" if by_caller else _clear(f"{g.name}_ended_return") for g in self.environment.groups}
        return fill(
            RESET,
            vary=lines(t.per_environment(self._vary()), t.barrier) if self.plan.vary else "",
            reset=lines(*(t.per_actor(group, self._reset_actor(group), returns[group.name]) for group in self.environment.groups)),
            counters=lines(t.per_environment(*(f"{name}[lane] = 0" for name in counters)), t.barrier),
            observe=self._observe(),
            check="" if by_caller else lines("sound = True", self.faults.look_for(("observation", "mask"))),
        )

    def _reset_actor(self, group: Group) -> str:
        place, call = self.e.call(group, group.reset, "RESET")
        noise = ""
        if "noise" in self.e.arrays[group.name]:
            noise = block(f"for k in range({group.action.components}):", f"{group.name}_noise[k, actor, lane] = 0.0")
        fresh = f"{group.name}_fresh"
        begin = "" if self.plan.by_caller else _clear(f"{group.name}_episode_return")
        return lines(begin, noise, place, f"{fresh} = {call}", self.e.store(group, fresh))

    def _vary(self) -> str:
        if not self.plan.vary:
            return ""
        rng = self.e.rng("VARIATION")
        draws = [self.e.names.use(draw.__name__, draw) for draw in (whole if self.e.is_whole(name) else uniform for name in self.plan.vary)]
        return lines(*(f"varied[{n}, lane] = {draw}({rng}, {n}, vary_bounds[{n}, 0], vary_bounds[{n}, 1])" for n, draw in enumerate(draws)))

    def _observe(self) -> str:
        t, found = self.target, ["# Observe."]
        functions = [function for group in self.environment.groups for function in (group.observe, group.mask) if function]
        found.append(self.e.reductions(functions))
        for group in self.environment.groups:
            found.append(t.per_actor(group, self._observe_actor(group, f"{group.name}_obs", t.at)))
            # A separate loop: the entries of an actor are neighbouring bytes, which LLVM writes together.
            if group.mask:
                place, call = self.e.call(group, group.mask)
                entry = self.e.entry(group, "mask", "k", group.masked_actions)
                found.append(t.per_actor(group, block(f"for k in range({group.masked_actions}):", place, f"{entry} = {call}")))
            if "alive" in self.e.arrays[group.name]:
                found.append(t.per_actor(group, f"{self.e.entry(group, 'alive')} = {self.e.is_alive(group)}"))
        return lines(*found)

    def _observe_actor(self, group: Group, row: str, at: str) -> str:
        """Return the statements that write the observation of an actor of environment `at` to `row`."""
        size = group.observation.size
        if "out" in arguments(group.observe):
            place, call = self.e.call(group, group.observe, out=f"{row}[place : place + {size}]")
            # Rows are used again. Entries that no call of this actor writes are 0 from the start.
            clear = "" if writes_the_same(group.observe) else block(f"for k in range({size}):", f"{row}[place + k] = 0.0")
            return lines(f"place = {index(group, at, 0, size)}", clear, place, call)
        place, call = self.e.call(group, group.observe)
        seen = f"{group.name}_seen"
        stores = (f"{row}[{index(group, at, n, size)}] = {seen}[{n}]" for n in range(size))
        return lines(place, f"{seen} = {call}", *stores)

    # Actions --------------------------------------------------------------------------------------------------------------

    def _actions(self, draws: FunctionOfKind) -> str:
        """Return the statements that write the action of every actor and its log-probability, by the function of its kind."""
        found = []
        for group in self.environment.groups:
            kind = group.action.kind
            function, chosen = self.e.names.use(NAMES[kind], draws[kind]), f"{group.name}_chosen"
            body = ["total = np.float32(0.0)"]
            for n, outputs in enumerate(self._outputs(group)):
                body.append(f"{chosen}, log_prob = {function}(rng, {n}, {', '.join(outputs)})")
                body.append(f"{self.e.entry(group, 'action', n, group.action.components)} = {chosen}")
                body.append("total += log_prob")
            body.append(f"{self.e.entry(group, 'log_prob')} = total")
            found.append(self._acting(group, "ACTION", *body))
        return lines(*found)

    def _exploring_actions(self) -> str:
        """Return the statements that write the action of every actor.

        It is random, or else the best choice, the policy's action with noise, or a draw of a squashed policy.
        """
        found = []
        for group in self.environment.groups:
            function, chosen = EXPLORED[self.plan.policies][group.action.kind], f"{group.name}_chosen"
            explore, body = self.e.names.use(function.__name__, function), []
            for n, outputs in enumerate(self._outputs(group, 1 if function is explore_real else 2)):
                noise = [f"{group.name}_noise[{n}, actor, lane]"] if group.action.reals else []
                given = [*outputs, *noise, f"{group.name}_arrays.exploration"]
                body.append(f"{', '.join([chosen, *noise])} = {explore}(rng, {n}, {', '.join(given)})")
                body.append(f"{self.e.entry(group, 'action', n, group.action.components)} = {chosen}")
            found.append(self._acting(group, "EXPLORATION", *body))
        return lines(*found)

    def _acting(self, group: Group, stream: str, *body: str) -> str:
        """Return `body` for every actor, after the statements that define `rng` and set the logits of forbidden choices to -inf."""
        t, forbid = self.target, ""
        if group.mask:
            output = f"{group.name}_logits[k, actor, {t.at}]"
            allowed = self.e.entry(group, "mask", "k", group.masked_actions)
            # A separate loop, because LLVM vectorises draws but not masks. No branch, because masks are hard to predict.
            choices = block(f"for k in range({group.masked_actions}):", f"{output} = {output} if {allowed} else np.float32(-np.inf)")
            forbid = t.per_actor(group, choices)
        return lines(t.logits(group), forbid, t.per_actor(group, f"rng = {self.e.rng(stream, group)}", *body))

    def _outputs(self, group: Group, per_real: int = 2) -> list[tuple[str, ...]]:
        """Return the policy outputs for each component of an action: the logits of a choice; mean and log standard deviation of a real
        number, or the first `per_real` of them."""
        logits, at, reals = f"{group.name}_logits", self.target.at, group.action.reals
        choices = [(logits, "actor", at, str(first), str(count)) for first, count in choices_of(group.action)]
        return [*choices, *(tuple(f"{logits}[{k * reals + n}, actor, {at}]" for k in range(per_real)) for n in range(reals))]


def _clear(total: str) -> str:
    """Return the statements that set a sum of this actor to 0."""
    return lines(f"{total}[0, actor, lane] = 0.0", f"{total}[1, actor, lane] = 0.0")


def _add(total: str, number: str) -> str:
    """Return the statements that add to a sum of this actor in two words (Kahan, "Further remarks on reducing truncation errors", 1965)."""
    return fill(ADD, total=f"{total}[0, actor, lane]", excess=f"{total}[1, actor, lane]", number=number)
