"""Everything that workers need to train, imported by the server that forks them."""

import gc

gc.disable()  # imports make 250,000 objects that stay: collections among them take 0.4 s

import warprun.runs.train  # noqa: E402, F401

gc.freeze()  # nor do collections in workers look at them, so the pages of memory stay shared
gc.enable()
