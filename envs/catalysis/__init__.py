"""Reaction paths on an energy landscape: how H reaches NH2 on Fe(111), and the same task on surfaces of your own."""

from functools import partial

from warprun.environment import Box, Discrete, single_agent
from warprun.envs.catalysis import continuous as free
from warprun.envs.catalysis import lattice
from warprun.envs.catalysis.landscape import fewest_steps, landscape
from warprun.envs.catalysis.surfaces import fetch as fetch_data
from warprun.errors import UserError

__all__ = ["draw", "environment", "fetch_data", "report"]

TIME_LIMIT = 500
"""Steps of an episode in the published task."""
FEATURES = {"published": 4, "periodic": 6, "neighbours": 12}
"""Size of each kind of observation: published; x and y as points on a circle; the same with the energy difference to each neighbour."""


def environment(
    scenario=None,
    pes=None,
    start=None,
    goal=None,
    goal_reward=None,
    reference=None,
    energy_scale=None,
    periodic=None,
    accept_below_reference=False,
    observation="published",
    continuous=False,
    time_limit=TIME_LIMIT,
):
    """Make the environment of a scenario or a surface; the arguments are the options of the environment."""
    made = landscape(scenario, pes, start, goal, goal_reward, reference, energy_scale, periodic, accept_below_reference)
    if observation not in FEATURES:
        raise UserError(f"env.observation={observation}: there is no such observation; there are {', '.join(FEATURES)}")
    if not isinstance(continuous, bool):
        raise UserError(f"env.continuous={continuous} must be true or false")
    fewest = fewest_steps(made)
    if fewest > time_limit:
        raise UserError(f"the goal {list(made.goal)} cannot be reached: it is {fewest} moves from the start, env.time_limit={time_limit}")
    dynamics = free if continuous else lattice
    observers = {"published": dynamics.observe, "periodic": dynamics.observe_periodic, "neighbours": dynamics.observe_neighbours}
    return single_agent(
        state=dynamics.State,
        observation=Box(FEATURES[observation]),
        action=Box(3, -1.0, 1.0) if continuous else Discrete(6),
        reset=dynamics.reset,
        step=dynamics.step,
        observe=observers[observation],
        params=dynamics.Params,
        time_limit=time_limit,
        tables=partial(lattice.make_tables, made),
    )


def report(play, folder):
    """Write the paths and figures of a run; see `warprun.envs.catalysis.analysis`."""
    # Imported here because the solver of exact paths needs numba.
    from warprun.envs.catalysis import analysis

    return analysis.report(play(), play.environment.tables.args[0], folder)


def draw(axes, tables):
    """Draw the layer that the atom is in with its path so far, and the energy along the path."""
    from warprun.envs.catalysis import figures

    return figures.draw_episode(axes, tables)
