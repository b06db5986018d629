"""The companion, from within: it reads what the job's stacks are written to, and says how the job ended.

It starts with nothing but the standard library. What journals and ships is loaded at the first entry.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from cloud_tpu_diagnostics.companion.channel import ERROR, WARNING, Channel
from cloud_tpu_diagnostics.companion.endings import How, Note, judge
from cloud_tpu_diagnostics.companion.hang_watching import HangWatching
from cloud_tpu_diagnostics.companion.job import Job
from cloud_tpu_diagnostics.companion.log import EntryLog, dump_entries
from cloud_tpu_diagnostics.companion.out_of_memory import OutOfMemoryKills
from cloud_tpu_diagnostics.companion.settings import CompanionSettings
from cloud_tpu_diagnostics.companion.trace_output import ConsoleOutput, FileOutput, Headers, TraceOutput
from cloud_tpu_diagnostics.companion.unanswered import UnansweredRequests
from cloud_tpu_diagnostics.entries import SNAPSHOT, entry
from cloud_tpu_diagnostics.traces import Dump, DumpParser, Trigger, parse_dumps

__all__ = ["END_SECONDS", "LINGER_SECONDS", "LONGEST_END_SECONDS", "Companion", "main"]

LINGER_SECONDS = 2.0
"""How long after it has left the block a job is waited for, to tell the exact end of it."""
END_SECONDS = 10.0
"""How long what is left may take to be shipped."""
LONGEST_END_SECONDS = 30
"""After it has seen the end, the kernel ends this process then, whatever hangs."""

_LONGEST_START_SECONDS = 60.0
_LOOK_SECONDS = 1.0
_QUIET_SECONDS = 0.5
"""A dump is over when nothing has come for so long. One of 100 threads takes 0.04 s."""
_MAIN_THREAD_SECONDS = 2.0
"""How long the main thread's stack is waited for, where a dump was cut."""
_OUT_OF_MEMORY_SECONDS = 60.0
"""A process that the kernel kills for want of memory may take so long to die."""
_READ_BYTES = 2**20
_NICENESS = 10
_IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTSTP", "SIGPIPE")


def main() -> NoReturn:
    """Goes along with a job, until its end; ends the process."""
    _be_humble()
    channel = Channel()
    channel.say({"kind": "hello", "pid": os.getpid()})
    hello = channel.first_message(_LONGEST_START_SECONDS)
    if hello is None:
        os._exit(0)
    try:
        Companion(hello, channel).run()
    except BaseException as error:
        channel.log(ERROR, f"The companion of this job failed ({type(error).__name__}: {error})")
        os._exit(1)
    os._exit(0)


class Companion:
    """Goes along with one block of a job.

    Args:
        hello: What the job said first.
        channel: To and from the job.
    """

    def __init__(self, hello: Mapping[str, Any], channel: Channel) -> None:
        self._settings = settings = CompanionSettings.from_json(hello["settings"])
        self._channel = channel
        descriptors = hello["descriptors"]
        self._job = Job(settings.job_pid, descriptors.get("job"))
        self._timer: int | None = descriptors["timer"]
        self._log = EntryLog(
            hello["labels"], is_shipped=settings.is_shipped, prepare=lambda: channel.listen_to_libraries()
        )
        self._requests: UnansweredRequests | None = None
        if "wakeups" in descriptors and "answers" in descriptors:
            self._requests = UnansweredRequests(descriptors, self._job, settings.dump_signal)
        self._seconds_to_requests: float | None = None
        self._is_ending_told = bool(hello.get("is_ending_told"))
        self._output = _output(settings, descriptors, int(hello.get("trace_bytes", 0)))
        self._headers = Headers(settings.interval_seconds)
        self._of_timer, self._of_job = _Dumps(), _Dumps()
        self._dumps = 0
        self._cut: Dump | None = None
        """A dump without the main thread, whose own is waited for."""
        self._cut_at = 0.0
        self._snapshots: Any = None
        self._fault: str | None = None
        """What the job has failed with, or a forked child of it, if the job shows that it lives."""
        self._fault_seen_ns = 0
        self._note: Note | None = None
        self._left_at: float | None = None
        self._kills = OutOfMemoryKills(settings.job_pid)
        self._hangs: HangWatching | None = None
        if settings.progress_path is not None:
            self._hangs = HangWatching(settings, self._job, self._log, channel, self._say_in_traces)
        self._next_look = 0.0

    def run(self) -> None:
        """Returns when the job has ended, or has left the block for a while, and all that can be told is told."""
        for message in self._channel.held():
            self._guarded(self._hear, message)
        while not self._is_over():
            self._wait()
            self._go_round(time.monotonic())
        self._end()

    def _is_over(self) -> bool:
        if self._left_at is not None and time.monotonic() - self._left_at >= LINGER_SECONDS:
            return True
        return self._job.is_dead()

    # --- While the job lives --------------------------------------------------------------------------

    def _wait(self) -> None:
        """Waits until there is something to do."""
        poller = select.poll()
        stdin = self._channel.stdin if self._channel.is_open else None
        request = self._requests.descriptor if self._requests is not None else None
        for descriptor in (self._timer, self._job.descriptor, stdin, request):
            if descriptor is not None:
                poller.register(descriptor, select.POLLIN)
        seconds = max(0.0, self._next_look - time.monotonic())
        if self._of_timer.is_open or self._of_job.is_open:
            seconds = min(seconds, _QUIET_SECONDS / 5)
        if self._seconds_to_requests is not None:
            seconds = min(seconds, self._seconds_to_requests)
        if self._hangs is not None:
            seconds = min(seconds, self._hangs.seconds_to_next)
        if self._left_at is not None:
            seconds = min(seconds, 0.1)
        ready = {descriptor for descriptor, _ in poller.poll(1e3 * seconds)}
        if self._channel.is_open and self._channel.stdin in ready:
            for message in self._channel.read():
                self._guarded(self._hear, message)

    def _go_round(self, now: float) -> None:
        self._guarded(self._look_for_requests, now)
        self._guarded(self._read_timer)
        self._guarded(self._read_others)
        for dumps in (self._of_timer, self._of_job):
            for dump in dumps.after_quiet(now):
                self._guarded(self._take_dump, dump)
        if self._cut is not None and now - self._cut_at >= _MAIN_THREAD_SECONDS:
            cut, self._cut = self._cut, None
            self._guarded(self._write_dump, cut)
        if self._hangs is not None:
            self._guarded(self._hangs.go_round, now)
            progress = self._hangs.progress
            if progress is not None and progress.monotonic_ns > self._fault_seen_ns:
                self._fault = None  # A forked child's.
        if now >= self._next_look:
            self._next_look = now + _LOOK_SECONDS
            self._guarded(self._kills.look, now)

    def _hear(self, message: Mapping[str, Any]) -> None:
        if isinstance(message.get("labels"), dict):
            self._log.learn(message["labels"])
        kind = message.get("kind")
        if kind == "snapshot":
            self._take_snapshot(message)
        elif kind == "exception":
            for dump in parse_dumps(str(message.get("text", ""))):
                self._take_dump(dump)
        elif kind == "left":
            self._note = Note.from_message(message)
            self._left_at = time.monotonic()
            self._fault = None  # A forked child's.

    def _look_for_requests(self, now: float) -> None:
        if self._requests is not None and self._left_at is None:
            self._seconds_to_requests = self._requests.step(now)
        else:
            self._seconds_to_requests = None

    def _read_timer(self) -> None:
        """Writes what the timer has dumped to where it belongs."""
        while self._timer is not None:
            try:
                data = os.read(self._timer, _READ_BYTES)
            except BlockingIOError:
                return
            self._fault = None if data else self._fault  # A forked child's: the job lives.
            if not data:  # The job has left, and no fork of it holds the other end.
                self._timer = None
                data = self._headers.rest()
            lines = self._headers.add(data) if self._timer is not None else data
            for dump in self._of_timer.feed(lines):
                self._guarded(self._take_dump, dump)
            try:
                if lines:
                    self._output.append(lines)
            except OSError as error:
                self._channel.log(
                    WARNING, f"A periodic stack trace could not be written ({error}); it is in the journal"
                )

    def _read_others(self) -> None:
        """Reads what faults and signals have written to the trace file."""
        while data := self._output.read_others():
            for dump in self._of_job.feed(data):
                self._guarded(self._take_dump, dump)

    def _take_dump(self, dump: Dump) -> None:
        if dump.trigger is Trigger.FAULT:
            self._fault, self._fault_seen_ns = dump.headline, time.monotonic_ns()
        if self._hangs is not None:
            self._hangs.see(dump)
        if self._cut is not None:
            dump = self._completed(dump)
        elif dump.is_cut and not dump.trigger.is_last and self._job.ask(self._settings.main_thread_signal):
            self._cut = dump
            self._cut_at = time.monotonic()
            return
        self._write_dump(dump)

    def _completed(self, dump: Dump) -> Dump:
        """Returns a dump that was cut with the main thread's behind it, if this is that; else writes the former."""
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
        if dump.trigger is Trigger.EXCEPTION:  # By now the page says that the block has ended.
            circumstances.update(phase=None, step=dump.step)
        for payload, severity in dump_entries(dump, self._dumps, **circumstances):
            self._log.write(payload, severity=severity)

    def _take_snapshot(self, message: Mapping[str, Any]) -> None:
        from cloud_tpu_diagnostics.snapshot import Snapshot, SnapshotHistory, describe

        self._fault = None  # A forked child's.
        snapshot = Snapshot.from_json(message)
        if self._hangs is not None:
            self._hangs.see_snapshot(snapshot)
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

    def _say_in_traces(self, sentence: str) -> None:
        """Writes a line to where dumps go: who looks there looks nowhere else."""
        try:
            self._output.append(f"{sentence}\n".encode())
        except OSError as error:
            self._channel.log(WARNING, f"{sentence}. It could not be written ({error}); it is in the journal")

    def _circumstances(self) -> dict[str, Any]:
        """What every stack is told with: what the job was about, and when the next stacks are due."""
        progress = None if self._hangs is None else self._hangs.progress
        return {
            "phase": progress.phase if progress else None,
            "step": progress.step if progress else None,
            "interval_seconds": self._settings.interval_seconds,
        }

    # --- Its end --------------------------------------------------------------------------------------

    def _end(self) -> None:
        signal.alarm(LONGEST_END_SECONDS)
        is_dead = self._job.is_dead()
        status = self._job.status() if is_dead else None
        while self._channel.is_open and (messages := self._channel_rest()):
            for message in messages:
                self._guarded(self._hear, message)
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
        self._guarded(self._kills.look, time.monotonic())
        if not self._is_ending_told:
            self._guarded(self._tell_ending, status, not is_dead)
        self._guarded(self._log.close, END_SECONDS)

    def _channel_rest(self) -> list[dict[str, Any]]:
        poller = select.poll()
        poller.register(self._channel.stdin, select.POLLIN)
        return self._channel.read() if poller.poll(0) else []

    def _tell_ending(self, status: int | None, goes_on: bool) -> None:
        is_out_of_memory = self._kills.was_within(_OUT_OF_MEMORY_SECONDS, time.monotonic())
        ending = judge(status, self._note, fault=self._fault, is_out_of_memory=is_out_of_memory, goes_on=goes_on)
        self._log.write(ending.payload(), severity=None if ending.how is How.CLEAN else "ERROR")

    def _guarded(self, function: Callable[..., object], *arguments: Any) -> None:
        """What goes wrong with one thing must not keep the next from being told."""
        try:
            function(*arguments)
        except Exception as error:
            name = getattr(function, "__name__", "something")
            self._channel.log(WARNING, f"The companion of this job failed in {name} ({type(error).__name__}: {error})")


class _Dumps:
    """The dumps in one stream of bytes."""

    def __init__(self) -> None:
        self._parser = DumpParser()
        self._fed_at = 0.0
        self.is_open = False
        """Whether something has come that may be a part of a dump."""

    def feed(self, data: bytes) -> list[Dump]:
        """Takes bytes, and returns the dumps that they complete."""
        if not data:
            return []
        self.is_open, self._fed_at = True, time.monotonic()
        return self._parser.feed(data)

    def after_quiet(self, now: float) -> list[Dump]:
        """Returns the dump that nothing has followed for a while."""
        return self.finish() if self.is_open and now - self._fed_at >= _QUIET_SECONDS else []

    def finish(self) -> list[Dump]:
        """Returns the dump that nothing follows."""
        self.is_open = False
        return self._parser.finish()


def _output(settings: CompanionSettings, descriptors: Mapping[str, int], begin: int) -> TraceOutput:
    if settings.trace_path is not None:
        try:
            return FileOutput(settings.trace_path, begin, settings.most_bytes)
        except OSError:
            pass  # Deleted meanwhile: dumps are entries all the same.
    elif "console" in descriptors:
        return ConsoleOutput(descriptors["console"])
    return ConsoleOutput(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))


def _be_humble() -> None:
    """Puts everything of the job first, and leaves it to the job when this process ends."""
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    try:
        os.nice(_NICENESS)
    except OSError:
        pass
