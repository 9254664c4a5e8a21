"""Mistakes planted in what turns an environment into machine code: file of the package, text, and what takes its place."""

BODIES = "simulation/codegen/bodies.py"
EXPRESSIONS = "simulation/codegen/expressions.py"
TARGET = "simulation/codegen/targets.py"
CUT = "kernels/lane_cut.py"
REGIONS = "kernels/lane_regions.py"

PLANTED: dict[str, tuple[str, str, str]] = {
    "entries of out keep what was there": (BODIES, 'clear = "" if writes_the_same(group.observe) else', 'clear = "" if True else'),
    "the flow of a function is misread": (
        "kernels/flow.py",
        "return tree is not None and _Function(function, tree).writes_the_same",
        "return True",
    ),
    "no copy before a phase": (BODIES, "if copies else", "if False else"),
    "phases share their draws": (BODIES, 'f"STEP_{number}", phase=True', '"STEP_0", phase=True'),
    "actors share their draws": (EXPRESSIONS, " + {self.names.define(f'{group.name}_FIRST', str(actors_before))} + actor\"", '"'),
    "the time limit comes late": (EXPRESSIONS, ">= time_limit", "> time_limit"),
    "rewards of phases replace each other": (BODIES, "{'=' if first else '+='} {reward}", "= {reward}"),
    "present is absent": (EXPRESSIONS, "'actor')} != 0", "'actor')} == 0"),
    "the last actor is not summed": (
        EXPRESSIONS,
        'block(f"for actor in range({group.size}):", add)',
        'block(f"for actor in range({max(1, group.size - 1)}):", add)',
    ),
    "integers keep 16 bits": (EXPRESSIONS, "f'np.int32({given})' if f.integer", "f'np.int32(np.int16({given}))' if f.integer"),
    "final observations of the next episode": (
        BODIES,
        '$keep\n$barrier\n$reset\n$barrier\n"""\n\nBEGIN_NEXT',
        '$reset\n$barrier\n$keep\n$barrier\n"""\n\nBEGIN_NEXT',
    ),
    "tiles overlap": (TARGET, "    first = tile * LANES\n    count", "    first = max(0, tile * LANES - 1)\n    count"),
    "what lanes do apart is not masked": (REGIONS, "self.masked |= {node} if within else set()", "pass"),
    "what differs between lanes is shared": (
        REGIONS,
        "if any(name in self.varying for name in made.operands):\n            return False",
        "",
    ),
    "what lanes leave with is lost": (CUT, "values.get(name, f'{p}.old{n}')", "f'{p}.old{n}'"),
    "one lane decides when a loop ends": (CUT, "icmp ne {kind} {p}.either, 0", "icmp ne {kind} {p}.one, 0"),
}
