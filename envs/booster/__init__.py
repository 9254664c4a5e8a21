"""A surrogate of accelerator control: hold the current of a magnet power supply at its setting, 15 times a second.

The task is that of EXARL's ExaBooster. The plant is linear and was fitted to published numbers, because neither the recorded data nor the
trained network that ExaBooster steps are used here. So this is a surrogate of a surrogate. It is no digital twin of the Fermilab Booster,
and its numbers say nothing about the real machine. `published` has the numbers and their sources, `model` the equations.
"""

from functools import partial

from warprun.environment import Box, Discrete, single_agent
from warprun.envs.booster import model, start
from warprun.errors import UserError

__all__ = ["draw", "environment", "report"]

TIME_LIMIT = 100
CHOICES = {
    "scaling": ("robust", "minmax"),
    "action": ("discrete", "continuous"),
    "plant": ("full", "simple"),
    "mode": ("corrected", "compat"),
}


def environment(history=15, scaling="robust", action="discrete", plant="full", mode="corrected", time_limit=TIME_LIMIT):
    """Make the environment; the arguments are its options.

    history: samples of the five signals in an observation, 1 to 150. scaling: by median and interquartile range (robust), or to 0..1.
    mode: corrected; compat: the fixed start and the ends of episodes of ExaBooster, which pay for leaving the window at once.
    """
    if type(history) is not int or not 1 <= history <= start.WINDOW:
        raise UserError(f"env.history={history} must be a whole number from 1 to {start.WINDOW}")
    for name, given in {"scaling": scaling, "action": action, "plant": plant, "mode": mode}.items():
        if given not in CHOICES[name]:
            raise UserError(f"env.{name}={given}: there is no such {name}; there are {', '.join(CHOICES[name])}")
    features = model.SEEN * history
    continuous, compat = action == "continuous", mode == "compat"
    return single_agent(
        state=model.State,
        observation=Box(features),
        action=Box(1, *start.bounds()) if continuous else Discrete(start.ACTIONS),
        reset=model.reset_fixed if compat else model.reset_anywhere,
        step=model.step_continuous if continuous else model.step_discrete,
        observe=model.observe,
        params=start.PLANTS[plant],
        time_limit=time_limit,
        tables=partial(start.make_tables, history, scaling, plant, compat, time_limit),
        lengths={"seen": features},
    )


def report(play, folder):
    """Compare a run with baselines on the same disturbances; see `warprun.envs.booster.analysis`."""
    from warprun.envs.booster.analysis import report as write

    return write(play, folder)


def draw(axes, past, tables):
    """Draw the course of IMINER and VIMIN until now."""
    from warprun.envs.booster import figures

    figures.draw_moment(axes, past, tables)
