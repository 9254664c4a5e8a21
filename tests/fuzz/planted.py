"""Mistakes planted in what turns an environment into machine code: file of the package, text, and what takes its place."""

BODIES = "simulation/codegen/bodies.py"
EXPRESSIONS = "simulation/codegen/expressions.py"
TARGET = "simulation/codegen/targets.py"
ARRAYS = "simulation/arrays.py"
CUT = "kernels/lane_cut.py"
REGIONS = "kernels/lane_regions.py"
VALUES = "kernels/lane_values.py"

PLANTED: dict[str, tuple[str, str, str]] = {
    "entries of out keep what was there": (BODIES, 'clear = "" if writes_the_same(group.observe) else', 'clear = "" if True else'),
    "the flow of a function is misread": (
        "kernels/flow.py",
        "return tree is not None and _Function(function, tree).writes_the_same",
        "return True",
    ),
    "no copy before a phase": (BODIES, "if copies else", "if False else"),
    "no copy for a group of one": (ARRAYS, "changes = group.size > 1 or any(f.length for f in group.fields)", "changes = group.size > 1"),
    "integers are not copied": (EXPRESSIONS, 'for kind in ("f", "i")\n            )', 'for kind in ("f",)\n            )'),
    "phases share their draws": (BODIES, 'f"STEP_{number}", phase=True', '"STEP_0", phase=True'),
    "actors share their draws": (EXPRESSIONS, " + {self.names.define(f'{group.name}_FIRST', str(actors_before))} + actor\"", '"'),
    "groups share their draws": (
        EXPRESSIONS,
        "actors_before = sum(g.size for g in self.groups[: self.groups.index(group)])",
        "actors_before = 0",
    ),
    "the first episode repeats draws": (
        "simulation/kernel_engine.py",
        'self._run("reset", 0, self.steps - 1)',
        'self._run("reset", 0, self.steps)',
    ),
    "the time limit comes late": (BODIES, "elapsed >= {limit} and", "elapsed > {limit} and"),
    "truncated although terminated": (BODIES, " and not terminated[{t.at}]", ""),
    "the clock goes on": (
        BODIES,
        '                    "clock[lane] = 0",\n                    self._vary(),',
        "                    self._vary(),",
    ),
    "rewards of phases replace each other": (BODIES, "{'=' if first else '+='} {reward}", "= {reward}"),
    "rewards after leaving": (BODIES, "{reward} if {before} else np.float32(0.0)", "{reward}"),
    "present is absent": (EXPRESSIONS, "'actor')} != 0", "'actor')} == 0"),
    "the last actor is not summed": (
        EXPRESSIONS,
        'block(f"for actor in range({group.size}):", add)',
        'block(f"for actor in range({max(1, group.size - 1)}):", add)',
    ),
    "maxima begin with 0": (EXPRESSIONS, '("-np.inf", f"total = max', '("0.0", f"total = max'),
    "sums of the phase before": (
        BODIES,
        "reductions=e.reductions([function])",
        'reductions=e.reductions([function]) if number == 0 else ""',
    ),
    "bounds of an action are swapped": (
        EXPRESSIONS,
        '({value}, {lowest}, {highest})"\n        if bounded_below:',
        '({value}, {highest}, {lowest})"\n        if bounded_below:',
    ),
    "components of an action are swapped": (
        EXPRESSIONS,
        "for n in range(space.components)]",
        "for n in reversed(range(space.components))]",
    ),
    "integers keep 16 bits": (EXPRESSIONS, "f'np.int32({given})' if f.integer", "f'np.int32(np.int16({given}))' if f.integer"),
    "an array is at the place of another": (EXPRESSIONS, 'f"{f.first}:{f.first + f.length}" if f.length', 'f"0:{f.length}" if f.length'),
    "final observations of the next episode": (
        BODIES,
        '$keep\n$barrier\n$reset\n$barrier\n"""\n\nBEGIN_NEXT',
        '$reset\n$barrier\n$keep\n$barrier\n"""\n\nBEGIN_NEXT',
    ),
    "cells begin with 1": (EXPRESSIONS, "{cell} >= 0 and", "{cell} > 0 and"),
    "t is that of the next step": (EXPRESSIONS, '{"t": "clock[lane]"', '{"t": "(clock[lane] + 1)"'),
    "one mask for all actions": (
        BODIES,
        'entry = self.e.entry(group, "mask", "k", group.masked_actions)',
        'entry = self.e.entry(group, "mask", "0", group.masked_actions)',
    ),
    "tiles overlap": (TARGET, "    first = tile * LANES\n    count", "    first = max(0, tile * LANES - 1)\n    count"),
    "what lanes do apart is not masked": (REGIONS, "self.masked |= {node} if within else set()", "pass"),
    "what differs between lanes is shared": (
        REGIONS,
        "if any(name in self.varying for name in made.operands):\n            return False",
        "",
    ),
    "half a number of 64 bits is lost": (
        VALUES,
        "{at} = or i64 {new('.shifted')}, {new('.low.wide')}",
        "{at} = or i64 {new('.low.wide')}, {new('.low.wide')}",
    ),
    "what lanes leave with is lost": (CUT, "values.get(name, f'{p}.old{n}')", "f'{p}.old{n}'"),
    "one lane decides when a loop ends": (CUT, "icmp ne {kind} {p}.either, 0", "icmp ne {kind} {p}.one, 0"),
    "what is shared is not handed on": (
        CUT,
        "if self.r.is_uniform(phi.name):\n                value",
        "if self.r.is_uniform(phi.name) and n > 0:\n                value",
    ),
    "a way out is not prepared": (CUT, "if name not in prepared and name not in self.chosen:", "if False:"),
}
