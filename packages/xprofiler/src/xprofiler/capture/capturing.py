"""A capture: all targets at the same moment, into one session, and again those whose file is missing."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ml_diagnostics_common.profiler_service import CaptureResult, ProfilerService
from ml_diagnostics_common.storage import Storage

from xprofiler.capture.bucket_access import BucketAccess
from xprofiler.capture.collecting import Collector, Outcome
from xprofiler.capture.host_clock import HostClock, read_host_clock
from xprofiler.capture.places import Place, places_of
from xprofiler.capture.session import Session
from xprofiler.capture.targets import Target
from xprofiler.capture.tunnels import open_tunnels, problem_at
from xprofiler.console import Console
from xprofiler.parallel import in_parallel
from xprofiler.programs.processes import Programs

__all__ = ["Capture"]

_DIRECT_EXTRA_SECONDS: Final = 30.0
_BUSY_SECONDS: Final = 300.0
_LOOK_SECONDS: Final = 1.0
_CLOCK: Final = "it may have waited for the moment to begin, by a clock that is behind: compare `date` there and here"


@dataclass(frozen=True)
class _Asked:
    """A target that can be asked.

    Attributes:
        target: The target.
        address: `host:port` for this machine.
        places: Where it writes in the first round, and in the second.
    """

    target: Target
    address: str
    places: tuple[Place, Place]


@dataclass(frozen=True)
class _Round:
    """What came of asking once.

    Attributes:
        outcomes: By the targets' names.
        late: Those that did not answer in time.
    """

    outcomes: dict[str, Outcome]
    late: frozenset[str]


@dataclass(frozen=True)
class Capture:
    """One capture.

    Attributes:
        session: Where the files belong.
        duration_ms: How long.
        storage: In which the session is.
        console: Is told how far it is.
        service: Asks processes to profile themselves.
        direct_extra_seconds: How long a host may take to write to a bucket, where there is another way.
        busy_seconds: How long to go on asking one that still waits for the moment that it was given first.
        bucket_access: Which hosts could write to the session's bucket before; None if it is in none.
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
        """Captures all that can be captured.

        Args:
            targets: Whom to ask; their `file_name`s are unique.

        Returns:
            An outcome for each, in their order.
        """
        there = f"/tmp/xprofiler-{uuid.uuid4().hex}"
        with tempfile.TemporaryDirectory(prefix="xprofiler-") as here, Programs(self.console) as programs:
            clock = read_host_clock(targets, programs)
            with open_tunnels(targets, programs, self.console) as tunnels:
                asked = [
                    _Asked(target, tunnel.address, self._places(target, there if target.access else here))
                    for target, tunnel in zip(targets, tunnels, strict=True)
                    if not tunnel.problem
                ]
                collector = Collector(self.session, self.storage, programs)
                came = replace(self, service=self._on_time(clock))._captured(asked, collector, there)
        return [
            came.get(target.name, Outcome.of(target, problem=tunnel.problem))
            for target, tunnel in zip(targets, tunnels, strict=True)
        ]

    def _places(self, target: Target, staging: str) -> tuple[Place, Place]:
        first, second = places_of(target, self.session, staging)
        if self.bucket_access is None or first == second or self.bucket_access.can_write(target.name):
            return first, second
        self.console.detail(f"{target.name} could not write to the bucket before: it writes to {second.root}")
        return second, second

    def _on_time(self, clock: HostClock | None) -> ProfilerService:
        """The service, which sets the moment to begin by the hosts' clock where this machine's is another."""
        ahead = clock.ahead_seconds() if clock else 0.0
        if clock is None or not ahead:
            return self.service
        how = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'}"
        self.console.say(f"The clock of {clock.name} is {how} this machine's: the hosts begin by theirs.")
        return replace(self.service, ahead_seconds=ahead)

    def _captured(self, asked: Sequence[_Asked], collector: Collector, there: str) -> dict[str, Outcome]:
        """Asks all, and then once more those of whom there is no profile.

        Args:
            asked: Whom.
            collector: Looks at what they wrote.
            there: The folder for this capture on machines that we have a way to; removed at the end.

        Returns:
            Outcomes by the targets' names.
        """
        staged = _staged(asked, 0)
        try:
            first = self._round(asked, 0, collector)
            again = self._still_there([one for one in asked if not first.outcomes[one.target.name].is_captured], first)
            staged += _staged(again, 1)
            second = self._round(again, 1, collector, first.late)
        except BaseException:
            for target in dict.fromkeys(staged):
                self.console.say(f"{there} on {target.name} may remain.")
            raise
        self._remember(asked, first, second)
        for problem in collector.clean_up([(target, there) for target in dict.fromkeys(staged)]):
            self.console.say(problem)
        return collector.without_partial_files({**first.outcomes, **second.outcomes})

    def _remember(self, asked: Sequence[_Asked], first: _Round, second: _Round) -> None:
        """Keep who wrote to the bucket, and who did not, and was captured through this machine."""
        if self.bucket_access is None:
            return
        tried = [one.target.name for one in asked if one.places[0].is_final and not one.places[1].is_final]
        wrote = {name: first.outcomes[name].is_there for name in tried}
        self.bucket_access.remember(
            {
                name: wrote[name]
                for name in tried
                if wrote[name] or (name in second.outcomes and second.outcomes[name].is_there)
            }
        )

    def _still_there(self, failed: Sequence[_Asked], first: _Round) -> list[_Asked]:
        """Returns those of whom there is no profile, and that can be asked again; says so."""
        for one in failed:
            self.console.detail(f"{one.target.name}: {first.outcomes[one.target.name].problem}")
        problems = in_parallel(lambda one: problem_at(one.address), failed)
        todo = [one for one, problem in zip(failed, problems, strict=True) if not problem]
        if todo:
            names = ", ".join(one.target.name for one in todo)
            self.console.say(f"No profile came of {names}: capturing again.")
        return todo

    def _round(self, asked: Sequence[_Asked], number: int, collector: Collector, late: Collection[str] = ()) -> _Round:
        """Asks all at once, and looks at what they wrote: the answer of one that wrote its file may have got lost."""
        if not asked:
            return _Round({}, frozenset())
        results = self._results(asked, number, late)
        outcomes = {}
        for one, found in zip(asked, collector.collect([(o.target, o.places[number]) for o in asked]), strict=True):
            result = results[one.target.name]
            if not found.is_there and not result.is_captured:
                advice = f"; {_CLOCK}" if result.is_late or one.target.name in late else ""
                found = Outcome.of(one.target, problem=f"{result.problem}{advice}")
            outcomes[one.target.name] = found
        return _Round(outcomes, frozenset(name for name, result in results.items() if result.is_late))

    def _results(self, asked: Sequence[_Asked], number: int, late: Collection[str]) -> dict[str, CaptureResult]:
        """What all answer, by their names; those that were late begin when they are asked.

        A host whose clock is behind holds on to the moment that it was given first, and takes no other profile before
        that: it is asked until it does.
        """
        results = self._ask(asked, number, late)
        deadline = time.monotonic() + self.busy_seconds
        is_said = False
        while time.monotonic() < deadline:
            busy = [one for one in asked if one.target.name in late and results[one.target.name].is_busy]
            if not busy:
                break
            if not is_said:
                names = ", ".join(one.target.name for one in busy)
                self.console.say(f"{names}: still at the profile that was asked for first; {_CLOCK}. Waiting.")
                is_said = True
            time.sleep(_LOOK_SECONDS)
            results |= self._ask(busy, number, late)
        return results

    def _ask(self, asked: Sequence[_Asked], number: int, late: Collection[str]) -> dict[str, CaptureResult]:
        results = self._service(asked, number).capture(
            [one.address for one in asked],
            [one.places[number].root for one in asked],
            self.session.name,
            self.duration_ms,
            host_names=[one.target.file_name for one in asked],
            at_once=[one.target.name in late for one in asked] if late else None,
        )
        return {one.target.name: result for one, result in zip(asked, results, strict=True)}

    def _service(self, asked: Sequence[_Asked], number: int) -> ProfilerService:
        """The service, with less patience where there is another way.

        A job that does not reach the bucket tries for minutes: JAX's does so when its connections are refused.
        """
        has_another = number == 0 and any(one.places[0] != one.places[1] for one in asked)
        seconds = min(self.service.extra_seconds, self.direct_extra_seconds)
        return replace(self.service, extra_seconds=seconds) if has_another else self.service


def _staged(asked: Sequence[_Asked], number: int) -> list[Target]:
    """Those that write into a folder of a machine that we have a way to."""
    return [one.target for one in asked if one.target.access and not one.places[number].is_final]
