"""The doctor on all attempts of a job, for programs that keep the causes of its restarts: `goodput fleet causes`.

from ml_diagnostics_console.attempt_doctor import AttemptDoctor

doctor = AttemptDoctor(print)
for attempt in doctor.attempts("llama-7", since_ns=0):
    print(attempt.run, attempt.number, attempt.rule, attempt.host, attempt.confidence)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from google_cloud_mldiagnostics.exceptions import ControlPlaneError, RunNotFoundError
from google_cloud_mldiagnostics.reading import CloudSource, LocalSource, RunHistory, RunSource
from ml_diagnostics_common.story import Confidence

from ml_diagnostics_console._facts.cluster import OFF
from ml_diagnostics_console._facts.facts import Fact, Unknown
from ml_diagnostics_console._facts.reading import JobReader, Question
from ml_diagnostics_console._version import __version__
from ml_diagnostics_console.doctor import judge
from ml_diagnostics_console.verdict import Blame, Part, VerdictClass

if TYPE_CHECKING:
    from google_cloud_mldiagnostics.reading import AttemptView, ProcessView

    from ml_diagnostics_console._facts.facts import AttemptFacts, ProcessFacts
    from ml_diagnostics_console._facts.kubernetes_facts import KubernetesFacts
    from ml_diagnostics_console.report import Report

__all__ = ["AttemptDoctor", "AttemptVerdict", "Cause", "cause_of"]

_CAUSES: Final = frozenset({VerdictClass.CRASH, VerdictClass.STUCK, VerdictClass.BEFORE_START, VerdictClass.WAITING})
"""A job that is slow, or whose numbers are wrong, goes on."""
_PARTS: Final = frozenset({Part.INITIATING, Part.CONTRIBUTING})
_OF_HOSTS: Final = frozenset({Blame.SYSTEM, Blame.UNKNOWN})
"""A program fails on any host, and a preemption is not the fault of one."""
_UNKNOWN: Final = "U0"


class Cause(NamedTuple):
    """The cause of the end of an attempt.

    Attributes:
        rule: The rule that names it; `U0` if no rule does.
        host: The host that is to blame; None if there is none, or it is only possible.
        confidence: `proven`, `likely` or `possible`.
    """

    rule: str
    host: str | None
    confidence: str


class AttemptVerdict(NamedTuple):
    """One attempt of a run, and the cause of its end.

    Attributes:
        run: The id of the run; the name of a job without one.
        number: The number of the attempt in it, from 1.
        started_ns: Its start, in ns since 1970.
        ended_ns: Its end; None while it runs.
        hosts: All its hosts.
        rule: The rule that names the cause; empty if it was not judged.
        host: The host that is to blame; None if there is none.
        confidence: `proven`, `likely` or `possible`; empty if it was not judged.
    """

    run: str
    number: int
    started_ns: int
    ended_ns: int | None
    hosts: tuple[str, ...]
    rule: str = ""
    host: str | None = None
    confidence: str = ""


class AttemptDoctor:
    """Judges the attempts of jobs. Reads only; jobs are not touched.

    Args:
        report: Called with each note on what cannot be read.
        project: Read the runs of this project of Google Cloud; None reads those of this machine.
        region: The region of its runs; None for us-central1.
        kubernetes: The context of kubectl; `off` asks no cluster. What was recorded of a cluster is read anyway.

    Attributes:
        version: The version of the rules.

    Raises:
        CredentialsError: A project is given, and there are no credentials.
        ControlPlaneError: The runs cannot be listed.
    """

    version: Final = f"ml-diagnostics-console {__version__}"

    def __init__(
        self,
        report: Callable[[str], None],
        *,
        project: str | None = None,
        region: str | None = None,
        kubernetes: str = OFF,
    ) -> None:
        self._report, self._project, self._region, self._kubernetes = report, project, region, kubernetes
        self._notes: set[str] = set()
        self._has_noted_cluster = False
        self._source: RunSource = LocalSource(self._note)
        if project or region:
            self._source = CloudSource(project, region, self._note, lambda _: None)
        self._runs: dict[str, list[dict[str, Any]]] = {}
        for run in self._source.control_plane.list_runs():
            for name in {_id_of(run), str(run.get("displayName") or "")}:
                self._runs.setdefault(name, []).append(run)

    def attempts(self, job: str, *, since_ns: int | None) -> list[AttemptVerdict]:
        """Return the attempts of all runs of a job, in the order of their starts; none if there is no such run.

        Args:
            job: The name of the job: its runs have it as their name or id.
            since_ns: Judge the attempts that ended since this time, in ns since 1970; None judges none, and reads no
                metrics from Cloud Logging.
        """
        found: list[AttemptVerdict] = []
        runs = self._runs.get(job, [])
        for run in runs:
            try:
                found += self._listed(run) if since_ns is None else self._judged(_id_of(run), since_ns)
            except (ControlPlaneError, RunNotFoundError) as error:
                self._note(f"the run {_id_of(run)} of {job} is left out: {error}")
        if not runs and since_ns is not None:
            try:
                found += self._judged(job, since_ns)
            except RunNotFoundError:
                return []
        return sorted(found, key=lambda attempt: attempt.started_ns)

    def _note(self, text: str) -> None:
        """Report a note once: each job may have it."""
        if text not in self._notes:
            self._notes.add(text)
            self._report(text)

    def _note_cluster(self, found: Fact[KubernetesFacts] | Unknown) -> None:
        """Report why the cluster told nothing of a job, for the first such job: most others have the same reason."""
        why = found.why if isinstance(found, Unknown) else found.value.unread.get("cluster")
        if why and self._kubernetes != OFF and not self._has_noted_cluster:
            self._has_noted_cluster = True
            self._note(why)

    def _judged(self, name: str, since_ns: int) -> Iterator[AttemptVerdict]:
        question = Question(name, None, self._project, self._region, self._kubernetes, has_goodput=False)
        facts = JobReader(question, self._note).read()
        self._note_cluster(facts.kubernetes)
        for index, (attempt, following) in enumerate(itertools.zip_longest(facts.attempts, facts.attempts[1:])):
            if attempt.started_ns is not None:
                last_ns = max((process.last_event_ns for process in attempt.processes), default=attempt.started_ns)
                ended_ns = _end_of(attempt, following, None if facts.is_live else last_ns)
                verdict = AttemptVerdict(
                    facts.name, attempt.number, attempt.started_ns, ended_ns, _hosts_of(attempt.processes)
                )
                if ended_ns is not None and ended_ns >= since_ns:
                    verdict = verdict._replace(**cause_of(judge(facts.of_attempt(index)))._asdict())
                yield verdict

    def _listed(self, run: dict[str, Any]) -> Iterator[AttemptVerdict]:
        """Yield the attempts of a run with their hosts, from the entries on its processes alone."""
        history = RunHistory()
        for batch in self._source.entries.of_processes(run):
            history.add(batch)
        view = self._source.view(run, history, has_endings=True)
        for attempt, following in itertools.zip_longest(view.attempts, view.attempts[1:]):
            if attempt.started_ns is not None:
                ended_ns, hosts = _end_of(attempt, following, None), _hosts_of(attempt.processes)
                yield AttemptVerdict(view.run_id, attempt.number, attempt.started_ns, ended_ns, hosts)


def cause_of(report: Report) -> Cause:
    """Return the cause of the end of the attempt that a report is about. Pure.

    It is the first verdict on what ended it. A host is to blame if it is the only one of that verdict, which is likely
    at least, and neither the program nor a preemption is.

    Args:
        report: The report on an attempt that has ended.
    """
    found = next(
        (each for each in report.verdicts if each.verdict_class in _CAUSES and each.part in _PARTS),
        None,
    )
    if found is None:
        return Cause(_UNKNOWN, None, Confidence.POSSIBLE.value)
    is_of_host = len(found.hosts) == 1 and found.blame in _OF_HOSTS and found.confidence is not Confidence.POSSIBLE
    return Cause(found.rule, found.hosts[0] if is_of_host else None, found.confidence.value)


def _end_of(
    attempt: AttemptFacts | AttemptView, following: AttemptFacts | AttemptView | None, last_ns: int | None
) -> int | None:
    """Return the end of an attempt, at the latest the start of the next one; None while it runs.

    Args:
        attempt: The attempt.
        following: The next one; None if there is none.
        last_ns: Its end if none is known, and there is no next one.
    """
    known = [attempt.ended_ns, following.started_ns if following is not None else None]
    return min((each for each in known if each is not None), default=last_ns)


def _hosts_of(processes: Iterable[ProcessFacts | ProcessView]) -> tuple[str, ...]:
    return tuple(sorted({process.host for process in processes if process.host}))


def _id_of(run: Mapping[str, Any]) -> str:
    return str(run.get("name", "")).rpartition("/")[2]
