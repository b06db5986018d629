"""Owners are asked for once, for all pods of a workload; what cannot be read gives no variables to any of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from google_cloud_mldiagnostics._kubernetes.api import object_path
from google_cloud_mldiagnostics._kubernetes.owners import LookupFailedError, Owners
from google_cloud_mldiagnostics._kubernetes.workloads import controller_of
from google_cloud_mldiagnostics.exceptions import KubernetesApiError, KubernetesUnreachableError
from hypothesis import given
from hypothesis import strategies as st

JOB_PATH = "/apis/batch/v1/namespaces/ml/jobs/job"
JOBSET_PATH = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/ml/jobsets/js"


def reference(version: str, kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}


JOB = {"uid": "uid-job", "ownerReferences": [reference("jobset.x-k8s.io/v1alpha2", "JobSet", "js")]}
JOBSET = {"uid": "uid-js"}
POD = {"ownerReferences": [reference("batch/v1", "Job", "job")]}


class Cluster:
    """Answers look-ups from a mapping, or raises the exception that is in it; time is set by the test."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self.objects = dict(objects)
        self.asked: list[str] = []
        self.now = 0.0
        self.owners = Owners(self.metadata, lambda: self.now)

    async def metadata(self, path: str) -> Mapping[str, Any]:
        self.asked.append(path)
        await asyncio.sleep(0)
        found = self.objects.get(path)
        if found is None:
            raise KubernetesApiError(path, 404, "not found")
        if isinstance(found, Exception):
            raise found
        return dict(found)

    async def names(self, pod: Mapping[str, Any] = POD) -> list[str]:
        return [link.owner.name for link in await self.owners.chain_of("ml", pod)]


def test_pods_that_are_created_at_once_ask_once() -> None:
    cluster = Cluster({JOB_PATH: JOB, JOBSET_PATH: JOBSET})

    async def ask() -> list[list[str]]:
        return await asyncio.gather(*(cluster.names() for _ in range(50)))

    assert asyncio.run(ask()) == [["job", "js"]] * 50
    assert cluster.asked == [JOB_PATH, JOBSET_PATH]


def test_an_owner_is_asked_for_again_after_a_minute_and_a_failure_after_a_second() -> None:
    async def ask() -> None:
        cluster = Cluster({JOB_PATH: JOB})
        for seconds, asked in ((0.0, 2), (0.9, 2), (1.1, 3)):  # The Job is kept, the JobSet failed.
            cluster.now = seconds
            with pytest.raises(LookupFailedError, match="404") as caught:
                await cluster.names()
            assert (caught.value.kind, caught.value.reason) == ("JobSet", "missing")
            assert len(cluster.asked) == asked
        cluster.objects[JOBSET_PATH] = JOBSET
        for seconds, asked in ((2.2, 4), (59.0, 4), (61.0, 5), (63.0, 6)):
            cluster.now = seconds
            assert await cluster.names() == ["job", "js"]
            assert len(cluster.asked) == asked, seconds

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (KubernetesApiError(JOB_PATH, 403, "forbidden"), "forbidden"),
        (KubernetesApiError(JOB_PATH, 500, "error"), "unavailable"),
        (KubernetesUnreachableError("no answer"), "unavailable"),
        ({"uid": "another"}, "replaced"),
    ],
)
def test_an_owner_that_cannot_be_read_is_an_error_with_its_reason(answer: Any, reason: str) -> None:
    with pytest.raises(LookupFailedError) as caught:
        asyncio.run(Cluster({JOB_PATH: answer}).names())
    assert (caught.value.kind, caught.value.reason) == ("Job", reason)


def test_a_cycle_of_owners_ends() -> None:
    path = "/api/v1/namespaces/ml/pods/a"
    pod = {"uid": "uid-a", "ownerReferences": [reference("v1", "Pod", "a")]}
    assert asyncio.run(Cluster({path: pod}).names(pod)) == ["a"] * 10


def test_kinds_that_are_not_known_are_not_asked_for() -> None:
    cluster = Cluster({})
    assert asyncio.run(cluster.names({"ownerReferences": [reference("example.org/v1", "Workflow", "w")]})) == []
    assert cluster.asked == []


def test_a_caller_that_gives_up_does_not_end_the_question_of_the_others() -> None:
    cluster = Cluster({JOB_PATH: {"uid": "uid-job"}})

    async def ask() -> list[str]:
        first = asyncio.ensure_future(cluster.names())
        await asyncio.sleep(0)
        second = asyncio.ensure_future(cluster.names())
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert asyncio.run(ask()) == ["job"]
    assert cluster.asked == [JOB_PATH]


def test_a_cluster_that_was_not_reachable_is_asked_again() -> None:
    async def ask() -> None:
        cluster = Cluster({JOB_PATH: KubernetesUnreachableError("no answer"), JOBSET_PATH: JOBSET})
        with pytest.raises(LookupFailedError):
            await cluster.names()
        cluster.objects[JOB_PATH], cluster.now = JOB, 1.1
        assert await cluster.names() == ["job", "js"]

    asyncio.run(ask())


@given(st.lists(st.sampled_from(["Pod", "StatefulSet", "Job", "JobSet"]), min_size=1, max_size=50), st.integers(0, 49))
def test_a_chain_of_any_length_with_a_cycle_or_an_owner_that_was_replaced_ends(kinds: list[str], back_to: int) -> None:
    """The last owner refers back to one before it, so that no chain ends by itself."""
    versions = {"Pod": "v1", "StatefulSet": "apps/v1", "Job": "batch/v1", "JobSet": "jobset.x-k8s.io/v1alpha2"}
    references = [reference(versions[kind], kind, f"o{index}") for index, kind in enumerate(kinds)]
    objects = {}
    for index, each in enumerate(references):
        following = references[index + 1] if index + 1 < len(references) else references[back_to % len(references)]
        owner = controller_of({"ownerReferences": [each]})
        assert owner is not None
        path = object_path(owner.group, owner.version, f"{owner.kind.lower()}s", owner.name, "ml")
        objects[path] = {"uid": owner.uid, "ownerReferences": [following]}
    pod = {"ownerReferences": [references[0]]}
    assert len(asyncio.run(Cluster(objects).names(pod))) == 10
    for metadata in objects.values():
        metadata["uid"] = "of-another-object"
    with pytest.raises(LookupFailedError, match="has another uid"):
        asyncio.run(Cluster(objects).names(pod))
