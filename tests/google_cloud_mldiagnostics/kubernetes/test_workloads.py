"""The workload of a pod, and the variables by which a run knows it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google_cloud_mldiagnostics._kubernetes.names import IDENTIFIER, METADATA
from google_cloud_mldiagnostics._kubernetes.values import variables_of
from google_cloud_mldiagnostics._kubernetes.workloads import Link, Workload, controller_of, has_label, workload_of
from hypothesis import given
from hypothesis import strategies as st

CREATED = "2026-11-22T10:53:31Z"
UID = "a9889541-0000-4000-8000-000000000000"


def reference(group_version: str, kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": group_version, "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True, **more}


def chain(*owners: dict[str, Any], above: dict[str, Any] | None = None) -> list[Link]:
    """Return the links from the references of a pod and of each of its owners."""
    links = []
    for index, each in enumerate(owners):
        following = owners[index + 1] if index + 1 < len(owners) else above
        owner = controller_of({"ownerReferences": [each]})
        assert owner is not None
        metadata: dict[str, Any] = {"creationTimestamp": CREATED, "labels": {"of": owner.kind}}
        if following:
            metadata["ownerReferences"] = [following]
        links.append(Link(owner, metadata))
    return links


JOB = reference("batch/v1", "Job", "job")
JOBSET = reference("jobset.x-k8s.io/v1alpha2", "JobSet", "js")
TRAIN_JOB = reference("trainer.kubeflow.org/v1alpha1", "TrainJob", "tj")
CLUSTER = reference("ray.io/v1", "RayCluster", "rc")
RAY_JOB = reference("ray.io/v1", "RayJob", "rj")
SET = reference("apps/v1", "StatefulSet", "set")
LEADER_SET = reference("apps/v1", "StatefulSet", "leaders")
LEADER = reference("v1", "Pod", "leader")
LWS = reference("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "lws")
WORKFLOW = reference("example.org/v1", "Workflow", "flow")


@pytest.mark.parametrize(
    ("owners", "kind", "name"),
    [
        ([JOB], "Job", "job"),
        ([JOB, JOBSET], "JobSet", "js"),
        ([JOB, JOBSET, TRAIN_JOB], "TrainJob", "tj"),
        ([CLUSTER, RAY_JOB], "RayJob", "rj"),
        ([JOB, RAY_JOB], "RayJob", "rj"),
        ([LEADER_SET, LWS], "LeaderWorkerSet", "lws"),
        ([SET, LEADER, LEADER_SET, LWS], "LeaderWorkerSet", "lws"),
    ],
)
def test_the_last_supported_owner_is_the_workload(owners: list[dict[str, Any]], kind: str, name: str) -> None:
    workload = workload_of(chain(*owners))
    assert workload == Workload(name, kind, f"uid-{name}", {"of": kind}, CREATED, "")


def test_an_owner_above_it_that_is_not_supported_is_its_parent() -> None:
    workload = workload_of(chain(JOB, JOBSET, above=WORKFLOW))
    assert workload is not None
    assert (workload.name, workload.parent) == ("js", "flow")


def test_pods_of_other_kinds_have_no_workload() -> None:
    assert workload_of([]) is None
    assert workload_of(chain(SET)) is None
    assert workload_of(chain(reference("example.org/v1", "Job", "foreign"))) is None


@pytest.mark.parametrize(
    "references",
    [
        None,
        "x",
        [None, 3],
        [{"controller": True}],
        [{**JOB, "controller": False}],
        [{**JOB, "uid": ""}],
        [{**JOB, "apiVersion": ""}],
        [{**JOB, "apiVersion": "batch/.."}],
        [{**JOB, "apiVersion": "batch/v1?x"}],
        [{**JOB, "name": ".."}],
        [{**JOB, "name": 4}],
    ],
)
def test_references_that_are_not_valid_are_left_out(references: Any) -> None:
    assert controller_of({"ownerReferences": references}) is None


def test_a_label_asks_for_the_variables_only_with_the_value_true() -> None:
    assert has_label({"labels": {"managed-mldiagnostics-gke": "true"}})
    for labels in (None, {}, {"managed-mldiagnostics-gke": "false"}, {"managed-mldiagnostics-gke": True}, ["x"]):
        assert not has_label({"labels": labels})


# --- Values -------------------------------------------------------------------------------------------


def test_the_variables_are_compact_json_with_the_keys_in_order() -> None:
    labels = {"team": "a", "app": "b", "job-name": "x", "batch.kubernetes.io/controller-uid": "y"}
    workload = Workload("js", "JobSet", UID, labels, CREATED, "")
    assert variables_of(workload, cluster="projects/P/locations/L/clusters/C", namespace="ml") == {
        IDENTIFIER: '{"metadata.name":"js","metadata.kind":"JobSet","clustername":"projects/P/locations/L/clusters/C",'
        '"namespace":"ml"}',
        METADATA: '{"associated-labels":"app=b,team=a","parent-workload":"",'
        f'"creation-timestamp":"{CREATED}","uid":"{UID}"}}',
    }


def test_labels_are_cut_between_pairs_at_4_kib() -> None:
    labels = {f"label-{number:03}": "v" * 50 for number in range(200)}
    workload = Workload("js", "JobSet", UID, labels, CREATED, "")
    text = json.loads(variables_of(workload, cluster="", namespace="ml")[METADATA])["associated-labels"]
    assert 4096 - 61 < len(text) <= 4096
    assert text.split(",") == [f"{key}={labels[key]}" for key in sorted(labels)][: text.count(",") + 1]


_NAME = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,20}[a-z0-9])?", fullmatch=True)
_VALUE = st.from_regex(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,20}[A-Za-z0-9])?)?", fullmatch=True)
_KEY = st.from_regex(r"([a-z0-9.]{1,10}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,20}[A-Za-z0-9])?", fullmatch=True)


@given(_NAME, _NAME, st.dictionaries(_KEY, _VALUE), _NAME)
def test_every_name_that_kubernetes_allows_survives_json_and_the_expansion_of_variables(
    name: str, namespace: str, labels: dict[str, str], parent: str
) -> None:
    workload = Workload(name, "Job", UID, labels, CREATED, parent)
    values = variables_of(workload, cluster="projects/p/locations/l/clusters/c", namespace=namespace)
    for text in values.values():
        assert "$" not in text
        assert "\\" not in text
    assert json.loads(values[IDENTIFIER])["metadata.name"] == name
    assert json.loads(values[METADATA])["parent-workload"] == parent
