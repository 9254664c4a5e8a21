"""Settings of agents and what follows from them before anything is built: neither torch nor numba nor Hydra, so mistakes are told at once.

`agent` has the settings that all agents have and those of single groups; `on_policy` and `off_policy` add those of a kind. `networks` has
those of networks, `checks` the checks of values, `byte_counts` the memory that agents need, and `plan` how a run executes.
"""
