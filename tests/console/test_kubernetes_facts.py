"""Facts of a cluster: parsing, the real kubectl before a loopback cluster, and the reasons if it cannot answer."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_console._facts import programs
from ml_diagnostics_console._facts.facts import Fact, Unknown
from ml_diagnostics_console._facts.kubectl import Kubectl, KubectlError
from ml_diagnostics_console._facts.kubernetes import read_kubernetes
from ml_diagnostics_console._facts.kubernetes_facts import KubernetesFacts
from ml_diagnostics_console._facts.kubernetes_objects import (
    parse_admission,
    parse_event,
    parse_job,
    parse_node,
    parse_pod,
    parse_quota,
    quantity,
)
from ml_diagnostics_console._facts.programs import ProgramError, ask
from ml_diagnostics_testing.faults import Hang, Status

from ..loopback.kubernetes import KubernetesServer
from ..testing.kubectl import needs_kubectl
from ..waiting import is_alive, wait_until
from .made_clusters import (
    TPU,
    admission,
    cluster,
    condition,
    ended,
    event,
    job,
    jobset,
    node,
    numbered,
    pod,
    quota,
    unscheduled,
)
from .made_facts import after

pytestmark = [needs_kubectl]

_PLURALS = {
    "Pod": "pods",
    "Event": "events",
    "Node": "nodes",
    "Job": "jobs",
    "JobSet": "jobsets",
    "Workload": "workloads",
    "ResourceQuota": "resourcequotas",
}


@pytest.fixture
def server(kubernetes_server: KubernetesServer, monkeypatch: pytest.MonkeyPatch) -> KubernetesServer:
    """Have kubectl use a cluster on loopback."""
    for name, value in kubernetes_server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return kubernetes_server


def put(server: KubernetesServer, *documents: dict[str, Any]) -> None:
    for document in documents:
        namespace = document["metadata"].get("namespace", "default")
        server.put(_PLURALS[document["kind"]], json.loads(json.dumps(document)), namespace)


def read(name: str = "train", **more: Any) -> KubernetesFacts:
    found = read_kubernetes(name, context=None, **more)
    assert isinstance(found, Fact), found
    return found.value


# --- Objects --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4", 4.0),
        ("500m", 0.5),
        ("16Gi", 16 * 2.0**30),
        ("2k", 2000.0),
        ("1e3", 1000.0),
        ("1E", 1e18),
        (8, 8.0),
        ("x", None),
        ("1.2.3", None),
        (None, None),
        (True, None),
    ],
)
def test_amounts_of_resources_are_numbers(text: object, expected: float | None) -> None:
    assert quantity(text) == expected


def test_a_pod_is_read_with_its_containers_and_what_it_requests() -> None:
    document = numbered([pod(3, status={"phase": "Failed", "containerStatuses": [ended("OOMKilled", 137)]})])[0]
    found = parse_pod(document)
    assert found is not None
    assert (found.name, found.namespace, found.host, found.index) == ("train-3-x7k3p", "ml", "train-3", 3)
    assert (found.job, found.workload, found.node, found.phase) == ("train", "train", "n-3", "Failed")
    assert found.requests == {TPU: 4.0, "cpu": 2.0}
    assert [(end.reason, end.exit_code) for end in found.containers[0].ends] == [("OOMKilled", 137)]
    assert not found.is_pending


def test_the_host_of_a_pod_with_the_network_of_its_node_is_the_node() -> None:
    found = parse_pod(numbered([pod(0, spec={"hostNetwork": True})])[0])
    assert found is not None
    assert found.host == "n-0"


def test_what_runs_before_the_containers_counts_as_the_scheduler_counts_it() -> None:
    document = numbered([pod(0)])[0]
    document["spec"]["initContainers"] = [{"name": "copy", "resources": {"requests": {"cpu": "8", "memory": "1Gi"}}}]
    found = parse_pod(document)
    assert found is not None
    assert found.requests == {TPU: 4.0, "cpu": 8.0, "memory": 2.0**30}


def test_the_pods_of_a_jobset_are_counted() -> None:
    found = parse_job(numbered([jobset(jobs=3, pods=2)])[0])
    assert found is not None
    assert (found.pods, found.requests[TPU]) == (6, 4.0)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda children: st.one_of(
        st.lists(children, max_size=4), st.dictionaries(st.text(max_size=12), children, max_size=4)
    ),
    max_leaves=20,
)
KEYS = ("metadata", "spec", "status", "involvedObject", "reason", "kind", "count", "source")


@given(st.dictionaries(st.sampled_from(KEYS), JSON), st.sampled_from(KEYS), JSON)
def test_no_answer_of_a_cluster_raises(document: dict[str, Any], key: str, value: Any) -> None:
    whole = numbered([pod(0)])[0]
    for each in (document, {**whole, key: value}, {**whole, "status": {**whole["status"], "conditions": value}}):
        for parse in (parse_pod, parse_event, parse_node, parse_job, parse_admission, parse_quota):
            parse(each)


# --- Pods and processes -----------------------------------------------------------------------------------


def test_a_process_is_in_the_pod_of_its_host_name() -> None:
    facts = cluster(job(), pod(0), pod(1)).value
    found = facts.pod_of("train-1", 1, after(1), None)
    assert found is not None
    assert found.name == "train-1-x7k1p"
    assert facts.pod_of("train-1-x7k1p", None, after(1), None) == found


def test_a_process_with_the_network_of_its_node_is_found_by_its_index() -> None:
    facts = cluster(job(), pod(0), pod(1)).value
    found = facts.pod_of("gke-node", 1, after(1), None)
    assert found is not None
    assert found.index == 1
    two_jobs = cluster(pod(0, job="train-w-0"), pod(0, job="train-w-1")).value
    assert two_jobs.pod_of("gke-node", 0, after(1), None) is None


# --- The real kubectl -------------------------------------------------------------------------------------


def test_a_job_is_found_by_its_name(server: KubernetesServer) -> None:
    pending = unscheduled("0/1 nodes are available: 1 Insufficient cpu.", 1)
    put(server, job(pods=2), pod(0), pending, pod(0, job="other"), event(pending, "FailedScheduling", "x"))
    put(server, event(pod(0, job="other"), "FailedScheduling", "y"), node("n-0"), quota(16, 4))
    facts = read()
    assert (facts.context, facts.namespace, facts.name) == ("test-cluster", "ml", "train")
    assert [found.name for found in facts.pods] == ["train-0-x7k0p", "train-1-x7k1p"]
    assert [found.name for found in facts.pending] == ["train-1-x7k1p"]
    assert [found.reason for found in facts.events] == ["FailedScheduling"]
    assert facts.has_all_nodes
    assert facts.nodes[0].used == {TPU: 8.0, "cpu": 4.0}
    assert facts.expected_pods == 2
    assert [found.name for found in facts.quotas] == ["chips"]
    assert facts.unread == {}


def test_a_jobset_is_found_by_its_name_with_all_its_pods(server: KubernetesServer) -> None:
    labels = {"jobset.sigs.k8s.io/jobset-name": "train"}
    pods = [pod(index, job=f"train-workers-{number}", labels=labels) for number in range(2) for index in range(2)]
    put(server, jobset(), *pods)
    facts = read()
    assert len(facts.pods) == 4
    assert facts.expected_pods == 4
    assert [found.kind for found in facts.jobs] == ["JobSet"]


def test_a_run_is_found_by_the_hosts_of_its_processes(server: KubernetesServer) -> None:
    labels = {"jobset.sigs.k8s.io/jobset-name": "train"}
    pods = [pod(index, job=f"train-workers-{number}", labels=labels) for number in range(2) for index in range(2)]
    put(server, jobset(), *pods)
    facts = read("my-run-20261122", hosts={"train-workers-0-1"})
    assert len(facts.pods) == 4
    assert facts.name == "train"


def test_a_pod_that_no_job_made_is_found_by_its_name(server: KubernetesServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.add_pod("notebook-0")
    facts = read("my-run", hosts={"notebook-0"})
    assert [found.name for found in facts.pods] == ["notebook-0"]


def test_a_job_in_a_queue_is_found_without_pods(server: KubernetesServer) -> None:
    held = admission(condition("QuotaReserved", "False", "Pending", "no quota"))
    put(server, job(spec={"suspend": True}), held, node("n-0"))
    facts = read()
    assert facts.pods == ()
    assert facts.jobs[0].is_suspended
    assert [found.queue for found in facts.admissions] == ["research"]
    assert facts.has_all_nodes


def test_the_nodes_of_pods_that_run_are_read_by_name(server: KubernetesServer) -> None:
    put(server, job(pods=2), pod(0), pod(1), *[node(f"n-{index}") for index in range(5)])
    facts = read()
    assert [found.name for found in facts.nodes] == ["n-0", "n-1"]
    assert not facts.has_all_nodes


def test_only_what_may_be_read_is_read(server: KubernetesServer) -> None:
    server.denied |= {"list nodes", "list events", "list resourcequotas"}
    put(server, job(), unscheduled("x"))
    facts = read()
    assert len(facts.pods) == 1
    assert not facts.has_all_nodes
    assert facts.unread.keys() == {"nodes", "events", "resourcequotas"}
    assert "role `view`" in facts.unread["nodes"]
    assert "`kubectl auth can-i list nodes" in facts.unread["nodes"]


def test_a_cluster_is_only_read(server: KubernetesServer) -> None:
    put(server, job(), unscheduled("x"), node("n-0"))
    read()
    assert {request.method for request in server.requests} == {"GET"}


# --- What it shows if it cannot ----------------------------------------------------------------------------


def why(name: str = "train", *, context: str | None = None, timeout_seconds: float = 20.0) -> str:
    found = read_kubernetes(name, context=context, timeout_seconds=timeout_seconds)
    assert isinstance(found, Unknown), found
    return found.why


@pytest.mark.parametrize("namespace", ["default", "ml"])
def test_a_job_that_is_not_there_names_the_context(server: KubernetesServer, namespace: str) -> None:
    """The Job of another name is in the namespace of the context, or in another."""
    put(server, job("other", namespace=namespace))
    assert why().startswith("context test-cluster has no pod, Job or JobSet of train")


def test_a_missing_context_names_the_command_that_lists_them(server: KubernetesServer) -> None:
    text = why(context="gke_p_r_c")
    assert "gke_p_r_c" in text
    assert "kubectl config get-contexts" in text
    assert "get-credentials" in text


@pytest.mark.parametrize("context", ["", "--kubeconfig=x", "a\0b"])
def test_a_context_cannot_be_an_option(server: KubernetesServer, context: str) -> None:
    assert "is not a valid context" in why(context=context)


def test_no_kubeconfig_names_the_command_that_adds_a_cluster(
    server: KubernetesServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    assert "gcloud container clusters get-credentials" in why()


def test_a_refusal_names_the_role(server: KubernetesServer) -> None:
    server.denied.add("list pods")
    text = why()
    assert "ask for the role `view` there" in text
    assert "`kubectl auth can-i list pods --namespace default --context test-cluster`" in text


def test_a_cluster_that_is_not_reached_is_unknown(server: KubernetesServer, tmp_path: Path) -> None:
    url = server.url
    path = tmp_path / "kubeconfig"
    path.write_text(server.kubeconfig().replace(url, "http://127.0.0.1:9"))
    os.environ["KUBECONFIG"] = str(path)
    text = why()
    assert "refused" in text
    assert "check the connection with `kubectl version --context test-cluster`" in text


def test_a_cluster_that_never_answers_ends_in_time(server: KubernetesServer) -> None:
    server.faults.always(Hang(), on="list")
    put(server, job())
    started = time.monotonic()
    assert "check the connection" in why(timeout_seconds=2.0)
    assert time.monotonic() - started < 15


def test_a_cluster_that_fails_is_unknown(server: KubernetesServer) -> None:
    server.faults.always(Status(500), on="list")
    assert why()


@pytest.fixture
def no_kubectl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_a_missing_kubectl_names_how_to_install_it(no_kubectl: Path) -> None:
    assert "not installed" in why()
    assert "https://kubernetes.io/docs/tasks/tools/" in why()


def program(folder: Path, text: str) -> None:
    path = folder / "kubectl"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize("text", ["echo '['", "echo '[1]'", "echo nonsense", "exit 3", "echo '{\"items\": 3}'"])
def test_an_answer_of_another_form_is_unknown(no_kubectl: Path, text: str) -> None:
    program(no_kubectl, text)
    assert why()


def test_an_answer_without_end_is_cut(no_kubectl: Path) -> None:
    program(
        no_kubectl, "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done"
    )
    with pytest.raises(ProgramError, match="more than 1,000,000 bytes"):
        ask(["kubectl"], timeout_seconds=60, most_bytes=1_000_000)


def test_a_program_that_is_too_slow_ends_with_its_children(
    no_kubectl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(no_kubectl, f"/bin/sleep 60 & echo $! > {tmp_path}/child; wait")

    def child() -> int:
        return wait_until(lambda: int((tmp_path / "child").read_text().strip() or 0))

    # Its time starts when it has started its child.
    monkeypatch.setattr(programs, "time", SimpleNamespace(monotonic=lambda: child() and time.monotonic()))
    with pytest.raises(ProgramError, match="did not answer"):
        ask(["kubectl"], timeout_seconds=1.0, most_bytes=1000)
    wait_until(lambda: not is_alive(child()))


@given(st.text(min_size=1, max_size=40))
def test_no_name_can_be_an_option_or_a_command(server_of_module: KubernetesServer, name: str) -> None:
    found = read_kubernetes(name, context="test-cluster", hosts={name}, timeout_seconds=0.0)
    assert isinstance(found, Unknown)


@pytest.fixture(scope="module")
def server_of_module() -> Iterator[KubernetesServer]:
    with KubernetesServer() as server:
        yield server


def test_an_error_of_kubectl_has_its_reason_and_the_remedy(server: KubernetesServer) -> None:
    kubectl = Kubectl.connect(None, "", time.monotonic() + 20)
    with pytest.raises(KubectlError, match="doesn't have a resource type"):
        kubectl.get("unicorns", "ml")
