"""The companion's look at the job's progress, once a second."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cloud_tpu_diagnostics.companion.channel import WARNING, Channel
from cloud_tpu_diagnostics.companion.job import Job
from cloud_tpu_diagnostics.companion.settings import CompanionSettings
from cloud_tpu_diagnostics.companion.system_files import read_system_file
from cloud_tpu_diagnostics.traces import Dump, Frame

if TYPE_CHECKING:
    from ml_diagnostics_common.progress import Progress

    from cloud_tpu_diagnostics.companion.hang_response import HangResponse
    from cloud_tpu_diagnostics.companion.log import EntryLog
    from cloud_tpu_diagnostics.hang.hang_watch import HangWatch
    from cloud_tpu_diagnostics.hang.learned_timeouts import Pauses
    from cloud_tpu_diagnostics.snapshot import Snapshot

__all__ = ["HangWatching"]

_SAVE_SECONDS = 60.0
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
        self._watch = _watch(settings.hang, self._inherited)
        self._was_stopped = False
        self._saved: dict[str, float] = {}
        self._command = ""
        self._command = self._job_name()  # Now, since a job that has ended has no command any more.
        self._next_save = time.monotonic() + _SAVE_SECONDS
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
        if self._watch is not None and self._job.is_stopped():
            self._was_stopped = True
            if self._response is not None and not self._response.is_aborting:
                self._response = None
                self._watch.retract()
        if now >= self._next_look and self._watch is not None:
            self._next_look = now + _LOOK_SECONDS
            verdict = self._watch.observe(self.progress, time.monotonic_ns(), is_stopped=self._was_stopped)
            self._was_stopped = False
            if now >= self._next_save:
                self._save()
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
        """Write and save what is known: the job has ended."""
        if self._response is not None:
            self._response.write_verdict()
        if self._watch is not None:
            self._save()

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
        from cloud_tpu_diagnostics.companion.patience import Patience
        from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig

        self._channel.say({"kind": "hang", **verdict._asdict()})
        patience = Patience(self._job.pid)
        patience.begin(now)
        self._response = HangResponse(
            verdict,
            progress,
            HangConfig(**(self._settings.hang or {})),
            self._job,
            self._settings.dump_signal,
            self._write,
            now,
            ask_to_exit=self._ask_to_exit if self._job.pid == 1 else None,
            before_abort=lambda: self._save_abort(verdict.phase),
            is_stuck=patience.is_over,
        )

    def _save_abort(self, phase: str) -> None:
        if self._watch is not None:
            self._watch.add_abort(phase, time.monotonic_ns())
            self._save()

    def _save(self) -> None:
        """Save what was learned, for the job's next process; at once, since a container may end with its job."""
        self._next_save = time.monotonic() + _SAVE_SECONDS
        learned = {} if self._watch is None else self._watch.learned(time.monotonic_ns())
        longest = {phase: seconds for phase, (seconds, _) in learned.items()}
        if longest == self._saved:
            return
        from cloud_tpu_diagnostics.companion.learned_file import save_learned

        try:
            save_learned(self._job_name(), learned)
            self._saved = longest
        except OSError as error:
            self._channel.log(WARNING, f"What was learned of the job's pauses could not be saved ({error})")

    def _inherited(self) -> Pauses:
        from cloud_tpu_diagnostics.companion.learned_file import load_learned

        return load_learned(self._job_name())

    def _job_name(self) -> str:
        """Return the job's name, the same in all its attempts; of one without a name, its command and its folder."""
        if self._log.job:
            return self._log.job
        try:
            command = read_system_file(f"/proc/{self._job.pid}/cmdline").replace(b"\0", b" ")
            folder = os.readlink(f"/proc/{self._job.pid}/cwd")  # noqa: PTH115
        except OSError:  # It has ended.
            return self._command
        self._command = f"{folder}: {command.decode(errors='replace')}"
        return self._command

    def _write(self, payload: dict[str, Any], severity: str) -> None:
        self._log.write(payload, severity=severity)
        self._say(payload["message"])

    def _ask_to_exit(self) -> None:
        self._channel.say({"kind": "exit"})


def _watch(hang: Mapping[str, Any] | None, inherit: Callable[[], Pauses]) -> HangWatch | None:
    """What judges hangs; not loaded where they are not watched for."""
    if not hang:
        return None
    from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig
    from cloud_tpu_diagnostics.hang.hang_watch import HangWatch

    return HangWatch(HangConfig(**hang), inherit)
