"""The companion's look at the job's progress, once a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cloud_tpu_diagnostics.companion.channel import WARNING, Channel
from cloud_tpu_diagnostics.companion.job import Job
from cloud_tpu_diagnostics.companion.settings import CompanionSettings
from cloud_tpu_diagnostics.traces import Dump, Frame

if TYPE_CHECKING:
    from ml_diagnostics_common.progress import Progress

    from cloud_tpu_diagnostics.companion.hang_response import HangResponse
    from cloud_tpu_diagnostics.companion.log import EntryLog
    from cloud_tpu_diagnostics.hang.hang_watch import HangWatch
    from cloud_tpu_diagnostics.snapshot import Snapshot

__all__ = ["HangWatching"]

_LOOK_SECONDS = 1.0
"""As `hang_watch.LOOK_EVERY_SECONDS`, which is loaded only where hangs are watched for."""


class HangWatching:
    """Reads what one job makes progress in; where hangs are watched for, it responds to them.

    Args:
        settings: With a progress page.
        job: The job.
        log: Verdicts are written there.
        channel: The job is told of them.
        say: Writes a sentence where the job's stacks are.
    """

    def __init__(
        self, settings: CompanionSettings, job: Job, log: EntryLog, channel: Channel, say: Callable[[str], None]
    ) -> None:
        from ml_diagnostics_common.progress import ProgressReader

        self._settings, self._job, self._log, self._channel, self._say = settings, job, log, channel, say
        self._watch = _watch(settings.hang)
        self._response: HangResponse | None = None
        self._reader: ProgressReader | None = None
        try:
            self._reader = ProgressReader(settings.progress_path or "")
        except FileNotFoundError:
            pass  # The block was left before this process ran.
        except OSError as error:
            what = "Hangs are not watched for" if self._watch is not None else "Stack traces do not tell the step"
            channel.log(WARNING, f"{what}: the job's progress cannot be read ({error})")
        self.progress: Progress | None = None
        """What the job said last."""
        self._next_look = 0.0
        self.seconds_to_next = 0.0
        """When `go_round` is to be called next, at the latest."""

    def go_round(self, now: float) -> None:
        """Looks, and does what is due.

        Args:
            now: Monotonic seconds.
        """
        if self._reader is not None:
            self.progress = self._reader.read()
        if now >= self._next_look and self._watch is not None:
            self._next_look = now + _LOOK_SECONDS
            verdict = self._watch.observe(self.progress, time.monotonic_ns())
            if verdict is not None and self.progress is not None and self._job.is_same_program():
                self._respond(verdict, self.progress, now)
        wait = None if self._response is None else self._response.step(self.progress, now)
        if wait is None:
            self._response, wait = None, _LOOK_SECONDS
        if self._watch is None:
            self.seconds_to_next = _LOOK_SECONDS
            return
        self.seconds_to_next = min(wait, max(0.0, self._next_look - now))

    def close(self) -> None:
        """The job has ended: what is known of its hang is all that will be."""
        if self._response is not None:
            self._response.write_verdict()

    def see(self, dump: Dump) -> None:
        """Takes note of a dump: it may tell where a stuck job stands."""
        if self._response is None or dump.trigger.is_last or not dump.threads:
            return
        from cloud_tpu_diagnostics.grouping import main_thread

        main = main_thread(dump.threads)
        if main is not None and main.frames:
            self._tell(main.frames, by_python=False)

    def see_snapshot(self, snapshot: Snapshot) -> None:
        """Takes note of a snapshot: the job's Python can run."""
        for group in snapshot.groups:
            if group.has_main and group.frames:
                self._tell(group.frames, by_python=True)

    def _tell(self, frames: tuple[Frame, ...], *, by_python: bool) -> None:
        from cloud_tpu_diagnostics.activity import telling_frame

        if self._response is not None:
            self._response.tell_frame(telling_frame(frames), by_python=by_python)

    def _respond(self, verdict: Any, progress: Progress, now: float) -> None:
        from cloud_tpu_diagnostics.companion.hang_response import HangResponse
        from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig

        self._channel.say({"kind": "hang", **verdict._asdict()})
        self._response = HangResponse(
            verdict,
            progress,
            HangConfig(**(self._settings.hang or {})),
            self._job,
            self._settings.dump_signal,
            self._write,
            now,
            ask_to_exit=self._ask_to_exit if self._job.pid == 1 else None,
        )

    def _write(self, payload: dict[str, Any], severity: str) -> None:
        self._log.write(payload, severity=severity)
        self._say(payload["message"])

    def _ask_to_exit(self) -> None:
        self._channel.say({"kind": "exit"})


def _watch(hang: Mapping[str, Any] | None) -> HangWatch | None:
    """What judges hangs; not loaded where they are not watched for."""
    if not hang:
        return None
    from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig
    from cloud_tpu_diagnostics.hang.hang_watch import HangWatch

    return HangWatch(HangConfig(**hang))
