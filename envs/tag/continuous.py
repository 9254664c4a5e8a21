"""Tag in the plane: taggers chase runners, who leave the game when they are tagged (WarpDrive's TagContinuous, see `envs.tag`).

A runner is tagged by the nearest tagger if that is less than `tagging_distance` times the side away after all have moved. An episode ends
when no runner is left or after `episode` steps; both are terminations, because actors observe the time.

Every step: all move; each runner finds the tagger that tags it, if any; each tagger counts the runners that it has tagged.
"""

from typing import NamedTuple

import numpy as np

from warprun.environment import Box, Environment, Group, Index, MultiDiscrete, Phase, float32, int32
from warprun.errors import UserError
from warprun.math import clip, cos, fmod, pi, sin, sqrt
from warprun.neighbours import cell_at, nearest, nearest_within, side_for
from warprun.random import randint, uniform

OBSERVATIONS = ("near", "full")
STARTS = ("fresh", "fixed")
BLOCKS = 7
"""Numbers that an actor sees of another one."""
TAU = 2.0 * pi


class Actor(NamedTuple):
    x: float32  # 0 to length
    y: float32
    speed: float32  # length per step
    direction: float32  # rad, 0 to 2 pi
    acceleration: float32  # length per step^2, kept from step to step
    alive: int32  # 0: tagged, and out of the game from the next step on
    seen: int32  # `alive` before the tags of this step: who was in the game then observes, and is observed
    tagger: int32  # of a runner: number of the tagger that has tagged it in this step, or -1


class Params(NamedTuple):
    length: float = 20.0  # of a side
    episode: int = 500  # steps
    max_speed: float = 1.0
    skill_tagger: float = 1.0  # times max_speed: the largest speed of taggers
    skill_runner: float = 1.0
    tagging_distance: float = 0.02  # times length
    tag_reward: float = 10.0  # for the tagger
    tag_penalty: float = -10.0  # for the runner
    end_reward: float = 1.0  # for runners that are left at the end
    step_tagger: float = 0.0  # reward of every step
    step_runner: float = 0.0
    edge_penalty: float = 0.0  # for a move over the edge
    exits: bool = True  # tagged runners leave the game


class Tables(NamedTuple):
    taggers: int
    actors: int
    neighbours: int  # that an actor sees
    side: int  # cells of a side of the index of all
    tagger_side: int  # of the index of taggers
    accelerations: np.ndarray  # [acceleration_levels + 1]: what each choice adds to the acceleration
    turns: np.ndarray  # [turn_levels + 1], rad: what each choice adds to the direction
    start: np.ndarray  # [actors, 3]: x / length, y / length and direction / (pi / 2) of start=fixed


def tables(
    taggers,
    runners,
    neighbours,
    acceleration_levels,
    min_acceleration,
    max_acceleration,
    turn_levels,
    min_turn,
    max_turn,
    start_seed,
):
    random, actors = np.random.default_rng(start_seed), taggers + runners
    start = np.column_stack((random.random((actors, 2)), random.integers(0, 4, actors))).astype(np.float32)
    sides = side_for(actors, crowd(neighbours)), side_for(taggers, 2)
    accelerations = choices(acceleration_levels, min_acceleration, max_acceleration)
    return Tables(taggers, actors, neighbours, *sides, accelerations, choices(turn_levels, min_turn, max_turn), start)


def choices(levels, lowest, highest):
    """Return what each choice adds: nothing for the first, then `levels` evenly spaced numbers."""
    return np.concatenate(([0.0], np.linspace(lowest, highest, levels))).astype(np.float32)


def crowd(neighbours):
    """Return how many actors there should be to a cell: so many that a search for neighbours mostly ends with the second ring of cells."""
    return max(2.0, neighbours / 5.0)


# Start -----------------------------------------------------------------------------------------------------------------------------------


def start_anywhere(rng, p):
    x, y = uniform(rng, 0, 0.0, p.length), uniform(rng, 1, 0.0, p.length)
    return Actor(x, y, 0.0, 0.5 * pi * float32(randint(rng, 2, 4)), 0.0, int32(1), int32(1), int32(-1))


def start_at(n, p, tables):
    x, y = tables.start[n, 0] * p.length, tables.start[n, 1] * p.length
    return Actor(x, y, 0.0, 0.5 * pi * tables.start[n, 2], 0.0, int32(1), int32(1), int32(-1))


def tagger_starts_at(i, p, tables):
    return start_at(i, p, tables)


def runner_starts_at(i, p, tables):
    return start_at(tables.taggers + i, p, tables)


# Step ------------------------------------------------------------------------------------------------------------------------------------


def move(s, action, p, tables, skill, step_reward):
    """Return an actor after its move, and its reward so far."""
    accelerate, turn = action
    if s.alive == 0:
        return Actor(s.x, s.y, 0.0, 0.0, 0.0, s.alive, s.seen, int32(-1)), 0.0
    fastest = p.max_speed * skill
    direction = fmod(s.direction + tables.turns[turn], TAU)
    direction = direction + TAU if direction < 0.0 else direction
    acceleration = s.acceleration + tables.accelerations[accelerate]
    speed = clip(s.speed + acceleration, 0.0, fastest)
    # Sums of table entries only, without products: all targets must agree on what is exactly 0 here.
    acceleration = 0.0 if speed == 0.0 or speed == fastest else acceleration
    x, y = s.x + speed * cos(direction), s.y + speed * sin(direction)
    inside_x, inside_y = clip(x, 0.0, p.length), clip(y, 0.0, p.length)
    beyond = x != inside_x or y != inside_y
    moved = Actor(inside_x, inside_y, speed, direction, acceleration, s.alive, s.seen, int32(-1))
    return moved, step_reward + (p.edge_penalty if beyond else 0.0)


def tagger_moves(s, action, p, tables):
    moved, reward = move(s, action, p, tables, p.skill_tagger, p.step_tagger)
    return moved, reward, False


def runner_moves(s, action, p, tables):
    moved, reward = move(s, action, p, tables, p.skill_runner, p.step_runner)
    return moved, reward, False


def be_tagged(s, t, p, tables, hunters):
    """Find the tagger that tags a runner; runners that are left at the end gain the end reward."""
    at = nearest_within(hunters, s.x, s.y, p.tagging_distance * p.length, p.length, tables.tagger_side) if s.alive == 1 else -1
    tagger = hunters.actor[at] if at >= 0 else -1
    alive = 0 if at >= 0 and p.exits else s.alive
    reward = (p.tag_penalty if at >= 0 else 0.0) + (p.end_reward if alive == 1 and t + 1 >= p.episode else 0.0)
    return Actor(s.x, s.y, s.speed, s.direction, s.acceleration, alive, s.alive, tagger), reward, False


def tag(s, i, t, p, tagged, runners_sum):
    """Count the runners that a tagger has tagged."""
    count = tagged.first[i + 1] - tagged.first[i]
    return s, p.tag_reward * float32(count), runners_sum.alive == 0.0 or t + 1 >= p.episode


# Cells -----------------------------------------------------------------------------------------------------------------------------------


def cell_in_game(s, p, tables):
    return cell_at(s.x, s.y, p.length, tables.side) if s.seen == 1 else -1


def cell_of_hunter(s, p, tables):
    return cell_at(s.x, s.y, p.length, tables.tagger_side)


def own_tagger(s):
    return s.tagger


def anywhere():
    return 0


# Observe ---------------------------------------------------------------------------------------------------------------------------------


def look(s, out, t, p, tables, actors, me):
    """Write what an actor sees of its nearest neighbours in the game: one block of numbers for each feature, and the time."""
    k = tables.neighbours
    if s.seen == 0:
        for n in range(BLOCKS * k + 1):
            out[n] = 0.0
        return
    found = nearest(actors, s.x, s.y, me, k, p.length, tables.side, out)
    place = 1.0 / (p.length * sqrt(2.0))
    for n in range(found):
        at = int32(out[k + n])
        out[n] = (actors.x[at] - s.x) * place
        out[k + n] = (actors.y[at] - s.y) * place
        out[2 * k + n] = (actors.speed[at] - s.speed) / p.max_speed
        out[3 * k + n] = (actors.acceleration[at] - s.acceleration) / p.max_speed
        out[4 * k + n] = (actors.direction[at] - s.direction) / TAU
        out[5 * k + n] = 1.0 if actors.actor[at] < tables.taggers else 0.0
        out[6 * k + n] = 1.0
    for block in range(BLOCKS):
        for n in range(found, k):
            out[block * k + n] = 0.0
    out[BLOCKS * k] = float32(t) / float32(p.episode)


def tagger_looks(s, i, out, t, p, tables, actors):
    look(s, out, t, p, tables, actors, i)


def runner_looks(s, i, out, t, p, tables, actors):
    look(s, out, t, p, tables, actors, tables.taggers + i)


def look_at_all(s, out, t, p, tables, everyone, me):
    """Write the same features of all other actors by their numbers, also of those that are out of the game."""
    others, place = tables.actors - 1, 1.0 / (p.length * sqrt(2.0))
    present = 1.0 if s.seen == 1 else 0.0
    for n in range(others):
        j = n if n < me else n + 1
        out[n] = present * (everyone.x[j] - s.x) * place
        out[others + n] = present * (everyone.y[j] - s.y) * place
        out[2 * others + n] = present * (everyone.speed[j] - s.speed) / p.max_speed
        out[3 * others + n] = present * (everyone.acceleration[j] - s.acceleration) / p.max_speed
        out[4 * others + n] = present * (everyone.direction[j] - s.direction) / TAU
        out[5 * others + n] = 1.0 if j < tables.taggers else 0.0
        out[6 * others + n] = everyone.seen[j]
    out[BLOCKS * others] = present * float32(t) / float32(p.episode)


def tagger_looks_at_all(s, i, out, t, p, tables, everyone):
    look_at_all(s, out, t, p, tables, everyone, i)


def runner_looks_at_all(s, i, out, t, p, tables, everyone):
    look_at_all(s, out, t, p, tables, everyone, tables.taggers + i)


def environment(
    taggers=10,
    runners=100,
    observation="near",
    neighbours=10,
    acceleration_levels=20,
    min_acceleration=-0.1,
    max_acceleration=0.1,
    turn_levels=20,
    min_turn=-2.356,
    max_turn=2.356,
    start="fresh",
    start_seed=0,
) -> Environment:
    """Make the environment; docs/gallery.md describes the options."""
    counts = {
        "taggers": taggers,
        "runners": runners,
        "neighbours": neighbours,
        "acceleration_levels": acceleration_levels,
        "turn_levels": turn_levels,
    }
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise UserError(f"env.options.{name}={count!r} must be a whole number, 1 or more")
    ranges = {
        "min_acceleration": min_acceleration,
        "max_acceleration": max_acceleration,
        "min_turn": min_turn,
        "max_turn": max_turn,
    }
    for name, number in ranges.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not np.isfinite(number):
            raise UserError(f"env.options.{name}={number!r} must be a finite number")
    if isinstance(start_seed, bool) or not isinstance(start_seed, int) or start_seed < 0:
        raise UserError(f"env.options.start_seed={start_seed!r} must be a whole number, 0 or more")
    if observation not in OBSERVATIONS:
        raise UserError(f"env.options.observation={observation!r} must be one of {', '.join(OBSERVATIONS)}")
    if start not in STARTS:
        raise UserError(f"env.options.start={start!r} must be one of {', '.join(STARTS)}")
    actors, full, fresh = taggers + runners, observation == "full", start == "fresh"
    seen = Box(BLOCKS * (actors - 1 if full else neighbours) + 1)
    action = MultiDiscrete((acceleration_levels + 1, turn_levels + 1))
    tagger_begins, runner_begins = (start_anywhere, start_anywhere) if fresh else (tagger_starts_at, runner_starts_at)
    tagger_sees, runner_sees = (tagger_looks_at_all, runner_looks_at_all) if full else (tagger_looks, runner_looks)
    kinematics = ("x", "y", "speed", "acceleration", "direction")
    everyone = Index("everyone", ("taggers", "runners"), 1, anywhere, (*kinematics, "seen"))
    in_game = Index("actors", ("taggers", "runners"), side_for(actors, crowd(neighbours)) ** 2, cell_in_game, kinematics)
    return Environment(
        groups=(
            Group("taggers", taggers, Actor, seen, action, tagger_begins, tagger_sees),
            Group("runners", runners, Actor, seen, action, runner_begins, runner_sees, sums=("alive",), alive="alive"),
        ),
        phases=(Phase("taggers", tagger_moves), Phase("runners", runner_moves), Phase("runners", be_tagged), Phase("taggers", tag)),
        params=Params,
        tables=tables,
        options=counts | ranges | {"start_seed": start_seed},
        indices=(
            everyone if full else in_game,
            Index("hunters", ("taggers",), side_for(taggers, 2) ** 2, cell_of_hunter, ("x", "y")),
            # The runners by the tagger that has tagged them.
            Index("tagged", ("runners",), taggers, own_tagger),
        ),
    )


TRAIL = 5
"""Steps of an actor's past that a picture shows."""


def draw(axes, p):
    """Draw the square with taggers, runners, and where they have come from; tagged runners stay as crosses."""
    lines = {}
    for name, color in (("runners", "#e69f00"), ("taggers", "#0072b2")):
        (trails,) = axes.plot((), (), color=color, linewidth=0.8, alpha=0.5)
        (free,) = axes.plot((), (), "o", color=color, markersize=5 if name == "taggers" else 3.5)
        (tagged,) = axes.plot((), (), "x", color="0.75", markersize=3)
        lines[name] = trails, free, tagged
    axes.set(xlim=(0, p.length), ylim=(0, p.length), aspect="equal", xticks=(), yticks=())
    axes.figure.set_size_inches(4.5, 4.5)

    def show(state, past):
        for name, (trails, free, tagged) in lines.items():
            now, before = state[name], past[name]
            x, y, alive = (np.atleast_1d(values) for values in (now.x, now.y, now.alive))
            steps = (np.reshape(values[-TRAIL:], (-1, len(x)))[:, alive == 1] for values in (before.x, before.y))
            # One line for all: a row of NaN ends the trail of each actor.
            trails.set_data(*(np.pad(values, ((0, 1), (0, 0)), constant_values=np.nan).ravel("F") for values in steps))
            free.set_data(x[alive == 1], y[alive == 1])
            tagged.set_data(x[alive == 0], y[alive == 0])

    return show
