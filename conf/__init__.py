"""Hydra config groups; installed as warprun.conf."""
