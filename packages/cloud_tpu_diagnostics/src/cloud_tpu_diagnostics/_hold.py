"""Keeps a job that has failed for debugging: the wrapper stays, and with it the container and its files.

Off unless `--hold-on-failure` is given. The job itself has ended; nothing of it runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ml_diagnostics_common.command.options import seconds, whole_number
from ml_diagnostics_common.texts import format_count, format_duration
from ml_diagnostics_common.worker import NoAnswerError, Task, call, start

from cloud_tpu_diagnostics._companion.log import EntryLog, namespace_of_pod
from cloud_tpu_diagnostics._fast_fail.status import ENDED_BY
from cloud_tpu_diagnostics._signals import signal_name
from cloud_tpu_diagnostics.configuration.fast_fail_configuration import EXIT_CODE
from cloud_tpu_diagnostics.entries import HELD, LOG_ID, entry
from cloud_tpu_diagnostics.holds import Hold, file_of, read_holds

__all__ = ["FailedJob", "HoldPlan", "add_hold_options", "hold", "plan_of"]

_MOST_SECONDS: Final = 86_400.0
_ENTRY_SECONDS: Final = 60.0
_CHECK_SECONDS: Final = 1.0
_FILE_SECONDS: Final = 5.0
"""The wait for the disk of the diagnostics folder, which may be that of another machine."""
_PRINT_SECONDS: Final = 1.0
"""The wait for the reader of the last line."""
_KEPT_NS: Final = 86_400 * 10**9
"""Files of wrappers that were killed are removed this long after their time limit."""
_RELEASING: Final = (signal.SIGTERM, signal.SIGINT, *(getattr(signal, name, 0) for name in ("SIGHUP", "SIGQUIT")))
_NEWEST_WRITERS: Final = 256
_DEVICES: Final = (("/dev", r"accel\d+"), ("/dev/vfio", r"\d+"), ("/dev", r"nvidia\d+"))
"""TPU chips, TPU chips of newer machines, GPUs: the first kind that exists counts."""


class HoldPlan(NamedTuple):
    """The options of a hold."""

    limit_seconds: float
    chips: int | None
    chip_hour_price: float | None


class FailedJob(NamedTuple):
    """A job that has failed."""

    labels: Mapping[str, str]
    """The labels of its entries."""
    status: int
    """Its wait status."""
    started_ns: int
    """When it started, in ns since 1970."""
    payload: Mapping[str, Any]
    """The entry of its end."""


# --- Options ------------------------------------------------------------------------------------------


def add_hold_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a hold."""
    parser.add_argument(
        "--hold-on-failure",
        metavar="SECONDS",
        type=_hold_seconds,
        help="after a failure, stay for this time, at most 24h, so that the container and its files can be inspected",
    )
    parser.add_argument(
        "--chips",
        metavar="N",
        type=whole_number(1, 10**6),
        help="the number of chips that wait meanwhile (default: those of this host)",
    )
    parser.add_argument(
        "--chip-hour-price", metavar="PRICE", type=_price, help="the price of one chip for an hour, for the cost"
    )


def _hold_seconds(text: str) -> float:
    """Parse the time limit of a hold, as an argparse type."""
    value = seconds(text)
    if value > _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"a job is held for at most 24 h (86400 seconds), got {text!r}")
    return value


def _price(text: str) -> float:
    """Parse the price of a chip-hour, as an argparse type."""
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"expected the price of one chip for an hour, such as 4.20, got {text!r}")
    return float(text)


def plan_of(options: argparse.Namespace) -> HoldPlan | None:
    """Return the plan of a command line; None without `--hold-on-failure`."""
    if options.hold_on_failure is None:
        if options.chip_hour_price is not None or options.chips is not None:
            options.parser.error("--chips and --chip-hour-price need --hold-on-failure")
        return None
    chips = options.chips if options.chips is not None else _chips_of_host()
    return HoldPlan(options.hold_on_failure, chips, options.chip_hour_price)


def _chips_of_host() -> int | None:
    """Return how many accelerators this host, or container, has; None if no device files show it."""
    for folder, pattern in _DEVICES:
        with contextlib.suppress(OSError):
            if count := sum(1 for name in os.listdir(folder) if re.fullmatch(pattern, name)):  # noqa: PTH208
                return count
    return None


# --- Which jobs are held ------------------------------------------------------------------------------


def _is_fallout(job: FailedJob) -> bool:
    """Return True if another process has failed first, according to fast-fail, which has ended this job."""
    if "is_first_cause" in job.payload:
        return not job.payload["is_first_cause"]
    if os.WIFEXITED(job.status) and os.WEXITSTATUS(job.status) == EXIT_CODE:
        return True
    # The process that fast-fail knows may be a child of the job, such as of a shell.
    return any(found.get("ended_by") == ENDED_BY for found in _last_entries(job.labels["host"], job.started_ns))


def _last_entries(host: str, started_ns: int) -> list[Mapping[str, Any]]:
    """Return what was written last about the processes of this job, which its companions may still be writing."""
    from ml_diagnostics_common.environment import diagnostics_directory
    from ml_diagnostics_common.journal import (
        last_payloads,
        log_directory,
        newest_writers,
        read_header,
        writer_start_ns,
    )

    found: list[Mapping[str, Any]] = []
    with contextlib.suppress(OSError):
        for segment in newest_writers(log_directory(diagnostics_directory(), LOG_ID), _NEWEST_WRITERS):
            if writer_start_ns(segment.writer) < started_ns:
                break
            header = read_header(segment)
            if header is not None and header.labels.get("host") == host:
                found += last_payloads(segment)
    return found


# --- The hold -----------------------------------------------------------------------------------------


def hold(
    plan: HoldPlan,
    job: FailedJob,
    log: EntryLog,
    warn: Callable[[str], object],
    next_signal: Callable[[float], int | None],
    reap: Callable[[], object],
) -> None:
    """Hold a job until it is released; not one that fast-fail has ended since another process has failed first.

    Args:
        plan: The options.
        job: The job.
        log: Its log.
        warn: Prints a line; it may wait for the reader of the output.
        next_signal: Waits so many seconds for a signal to this process, and returns its number.
        reap: Reaps the processes that have ended.
    """
    if not _is_fallout(job):
        _Holding(plan, job, log, warn).run(next_signal, reap)


class _Holding:
    """One hold; see `hold`."""

    def __init__(self, plan: HoldPlan, job: FailedJob, log: EntryLog, warn: Callable[[str], object]) -> None:
        self._plan, self._cause, self._log, self._warn = plan, job.payload["message"], log, warn
        self._hold = _hold_of(job, time.time_ns() + int(plan.limit_seconds * 1e9))
        self._started = time.monotonic()
        self._has_file = False
        self._is_log_warned = False
        self._check: Task | None = None
        self._answers: list[bool] = []

    def run(self, next_signal: Callable[[float], int | None], reap: Callable[[], object]) -> None:
        """Return once the job is released."""
        if not hasattr(signal, "sigtimedwait"):  # macOS: SIGALRM, which is among the signals, ends each wait.
            signal.setitimer(signal.ITIMER_REAL, _CHECK_SECONDS, _CHECK_SECONDS)
        self._create_file()
        next_entry, released_by = self._started, ""
        line: Task | None = None
        while not released_by:
            now = time.monotonic()
            if now >= next_entry:
                next_entry += _ENTRY_SECONDS
                if line is None or line.wait(0):  # Else the reader of the output has stopped: one thread waits for it.
                    line = self._print(self._message("HELD"))
                self._write("HELD")
            number = next_signal(max(0.0, min(_CHECK_SECONDS, self._started + self._plan.limit_seconds - now)))
            reap()
            released_by = self._released_by(number)
        self._remove_file()
        self._write("RELEASED", released_by)
        last = self._print(f"released after {self._held()}: {released_by}")
        if last is not None:
            last.wait(_PRINT_SECONDS)

    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def _held(self) -> str:
        return format_duration(round(self._seconds()))

    def _released_by(self, number: int | None) -> str:
        """Return what releases the job now; empty if nothing does."""
        if number in _RELEASING and number is not None:
            return f"{signal_name(number)} to process {os.getpid()}"
        if self._seconds() >= self._plan.limit_seconds:
            return f"the time limit of {format_duration(self._plan.limit_seconds)}"
        if self._has_file and not self._file_exists():
            return f"{self._hold.path} was removed"
        return ""

    # --- The file -------------------------------------------------------------------------------------

    def _create_file(self) -> None:
        def create() -> None:
            for old in read_holds(self._hold.path.parent.parent):
                if 0 < old.until_ns < self._hold.ended_ns - _KEPT_NS:
                    old.release()
            self._hold.write()

        try:
            call(create, _FILE_SECONDS, "cloud-tpu-diagnostics-hold")
            self._has_file = True
        except (OSError, NoAnswerError) as error:
            self._print(f"{self._hold.path} cannot be created ({error}): only a signal releases the job")

    def _file_exists(self) -> bool:
        """Return the result of the last check, and start another: SIGTERM must not wait for a disk."""
        if self._check is not None and not self._check.wait(0):
            return True
        is_found = all(self._answers)
        self._answers = answers = list[bool]()
        self._check = start(lambda: answers.append(self._hold.exists()), "cloud-tpu-diagnostics-hold")
        return is_found

    def _remove_file(self) -> None:
        if self._has_file:
            with contextlib.suppress(OSError, NoAnswerError):
                call(self._hold.release, _FILE_SECONDS, "cloud-tpu-diagnostics-hold")

    # --- What is reported -----------------------------------------------------------------------------

    def _print(self, text: str) -> Task | None:
        return start(lambda: self._warn(text), "cloud-tpu-diagnostics-hold")

    def _write(self, state: str, released_by: str = "") -> None:
        fields = {
            "state": state,
            "reason": self._cause,
            "held_seconds": round(self._seconds(), 3),
            "limit_seconds": self._plan.limit_seconds,
            "until_ns": self._hold.until_ns,
            "wrapper_pid": self._hold.wrapper_pid,
            **_costs(self._plan, self._seconds()),
            "attach": self._attach(),
            "release": self._release(),
            "released_by": released_by or None,
        }
        try:
            self._log.write(entry(HELD, self._message(state, released_by), **fields), severity="WARNING")
        except Exception as error:  # Such as a full disk, which may be what the job is held for.
            if not self._is_log_warned:
                self._is_log_warned = True
                self._print(f"cannot record that the job is held ({type(error).__name__}: {error})")

    def _message(self, state: str, released_by: str = "") -> str:
        held = f"{self._held()} of at most {format_duration(self._plan.limit_seconds)}"
        cost = _cost_text(self._plan, self._seconds())
        start = f"{state} after a failure ({self._cause}): {held}{f', {cost}' if cost else ''}"
        if state != "HELD":
            return f"{start}; released by {released_by}"
        return (
            f"{start}; until it is released, this keeps the whole JobSet from restarting. "
            f"Attach: {self._attach()}. Release: {self._release()}"
        )

    def _attach(self) -> str:
        return _attach_command(self._hold.host, os.environ)

    def _release(self) -> str:
        run = self._hold.run or self._hold.job
        command = f"mldiagnostics release {shlex.quote(run) if run else 'RUN'} {shlex.quote(self._hold.host)}"
        sigterm = f"SIGTERM to process {self._hold.wrapper_pid}"
        return f"{command}, or {sigterm}" if self._has_file else sigterm


def _hold_of(job: FailedJob, until_ns: int) -> Hold:
    from ml_diagnostics_common.environment import diagnostics_directory
    from ml_diagnostics_common.processes import pid_namespace

    labels = job.labels
    host, pid = labels["host"], int(labels["pid"])
    return Hold(
        file_of(diagnostics_directory(), host, pid),
        host,
        pid,
        wrapper_pid=os.getpid(),
        job=labels.get("job", ""),
        run=labels.get("run", ""),
        started_ns=job.started_ns,
        ended_ns=job.payload.get("ended_ns", 0),
        until_ns=until_ns,
        pid_namespace=pid_namespace(),
    )


def _attach_command(host: str, environ: Mapping[str, str]) -> str:
    """Return the command with which a user opens a shell beside this process.

    Args:
        host: The name of this host, or pod.
        environ: The environment variables.
    """
    from ml_diagnostics_common.environment import Orchestrator, orchestrator

    where = orchestrator(environ)
    if where is Orchestrator.GKE:
        pod = environ.get("POD_NAME") or host
        return f"kubectl exec -it -n {shlex.quote(namespace_of_pod(environ))} {shlex.quote(pod)} -- sh"
    if where is Orchestrator.SLURM:
        number = shlex.quote(environ.get("SLURM_JOB_ID", ""))
        return f"srun --overlap --jobid {number} -w {shlex.quote(environ.get('SLURMD_NODENAME') or host)} --pty sh"
    return f"ssh {shlex.quote(host)}"


def _costs(plan: HoldPlan, held_seconds: float) -> dict[str, Any]:
    hours = held_seconds / 3600
    if plan.chips is None:
        return {}
    price = plan.chip_hour_price
    return {
        "chips": plan.chips,
        "chip_hours": round(plan.chips * hours, 4),
        "chip_hour_price": price,
        "cost": None if price is None else round(plan.chips * hours * price, 4),
    }


def _cost_text(plan: HoldPlan, held_seconds: float) -> str:
    """Return what a hold has cost; empty if the number of chips is not known."""
    if plan.chips is None:
        return "" if plan.chip_hour_price is None else "cost unknown: give --chips"
    hours = plan.chips * held_seconds / 3600
    text = f"{format_count(plan.chips, 'chip')}, {hours:.2f} chip-hours"
    price = plan.chip_hour_price
    return text if price is None else f"{text}, cost {hours * price:.2f} ({plan.chips * price:.2f} an hour)"
