"""Read all that is known of a job: the only module of facts with effects on logs and runs.

The job is a run, by its id; or the name of a job that started no run, of which companions, or `run`, recorded the ends;
or the name of a workload in Kubernetes that has not recorded anything yet. A reader that is asked again reads only what
is new.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from google_cloud_mldiagnostics.exceptions import RunNotFoundError
from google_cloud_mldiagnostics.kubernetes_facts import FACT
from google_cloud_mldiagnostics.reading import CloudSource, LocalSource, RunHistory, RunSource, RunView, State
from ml_diagnostics_common.command.errors import NotFoundError
from ml_diagnostics_common.entry import LogEntry, SeenSequences, split_insert_id
from ml_diagnostics_common.exceptions import DiagnosticsError

from ml_diagnostics_console._facts.building import attempts_of_jobs, attempts_of_runs, chips_of
from ml_diagnostics_console._facts.cluster import ClusterReader
from ml_diagnostics_console._facts.entries import Lives
from ml_diagnostics_console._facts.facts import AttemptFacts, Fact, Facts, Unknown
from ml_diagnostics_console._facts.gcloud import read_monitored_events
from ml_diagnostics_console._facts.kubernetes_entries import key_of_object
from ml_diagnostics_console._facts.kubernetes_facts import KubernetesFacts
from ml_diagnostics_console._facts.monitored_events import MonitoredEvent
from ml_diagnostics_console._facts.profile import read_profile
from ml_diagnostics_console._facts.profile_facts import ProfileFacts
from ml_diagnostics_console._facts.run_records import RunRecords
from ml_diagnostics_console._facts.trace_stacks import with_trace_stacks
from ml_diagnostics_console.verdict import Ref

if TYPE_CHECKING:
    from ml_diagnostics_common.log_source import LogSource
    from ml_goodput_measurement.partition import JobReport

__all__ = ["JobReader", "Question"]

_Result = TypeVar("_Result")

_BEFORE_RUN_NS: Final = 600_000_000_000
_KEPT_NS: Final = 300_000_000_000
_MOST_OBJECTS: Final = 20_000
"""Objects of a cluster of which recorded states are kept: those of a job of thousands of pods, with their events."""
_SILENT_NS: Final = 180_000_000_000
"""Three heartbeats of a run, which are 60 s apart."""
_CLUSTER: Final = "GKE"
"""The orchestrator of runs that have pods."""
_ENDS: Final = ("job_ended", "left_block")


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a job.

    Attributes:
        name: The run's id, the start of it, `last`, or the name of a job or of a workload.
        attempt: The attempt to judge; None is the last one.
        project: The project of Google Cloud to read; None reads this machine.
        region: The region of its runs; None for the usual one.
        kubernetes: The context of kubectl; empty for the current one, if the job has pods; `off` asks no cluster.
        has_goodput: False to leave out the goodput of the job, for which its whole history is read.
    """

    name: str
    attempt: int | None = None
    project: str | None = None
    region: str | None = None
    kubernetes: str = ""
    has_goodput: bool = True


class JobReader:
    """Reads one job, repeatedly.

    Args:
        question: The job.
        report: Prints a note on what cannot be read, each once.
        records_cluster: True to record what changes in the job's cluster: see `ClusterReader`.
        clock_ns: The wall clock.

    Raises:
        CredentialsError: A project is given, and there are no credentials.
    """

    def __init__(
        self,
        question: Question,
        report: Callable[[str], None],
        *,
        records_cluster: bool = False,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._question, self._report, self._clock_ns = question, report, clock_ns
        self._notes: dict[str, None] = {}
        self._source = self._new_source()
        self._history, self._records, self._lives = RunHistory(), RunRecords(), Lives()
        self._of_run: LogSource | None = None
        self._of_companions: LogSource | None = None
        self._cluster = ClusterReader(question.kubernetes, records=records_cluster, clock_ns=clock_ns)
        self._cluster_entries: dict[str, LogEntry] = {}
        self._profile = _Kept[Fact[ProfileFacts] | Unknown](clock_ns)
        self._events = _Kept[Fact[tuple[MonitoredEvent, ...]] | Unknown](clock_ns)
        self._companion_count = 0
        self._companions_ns = 0
        self._seen = SeenSequences()

    def read(self) -> Facts:
        """Return what is known of the job now.

        Raises:
            RunNotFoundError: There is no such run, job or workload, or several runs match.
            ControlPlaneError: The request for the run failed.
            NotFoundError: The run has no such attempt.
        """
        try:
            run = self._source.find(self._question.name)
        except RunNotFoundError as error:
            return self._without_run(error)
        return self._with_run(run)

    def entries(self, ids: Collection[str]) -> dict[str, LogEntry]:
        """Return the entries with some insertIds, in full: read once more, since facts keep what they show alone.

        Args:
            ids: The ids, such as those of the evidence of a verdict; others are left out.
        """
        sources = [self._source.entries.source_of_companions(0, 'jsonPayload.verb="stacktraceanalyzer"')]
        try:
            sources.append(self._source.entries.source_of_run(self._source.find(self._question.name)))
        except RunNotFoundError:
            pass  # A job without a run.
        found: dict[str, LogEntry] = {}
        of_writer: dict[str | None, set[int]] = {}
        for parts in map(split_insert_id, ids):
            if parts is not None:
                of_writer.setdefault(parts[0], set()).add(parts[1])

        def take(entries: list[LogEntry]) -> list[LogEntry]:
            """Keep what is wanted; of a million entries few are, so that ids are not made for the others."""
            for entry in entries:
                sequences = of_writer.get(entry.context.writer)
                is_wanted = sequences is not None and entry.sequence in sequences
                if is_wanted or (entry.foreign_id and entry.foreign_id in ids):
                    found[entry.insert_id] = entry
            return []

        for source in sources:
            for batch in self._source.entries.read(source, take):
                take(batch)  # Of a source that takes none itself.
        return found

    def _new_source(self) -> RunSource:
        question = self._question
        if question.project or question.region:
            return CloudSource(question.project, question.region, self._note, lambda _: None)
        return LocalSource(self._note)

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes[text] = None
            self._report(text)

    def _with_run(self, run: dict[str, Any]) -> Facts:
        if self._of_run is None:
            self._of_run = self._source.entries.source_of_run(run)
        for batch in self._source.entries.read(self._of_run, self._records.take_metrics):
            self._history.add(self._records.add(batch))
        self._history.add(self._records.take_last_metrics())
        self._records.curves.sort()
        first_ns = min((record.first_ns for record in self._history.processes.values()), default=0)
        names = {str(run.get("displayName", "")), str(run["name"]).rpartition("/")[2], _workload_of(run)}
        self._read_companions(first_ns, names)
        view = self._source.view(run, self._history, has_endings=True)
        attempts = with_trace_stacks(attempts_of_runs(view, self._lives, self._records))
        judged = self._judged(attempts)
        is_live = view.state is State.ACTIVE and (judged is None or judged == len(attempts) - 1)
        ended_ns = max([self._records.last_ns, *_last_events(attempts), 1])
        return Facts(
            name=view.run_id,
            display_name=view.display_name or view.run_id,
            now_ns=self._clock_ns() if is_live else ended_ns,
            is_live=is_live,
            attempts=tuple(attempts),
            judged=judged,
            chips=chips_of(view),
            metrics=self._records.curves,
            ledger=_read_ledger(view.display_name or view.run_id, self._question),
            kubernetes=self._read_cluster(_hosts(attempts), view.run_id, is_in_cluster=_is_in_cluster(view)),
            profile=self._profile.get(str(view.sessions), lambda: read_profile(view)),
            monitored_events=self._events.get(view.run_id, lambda: self._read_events(view)),
            user_configs=view.configs.get("user", {}),
            notes=tuple(self._notes),
            entry_count=self._records.entry_count + self._companion_count,
        )

    def _without_run(self, error: RunNotFoundError) -> Facts:
        """Return the facts of a job that started no run; raise the error if nothing is known of it."""
        name = self._question.name
        self._read_companions(0, {name})
        attempts = attempts_of_jobs(self._lives.labelled([name]))
        cluster = self._read_cluster(_hosts(attempts), "", is_in_cluster=not attempts or _has_pods(attempts))
        if not attempts and isinstance(cluster, Unknown):
            raise error
        now_ns = self._clock_ns()
        last_ns = max(_last_events(attempts), default=now_ns)
        is_open = not attempts or any(not process.has_ended for process in attempts[-1].processes)
        is_live = is_open and now_ns - last_ns < _SILENT_NS
        return Facts(
            name=name,
            display_name=name,
            now_ns=now_ns if is_live else last_ns,
            is_live=is_live,
            attempts=tuple(attempts),
            judged=self._judged(attempts),
            ledger=_read_ledger(name, self._question),
            kubernetes=cluster,
            notes=tuple(self._notes),
            entry_count=self._companion_count,
        )

    def _read_companions(self, first_ns: int, names: Collection[str]) -> None:
        """Read what is new of companions, from some time before the first event of the run."""
        entries = self._source.entries
        wanted = sorted(filter(None, names))
        since_ns = max(0, first_ns - _BEFORE_RUN_NS)
        if self._of_companions is None or self._source.has_credentials:  # Cloud Logging answers a query once.
            from ml_diagnostics_common.cloud_logging import any_of

            condition = f"{any_of('labels.run', wanted)} OR {any_of('labels.job', wanted)}"
            self._of_companions = entries.source_of_companions(self._companions_ns or since_ns, condition)
        for batch in entries.read(self._of_companions):
            new = [entry for entry in batch if self._is_new(entry)]
            self._companion_count += len(new)
            self._lives.add(new)
            self._history.add([entry for entry in new if entry.payload.get("kind") in _ENDS])
            for entry in new:
                if _is_fact_of(entry, wanted, since_ns):
                    self._keep_of_cluster(entry)

    def _keep_of_cluster(self, entry: LogEntry) -> None:
        """Keep the newest recorded state of an object of the cluster; of too many objects, those that changed last."""
        key = key_of_object(entry)
        self._cluster_entries.pop(key, None)
        self._cluster_entries[key] = entry
        if len(self._cluster_entries) > _MOST_OBJECTS:
            del self._cluster_entries[next(iter(self._cluster_entries))]

    def _is_new(self, entry: LogEntry) -> bool:
        """Return True if an entry of a companion was not read before."""
        self._companions_ns = max(self._companions_ns, entry.timestamp_ns)
        writer = entry.context.writer
        return not self._source.has_credentials or writer is None or self._seen.add(writer, entry.sequence)

    def _judged(self, attempts: Sequence[AttemptFacts]) -> int | None:
        """Return the index of the attempt that is asked for."""
        wanted = self._question.attempt
        if wanted is None:
            return len(attempts) - 1 if attempts else None
        numbers = [attempt.number for attempt in attempts]
        if wanted not in numbers:
            known = f"it has {numbers[0]} to {numbers[-1]}" if numbers else "none has recorded anything"
            raise NotFoundError(f"{self._question.name} has no attempt {wanted}: {known}")
        return numbers.index(wanted)

    def _read_cluster(self, hosts: set[str], run_id: str, *, is_in_cluster: bool) -> Fact[KubernetesFacts] | Unknown:
        """Return what the cluster reports now, with what was recorded of it before.

        Args:
            hosts: The hosts of the job.
            run_id: Its run; empty if it has none.
            is_in_cluster: True if it runs in a cluster, or may: without an option, no other job asks one.
        """
        return self._cluster.read(
            self._question.name,
            hosts=hosts,
            run_id=run_id,
            is_in_cluster=is_in_cluster,
            entries=tuple(self._cluster_entries.values()),
        )

    def _read_events(self, view: RunView) -> Fact[tuple[MonitoredEvent, ...]] | Unknown:
        question = self._question
        if question.project is None:
            return Unknown("Google's monitored events are only read with --project", is_by_choice=True)
        return read_monitored_events(view.run_id, question.project, question.region or "")


def _read_ledger(job: str, question: Question) -> Fact[JobReport] | Unknown:
    """Return the goodput of a job, of the same project."""
    if not question.has_goodput:
        return Unknown("the goodput of the job was not read", is_by_choice=True)
    from ml_goodput_measurement.report import report

    try:
        if question.project and (reason := _other_project(question.project)):
            return Unknown(reason)
        data = report(job).data
    except DiagnosticsError as error:
        return Unknown(f"no goodput is known: {str(error).splitlines()[0]}")
    shows = f"goodput {data.goodput_percent:.1f} % of {data.counted_ns / 1e9:.0f} s"
    return Fact(data, (Ref(f"goodput/{data.job_name}", "goodput", data.end_ns, "", shows),), data.end_ns)


def _other_project(wanted: str) -> str:
    """Return why the goodput is not of a project: it is read of that of the environment; empty if they are the same."""
    from ml_diagnostics_common.credentials import find_cloud
    from ml_diagnostics_common.environment import Backend, configured_backend

    own = "" if configured_backend() is Backend.LOCAL else find_cloud(None).project
    if own == wanted:
        return ""
    return f"goodput is not read of the project {wanted}: set GOOGLE_CLOUD_PROJECT to it, and not the local backend"


class _Kept(Generic[_Result]):
    """A result that is read again only if its subject has changed, or after some minutes: reading it starts a program.

    Args:
        clock_ns: The wall clock.
    """

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._known: tuple[str, int, _Result] | None = None

    def get(self, key: str, read: Callable[[], _Result]) -> _Result:
        """Return the kept result, or read it.

        Args:
            key: The identity of its subject.
            read: Reads it.
        """
        now_ns = self._clock_ns()
        if self._known is None or self._known[0] != key or now_ns - self._known[1] > _KEPT_NS:
            self._known = key, now_ns, read()
        return self._known[2]


def _last_events(attempts: Sequence[AttemptFacts]) -> list[int]:
    return [process.last_event_ns for attempt in attempts for process in attempt.processes]


def _hosts(attempts: Sequence[AttemptFacts]) -> set[str]:
    return {process.host for attempt in attempts for process in attempt.processes}


def _workload_of(run: Mapping[str, Any]) -> str:
    """Return the name of the workload in Kubernetes that a run is of; empty if there is none."""
    details = run.get("workloadDetails")
    gke = details.get("gke") if isinstance(details, Mapping) else None
    return str(gke.get("id") or "") if isinstance(gke, Mapping) else ""


def _is_fact_of(entry: LogEntry, names: Collection[str], since_ns: int) -> bool:
    """Return True if an entry has a recorded fact of Kubernetes on one of some jobs or runs."""
    if entry.payload.get("kind") != FACT:  # As of nearly all entries.
        return False
    labels = entry.context.labels
    return (labels.get("run") in names or labels.get("job") in names) and entry.timestamp_ns >= since_ns


def _has_pods(attempts: Sequence[AttemptFacts]) -> bool:
    return any(process.resource.get("type") == "k8s_container" for process in attempts[-1].processes)


def _is_in_cluster(view: RunView) -> bool:
    return view.orchestrator == _CLUSTER
