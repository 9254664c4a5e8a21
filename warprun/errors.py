"""Mistakes of the user and runs that are lost, told in one line."""


class UserError(Exception):
    """What is wrong, where, and what to do, in one line; the command line exits with code 2."""


class TrainingFailed(Exception):
    """Where a run came to something that is not finite, in one line; the command line exits with code 1."""
