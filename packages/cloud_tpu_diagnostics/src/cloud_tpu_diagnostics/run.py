"""The command `python -m cloud_tpu_diagnostics run -- CMD`: a parent that says exactly how a job ended.

It passes signals on, ends as the job ended, and does as process 1 of a container: it reaps what others leave behind,
and waits for the companions of the job, which would die with it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NoReturn

from ml_diagnostics_common.processes import read_system_file
from ml_diagnostics_common.sidecar import IN_SIDECAR

from cloud_tpu_diagnostics._companion import RUN_BY
from cloud_tpu_diagnostics._companion.endings import How, Note, OutOfMemoryKills, judge
from cloud_tpu_diagnostics._companion.log import EntryLog
from cloud_tpu_diagnostics._companion.main import END_SECONDS, LONGEST_END_SECONDS

__all__ = ["main"]

_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
"""What shells exit with."""
_LOOK_SECONDS = 10.0
_FROM_THE_KERNEL = 128
"""SI_KERNEL: a terminal's Ctrl-C, for instance, which the job has got as well."""
_FIRST_PROCESS = 1
_PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGALRM")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line, and ends as the job does.

    Args:
        arguments: Of the command line; None for this process's.
    """
    parser = argparse.ArgumentParser(
        prog="python -m cloud_tpu_diagnostics", description="Stack traces of training jobs, told even after a crash."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run",
        help="run a job, and say how it ended",
        description="Runs a job, and writes how it ended where its stack traces are written: to Cloud Logging and to "
        "the journal. Exits as the job does; 127 if there is no such program, 126 if it cannot be run.",
    )
    run.add_argument("--no-upload", action="store_true", help="write to the journal only")
    run.add_argument("job", nargs="+", metavar="CMD", help="the program and its arguments, after `--`")
    parsed = parser.parse_args(arguments)
    status = _run(parsed.job, is_shipped=not parsed.no_upload)
    _end_like(status)


def _run(job: Sequence[str], *, is_shipped: bool) -> int:
    """Runs a job to its end, and tells it; returns its wait status."""
    from ml_diagnostics_common.environment import identity

    signals = {getattr(signal, name) for name in _PASSED_ON} | {signal.SIGCHLD}
    # Blocked rather than handled, so that none is lost between two looks; the job gets the mask that we were given.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        pid = os.posix_spawnp(
            job[0],
            list(job),
            {**os.environ, RUN_BY: str(os.getpid())},
            setsigmask=before,
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # Python ignores them, and so would the job.
        )
    except (OSError, ValueError) as error:  # ValueError: its name is empty.
        is_not_found = isinstance(error, (FileNotFoundError, ValueError))
        print(f"{job[0]!a} cannot be run: {getattr(error, 'strerror', None) or error}", file=sys.stderr)
        raise SystemExit(_NOT_FOUND if is_not_found else _NOT_EXECUTABLE) from None
    kills = OutOfMemoryKills(pid)
    status = _wait(pid, signals, kills)
    kills.check(time.monotonic())
    ending = judge(status, Note("clean"), fault=None, is_out_of_memory=kills.is_recent(time.monotonic()))
    log = EntryLog({**identity().labels(), "pid": str(pid)}, is_shipped=is_shipped)
    try:
        log.write(ending.payload(), severity=None if ending.how is How.CLEAN else "ERROR")
        if os.getpid() == _FIRST_PROCESS:
            _wait_for_companions()
        log.close(END_SECONDS)
    except Exception as error:
        print(f"How the job ended could not be written ({type(error).__name__}: {error})", file=sys.stderr)
    return status


def _wait(pid: int, signals: set[signal.Signals], kills: OutOfMemoryKills) -> int:
    """Passes signals on until the job has ended; returns its wait status."""
    while (status := _reap(pid)) is None:
        kills.check(time.monotonic())
        number, is_for_all = _next_signal(signals)
        if number not in (None, signal.SIGCHLD) and not is_for_all:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    return status


def _next_signal(signals: set[signal.Signals]) -> tuple[int | None, bool]:
    """Waits a while for a signal; and whether the kernel has sent it to the whole group in the foreground."""
    if not hasattr(signal, "sigtimedwait"):  # macOS: what a terminal sends is then passed on once more.
        return signal.sigwait(signals), False
    info = signal.sigtimedwait(signals, _LOOK_SECONDS)
    return (None, False) if info is None else (info.si_signo, info.si_code == _FROM_THE_KERNEL)


def _reap(pid: int) -> int | None:
    """Reaps all that have ended; the wait status of the job if it has."""
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
    """As process 1, whose end is everybody's: what the job's companions have to tell comes first."""
    deadline = time.monotonic() + LONGEST_END_SECONDS
    while any(_companions()) and time.monotonic() < deadline:
        time.sleep(0.05)
        _reap(0)


def _companions() -> Iterator[int]:
    variable = f"\0{IN_SIDECAR}={__package__}._companion.".encode()
    for name in os.listdir("/proc"):  # noqa: PTH208 (numbers among them)
        if name.isdigit():
            with contextlib.suppress(OSError):
                if variable in b"\0" + read_system_file(f"/proc/{name}/environ"):
                    yield int(name)


def _end_like(status: int) -> NoReturn:
    """Ends with the job's exit code, or by the signal that it died of; with 128 more where that cannot be."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError, ValueError):
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # The job's memory may be worth a file; ours is not.
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
            sys.stdout.flush()
            os.kill(os.getpid(), number)  # Process 1 survives it.
        os._exit(128 + number)
    raise SystemExit(os.WEXITSTATUS(status))
