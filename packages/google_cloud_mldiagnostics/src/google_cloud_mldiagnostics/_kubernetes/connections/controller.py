"""The operator's objects: for each, the next step is asked for and taken, again after every change.

All decisions are in `step`. A step may be asked for again at any time, so nothing has to be remembered over a restart:
the status of an object has its progress, and a claim is refused by the API server if the object has changed since.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from google_cloud_mldiagnostics._kubernetes.api import KubernetesApi, object_path
from google_cloud_mldiagnostics._kubernetes.connections.capturing import Capturer
from google_cloud_mldiagnostics._kubernetes.connections.metrics import OperatorMetrics
from google_cloud_mldiagnostics._kubernetes.connections.resource import Connection, Phase, read_connection
from google_cloud_mldiagnostics._kubernetes.connections.status import (
    PodResult,
    finished_status,
    pending_status,
    refused_status,
    running_status,
)
from google_cloud_mldiagnostics._kubernetes.connections.step import (
    Claim,
    Delete,
    Policy,
    Queue,
    Recover,
    Refuse,
    Situation,
    Start,
    Wait,
    next_step,
)
from google_cloud_mldiagnostics._kubernetes.names import (
    ALLOW_CAPTURES_FROM,
    CLAIMED_BY,
    CONNECTION_GROUP,
    CONNECTION_VERSION,
    CONNECTIONS,
)
from google_cloud_mldiagnostics.exceptions import KubernetesApiError, KubernetesError

__all__ = ["Controller"]

_AGAIN_SECONDS: Final = 1.0
_QUEUE_SECONDS: Final = 30.0
"""How often the message of an object that waits is updated: each time is a write."""
_LONGEST_WAIT_SECONDS: Final = 3600.0
_CONFLICT, _MISSING = 409, 404

_log = logging.getLogger("ml_diagnostics.kubernetes")


class Controller:
    """Takes the steps of all objects."""

    def __init__(
        self,
        api: KubernetesApi,
        capturer: Capturer,
        policy: Policy,
        identity: str,
        metrics: OperatorMetrics,
        *,
        again_seconds: float = _AGAIN_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Take no step before `lead`.

        Args:
            api: The API of the cluster.
            capturer: Profiles pods.
            policy: The operator's settings.
            identity: The name of this operator, which no other process ever has.
            metrics: Counts captures.
            again_seconds: The wait before a step that failed is asked for again.
            clock: Seconds since 1970.
        """
        self._api = api
        self._capturer = capturer
        self._policy = policy
        self._identity = identity
        self._metrics = metrics
        self._again_seconds = again_seconds
        self._clock = clock
        self._leads = False
        self._documents: dict[str, Mapping[str, Any]] = {}
        """The newest version of each object, by its id."""
        self._due: set[str] = set()
        self._turns: dict[str, asyncio.Task[None]] = {}
        self._captures: dict[str, asyncio.Task[None]] = {}
        self._claiming: set[str] = set()
        self._pods: dict[str, tuple[str, Sequence[str]]] = {}
        """The namespace and the pods of each object that is being claimed or captured."""
        self._started: set[str] = set()
        """The objects whose capture was started here: once, and it reports its end, which events may not have yet."""
        self._waiting: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # --- What is known of the objects -------------------------------------------------------------------

    def lead(self) -> None:
        """Act from now on."""
        self._leads = True
        self._metrics.leader.set(1)
        for uid in self._documents:
            self._consider(uid)

    def listed(self, namespace: str, documents: Sequence[Mapping[str, Any]]) -> None:
        """Note all objects that there are.

        Args:
            namespace: The namespace that was listed; empty for all.
            documents: The objects, as the API server returns them.
        """
        self._metrics.last_list.set(self._clock())
        known = {
            uid for uid, document in self._documents.items() if namespace in ("", document["metadata"].get("namespace"))
        }
        for uid in known - {_uid(document) for document in documents}:
            self._forget(uid)
        for document in sorted(documents, key=_created):
            self.changed(document)

    def changed(self, document: Mapping[str, Any], *, is_deleted: bool = False) -> None:
        """Note a new version of an object.

        Args:
            document: The object, as the API server returns it.
            is_deleted: True if it is gone.
        """
        uid = _uid(document)
        if is_deleted:
            self._forget(uid)
            return
        self._documents[uid] = document
        self._consider(uid)

    async def end(self, timeout_seconds: float) -> None:
        """Claim nothing any more, and wait for the captures that run.

        Args:
            timeout_seconds: The most time to wait.
        """
        self._leads = False
        tasks = [*self._captures.values(), *self._turns.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_seconds)
        self.abandon()

    def abandon(self) -> None:
        """Act no longer, at once: another operator may."""
        self._leads = False
        self._metrics.leader.set(0)
        for timer in self._timers.values():
            timer.cancel()
        for task in (*self._captures.values(), *self._turns.values()):
            task.cancel()

    def _forget(self, uid: str) -> None:
        """Forget an object that was deleted; its capture goes on, since its pods are profiled already."""
        self._documents.pop(uid, None)
        if uid not in self._captures:
            self._started.discard(uid)
        self._waiting.discard(uid)
        if uid in self._timers:
            self._timers.pop(uid).cancel()

    # --- Steps ------------------------------------------------------------------------------------------

    def _consider(self, uid: str) -> None:
        """Take the next step of an object, after the one that is being taken."""
        if self._leads and uid in self._documents:
            self._due.add(uid)
            if uid not in self._turns:
                self._turns[uid] = asyncio.get_running_loop().create_task(self._take_turns(uid))

    def _consider_in(self, uid: str, seconds: float) -> None:
        if uid in self._timers:
            self._timers.pop(uid).cancel()
        if uid in self._documents:
            loop = asyncio.get_running_loop()
            self._timers[uid] = loop.call_later(min(seconds, _LONGEST_WAIT_SECONDS), self._consider, uid)

    async def _take_turns(self, uid: str) -> None:
        try:
            while uid in self._due:
                self._due.discard(uid)
                document = self._documents.get(uid)
                if document is not None and self._leads:
                    await self._take_turn(uid, read_connection(document))
        finally:
            del self._turns[uid]

    async def _take_turn(self, uid: str, connection: Connection) -> None:
        """Take one step; every error leads to another one, or to a phase."""
        try:
            await self._take_step(uid, connection)
        except KubernetesApiError as error:
            if error.status == _MISSING:
                self._forget(uid)
            elif error.status != _CONFLICT:  # After a conflict, the newer version arrives.
                _log.warning("%s/%s waits: %s", connection.namespace, connection.name, error)
            self._consider_in(uid, self._again_seconds)
        except KubernetesError as error:
            _log.warning("%s/%s waits: %s", connection.namespace, connection.name, error)
            self._consider_in(uid, self._again_seconds)
        except Exception as error:
            _log.exception("%s/%s: a bug in the operator", connection.namespace, connection.name)
            message = f"a bug in the operator ({type(error).__name__}: {error})"
            await self._report(connection, refused_status(message, self._now()))

    async def _take_step(self, uid: str, connection: Connection) -> None:
        step = next_step(connection, await self._situation(uid, connection), self._policy)
        is_queued = isinstance(step, Queue)
        (self._waiting.add if is_queued else self._waiting.discard)(uid)
        self._metrics.queue.set(len(self._waiting))
        match step:
            case Wait(seconds):
                if seconds is not None:
                    self._consider_in(uid, seconds)
            case Refuse(message):
                await self._patch_status(connection, refused_status(message, self._now()))
                self._metrics.captures.labels("refused").inc()
            case Queue(message):
                if connection.phase is not Phase.PENDING or connection.message != message:
                    await self._patch_status(connection, pending_status(message))
                self._consider_in(uid, _QUEUE_SECONDS)
            case Claim():
                self._claiming.add(uid)
                self._pods[uid] = step.capture.namespace, step.capture.pods
                try:
                    await self._claim(uid, connection)
                finally:
                    self._claiming.discard(uid)
                    if uid not in self._captures:
                        del self._pods[uid]
            case Start():
                self._start(uid, connection, is_recovery=False)
            case Recover():
                self._start(uid, connection, is_recovery=True)
            case Delete():
                await self._api.delete(_path(connection), uid=uid, resource_version=connection.resource_version)

    async def _situation(self, uid: str, connection: Connection) -> Situation:
        allowed_namespaces = await self._allowed_namespaces(connection)
        return Situation(
            operator=self._identity,
            is_leader=self._leads,
            captures=len(self._captures) + len(self._claiming),
            busy_pods=self._busy_pods(connection),
            queued_before=sum(self._age(other) < self._age(uid) for other in self._waiting),
            was_started_here=uid in self._started,
            allowed_namespaces=allowed_namespaces,
            finished_seconds_ago=_seconds_since(connection.completed, self._clock()),
        )

    def _busy_pods(self, connection: Connection) -> frozenset[str]:
        """Return the pods in the namespace of a capture that are captured now, for whichever object."""
        if connection.capture is None:
            return frozenset()
        captured = [pods for namespace, pods in self._pods.values() if namespace == connection.capture.namespace]
        return frozenset(pod for pods in captured for pod in pods)

    def _age(self, uid: str) -> tuple[str, str]:
        """Return a key by which objects are in the order of their creation."""
        return _created(self._documents[uid]) if uid in self._documents else ("", uid)

    async def _allowed_namespaces(self, connection: Connection) -> frozenset[str]:
        """Return the namespaces that may profile the pods of a capture, beside their own."""
        capture = connection.capture
        is_waiting = connection.phase in (None, Phase.PENDING)
        if capture is None or capture.namespace == connection.namespace or not is_waiting:
            return frozenset()
        try:
            namespace = await self._api.metadata(
                object_path("", "v1", "namespaces", capture.namespace), timeout_seconds=5.0
            )
        except KubernetesApiError as error:
            if error.is_transient:
                raise
            return frozenset()
        annotations = namespace.get("annotations")
        allowed = annotations.get(ALLOW_CAPTURES_FROM, "") if isinstance(annotations, dict) else ""
        return frozenset(name.strip() for name in str(allowed).split(","))

    async def _claim(self, uid: str, connection: Connection) -> None:
        """Claim an object in two writes, each refused if the object has changed, and start its capture."""
        annotated = await self._api.patch(
            _path(connection),
            {"metadata": {"resourceVersion": connection.resource_version, "annotations": {CLAIMED_BY: self._identity}}},
        )
        claimed = read_connection(annotated)
        await self._patch_status(claimed, running_status(claimed, self._now()))
        _log.info("%s/%s: claimed", connection.namespace, connection.name)
        self._start(uid, claimed, is_recovery=False)

    # --- Captures ---------------------------------------------------------------------------------------

    def _start(self, uid: str, connection: Connection, *, is_recovery: bool) -> None:
        task = asyncio.get_running_loop().create_task(self._capture(uid, connection, is_recovery=is_recovery))
        self._captures[uid] = task
        if connection.capture is not None:
            self._pods[uid] = connection.capture.namespace, connection.capture.pods
        self._started.add(uid)
        self._metrics.running.set(len(self._captures))

    async def _capture(self, uid: str, connection: Connection, *, is_recovery: bool) -> None:
        started = time.monotonic()
        try:
            status = await self._profile(connection, is_recovery=is_recovery)
            self._metrics.capture_seconds.observe(time.monotonic() - started)
            await self._report(connection, status)
        finally:
            del self._captures[uid]
            del self._pods[uid]
            if uid not in self._documents:
                self._started.discard(uid)
            self._metrics.running.set(len(self._captures))
            self._consider(uid)
            for waiting in self._first_waiting():
                self._consider(waiting)

    def _first_waiting(self) -> list[str]:
        """Return the oldest objects that wait for nothing but a place; more than there are places is useless."""
        found: list[str] = []
        for uid in sorted(self._waiting, key=self._age):
            connection = read_connection(self._documents[uid])
            pods = connection.capture.pods if connection.capture is not None else ()
            if self._busy_pods(connection).isdisjoint(pods):
                found.append(uid)
            if len(found) == self._policy.most_captures:
                break
        return found

    async def _profile(self, connection: Connection, *, is_recovery: bool) -> dict[str, Any]:
        """Return the status of an object after its capture."""
        assert connection.capture is not None
        try:
            take = self._capturer.recover if is_recovery else self._capturer.capture
            results = await take(connection.capture, connection.session)
        except Exception as error:
            _log.exception("%s/%s: a bug in the operator", connection.namespace, connection.name)
            self._metrics.captures.labels("failed").inc()
            return refused_status(f"a bug in the operator ({type(error).__name__}: {error})", self._now())
        self._count(results, is_recovery=is_recovery)
        return finished_status(connection, results, self._now())

    def _count(self, results: Sequence[PodResult], *, is_recovery: bool) -> None:
        failed = sum(bool(result.problem) for result in results)
        self._metrics.captures.labels("recovered" if is_recovery else "failed" if failed else "succeeded").inc()
        self._metrics.pods.labels("failed").inc(failed)
        self._metrics.pods.labels("captured").inc(len(results) - failed)

    async def _report(self, connection: Connection, status: Mapping[str, Any]) -> None:
        """Write the last status of an object, until the API server has it or the object is gone."""
        path, change = f"{_path(connection)}/status", {"metadata": {"uid": connection.uid}, "status": status}
        seconds = self._again_seconds
        while True:
            try:
                await self._api.patch(path, change)
                _log.info("%s/%s: %s, %s", connection.namespace, connection.name, status["phase"], status["message"])
                return
            except KubernetesError as error:
                is_gone = isinstance(error, KubernetesApiError) and error.status in (_MISSING, _CONFLICT)
                _log.warning("%s/%s: %s", connection.namespace, connection.name, error)
                if is_gone:  # With 409, another object has the name now.
                    return
            await asyncio.sleep(seconds)
            seconds = min(2 * seconds, 10 * self._again_seconds)

    async def _patch_status(self, connection: Connection, status: Mapping[str, Any]) -> None:
        """Write a status, if the object has not changed since it was read."""
        change = {"metadata": {"resourceVersion": connection.resource_version}, "status": status}
        await self._api.patch(f"{_path(connection)}/status", change)

    def _now(self) -> str:
        moment = datetime.datetime.fromtimestamp(self._clock(), datetime.timezone.utc)
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _path(connection: Connection) -> str:
    return object_path(CONNECTION_GROUP, CONNECTION_VERSION, CONNECTIONS, connection.name, connection.namespace)


def _uid(document: Mapping[str, Any]) -> str:
    return str(document["metadata"]["uid"])


def _created(document: Mapping[str, Any]) -> tuple[str, str]:
    return str(document["metadata"].get("creationTimestamp", "")), _uid(document)


def _seconds_since(moment: str, now: float) -> float | None:
    try:
        found = datetime.datetime.strptime(moment, "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        return None
    return now - found.timestamp()
