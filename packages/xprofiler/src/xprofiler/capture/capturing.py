"""A capture: profile all targets at the same moment into one session, and retry those without a file.

The start time is by the hosts' clock: a laptop's clock may be wrong, while those of the hosts agree.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import CommandError
from ml_diagnostics_common.failures import Kind
from ml_diagnostics_common.profiler_service import CaptureResult, ProfilerService
from ml_diagnostics_common.storage import Storage
from ml_diagnostics_common.worker import in_parallel

from xprofiler.capture.bucket_access import BucketAccess
from xprofiler.capture.collecting import Collector
from xprofiler.capture.outcomes import Outcome
from xprofiler.capture.session import Destination, Session, destinations_of
from xprofiler.capture.targets import Target
from xprofiler.capture.tunnels import open_tunnels, problem_at
from xprofiler.gcloud.processes import Process, Programs

__all__ = ["Capture", "ahead_seconds"]

_PATIENCE_SECONDS: Final = 5.0
_DIRECT_EXTRA_SECONDS: Final = 30.0
_BUSY_SECONDS: Final = 300.0
_POLL_SECONDS: Final = 1.0
_CLOCK: Final = (
    "it may have waited for a start time in the future, because its clock is behind: compare `date` there and here"
)


@dataclass(frozen=True)
class _HostClock:
    """A running request for a host's time.

    Attributes:
        name: The host's name.
        programs: Runs the request.
        process: The process that requests the time.
        requested_at: When it was started, in seconds since 1970 by this machine's clock.
    """

    name: str
    programs: Programs
    process: Process
    requested_at: float

    def ahead_seconds(self) -> float:
        """Return how far the host's clock may be ahead at most; 0 if the clocks may agree, or if there is no answer."""
        try:
            output, _ = self.process.communicate(timeout=_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            output = b""
        finally:
            self.programs.end(self.process)
        return ahead_seconds(output, self.requested_at, time.time())


def _read_host_clock(targets: Sequence[Target], programs: Programs) -> _HostClock | None:
    """Request the time of the first host that we can run programs on; do not wait for the answer.

    Args:
        targets: The hosts. A single host needs no common start time, so the result is None.
        programs: Runs the request.
    """
    accesses = [(target.name, target.access) for target in targets if target.access is not None]
    if len(targets) < 2 or not accesses:
        return None
    name, access = accesses[0]
    requested_at = time.time()
    try:
        process = programs.start(access.execute(["date", "+%s"]), stderr=subprocess.DEVNULL)
    except CommandError:
        return None  # Opening the tunnel will fail too, and report the reason.
    return _HostClock(name, programs, process, requested_at)


def ahead_seconds(output: bytes, requested_at: float, answered_at: float) -> float:
    """Return how far a clock is ahead, from the output of `date +%s` and the interval in which it ran.

    Args:
        output: The command's output, in whole seconds.
        requested_at: The earliest time at which it can have run, by this machine's clock.
        answered_at: The latest.

    Returns:
        The largest possible lead; 0 if the clocks may agree.
    """
    parts = output.split()
    if not parts or not parts[-1].isdigit():
        return 0.0
    second = int(parts[-1])
    least, most = second - answered_at, second + 1 - requested_at
    return most if least > 0 or most < 0 else 0.0


@dataclass(frozen=True)
class _OpenTarget:
    """A target with an open tunnel.

    Attributes:
        target: The target.
        address: `host:port` for this machine.
        destinations: Its destinations in the first and in the second round.
    """

    target: Target
    address: str
    destinations: tuple[Destination, Destination]


@dataclass(frozen=True)
class _Round:
    """The results of one round.

    Attributes:
        outcomes: The outcomes by the targets' names.
        late: The names of targets that did not answer in time.
    """

    outcomes: dict[str, Outcome]
    late: frozenset[str]


@dataclass(frozen=True)
class Capture:
    """One capture.

    Attributes:
        session: The session to fill.
        duration_ms: The duration of the profile.
        storage: The storage that holds the session.
        console: Receives progress messages.
        service: The client of the profiler servers.
        direct_extra_seconds: The time a host has for writing to a bucket, if it has a second destination.
        busy_seconds: How long to retry a host that still waits for the start time of its first request.
        bucket_access: Results of earlier captures for the session's bucket; None for a local session.
    """

    session: Session
    duration_ms: int
    storage: Storage
    console: Console
    service: ProfilerService
    direct_extra_seconds: float = _DIRECT_EXTRA_SECONDS
    busy_seconds: float = _BUSY_SECONDS
    bucket_access: BucketAccess | None = None

    def run(self, targets: Sequence[Target]) -> list[Outcome]:
        """Capture all targets that can be reached.

        Args:
            targets: The targets; each has its own `file_name`.

        Returns:
            An outcome for each target, in the same order.
        """
        remote_folder = f"/tmp/xprofiler-{uuid.uuid4().hex}"
        with tempfile.TemporaryDirectory(prefix="xprofiler-") as local_folder, Programs(self.console) as programs:
            clock = _read_host_clock(targets, programs)
            with open_tunnels(targets, programs, self.console) as tunnels:
                opened = [
                    _OpenTarget(
                        target,
                        tunnel.address,
                        self._destinations(target, remote_folder if target.access else local_folder),
                    )
                    for target, tunnel in zip(targets, tunnels, strict=True)
                    if not tunnel.problem
                ]
                collector = Collector(self.session, self.storage, programs)
                captured = replace(self, service=self._on_time(clock))._capture(opened, collector, remote_folder)
        return [
            captured.get(target.name, Outcome.of(target, problem=tunnel.problem))
            for target, tunnel in zip(targets, tunnels, strict=True)
        ]

    def _destinations(self, target: Target, staging: str) -> tuple[Destination, Destination]:
        first, second = destinations_of(target, self.session, staging)
        if self.bucket_access is None or first == second or self.bucket_access.can_write(target.name):
            return first, second
        self.console.detail(f"{target.name} could not write to the bucket before: it writes to {second.root}")
        return second, second

    def _on_time(self, clock: _HostClock | None) -> ProfilerService:
        """Return the service; it computes start times by the hosts' clock if that differs from this machine's."""
        ahead = clock.ahead_seconds() if clock else 0.0
        if clock is None or not ahead:
            return self.service
        how = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'}"
        self.console.notify(f"The clock of {clock.name} is {how} this machine's; hosts start by theirs.")
        return replace(self.service, ahead_seconds=ahead)

    def _capture(self, opened: Sequence[_OpenTarget], collector: Collector, remote_folder: str) -> dict[str, Outcome]:
        """Capture all targets, and once more those without a profile.

        Args:
            opened: The targets.
            collector: Checks and fetches their files.
            remote_folder: The folder of this capture on machines that we can run programs on; removed at the end.

        Returns:
            Outcomes by the targets' names.
        """
        staged = _staged(opened, 0)
        try:
            first = self._round(opened, 0, collector)
            again = self._retryable([one for one in opened if not first.outcomes[one.target.name].is_captured], first)
            staged += _staged(again, 1)
            second = self._round(again, 1, collector, first.late)
        except BaseException:
            for target in dict.fromkeys(staged):
                self.console.notify(f"{remote_folder} on {target.name} may remain.", is_progress=False)
            raise
        self._remember(opened, first, second)
        for problem in collector.clean_up([(target, remote_folder) for target in dict.fromkeys(staged)]):
            self.console.notify(problem, is_progress=False)
        return collector.without_partial_files({**first.outcomes, **second.outcomes})

    def _remember(self, opened: Sequence[_OpenTarget], first: _Round, second: _Round) -> None:
        """Record which targets wrote to the bucket, and which could only be captured through this machine."""
        if self.bucket_access is None:
            return
        tried = [one.target.name for one in opened if one.destinations[0].is_final and not one.destinations[1].is_final]
        wrote = {name: first.outcomes[name].has_file for name in tried}
        self.bucket_access.remember(
            {
                name: wrote[name]
                for name in tried
                if wrote[name] or (name in second.outcomes and second.outcomes[name].has_file)
            }
        )

    def _retryable(self, failed: Sequence[_OpenTarget], first: _Round) -> list[_OpenTarget]:
        """Return the failed targets that still answer, and print their names."""
        for one in failed:
            self.console.detail(f"{one.target.name}: {first.outcomes[one.target.name].problem}")
        problems = in_parallel(lambda one: problem_at(one.address), failed)
        todo = [one for one, problem in zip(failed, problems, strict=True) if not problem]
        if todo:
            names = ", ".join(one.target.name for one in todo)
            self.console.notify(f"No profile of {names}: capturing again.")
        return todo

    def _round(
        self, opened: Sequence[_OpenTarget], number: int, collector: Collector, late: Collection[str] = ()
    ) -> _Round:
        """Capture all at once, and check their files: one may have been written although the answer did not arrive."""
        if not opened:
            return _Round({}, frozenset())
        results = self._results(opened, number, late)
        outcomes = {}
        for one, found in zip(
            opened, collector.collect([(o.target, o.destinations[number]) for o in opened]), strict=True
        ):
            result = results[one.target.name]
            if not found.has_file and not result.is_captured:
                advice = f"; {_CLOCK}" if result.failure is Kind.TIMEOUT or one.target.name in late else ""
                found = Outcome.of(one.target, problem=f"{result.problem}{advice}")
            outcomes[one.target.name] = found
        return _Round(outcomes, frozenset(name for name, result in results.items() if result.failure is Kind.TIMEOUT))

    def _results(self, opened: Sequence[_OpenTarget], number: int, late: Collection[str]) -> dict[str, CaptureResult]:
        """Return the answers by target name; targets that were late start immediately.

        A host with a clock that is behind waits for the start time of its first request and is busy until then: retry.
        """
        results = self._request(opened, number, late)
        deadline = time.monotonic() + self.busy_seconds
        is_reported = False
        while time.monotonic() < deadline:
            busy = [
                one for one in opened if one.target.name in late and results[one.target.name].failure is Kind.CONFLICT
            ]
            if not busy:
                break
            if not is_reported:
                names = ", ".join(one.target.name for one in busy)
                self.console.notify(f"{names}: busy with the profile that was requested first; {_CLOCK}. Waiting.")
                is_reported = True
            time.sleep(_POLL_SECONDS)
            results |= self._request(busy, number, late)
        return results

    def _request(self, opened: Sequence[_OpenTarget], number: int, late: Collection[str]) -> dict[str, CaptureResult]:
        results = self._service(opened, number).capture(
            [one.address for one in opened],
            [one.destinations[number].root for one in opened],
            self.session.name,
            self.duration_ms,
            host_names=[one.target.file_name for one in opened],
            at_once=[one.target.name in late for one in opened] if late else None,
        )
        return {one.target.name: result for one, result in zip(opened, results, strict=True)}

    def _service(self, opened: Sequence[_OpenTarget], number: int) -> ProfilerService:
        """Return the service, with a shorter timeout if a second destination remains.

        A job that does not reach the bucket retries for minutes: JAX does so when its connections are refused.
        """
        has_another = number == 0 and any(one.destinations[0] != one.destinations[1] for one in opened)
        seconds = min(self.service.extra_seconds, self.direct_extra_seconds)
        return replace(self.service, extra_seconds=seconds) if has_another else self.service


def _staged(opened: Sequence[_OpenTarget], number: int) -> list[Target]:
    """Return the targets that write into a folder of a machine that we can run programs on."""
    return [one.target for one in opened if one.target.access and not one.destinations[number].is_final]
