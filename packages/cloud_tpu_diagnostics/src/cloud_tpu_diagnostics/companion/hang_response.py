"""What is done about a hang: the job is asked where it stands, the verdict is written, and it is ended if so wanted."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from cloud_tpu_diagnostics.entries import HANG_SUSPECTED, entry
from cloud_tpu_diagnostics.traces import Frame

if TYPE_CHECKING:
    from ml_diagnostics_common.progress import Progress

    from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig, Verdict

__all__ = ["Asked", "HangResponse"]

_ANSWER_SECONDS = 0.5
"""How long the job's Python is waited for; then faulthandler is asked."""
_FRAME_SECONDS = 1.5
"""The verdict waits for so long for the frame that the job stands in, and a second from when faulthandler is asked."""
_DUMP_SECONDS = 1.0
_MOST_FRAME_SECONDS = 4.5
"""The verdict waits no longer for faulthandler to be asked: that may take three seconds while threads run."""
_END_SECONDS = 60.0
"""How long the job may take to end by itself: to write its memory to a file, for instance."""


class Asked(Protocol):
    """The job, as far as it is asked here."""

    def ask(self, number: int | None) -> bool:
        """Sends a signal, if the job has a handler for it."""
        ...

    def send(self, number: int) -> bool:
        """Sends a signal."""
        ...


class HangResponse:
    """One hang.

    Args:
        verdict: What was judged.
        progress: What the job had said last.
        config: What is to be done.
        job: It is sent signals.
        dump_signal: Has it write all its stacks.
        write: Writes an entry.
        now: Monotonic seconds.
        ask_to_exit: Has the job end itself, as far as its Python runs; for process 1, to whom the kernel passes on no
            signal that would end it.
        before_abort: Called before the job is ended.
        is_stuck: Asked before the signal is sent: False while the job may only be late.
    """

    def __init__(
        self,
        verdict: Verdict,
        progress: Progress,
        config: HangConfig,
        job: Asked,
        dump_signal: int | None,
        write: Callable[[dict[str, Any], str], object],
        now: float,
        *,
        ask_to_exit: Callable[[], object] | None = None,
        before_abort: Callable[[], object] = lambda: None,
        is_stuck: Callable[[float], bool] = lambda _: True,
    ) -> None:
        self._is_stuck = is_stuck
        self._ask_to_exit = ask_to_exit
        self._before_abort = before_abort
        self._verdict, self._progress, self._config = verdict, progress, config
        self._job, self._dump_signal, self._write = job, dump_signal, write
        self._began = now
        self._frame: Frame | None = None
        self._has_answered = False
        self._is_written = False
        self._asked = 0
        self._first_asked: float | None = None
        self._aborted: float | None = None

    def tell_frame(self, frame: Frame | None, *, by_python: bool) -> None:
        """Takes note of where the job's main thread stands.

        Args:
            frame: The frame that tells most.
            by_python: The job's Python told it, so that it can run.
        """
        self._frame = self._frame or frame
        self._has_answered = self._has_answered or by_python

    def step(self, progress: Progress | None, now: float) -> float | None:
        """Does what is due.

        Args:
            progress: What the job said last.
            now: Monotonic seconds.

        Returns:
            The seconds until the next call; None when all is done.
        """
        elapsed = now - self._began
        if not self._has_answered:
            due = _ANSWER_SECONDS + self._asked * self._config.snapshot_interval_seconds
            is_stuck = self._is_stuck(now)
            if self._asked < max(1, self._config.snapshots) and elapsed >= due and is_stuck:
                self._asked += 1
                self._first_asked = now if self._first_asked is None else self._first_asked
                self._job.ask(self._dump_signal)
        if self._frame is not None or elapsed >= self._longest_wait():
            self.write_verdict()
        burst_seconds = _FRAME_SECONDS + self._config.snapshots * self._config.snapshot_interval_seconds
        if elapsed < burst_seconds or not self._is_written:
            return 0.05 if not self._is_written else 0.25
        goes_on = progress is not None and progress.sequence != self._progress.sequence
        if not self._config.abort or goes_on:
            return None
        return self._abort(now)

    def _longest_wait(self) -> float:
        """Return for how many seconds the verdict waits for a frame: on a busy machine each step may be late."""
        if self._has_answered:
            return _FRAME_SECONDS
        if self._first_asked is None:
            return _MOST_FRAME_SECONDS
        return max(_FRAME_SECONDS, self._first_asked - self._began + _DUMP_SECONDS)

    @property
    def is_aborting(self) -> bool:
        """True once the job was sent the signal that ends it."""
        return self._aborted is not None

    def write_verdict(self) -> None:
        """Writes the verdict, unless that is done: what is known by now is all that will be."""
        if not self._is_written:
            self._is_written = True
            self._write(self._entry(), "ERROR")

    def _abort(self, now: float) -> float | None:
        if self._aborted is None:
            self._aborted = now
            self._before_abort()
            self._job.send(signal.SIGABRT)
            if self._ask_to_exit is not None:
                self._ask_to_exit()
        elif now - self._aborted >= _END_SECONDS:
            self._job.send(signal.SIGKILL)
            return None
        return 0.25

    def _entry(self) -> dict[str, Any]:
        from cloud_tpu_diagnostics.activity import where

        verdict = self._verdict
        step = "" if verdict.step is None else f" (step {verdict.step})"
        frame = None if self._frame is None else where(self._frame)
        message = (
            f"The job has made no progress for about {verdict.stuck_seconds:.0f} s in phase {verdict.phase}{step}, "
            f"where about {verdict.timeout_seconds:.0f} s are taken for a hang; its main thread is in "
            f"{frame or 'an unknown place'}"
        )
        return entry(
            HANG_SUSPECTED,
            message,
            phase=verdict.phase,
            step=verdict.step,
            stuck_seconds=verdict.stuck_seconds,
            timeout_seconds=verdict.timeout_seconds,
            stuck_frame=frame,
        )
