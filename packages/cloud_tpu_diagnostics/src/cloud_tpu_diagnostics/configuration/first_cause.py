"""The first cause of the end of a job, as fast-fail decides it; without dataclasses, which cost companions memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["FirstCause"]


class FirstCause(NamedTuple):
    """The end of a process that caused the end of the job.

    Attributes:
        process_indices: The indexes of the processes; several if their order in time cannot be known.
        hosts: Their hosts.
        how: `exception`, `exit`, `signal`, `out_of_memory`, `clean` or `hang`: of the first of them.
        signal: The signal that ended it, such as SIGKILL; None if there was none.
        exit_code: Its exit code; None if it is unknown, or has not ended.
        exception: The exception that left its block, type and text; None if there was none.
        step: Its last step; None if it is unknown.
        confidence: `proven`, `likely` or `possible`.
        ended_ns: When it failed, in ns since 1970, by the clock of its host; None if it is unknown.
        message: The same as a sentence.
    """

    process_indices: tuple[int, ...]
    hosts: tuple[str, ...]
    how: str
    signal: str | None
    exit_code: int | None
    exception: str | None
    step: int | None
    confidence: str
    ended_ns: int | None
    message: str

    def to_json(self) -> dict[str, Any]:
        """Return it as values of JSON."""
        return {**self._asdict(), "process_indices": list(self.process_indices), "hosts": list(self.hosts)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> FirstCause:
        """Return the first cause in the result of `to_json`; a missing field is None."""
        fields = {name: values.get(name) for name in cls._fields}
        for name in ("process_indices", "hosts"):
            fields[name] = tuple(fields[name] or ())
        return cls(**fields)  # type: ignore[arg-type]
