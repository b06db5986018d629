"""Watch a job: print each new verdict once, report it, and end with the job."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from ml_diagnostics_common.failures import RemoteError

from ml_diagnostics_console._forms import print_reports
from ml_diagnostics_console._live.alerts import Alert, AlertError
from ml_diagnostics_console.doctor import Report, judge
from ml_diagnostics_console.verdict import Part, Verdict, VerdictClass

if TYPE_CHECKING:
    from ml_diagnostics_common.command.console import Console

    from ml_diagnostics_console._facts.facts import Facts
    from ml_diagnostics_console._facts.reading import JobReader

__all__ = ["Watch"]

INTERVAL_SECONDS: Final = 10.0
_Key = tuple[str, int, tuple[str, ...]]


class Watch:
    """Reads and judges a job repeatedly.

    Args:
        reader: Reads the job.
        console: The terminal.
        form: The form of the output: `text`, `json` or `monitored-event`.
        alerts: Receivers of verdicts.
        until: The kind of verdict at which to end; None ends with the job.
        wait: Waits some seconds between two reads.
        judged: Judges facts.
    """

    def __init__(
        self,
        reader: JobReader,
        console: Console,
        form: str,
        alerts: Sequence[Alert] = (),
        *,
        until: str | None = None,
        wait: Callable[[float], object] = time.sleep,
        judged: Callable[[Facts], Report] = judge,
    ) -> None:
        self._reader, self._console, self._form = reader, console, form
        self._until = VerdictClass(until) if until else None
        self._wait, self._judge = wait, judged
        self._printed: set[_Key] = set()
        self._undelivered: dict[Alert, dict[_Key, tuple[Report, Verdict]]] = {alert: {} for alert in alerts}

    def run(self) -> int:
        """Watch until the job ends, and return the exit code of its last headline."""
        code, is_first = 0, True
        while True:
            try:
                report = self._judge(self._reader.read())
            except RemoteError as error:  # A cloud that fails now may answer in 10 s.
                if is_first:
                    raise
                self._console.warn(str(error))
                self._wait(INTERVAL_SECONDS)
                continue
            code = report.exit_code
            self._take(report, is_first=is_first)
            is_first = False
            if not report.facts.is_live or report.headline.verdict_class is self._until:
                return code
            self._wait(INTERVAL_SECONDS)

    def _take(self, report: Report, *, is_first: bool) -> None:
        """Print a report if something in it is new, and report what is new."""
        new = [verdict for verdict in report.shown if _key(report, verdict) not in self._printed]
        if new or is_first or not report.facts.is_live:
            print_reports([report], self._form, self._console)
        for verdict in new:
            key = _key(report, verdict)
            self._printed.add(key)
            if verdict.verdict_class is not VerdictClass.HEALTHY and verdict.part is Part.INITIATING:
                for waiting in self._undelivered.values():
                    waiting[key] = (report, verdict)
        self._deliver()

    def _deliver(self) -> None:
        for alert, waiting in self._undelivered.items():
            for key, (report, verdict) in list(waiting.items()):
                try:
                    alert.send(report, verdict)
                except AlertError as error:
                    self._console.warn(str(error))
                    break
                del waiting[key]


def _key(report: Report, verdict: Verdict) -> _Key:
    """Return what makes a verdict the same: the rule, the attempt and the hosts, whatever its numbers."""
    return verdict.rule, report.facts.attempt.number if report.facts.attempt is not None else 0, verdict.hosts
