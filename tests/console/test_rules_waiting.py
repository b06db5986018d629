"""Rules on jobs that wait, and on what Kubernetes did to a process: W1 to W5, B1, B4, GE, and pod_reasons."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.story import Confidence
from ml_diagnostics_console._facts.facts import ConsoleText, Fact, Facts, Unknown
from ml_diagnostics_console._facts.kubernetes_facts import KubernetesFacts
from ml_diagnostics_console._facts.monitored_events import AnalyzerReport, MonitoredEvent
from ml_diagnostics_console._rules import (
    b1_too_large,
    b4_index_twice,
    b7_container_ends,
    ge_google_events,
    w1_no_node,
    w2_quota,
    w3_autoscaler,
    w4_image_or_mount,
    w5_part_of_gang,
)
from ml_diagnostics_console._rules.pod_reasons import (
    kubernetes_reason,
    pod_commands,
    was_container_out_of_memory,
)
from ml_diagnostics_console._rules.rule import Rule
from ml_diagnostics_console._rules.waiting import Obstacles, obstacles_of
from ml_diagnostics_console.verdict import Blame, NotChecked, Part, Verdict, VerdictClass

from .made_clusters import (
    IMAGE,
    TPU,
    admission,
    cluster,
    condition,
    ended,
    event,
    job,
    jobset,
    node,
    pod,
    quota,
    running,
    unscheduled,
    waiting,
)
from .made_facts import after, facts, process, ref

RULES = [
    module.RULE
    for module in (
        w1_no_node,
        w2_quota,
        w3_autoscaler,
        w4_image_or_mount,
        w5_part_of_gang,
        b1_too_large,
        b4_index_twice,
        b7_container_ends,
        ge_google_events,
    )
]
W1, W2, W3, W4, W5, B1, B4, B7, GE = RULES
TAINTED = (
    "0/3 nodes are available: 3 node(s) had untolerated taint {dedicated: infra}. preemption: 0/3 nodes are available."
)
LACKING = (
    f"0/2 nodes are available: 2 Insufficient {TPU}. preemption: 0/2 nodes are available: 2 No preemption victims."
)


def waits(kubernetes: Fact[KubernetesFacts], *attempts: Any, **fields: Any) -> Facts:
    """Return the facts of a job of which, without attempts, no process has recorded anything."""
    return facts(*attempts, kubernetes=kubernetes, now_ns=kubernetes.as_of_ns, **fields)


def verdict_of(rule: Rule, kubernetes: Fact[KubernetesFacts], *attempts: Any) -> Verdict:
    found = rule.judge(waits(kubernetes, *attempts))
    assert isinstance(found, Verdict), found
    assert found.sentence.endswith(".")
    assert found.evidence
    assert all(ref.shows for ref in found.evidence)
    json.dumps(found.to_json())
    return found


def none_of(rule: Rule, kubernetes: Fact[KubernetesFacts], *attempts: Any) -> None:
    assert rule.judge(waits(kubernetes, *attempts)) is None


def commands(verdict: Verdict) -> list[str]:
    return [each.command for each in verdict.next]


HEALTHY = cluster(job(), *[pod(index) for index in range(4)], *[node(f"n-{index}") for index in range(4)])


@pytest.mark.parametrize("rule", RULES[:6], ids=lambda rule: rule.id)
def test_without_a_cluster_a_rule_reports_what_would_provide_it(rule: Rule) -> None:
    found = rule.judge(facts([process(0)]))
    assert isinstance(found, NotChecked)
    assert "--kubernetes" in found.why


@pytest.mark.parametrize("rule", RULES[:8], ids=lambda rule: rule.id)
def test_a_job_with_all_pods_running_waits_for_nothing(rule: Rule) -> None:
    none_of(rule, HEALTHY)
    none_of(rule, HEALTHY, [process(index, host=f"train-{index}", process_count=4) for index in range(4)])


@pytest.mark.parametrize("rule", RULES[:6], ids=lambda rule: rule.id)
def test_only_the_last_attempt_waits(rule: Rule) -> None:
    old = cluster(job(), unscheduled(LACKING), node("n-0"))
    earlier, last = [process(0, end="exit: 1")], [process(0)]
    assert rule.judge(waits(old, earlier, last, judged=0)) is None


# --- The scheduler's message ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            f"0/12 nodes are available: 4 Insufficient {TPU}, 8 node(s) didn't match Pod's node affinity/selector. "
            "preemption: 0/12 nodes are available: 12 Preemption is not helpful for scheduling.",
            Obstacles(12, ((TPU, 4),), 8),
        ),
        (
            "0/3 nodes are available: 1 node(s) had taint {a: b}, that the pod didn't tolerate, 2 Insufficient cpu.",
            Obstacles(3, (("cpu", 2),), taints=(("a: b", 1),)),
        ),
        (
            "0/3 nodes are available: 1 node(s) were unschedulable, 2 Too many pods.",
            Obstacles(3, cordoned=1, others=(("Too many pods", 2),)),
        ),
        (
            "0/2 nodes are available: 2 node(s) had untolerated taint {node.kubernetes.io/unreachable: }.",
            Obstacles(2, taints=(("node.kubernetes.io/unreachable", 2),)),
        ),
        ("no nodes available to schedule pods", None),
        ("", None),
    ],
)
def test_the_scheduler_counts_nodes_by_reason(message: str, expected: Obstacles | None) -> None:
    assert obstacles_of(message) == expected


@given(st.text(max_size=200), st.text(max_size=200))
def test_no_message_of_a_scheduler_raises(before: str, text: str) -> None:
    obstacles_of(before)
    obstacles_of(f"0/3 nodes are available: {text}")


# --- W1 ---------------------------------------------------------------------------------------------------


def test_no_node_fits_though_the_sum_would() -> None:
    other = pod(9, job="other", chips=2)
    other["spec"]["nodeName"] = "n-0"
    another = pod(8, job="other", chips=3)
    another["spec"]["nodeName"] = "n-1"
    found = verdict_of(W1, cluster(job(), unscheduled(LACKING), other, another, node("n-0"), node("n-1")))
    assert (found.verdict_class, found.blame, found.confidence) == (
        VerdictClass.WAITING,
        Blame.SYSTEM,
        Confidence.PROVEN,
    )
    assert f"a pod requests 4 {TPU}" in found.sentence
    assert f"the largest free node, n-0, has 2 {TPU}, all together 3 {TPU}" in found.sentence
    assert found.part is Part.INITIATING
    assert found.cost is not None
    assert found.cost.seconds == 720
    assert commands(found)[0] == "kubectl describe pod train-0-x7k0p --namespace ml --context test-cluster"


def test_nodes_without_the_labels_are_for_the_user_to_change() -> None:
    message = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."
    waits_for = unscheduled(message, spec={"nodeSelector": {"topology": "4x4"}})
    found = verdict_of(W1, cluster(job(), waits_for, node("n-0", labels={"topology": "2x2"})))
    assert found.blame is Blame.USER
    assert "without the labels of spec.nodeSelector (topology=4x4)" in found.sentence
    assert any("--selector topology=4x4" in command for command in commands(found))


def test_a_taint_is_named() -> None:
    found = verdict_of(W1, cluster(job(), unscheduled(TAINTED), node("n-0")))
    assert "3 nodes with a taint that it does not tolerate (dedicated: infra)" in found.sentence


def test_a_pod_is_given_a_minute_to_be_scheduled() -> None:
    none_of(W1, cluster(job(), unscheduled(LACKING), node("n-0"), seconds=59))
    verdict_of(W1, cluster(job(), unscheduled(LACKING), node("n-0"), seconds=60))


def test_nodes_that_are_being_added_are_reported() -> None:
    pending = unscheduled(LACKING)
    adding = event(pending, "TriggeredScaleUp", "pod triggered scale-up", seconds=600, source="cluster-autoscaler")
    found = verdict_of(W1, cluster(job(), pending, adding, node("n-0")))
    assert "the autoscaler adds nodes since" in found.sentence
    late = verdict_of(W1, cluster(job(), pending, adding, node("n-0"), seconds=600 + 901))
    assert "adds nodes" not in late.sentence


def test_without_nodes_only_the_message_counts() -> None:
    found = verdict_of(W1, cluster(job(), unscheduled(LACKING), is_whole=False))
    assert "the largest free node" not in found.sentence
    assert f"2 nodes with too little {TPU} left" in found.sentence


# --- W2 ---------------------------------------------------------------------------------------------------

NO_QUOTA = (
    "couldn't assign flavors to pod set main: insufficient unused quota for google.com/tpu in flavor v5e, "
    "16 more needed"
)


def test_kueue_holds_a_job_without_pods() -> None:
    held = admission(condition("QuotaReserved", "False", "Pending", NO_QUOTA))
    found = verdict_of(W2, cluster(job(spec={"suspend": True}), held))
    assert found.blame is Blame.SYSTEM
    assert "Kueue holds train in queue research" in found.sentence
    assert "16 more needed" in found.sentence
    assert commands(found) == [
        "kubectl describe workloads.kueue.x-k8s.io job-train-3fe2a --namespace ml --context test-cluster",
        "kubectl describe localqueues.kueue.x-k8s.io research --namespace ml --context test-cluster",
    ]


def test_a_queue_that_does_not_exist_is_for_the_user_to_change() -> None:
    held = admission(condition("QuotaReserved", "False", "Inadmissible", "LocalQueue research doesn't exist"))
    assert verdict_of(W2, cluster(job(), held)).blame is Blame.USER


def test_an_inactive_workload_is_named() -> None:
    held = admission(condition("QuotaReserved", "False", "Pending", "x"), active=False)
    assert "spec.active of the Workload is false" in verdict_of(W2, cluster(job(), held)).sentence


def test_a_check_of_the_admission_may_hold_a_job_that_has_its_quota() -> None:
    reserved = condition("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue c")
    admitted = condition("Admitted", "False", "NoChecks", "waiting for the ProvisioningRequest")
    found = verdict_of(W2, cluster(job(), admission(reserved, admitted)))
    assert "waiting for the ProvisioningRequest" in found.sentence


def test_an_admitted_job_is_not_held() -> None:
    admitted = [condition("QuotaReserved", "True"), condition("Admitted", "True")]
    none_of(W2, cluster(job(), admission(*admitted)))
    none_of(W2, cluster(job(), admission(condition("QuotaReserved", "False", "Pending", NO_QUOTA)), seconds=59))


def exceeded(requested: int, used: int, limit: int) -> str:
    key = f"requests.{TPU}"
    return (
        f'Error creating: pods "train-1-x" is forbidden: exceeded quota: chips, requested: {key}={requested}, '
        f"used: {key}={used}, limited: {key}={limit}"
    )


def test_a_quota_of_the_namespace_holds_pods_back() -> None:
    refused = event(job(), "FailedCreate", exceeded(4, 14, 16), seconds=700, first=60)
    found = verdict_of(W2, cluster(job(), pod(0), refused, quota(16, 14)))
    assert f"a pod requests 4 {TPU}, and 14 {TPU} of 16 {TPU} are in use" in found.sentence
    assert found.blame is Blame.SYSTEM
    assert [ref.id for ref in found.evidence] == ["event/uid-train.failedcreate", "resourcequota/uid-chips"]
    assert commands(found)[0] == "kubectl describe resourcequota chips --namespace ml --context test-cluster"


def test_a_request_above_the_whole_quota_is_for_the_user_to_change() -> None:
    refused = event(job(), "FailedCreate", exceeded(32, 0, 16), seconds=700)
    assert verdict_of(W2, cluster(job(), refused, quota(16, 0))).blame is Blame.USER


def test_a_refusal_of_long_ago_holds_nothing() -> None:
    refused = event(job(), "FailedCreate", exceeded(4, 14, 16), seconds=100)
    none_of(W2, cluster(job(), pod(0), refused, seconds=1001))
    recent = event(job(), "FailedCreate", exceeded(4, 14, 16), seconds=700)
    none_of(W2, cluster(job(), *[pod(index) for index in range(4)], recent))


# --- W3 ---------------------------------------------------------------------------------------------------


def scaling(reason: str, message: str, seconds: float = 600.0) -> tuple[dict[str, Any], dict[str, Any]]:
    pending = unscheduled(LACKING)
    return pending, event(pending, reason, message, seconds=seconds, source="cluster-autoscaler")


def test_the_autoscaler_has_no_capacity() -> None:
    text = "Node scale up in zones us-central1-a associated with this pod failed: GCE out of resources."
    objects = scaling("FailedScaleUp", text)
    found = verdict_of(W3, cluster(job(), *objects, node("n-0")))
    assert (found.blame, found.part) == (Blame.SYSTEM, Part.INITIATING)
    assert "The autoscaler has no capacity" in found.sentence
    assert "GCE out of resources" in found.sentence
    assert verdict_of(W1, cluster(job(), *objects, node("n-0"))).part is Part.CONTRIBUTING


def test_no_node_pool_fits() -> None:
    objects = scaling("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 node(s) didn't match Pod's node affinity")
    found = verdict_of(W3, cluster(job(), *objects, node("n-0")))
    assert found.blame is Blame.USER
    assert "has no node pool that would fit" in found.sentence


def test_the_largest_size_of_a_node_pool_is_no_capacity() -> None:
    objects = scaling("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 max node group size reached")
    assert verdict_of(W3, cluster(job(), *objects, node("n-0"))).blame is Blame.SYSTEM


def test_an_autoscaler_that_adds_nodes_now_has_capacity() -> None:
    pending, refused = scaling("NotTriggerScaleUp", "x", 300)
    adding = event(pending, "TriggeredScaleUp", "pod triggered scale-up", seconds=700)
    none_of(W3, cluster(job(), pending, refused, adding, node("n-0")))
    none_of(W3, cluster(job(), pending, node("n-0")))


# --- W4 ---------------------------------------------------------------------------------------------------


def test_an_image_that_does_not_exist_is_named_with_its_field() -> None:
    pending = waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"')
    failed = event(
        pending, "Failed", f'Failed to pull image "{IMAGE}": manifest for {IMAGE} not found', source="kubelet"
    )
    found = verdict_of(W4, cluster(job(), pending, failed))
    assert found.blame is Blame.USER
    assert found.sentence.startswith(
        f"The image cannot be pulled since it does not exist: spec.containers[0].image {IMAGE} is wrong"
    )
    assert commands(found)[0] == f"gcloud artifacts docker images describe {IMAGE}"


def test_an_image_that_may_not_be_pulled_has_another_reason() -> None:
    pending = waiting("ErrImagePull", "denied: Permission artifactregistry.repositories.downloadArtifacts denied")
    assert "since it may not be pulled" in verdict_of(W4, cluster(job(), pending)).sentence


def test_a_registry_that_does_not_answer_is_of_the_system() -> None:
    pending = waiting("ErrImagePull", "dial tcp 10.0.0.1:443: i/o timeout")
    found = verdict_of(W4, cluster(job(), pending))
    assert found.blame is Blame.SYSTEM
    assert "is wrong" not in found.sentence


def test_a_config_map_that_does_not_exist_is_named_with_its_field() -> None:
    variables = [
        {"name": "A", "value": "1"},
        {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
    ]
    pending = waiting("CreateContainerConfigError", 'configmap "c" not found')
    pending["spec"]["containers"][0]["env"] = variables
    found = verdict_of(W4, cluster(job(), pending))
    assert "Configmap c does not exist: spec.containers[0].env[1].valueFrom.configMapKeyRef is wrong" in found.sentence
    assert commands(found)[0] == "kubectl get configmap c --namespace ml --context test-cluster"


def test_a_key_that_does_not_exist_is_named() -> None:
    pending = waiting("CreateContainerConfigError", "couldn't find key token in Secret ml/wandb")
    pending["spec"]["containers"][0]["envFrom"] = [{"secretRef": {"name": "wandb"}}]
    found = verdict_of(W4, cluster(job(), pending))
    assert (
        "Key token of secret wandb does not exist: spec.containers[0].envFrom[0].secretRef is wrong" in found.sentence
    )


def test_a_command_that_does_not_exist_is_named() -> None:
    text = 'failed to create containerd task: exec: "pyhton": executable file not found in $PATH: unknown'
    found = verdict_of(W4, cluster(job(), waiting("RunContainerError", text)))
    assert "The command of container main cannot start: spec.containers[0].command is wrong" in found.sentence
    assert "pyhton" in found.sentence


def mounting(message: str, count: int = 3) -> list[dict[str, Any]]:
    pending = waiting("ContainerCreating", "")
    claim = {"name": "ckpt", "persistentVolumeClaim": {"claimName": "checkpoints"}}
    pending["spec"]["volumes"] = [
        {"name": "tmp", "emptyDir": {}},
        claim,
        {"name": "data", "secret": {"secretName": "s"}},
    ]
    return [job(), pending, event(pending, "FailedMount", message, count=count, source="kubelet")]


def test_a_secret_that_is_mounted_and_does_not_exist_is_named_with_its_field() -> None:
    found = verdict_of(W4, cluster(*mounting('MountVolume.SetUp failed for volume "data" : secret "s" not found')))
    assert found.blame is Blame.USER
    assert "Secret s does not exist: spec.volumes[2].secret.secretName is wrong" in found.sentence


def test_a_volume_that_cannot_be_mounted_is_named_with_its_field() -> None:
    text = 'MountVolume.MountDevice failed for volume "data" : rpc error: DeadlineExceeded'
    found = verdict_of(W4, cluster(*mounting(text)))
    assert found.blame is Blame.SYSTEM
    assert "A volume cannot be mounted (spec.volumes[2])" in found.sentence
    none_of(W4, cluster(*mounting(text, count=1)))


def test_a_claim_that_does_not_exist_is_named_with_its_field() -> None:
    pending = unscheduled('0/3 nodes are available: persistentvolumeclaim "checkpoints" not found.')
    pending["spec"]["volumes"] = [{"name": "ckpt", "persistentVolumeClaim": {"claimName": "checkpoints"}}]
    found = verdict_of(W4, cluster(job(), pending, node("n-0")))
    assert "spec.volumes[0].persistentVolumeClaim.claimName is wrong" in found.sentence
    none_of(W1, cluster(job(), pending, node("n-0")))


def test_a_container_is_given_a_minute_to_be_created() -> None:
    none_of(W4, cluster(job(), waiting("ErrImagePull", "x"), seconds=59))
    none_of(W4, cluster(job(), waiting("ContainerCreating", "")))


# --- W5 ---------------------------------------------------------------------------------------------------


def test_a_part_of_the_job_never_started() -> None:
    objects = [job(), pod(0), pod(1), pod(2), unscheduled(LACKING, 3), node("n-0")]
    found = verdict_of(W5, cluster(*objects))
    assert found.sentence.startswith("1 of 4 pods of train never started, and the 3 others wait for them since")
    assert "train-3-x7k3p is Pending (Unschedulable)" in found.sentence
    assert found.process_indices == (3,)
    assert found.part is Part.CONTRIBUTING
    assert verdict_of(W1, cluster(*objects)).part is Part.INITIATING


def test_pods_that_were_never_created_are_missing() -> None:
    found = verdict_of(W5, cluster(jobset(), pod(0), pod(1)))
    assert found.sentence.startswith("2 of 4 pods of train never started")
    assert "2 of its pods were never created" in found.sentence
    assert found.part is Part.INITIATING
    assert commands(found) == ["kubectl describe jobsets.jobset.x-k8s.io train --namespace ml --context test-cluster"]


def test_pods_that_have_ended_are_not_missing() -> None:
    gone = pod(3, status={"phase": "Failed", "containerStatuses": [ended("Error", 1)]})
    none_of(W5, cluster(job(), pod(0), pod(1), pod(2), gone))


def test_a_job_of_which_nothing_runs_is_not_a_part() -> None:
    none_of(W5, cluster(job(), *[unscheduled(LACKING, index) for index in range(4)], node("n-0")))
    none_of(W5, cluster(job(), pod(0), pod(1), pod(2), unscheduled(LACKING, 3), seconds=59))


# --- B1 ---------------------------------------------------------------------------------------------------


def test_a_request_above_any_node_names_the_largest_that_fits() -> None:
    pending = unscheduled(LACKING, chips=8)
    found = verdict_of(B1, cluster(job(), pending, node("n-0", 2), node("n-1", 4)))
    assert found.verdict_class is VerdictClass.BEFORE_START
    assert (found.blame, found.confidence) == (Blame.USER, Confidence.LIKELY)
    assert f"it requests 8 {TPU}, and the largest node that it may use, n-1, has 4 {TPU}" in found.sentence
    assert found.next[0].why == f"request at most 4 {TPU} a pod: the largest that fits"
    assert verdict_of(W1, cluster(job(), pending, node("n-1", 4))).part is Part.CONTRIBUTING


def test_an_autoscaler_that_refuses_proves_it() -> None:
    pending = unscheduled(LACKING, chips=8)
    refused = event(pending, "NotTriggerScaleUp", f"pod didn't trigger scale-up: 1 Insufficient {TPU}")
    found = verdict_of(B1, cluster(job(), pending, refused, node("n-0")))
    assert found.confidence is Confidence.PROVEN
    assert verdict_of(W3, cluster(job(), pending, refused, node("n-0"))).part is Part.CONTRIBUTING


def test_a_resource_that_no_node_has_is_named() -> None:
    pending = unscheduled(f"0/1 nodes are available: 1 Insufficient {TPU}.")
    found = verdict_of(B1, cluster(job(), pending, node("n-0", 0)))
    assert f"no node that it may use has any {TPU}" in found.sentence


def test_a_request_that_is_just_met_can_start() -> None:
    none_of(B1, cluster(job(), unscheduled(LACKING, chips=4), node("n-0", 4)))


def test_only_nodes_with_the_labels_of_the_pod_count() -> None:
    pending = unscheduled(LACKING, spec={"nodeSelector": {"pool": "a"}})
    nodes = [node("n-0", 2, labels={"pool": "a"}), node("n-1", 8, labels={"pool": "b"})]
    assert "n-0" in verdict_of(B1, cluster(job(), pending, *nodes)).sentence


def test_a_job_that_is_held_is_measured_by_its_template() -> None:
    found = verdict_of(B1, cluster(job(chips=8, spec={"suspend": True}), node("n-0", 4)))
    assert found.sentence.startswith("The pods of train can never start")


def test_without_rights_on_nodes_the_rule_is_not_checked() -> None:
    denied = {"nodes": "nodes is forbidden: ask for the role `view` there"}
    found = B1.judge(waits(cluster(job(), unscheduled(LACKING), is_whole=False, unread=denied)))
    assert isinstance(found, NotChecked)
    assert "forbidden" in found.why


# --- B4 ---------------------------------------------------------------------------------------------------


def two(**second: Any) -> list[Any]:
    known = {"host": "host-9", "process_count": 2, "started_ns": after(10), **second}
    return [process(0, process_count=2), process(1, process_count=2), process(1, **known)]


def test_one_index_on_two_hosts_is_found_without_a_cluster() -> None:
    found = B4.judge(facts(two()))
    assert isinstance(found, Verdict)
    assert found.sentence == "Index 1 is claimed by host-1 and by host-9 since 04:40:10 UTC."
    assert (found.blame, found.hosts, found.process_indices) == (Blame.USER, ("host-1", "host-9"), (1,))
    assert [command.partition(" -- ")[0] for command in commands(found)] == [
        "mldiagnostics ssh run-1 host-1",
        "mldiagnostics ssh run-1 host-9",
    ]


def test_the_environment_of_pods_is_read_by_kubectl() -> None:
    processes = [process(1, host="train-1", process_count=2), process(1, host="train-9", process_count=2)]
    found = B4.judge(waits(cluster(job(), pod(1), pod(9)), processes))
    assert isinstance(found, Verdict)
    assert commands(found)[0].startswith("kubectl exec train-1-x7k1p --namespace ml --context test-cluster -- env")


def test_a_pod_that_replaces_another_has_its_index() -> None:
    assert B4.judge(facts(two(started_ns=after(54)))) is not None
    assert B4.judge(facts(two(started_ns=after(55)))) is None


def test_an_index_before_jax_has_started_is_not_known() -> None:
    early = [process(0, host=f"host-{index}", process_count=1) for index in range(3)]
    assert B4.judge(facts(early)) is None
    assert B4.judge(facts()) is None


def initialising(index: int, host: str, **fields: Any) -> Any:
    """Return a process that waits in jax.distributed.initialize: JAX has not started, and knows of no other."""
    known = {"coordinator": "10.0.0.1:8476", "expected_processes": 3, "pid": 100, **fields}
    return process(index, host=host, process_count=0, **known)


def test_an_index_that_was_given_to_two_processes_is_found_while_they_wait_for_the_one_that_is_missing() -> None:
    apart = B4.judge(facts([initialising(1, "host-1"), initialising(2, "host-2"), initialising(2, "host-0")]))
    assert isinstance(apart, Verdict)
    assert (apart.hosts, apart.process_indices) == (("host-2", "host-0"), (2,))
    together = B4.judge(
        facts([initialising(1, "vm", pid=101), initialising(2, "vm", pid=102), initialising(2, "vm", pid=103)])
    )
    assert isinstance(together, Verdict)
    assert together.sentence == "Index 2 is claimed by two processes of vm since 04:40:00 UTC: pid 102 and pid 103."
    assert len(commands(together)) == 1


def test_programs_of_one_machine_without_a_coordinator_claim_no_index() -> None:
    alone = [initialising(0, "vm", pid=pid, coordinator="", step=5) for pid in (101, 102)]
    assert B4.judge(facts(alone)) is None


def displaced(**fields: Any) -> Any:
    text = "absl::Status: ALREADY_EXISTS: Aborted connect attempt as there is a request from a newer incarnation.\n"
    console = (ConsoleText(after(20), "err", "end", text, ref("console")),)
    return initialising(2, "host-2", end="signal: SIGABRT", ended=20, console=console, **fields)


def test_a_process_that_jax_ended_since_another_one_has_its_index_is_named() -> None:
    found = B4.judge(facts([initialising(0, "host-0"), initialising(1, "host-1"), displaced()]))
    assert isinstance(found, Verdict)
    assert (found.hosts, found.process_indices, found.confidence) == (("host-2",), (2,), Confidence.LIKELY)
    assert found.sentence.startswith("JAX ended host-2 at 04:40:20 UTC: another process had connected")


def test_a_process_that_takes_the_place_of_one_that_was_killed_is_healthy() -> None:
    assert B4.judge(facts([initialising(0, "host-0", step=3), initialising(1, "host-1", step=3), displaced()])) is None


def test_hosts_that_train_alone_are_found_by_the_processes_that_should_be() -> None:
    alone = [process(0, host=f"host-{index}", process_count=1, expected_processes=3, step=5) for index in range(3)]
    found = B4.judge(facts(alone))
    assert isinstance(found, Verdict)
    assert "each of the 3 hosts trains alone" in found.sentence
    assert found.confidence is Confidence.LIKELY


# --- B7 ---------------------------------------------------------------------------------------------------


def crashing(code: int = 1, reason: str = "Error", restarts: int = 7, index: int = 0) -> dict[str, Any]:
    waits_for = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}}
    last = ended(reason, code)["state"]
    status = {**running(), "state": waits_for, "lastState": last, "restartCount": restarts}
    return pod(index, status={"phase": "Running", "containerStatuses": [status]})


def test_a_container_that_ends_before_anything_is_recorded_is_found() -> None:
    found = verdict_of(B7, cluster(job(pods=2), crashing(127), crashing(127, index=1)))
    assert found.sentence == (
        "Container main of pod train-0-x7k0p, as in 1 other pod, ended at 04:41:00 UTC with exit code 127, since its "
        "command does not exist in the image, and was restarted 7 times; nothing was recorded before."
    )
    assert (found.verdict_class, found.blame) == (VerdictClass.BEFORE_START, Blame.USER)
    assert commands(found)[0] == (
        "kubectl logs train-0-x7k0p --container main --previous --namespace ml --context test-cluster"
    )


def test_why_a_container_ended_is_said_as_far_as_kubernetes_knows() -> None:
    assert "since it was out of memory" in verdict_of(B7, cluster(crashing(137, "OOMKilled"))).sentence
    evicted = pod(0, status={"phase": "Failed", "reason": "Evicted", "containerStatuses": [ended("Error", 137)]})
    found = verdict_of(B7, cluster(evicted))
    assert "(Evicted)" in found.sentence
    assert found.blame is Blame.SYSTEM
    assert "--previous" not in commands(found)[0]


def test_containers_that_have_done_their_work_or_recorded_more_are_no_failure() -> None:
    none_of(B7, cluster(pod(0, status={"phase": "Succeeded", "containerStatuses": [ended("Completed", 0)]})))
    none_of(B7, cluster(crashing()), [process(0, host="train-0", end="exit: 1")])
    again = {**running(), "restartCount": 1, "lastState": ended("Error", 1)["state"]}
    none_of(B7, cluster(pod(0, status={"phase": "Running", "containerStatuses": [again]})))
    assert isinstance(B7.judge(facts()), NotChecked)


# --- What Kubernetes did to a process ----------------------------------------------------------------------


def reason_of(*objects: dict[str, Any], **fields: Any) -> Any:
    killed = process(0, host="train-0", end="signal: SIGKILL", ended=60, **fields)
    kubernetes = cluster(job(), *objects, is_whole=False)
    found = kubernetes_reason(waits(kubernetes, [killed, process(1, host="train-1")]), killed)
    if found is not None:
        assert found.ref.shows == found.text
        assert not found.text.endswith(".")
    return found


def failed(reason: str = "", message: str = "", *conditions: dict[str, Any], **more: Any) -> dict[str, Any]:
    status = {"phase": "Failed", "containerStatuses": [ended("Error", 137)], "conditions": [*conditions]}
    known = {"reason": reason, "message": message}
    return pod(0, status={**status, **{key: text for key, text in known.items() if text}}, **more)


def test_an_eviction_by_the_kubelet_is_named() -> None:
    found = reason_of(failed("Evicted", "The node was low on resource: memory."))
    assert found.text == (
        "the kubelet of node n-0 evicted pod ml/train-0-x7k0p at 04:41:00 UTC: The node was low on resource: memory"
    )
    assert (found.blame, found.ref.id) == (Blame.SYSTEM, "pod/uid-train-0-x7k0p")


def target(reason: str) -> dict[str, Any]:
    return condition("DisruptionTarget", "True", reason, "x", 58)


def test_a_preemption_by_the_scheduler_is_named() -> None:
    found = reason_of(failed("", "", target("PreemptionByScheduler")))
    assert "the scheduler preempted pod ml/train-0-x7k0p" in found.text
    assert found.blame is Blame.PREEMPTION


@pytest.mark.parametrize("label", ["cloud.google.com/gke-spot", "cloud.google.com/gke-preemptible"])
def test_a_spot_node_that_is_taken_back_is_a_preemption(label: str) -> None:
    shut = failed("Terminated", "Pod was terminated in response to imminent node shutdown.")
    assert reason_of(shut, node("n-0", labels={label: "true"})).blame is Blame.PREEMPTION
    assert "its spot node n-0 shut down" in reason_of(shut, node("n-0", labels={label: "true"})).text
    assert reason_of(shut, node("n-0")).blame is Blame.SYSTEM


def test_maintenance_of_a_node_is_a_preemption() -> None:
    labels = {"cloud.google.com/active-node-maintenance": "ONGOING"}
    found = reason_of(failed("", "", target("EvictionByEvictionAPI")), node("n-0", labels=labels))
    assert found.blame is Blame.PREEMPTION
    assert "node n-0 is in maintenance" in found.text


def test_a_node_that_was_lost_is_named() -> None:
    found = reason_of(failed("", "", target("DeletionByTaintManager")), node("n-0"))
    assert "was deleted since its node n-0 was lost" in found.text
    silent = [condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.", 65)]
    found = reason_of(pod(0), node("n-0", conditions=silent))
    assert "node n-0 of pod ml/train-0-x7k0p stopped being ready" in found.text
    assert found.ref.id == "node/n-0"
    late = [condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.", 661)]
    assert reason_of(pod(0), node("n-0", conditions=late)) is None


def test_a_node_that_is_gone_is_only_a_reason_if_its_container_was_lost_with_it() -> None:
    lost = pod(0, status={"phase": "Failed", "containerStatuses": [ended("ContainerStatusUnknown", 137)]})
    assert "it does not exist any more" in reason_of(lost).text
    assert reason_of(failed()) is None


def test_a_container_that_was_out_of_memory_is_named() -> None:
    status = {"phase": "Failed", "containerStatuses": [ended("OOMKilled", 137)]}
    found = reason_of(pod(0, status=status))
    assert "the kernel killed container main of pod ml/train-0-x7k0p since it was out of memory" in found.text
    killed = process(0, host="train-0", end="signal: SIGKILL", ended=60)
    assert was_container_out_of_memory(waits(cluster(pod(0, status=status)), [killed]), killed) == found
    assert was_container_out_of_memory(waits(cluster(failed("Evicted"))), killed) is None


def test_events_name_the_reason_of_a_pod_that_shows_nothing() -> None:
    evicted = event(pod(0), "Preempted", "Preempted by prod/serve on node n-0", seconds=61)
    assert "Preempted by prod/serve on node n-0" in reason_of(failed(), evicted).text
    assert reason_of(failed(), event(pod(0), "Preempted", "x", seconds=700)) is None
    stopping = event(pod(0), "Killing", "Stopping container main", seconds=60, source="kubelet")
    assert reason_of(failed(), stopping) is None
    probe = "Container main failed liveness probe, will be restarted"
    found = reason_of(failed(), event(pod(0), "Killing", probe, seconds=60, source="kubelet"))
    assert found.blame is Blame.USER


def test_a_deletion_before_the_end_is_a_reason_and_one_after_it_is_not() -> None:
    before = pod(0, metadata={"deletionTimestamp": "2025-11-21T04:40:30Z"})
    assert "was deleted by a client of the API" in reason_of(before).text
    later = pod(0, metadata={"deletionTimestamp": "2025-11-21T04:41:20Z"})
    assert reason_of(later) is None


def test_a_deadline_of_the_job_is_the_users() -> None:
    over = job(status={"conditions": [condition("Failed", "True", "DeadlineExceeded", "Job was active too long", 60)]})
    kubernetes = cluster(over, failed())
    killed = process(0, host="train-0", end="signal: SIGKILL", ended=60)
    found = kubernetes_reason(waits(kubernetes, [killed]), killed)
    assert found is not None
    assert found.blame is Blame.USER


def test_an_eviction_by_kueue_is_a_preemption() -> None:
    evicted = admission(condition("Evicted", "True", "Preempted", "Preempted to accommodate a workload", 58))
    found = reason_of(failed(), evicted)
    assert found.blame is Blame.PREEMPTION
    assert "Kueue evicted the workload" in found.text


def test_a_process_without_a_pod_has_no_reason_and_no_command() -> None:
    killed = process(0, host="laptop", end="signal: SIGKILL")
    assert kubernetes_reason(facts([killed]), killed) is None
    assert kubernetes_reason(waits(cluster(failed("Evicted"), pod(0, job="two")), [killed]), killed) is None
    assert pod_commands(waits(HEALTHY, [killed]), process(9, host="laptop")) == ()


def test_the_pod_of_a_process_is_that_of_its_time() -> None:
    first, second = failed("Evicted", "x"), pod(0, name="train-0-other")
    second["metadata"]["creationTimestamp"] = "2025-11-21T04:43:20Z"
    killed = process(0, host="train-0", end="signal: SIGKILL", ended=60)
    again = process(0, host="train-0", started_ns=after(210))
    kubernetes = cluster(job(), first, second)
    assert "evicted" in str(kubernetes_reason(waits(kubernetes, [killed]), killed))
    assert kubernetes_reason(waits(kubernetes, [again]), again) is None
    assert pod_commands(waits(kubernetes, [again]), again)[0].command.startswith("kubectl describe pod train-0-other")


# --- Google's analyzers -------------------------------------------------------------------------------------


def test_a_finding_of_googles_analyzers_is_quoted_as_theirs() -> None:
    report = AnalyzerReport("ICI Link Analyzer", True, "ICI link issues detected in i-1.", ("Contact Google.",))
    found = GE.judge(facts([process(0)], monitored_events=Fact((seen(reports=(report,)),))))
    assert isinstance(found, Verdict)
    assert found.sentence == (
        "Google's analyzer reports since 04:40:30 UTC: ICI Link Analyzer: ICI link issues detected in i-1."
    )
    assert (found.part, found.confidence, found.verdict_class) == (
        Part.CONTRIBUTING,
        Confidence.LIKELY,
        VerdictClass.SLOW,
    )
    assert found.next[0].why == "Contact Google."


def seen(**fields: Any) -> MonitoredEvent:
    known = {"id": "abc", "name": "degraded", "type": "PERFORMANCE_DEGRADATION", "since_ns": after(30)}
    return MonitoredEvent(**{**known, "has_insight": True, **fields})


def test_only_findings_of_the_attempt_are_quoted() -> None:
    for event_of_run in (seen(has_insight=False), seen(since_ns=after(-600), ended_ns=after(-60))):
        assert GE.judge(facts([process(0)], monitored_events=Fact((event_of_run,)))) is None
    assert isinstance(GE.judge(facts([process(0)])), NotChecked)


# --- All -----------------------------------------------------------------------------------------------------

OBJECTS = st.lists(
    st.one_of(
        st.builds(lambda index: pod(index), st.integers(0, 5)),
        st.builds(unscheduled, st.sampled_from([LACKING, TAINTED, "", "x"]), st.integers(0, 5)),
        st.builds(
            waiting,
            st.sampled_from(["ErrImagePull", "CreateContainerConfigError", "RunContainerError", "", "x"]),
            st.one_of(st.text(max_size=40), st.just('secret "s" not found')),
            st.integers(0, 5),
        ),
        st.builds(node, st.sampled_from(["n-0", "n-1", "n-2"]), st.integers(0, 8)),
        st.builds(job, st.just("train"), st.integers(0, 5)),
        st.builds(
            lambda reason, message, index: event(pod(index), reason, message),
            st.sampled_from(["FailedMount", "NotTriggerScaleUp", "FailedCreate", "Preempted", "Killing"]),
            st.one_of(st.text(max_size=40), st.just(exceeded(1, 1, 1))),
            st.integers(0, 5),
        ),
        st.builds(
            lambda status, reason: admission(condition("QuotaReserved", status, reason)),
            st.sampled_from(["True", "False", ""]),
            st.text(max_size=9),
        ),
    ),
    max_size=12,
)


@settings(max_examples=200)
@given(OBJECTS, st.floats(0, 2000), st.lists(st.sampled_from(["", "signal: SIGKILL", "exit: 1"]), max_size=4))
def test_no_rule_raises_whatever_a_cluster_has(objects: list[dict[str, Any]], seconds: float, ends: list[str]) -> None:
    unique = list({(each["kind"], each["metadata"]["name"]): each for each in objects}.values())
    kubernetes = cluster(*unique, seconds=seconds)
    processes = [process(index, host=f"train-{index}", end=end) for index, end in enumerate(ends)]
    known = waits(kubernetes, *([processes] if processes else []))
    for rule in RULES:
        found = rule.judge(known)
        if isinstance(found, Verdict):
            assert found.sentence
            assert found.rule == rule.id
            json.dumps(found.to_json())
    for each in known.processes:
        kubernetes_reason(known, each)
    assert running()["ready"]


def test_a_cluster_that_cannot_be_asked_is_no_reason() -> None:
    killed = process(0, end="signal: SIGKILL")
    known = facts([killed], kubernetes=Unknown("kubectl is not installed"))
    assert kubernetes_reason(known, killed) is None
    assert pod_commands(known, killed) == ()
