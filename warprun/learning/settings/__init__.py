"""Settings of agents and what follows from them before anything is built: neither torch nor numba nor Hydra, so mistakes are told at once.

`agent` has the settings that all agents have and those of single groups, `off_policy` what off-policy agents share, `networks` those of
networks, `checks` the checks of values; `byte_counts` says what memory agents need, `plan` how a run executes.
"""
