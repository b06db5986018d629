"""The cluster of one job, asked repeatedly: live facts, and those that were recorded before."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

from ml_diagnostics_common.entry import LogEntry

from ml_diagnostics_console._facts.facts import Fact, Unknown
from ml_diagnostics_console._facts.kubernetes import read_kubernetes
from ml_diagnostics_console._facts.kubernetes_entries import merged, recorded_kubernetes
from ml_diagnostics_console._facts.kubernetes_facts import KubernetesFacts

if TYPE_CHECKING:
    from google_cloud_mldiagnostics.kubernetes_facts import FactLog

__all__ = ["OFF", "ClusterReader"]

OFF: Final = "off"
_AGAIN_NS: Final = 25_000_000_000
"""A reading starts kubectl about 15 times: 1 s of CPU. A job that is watched is judged each 10 s."""


class ClusterReader:
    """Reads the cluster of a job.

    Args:
        context: The context of kubectl; empty for the current one, if the job has pods; `off` asks no cluster.
        records: True to record what changes: Kubernetes drops events after an hour.
        clock_ns: The wall clock.
    """

    def __init__(self, context: str, *, records: bool = False, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._context, self._records, self._clock_ns = context, records, clock_ns
        self._last: tuple[int, Fact[KubernetesFacts] | Unknown] | None = None
        self._log: FactLog | None = None

    def read(
        self, name: str, *, hosts: Collection[str], run_id: str, is_in_cluster: bool, entries: Sequence[LogEntry]
    ) -> Fact[KubernetesFacts] | Unknown:
        """Return what the cluster reports now, with what was recorded of it before.

        Args:
            name: The name of the job.
            hosts: The hosts of its processes.
            run_id: Its run; empty if it has none.
            is_in_cluster: True if it runs in a cluster, or may: without an option, no other job asks one.
            entries: The recorded facts.
        """
        live = self._live(name, hosts, run_id, is_in_cluster=is_in_cluster)
        before = recorded_kubernetes(entries)
        return live if before is None else merged(live, before)

    def _live(
        self, name: str, hosts: Collection[str], run_id: str, *, is_in_cluster: bool
    ) -> Fact[KubernetesFacts] | Unknown:
        if self._context == OFF:
            return Unknown("no cluster was asked, because of --kubernetes off", is_by_choice=True)
        if not self._context and not is_in_cluster:
            why = "no cluster was asked, since the job runs in none: give --kubernetes CONTEXT"
            return Unknown(why, is_by_choice=True)
        now_ns = self._clock_ns()
        if self._last is not None and now_ns - self._last[0] < _AGAIN_NS:
            return self._last[1]
        if self._records and self._log is None:
            from google_cloud_mldiagnostics.kubernetes_facts import FactLog

            self._log = FactLog(name, run_id)
        record = None if self._log is None else self._log.add
        found = read_kubernetes(name, context=self._context or None, hosts=hosts, run_id=run_id, record=record)
        self._last = now_ns, found
        return found
