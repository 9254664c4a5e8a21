"""Mistakes of the user, told in one line."""


class UserError(Exception):
    """What is wrong, where, and what to do, in one line; the command line exits with code 2."""
