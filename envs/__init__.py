"""Environments, one a file; installed as warprun.envs."""
