"""The policy, evaluated by an implementation of CEL: its pods are those of the webhook, where both know as much."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from google_cloud_mldiagnostics._kubernetes.names import IDENTIFIER, JOBSET_NAME_LABEL, LABEL, METADATA
from google_cloud_mldiagnostics._kubernetes.patches import patch_of
from google_cloud_mldiagnostics._kubernetes.policy import policy_documents
from google_cloud_mldiagnostics._kubernetes.values import variables_of
from hypothesis import given, settings
from hypothesis import strategies as st

from .pods import NAMES, patched

pytest.importorskip("cel")  # It needs Python 3.11.

from .policies import CLUSTER, NAMESPACE, KnownPod, Policy, known_pods

POLICY = Policy(policy_documents(CLUSTER))


def check(known: KnownPod) -> None:
    """Compare the pods that policy and webhook make; their containers have the same variables in the same order."""
    operations = POLICY.operations(known.pod, known.namespace_labels)
    if not known.is_labelled or known.workload is None:
        assert operations is None
        return
    assert operations is not None
    result = patched(known.pod, operations)
    variables = variables_of(known.workload, cluster=CLUSTER, namespace=NAMESPACE)
    assert result == patched(known.pod, patch_of(known.pod, variables))
    assert POLICY.operations(result, known.namespace_labels) == []


@settings(max_examples=150)
@given(known_pods())
def test_policy_and_webhook_make_the_same_pod(known: KnownPod) -> None:
    check(known)


@pytest.mark.slow
@settings(max_examples=5000)
@given(known_pods())
def test_policy_and_webhook_make_the_same_pod_5000_times(known: KnownPod) -> None:
    check(known)


# --- The documents -------------------------------------------------------------------------------------


def test_the_binding_and_the_parameters_fit_the_policy() -> None:
    policy, binding, parameters = policy_documents(CLUSTER)
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    reference = binding["spec"]["paramRef"]
    assert (parameters["metadata"]["name"], parameters["metadata"]["namespace"]) == (
        reference["name"],
        reference["namespace"],
    )
    assert policy["spec"]["paramKind"] == {key: parameters[key] for key in ("apiVersion", "kind")}
    assert (policy["spec"]["failurePolicy"], reference["parameterNotFoundAction"]) == ("Ignore", "Allow")
    assert parameters["data"] == {"cluster": CLUSTER}


def test_a_user_without_a_cluster_name_has_an_empty_one() -> None:
    assert values(job_pod(), Policy(policy_documents()))[0]["clustername"] == ""


# --- What the policy does not know, as the documentation states it -------------------------------------


def owned(kind: str, version: str, name: str) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}


def pod_of(owner: Mapping[str, Any], **labels: str) -> dict[str, Any]:
    metadata = {"name": "pod", "labels": labels, "ownerReferences": [owner]}
    return {"metadata": metadata, "spec": {"containers": [{"name": "main"}]}}


def job_pod() -> dict[str, Any]:
    return pod_of(owned("Job", "batch/v1", "job"), **{LABEL: "true"})


def values(pod: Mapping[str, Any], policy: Policy = POLICY) -> tuple[dict[str, str], dict[str, str]]:
    """Return both variables that the policy gives to the first container."""
    operations = policy.operations(pod, {})
    assert operations is not None
    env = patched(pod, operations)["spec"]["containers"][0]["env"]
    found = {each["name"]: json.loads(each["value"]) for each in env}
    return found[IDENTIFIER], found[METADATA]


def test_a_label_on_the_workload_alone_is_not_enough() -> None:
    pod = pod_of(owned("Job", "batch/v1", "job"), **{JOBSET_NAME_LABEL: "labelled-jobset"})
    assert POLICY.operations(pod, {}) is None
    assert POLICY.operations(pod, {LABEL: "true"}) is not None


def test_labels_and_creation_time_of_the_workload_are_not_known_but_its_uid_is() -> None:
    assert values(job_pod())[1] == {"associated-labels": f"{LABEL}=true", "parent-workload": "", "uid": "uid-job"}


@pytest.mark.parametrize(
    ("pod", "kind", "name"),
    [
        (pod_of(owned("Job", "batch/v1", "job"), **{LABEL: "true", JOBSET_NAME_LABEL: "of-tj"}), "JobSet", "of-tj"),
        (pod_of(owned("RayCluster", "ray.io/v1", "of-rj"), **{LABEL: "true"}), "RayCluster", "of-rj"),
    ],
    ids=["TrainJob", "RayJob"],
)
def test_of_a_train_job_the_jobset_is_named_and_of_a_ray_job_the_cluster(
    pod: dict[str, Any], kind: str, name: str
) -> None:
    identifier, _ = values(pod)
    assert (identifier["metadata.kind"], identifier["metadata.name"]) == (kind, name)


def test_the_uid_of_a_leader_worker_set_is_not_known() -> None:
    pod = pod_of(owned("StatefulSet", "apps/v1", "lws"), **{LABEL: "true", "leaderworkerset.sigs.k8s.io/name": "lws"})
    identifier, metadata = values(pod)
    assert (identifier["metadata.kind"], identifier["metadata.name"]) == ("LeaderWorkerSet", "lws")
    assert metadata == {"associated-labels": f"{LABEL}=true", "parent-workload": ""}


def test_of_more_than_64_containers_the_first_64_get_the_variables() -> None:
    pod = job_pod()
    pod["spec"]["containers"] = [{"name": f"c-{number}"} for number in range(70)]
    operations = POLICY.operations(pod, {})
    assert operations is not None
    containers = patched(pod, operations)["spec"]["containers"]
    assert [len(each.get("env", ())) for each in containers] == [2] * 64 + [0] * 6


@given(NAMES, st.sampled_from(["Deployment", "StatefulSet", "ReplicaSet", "Job"]))
def test_pods_of_other_kinds_are_left_as_they_are(name: str, kind: str) -> None:
    assert POLICY.operations(pod_of(owned(kind, "apps/v1", name), **{LABEL: "true"}), {}) is None
