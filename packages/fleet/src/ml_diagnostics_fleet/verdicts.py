"""Verdicts of the doctor on attempts of runs, joined to the attempts and disruptions of the ledger. Pure.

The doctor counts the attempts of runs, and the ledger the lives of a job that its recorder saw: an attempt that failed
before its job start is in one count alone, one process may make several attempts of the ledger, and a job may be in
several runs. So they are joined by time. Where that does not show one attempt, the cause is not known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

__all__ = ["CLOCKS_NS", "AttemptVerdict", "Doctor", "cause_rows", "host_rows"]

CLOCKS_NS: Final = 60 * 10**9
"""The clocks of hosts may differ by this: an end is compared with events of another host."""


class AttemptVerdict(Protocol):
    """One attempt of a run, and the cause of its end.

    Attributes:
        started_ns: Its start, in ns since 1970.
        ended_ns: Its end; None while it runs.
        hosts: All its hosts.
        rule: The rule that names the cause; empty if it was not judged.
        host: The host that is to blame; None if it is none, or not known well enough.
        confidence: `proven`, `likely` or `possible`.
    """

    @property
    def started_ns(self) -> int: ...  # noqa: D102 - above
    @property
    def ended_ns(self) -> int | None: ...  # noqa: D102
    @property
    def hosts(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def rule(self) -> str: ...  # noqa: D102
    @property
    def host(self) -> str | None: ...  # noqa: D102
    @property
    def confidence(self) -> str: ...  # noqa: D102


class Doctor(Protocol):
    """Judges attempts of jobs.

    Attributes:
        version: The version of its rules.
    """

    @property
    def version(self) -> str: ...  # noqa: D102 - above

    def attempts(self, job: str, *, since_ns: int | None) -> Sequence[AttemptVerdict]:
        """Return the attempts of all runs of a job; none if it knows no run of that name.

        Args:
            job: The job's name.
            since_ns: Judge the attempts that ended since this time; None judges none, and is fast.
        """
        ...


def cause_rows(
    disruptions: Iterable[Mapping[str, Any]],
    attempts: Iterable[Mapping[str, Any]],
    known: Iterable[AttemptVerdict],
    judged_by: str,
) -> list[dict[str, Any]]:
    """Return the rows of `DIMENSIONS["causes"]` of one job; none for a disruption of an attempt that is not known.

    The attempt of a run must have been running for most of the attempt that was cut short, alone, on one of its hosts
    at least, and must have ended between its last event and the restart. It ended once: of several disruptions, it is
    the cause of the last.

    Args:
        disruptions: All rows of the job in `disruptions`.
        attempts: All its rows in `attempts`.
        known: The attempts of its runs.
        judged_by: The version of the doctor.
    """
    spans = {row["attempt"]: row for row in attempts}
    verdicts = list(known)
    found: dict[int, tuple[Mapping[str, Any], AttemptVerdict]] = {}
    for row in sorted(disruptions, key=lambda row: int(row["number"])):
        span = spans.get(row["attempt"])
        verdict = None if span is None else _attempt_of(span, row["last_event_ns"], verdicts)
        if verdict is None or not verdict.rule or verdict.ended_ns is None:
            continue
        if row["last_event_ns"] - CLOCKS_NS <= verdict.ended_ns <= row["resumed_ns"] + CLOCKS_NS:
            found[id(verdict)] = row, verdict
    return [
        {
            **{name: row[name] for name in ("log", "job", "number", "last_event_ns")},
            "cause": verdict.rule,
            "cause_host": verdict.host,
            "confidence": verdict.confidence,
            "judged_by": judged_by,
        }
        for row, verdict in found.values()
    ]


def host_rows(attempts: Iterable[Mapping[str, Any]], known: Collection[AttemptVerdict]) -> Iterator[dict[str, Any]]:
    """Yield the rows of `DIMENSIONS["hosts"]` of one job: the attempts of which all hosts are known.

    Args:
        attempts: All rows of the job in `attempts`.
        known: The attempts of its runs.
    """
    for row in attempts:
        verdict = _attempt_of(row, row["end_ns"], known)
        if verdict is not None and verdict.hosts:
            names = {name: row[name] for name in ("log", "job", "attempt", "start_ns")}
            yield {**names, "hosts": sorted(verdict.hosts)}


def _attempt_of(row: Mapping[str, Any], end_ns: int, known: Iterable[AttemptVerdict]) -> AttemptVerdict | None:
    """Return the only attempt that was running for most of the time; None if there is none, or if there are several."""
    start_ns = row["start_ns"]
    found = [
        verdict
        for verdict in known
        if 2 * (_end_of(verdict, end_ns) - max(start_ns, verdict.started_ns)) > end_ns - start_ns
        and _has_common_host(row["hosts"], verdict.hosts)
    ]
    return found[0] if len(found) == 1 else None


def _has_common_host(recorded: Collection[str], hosts: Collection[str]) -> bool:
    """Return False if an attempt ran on other hosts: jobs of two teams may have one name, in logs of their own."""
    names = {host for host in recorded if host}
    return not names or not hosts or not names.isdisjoint(hosts)


def _end_of(verdict: AttemptVerdict, end_ns: int) -> int:
    return end_ns if verdict.ended_ns is None else min(end_ns, verdict.ended_ns)
