"""COVID-19 economy: 51 governors choose how strict measures are, a federal planner chooses payments; health against the economy.

The model is a proof of concept by Trott, Srinivasa, van der Wal, Haneuse and Zheng ("Building a foundation for data-driven,
interpretable, and robust policy design using the AI Economist", arXiv 2108.02904). It is not for real policy making: see its authors'
simulation card, https://github.com/salesforce/ai-economist/blob/master/COVID-19_Simulation-Card.pdf. The parameters and the history
come from their ai-economist package (BSD-3-Clause, (c) 2020 Salesforce.com); see data.py for its sources.
"""

from warprun.envs.covid.data import fetch_data
from warprun.envs.covid.model import environment
from warprun.envs.covid.report import report

__all__ = ["draw", "environment", "fetch_data", "report"]


def draw(axes, tables):
    """Draw the levels of the states as a map, and the course of the country: deaths, unemployment and subsidies."""
    from warprun.envs.covid import figures

    return figures.draw_episode(axes, tables)
