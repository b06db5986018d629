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
_LAST_TRIES: Final = 6
_Key = tuple[str, int]


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
        self._alerted: set[tuple[str, int, str]] = set()
        self._undelivered: dict[Alert, list[tuple[Report, Verdict]]] = {alert: [] for alert in alerts}

    def run(self) -> int:
        """Watch until the job ends, and return the exit code of its last headline."""
        is_first = True
        while True:
            try:
                report = self._judge(self._reader.read())
            except RemoteError as error:  # A cloud that fails now may answer in 10 s.
                if is_first:
                    raise
                self._console.warn(str(error))
                self._wait(INTERVAL_SECONDS)
                continue
            self._take(report, is_first=is_first)
            is_first = False
            is_found = any(verdict.verdict_class is self._until for verdict in report.shown)
            if not report.facts.is_live or is_found:
                self._deliver_the_rest()
                return report.exit_code
            self._wait(INTERVAL_SECONDS)

    def _take(self, report: Report, *, is_first: bool) -> None:
        """Print a report if something in it is new, and report what is new."""
        new = [verdict for verdict in report.shown if _key(report, verdict) not in self._printed]
        if new or is_first or not report.facts.is_live:
            print_reports([report], self._form, self._console, is_stream=True)
        self._printed.update(_key(report, verdict) for verdict in new)
        for verdict in report.shown:
            hosts = {(*_key(report, verdict), host) for host in verdict.hosts or ("",)}
            is_wrong = verdict.verdict_class is not VerdictClass.HEALTHY and verdict.part is Part.INITIATING
            if is_wrong and not hosts <= self._alerted:
                self._alerted |= hosts
                for waiting in self._undelivered.values():
                    waiting.append((report, verdict))
        self._deliver()

    def _deliver(self) -> None:
        for alert, waiting in self._undelivered.items():
            while waiting:
                try:
                    alert.send(*waiting[0])
                except AlertError as error:
                    self._console.warn(str(error))
                    break
                del waiting[0]

    def _deliver_the_rest(self) -> None:
        """Try to deliver what could not be delivered yet for a minute: the last verdict is the reason for alerts."""
        for _ in range(_LAST_TRIES):
            if not any(self._undelivered.values()):
                return
            self._wait(INTERVAL_SECONDS)
            self._deliver()


def _key(report: Report, verdict: Verdict) -> _Key:
    """Return the identity of a verdict, whatever its numbers: the rule and the attempt."""
    return verdict.rule, report.facts.attempt.number if report.facts.attempt is not None else 0
