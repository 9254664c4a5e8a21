"""Define the errors that the command line reports in one line."""


class UserError(Exception):
    """A mistake of the user: one line that says what is wrong, where, and what to do. Exit code 2."""


class TrainingFailed(Exception):
    """A run that produced a number that is not finite: one line that says where. Exit code 1."""


def one_line(error: BaseException) -> str:
    """Return an error as one line: the message of a `UserError` or `TrainingFailed`, else type and message."""
    words = " ".join(str(error).split())
    return words if isinstance(error, UserError | TrainingFailed) else f"{type(error).__name__}: {words}"
