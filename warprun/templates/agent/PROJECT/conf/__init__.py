"""Config groups of PROJECT."""
