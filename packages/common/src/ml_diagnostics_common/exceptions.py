"""The errors that our libraries raise on invalid input or a missing part.

    DiagnosticsError
    ├── ConfigurationError        (also a ValueError) an argument or an environment variable is invalid
    ├── CredentialsError          Google Cloud is required, and no project or credentials were found
    │   └── NoCloudError              nothing on this machine points to Google Cloud, such as a laptop
    ├── MissingExtraError         (also an ImportError) an optional dependency is not installed
    ├── CloudLoggingError         a request to Cloud Logging failed
    └── StorageError              a file or an object could not be read or written
        ├── ObjectNotFoundError       (also a FileNotFoundError)
        └── PreconditionFailedError   another process wrote the object first

A recording call raises none of them: see `guard`. `failures` has the kinds of failures of remote calls.
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
    """Base class of all errors of our libraries."""


class ConfigurationError(DiagnosticsError, ValueError):
    """An argument or an environment variable has an invalid value."""


class CredentialsError(DiagnosticsError):
    """Google Cloud is required, and no project or no valid credentials were found."""


class NoCloudError(CredentialsError):
    """Neither a project nor credentials are set up, and this is not one of Google's machines, as on a laptop."""


class MissingExtraError(DiagnosticsError, ImportError):
    """A feature needs an optional dependency that is not installed."""

    def __init__(self, feature: str, distribution: str, extra: str) -> None:
        """Name the feature, and the command that installs its dependencies."""
        self._arguments = feature, distribution, extra
        command = f"pip install '{distribution}[{extra}]'"
        super().__init__(f"{feature} needs an optional dependency; install it with: {command}")

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str, str]]:
        return MissingExtraError, self._arguments


class CloudLoggingError(DiagnosticsError):
    """A request to Cloud Logging failed."""


class StorageError(DiagnosticsError):
    """A file or an object could not be read or written."""


class ObjectNotFoundError(StorageError, FileNotFoundError):
    """The file or object does not exist."""


class PreconditionFailedError(StorageError):
    """The file or object is not in the state that the caller requires: another process wrote it first."""
