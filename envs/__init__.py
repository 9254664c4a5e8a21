"""Environments, one per file or package; installed as warprun.envs."""
