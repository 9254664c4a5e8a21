"""Two games of tag of WarpDrive 2.7.1, on a grid and in the plane: taggers chase runners, each kind with its own policy.

T. Lan, S. Srinivasa, H. Wang, S. Zheng, "WarpDrive: Fast End-to-End Deep Multi-Agent Reinforcement Learning on a GPU", JMLR 23(316), 2022,
arXiv 2108.13976; the package is under the license BSD-3-Clause. Rules and default numbers are those of its Python classes.
"""
