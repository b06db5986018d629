"""Names of jobs, logs and events, as users give them."""

from __future__ import annotations

from functools import lru_cache

from ml_diagnostics_common.exceptions import ConfigurationError
from ml_diagnostics_common.payload import printable

__all__ = ["checked_name", "event_type", "shown"]


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


def event_type(name: object) -> str:
    """Return the name of a custom event as it is recorded: without secrets.

    Most names are words: they cost no import of the redactor, which a trainer that records nothing else does not need.
    """
    text = str(name)
    return text if text.replace("_", "").isalpha() else _redacted(text)


@lru_cache(maxsize=256)
def _redacted(text: str) -> str:
    from ml_diagnostics_common.redaction import redact_text

    return redact_text(text)
