"""A capture: all targets at the same moment, into one session, and again those whose file is missing."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ml_diagnostics_common.profiler_service import ProfilerService
from ml_diagnostics_common.storage import Storage

from xprofiler.capture.collecting import Collector, Outcome
from xprofiler.capture.places import Place, places_of
from xprofiler.capture.session import Session
from xprofiler.capture.targets import Target
from xprofiler.capture.tunnels import open_tunnels, problem_at
from xprofiler.console import Console
from xprofiler.parallel import in_parallel
from xprofiler.programs.processes import Programs

__all__ = ["Capture"]

_DIRECT_EXTRA_SECONDS: Final = 30.0


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
class Capture:
    """One capture.

    Attributes:
        session: Where the files belong.
        duration_ms: How long.
        storage: In which the session is.
        console: Is told how far it is.
        service: Asks processes to profile themselves.
    """

    session: Session
    duration_ms: int
    storage: Storage
    console: Console
    service: ProfilerService

    def run(self, targets: Sequence[Target]) -> list[Outcome]:
        """Captures all that can be captured.

        Args:
            targets: Whom to ask; their `file_name`s are unique.

        Returns:
            An outcome for each, in their order.
        """
        there = f"/tmp/xprofiler-{uuid.uuid4().hex}"
        with (
            tempfile.TemporaryDirectory(prefix="xprofiler-") as here,
            Programs(self.console) as programs,
            open_tunnels(targets, programs, self.console) as tunnels,
        ):
            asked = [
                _Asked(target, tunnel.address, places_of(target, self.session, there if target.access else here))
                for target, tunnel in zip(targets, tunnels, strict=True)
                if not tunnel.problem
            ]
            collector = Collector(self.session, self.storage, programs)
            staged: list[Target] = []
            try:
                came = self._rounds(asked, collector, staged)
            except BaseException:
                for target in staged:
                    self.console.say(f"{there} on {target.name} may remain.")
                raise
            for problem in collector.clean_up([(target, there) for target in dict.fromkeys(staged)]):
                self.console.say(problem)
        return [
            came.get(target.name, Outcome.of(target, problem=tunnel.problem))
            for target, tunnel in zip(targets, tunnels, strict=True)
        ]

    def _rounds(self, asked: Sequence[_Asked], collector: Collector, staged: list[Target]) -> dict[str, Outcome]:
        """Asks all, and then once more those of whom there is no profile.

        Args:
            asked: Whom.
            collector: Looks at what they wrote.
            staged: Is given the targets that write into a folder of their machine.

        Returns:
            Outcomes by the targets' names.
        """
        came: dict[str, Outcome] = {}

        def ask(todo: Sequence[_Asked], number: int) -> None:
            staged.extend(one.target for one in todo if one.target.access and not one.places[number].is_final)
            came.update({outcome.name: outcome for outcome in self._round(todo, number, collector)})

        if asked:
            ask(asked, 0)
        again = self._still_there([one for one in asked if not came[one.target.name].is_captured], came)
        if again:
            ask(again, 1)
        return came

    def _still_there(self, failed: Sequence[_Asked], came: Mapping[str, Outcome]) -> list[_Asked]:
        """Returns those of whom there is no profile, and that can be asked again; says so."""
        for one in failed:
            self.console.detail(f"{one.target.name}: {came[one.target.name].problem}")
        problems = in_parallel(lambda one: problem_at(one.address), failed)
        todo = [one for one, problem in zip(failed, problems, strict=True) if not problem]
        if todo:
            names = ", ".join(one.target.name for one in todo)
            self.console.say(f"No profile came of {names}: capturing again.")
        return todo

    def _round(self, asked: Sequence[_Asked], number: int, collector: Collector) -> list[Outcome]:
        """Asks all at once, and looks at what they wrote: the answer of one that wrote its file may have got lost."""
        results = self._service(asked, number).capture(
            [one.address for one in asked],
            [one.places[number].root for one in asked],
            self.session.name,
            self.duration_ms,
            host_names=[one.target.file_name for one in asked],
        )
        outcomes = collector.collect([(one.target, one.places[number]) for one in asked])
        return [
            outcome if outcome.is_captured or result.is_captured else Outcome.of(one.target, problem=result.problem)
            for one, result, outcome in zip(asked, results, outcomes, strict=True)
        ]

    def _service(self, asked: Sequence[_Asked], number: int) -> ProfilerService:
        """The service, with less patience where there is another way.

        A job that does not reach the bucket tries for minutes: JAX's does so when its connections are refused.
        """
        has_another = number == 0 and any(one.places[0] != one.places[1] for one in asked)
        seconds = min(self.service.extra_seconds, _DIRECT_EXTRA_SECONDS)
        return replace(self.service, extra_seconds=seconds) if has_another else self.service
