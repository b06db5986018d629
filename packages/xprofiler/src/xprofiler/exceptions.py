"""What can go wrong, and the exit code that it means.

XprofilerError             1  it could not be done
├── UsageError             2  the command was not understood
├── NotFoundError          3  there is no such VM, pod, bucket, profile or program
├── NotPermittedError      4  no credentials, or they may not do this
├── TimedOutError          5  it was not done in time
└── DeclinedError          1  the user said no

Its base is that of all our libraries, `DiagnosticsError`.
"""

from __future__ import annotations

from typing import ClassVar, Final

from ml_diagnostics_common.exceptions import ConfigurationError, DiagnosticsError

__all__ = [
    "DONE",
    "EXIT_CODES",
    "INTERRUPTED",
    "DeclinedError",
    "NotFoundError",
    "NotPermittedError",
    "TimedOutError",
    "UsageError",
    "XprofilerError",
    "exit_code_of",
]

DONE: Final = 0
INTERRUPTED: Final = 130
EXIT_CODES: Final = (
    "exit codes: 0 done, 1 failed or declined, 2 not understood, 3 not found, 4 credentials or permission, "
    "5 timed out, 130 interrupted"
)


class XprofilerError(DiagnosticsError):
    """A command could not be carried out; the message says what happened, to what, and what to do.

    Attributes:
        exit_code: What the process ends with.
    """

    exit_code: ClassVar[int] = 1


class UsageError(XprofilerError):
    """The command was not understood, or asks for what cannot be."""

    exit_code = 2


class NotFoundError(XprofilerError):
    """There is no such VM, pod, bucket, profile, or program of this machine."""

    exit_code = 3


class NotPermittedError(XprofilerError):
    """There are no credentials, or they may not do this."""

    exit_code = 4


class TimedOutError(XprofilerError):
    """It was not done in time; what remains is said."""

    exit_code = 5


class DeclinedError(XprofilerError):
    """The user said no."""


def exit_code_of(error: BaseException) -> int:
    """Returns what the process ends with for an error that nobody has put into words of ours.

    Args:
        error: Ours, or one of the libraries below.
    """
    from ml_diagnostics_common.storage.failures import Failure, failure_of

    if isinstance(error, XprofilerError):
        return error.exit_code
    if isinstance(error, FileNotFoundError) and error.filename:  # Without, it is no file of the user's.
        return NotFoundError.exit_code
    if isinstance(error, ConfigurationError):
        return UsageError.exit_code
    codes = {Failure.REFUSED: NotPermittedError, Failure.MISSING: NotFoundError, Failure.UNANSWERED: TimedOutError}
    return codes.get(failure_of(error), XprofilerError).exit_code
