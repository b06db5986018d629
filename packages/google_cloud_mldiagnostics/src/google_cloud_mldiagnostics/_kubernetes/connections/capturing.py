"""Captures: the pods of an object are read, profiled in one session, and their files checked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar, cast
from weakref import WeakValueDictionary

from ml_diagnostics_common.profiler_service import ProfilerService
from ml_diagnostics_common.worker import start

from google_cloud_mldiagnostics._kubernetes.api import KubernetesApi, object_path
from google_cloud_mldiagnostics._kubernetes.connections.pods import Pod, read_pod
from google_cloud_mldiagnostics._kubernetes.connections.profiles import check_profiles, take_profiles
from google_cloud_mldiagnostics._kubernetes.connections.resource import Capture
from google_cloud_mldiagnostics._kubernetes.connections.status import PodResult
from google_cloud_mldiagnostics.exceptions import KubernetesApiError, KubernetesError

__all__ = ["Capturer"]

_BUSY_SECONDS: Final = 30.0
_ASK_SECONDS: Final = 1.0
_PODS_AT_ONCE: Final = 16
_INTERRUPTED: Final = "the operator ended while it ran; create another object to try again"

_Value = TypeVar("_Value")


class Capturer:
    """Profiles the pods of objects. Each pod is in one capture at a time, since JAX takes one profile at a time."""

    def __init__(
        self,
        api: KubernetesApi,
        *,
        allows_host_network: bool = False,
        service: ProfilerService | None = None,
        busy_seconds: float = _BUSY_SECONDS,
        ask_seconds: float = _ASK_SECONDS,
    ) -> None:
        """Ask nothing yet.

        Args:
            api: The API of the cluster.
            allows_host_network: True if a pod may use the network of its node.
            service: Makes the requests to profiler servers.
            busy_seconds: How long to wait for a pod in which another profile runs, or for an API server that fails.
            ask_seconds: How often to ask it.
        """
        self._api = api
        self._allows_host_network = allows_host_network
        self._service = service or ProfilerService()
        self._busy_seconds = busy_seconds
        self._ask_seconds = ask_seconds
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """The locks of pods, by id."""

    async def capture(self, capture: Capture, session: str) -> list[PodResult]:
        """Return the result of each pod, in the order of the capture.

        Args:
            capture: The capture.
            session: The name of its session.
        """
        limit = asyncio.Semaphore(_PODS_AT_ONCE)
        pods = await asyncio.gather(*(self._read(name, capture.namespace, limit) for name in capture.pods))
        askable = [pod for pod in pods if not pod.problem]
        problems = {pod.name: pod.problem for pod in pods if pod.problem}
        async with contextlib.AsyncExitStack() as stack:
            for uid in sorted(pod.uid for pod in askable):  # In one order, so that no two captures wait for each other.
                await stack.enter_async_context(self._lock(uid))
            problems |= await self._profile(capture, session, askable)
        return await self._checked(capture, session, problems)

    async def recover(self, capture: Capture, session: str) -> list[PodResult]:
        """Return the result of each pod of a capture that an operator did not finish, by the files that are there.

        Args:
            capture: The capture.
            session: The name of its session.
        """
        found = await _in_thread(check_profiles, capture, session, capture.pods)
        is_whole = all(result.is_verified and not result.problem for result in found)
        return found if is_whole else [PodResult(result.pod, _INTERRUPTED) for result in found]

    async def _read(self, name: str, namespace: str, limit: asyncio.Semaphore) -> Pod:
        asked_until = asyncio.get_running_loop().time() + self._busy_seconds
        while True:
            try:
                async with limit:
                    document = await self._api.get(object_path("", "v1", "pods", name, namespace))
                return read_pod(name, document, allows_host_network=self._allows_host_network)
            except KubernetesError as error:
                is_missing = isinstance(error, KubernetesApiError) and error.status == 404
                if not error.is_transient or asyncio.get_running_loop().time() >= asked_until:
                    missing = f"there is no pod of this name in the namespace {namespace}"
                    return Pod(name, problem=missing if is_missing else str(error))
            await asyncio.sleep(self._ask_seconds)

    def _lock(self, uid: str) -> asyncio.Lock:
        return self._locks.setdefault(uid, asyncio.Lock())

    async def _profile(self, capture: Capture, session: str, pods: Sequence[Pod]) -> dict[str, str]:
        """Return the problems of pods, empty ones included; ask those again in which another profile runs."""
        problems: dict[str, str] = {}
        waiting = {pod.name: pod.address(capture.port) for pod in pods}
        asked_until = asyncio.get_running_loop().time() + self._busy_seconds
        while waiting:
            found = await _in_thread(take_profiles, capture, session, waiting, self._service)
            problems |= {name: problem for name, (problem, _) in found.items()}
            waiting = {name: address for name, address in waiting.items() if found[name][1]}
            if not waiting or asyncio.get_running_loop().time() >= asked_until:
                break
            await asyncio.sleep(self._ask_seconds)
        return problems

    async def _checked(self, capture: Capture, session: str, problems: Mapping[str, str]) -> list[PodResult]:
        """Return the results: the answer of a pod explains more than a file that is missing because of it."""
        captured = [name for name in capture.pods if not problems[name]]
        checked = await _in_thread(check_profiles, capture, session, captured) if captured else []
        by_name = {result.pod: result for result in checked}
        return [by_name.get(name) or PodResult(name, problems[name]) for name in capture.pods]


async def _in_thread(function: Callable[..., _Value], *arguments: object) -> _Value:
    """Return the result of a function that blocks; its thread does not keep the process alive."""
    loop, future = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

    def resolve(result: _Value | None, error: Exception | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def run() -> None:
        result, problem = None, None
        try:
            result = function(*arguments)
        except Exception as error:
            problem = error
        with contextlib.suppress(RuntimeError):  # The loop has ended.
            loop.call_soon_threadsafe(resolve, result, problem)

    if start(run, "capture") is None:
        raise RuntimeError("there can be no more threads in this process")
    return cast(_Value, await future)
