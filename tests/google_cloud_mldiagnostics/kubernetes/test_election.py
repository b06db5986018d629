"""The election by a Lease of a real API server, with a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from google_cloud_mldiagnostics._kubernetes.api import Connection, KubernetesApi
from google_cloud_mldiagnostics._kubernetes.connections.election import Election, LeaseLostError

from ...kube_api import KubeApi

_RENEW_SECONDS = 0.05


class Clock:
    """Seconds that only a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def with_api(server: KubeApi, use: Callable[[KubernetesApi], Awaitable[None]]) -> None:
    async def run() -> None:
        async with KubernetesApi(Connection(server.url, server.context(), server.token_file())) as api:
            await use(api)

    asyncio.run(run())


def candidate(api: KubernetesApi, namespace: str, name: str, clock: Clock) -> tuple[Election, asyncio.Task[None]]:
    election = Election(api, namespace, name, renew_seconds=_RENEW_SECONDS, clock=clock)
    return election, asyncio.create_task(election.run(lambda: None))


async def until(condition: Callable[[], bool]) -> None:
    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(wait(), 20)


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.timing
def test_a_lease_that_is_renewed_is_not_taken_whatever_the_clock_of_the_other_shows(
    kube_api: KubeApi, namespace: str
) -> None:
    async def use(api: KubernetesApi) -> None:
        first, renewing = candidate(api, namespace, "a", Clock())
        await until(lambda: first.is_leader)
        clock = Clock()
        second, waiting = candidate(api, namespace, "b", clock)
        for _ in range(20):
            clock.seconds += 4.0  # Each read returns another version, so the time since the last one does not count.
            await asyncio.sleep(2 * _RENEW_SECONDS)
        assert first.is_leader
        assert not second.is_leader
        await ended(renewing)
        await asyncio.sleep(4 * _RENEW_SECONDS)
        assert not second.is_leader
        clock.seconds += 15.0
        await until(lambda: second.is_leader)
        await ended(waiting)

    with_api(kube_api, use)


def test_a_lease_that_is_given_back_is_taken_at_once_and_its_former_holder_is_notified(
    kube_api: KubeApi, namespace: str
) -> None:
    async def use(api: KubernetesApi) -> None:
        first, renewing = candidate(api, namespace, "a", Clock())
        await until(lambda: first.is_leader)
        second, waiting = candidate(api, namespace, "b", Clock())
        await ended(renewing)
        await first.release()
        await until(lambda: second.is_leader)
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/mldiagnostics-connection-operator"
        await api.patch(path, {"spec": {"holderIdentity": "c"}})
        with pytest.raises(LeaseLostError, match="another operator has the lease"):
            await waiting
        assert not second.is_leader

    with_api(kube_api, use)
