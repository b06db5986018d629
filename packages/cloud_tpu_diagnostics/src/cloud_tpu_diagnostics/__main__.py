"""The command `python -m cloud_tpu_diagnostics run -- CMD`: a parent that records the exit reason of a job.

It passes signals on, and what the job prints, and exits as the job does. As process 1 of a container it also reaps
orphans, and waits for the companions of the job, which would end with it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import CommandError
from ml_diagnostics_common.command.program import Program
from ml_diagnostics_common.processes import read_system_file, start_mark
from ml_diagnostics_common.sidecar import IN_SIDECAR

from cloud_tpu_diagnostics._companion import RUN_BY
from cloud_tpu_diagnostics._companion.endings import ExitReason, Note, OutOfMemoryKills, ending_of, progress_fields
from cloud_tpu_diagnostics._companion.log import EntryLog, console_entry
from cloud_tpu_diagnostics._companion.main import END_SECONDS, LONGEST_END_SECONDS
from cloud_tpu_diagnostics._console import is_console_kept
from cloud_tpu_diagnostics._console.capture import Capture
from cloud_tpu_diagnostics._fast_fail.status import end_fields, read_status, wait_for_status, write_exit
from cloud_tpu_diagnostics._hold import FailedJob, HoldPlan, add_hold_options, hold, plan_of
from cloud_tpu_diagnostics._signals import signal_name
from cloud_tpu_diagnostics._version import __version__
from cloud_tpu_diagnostics.entries import JOB_ENDED, SIGNAL, entry

__all__ = ["main"]

_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
"""The exit codes of shells."""
_CHECK_SECONDS = 10.0
_CAPTURE_CHECK_SECONDS = 1.0
"""The interval of checks that a reader which has stopped does not fill the memory."""
_FROM_THE_KERNEL = 128
"""SI_KERNEL: for instance a terminal's Ctrl-C, which the job receives as well."""
_FIRST_PROCESS = 1
_DECISION_SECONDS = 4.0
"""The wait for the first cause after a failure, if fast-fail is on."""
_ASKS_TO_END = (signal.SIGTERM, signal.SIGINT)
_PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGALRM")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the job's exit code or signal becomes that of this process.

    Args:
        arguments: The arguments of the command; None takes those of this process.
    """
    description = "Exit reasons of training jobs, recorded even after a crash."
    return Program("python -m cloud_tpu_diagnostics", description, __version__, lambda: [RunCommand()]).main(arguments)


class RunCommand:
    """Runs a job."""

    name = "run"
    summary = "run a job, and record its exit reason where its stack traces are written"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        parser.epilog = "exits as the job does; 127 if the program does not exist, 126 if it cannot be run"
        parser.add_argument("--no-upload", action="store_true", help="write to the journal only")
        parser.add_argument(
            "--no-console", action="store_true", help="leave stdout and stderr as they are, and keep no last lines"
        )
        add_hold_options(parser)
        parser.add_argument("job", nargs="+", metavar="CMD", help="the program and its arguments, after `--`")

    def run(self, options: argparse.Namespace, console: Console) -> NoReturn:
        """Run the job to its end, and exit as it did."""
        if sys.platform == "win32":
            raise CommandError("`run` does not work on Windows, which has no signals to pass on: start the job itself")
        plan = plan_of(options)
        gc.enable()  # Short commands do without; a job may run for months.
        capture = Capture([] if options.no_console or not is_console_kept() else [1, 2])
        _end_like(_run(options.job, console, capture, plan, is_shipped=not options.no_upload))


def _run(command: Sequence[str], console: Console, capture: Capture, plan: HoldPlan | None, *, is_shipped: bool) -> int:
    """Run a job to its end, record its exit reason, and hold it if it has failed; return its wait status."""
    from ml_diagnostics_common.environment import identity

    signals = {getattr(signal, name) for name in _PASSED_ON} | {signal.SIGCHLD}
    # Blocked rather than handled, so that none is missed between two checks; the job gets our original mask.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    started_ns = time.time_ns()
    try:
        pid = os.posix_spawnp(
            command[0],
            list(command),
            {**os.environ, **capture.environment(), RUN_BY: str(os.getpid())},
            file_actions=capture.file_actions(),
            setsigmask=before,
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # Python ignores them, and so would the job.
        )
    except (OSError, ValueError) as error:  # ValueError: the name is empty.
        is_not_found = isinstance(error, (FileNotFoundError, ValueError))
        console.warn(f"cannot run {command[0]!a}: {getattr(error, 'strerror', None) or error}")
        raise SystemExit(_NOT_FOUND if is_not_found else _NOT_EXECUTABLE) from None
    start = start_mark(pid)
    kills = OutOfMemoryKills(pid)
    labels = {**identity().labels(), "pid": str(pid)}
    log = EntryLog(labels, is_shipped=is_shipped)
    capture.start(f"{labels['host']}-{pid}")
    status, was_asked = _wait(pid, start, signals, kills, capture, log)
    write_exit(pid, start, status)
    circumstances = _circumstances(pid, start)
    kills.check(time.monotonic())
    ending = ending_of(status, Note("clean"), fault=None, is_out_of_memory=kills.is_recent(time.monotonic()))
    capture.end(LONGEST_END_SECONDS)
    try:
        fast_fail = wait_for_status(pid, start, _DECISION_SECONDS if status and not was_asked else 0.0)
        circumstances |= end_fields(fast_fail, ending.exit_code, ending.signal)
        if circumstances.get("ended_by") is not None:
            ending = ending._replace(sentence=f"Fast-fail ended the job: {circumstances['first_cause']['message']}")
        payload = ending.payload(JOB_ENDED, **circumstances)
        log.write(payload, severity=None if ending.reason is ExitReason.CLEAN else "ERROR")
        _record_console(capture, EntryLog(labels, is_shipped=False))
        if os.getpid() == _FIRST_PROCESS:
            _wait_for_companions()
        if plan is not None and status and not was_asked:
            job = FailedJob(labels, status, started_ns, payload)
            hold(plan, job, log, console.warn, lambda seconds: _next_signal(signals, seconds)[0], lambda: _reap(0))
        log.close(END_SECONDS)
    except Exception as error:
        _warn_after_job(console, f"cannot record the exit reason of the job ({type(error).__name__}: {error})")
    return status


def _record_console(capture: Capture, log: EntryLog) -> None:
    """Record the last lines that the job printed. They stay on this machine: they may be anything."""
    for stream in capture.streams:
        data, start = stream.tail()
        if data:
            dropped_bytes = stream.dropped_bytes
            payload = console_entry(
                stream.name, data, "end", start=start, marks=stream.marks, dropped_bytes=dropped_bytes
            )
            log.write(payload)
    log.close(1.0)


def _record_signal(info: signal.struct_siginfo, log: EntryLog) -> None:
    """Record that the job was asked to end, and by which process: 0 is one outside of the container."""
    name = signal_name(info.si_signo)
    sender = f"process {info.si_pid} (user {info.si_uid})" if info.si_pid else "a process outside of this container"
    payload = entry(
        SIGNAL, f"{sender} sent {name} to the job", signal=name, sender_pid=info.si_pid, sender_uid=info.si_uid
    )
    with contextlib.suppress(Exception):  # The end of the job is to be recorded in any case.
        log.write(payload)


def _warn_after_job(console: Console, text: str) -> None:
    """Print a warning; where that fails too, as on a full disk, the exit code stays that of the job."""
    try:
        console.warn(text)
    except (OSError, ValueError):
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 (its buffer cannot be flushed)


def _wait(
    pid: int, start: str, signals: set[signal.Signals], kills: OutOfMemoryKills, capture: Capture, log: EntryLog
) -> tuple[int, bool]:
    """Pass signals on until the job has ended; return its wait status, and if one of them asked it to end."""
    was_asked = False
    seconds = _CAPTURE_CHECK_SECONDS if capture.streams else _CHECK_SECONDS
    while (status := _reap(pid)) is None:
        kills.check(time.monotonic())
        capture.limit()
        number, info = _next_signal(signals, seconds)
        if number in (None, signal.SIGCHLD):
            continue
        if info is None or info.si_code != _FROM_THE_KERNEL:  # That one was sent to the whole foreground group.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if info is not None and number in _ASKS_TO_END:
            was_asked = True
            _notify_companions(pid, start)
            _record_signal(info, log)
    return status, was_asked


def _notify_companions(pid: int, start: str) -> None:
    """Let the companions of a job with fast-fail know that it was asked to end: no process is ended while it saves.

    JAX handles SIGTERM in C, so they cannot learn it from the job. Without fast-fail they ignore the signal.
    """
    if read_status(pid, start) is not None:
        for companion in _companions(f"{RUN_BY}={os.getpid()}"):
            with contextlib.suppress(OSError):
                os.kill(companion, signal.SIGTERM)


def _circumstances(pid: int, start: str) -> dict[str, Any]:
    """Return when the job has ended, which is now, and its last progress if it was in a block."""
    from ml_diagnostics_common.progress import ProgressReader, page_of

    ended_ns, ended_monotonic_ns = time.time_ns(), time.monotonic_ns()
    progress = None
    with contextlib.suppress(OSError):
        if (page := page_of(pid, start=start)) is not None:
            reader = ProgressReader(page)
            progress = reader.read(is_running=True)
            reader.close()
    return {**progress_fields(progress, ended_monotonic_ns), "ended_ns": ended_ns}


def _next_signal(signals: set[signal.Signals], seconds: float) -> tuple[int | None, signal.struct_siginfo | None]:
    """Wait some time for a signal; return it, and who sent it where the system reports that."""
    if not hasattr(signal, "sigtimedwait"):  # macOS: signals from a terminal are then passed on once more.
        return signal.sigwait(signals), None
    info = signal.sigtimedwait(signals, seconds)
    return (None, None) if info is None else (info.si_signo, info)


def _reap(pid: int) -> int | None:
    """Reap all processes that have ended; return the wait status of the job if it is one of them."""
    found = None
    while True:
        try:
            reaped, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if reaped == pid:
            found = status
        if not reaped:
            return found


def _wait_for_companions() -> None:
    """Wait, as process 1 since its exit ends all others, until the job's companions have written their entries."""
    deadline = time.monotonic() + LONGEST_END_SECONDS
    while any(_companions()) and time.monotonic() < deadline:
        time.sleep(0.05)
        _reap(0)


def _companions(setting: str = "") -> Iterator[int]:
    """Yield the companions on this machine; those alone that have an environment variable, if one is given."""
    variable = f"\0{IN_SIDECAR}={__package__}._companion.".encode()
    wanted = f"\0{setting}\0".encode() if setting else b""
    for name in os.listdir("/proc"):  # noqa: PTH208 (numbers among them)
        if name.isdigit():
            with contextlib.suppress(OSError):
                variables = b"\0" + read_system_file(f"/proc/{name}/environ")
                if variable in variables and wanted in variables:
                    yield int(name)


def _end_like(status: int) -> NoReturn:
    """Exit with the job's exit code, or by the signal that ended it; with 128 plus its number if that is impossible."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError, ValueError):
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # A core dump of this process would be useless.
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
            sys.stdout.flush()
            os.kill(os.getpid(), number)  # Process 1 survives it.
        os._exit(128 + number)
    raise SystemExit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    sys.exit(main())
