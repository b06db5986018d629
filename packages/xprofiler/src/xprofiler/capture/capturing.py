"""A capture: all targets at the same moment, into one session, and again those whose file is missing."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from ml_diagnostics_common.profiler_service import ProfilerService
from ml_diagnostics_common.storage import LocalStorage, Storage

from xprofiler.capture.collecting import Collector, Outcome
from xprofiler.capture.places import Place, places_of
from xprofiler.capture.session import Session
from xprofiler.capture.targets import Target
from xprofiler.capture.tunnels import Tunnel, open_tunnels
from xprofiler.console import Console
from xprofiler.processes import Programs

__all__ = ["Capture"]

_ROUNDS: Final = 2


@dataclass
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
        with ExitStack() as stack:
            programs = stack.enter_context(Programs(self.console))
            tunnels = open_tunnels(targets, programs, self.console)
            collector = Collector(self.session, self.storage, LocalStorage(), programs)
            remote = f"/tmp/xprofiler-{uuid.uuid4().hex}"
            here = stack.enter_context(tempfile.TemporaryDirectory(prefix="xprofiler-"))
            places = {
                tunnel.target.name: places_of(tunnel.target, self.session, remote if tunnel.target.access else here)
                for tunnel in tunnels
            }
            outcomes = {tunnel.target.name: Outcome.of(tunnel.target, problem=tunnel.problem) for tunnel in tunnels}
            todo = [tunnel for tunnel in tunnels if not tunnel.problem]
            used: dict[str, Target] = {}
            for number in range(_ROUNDS):
                if not todo:
                    break
                asked = [(tunnel, places[tunnel.target.name][number]) for tunnel in todo]
                used |= {t.target.name: t.target for t, place in asked if t.target.access and not place.is_final}
                if number:
                    self._tell_of_second_round(todo, outcomes)
                outcomes |= {outcome.name: outcome for outcome in self._round(asked, collector)}
                todo = [tunnel for tunnel in todo if not outcomes[tunnel.target.name].is_captured]
            for left in collector.clean_up([(target, remote) for target in used.values()]):
                self.console.say(left)
            return [outcomes[target.name] for target in targets]

    def _round(self, asked: Sequence[tuple[Tunnel, Place]], collector: Collector) -> list[Outcome]:
        """Asks all at once, and collects what they wrote."""
        results = self.service.capture(
            [tunnel.address for tunnel, _ in asked],
            [place.root for _, place in asked],
            self.session.name,
            self.duration_ms,
            host_names=[tunnel.target.file_name for tunnel, _ in asked],
        )
        both = list(zip(asked, results, strict=True))
        captured = iter(collector.collect([(tunnel.target, place) for (tunnel, place), r in both if r.is_captured]))
        return [
            next(captured) if result.is_captured else Outcome.of(tunnel.target, problem=result.problem)
            for (tunnel, _), result in both
        ]

    def _tell_of_second_round(self, todo: Sequence[Tunnel], outcomes: dict[str, Outcome]) -> None:
        for tunnel in todo:
            self.console.detail(f"{tunnel.target.title}: {outcomes[tunnel.target.name].problem}")
        names = ", ".join(tunnel.target.name for tunnel in todo)
        self.console.say(f"No profile came of {names}: capturing again.")
