"""Connections: the object, the next step of an operator, and the status after a capture."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import yaml
from google_cloud_mldiagnostics._kubernetes.connections.resource import (
    Capture,
    Connection,
    Phase,
    custom_resource_definition,
    read_connection,
)
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
    Step,
    Wait,
    next_step,
)
from hypothesis import given
from hypothesis import strategies as st

from ...kube_api import KubeApi
from .pods import JSON

NOW = "2026-11-22T10:53:31Z"
SPEC: dict[str, Any] = {
    "capturePort": 9999,
    "durationSeconds": 2,
    "podName": "w0, w1",
    "podNamespace": "ml",
    "profiler": "google_cloud_mldiagnostics",
    "storageLocation": "gs://bucket/profiles/",
}


def document(*, status: dict[str, Any] | None = None, annotations: dict[str, str] | None = None, **spec: Any) -> Any:
    metadata = {
        "name": "profile",
        "namespace": "ml",
        "uid": "0123456789",
        "resourceVersion": "7",
        "annotations": annotations or {},
    }
    return {"metadata": metadata, "spec": {"triggerCapture": {**SPEC, **spec}}, "status": status or {}}


def connection(**changes: Any) -> Connection:
    return read_connection(document(**changes))


# --- The object ---------------------------------------------------------------------------------------


def test_an_object_is_read() -> None:
    found = connection(status={"phase": "Running", "startTime": NOW}, annotations={"mldiagnostics.dev/claimed-by": "a"})
    assert found.capture == Capture(("w0", "w1"), "ml", 9999, 2, "gs://bucket/profiles")
    assert (found.problem, found.phase, found.claimed_by) == ("", Phase.RUNNING, "a")
    assert found.session == "profile-01234567"


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"podName": " , "}, "podName"),
        ({"podName": ",".join(f"pod-{number}" for number in range(10_000))}, "at most 256 pods, got 10000"),
        ({"capturePort": 0}, "capturePort"),
        ({"capturePort": True}, "capturePort"),
        ({"durationSeconds": 3601}, "durationSeconds"),
        ({"podNamespace": None}, "podNamespace"),
        ({"storageLocation": ""}, "storageLocation"),
        ({"profiler": "other"}, "profiler"),
    ],
)
def test_a_spec_that_is_not_valid_has_a_sentence_and_the_object_fails(spec: dict[str, Any], problem: str) -> None:
    found = connection(**spec)
    assert found.capture is None
    assert problem in found.problem
    assert next_step(found, Situation("a", is_leader=True), Policy()) == Refuse(found.problem)


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), JSON))
def test_any_document_is_a_connection_with_a_capture_or_a_problem(found: dict[str, Any]) -> None:
    read = read_connection(found)
    assert (read.capture is None) == bool(read.problem)


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("60", 60), ("-1", None), ("x", None), ("9" * 99, None)])
def test_a_time_to_live_that_is_not_valid_is_not_used(text: str, seconds: int | None) -> None:
    assert connection(annotations={"mldiagnostics.dev/ttl-seconds-after-finished": text}).ttl_seconds == seconds


# --- The next step ------------------------------------------------------------------------------------

LEADER = Situation("me", is_leader=True)


@pytest.mark.parametrize("phase", [None, *Phase])
def test_only_the_leader_does_anything(phase: Phase | None) -> None:
    found = connection(status={"phase": phase.value} if phase else {})
    assert next_step(found, Situation("me", is_leader=False), Policy()) == Wait(None)


@pytest.mark.parametrize("phase", [None, Phase.PENDING, Phase.RUNNING])
def test_a_capture_that_was_started_here_is_left_alone_in_any_version_of_its_object(
    phase: Phase | None,
) -> None:
    found = connection(status={"phase": phase.value} if phase else {})
    assert next_step(found, LEADER._replace(was_started_here=True), Policy()) == Wait(None)


def test_an_operator_captures_what_it_has_claimed_although_the_answer_to_its_claim_never_arrived() -> None:
    found = connection(status={"phase": "Running"}, annotations={"mldiagnostics.dev/claimed-by": "me"})
    assert isinstance(next_step(found, LEADER, Policy()), Start)


@pytest.mark.parametrize(
    ("phase", "expected"),
    [(None, Claim), ("Pending", Claim), ("Running", Recover), ("Succeeded", Wait), ("Failed", Wait)],
)
def test_a_leader_claims_what_waits_and_recovers_what_another_operator_left(
    phase: str | None, expected: type[Step]
) -> None:
    found = connection(status={"phase": phase} if phase else {})
    assert isinstance(next_step(found, LEADER, Policy()), expected)


def test_every_object_of_a_leader_ends_in_a_phase_or_waits_for_its_turn() -> None:
    """No combination of phase, spec and settings leaves an object that is not final without anything to do."""
    phases = [None, "Pending", "Running", "Strange"]
    specs: list[dict[str, Any]] = [{}, {"podNamespace": "other"}, {"storageLocation": "/tmp/x"}, {"capturePort": 22}]
    for phase, spec, captures in itertools.product(phases, specs, [0, 8, 9]):
        found = connection(status={"phase": phase} if phase else {}, **spec)
        step = next_step(found, LEADER._replace(captures=captures), Policy())
        assert isinstance(step, (Claim, Queue, Recover, Refuse))
        assert isinstance(step, Refuse) == (bool(spec) and phase != "Running")


@pytest.mark.parametrize(
    ("spec", "policy", "allowed", "problem"),
    [
        ({"podNamespace": "other"}, Policy(), frozenset(), "annotate that namespace"),
        ({"podNamespace": "other"}, Policy(), frozenset({"ml"}), ""),
        ({"storageLocation": "/profiles"}, Policy(), frozenset(), "gs://BUCKET/FOLDER"),
        ({"storageLocation": "/profiles"}, Policy(allows_local_storage=True), frozenset(), ""),
        ({"capturePort": 22}, Policy(), frozenset(), "capturePort"),
        ({"capturePort": 1024}, Policy(), frozenset(), ""),
    ],
)
def test_what_an_operator_does_not_allow_is_refused_with_a_sentence(
    spec: dict[str, Any], policy: Policy, allowed: frozenset[str], problem: str
) -> None:
    step = next_step(connection(**spec), LEADER._replace(allowed_namespaces=allowed), policy)
    assert (problem in step.message) if isinstance(step, Refuse) else not problem


def test_more_captures_than_allowed_wait_in_their_order() -> None:
    step = next_step(connection(), LEADER._replace(captures=8, queued_before=3), Policy())
    assert step == Queue("waits for 8 other captures; 3 more are before it")


def test_an_object_for_a_pod_that_another_one_captures_takes_no_slot() -> None:
    step = next_step(connection(), LEADER._replace(busy_pods=frozenset({"w1", "w9"})), Policy())
    assert step == Queue("waits for the capture of w1 by another object")


@pytest.mark.parametrize(
    ("own", "ago", "expected"),
    [(None, 10.0, Wait(90.0)), (None, 100.0, Delete()), ("0", 1e9, Wait(None)), ("50", 60.0, Delete())],
)
def test_a_finished_object_is_deleted_after_its_time_to_live(own: str | None, ago: float, expected: Step) -> None:
    annotations = {"mldiagnostics.dev/ttl-seconds-after-finished": own} if own else {}
    found = connection(status={"phase": "Succeeded"}, annotations=annotations)
    assert next_step(found, LEADER._replace(finished_seconds_ago=ago), Policy(ttl_seconds=100)) == expected


# --- The status ---------------------------------------------------------------------------------------


def test_pods_with_whole_profiles_are_a_success_with_the_folder() -> None:
    status = finished_status(connection(), [PodResult("w0"), PodResult("w1")], NOW)
    assert (status["phase"], status["message"]) == ("Succeeded", "2 of 2 pods profiled")
    folder = "gs://bucket/profiles/plugins/profile/profile-01234567"
    assert status["captureResult"] == {"status": "Succeeded", "outputLocation": folder}
    assert [(each["type"], each["status"]) for each in status["conditions"]] == [
        ("Captured", "True"),
        ("Verified", "True"),
    ]


def test_a_pod_that_fails_does_not_keep_the_others_from_their_profiles() -> None:
    status = finished_status(connection(), [PodResult("w0"), PodResult("missing", "there is no such pod")], NOW)
    assert (status["phase"], status["message"]) == ("Failed", "1 of 2 pods profiled")
    assert status["captureResult"]["errorMessage"] == "missing: there is no such pod"
    assert "outputLocation" in status["captureResult"]


def test_files_that_the_operator_may_not_read_are_unknown_and_the_role_is_named() -> None:
    status = finished_status(connection(), [PodResult("w0", is_verified=False)], NOW)
    assert (status["phase"], status["captureResult"]["status"]) == ("Succeeded", "Unknown")
    assert "roles/storage.objectViewer" in status["message"]


def test_of_many_failures_ten_are_shown_within_4_kib() -> None:
    results = [PodResult(f"pod-{number}", "x" * 100) for number in range(256)]
    text = finished_status(connection(), results, NOW)["captureResult"]["errorMessage"]
    assert len(text.splitlines()) == 11
    assert text.endswith("and 246 more")
    long = finished_status(connection(), [PodResult("a", "ü" * 5000), PodResult("b", "y")], NOW)
    assert len(long["captureResult"]["errorMessage"].encode()) < 4096 + 20


# --- The schema, as a real API server reads it --------------------------------------------------------


def test_the_schema_is_that_of_the_public_operator() -> None:
    definition = custom_resource_definition()
    assert definition["metadata"]["name"] == "mldiagnosticsconnections.diagon.gke.io"
    assert yaml.safe_load(yaml.safe_dump(definition)) == definition
    (version,) = definition["spec"]["versions"]
    capture = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["triggerCapture"]
    assert capture["required"] == sorted(SPEC)


def test_a_real_api_server_accepts_each_status_and_refuses_what_the_schema_forbids(
    kube_api: KubeApi, namespace: str
) -> None:
    kube_api.apply("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", custom_resource_definition())
    path = f"/apis/diagon.gke.io/v1alpha1/namespaces/{namespace}/mldiagnosticsconnections"
    kube_api.wait_until_served(path)
    base = {"apiVersion": "diagon.gke.io/v1alpha1", "kind": "MLDiagnosticsConnection"}
    made = kube_api.call("POST", path, {**base, "metadata": {"name": "a"}, "spec": {"triggerCapture": SPEC}})
    found = read_connection(made)
    assert found.capture is not None
    for status in (
        pending_status("waits for 8 other captures; 0 more are before it"),
        running_status(found, NOW),
        refused_status("expected storageLocation to be gs://BUCKET/FOLDER", NOW),
        finished_status(found, [PodResult("w0"), PodResult("w1", "cannot be reached within 5 s")], NOW),
        finished_status(found, [PodResult("w0", is_verified=False)], NOW),
    ):
        kind = "application/merge-patch+json"
        changed = kube_api.call("PATCH", f"{path}/a/status", {"status": status}, kind=kind)
        assert changed["status"]["phase"] == status["phase"]
    for field, value in (("capturePort", 0), ("durationSeconds", 3601), ("profiler", "other"), ("podName", "")):
        wrong = {**base, "metadata": {"name": "b"}, "spec": {"triggerCapture": {**SPEC, field: value}}}
        assert kube_api.refusal("POST", path, wrong) == 422
