"""Fast-fail in the companion: it reports its job to the star, and ends the job once the star has decided.

The end: the Python of the job sends its stacks, calls `on_peer_failure` and exits. Where it cannot run, faulthandler
writes the stacks, and SIGKILL follows. SIGTERM would not end a job of JAX, which handles it to save.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ml_diagnostics_common.processes import start_mark, wait_readable
from ml_diagnostics_common.sidecar_parent import WARNING, Parent
from ml_diagnostics_common.story import ProcessEnd

from cloud_tpu_diagnostics._companion.endings import Ending, ExitReason, Note, left_block
from cloud_tpu_diagnostics._companion.fast_fail_job import CHECK_SECONDS, ForcedEnd, LastStack, LongestSilence
from cloud_tpu_diagnostics._companion.job import Job
from cloud_tpu_diagnostics._companion.log import EntryLog
from cloud_tpu_diagnostics._fast_fail.decision import REQUEST_SECONDS
from cloud_tpu_diagnostics._fast_fail.reports import ASKED, ENDED, LEFT, Event, JobState
from cloud_tpu_diagnostics._fast_fail.star import POSITION, PUBLISHED, Star
from cloud_tpu_diagnostics._fast_fail.status import (
    REFRESH_SECONDS,
    FastFailStatus,
    end_fields,
    remove_status,
    wait_for_exit,
    write_status,
)
from cloud_tpu_diagnostics.configuration.first_cause import FirstCause
from cloud_tpu_diagnostics.entries import FAST_FAIL, entry

if TYPE_CHECKING:
    from ml_diagnostics_common.progress import Progress

    from cloud_tpu_diagnostics._dumps.parser import Frame

__all__ = ["FastFail"]

_STATE_SECONDS: Final = 0.5
_LEFT_CLEAN_SECONDS: Final = 10.0
"""The time of a process that has left its block well: it may still save."""
_LEFT_SECONDS: Final = 1.0
"""The least time of a process that has left its block by an exception to print it; half of that if others caused it."""
_DECISION_SECONDS: Final = 4.0
"""The wait of a companion for the decision, after the failure of its job."""
_CLEAN_SECONDS: Final = 1.0
"""The same after an end that went well: for the acknowledgement."""
_HUB_SECONDS: Final = 20.0
"""The time that the hub stays for the others, after the end of its own job."""
_EXIT_SECONDS: Final = 1.0
_STACK_INTERVAL_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 1.0
"""The interval of attempts to write the status file, as on a disk that is full."""
_FAILED: Final = 1
_HUNG: Final = 134
"""The exit codes of processes that are the first cause: of an exception, and of an abort as shells report it."""


class FastFail:
    """Fast-fail of one job.

    Args:
        config: The numbers and booleans of the FastFailConfig.
        job: The job.
        log: Receives the decision.
        parent: The job's messages.
        labels: The labels of the job.
        dump_signal: The signal on which the job dumps all its threads.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        job: Job,
        log: EntryLog,
        parent: Parent,
        labels: Mapping[str, str],
        dump_signal: int | None,
    ) -> None:
        self._exit_code, self._grace_seconds = int(config["exit_code"]), float(config["grace_seconds"])
        self._job, self._log, self._parent, self._dump_signal = job, log, parent, dump_signal
        self._start = start_mark(job.pid)
        self._star = Star(
            job.pid,
            labels.get("host", ""),
            labels.get("job", ""),
            hang=bool(config["hang"]),
            send=parent.send,
            warn=lambda text: parent.log(WARNING, text),
        )
        self._stacks = LastStack(job.pid)
        self._silences = LongestSilence()
        self._next_state = self._next_stack = 0.0
        self._next_status: float | None = None
        """When to write the status file; None before this companion has joined, and once the star is gone."""
        self._asked_at: float | None = None
        self._planned_steps: int | None = None
        self._note: Note | None = None
        self._left_at: float | None = None
        self._is_over = False
        """True once the job has ended."""
        self._is_decided = False
        self._ending: ForcedEnd | None = None
        self._payload: dict[str, Any] | None = None
        """The entry on the decision, until it is written."""
        self._is_off_written = self._has_warned = False
        self._has_sigterm = False
        signal.signal(signal.SIGTERM, self._on_sigterm)

    @property
    def is_on(self) -> bool:
        """True while there is a star, or may be."""
        return not self._star.is_off

    @property
    def descriptors(self) -> list[int]:
        """Readable when `step` has something to do."""
        return self._star.descriptors

    # --- The job --------------------------------------------------------------------------------------

    def handle(self, message: Mapping[str, Any]) -> None:
        """Take a message of the job."""
        if message["kind"] in (POSITION, PUBLISHED):
            self._star.handle(message)
        elif message["kind"] == "fast_fail_asked":
            self.add_request()
        elif message["kind"] == "fast_fail_plan":
            self._planned_steps = message["planned_steps"]

    def add_request(self) -> None:
        """Report that the job was asked to end."""
        if not self._was_asked():
            self._asked_at = time.monotonic()
            self._star.add(Event(ASKED))

    def add_left(self, note: Note, failure: Mapping[str, Any], step: int | None) -> None:
        """Report how the job has left its block.

        Args:
            note: Its note.
            failure: The message of the exception, `failure_message`.
            step: Its last step.
        """
        self._note, self._left_at = note, time.monotonic()
        left = left_block(note, is_alive=True)
        text = (failure.get("fields") or {}).get("exception_text")
        exception = f"{note.exception}: {text}" if text else note.exception or ""
        end = ProcessEnd(
            how=left.reason.value,
            ended_ns=time.time_ns(),
            exception=_redacted(exception) if left.reason is ExitReason.EXCEPTION else "",
            exit_code=note.exit_code,
            was_asked=note.exception == "KeyboardInterrupt",
        )
        self._star.add(Event(LEFT, end, step, self._is_early(step)))

    def add_end(self, ending: Ending, ended_ns: int | None, step: int | None) -> None:
        """Report that the process has ended."""
        self._is_over = True
        end = ProcessEnd(
            how=ending.reason.value,
            ended_ns=ended_ns,
            exception=ending.exception or "",
            signal=ending.signal or "",
            exit_code=ending.exit_code,
        )
        self._star.add(Event(ENDED, end, step, self._is_early(step)))
        self._star.step(time.monotonic())

    def add_stack(self, frames: tuple[Frame, ...]) -> None:
        """Take the main thread's stack: it shows if the job compiles."""
        self._stacks.add(frames, time.monotonic())
        if self._ending is not None:
            self._ending.has_stacks = True

    # --- Steps ----------------------------------------------------------------------------------------

    def step(self, now: float, progress: Progress | None, *, is_suspected: bool) -> float:
        """Do what is due; return the seconds until the next call if nothing is received.

        Args:
            now: Monotonic seconds.
            progress: The progress that the job has published last.
            is_suspected: True if the job was taken for stuck, and has made no progress since.
        """
        if self._has_sigterm:
            self._has_sigterm = False
            self.add_request()
        if now >= self._next_state and not self._is_over:
            self._next_state = now + _STATE_SECONDS
            self._silences.add(progress)
            self._star.report(self._state(now, progress, is_suspected))
        seconds = self._star.step(now)
        if self._star.is_joined and self._next_status is None:
            self._next_status = now
        if self._star.needs_stack() and now >= self._next_stack and not self._is_over:
            self._next_stack = now + _STACK_INTERVAL_SECONDS
            self._stacks.ask(now)
            self._parent.send({"kind": "fast_fail_stack"})
        if self._stacks.is_waiting and not self._is_over:
            seconds = min(seconds, CHECK_SECONDS)
            if self._stacks.is_unanswered(now):
                self._job.ask(self._dump_signal)
        if self._star.refused and not self._has_warned:
            self._has_warned = True
            reason = next(iter(self._star.refused))
            self._parent.log(WARNING, f"Fast-fail has refused a connection ({reason}); later ones are only counted")
        cause = self._star.first_cause
        if cause is not None and not self._is_decided:
            self._decide(cause, now)
        if self._next_status is not None and now >= self._next_status:
            self._next_status = now + self._write_status()
        if self._ending is not None and not self._is_over:
            seconds = min(seconds, self._ending.step(now, self._job, self._dump_signal))
        if self._star.is_off and not self._is_decided and not self._is_off_written:
            self._is_off_written, self._next_status = True, None
            remove_status(self._job.pid, self._start)
        return max(0.0, min(seconds, self._next_state - now if not self._is_over else seconds))

    def fields(self, ending: Ending) -> dict[str, Any]:
        """Return the fields of the entry on the end of the job."""
        return end_fields(self._status(), ending.exit_code, ending.signal)

    def record(self) -> None:
        """Write the decision, if there is one."""
        payload, self._payload = self._payload, None
        if payload is not None:
            self._log.write(payload, severity="ERROR")

    def wait_for_decision(self, *, has_failed: bool) -> None:
        """Stay in the star until it has decided on the end of the job, or knows it."""
        seconds = _DECISION_SECONDS if has_failed and not self._was_asked() else _CLEAN_SECONDS
        self._serve(seconds, lambda: self._awaits_decision(has_failed=has_failed))

    def exit_status(self) -> int | None:
        """Return the wait status of the job that `run`, its parent, has noted; None if it has not within a second.

        An older kernel does not show it to other processes.
        """
        return wait_for_exit(self._job.pid, self._start, _EXIT_SECONDS)

    def leave(self) -> None:
        """Leave the star, as another block of the job follows."""
        self._star.close()

    def close(self) -> None:
        """Stay while the others need the hub; then leave the star."""
        self._serve(_HUB_SECONDS, self._star.is_needed)
        refused = self._star.refused
        if refused:
            text = "Fast-fail has refused connections: " + ", ".join(f"{refused[each]} {each}" for each in refused)
            self._log.write(entry(FAST_FAIL, text, state="closed", role=self._star.role, refused=refused))
        self._star.close()

    def _was_asked(self) -> bool:
        return self._asked_at is not None and time.monotonic() - self._asked_at < REQUEST_SECONDS

    def _is_early(self, step: int | None) -> bool:
        return step is not None and self._planned_steps is not None and step < self._planned_steps - 1

    # --- The decision ---------------------------------------------------------------------------------

    def _awaits_decision(self, *, has_failed: bool) -> bool:
        if not self._star.role or self._star.is_off or self._is_decided:
            return False
        # A process that was asked to end may be followed by others for half a minute.
        return (has_failed and not self._was_asked()) or not self._star.has_sent_all()

    def _serve(self, seconds: float, is_wanted: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while is_wanted() and (now := time.monotonic()) < deadline:
            wait_readable(self.descriptors, min(self.step(now, None, is_suspected=False), deadline - now, 0.25))
            self.step(time.monotonic(), None, is_suspected=False)

    def _status(self) -> FastFailStatus:
        cause = self._star.first_cause
        code = None if self._ending is None else self._ending.exit_code
        return FastFailStatus(None if cause is None else cause.to_json(), self._star.is_first, code)

    def _decide(self, cause: FirstCause, now: float) -> None:
        """Start the end of the job, and record the decision."""
        self._is_decided = True
        if not self._is_over and not self._job.is_dead():
            self._ending = self._start_end(cause, now)
        is_first = self._star.is_first
        message = f"Fast-fail ends all processes of the job: {cause.message}"
        # Written later: to load the journal takes a moment, in which a job that does not exit would not be killed.
        self._payload = entry(
            FAST_FAIL,
            message,
            state="decided",
            role=self._star.role,
            process_index=self._star.process_index,
            processes=self._star.processes,
            first_cause=cause.to_json(),
            is_first_cause=is_first,
            refused=self._star.refused or None,
        )
        self._next_status = now

    def _write_status(self) -> float:
        """Write the status file; return the seconds until it is to be written again."""
        with contextlib.suppress(OSError):  # The decision counts also where the disk is full.
            write_status(self._job.pid, self._start, self._status())
            return REFRESH_SECONDS
        return _RETRY_SECONDS

    def _start_end(self, cause: FirstCause, now: float) -> ForcedEnd:
        is_first = self._star.is_first
        code = self._exit_code
        if is_first:  # Its end is the reason, so it does not end as those that are only ended with it.
            code = _HUNG if cause.how == "hang" else _FAILED
            code = (self._note.exit_code if self._note is not None else None) or code
        grace = 0.0 if is_first else self._grace_seconds
        needed = max(_LEFT_SECONDS, self._grace_seconds) if is_first else _LEFT_SECONDS / 2
        if self._note is not None and self._note.how == ExitReason.CLEAN.value and not is_first:
            needed = _LEFT_CLEAN_SECONDS
        wait = 0.0 if self._left_at is None else max(0.0, self._left_at + needed - now)
        self._parent.send(
            {
                "kind": "fast_fail_end",
                "first_cause": cause.to_json(),
                "exit_code": code,
                "grace_seconds": grace,
                "wait_seconds": wait,
                "is_first": is_first,
            }
        )
        return ForcedEnd(self._job.pid, now, wait + grace, code)

    def _state(self, now: float, progress: Progress | None, is_suspected: bool) -> JobState:
        age = None if progress is None else max(0.0, (time.monotonic_ns() - progress.monotonic_ns) / 1e9)
        return JobState(
            phase=None if progress is None else progress.phase,
            step=None if progress is None else progress.step,
            progress_age=age,
            longest_silence=self._silences.longest_seconds,
            is_suspected=is_suspected,
            frame=self._stacks.frame(now) if is_suspected or self._star.needs_stack() else None,
            is_compiling=self._stacks.is_compiling(now),
            is_traced=self._job.is_traced(),
        )

    def _on_sigterm(self, *_: object) -> None:
        """Note a SIGTERM to this process: `run`, or a scheduler that asks all processes of a job, has sent it."""
        self._has_sigterm = True


def _redacted(text: str) -> str:
    """Return a text for other machines, without what resembles a secret."""
    from ml_diagnostics_common.redaction import redact_text

    return redact_text(text)
