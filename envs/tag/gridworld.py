"""Tag on a grid: taggers chase one runner, and all of them share the reward of a catch (WarpDrive's TagGridWorld, see `envs.tag`).

A catch is a tagger in the runner's cell after both have moved; swapping cells is none. An episode ends with a catch or after `episode`
steps. Both are terminations, because actors observe the time.
"""

from typing import NamedTuple

from warprun.environment import Box, Discrete, Environment, Group, Index, Phase, float32, int32
from warprun.errors import UserError
from warprun.random import randint

OBSERVATIONS = ("full", "near")
STARTS = ("fixed", "pool")
NEAR = 6
"""Numbers of a near observation."""


class Actor(NamedTuple):
    x: int32  # cell, 0 to size
    y: int32
    caught: int32  # of the runner: whether a tagger has caught it in this step


class Params(NamedTuple):
    size: int = 100  # last cell of a side, which has size + 1
    episode: int = 100  # steps
    wall_penalty: float = 0.1  # for a move against a wall
    tag_reward: float = 10.0  # for every tagger, for a catch
    tag_penalty: float = 5.0  # for the runner
    step_cost: float = 0.01  # for every tagger, for a step without a catch; the runner gains it


class Tables(NamedTuple):
    taggers: int


def tables(taggers):
    return Tables(taggers)


def start_in_the_middle(p):
    return Actor(p.size // 2, p.size // 2, int32(0))


def start_anywhere(rng, p):
    return Actor(1 + randint(rng, 0, p.size - 1), 1 + randint(rng, 1, p.size - 1), int32(0))


def start_in_the_corner():
    return Actor(int32(0), int32(0), int32(0))


def move(s, action, p):
    x = s.x + (1 if action == 1 else 0) - (1 if action == 2 else 0)
    y = s.y + (1 if action == 3 else 0) - (1 if action == 4 else 0)
    inside_x, inside_y = min(max(x, 0), p.size), min(max(y, 0), p.size)
    blocked = x != inside_x or y != inside_y
    return Actor(inside_x, inside_y, int32(0)), -p.wall_penalty if blocked else 0.0, False


def be_caught(s, t, p, tables, everyone):
    caught = False
    for j in range(tables.taggers):
        caught = caught or (everyone.x[j] == float32(s.x) and everyone.y[j] == float32(s.y))
    return Actor(s.x, s.y, 1 if caught else 0), -p.tag_penalty if caught else p.step_cost, caught or t + 1 >= p.episode


def catch(s, p, runner):
    return s, p.tag_reward if runner.caught == 1 else -p.step_cost, False


def see_all(out, t, p, everyone, me, actors):
    for j in range(actors):
        out[j] = everyone.x[j] / float32(p.size)
    for j in range(actors):
        out[actors + j] = everyone.y[j] / float32(p.size)
    for j in range(actors):
        out[2 * actors + j] = 1.0 if j == actors - 1 else 0.0
    for j in range(actors):
        out[3 * actors + j] = 1.0 if j == me else 0.0
    out[4 * actors] = float32(t) / float32(p.episode)


def tagger_sees_all(i, out, t, p, tables, everyone):
    see_all(out, t, p, everyone, i, tables.taggers + 1)


def runner_sees_all(out, t, p, tables, everyone):
    see_all(out, t, p, everyone, tables.taggers, tables.taggers + 1)


def tagger_sees_runner(s, t, p, runner):
    size, time = float32(p.size), float32(t) / float32(p.episode)
    return float32(s.x) / size, float32(s.y) / size, float32(runner.x) / size, float32(runner.y) / size, 0.0, time


def runner_sees_nearest(s, t, p, tables, everyone):
    x, y, nearest, square = float32(s.x), float32(s.y), 0, float32(2**31)
    for j in range(tables.taggers):
        dx, dy = everyone.x[j] - x, everyone.y[j] - y
        if dx * dx + dy * dy < square:
            nearest, square = j, dx * dx + dy * dy
    size = float32(p.size)
    return x / size, y / size, everyone.x[nearest] / size, everyone.y[nearest] / size, 1.0, float32(t) / float32(p.episode)


def anywhere():
    return 0


def environment(taggers=4, observation="full", start="fixed") -> Environment:
    """Make the environment; docs/gallery.md describes the options."""
    if isinstance(taggers, bool) or not isinstance(taggers, int) or taggers < 1:
        raise UserError(f"env.options.taggers={taggers!r} must be a whole number, 1 or more")
    if observation not in OBSERVATIONS:
        raise UserError(f"env.options.observation={observation!r} must be one of {', '.join(OBSERVATIONS)}")
    if start not in STARTS:
        raise UserError(f"env.options.start={start!r} must be one of {', '.join(STARTS)}")
    full = observation == "full"
    seen = Box(4 * (taggers + 1) + 1 if full else NEAR)
    begin = start_in_the_middle if start == "fixed" else start_anywhere
    return Environment(
        groups=(
            Group("taggers", taggers, Actor, seen, Discrete(5), begin, tagger_sees_all if full else tagger_sees_runner),
            Group("runner", 1, Actor, seen, Discrete(5), start_in_the_corner, runner_sees_all if full else runner_sees_nearest),
        ),
        phases=(Phase("taggers", move), Phase("runner", move), Phase("runner", be_caught), Phase("taggers", catch)),
        params=Params,
        tables=tables,
        options={"taggers": taggers},
        # One cell holds all actors: an array of them by number, also where a group has a single actor.
        indices=(Index("everyone", ("taggers", "runner"), 1, anywhere, ("x", "y")),),
    )


def draw(axes, p):
    """Draw the grid with the taggers and the runner."""
    (taggers,) = axes.plot((), (), "o", color="#0072b2", markersize=8)
    (runner,) = axes.plot((), (), "o", color="#d55e00", markersize=10)
    axes.set(xlim=(-1, p.size + 1), ylim=(-1, p.size + 1), aspect="equal", xticks=(), yticks=())

    def show(state):
        taggers.set_data(state["taggers"].x, state["taggers"].y)
        runner.set_data((state["runner"].x,), (state["runner"].y,))

    return show
