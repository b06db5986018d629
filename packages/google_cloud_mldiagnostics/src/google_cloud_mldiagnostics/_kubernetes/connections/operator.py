"""The operator as a process: its election, its watch of all objects, its probes, and its end on SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web
from prometheus_client import start_http_server

from google_cloud_mldiagnostics._kubernetes.api import Connection, KubernetesApi, pod_namespace
from google_cloud_mldiagnostics._kubernetes.connections.capturing import Capturer
from google_cloud_mldiagnostics._kubernetes.connections.controller import Controller
from google_cloud_mldiagnostics._kubernetes.connections.election import Election, LeaseLostError
from google_cloud_mldiagnostics._kubernetes.connections.metrics import OperatorMetrics
from google_cloud_mldiagnostics._kubernetes.connections.recording import FactRecorder
from google_cloud_mldiagnostics._kubernetes.connections.step import Policy
from google_cloud_mldiagnostics._kubernetes.names import CONNECTION_GROUP, CONNECTION_VERSION, CONNECTIONS
from google_cloud_mldiagnostics.exceptions import KubernetesApiError, KubernetesError

__all__ = ["LeaseLostError", "OperatorSettings", "serve"]

_WATCH_SECONDS: Final = 25.0
"""Then all objects are listed again, so that a watch that is silent hides an object for no longer."""
_RETRY_SECONDS: Final = 1.0
_END_SECONDS: Final = 85.0
"""For captures that run at SIGTERM; the pod is given 90 seconds."""
_LEASE_SILENT_SECONDS: Final = 20.0
_LIST_SILENT_SECONDS: Final = 120.0

_log = logging.getLogger("ml_diagnostics.kubernetes")


@dataclass(frozen=True, kw_only=True)
class OperatorSettings:
    """The settings of an operator.

    Attributes:
        namespaces: The namespaces of the objects that it captures; none for all.
        lease_namespace: The namespace of its lease; empty for that of the pod.
        policy: Limits of captures, and the time to keep objects.
        allows_host_network: True if it profiles pods that use the network of their node.
        host: The address for probes and metrics.
        probe_port: The port of `/healthz` and `/readyz`; None for none.
        metrics_port: The port for Prometheus; None for none.
        watch_seconds: After so long all objects are listed again.
        records_facts: True to record what changes of pods and their events: see `recording`.
    """

    namespaces: tuple[str, ...] = ()
    lease_namespace: str = ""
    policy: Policy = field(default_factory=Policy)
    allows_host_network: bool = False
    host: str = "0.0.0.0"
    probe_port: int | None = 8081
    metrics_port: int | None = 8080
    watch_seconds: float = _WATCH_SECONDS
    records_facts: bool = False


def serve(settings: OperatorSettings, connection: Connection) -> None:
    """Capture what objects ask for, until SIGTERM or SIGINT.

    Args:
        settings: The settings.
        connection: The connection to the API server.

    Raises:
        LeaseLostError: Its lease could not be renewed, so that another operator may act now.
        OSError: A port is in use.
    """
    asyncio.run(_serve(settings, connection))


async def _serve(settings: OperatorSettings, connection: Connection) -> None:
    metrics = OperatorMetrics()
    identity = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    async with KubernetesApi(connection) as api:
        election = Election(api, settings.lease_namespace or pod_namespace(), identity)
        capturer = Capturer(api, allows_host_network=settings.allows_host_network)
        controller = Controller(api, capturer, settings.policy, identity, metrics)
        watches = [_Watch(api, name, controller, settings.watch_seconds) for name in settings.namespaces or ("",)]
        async with _probes(settings, election, watches):
            with _metrics_server(settings, metrics):
                recorder = FactRecorder(api, settings.namespaces, metrics) if settings.records_facts else None
                await _run(election, controller, watches, recorder)


async def _run(
    election: Election, controller: Controller, watches: list[_Watch], recorder: FactRecorder | None
) -> None:
    """Act until a signal; then claim nothing more, finish what runs, and give the lease back."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    stopped = asyncio.create_task(stop.wait())
    recording: list[asyncio.Task[None]] = []

    def lead() -> None:
        controller.lead()
        if recorder is not None:
            recording.append(asyncio.create_task(recorder.run()))

    elected = asyncio.create_task(election.run(lead))
    tasks: list[asyncio.Task[Any]] = [elected, *(asyncio.create_task(watch.run()) for watch in watches)]
    try:
        await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            _log.info("Ending: no object is claimed any more")
            for task in tasks[1:]:
                task.cancel()
            ending = asyncio.create_task(controller.end(_END_SECONDS))
            await asyncio.wait([ending, elected], return_when=asyncio.FIRST_COMPLETED)
    finally:
        controller.abandon()
        for task in (stopped, *recording, *tasks):
            task.cancel()
    await asyncio.gather(*recording, return_exceptions=True)
    await election.release()
    for task in tasks:  # What ended by itself has failed.
        with contextlib.suppress(asyncio.CancelledError):
            await task


class _Watch:
    """The objects of one namespace, or of all: listed, and then watched for a while, repeatedly."""

    def __init__(self, api: KubernetesApi, namespace: str, controller: Controller, seconds: float) -> None:
        scope = f"/namespaces/{namespace}" if namespace else ""
        self._path = f"/apis/{CONNECTION_GROUP}/{CONNECTION_VERSION}{scope}/{CONNECTIONS}"
        self._api = api
        self._namespace = namespace
        self._controller = controller
        self._seconds = seconds
        self._listed_at = time.monotonic()
        self._has_listed = False

    @property
    def silent_seconds(self) -> float:
        """The time since objects were last listed."""
        return time.monotonic() - self._listed_at

    @property
    def has_listed(self) -> bool:
        """True once objects were listed."""
        return self._has_listed

    async def run(self) -> None:
        while True:
            try:
                listing = await self._api.listing(self._path)
                self._listed_at, self._has_listed = time.monotonic(), True
                self._controller.listed(self._namespace, listing.objects)
                async for event in self._api.watch(self._path, listing.resource_version, seconds=self._seconds):
                    if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                        self._controller.changed(event["object"], is_deleted=event["type"] == "DELETED")
            except KubernetesApiError as error:
                if error.status == 404:
                    _log.warning("%s is not installed in this cluster: kubectl apply the CRD first", CONNECTIONS)
                else:
                    _log.warning("Objects are listed again: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
            except KubernetesError as error:
                _log.warning("Objects are listed again: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)


@contextlib.asynccontextmanager
async def _probes(settings: OperatorSettings, election: Election, watches: list[_Watch]) -> AsyncIterator[None]:
    if settings.probe_port is None:
        yield
        return

    def is_alive() -> bool:
        silent = max(watch.silent_seconds for watch in watches)
        return election.silent_seconds < _LEASE_SILENT_SECONDS and silent < _LIST_SILENT_SECONDS

    def is_ready() -> bool:
        return is_alive() and all(watch.has_listed for watch in watches)

    app = web.Application()
    app.add_routes([web.get("/healthz", _answer(is_alive)), web.get("/readyz", _answer(is_ready))])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, settings.host, settings.probe_port).start()
        yield
    finally:
        await runner.cleanup()


def _answer(is_well: Callable[[], bool]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        return (
            web.Response(text="ok\n") if is_well() else web.Response(text="no answer of the API server\n", status=503)
        )

    return answer


@contextlib.contextmanager
def _metrics_server(settings: OperatorSettings, metrics: OperatorMetrics) -> Iterator[None]:
    if settings.metrics_port is None:
        yield
        return
    server, thread = start_http_server(settings.metrics_port, settings.host, metrics.registry)
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
