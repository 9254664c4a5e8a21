"""Mistakes of the user and runs that are lost, told in one line."""


class UserError(Exception):
    """What is wrong, where, and what to do, in one line; the command line exits with code 2."""


class TrainingFailed(Exception):
    """Where a run came to something that is not finite, in one line; the command line exits with code 1."""


def one_line(error: BaseException) -> str:
    """Say what happened in one line: the words of our own errors, or the type and the words of anything else."""
    words = " ".join(str(error).split())
    return words if isinstance(error, UserError | TrainingFailed) else f"{type(error).__name__}: {words}"
