"""Reaction paths on an energy landscape: how H reaches NH2 on Fe(111), and the same task on surfaces of your own."""

from warprun.envs.catalysis.lattice import environment
from warprun.envs.catalysis.surfaces import fetch as fetch_data

__all__ = ["environment", "fetch_data"]
