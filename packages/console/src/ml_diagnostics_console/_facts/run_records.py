"""The entries of a run's log, gathered: its metrics, and what each process recorded of itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from google_cloud_mldiagnostics.reading import CONFIGS, LOSSES_NAMESPACE, PROCESS, SESSION, natural_number, texts
from ml_diagnostics_common.entry import EntryContext, LogEntry

from ml_diagnostics_console._facts.curves import Curves

__all__ = ["ProcessRecords", "RunRecords"]

_CONFIGS: Final = ("userConfigs", "softwareConfigs", "hardwareConfigs")


class ProcessRecords:
    """The records of one process in the run's log.

    Attributes:
        first: Its first entry on itself; None if it has none.
        last: Its last entry on itself: the end, if it recorded one.
        software: Its versions.
        hardware: Its machine.
        user_configs: The configs that the user gave in it.
        config_entries: The last entry on each of these three.
        lost_entries: The number of entries and values that it could not record.
    """

    def __init__(self) -> None:
        self.first: LogEntry | None = None
        self.last: LogEntry | None = None
        self.software: Mapping[str, str] = {}
        self.hardware: Mapping[str, str] = {}
        self.user_configs: Mapping[str, str] = {}
        self.config_entries: dict[str, LogEntry] = {}
        self.lost_entries = 0

    def add(self, kind: str, entry: LogEntry) -> None:
        """Take an entry on the process.

        Args:
            kind: The namespace of the entry.
            entry: The entry.
        """
        payload = entry.payload
        if kind == PROCESS:
            self.first = self.first or entry
            self.last = entry
        elif kind == CONFIGS:
            self.software = texts(payload.get("softwareConfigs")) or self.software
            self.hardware = texts(payload.get("hardwareConfigs")) or self.hardware
            self.user_configs = texts(payload.get("userConfigs")) or self.user_configs
            self.config_entries.update({name: entry for name in _CONFIGS if payload.get(name)})
        elif kind == LOSSES_NAMESPACE:
            for counts in payload.values():
                if isinstance(counts, Mapping):
                    self.lost_entries += sum(natural_number(count) or 0 for count in counts.values())


class RunRecords:
    """All entries of one run.

    Attributes:
        curves: Its metrics, and those of its hosts.
        entry_count: The number of entries.
        last_ns: The time of the last entry; 0 without one.
    """

    def __init__(self) -> None:
        self.curves = Curves()
        self.entry_count = 0
        self.last_ns = 0
        self._processes: dict[tuple[str, str], dict[int, ProcessRecords]] = {}
        """The records by host and pid, then by attempt: in containers all attempts have one pid."""
        # By the identity of the context, which the entries keep alive, and the name of the metric.
        self._last: dict[tuple[int, str], LogEntry] = {}
        self._last_with_step: dict[tuple[int, str], LogEntry] = {}

    def take_metrics(self, entries: Sequence[LogEntry]) -> list[LogEntry]:
        """Take the metrics among entries that are in the order of time for each writer, and return the others."""
        others: list[LogEntry] = []
        metrics: dict[tuple[int, str], list[LogEntry]] = {}
        for entry in entries:
            own = entry.own_resource_labels
            name = own.get("namespace") if own else None
            if name is None:
                name = _namespace(entry.context)
            if name in _NOT_METRICS:
                others.append(entry)
                continue
            key = (id(entry.context), name)
            if key in metrics:
                metrics[key].append(entry)
            else:
                metrics[key] = [entry]
        for key, of_metric in metrics.items():
            self.last_ns = max(self.last_ns, of_metric[-1].timestamp_ns)
            if not key[1]:
                continue
            self.curves.add_all(key[1], of_metric)
            self._last[key] = of_metric[-1]
            with_step = next((entry for entry in reversed(of_metric) if "step_index" in entry.payload), None)
            if with_step is not None:
                self._last_with_step[key] = with_step
        self.entry_count += len(entries) - len(others)
        return others

    def add(self, entries: Sequence[LogEntry]) -> list[LogEntry]:
        """Take entries in the order of time.

        Returns:
            The entries that show the states of processes and of profiles.
        """
        shown = self.take_metrics(entries)
        for entry in shown:
            name, labels = entry.resource_label("namespace"), entry.context.labels
            if name != SESSION:
                attempts = self._processes.setdefault((labels.get("host", ""), labels.get("pid", "")), {})
                attempt = natural_number(labels.get("attempt")) or 0
                attempts.setdefault(attempt, ProcessRecords()).add(name, entry)
            self.last_ns = max(self.last_ns, entry.timestamp_ns)
        self.entry_count += len(shown)
        return shown

    def take_last_metrics(self) -> list[LogEntry]:
        """Return the last entry of each metric and writer since the last call, and the last one with a step.

        The view of a run needs no more of them: when a process last recorded anything, and at which step.
        """
        taken = [*self._last.values(), *self._last_with_step.values()]
        self._last.clear()
        self._last_with_step.clear()
        return sorted(taken, key=lambda entry: (entry.timestamp_ns, entry.sequence))

    def of_process(self, host: str, pid: int, attempt: int) -> ProcessRecords:
        """Return what a process recorded; empty records if it recorded nothing.

        Args:
            host: Its host.
            pid: Its process id.
            attempt: Its attempt of the run, from 1; entries of other programs may have none.
        """
        attempts = self._processes.get((host, str(pid)), {})
        return attempts.get(attempt) or attempts.get(0) or ProcessRecords()


_NOT_METRICS = frozenset({PROCESS, CONFIGS, LOSSES_NAMESPACE, SESSION})


def _namespace(context: EntryContext) -> str:
    return str((context.resource.get("labels") or {}).get("namespace", ""))
