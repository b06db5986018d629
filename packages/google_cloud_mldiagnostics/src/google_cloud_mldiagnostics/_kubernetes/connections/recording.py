"""Record what changes of pods and their events, as entries of kind `kubernetes_fact`: only with `--record-facts`.

Only pods that have the variable of the webhook are recorded: it names their workload. Nothing waits for it: an error,
or a missing right, ends no capture, and is reported once a minute at most.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ml_diagnostics_common.entry import COMPANION_LOG_ID
from ml_diagnostics_common.environment import Backend, configured_backend, diagnostics_directory

from google_cloud_mldiagnostics._kubernetes.api import KubernetesApi
from google_cloud_mldiagnostics._kubernetes.connections.metrics import OperatorMetrics
from google_cloud_mldiagnostics._kubernetes.names import (
    IDENTIFIER,
    JOB_NAME_LABEL,
    LWS_NAME_LABEL,
    RAY_CLUSTER_LABEL,
)
from google_cloud_mldiagnostics.exceptions import KubernetesError
from google_cloud_mldiagnostics.kubernetes_facts import FactLog

if TYPE_CHECKING:
    from ml_diagnostics_common.shipper import Shipper

__all__ = ["FactRecorder"]

_SELECTORS: Final = (JOB_NAME_LABEL, LWS_NAME_LABEL, RAY_CLUSTER_LABEL)
"""Pods of each kind of workload have one of these labels."""
_WATCH_SECONDS: Final = 300.0
_RETRY_SECONDS: Final = 60.0
_MOST_JOBS: Final = 64
"""The most journals that are open at once: one a job."""
_MOST_PODS: Final = 20_000
_MOST_ENTRIES_A_MINUTE: Final = 3_000
_CLOSE_SECONDS: Final = 5.0
_LONGEST_VARIABLE: Final = 8_192

_log = logging.getLogger("ml_diagnostics.kubernetes")


class FactRecorder:
    """Watches pods and events of some namespaces, and records what changes.

    Args:
        api: The API of the cluster.
        namespaces: The namespaces; none for all.
        metrics: Counts what is recorded.
        root: The diagnostics folder; None for the usual one.
        retry_seconds: The wait after a failure.
        watch_seconds: After so long everything is listed again.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        api: KubernetesApi,
        namespaces: Sequence[str],
        metrics: OperatorMetrics,
        *,
        root: Path | None = None,
        retry_seconds: float = _RETRY_SECONDS,
        watch_seconds: float = _WATCH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api, self._metrics = api, metrics
        self._scopes = [f"/namespaces/{name}" for name in namespaces] or [""]
        self._root = root or diagnostics_directory()
        self._retry_seconds, self._watch_seconds, self._clock = retry_seconds, watch_seconds, clock
        self._is_shipped = configured_backend() is not Backend.LOCAL
        self._jobs: OrderedDict[str, str] = OrderedDict()
        """The job of each pod, by the pod's id."""
        self._logs: OrderedDict[str, FactLog] = OrderedDict()
        self._minute, self._entries = 0.0, 0

    async def run(self) -> None:
        """Record until this task is cancelled; never raises anything else."""
        shipper = self._started_shipper() if self._is_shipped else None
        try:
            watches = [
                self._watch(f"/api/v1{scope}/pods", selector, self._add_pod)
                for scope in self._scopes
                for selector in _SELECTORS
            ]
            events = [self._watch(f"/api/v1{scope}/events", "", self._add_event) for scope in self._scopes]
            await asyncio.gather(*watches, *events)
        finally:
            await asyncio.to_thread(self._close, shipper)

    def _close(self, shipper: Shipper | None) -> None:
        for log in self._logs.values():
            log.close(_CLOSE_SECONDS / _MOST_JOBS)
        if shipper is not None:
            shipper.close(_CLOSE_SECONDS)

    def _started_shipper(self) -> Shipper:
        from ml_diagnostics_common.shipper import Shipper

        shipper = Shipper(COMPANION_LOG_ID, root=self._root, announces_path=False)
        shipper.start()
        return shipper

    async def _watch(self, path: str, selector: str, add: Callable[[Mapping[str, Any], bool], None]) -> None:
        """List a collection and watch it, repeatedly."""
        while True:
            try:
                version = ""
                async for page in self._api.pages(path, selector=selector):
                    version = page.resource_version
                    for document in page.objects:
                        add(document, False)
                changes = self._api.watch(path, version, seconds=self._watch_seconds, selector=selector)
                async for change in changes:
                    if change["type"] in ("ADDED", "MODIFIED", "DELETED"):
                        add(change["object"], change["type"] == "DELETED")
            except KubernetesError as error:
                _log.warning("Facts of pods are read again in %g s: %s", self._retry_seconds, error)
                await asyncio.sleep(self._retry_seconds)
            except Exception:
                _log.exception("Facts of pods are read again in %g s: a bug in the operator", self._retry_seconds)
                await asyncio.sleep(self._retry_seconds)

    def _add_pod(self, document: Mapping[str, Any], is_deleted: bool) -> None:
        job = _job_of(document)
        uid = str(document["metadata"].get("uid", ""))
        if not job or not uid:
            return
        self._jobs[uid] = job
        self._jobs.move_to_end(uid)
        if len(self._jobs) > _MOST_PODS:
            self._jobs.popitem(last=False)
        # Objects in a list have no kind of their own.
        self._record(job, {**document, "kind": "Pod"}, is_deleted=is_deleted)

    def _add_event(self, document: Mapping[str, Any], is_deleted: bool) -> None:
        about = document.get("involvedObject")
        job = self._jobs.get(str(about.get("uid", ""))) if isinstance(about, Mapping) else None
        if job is not None and not is_deleted:  # Kubernetes deletes each after an hour.
            self._record(job, {**document, "kind": "Event"})

    def _record(self, job: str, document: Mapping[str, Any], *, is_deleted: bool = False) -> None:
        now = self._clock()
        if now - self._minute >= 60.0:
            self._minute, self._entries = now, 0
        if self._entries >= _MOST_ENTRIES_A_MINUTE:
            self._metrics.facts.labels("dropped").inc()
            return
        written = self._log_of(job).add([document], is_deleted=is_deleted)
        self._entries += written
        self._metrics.facts.labels("recorded").inc(written)

    def _log_of(self, job: str) -> FactLog:
        log = self._logs.get(job)
        if log is None:
            log = self._logs[job] = FactLog(job, root=self._root, is_shipped=self._is_shipped)
            if len(self._logs) > _MOST_JOBS:
                self._logs.popitem(last=False)[1].close()
        self._logs.move_to_end(job)
        return log


def _job_of(pod: Mapping[str, Any]) -> str:
    """Return the name of the workload that a pod's variable names; empty without the variable."""
    containers = pod["spec"].get("containers")
    for container in containers if isinstance(containers, list) else ():
        for variable in container.get("env") or ():
            if variable.get("name") == IDENTIFIER:
                return _name_in(str(variable.get("value", ""))[:_LONGEST_VARIABLE])
    return ""


@functools.lru_cache(maxsize=1024)
def _name_in(identifier: str) -> str:
    try:
        found = json.loads(identifier)
    except ValueError:
        return ""
    name = found.get("metadata.name") if isinstance(found, dict) else None
    return name if isinstance(name, str) else ""
