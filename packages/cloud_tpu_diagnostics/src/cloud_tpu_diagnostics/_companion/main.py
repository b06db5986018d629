"""The companion's main program: it reads the job's stack traces, and records the job's exit reason.

It starts with nothing but the standard library. The journal and the shipper are loaded at the first entry.

Once the job has left the block, that is recorded, and the companion only waits for the end of the process: a survivor
of another host's failure may be aborted minutes after an exception has left its block.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from ml_diagnostics_common.processes import wait_readable
from ml_diagnostics_common.sidecar_parent import ERROR, WARNING, Parent, ignore_signals, lower_priority

from cloud_tpu_diagnostics._companion import CompanionSettings
from cloud_tpu_diagnostics._companion.console import JobConsole
from cloud_tpu_diagnostics._companion.endings import (
    Ending,
    ExitReason,
    Note,
    OutOfMemoryKills,
    ending_of,
    exit_status,
    failure_fields,
    left_block,
    progress_fields,
)
from cloud_tpu_diagnostics._companion.hangs import HangWatching
from cloud_tpu_diagnostics._companion.job import Job
from cloud_tpu_diagnostics._companion.log import EntryLog, compiles_entry, dump_entries
from cloud_tpu_diagnostics._companion.output import ConsoleOutput, FileOutput, Headers, TraceOutput
from cloud_tpu_diagnostics._companion.requests import UnansweredRequests
from cloud_tpu_diagnostics._companion.sigterm import SigtermHandlers
from cloud_tpu_diagnostics._dumps.parser import Dump, DumpParser, Trigger, parse_dumps
from cloud_tpu_diagnostics.entries import JOB_ENDED, LEFT_BLOCK, SNAPSHOT, entry

if TYPE_CHECKING:
    from cloud_tpu_diagnostics._companion.fast_fail import FastFail

__all__ = ["END_SECONDS", "LINGER_SECONDS", "LONGEST_END_SECONDS", "Companion", "main"]

LINGER_SECONDS = 2.0
"""The wait for the job's end after it has left the block: if it ends within it, one entry has all."""
END_SECONDS = 10.0
"""The time limit for shipping the remaining entries."""
MIRROR_SECONDS = 20.0
"""The time limit for writing to the mirror what the job has left."""
LONGEST_END_SECONDS = 30
"""The time after the job's end at which the kernel ends this process, in case something hangs."""

_CHECK_SECONDS = 1.0
_QUIET_SECONDS = 0.5
"""A dump is complete if nothing follows for this time. Writing one of 100 threads takes 0.04 s."""
_KILLS_SECONDS = 30.0
"""The interval of reading the count of kills after the block: shorter than `OUT_OF_MEMORY_SECONDS`."""
_MAIN_THREAD_SECONDS = 2.0
"""The wait for the main thread's stack, if a dump was cut."""
_READ_BYTES = 2**20


def main() -> NoReturn:
    """Accompany a job until its end; ends the process."""
    ignore_signals()
    lower_priority()
    parent = Parent()
    try:
        Companion(parent).run()
    except BaseException as error:
        parent.log(ERROR, f"The companion of this job failed ({type(error).__name__}: {error})")
        os._exit(1)
    os._exit(0)


class Companion:
    """Accompanies one block of a job.

    Args:
        parent: The job's messages.
    """

    def __init__(self, parent: Parent) -> None:
        self._settings = settings = CompanionSettings.from_json(parent.settings)
        self._parent = parent
        self._job = Job(parent.pid, parent.job)
        self._timer: int | None = parent.descriptors["timer"]
        self._log = EntryLog(settings.labels, is_shipped=settings.is_shipped, prepare=parent.forward_logs)
        self._requests: UnansweredRequests | None = None
        if "wakeups" in parent.descriptors:
            self._requests = UnansweredRequests(parent.descriptors, self._job, settings.dump_signal)
        self._seconds_to_requests: float | None = None
        self._output = _output(settings, parent.descriptors)
        self._headers = Headers(settings.interval_seconds)
        self._of_timer, self._of_job = _Dumps(), _Dumps()
        self._dumps = 0
        self._cut: Dump | None = None
        """A dump without the main thread, the dump of which is waited for."""
        self._cut_at = 0.0
        self._snapshots: Any = None
        self._fault: str | None = None
        """The fault that the job wrote; if the job then shows that it lives, it was that of a forked child."""
        self._fault_seen_ns = 0
        self._note: Note | None = None
        self._failure: dict[str, Any] = {}
        """The fields of the exception that left the block."""
        self._left_at: float | None = None
        self._is_replaced = False
        """True once the job has entered another block, which has a companion of its own."""
        self._ended_ns: int | None = None
        self._ended_monotonic_ns: int | None = None
        self._status: int | None = None
        self._kills = OutOfMemoryKills(self._job.pid)
        self._console = JobConsole(self._job.pid, self._log, parent.descriptors)
        self._sigterm_handlers = SigtermHandlers(self._job.pid)
        self._is_end_recorded = settings.is_end_recorded
        self._runner_pid = self._job.parent_pid() if settings.is_end_recorded else None
        """The process that passes the job's output on, and records its end."""
        self._hangs: HangWatching | None = None
        if settings.progress_path is not None:
            self._hangs = HangWatching(settings, self._job, self._log, parent, self._write_note)
        self._fast_fail: FastFail | None = None
        self._seconds_to_fast_fail = 0.0
        if settings.fast_fail is not None:
            from cloud_tpu_diagnostics._companion.fast_fail import FastFail

            parts = (self._job, self._log, parent, settings.labels, settings.dump_signal)
            self._fast_fail = FastFail(settings.fast_fail, *parts)
        self._next_check = 0.0

    def run(self) -> None:
        """Return when the job has ended, or left the block and entered another one, and everything is recorded."""
        self._receive()
        while not self._is_dead() and not self._has_left():
            self._wait()
            self._step(time.monotonic())
        signal.alarm(LONGEST_END_SECONDS)
        if self._is_dead():
            self._read_status()
            self._guarded(self._report_end)
        self._end_block()
        if not self._is_dead():
            if self._fast_fail is None:  # To ship may take seconds, in which the star would get no answer.
                self._guarded(self._log.close, END_SECONDS)
            if not self._may_outlast():
                self._leave()
                return
            signal.alarm(0)
            if not self._outlast():
                self._leave()
                return
            signal.alarm(LONGEST_END_SECONDS)
            self._read_status()
            self._guarded(self._report_end)
        self._record_end()
        if self._fast_fail is not None:
            signal.alarm(LONGEST_END_SECONDS)
            self._guarded(self._fast_fail.close)
        self._guarded(self._log.close, END_SECONDS)
        self._guarded(self._write_mirror)

    def _has_left(self) -> bool:
        return self._left_at is not None and (self._is_replaced or time.monotonic() - self._left_at >= LINGER_SECONDS)

    def _is_dead(self) -> bool:
        """Return True if the job has ended, and keep the time at which that was first seen."""
        if self._ended_ns is None and self._job.is_dead():
            self._ended_ns, self._ended_monotonic_ns = time.time_ns(), time.monotonic_ns()
        return self._ended_ns is not None

    # --- While the job lives --------------------------------------------------------------------------

    def _wait(self) -> None:
        """Wait until there is something to do, and receive messages."""
        seconds = [self._next_check - time.monotonic()]
        if self._of_timer.is_open or self._of_job.is_open:
            seconds.append(_QUIET_SECONDS / 5)
        if self._seconds_to_requests is not None:
            seconds.append(self._seconds_to_requests)
        if self._hangs is not None:
            seconds.append(self._hangs.seconds_to_next)
        if self._left_at is not None:
            seconds.append(0.1)
        others = [self._timer]
        if self._fast_fail is not None:
            seconds.append(self._seconds_to_fast_fail)
            others += self._fast_fail.descriptors
        parent = self._parent.descriptor if self._parent.is_open else None
        # A request that arrives after the block was left stays unread, so a wait for it would return at once each time.
        requests = self._requests if self._left_at is None else None
        readable = requests.descriptors if requests is not None else ()
        if parent in wait_readable([*others, self._job.descriptor, parent, *readable], min(seconds)):
            self._receive()

    def _step(self, now: float) -> None:
        self._guarded(self._check_requests, now)
        self._guarded(self._read_timer)
        self._guarded(self._read_others)
        for dumps in (self._of_timer, self._of_job):
            for dump in dumps.after_quiet(now):
                self._guarded(self._take_dump, dump)
        if self._cut is not None and now - self._cut_at >= _MAIN_THREAD_SECONDS:
            cut, self._cut = self._cut, None
            self._guarded(self._write_dump, cut)
        if self._hangs is not None:
            self._guarded(self._hangs.step, now)
            progress = self._hangs.progress
            if progress is not None and progress.monotonic_ns > self._fault_seen_ns:
                self._fault = None  # It was a forked child's.
        if now >= self._next_check:
            self._next_check = now + _CHECK_SECONDS
            self._guarded(self._check, now)
        self._step_fast_fail(now)

    def _step_fast_fail(self, now: float) -> None:
        if self._fast_fail is not None:
            self._seconds_to_fast_fail = _CHECK_SECONDS
            self._guarded(self._step_star, self._fast_fail, now)

    def _step_star(self, fast_fail: FastFail, now: float) -> None:
        progress = None if self._hangs is None else self._hangs.progress
        is_suspected = self._hangs is not None and self._hangs.is_suspected
        self._seconds_to_fast_fail = fast_fail.step(now, progress, is_suspected=is_suspected)

    def _check(self, now: float) -> None:
        self._kills.check(now)
        if self._runner_pid is not None and self._job.parent_pid() != self._runner_pid and not self._is_dead():
            self._runner_pid = None  # It was killed.
            self._is_end_recorded = False
        self._console.step(now, is_passed_on=self._runner_pid is not None)
        self._sigterm_handlers.check(now)
        if self._log.is_open:  # The journal takes memory, and a change alone is no reason to load it.
            self._write_sigterm_handlers()

    def _write_sigterm_handlers(self) -> None:
        for payload in self._sigterm_handlers.take():
            self._log.write(payload)

    def _receive(self) -> None:
        for message in self._parent.receive():
            self._guarded(self._handle, message)

    def _handle(self, message: Mapping[str, Any]) -> None:
        kind = message.get("kind")
        if kind == "labels":
            self._log.learn(message["labels"])
        elif kind == "snapshot":
            self._take_snapshot(message)
        elif kind == "exception":
            for dump in parse_dumps(str(message.get("text", ""))):
                self._take_dump(dump)
        elif kind == "left":
            self._note = Note.from_message(message)
            self._failure = failure_fields(message.get("failure") or {})
            self._left_at = time.monotonic()
            self._fault = None  # It was a forked child's.
            if self._fast_fail is not None:
                self._fast_fail.add_left(self._note, message.get("failure") or {}, self._last_step())
        elif kind == "compiles":
            self._log.write(compiles_entry(message))
        elif kind == "sigterm_handler":
            self._sigterm_handlers.learn(message)
            self._sigterm_handlers.check(time.monotonic())
        elif kind == "replaced":
            self._is_replaced = True
        elif self._fast_fail is not None and str(kind).startswith("fast_fail"):
            self._fast_fail.handle(message)

    def _check_requests(self, now: float) -> None:
        if self._requests is not None and self._left_at is None:
            self._seconds_to_requests = self._requests.step(now)
        else:
            self._seconds_to_requests = None

    def _read_timer(self) -> None:
        """Write the timer's dumps to the trace file or the console."""
        while self._timer is not None:
            try:
                data = os.read(self._timer, _READ_BYTES)
            except BlockingIOError:
                return
            self._fault = None if data else self._fault  # It was a forked child's: the job lives.
            if not data:  # The job has left the block, and no fork of it has the other end open.
                self._timer = None
                data = self._headers.rest()
            lines = self._headers.add(data) if self._timer is not None else data
            for dump in self._of_timer.feed(lines):
                self._guarded(self._take_dump, dump)
            try:
                if lines:
                    self._output.append(lines)
            except OSError as error:
                self._parent.log(
                    WARNING, f"A periodic stack trace could not be written ({error}); it is in the journal"
                )

    def _read_others(self) -> None:
        """Read what faults and signals have written to the trace file."""
        while data := self._output.read_others():
            for dump in self._of_job.feed(data):
                self._guarded(self._take_dump, dump)

    def _take_dump(self, dump: Dump) -> None:
        if dump.trigger is Trigger.FAULT:
            self._fault, self._fault_seen_ns = dump.headline, time.monotonic_ns()
        if self._hangs is not None:
            self._hangs.add_dump(dump)
        if self._fast_fail is not None and not dump.trigger.is_last:
            from cloud_tpu_diagnostics._dumps.grouping import main_thread

            if (main := main_thread(dump.threads)) is not None:
                self._fast_fail.add_stack(main.frames)
        if self._cut is not None:
            dump = self._completed(dump)
        elif dump.is_cut and not dump.trigger.is_last and self._job.ask(self._settings.main_thread_signal):
            self._cut = dump
            self._cut_at = time.monotonic()
            return
        self._write_dump(dump)

    def _completed(self, dump: Dump) -> Dump:
        """Return the cut dump with the main thread's appended, if this dump has that; otherwise write the cut one."""
        cut, self._cut = self._cut, None
        if cut is None:
            return dump
        if dump.trigger is Trigger.SIGNAL and len(dump.threads) == 1:
            return cut._replace(threads=cut.threads + dump.threads, text=f"{cut.text}\n{dump.text}")
        self._write_dump(cut)
        return dump

    def _write_dump(self, dump: Dump) -> None:
        self._dumps += 1
        circumstances = self._circumstances()
        if dump.trigger is Trigger.EXCEPTION:  # By now the progress page shows the end of the block.
            circumstances.update(phase=None, step=dump.step)
        for payload, severity in dump_entries(dump, self._dumps, **circumstances):
            self._log.write(payload, severity=severity)

    def _take_snapshot(self, message: Mapping[str, Any]) -> None:
        from cloud_tpu_diagnostics._dumps.snapshot import Snapshot, SnapshotHistory, describe

        self._fault = None  # It was a forked child's.
        snapshot = Snapshot.from_json(message)
        if self._hangs is not None:
            self._hangs.add_snapshot(snapshot)
        if self._fast_fail is not None:
            for group in snapshot.groups:
                if group.has_main:
                    self._fast_fail.add_stack(group.frames)
        if self._snapshots is None:
            self._snapshots = SnapshotHistory()
        unchanged = self._snapshots.seen(snapshot)
        groups = [
            {**group, "unchanged_snapshots": still.snapshots, "unchanged_seconds": round(still.seconds, 3)}
            for group, still in zip(message["groups"], unchanged, strict=False)
        ]
        fields = {name: message.get(name) for name in ("threads", "time_ns", "left_out")}
        text = describe(snapshot, unchanged)
        self._log.write(entry(SNAPSHOT, text, groups=groups, **fields, **self._circumstances()))

    def _write_note(self, sentence: str) -> None:
        """Write the verdict on a hang to the destination of dumps too, for users who read only that."""
        self._guarded(self._console.write, "hang")
        try:
            self._output.append(f"{sentence}\n".encode())
        except OSError as error:
            self._parent.log(WARNING, f"{sentence}. It could not be written ({error}); it is in the journal")

    def _circumstances(self) -> dict[str, Any]:
        """Return the fields of all entries with stacks: the job's phase and step, and the interval of stacks."""
        progress = None if self._hangs is None else self._hangs.progress
        return {
            "phase": progress.phase if progress else None,
            "step": progress.step if progress else None,
            "interval_seconds": self._settings.interval_seconds,
        }

    # --- Its end --------------------------------------------------------------------------------------

    def _end_block(self) -> None:
        """Record what the block has left to record, and that it was left if the companion does not record the end."""
        self._receive()
        self._guarded(self._read_timer)
        self._guarded(self._read_others)
        for dumps in (self._of_timer, self._of_job):
            for dump in dumps.finish():
                self._guarded(self._take_dump, dump)
        if self._cut is not None:
            self._guarded(self._write_dump, self._cut)
        if self._hangs is not None:
            self._guarded(self._hangs.close)
        self._guarded(self._output.close)
        if self._note is not None and (self._is_end_recorded or not self._is_dead()):
            self._guarded(self._write, left_block(self._note, is_alive=not self._is_dead()), LEFT_BLOCK)

    def _leave(self) -> None:
        """Leave a job that continues: its end is recorded by another process."""
        if self._fast_fail is not None:
            self._guarded(self._fast_fail.leave)
        self._guarded(self._log.close, END_SECONDS)
        self._guarded(self._write_mirror, is_alive=True)

    def _may_outlast(self) -> bool:
        """Return True if this process waits for the end of a job that has left its block.

        It does not if the job is its parent, as process 1 of a container is: that may wait for all its children, and
        its end is that of the container.
        """
        is_recorded = self._is_end_recorded and (self._fast_fail is None or not self._fast_fail.is_on)
        return not (is_recorded or self._is_replaced or os.getppid() == self._job.pid)

    def _outlast(self) -> bool:
        """Wait for the end of the process; return False if another block's companion records that."""
        self._parent.send({"kind": "lingers"})  # The job stops its thread that receives from this process.
        self._snapshots = None
        while not self._is_dead():
            self._guarded(self._check, time.monotonic())
            parent = self._parent.descriptor if self._parent.is_open else None
            seconds = _CHECK_SECONDS if self._job.descriptor is None else _KILLS_SECONDS
            others: list[int] = []
            if self._fast_fail is not None and self._fast_fail.is_on:
                seconds, others = self._seconds_to_fast_fail, self._fast_fail.descriptors
            if parent in wait_readable([self._job.descriptor, parent, *others], seconds):
                self._receive()
            self._step_fast_fail(time.monotonic())
            if self._is_replaced:
                return False
        return True

    def _read_status(self) -> None:
        """Read the exit status, first of all: an older kernel shows it only until the parent has reaped the job."""
        self._status = exit_status(self._job.pid, self._job.descriptor)
        if self._status is None and self._fast_fail is not None and self._is_end_recorded:
            self._status = self._fast_fail.exit_status()

    def _report_end(self) -> None:
        """Report the end to the star, before anything else is done."""
        if self._fast_fail is not None:
            self._receive()  # The job may have left its block since, by an exception that says more than its status.
            self._kills.check(time.monotonic())
            self._fast_fail.add_end(self._ending(), self._ended_ns, self._last_step())

    def _ending(self) -> Ending:
        is_out_of_memory = self._kills.is_recent(time.monotonic())
        return ending_of(self._status, self._note, fault=self._fault, is_out_of_memory=is_out_of_memory)

    def _last_step(self) -> int | None:
        progress = None if self._hangs is None else self._hangs.last_progress()
        return None if progress is None else progress.step

    def _record_end(self) -> None:
        if self._fast_fail is not None:
            has_failed = self._ending().reason is not ExitReason.CLEAN
            self._guarded(lambda fast_fail: fast_fail.wait_for_decision(has_failed=has_failed), self._fast_fail)
            self._guarded(self._fast_fail.record)
        if not self._is_end_recorded:
            self._guarded(self._kills.check, time.monotonic())
            self._guarded(self._console.write, "end")
            self._guarded(self._write, self._ending(), JOB_ENDED)
        else:
            self._guarded(self._write_sigterm_handlers)

    def _write_mirror(self, *, is_alive: bool = False) -> None:
        """Write to the mirror, if there is one, the rest of these entries, and of those of a job that was killed."""
        if not os.environ.get("ML_DIAGNOSTICS_MIRROR", "").strip():
            return
        from cloud_tpu_diagnostics._companion.mirror import write_rest

        signal.alarm(LONGEST_END_SECONDS)
        write_rest(None if is_alive else self._job.pid, MIRROR_SECONDS)

    def _write(self, ending: Ending, kind: str) -> None:
        self._sigterm_handlers.check(math.inf)
        self._write_sigterm_handlers()
        progress = None if self._hangs is None else self._hangs.last_progress()
        fields = progress_fields(progress, self._ended_monotonic_ns or time.monotonic_ns())
        fields |= self._sigterm_handlers.fields()
        if self._fast_fail is not None and kind == JOB_ENDED:
            fields |= self._fast_fail.fields(ending)
            if fields.get("ended_by") is not None:
                ending = ending._replace(sentence=f"Fast-fail ended the job: {fields['first_cause']['message']}")
        payload = ending.payload(kind, **fields, **self._failure, ended_ns=self._ended_ns)
        self._log.write(payload, severity=None if ending.reason is ExitReason.CLEAN else "ERROR")

    def _guarded(self, function: Callable[..., object], *arguments: Any, **options: Any) -> None:
        """Call a function; its failure must not prevent what follows."""
        try:
            function(*arguments, **options)
        except Exception as error:
            name = getattr(function, "__name__", "something")
            self._parent.log(WARNING, f"The companion of this job failed in {name} ({type(error).__name__}: {error})")


class _Dumps:
    """The dumps in one stream of bytes."""

    def __init__(self) -> None:
        self._parser = DumpParser()
        self._fed_at = 0.0
        self.is_open = False
        """True if something has arrived that may be a part of a dump."""

    def feed(self, data: bytes) -> list[Dump]:
        """Add bytes, and return the dumps that they complete."""
        if not data:
            return []
        self.is_open, self._fed_at = True, time.monotonic()
        return self._parser.feed(data)

    def after_quiet(self, now: float) -> list[Dump]:
        """Return the dump that nothing has followed for a while."""
        return self.finish() if self.is_open and now - self._fed_at >= _QUIET_SECONDS else []

    def finish(self) -> list[Dump]:
        """Return the last dump, which nothing follows."""
        self.is_open = False
        return self._parser.finish()


def _output(settings: CompanionSettings, descriptors: Mapping[str, int]) -> TraceOutput:
    if settings.trace_path is not None:
        try:
            return FileOutput(settings.trace_path, settings.trace_bytes, settings.most_bytes)
        except OSError:
            pass  # It was deleted meanwhile; dumps are still recorded as entries.
    elif "console" in descriptors:
        return ConsoleOutput(descriptors["console"])
    return ConsoleOutput(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
