"""Facts of pods and events: recorded once a change, without secrets, by the operator, and by nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google_cloud_mldiagnostics._kubernetes.names import IDENTIFIER
from google_cloud_mldiagnostics._kubernetes.rights import FACT_RIGHTS
from google_cloud_mldiagnostics.kubernetes_facts import DELETED, FACT, OBJECT, ChangedFacts, FactLog, fact_of
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.entry import COMPANION_LOG_ID, LogEntry
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.reader import JournalReader

from ...kube_api import KubeApi
from ...waiting import wait_until
from .clusters import CONTAINER, create
from .operators import Operator

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_NAMED = {"name": IDENTIFIER, "value": json.dumps({"metadata.name": "train", "metadata.kind": "Job"})}
_MERGE = "application/merge-patch+json"


def recorded() -> list[LogEntry]:
    reader = JournalReader(COMPANION_LOG_ID, root=diagnostics_directory())
    return [entry for batch in reader.read_new() for entry in batch if entry.payload.get("kind") == FACT]


def pod(**status: Any) -> dict[str, Any]:
    variables = [_NAMED, {"name": "API_KEY", "value": "secret-of-the-user"}]
    return {
        "kind": "Pod",
        "metadata": {"name": "train-0", "namespace": "ml", "uid": "u", "labels": {"job-name": "train", "team": "x"}},
        "spec": {
            "containers": [{"name": "main", "image": "i", "env": variables, "args": ["--key=secret-of-the-user"]}]
        },
        "status": {"phase": "Pending", **status},
    }


def event(count: int = 1, **more: Any) -> dict[str, Any]:
    about = {"kind": "Pod", "name": "train-0", "uid": "u"}
    known = {"kind": "Event", "metadata": {"name": "e", "uid": "e"}, "involvedObject": about, "reason": "Evicted"}
    return {**known, "message": "low on memory", "count": count, "lastTimestamp": "2026-11-22T10:00:00Z", **more}


# --- What is recorded -------------------------------------------------------------------------------------


def test_an_object_is_recorded_once_a_change() -> None:
    facts = ChangedFacts()
    first = facts.payload_of(pod())
    assert first is not None
    assert (first["kind"], first["message"]) == (FACT, "pod ml/train-0 is Pending")
    assert facts.payload_of({**pod(), "spec": {**pod()["spec"], "tolerations": []}}) is None
    failed = facts.payload_of(pod(phase="Failed", reason="Evicted"))
    assert failed is not None
    assert failed["message"] == "pod ml/train-0 is Failed (Evicted)"
    deleted = facts.payload_of(pod(phase="Failed", reason="Evicted"), is_deleted=True)
    assert deleted is not None
    assert deleted[DELETED]


def test_an_event_that_repeats_is_recorded_as_its_count_doubles() -> None:
    facts = ChangedFacts()
    times = [count for count in range(1, 101) if facts.payload_of(event(count, lastTimestamp=str(count))) is not None]
    assert times == [1, 2, 4, 8, 16, 32, 64]


def test_no_variable_and_no_argument_of_a_pod_is_recorded() -> None:
    text = json.dumps(fact_of(pod()))
    assert "secret-of-the-user" not in text
    assert "team" not in text


def test_secrets_in_the_last_output_of_a_container_are_not_recorded() -> None:
    ended = {
        "reason": "Error",
        "exitCode": 1,
        "message": "token: Authorization: Bearer abcdefghijklmnopqrstuvwxyz012345",
    }
    found = json.dumps(fact_of(pod(containerStatuses=[{"name": "main", "state": {"terminated": ended}}])))
    assert "abcdefghijklmnopqrstuvwxyz012345" not in found
    assert '"exitCode": 1' in found


def test_what_is_recorded_is_bounded() -> None:
    many = [{"type": "T" * 100, "message": "m" * 100_000} for _ in range(1000)]
    assert len(json.dumps(fact_of(pod(conditions=many, message="x" * 1_000_000)))) < 64_000


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda children: st.one_of(
        st.lists(children, max_size=3), st.dictionaries(st.text(max_size=8), children, max_size=3)
    ),
    max_leaves=12,
)


@given(st.sampled_from(["Pod", "Event", "Node", "Job"]), st.dictionaries(st.sampled_from(["metadata", "status"]), JSON))
def test_no_object_raises(kind: str, more: dict[str, Any]) -> None:
    for document in (pod(), event()):
        ChangedFacts().payload_of({**document, "kind": kind, **more})


def test_a_fact_is_an_entry_of_its_job() -> None:
    log = FactLog("train", "train-run")
    assert log.add([pod(), event(), {"kind": "Job"}]) == 2
    assert log.add([pod()]) == 0
    log.close()
    entries = recorded()
    assert [entry.payload[OBJECT]["kind"] for entry in entries] == ["Pod", "Event"]
    assert {(entry.context.labels["job"], entry.context.labels["run"]) for entry in entries} == {("train", "train-run")}


# --- The operator -----------------------------------------------------------------------------------------


@pytest.fixture
def server(connections: KubeApi, namespace: str) -> KubeApi:
    """Return the API server; the operator may list and watch the pods and events of the namespace."""
    rules = [
        {"apiGroups": [right.group], "resources": [right.resource], "verbs": [right.verb]} for right in FACT_RIGHTS
    ]
    path = f"{_RBAC}/namespaces/{namespace}"
    connections.apply(f"{path}/roles", {"metadata": {"name": "facts"}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "mldiagnostics-connection-operator", "namespace": "gke-mldiagnostics"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "facts"}
    connections.apply(f"{path}/rolebindings", {"metadata": {"name": "facts"}, "roleRef": role, "subjects": [subject]})
    return connections


@pytest.fixture
def operator(server: KubeApi, namespace: str, tmp_path: Path) -> Iterator[Operator]:
    with Operator(server, namespace, tmp_path, records_facts=True) as found:
        found.wait_until_it_leads()
        yield found


def injected(server: KubeApi, namespace: str, name: str, *variables: dict[str, str]) -> dict[str, Any]:
    spec = {"containers": [{**CONTAINER, "env": [*variables]}]}
    return create(server, namespace, "Pod", name, spec=spec, labels={"job-name": "train"})


def facts_of(name: str, kind: str = "Pod") -> list[dict[str, Any]]:
    found = [entry.payload for entry in recorded() if entry.payload[OBJECT]["kind"] == kind]
    return [
        each
        for each in found
        if name in (each[OBJECT]["metadata"]["name"], each[OBJECT].get("involvedObject", {}).get("name"))
    ]


def test_the_operator_records_phases_reasons_and_events_of_injected_pods(
    operator: Operator, server: KubeApi, namespace: str
) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    other = injected(server, namespace, "other")
    created = injected(server, namespace, "train-0", _NAMED)
    wait_until(lambda: facts_of("train-0"))
    status = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    server.call("PATCH", f"{pods}/train-0/status", {"status": status}, kind=_MERGE)
    about = {"kind": "Pod", "name": "train-0", "namespace": namespace, "uid": created["metadata"]["uid"]}
    for subject in (about, {**about, "name": "other", "uid": other["metadata"]["uid"]}):
        happened = {"metadata": {"generateName": "e-"}, "involvedObject": subject, "reason": "Evicted", "message": "x"}
        server.call("POST", f"/api/v1/namespaces/{namespace}/events", happened)
    wait_until(lambda: facts_of("train-0", "Event"))
    server.call("DELETE", f"{pods}/train-0?gracePeriodSeconds=0")
    wait_until(lambda: [fact for fact in facts_of("train-0") if fact.get(DELETED)])
    phases = [fact[OBJECT]["status"]["phase"] for fact in facts_of("train-0")]
    assert phases[0] == "Pending"
    assert phases[-1] == "Failed"
    assert facts_of("train-0")[-1][OBJECT]["status"]["reason"] == "Evicted"
    assert facts_of("other") == []
    assert facts_of("other", "Event") == []
    assert {entry.context.labels["job"] for entry in recorded()} == {"train"}


def test_without_the_rights_the_operator_captures_as_before(
    connections: KubeApi, namespace: str, tmp_path: Path
) -> None:
    with Operator(connections, namespace, tmp_path, records_facts=True) as operator:
        wait_until(lambda: "Facts of pods are read again" in operator.log, running=operator.process)
        assert "forbidden" in operator.log
        assert operator.process is not None
        assert operator.process.poll() is None


def test_by_default_the_operator_records_nothing(
    operator: Operator, server: KubeApi, namespace: str, tmp_path: Path
) -> None:
    other = f"{namespace}-other"
    server.apply("/api/v1/namespaces", {"metadata": {"name": other}})
    injected(server, other, "quiet-0", _NAMED)
    with Operator(server, other, tmp_path) as default:
        default.wait_until_it_leads()
        # An operator that records is as fast: once its later pod is recorded, this one would be, too.
        injected(server, namespace, "train-0", _NAMED)
        wait_until(lambda: facts_of("train-0"))
    assert facts_of("quiet-0") == []
