"""The errors that our libraries raise on bad input or a missing part.

    DiagnosticsError
    ├── ConfigurationError        (also a ValueError) an argument or a variable of the environment is wrong
    ├── CredentialsError          Google Cloud was asked for and no project or credentials were found
    │   └── NoCloudError              nothing on this machine points to Google Cloud: a laptop, for instance
    ├── MissingExtraError         (also an ImportError) an optional dependency is not installed
    ├── CloudLoggingError         a request to Cloud Logging failed for good
    └── StorageError              a file or an object could not be read or written
        ├── ObjectNotFoundError       (also a FileNotFoundError)
        └── PreconditionFailedError   somebody else wrote the object first

Nothing here is ever raised by a recording call: see `guard`.
"""

from __future__ import annotations

__all__ = [
    "CloudLoggingError",
    "ConfigurationError",
    "CredentialsError",
    "DiagnosticsError",
    "MissingExtraError",
    "NoCloudError",
    "ObjectNotFoundError",
    "PreconditionFailedError",
    "StorageError",
]


class DiagnosticsError(Exception):
    """Base of every error that our libraries raise."""


class ConfigurationError(DiagnosticsError, ValueError):
    """An argument or a variable of the environment has a value that cannot work."""


class CredentialsError(DiagnosticsError):
    """Google Cloud was asked for, and no project or no usable credentials were found."""


class NoCloudError(CredentialsError):
    """Neither a project nor credentials are set up, and this is not one of Google's machines: nothing is wrong."""


class MissingExtraError(DiagnosticsError, ImportError):
    """A feature needs an optional dependency that is not installed."""

    def __init__(self, feature: str, distribution: str, extra: str) -> None:
        """Names the feature, and the command that installs what it needs."""
        self._arguments = feature, distribution, extra
        command = f"pip install '{distribution}[{extra}]'"
        super().__init__(f"{feature} needs an optional dependency; install it with: {command}")

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str, str]]:
        return MissingExtraError, self._arguments


class CloudLoggingError(DiagnosticsError):
    """A request to Cloud Logging failed, and a retry would fail, too."""


class StorageError(DiagnosticsError):
    """A file or an object could not be read or written."""


class ObjectNotFoundError(StorageError, FileNotFoundError):
    """There is no such file or object."""


class PreconditionFailedError(StorageError):
    """The file or object is not in the state that the caller asked for: somebody else wrote it first."""
