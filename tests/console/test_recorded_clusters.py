"""Recorded facts of a cluster, and their union with live ones: an hour-old eviction is still known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from google_cloud_mldiagnostics.kubernetes_facts import ChangedFacts, FactLog
from ml_diagnostics_common.entry import COMPANION_LOG_ID, EntryContext, LogEntry
from ml_diagnostics_common.environment import diagnostics_directory
from ml_diagnostics_common.reader import JournalReader
from ml_diagnostics_console._facts.cluster import ClusterReader
from ml_diagnostics_console._facts.facts import Fact, Unknown
from ml_diagnostics_console._facts.kubernetes_entries import merged, recorded_kubernetes
from ml_diagnostics_console._rules import all_rules
from ml_diagnostics_console._rules.pod_reasons import kubernetes_reason
from ml_diagnostics_console.verdict import Verdict, VerdictClass

from ..loopback.kubernetes import KubernetesServer
from ..testing.kubectl import needs_kubectl
from .made_clusters import cluster, ended, event, job, node, numbered, pod, unscheduled
from .made_facts import after, facts, process
from .test_kubernetes_facts import put


def entries(*documents: dict[str, Any], seconds: float = 60.0) -> list[LogEntry]:
    """Return the entries of objects as they were at some time."""
    known = ChangedFacts()
    context = EntryContext(COMPANION_LOG_ID, "", {}, {"job": "train", "run": "run-1"}, writer="w")
    payloads = [payload for each in numbered(documents) if (payload := known.payload_of(each)) is not None]
    return [LogEntry(after(seconds), 1 + number, payload, context) for number, payload in enumerate(payloads)]


EVICTED = pod(
    0,
    status={
        "phase": "Failed",
        "reason": "Evicted",
        "message": "The node was low on resource: memory.",
        "containerStatuses": [ended("Error", 137)],
    },
)
KILLED = process(0, host="train-0", end="signal: SIGKILL", ended=60)


def test_an_eviction_is_known_after_kubernetes_has_dropped_it() -> None:
    before = recorded_kubernetes(entries(EVICTED))
    assert before is not None
    for live in (cluster(job(), pod(1)), Unknown("kubectl is not installed")):
        found = merged(live, before)
        assert isinstance(found, Fact)
        reason = kubernetes_reason(facts([KILLED], kubernetes=found), KILLED)
        assert reason is not None
        assert "evicted pod ml/train-0-x7k0p" in reason.text


def test_an_event_is_known_after_an_hour() -> None:
    preempted = event(numbered([pod(0)])[0], "Preempted", "Preempted by ml/serve on node n-0", seconds=60)
    before = recorded_kubernetes(entries(pod(0, status={"phase": "Failed"}), preempted))
    assert before is not None
    found = merged(cluster(job(), seconds=7200), before)
    assert isinstance(found, Fact)
    reason = kubernetes_reason(facts([KILLED], kubernetes=found), KILLED)
    assert reason is not None
    assert "Preempted by ml/serve" in reason.text


def test_of_an_object_in_both_the_live_one_counts() -> None:
    before = recorded_kubernetes(entries(unscheduled("0/1 nodes are available: 1 Insufficient cpu."), node("n-0")))
    assert before is not None
    found = merged(cluster(job(), pod(0), is_whole=False), before)
    assert isinstance(found, Fact)
    assert [(each.phase, each.is_gone) for each in found.value.pods] == [("Running", False)]
    assert [each.name for each in found.value.nodes] == ["n-0"]


def test_a_pod_that_is_only_recorded_waits_for_nothing() -> None:
    before = recorded_kubernetes(entries(unscheduled("0/1 nodes are available: 1 Insufficient cpu.")))
    assert before is not None
    found = merged(Unknown("kubectl is not installed"), before)
    assert isinstance(found, Fact)
    assert found.value.pending == ()
    known = facts(kubernetes=replace(found, as_of_ns=after(7200)), now_ns=after(7200))
    verdicts = [verdict for rule in all_rules() if isinstance(verdict := rule.judge(known), Verdict)]
    assert VerdictClass.WAITING not in {verdict.verdict_class for verdict in verdicts}


def test_entries_of_other_kinds_are_skipped() -> None:
    other = replace_payload(entries(EVICTED)[0], {"kind": "job_ended"})
    assert recorded_kubernetes([other]) is None
    assert recorded_kubernetes([replace_payload(other, {"kind": "kubernetes_fact", "object": 3})]) is None


def replace_payload(entry: LogEntry, payload: dict[str, Any]) -> LogEntry:
    return LogEntry(entry.timestamp_ns, entry.sequence, payload, entry.context)


@needs_kubectl
def test_a_watched_job_is_recorded_and_read_again(
    kubernetes_server: KubernetesServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in kubernetes_server.environment().items():
        monkeypatch.setenv(name, value)
    put(kubernetes_server, job(pods=1), EVICTED, event(EVICTED, "Evicted", "low on memory"), node("n-0"))
    put(kubernetes_server, pod(0, job="other"))
    now = [after(0)]
    reader = ClusterReader("", records=True, clock_ns=lambda: now[0])
    asked = {"name": "train", "hosts": (), "run_id": "run-1", "is_in_cluster": True, "entries": ()}
    first = reader.read(**asked)  # type: ignore[arg-type]
    assert isinstance(first, Fact)
    requests = len(kubernetes_server.requests)
    assert reader.read(**asked) == first  # type: ignore[arg-type]
    assert len(kubernetes_server.requests) == requests
    now[0] = after(30)
    put(kubernetes_server, pod(0))
    assert reader.read(**asked) != first  # type: ignore[arg-type]
    kept = [
        entry
        for batch in JournalReader(COMPANION_LOG_ID, root=diagnostics_directory()).read_new()
        for entry in batch
        if entry.context.labels.get("job") == "train"
    ]
    kinds = [entry.payload["object"]["kind"] for entry in kept]
    assert sorted(kinds) == ["Event", "Node", "Pod", "Pod"]
    found = recorded_kubernetes(kept)
    assert found is not None
    assert [each.phase for each in found.pods] == ["Running"]
    assert [each.reason for each in found.events] == ["Evicted"]


@pytest.mark.parametrize(("context", "is_in_cluster"), [("off", True), ("", False)])
def test_no_cluster_is_asked_for_a_job_that_runs_in_none(context: str, is_in_cluster: bool) -> None:
    reader = ClusterReader(context)
    found = reader.read("train", hosts=(), run_id="", is_in_cluster=is_in_cluster, entries=())
    assert isinstance(found, Unknown)
    assert "no cluster was asked" in found.why


def test_what_was_recorded_is_known_without_a_cluster() -> None:
    log = FactLog("train")
    log.add(numbered([EVICTED]))
    log.close()
    read = [
        entry for batch in JournalReader(COMPANION_LOG_ID, root=diagnostics_directory()).read_new() for entry in batch
    ]
    found = ClusterReader("off").read("train", hosts=(), run_id="", is_in_cluster=False, entries=read)
    assert isinstance(found, Fact)
    assert found.value.pods[0].reason == "Evicted"
    assert "nodes" in found.value.unread
