"""Names of jobs and logs, as users give them."""

from __future__ import annotations

from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.payload import printable

__all__ = ["checked_name", "shown"]


def checked_name(argument: str, value: object) -> str:
    """Returns a name as recorders write it.

    Raises:
        ConfigurationError: It is no text, or a blank one.
    """
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{argument} is {shown(value)}; give a text that is not empty, such as the run's name")
    return printable(value)


def shown(value: object) -> str:
    """Returns the value for an error's message: short, and whatever its `repr` does."""
    try:
        return repr(value)[:100]
    except Exception:
        return f"an object of {type(value).__name__}"
