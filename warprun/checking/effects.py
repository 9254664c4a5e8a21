"""Checks by trial: the effects of each action, and fields that an episode takes over from the one before."""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch

from warprun.checking.findings import Problem, doubt, listed, phases_of, place_of, short
from warprun.checking.rolls import masks_of, put
from warprun.environment import Environment, Group, KernelFunction
from warprun.kernels import compile as kernels
from warprun.kernels import integers
from warprun.simulation.kernel_engine import KernelEngine
from warprun.simulation.trial import Actions, Explorer, Masks
from warprun.state import restore


def source(environment: Environment, functions: list[types.FunctionType]) -> Iterator[Problem]:
    """Find parameters that no function reads, fields that look swapped, and arrays of modules in functions."""
    reached = [function for function in kernels.reached(functions) if integers.in_environment(function)]
    read = {name for function in reached for name in _names(function.__code__)}
    unused = [name for name in environment.params._fields if name not in read]  # type: ignore[attr-defined]
    if unused:
        yield doubt(f"no function reads the parameter {listed(unused)} of {environment.params.__name__}; use it or remove it")
    states = {group.state.__name__: group.state._fields for group in environment.groups}
    for function in reached:
        yield from _swapped(function, states)
        for name in function.__code__.co_names:
            if isinstance(function.__globals__.get(name), np.ndarray):
                yield doubt(
                    f"{place_of(function)} reads {name}, an array of the module: its values are fixed when kernels are compiled; use tables"
                )


def _swapped(function: KernelFunction, states: Mapping[str, tuple[str, ...]]) -> Iterator[Problem]:
    """Find two fields of a state that look swapped: `a` gets `s.b`, and `b` gets a value that is computed from `s.a`."""
    code = function.__code__
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        return
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in states):
            continue
        given = dict(zip(states[call.func.id], call.args, strict=False)) | {word.arg: word.value for word in call.keywords if word.arg}
        for field, value in given.items():
            other = _bare(value)
            if other == field or other not in given:
                continue
            mentioned = {_bare(node) for node in ast.walk(given[other]) if isinstance(node, ast.expr)}
            if field in mentioned and other not in mentioned:
                where = f"{short(code.co_filename)}:{code.co_firstlineno + call.lineno - 1} in {function.__name__}"
                texts = f"{field} {ast.unparse(value)}, and {other} {ast.unparse(given[other])}"
                yield doubt(f"{where} gives {call.func.id}.{texts}: are they swapped?")


def _bare(node: ast.expr) -> str:
    """Return the name of `NAME` or `s.NAME`; empty for any other expression."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "s":
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _names(code: types.CodeType) -> set[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names(constant)
    return found


MOST_OPTIONS = 40
"""Most options of a choice that are compared."""
SNAPSHOTS = 24
"""Moments in which actions are compared."""
MOST_STEPS_APART = 8


def actions(engine: KernelEngine) -> Iterator[Problem]:
    """Find actions that never change anything, and pairs of actions that always do the same. Changes the state of the engine."""
    explorer = Explorer(engine.spec, engine.n_envs, seed=3)
    groups = engine.environment.groups
    compared: dict[tuple[str, int], set[tuple[int, int]]] = {}
    distinguished: dict[tuple[str, int], set[tuple[int, int]]] = {}
    engine.reset()
    for moment in range(SNAPSHOTS):
        chosen = explorer.choose(masks_of(engine.trajectory, 0))
        saved = {name: tensor.clone() for name, tensor in engine.state().items()}
        masks = masks_of(engine.trajectory, 0)
        masks = {name: None if mask is None else mask.copy() for name, mask in masks.items()}
        for group in groups:
            for component, options in _choices(group):
                found = distinguished.setdefault((group.name, component), set())
                tried = compared.setdefault((group.name, component), set())
                if len(found) == len(options) * (len(options) - 1) // 2:
                    continue
                outcomes = [_try(engine, saved, chosen, masks, group, component, option) for option in options]
                for a in range(len(options)):
                    for b in range(a):
                        both = outcomes[a][1] & outcomes[b][1]
                        if both.any():
                            tried.add((b, a))
                            if outcomes[a][0][both].tobytes() != outcomes[b][0][both].tobytes():
                                found.add((b, a))
        restore(engine.state(), saved)
        for _ in range(1 + moment * MOST_STEPS_APART // SNAPSHOTS):
            put(engine.trajectory, 0, chosen)
            engine.step(0)
            engine.carry_over()
            chosen = explorer.choose(masks_of(engine.trajectory, 0))
    for group in groups:
        parts = [(group.name, component) for component, _ in _choices(group)]
        if any(compared[part] for part in parts) and not any(distinguished[part] for part in parts):
            yield Problem(f"the action of {group.name} changes nothing, {phases_of(engine.environment, group)}; use the argument `action`")
            continue
        for component, options in _choices(group):
            yield from _judge(
                engine.environment, group, component, len(options), compared[group.name, component], distinguished[group.name, component]
            )


def _judge(
    environment: Environment,
    group: Group,
    component: int,
    options: int,
    compared: set[tuple[int, int]],
    found: set[tuple[int, int]],
) -> Iterator[Problem]:
    """Judge a component of an action; `compared`: pairs of options that were allowed together, `found`: those of them that differed."""
    where = phases_of(environment, group)
    several = group.action.components > 1
    which = f"component {component} of the action of {group.name}" if several else f"the action of {group.name}"
    if options < 2:
        yield doubt(f"{which} has one option only; nothing can be learned from it")
        return
    if compared and not found:
        yield doubt(f"{which} changes nothing, {where}; use all of the argument `action`")
        return
    if component >= len(group.action.choices):  # those of real numbers are three of many
        return
    same = compared - found
    alike = sorted({b for _, b in same})
    if alike:
        first = min(a for a, b in same if b == alike[0])
        yield doubt(
            f"options {first} and {alike[0]} of {which} did the same in {SNAPSHOTS} moments, {where}"
            f"{f' ({len(alike)} options like this)' if len(alike) > 1 else ''}; is the number of options too large?"
        )


def _choices(group: Group) -> list[tuple[int, list[float]]]:
    """Return every component of an action with the options to try."""
    space = group.action
    options: list[list[float]] = [list(range(min(size, MOST_OPTIONS))) for size in space.choices]
    return list(enumerate([*options, *[[-0.9, 0.1, 0.8]] * min(space.reals, MOST_OPTIONS)]))


def _try(
    engine: KernelEngine,
    saved: dict[str, torch.Tensor],
    chosen: Actions,
    masks: Masks,
    group: Group,
    component: int,
    option: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the results of a step with an option [N, numbers], and whether it was allowed for any actor [N]."""
    restore(engine.state(), saved)
    tried = {name: actions.copy() for name, actions in chosen.items()}
    allowed = np.ones(tried[group.name].shape[:2], bool)
    mask = masks[group.name]
    if mask is not None:
        allowed = mask[..., sum(group.action.choices[:component]) + int(option)]
    values = tried[group.name][..., component]
    values[allowed] = option
    put(engine.trajectory, 0, tried)
    engine.step(0)
    return _after(engine), np.asarray(allowed.any(-1))


def _after(engine: KernelEngine) -> np.ndarray:
    """Return all results of a step but the action itself, [N, numbers]."""
    taken, parts = engine.trajectory, []
    for name, group in taken.groups.items():
        parts += [group.reward[0], group.obs[1], *engine.state_of(name).values()]
        parts += [] if group.mask is None else [group.mask[1]]
    flat = [part.reshape(engine.n_envs, -1).double() for part in (*parts, taken.terminated[0], taken.truncated[0])]
    return torch.cat(flat, 1).numpy()


def resets(engine: KernelEngine) -> Iterator[Problem]:
    """Find fields that a new episode takes over from the one before. Changes the state of the engine."""
    begun = []
    for number in (0.0, -12345.75):
        for group in engine.environment.groups:
            engine.arrays.groups[group.name]["f"].fill_(number)
            engine.arrays.groups[group.name]["i"].fill_(int(number))
        engine.steps = 1
        engine.reset()
        begun.append({group.name: {n: v.clone() for n, v in engine.state_of(group.name).items()} for group in engine.environment.groups})
    first, other = begun
    for group in engine.environment.groups:
        for name, value in first[group.name].items():
            differs = value.numpy() != other[group.name][name].numpy()
            if not differs.any():
                continue
            elements = ""
            if value.ndim == 3:
                elements = f" (elements {listed(np.flatnonzero(differs.any((0, 1))))})"
            yield Problem(
                f"{place_of(group.reset)} does not set {group.state.__name__}.{name}{elements}: it keeps the value of the episode before;"
                f" fill it in reset"
            )


def constant_fields(engine: KernelEngine, run: Callable[[], object], rounds: int) -> Iterator[Problem]:
    """Find fields of the state that never change while `run` is called `rounds` times."""
    engine.reset()
    low, high = _snapshot(engine), _snapshot(engine)
    for _ in range(rounds):
        run()
        for key, value in _snapshot(engine).items():
            low[key], high[key] = np.fmin(low[key], value), np.fmax(high[key], value)
    for group in engine.environment.groups:
        constant = [
            f.name
            for f in group.fields
            if (low[group.name, f.name] == high[group.name, f.name]).all()
            and (low[group.name, f.name] == low[group.name, f.name][:1]).all()
        ]
        if constant:
            fields = listed(f"{group.state.__name__}.{name}" for name in constant)
            yield doubt(
                f"{fields} never changed, {phases_of(engine.environment, group)}; is a new value not passed on, or is it a parameter?"
            )


def _snapshot(engine: KernelEngine) -> dict[tuple[str, str], np.ndarray]:
    return {
        (group.name, name): value.numpy().copy()
        for group in engine.environment.groups
        for name, value in engine.state_of(group.name).items()
    }
