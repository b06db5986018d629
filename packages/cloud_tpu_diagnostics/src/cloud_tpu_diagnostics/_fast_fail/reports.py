"""The reports of companions to the hub: their identity, the state of their jobs, and events. Pure.

Values from the network are checked here: of the expected type, and short.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ml_diagnostics_common.story import ProcessEnd

from cloud_tpu_diagnostics._fast_fail.messages import RefusedError, short

__all__ = ["ASKED", "ENDED", "LEFT", "Event", "Hello", "JobState"]

LEFT: Final = "left"
ENDED: Final = "ended"
ASKED: Final = "asked"
"""The kinds of events: the job has left its block, its process has ended, it was asked to end."""

_KINDS: Final = (LEFT, ENDED, ASKED)
_MOST_NUMBER: Final = 2**63
_MOST_PROCESSES: Final = 1_000_000
_MOST_SECONDS: Final = 1e10


class Hello(NamedTuple):
    """A companion, and the process that it accompanies.

    Attributes:
        process_index: The process's index among all of the job.
        host: Its host.
        pid: The process.
        companion: The companion's own process: a later block of the same process has another.
        processes: How many processes the job has.
        launch: The id of the launch, of processes that meet in a folder; else empty.
    """

    process_index: int
    host: str
    pid: int
    companion: int
    processes: int = 0
    launch: str = ""

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Hello:
        """Return the one in a message.

        Raises:
            RefusedError: A value is missing, or not of its type.
        """
        index = _integer(message, "process_index")
        if index is None or not 0 <= index < _MOST_PROCESSES:
            raise RefusedError("garbage")
        pid, companion, processes = (_integer(message, name) or 0 for name in ("pid", "companion", "processes"))
        texts = (_text(message, "host") or "", _text(message, "launch") or "")
        return cls(index, texts[0], pid, companion, processes, texts[1])


class JobState(NamedTuple):
    """The state of a job that runs.

    Attributes:
        phase: The phase that it published last; None if it has published none.
        step: The step, if any.
        progress_age: The seconds since that publication.
        longest_silence: The longest time in a step without one, so far.
        is_suspected: True if it was taken for stuck, and has made no progress since.
        frame: The frame that its main thread is in, if that is known.
        is_compiling: True if the main thread compiles; None if its stack is unknown.
        is_traced: True while a debugger has stopped it.
    """

    phase: str | None = None
    step: int | None = None
    progress_age: float | None = None
    longest_silence: float = 0.0
    is_suspected: bool = False
    frame: str | None = None
    is_compiling: bool | None = None
    is_traced: bool = False

    def to_message(self) -> dict[str, Any]:
        """Return it as fields of a message."""
        frame = None if self.frame is None else short(self.frame)
        return self._replace(frame=frame)._asdict()

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> JobState:
        """Return the one in a message; RefusedError as above."""
        return cls(
            _text(message, "phase"),
            _integer(message, "step"),
            _seconds(message, "progress_age"),
            _seconds(message, "longest_silence") or 0.0,
            _flag(message, "is_suspected") or False,
            _text(message, "frame"),
            _flag(message, "is_compiling"),
            _flag(message, "is_traced") or False,
        )


class Event(NamedTuple):
    """An event of a job.

    Attributes:
        event: LEFT, ENDED or ASKED.
        end: The end of the process, or of its block, for the first two; its host is left out.
        step: Its last step.
        is_early: True if it has more steps to do, as far as the number of all steps is known.
    """

    event: str
    end: ProcessEnd = ProcessEnd()
    step: int | None = None
    is_early: bool = False

    def to_message(self) -> dict[str, Any]:
        """Return it as fields of a message."""
        end = self.end
        return {
            "event": self.event,
            "how": end.how,
            "ended_ns": end.ended_ns,
            "exception": short(end.exception),
            "signal": end.signal,
            "exit_code": end.exit_code,
            "was_asked": end.was_asked,
            "step": self.step,
            "is_early": self.is_early,
        }

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Event:
        """Return the one in a message; RefusedError as above."""
        if message.get("event") not in _KINDS:
            raise RefusedError("garbage")
        end = ProcessEnd(
            how=_text(message, "how") or "",
            ended_ns=_integer(message, "ended_ns"),
            exception=_text(message, "exception") or "",
            signal=_text(message, "signal") or "",
            exit_code=_integer(message, "exit_code"),
            was_asked=_flag(message, "was_asked") or False,
        )
        return cls(message["event"], end, _integer(message, "step"), _flag(message, "is_early") or False)


def _text(message: Mapping[str, Any], name: str) -> str | None:
    value = message.get(name)
    if value is not None and not isinstance(value, str):
        raise RefusedError("garbage")
    return None if value is None else short(value)


def _integer(message: Mapping[str, Any], name: str) -> int | None:
    value = message.get(name)
    if value is not None and (type(value) is not int or abs(value) >= _MOST_NUMBER):
        raise RefusedError("garbage")
    return value


def _seconds(message: Mapping[str, Any], name: str) -> float | None:
    value = message.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value < _MOST_SECONDS:
        raise RefusedError("garbage")
    return float(value)


def _flag(message: Mapping[str, Any], name: str) -> bool | None:
    value = message.get(name)
    if value is not None and not isinstance(value, bool):
        raise RefusedError("garbage")
    return value
