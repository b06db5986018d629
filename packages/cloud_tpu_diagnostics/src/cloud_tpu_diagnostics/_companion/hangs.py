"""Hangs: the companion reads the job's progress once a second, and responds to a verdict.

The response to a hang: ask the job for its stacks, write the verdict, and end the job if the user wants that.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ml_diagnostics_common.processes import read_system_file
from ml_diagnostics_common.sidecar_parent import WARNING, Parent

from cloud_tpu_diagnostics._companion import CompanionSettings
from cloud_tpu_diagnostics._companion.job import Job, StuckCheck
from cloud_tpu_diagnostics._companion.process_state import StateSamples
from cloud_tpu_diagnostics._companion.step_summary import StepSummaries
from cloud_tpu_diagnostics._dumps.parser import Dump, Frame
from cloud_tpu_diagnostics.entries import HANG_SUSPECTED, entry

if TYPE_CHECKING:
    from ml_diagnostics_common.progress import Progress

    from cloud_tpu_diagnostics._companion.hang_watch import HangWatch, Pauses
    from cloud_tpu_diagnostics._companion.log import EntryLog
    from cloud_tpu_diagnostics._dumps.snapshot import Snapshot
    from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig, Verdict

__all__ = ["HangResponse", "HangWatching"]

_SAVE_SECONDS = 60.0
_POLL_SECONDS = 1.0
"""Equals `hang_watch.OBSERVATION_SECONDS`; that module is loaded only if hang detection is on."""
_ANSWER_SECONDS = 0.5
"""The wait for the job's Python before faulthandler is signalled."""
_FRAME_SECONDS = 1.5
"""The wait of the verdict for the job's present frame; a second more after faulthandler was signalled."""
_DUMP_SECONDS = 1.0
_MOST_FRAME_SECONDS = 4.5
"""The wait of the verdict for faulthandler to be signalled: up to three seconds while threads run."""
_END_SECONDS = 60.0
"""The time that the job may take to end by itself, for instance to write a core dump."""


class HangWatching:
    """Reads the progress of one job; responds to hangs if hang detection is on.

    Args:
        settings: The companion's settings; they name a progress page.
        job: The job.
        log: Receives verdicts.
        parent: Receives verdicts and warnings.
        note: Writes a sentence where the job's stacks are.
    """

    def __init__(
        self, settings: CompanionSettings, job: Job, log: EntryLog, parent: Parent, note: Callable[[str], None]
    ) -> None:
        from ml_diagnostics_common.progress import ProgressReader

        self._settings, self._job, self._log, self._parent, self._note = settings, job, log, parent, note
        self._watch = _watch(settings.hang, self._inherited)
        self._was_stopped = False
        self._stopped_since: float | None = None
        """When the job was first seen stopped; None while it runs, and once that is recorded."""
        self._is_stop_recorded = False
        self._saved: dict[str, float] = {}
        self._command = ""
        self._command = self._job_name()  # Now, since a job that has ended has none any more.
        self._next_save = time.monotonic() + _SAVE_SECONDS
        self._response: HangResponse | None = None
        self._samples: StateSamples | None = None
        self._reader: ProgressReader | None = None
        try:
            self._reader = ProgressReader(settings.progress_path or "")
        except FileNotFoundError:
            pass  # The block was left before this process ran.
        except OSError as error:
            what = "Hangs are not detected" if self._watch is not None else "Stack traces do not have the step"
            parent.log(WARNING, f"{what}: the job's progress cannot be read ({error})")
        self.progress: Progress | None = None
        """The progress that was read last."""
        self._suspected: Progress | None = None
        self._steps = StepSummaries(time.monotonic())
        self._next_summary_read = 0.0
        self._next_check = 0.0
        self.seconds_to_next = 0.0
        """The seconds until the next call of `step`, at most."""

    def step(self, now: float) -> None:
        """Read the progress, and do what is due.

        Args:
            now: Monotonic seconds.
        """
        if self._reader is not None:
            self.progress = self._reader.read()
        if self._watch is not None and self._job.is_stopped():
            self._was_stopped = True
            self._record_stop(now)
            if self._response is not None and not self._response.is_aborting:
                self._response = self._suspected = None
                self._watch.retract()
        else:
            self._stopped_since, self._is_stop_recorded = None, False
        if now >= self._next_check and self._watch is not None:
            self._next_check = now + _POLL_SECONDS
            verdict = self._watch.observe(self.progress, time.monotonic_ns(), is_stopped=self._was_stopped)
            self._was_stopped = False
            if now >= self._next_save:
                self._save()
            if verdict is not None and self.progress is not None and self._job.is_same_program():
                self._respond(verdict, self.progress, now)
        if now >= self._next_summary_read:
            self._next_summary_read = now + _POLL_SECONDS
            self._summarise(now)
        if self._samples is not None and (payload := self._samples.entry(now)) is not None:
            self._samples = None
            self._log.write(payload)
        wait = None if self._response is None else self._response.step(self.progress, now)
        if wait is None:
            self._response, wait = None, _POLL_SECONDS
        if self._watch is None:
            self.seconds_to_next = _POLL_SECONDS
            return
        self.seconds_to_next = min(wait, max(0.0, self._next_check - now))

    @property
    def is_suspected(self) -> bool:
        """True if the job was taken for stuck, and has made no progress since."""
        return self._suspected is not None and self._suspected == self.progress

    def last_progress(self) -> Progress | None:
        """Return the last progress within the block, with what was published since the last `step`."""
        return None if self._reader is None else self._reader.read(is_running=True)

    def close(self) -> None:
        """Write and save what is known, since the job has ended or left the block."""
        if self._response is not None:
            self._response.write_verdict()
        if self._watch is not None:
            self._save()
        self._summarise(time.monotonic(), is_last=True)

    def add_dump(self, dump: Dump) -> None:
        """Use a dump: it may show the frame that a stuck job is in."""
        if self._response is None or dump.trigger.is_last or not dump.threads:
            return
        from cloud_tpu_diagnostics._dumps.grouping import main_thread

        main = main_thread(dump.threads)
        if main is not None and main.frames:
            self._add_frames(main.frames, by_python=False)

    def add_snapshot(self, snapshot: Snapshot) -> None:
        """Use a snapshot: it shows that the job's Python can run."""
        for group in snapshot.groups:
            if group.has_main and group.frames:
                self._add_frames(group.frames, by_python=True)

    def _add_frames(self, frames: tuple[Frame, ...], *, by_python: bool) -> None:
        from cloud_tpu_diagnostics._dumps.grouping import relevant_frame

        if self._response is not None:
            self._response.add_frame(relevant_frame(frames), by_python=by_python)

    def _record_stop(self, now: float) -> None:
        """Record the state of a job that stays stopped: no verdict is given on it, while the others wait for it."""
        from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig

        if self._stopped_since is None:
            self._stopped_since = now
        floor = HangConfig(**(self._settings.hang or {})).step_floor_seconds
        if not self._is_stop_recorded and now - self._stopped_since >= floor:
            self._is_stop_recorded = True
            self._samples = StateSamples(self._job.pid, now)

    def _respond(self, verdict: Any, progress: Progress, now: float) -> None:
        from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig

        self._suspected = progress
        self._parent.send({"kind": "hang", **verdict._asdict()})
        self._samples = StateSamples(self._job.pid, now)
        silence = StuckCheck(self._job.pid)
        silence.start(now)
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
            is_stuck=silence.is_stuck,
        )

    def _summarise(self, now: float, *, is_last: bool = False) -> None:
        if self._reader is None:
            return
        self._steps.add(*self._reader.read_new())
        payload = self._steps.take(now, time.time_ns() - time.monotonic_ns(), is_last=is_last)
        if payload is not None:
            self._log.write(payload)

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
        from cloud_tpu_diagnostics._companion.learned_file import save_learned

        try:
            save_learned(self._job_name(), learned)
            self._saved = longest
        except OSError as error:
            self._parent.log(WARNING, f"The learned pauses of the job could not be saved ({error})")

    def _inherited(self) -> Pauses:
        from cloud_tpu_diagnostics._companion.learned_file import load_learned

        return load_learned(self._job_name())

    def _job_name(self) -> str:
        """Return the job's name, the same in all its attempts; if it has none, its command and its folder."""
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
        self._note(payload["message"])

    def _ask_to_exit(self) -> None:
        self._parent.send({"kind": "exit"})


def _watch(hang: Mapping[str, Any] | None, inherit: Callable[[], Pauses]) -> HangWatch | None:
    """Return the part that detects hangs; it is not loaded if detection is off."""
    if not hang:
        return None
    from cloud_tpu_diagnostics._companion.hang_watch import HangWatch
    from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig

    return HangWatch(HangConfig(**hang), inherit)


class HangResponse:
    """The response to one hang.

    Args:
        verdict: The verdict.
        progress: The job's progress at that time.
        config: The configured response.
        job: Receives signals.
        dump_signal: The signal on which the job writes all its stacks.
        write: Writes an entry.
        now: Monotonic seconds.
        ask_to_exit: Lets the job end itself, if its Python runs; for process 1, since the kernel does not deliver
            signals that would end it.
        before_abort: Called before the job is ended.
        is_stuck: Called before the signal is sent; returns False while the job may only be late.
    """

    def __init__(
        self,
        verdict: Verdict,
        progress: Progress,
        config: HangConfig,
        job: Job,
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
        self._started = now
        self._frame: Frame | None = None
        self._has_answered = False
        self._is_written = False
        self._asked = 0
        self._first_asked: float | None = None
        self._aborted: float | None = None

    def add_frame(self, frame: Frame | None, *, by_python: bool) -> None:
        """Add the frame that the job's main thread is in.

        Args:
            frame: The most informative frame of its stack.
            by_python: True if the job's Python reported it, and so can run.
        """
        self._frame = self._frame or frame
        self._has_answered = self._has_answered or by_python

    def step(self, progress: Progress | None, now: float) -> float | None:
        """Do what is due.

        Args:
            progress: The job's progress that was read last.
            now: Monotonic seconds.

        Returns:
            The seconds until the next call; None when everything is done.
        """
        elapsed = now - self._started
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
        return max(_FRAME_SECONDS, self._first_asked - self._started + _DUMP_SECONDS)

    @property
    def is_aborting(self) -> bool:
        """True once the job was sent the signal that ends it."""
        return self._aborted is not None

    def write_verdict(self) -> None:
        """Write the verdict with what is known by now, unless it is written."""
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
        from cloud_tpu_diagnostics._dumps.grouping import where

        verdict = self._verdict
        step = "" if verdict.step is None else f" (step {verdict.step})"
        frame = None if self._frame is None else where(self._frame)
        message = (
            # The verdict may be a moment early or late: of both durations, only one is in the sentence.
            f"The job has made no progress for about {verdict.timeout_seconds:.0f} s, the timeout of phase "
            f"{verdict.phase}{step}; its main thread is in {frame or 'an unknown frame'}"
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
