"""`simulate` reads manifests: pods, variables, decisions after the ends of pods, and what it ignores."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_diagnostics_console._facts.kubernetes_facts import NodeFacts
from ml_diagnostics_console._simulate.fields import ManifestError
from ml_diagnostics_console._simulate.findings import Call, count_verdict, resource_findings
from ml_diagnostics_console._simulate.ignored import ignored_parts
from ml_diagnostics_console._simulate.launch import Launch, Settings, groups_of, launch_of
from ml_diagnostics_console._simulate.manifest import Workload, of_command, parse
from ml_diagnostics_console._simulate.policies import Action, Progress
from ml_diagnostics_console._simulate.variables import Sources, expanded, pods_of
from ml_diagnostics_console.verdict import Blame, Verdict, VerdictClass

from .simulated_jobs import JOBSET, job

SETTINGS = Settings(
    shell={"PATH": "/bin", "SECRET": "1", "HOME": "/home/user", "AWS_PROFILE": "production", "CONDA_TOKEN": "t"},
    directory="/diagnostics",
    folder="/folder",
    launcher="/launcher",
    created="2026-11-27T18:00:00Z",
    here="/here",
    home="/diagnostics/home",
    user_base="/home/user/.local",
)


def launch(
    workload: Workload, index: int = 0, *, attempt: int = 0, restarts: int = 0, settings: Settings = SETTINGS
) -> Launch:
    pods = pods_of(workload)
    sources = Sources(workload, pods[index], attempt, restarts, settings.given)
    return launch_of(sources, pods, "127.0.0.1:4711", settings)


# --- Pods and their variables -------------------------------------------------------------------------


def test_the_jobset_of_the_documentation_becomes_two_pods() -> None:
    workload = parse(JOBSET)
    pods = pods_of(workload)
    assert (workload.kind, workload.name, workload.most_restarts) == ("JobSet", "single-host-tpu-v3-jobset2", 1)
    assert [pod.name for pod in pods] == [f"single-host-tpu-v3-jobset2-workers-0-{index}" for index in (0, 1)]
    assert pods[0].job.template.chips == 4
    assert pods[0].job.template.is_on_tpu


def test_a_pod_has_the_variables_of_the_manifest_and_of_the_cluster() -> None:
    variables = launch(parse(JOBSET), 1).variables
    assert variables["STEPS"] == "40"
    assert variables["POD_NAME"].startswith("single-host-tpu-v3-jobset2-workers-0-1-")
    assert variables["POD_INDEX"] == variables["JOB_COMPLETION_INDEX"] == variables["TPU_WORKER_ID"] == "1"
    assert variables["BATCH"] == "128"
    assert variables["HOSTNAME"] == "single-host-tpu-v3-jobset2-workers-0-1"
    assert variables["JOBSET_NAME"] == variables["ML_DIAGNOSTICS_JOB"] == "single-host-tpu-v3-jobset2"
    assert variables["TPU_WORKER_HOSTNAMES"] == "127.0.0.1,127.0.0.1"
    assert "single-host-tpu-v3-jobset2" in variables["GKE_DIAGON_IDENTIFIER"]
    assert variables["ML_DIAGNOSTICS_BACKEND"] == "local"


def test_jax_runs_on_the_cpu_with_a_device_for_each_chip() -> None:
    variables = launch(parse(JOBSET)).variables
    assert variables["JAX_PLATFORMS"] == "cpu"
    assert variables["XLA_FLAGS"] == "--xla_force_host_platform_device_count=4"
    fewer = Settings(**{**vars(SETTINGS), "devices": 2})
    assert launch(parse(JOBSET), settings=fewer).variables["XLA_FLAGS"].endswith("=2")


def test_the_coordinator_is_on_this_machine_whatever_the_manifest_has() -> None:
    made = launch(parse(JOBSET))
    assert made.variables["JAX_COORDINATOR_ADDRESS"] == "127.0.0.1:4711"
    assert any("addresses of pods are 127.0.0.1 here" in note for note in made.notes)


def test_a_pod_gets_no_secret_of_the_shell() -> None:
    variables = launch(parse(JOBSET)).variables
    assert "SECRET" not in variables
    assert "HF_TOKEN" not in variables
    assert not {"AWS_PROFILE", "CONDA_TOKEN"} & set(variables)
    assert (variables["PATH"], variables["HOME"]) == ("/bin", "/diagnostics/home")
    assert variables["PYTHONUSERBASE"] == "/home/user/.local"
    assert (variables["NO_GCE_CHECK"], variables["GCE_METADATA_HOST"]) == ("true", "127.0.0.1:9")


def test_credentials_are_passed_if_the_user_wants_it() -> None:
    with_credentials = Settings(**{**vars(SETTINGS), "home": ""})
    variables = launch(parse(JOBSET), settings=with_credentials).variables
    assert (variables["HOME"], variables["AWS_PROFILE"]) == ("/home/user", "production")
    assert "NO_GCE_CHECK" not in variables


CREDENTIALS_IN_THE_MANIFEST = (
    "args: [--checkpoints=gs://prod/run-7/, 's3://data/a,s3://data/b']\n"
    "env: [{name: WANDB_API_KEY, value: abc}, {name: GOOGLE_APPLICATION_CREDENTIALS, value: /key.json}, "
    "{name: AWS_REGION, value: us-east-1}, {name: HOME, value: /root}, {name: OUT, value: gs://prod/out}]"
)


def test_credentials_of_the_manifest_are_left_out_and_named_unless_they_are_given() -> None:
    workload = parse(job("[x]", container=CREDENTIALS_IN_THE_MANIFEST))
    made = launch(workload, settings=Settings(**{**vars(SETTINGS), "given": {"WANDB_API_KEY": "mine"}}))
    assert "GOOGLE_APPLICATION_CREDENTIALS" not in made.variables
    assert made.variables["WANDB_API_KEY"] == "mine"
    assert (made.variables["AWS_REGION"], made.variables["HOME"]) == ("us-east-1", "/diagnostics/home")
    assert any(
        "variable GOOGLE_APPLICATION_CREDENTIALS: a rehearsal gets no credentials" in each for each in made.notes
    )
    kept = launch(workload, settings=Settings(**{**vars(SETTINGS), "home": ""})).variables
    assert kept["GOOGLE_APPLICATION_CREDENTIALS"] == "/key.json"


def test_buckets_in_the_command_and_the_variables_are_found() -> None:
    made = launch(parse(job("[x]", container=CREDENTIALS_IN_THE_MANIFEST)))
    assert made.buckets == ("gs://prod/run-7/", "s3://data/a", "s3://data/b", "gs://prod/out")


def test_a_given_variable_wins() -> None:
    given_more = Settings(**{**vars(SETTINGS), "given": {"STEPS": "7", "HF_TOKEN": "t", "JAX_PLATFORMS": "cuda"}})
    made = launch(parse(JOBSET), settings=given_more)
    assert [made.variables[name] for name in ("STEPS", "HF_TOKEN", "JAX_PLATFORMS")] == ["7", "t", "cuda"]
    assert not any("HF_TOKEN" in note for note in made.notes)


def test_command_and_arguments_are_expanded_as_kubernetes_does() -> None:
    assert launch(parse(JOBSET), 1).command == (
        *("python", "train.py", "--data", "/data/1"),
        *("--not=$(POD_INDEX)", "$(UNKNOWN)"),
    )


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("$(A)-$(B)", "1-$(B)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A $", "$A $"),
        ("$(A", "$(A"),
        ("$()", "$()"),
        ("$$$$", "$$"),
        ("$(A)$(A)", "11"),
    ],
)
def test_references_are_those_of_kubernetes(text: str, result: str) -> None:
    assert expanded(text, {"A": "1"}) == result


def test_a_variable_may_refer_to_earlier_ones_only() -> None:
    lines = "env:\n- {name: A, value: $(B)}\n- {name: B, value: b}\n- {name: C, value: $(A)$(B)}"
    variables = launch(parse(job("[x]", container=lines))).variables
    assert (variables["A"], variables["C"]) == ("$(B)", "$(B)b")


def test_resources_of_the_container_become_variables() -> None:
    lines = (
        "env:\n- {name: CPUS, valueFrom: {resourceFieldRef: {resource: limits.cpu}}}\n"
        "- {name: MIB, valueFrom: {resourceFieldRef: {resource: requests.memory, divisor: 1Mi}}}\n"
        "resources: {limits: {cpu: 1500m, memory: 2Gi}}"
    )
    variables = launch(parse(job("[x]", container=lines))).variables
    assert (variables["CPUS"], variables["MIB"]) == ("2", "2048")


def test_a_restart_changes_name_and_attempt() -> None:
    before, after = launch(parse(JOBSET)), launch(parse(JOBSET), attempt=1, restarts=1)
    assert before.variables["POD_NAME"] != after.variables["POD_NAME"]
    assert (after.variables["JOBSET_RESTART_ATTEMPT"], after.variables["ML_DIAGNOSTICS_ATTEMPT"]) == ("1", "1")


def test_slices_of_a_jobset_have_an_index_of_their_own() -> None:
    workload = parse(JOBSET.replace("replicas: 1", "replicas: 3"))
    variables = launch(workload, 5).variables
    assert (variables["MEGASCALE_SLICE_ID"], variables["TPU_WORKER_ID"]) == ("2", "1")
    assert variables["MEGASCALE_NUM_SLICES"] == "3"


LEADER_AND_WORKERS = """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: js}
spec:
  replicatedJobs:
    - {name: leader, template: {spec: {template: {spec: {containers: [{name: l, command: [x]}]}}}}}
    - name: workers
      replicas: 2
      template: {spec: {parallelism: 2, template: {spec: {containers: [{name: w, command: [x]}]}}}}
"""


def test_pods_of_one_replicated_job_are_one_job_of_jax() -> None:
    groups = groups_of(pods_of(parse(LEADER_AND_WORKERS)))
    assert [[pod.name for pod in group] for group in groups] == [
        ["js-leader-0-0"],
        ["js-workers-0-0", "js-workers-0-1", "js-workers-1-0", "js-workers-1-1"],
    ]
    launched = json.loads(launch(parse(LEADER_AND_WORKERS), 3).variables["ML_DIAGNOSTICS_SIMULATION"])
    assert (launched["index"], launched["count"]) == (2, 4)


def test_paths_of_a_volume_are_those_of_its_folder() -> None:
    with_volume = Settings(**{**vars(SETTINGS), "volumes": {"data": "/my/data"}})
    assert "/my/data/0" in launch(parse(JOBSET), settings=with_volume).command


def test_a_command_becomes_a_pod_for_each_host() -> None:
    workload = of_command(("python", "dir/Train_it.py", "--x"), hosts=3)
    assert [pod.name for pod in pods_of(workload)] == ["train-it-0", "train-it-1", "train-it-2"]
    assert launch(workload, 2).command == ("python", "dir/Train_it.py", "--x")


# --- What is ignored, and what no machine can run -----------------------------------------------------


@pytest.mark.parametrize(
    "start",
    [
        *("image us-docker.pkg.dev", "init container fetch", "sidecar logger", "volume data at /data", "affinity"),
        *("tolerations", "ports", "livenessProbe", "network", "accelerator google.com/tpu"),
    ],
)
def test_each_thing_that_is_ignored_has_one_line(start: str) -> None:
    lines = ignored_parts(parse(JOBSET), {})
    assert len([line for line in lines if line.startswith(start)]) == 1


def test_a_volume_with_a_folder_is_not_ignored() -> None:
    assert not any(line.startswith("volume") for line in ignored_parts(parse(JOBSET), {"data": "/my/data"}))


def test_variables_of_secrets_are_named() -> None:
    assert "variable HF_TOKEN: secret hf is not read; give it with --env HF_TOKEN=VALUE" in launch(parse(JOBSET)).notes


def test_a_network_policy_beside_the_job_is_named() -> None:
    text = JOBSET + "---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: closed}\n"
    assert any(line.startswith("NetworkPolicy closed") for line in ignored_parts(parse(text), {}))


def test_the_smallest_machine_that_fits_is_named() -> None:
    assert resource_findings(parse(JOBSET), None, "f.yaml") == [
        "resources of workers: nothing is limited here; ct5lp-hightpu-4t fits a pod"
    ]


def test_a_request_above_any_machine_can_never_start() -> None:
    (verdict,) = resource_findings(parse(JOBSET.replace("google.com/tpu: 4", "google.com/tpu: 16")), None, "f.yaml")
    assert isinstance(verdict, Verdict)
    assert (verdict.rule, verdict.verdict_class, verdict.blame) == ("B1", VerdictClass.BEFORE_START, Blame.USER)
    assert verdict.sentence == (
        "the pods of workers can never start: none fits a machine type that is known here; each requests "
        "16 google.com/tpu, and the largest machine for it, ct5lp-hightpu-8t, has 8 google.com/tpu"
    )
    assert "google.com/tpu: 8" in verdict.next[0].why


def test_the_requests_of_all_containers_count() -> None:
    lines = "resources: {requests: {memory: 9000Gi}}\n"
    sidecar = "- name: other\n  command: [x]\n  resources: {requests: {memory: 9000Gi}}"
    alone = parse(job("[x]", container=lines))
    assert isinstance(resource_findings(alone, None, "f")[0], str)
    both = parse(job("[x]", container=lines) + "\n".join(f"        {line}" for line in sidecar.splitlines()))
    (verdict,) = resource_findings(both, None, "f")
    assert isinstance(verdict, Verdict)


def test_the_nodes_of_a_cluster_decide_where_they_are_known() -> None:
    labels = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x4",
    }
    has = NodeFacts("tpu-1", {"google.com/tpu": 4.0, "cpu": 100.0}, labels=labels)
    other = NodeFacts("cpu-1", {"cpu": 8.0})
    (line,) = resource_findings(parse(JOBSET), [has, other], "f.yaml")
    assert line == "resources of workers: nothing is limited here; node tpu-1 fits a pod"
    (verdict,) = resource_findings(parse(JOBSET), [other], "f.yaml")
    assert isinstance(verdict, Verdict)
    assert "no machine has the labels of its node selector" in verdict.sentence


# --- Processes that never start ------------------------------------------------------------------------


def call(pod: int, *, count: int, index: int, pid: int = 0) -> Call:
    return Call(pod, pid or 100 + pod, count, index, is_bare=False, replaced="")


def judged(calls: list[Call], *, is_settled: bool = True) -> Verdict | None:
    workload = parse(JOBSET)
    return count_verdict(workload, pods_of(workload), calls, is_settled=is_settled, source="f.yaml")


def test_processes_that_never_start_are_found() -> None:
    verdict = judged([call(0, count=4, index=0), call(1, count=4, index=1)])
    assert verdict is not None
    assert verdict.rule == "B3"
    assert verdict.sentence == (
        "the program expects 4 processes, and the JobSet starts 2 processes (parallelism 2): processes 2, 3 never "
        "start, and the others wait for them"
    )


def test_fewer_processes_than_pods_are_found_at_once() -> None:
    verdict = judged([call(0, count=1, index=0), call(1, count=1, index=0, pid=7)], is_settled=False)
    assert verdict is not None
    assert verdict.rule == "B4"
    verdict = judged([call(0, count=1, index=0), call(1, count=1, index=1)], is_settled=False)
    assert verdict is not None
    assert "the program expects 1 process, and the JobSet starts 2 processes" in verdict.sentence


def test_several_processes_in_a_pod_are_accepted() -> None:
    calls = [call(pod, count=4, index=2 * pod + local, pid=10 * pod + local + 1) for pod in (0, 1) for local in (0, 1)]
    assert judged(calls) is None
    assert judged(calls[:3], is_settled=False) is None


def test_the_right_number_is_accepted() -> None:
    assert judged([call(0, count=2, index=0), call(1, count=2, index=1)]) is None
    assert judged([call(0, count=2, index=0)]) is None


# --- After the end of a pod ---------------------------------------------------------------------------


def after(text: str, *ends: tuple[int, int], jobs: int = 0) -> list[Action]:
    """Return the actions after ends of pods: index and exit code."""
    workload = parse(text)
    progress = Progress(workload)
    return [progress.after(workload.jobs[jobs], index, code).action for index, code in ends]


def test_a_job_succeeds_once_all_indexes_have() -> None:
    assert after(job("[x]", pods=2), (0, 0), (1, 0)) == [Action.NOTHING, Action.SUCCEED]


def test_the_backoff_limit_counts_failures_of_all_pods() -> None:
    text = job("[x]", pods=2).replace("backoffLimit: 0", "backoffLimit: 2")
    assert after(text, (0, 1), (1, 1), (0, 1)) == [Action.RESTART_POD, Action.RESTART_POD, Action.FAIL]


def test_the_default_backoff_limit_is_six() -> None:
    text = job("[x]").replace("  backoffLimit: 0\n", "")
    assert after(text, *[(0, 1)] * 7) == [Action.RESTART_POD] * 6 + [Action.FAIL]


def test_a_pod_failure_policy_decides_by_exit_code() -> None:
    policy = (
        "podFailurePolicy:\n  rules:\n  - {action: Ignore, onExitCodes: {operator: In, values: [76]}}\n"
        "  - {action: FailJob, onExitCodes: {operator: NotIn, values: [1, 2]}}\n"
        "  - {action: Ignore, onPodConditions: [{type: DisruptionTarget}]}"
    )
    text = job("[x]", more=policy).replace("backoffLimit: 0", "backoffLimit: 1")
    assert after(text, (0, 76), (0, 76), (0, 1), (0, 3)) == [
        *(Action.RESTART_POD, Action.RESTART_POD, Action.RESTART_POD),
        Action.FAIL,
    ]


def test_failures_are_counted_by_index_where_the_job_has_it_so() -> None:
    text = job("[x]", pods=2, more="backoffLimitPerIndex: 1\nmaxFailedIndexes: 0").replace("  backoffLimit: 0\n", "")
    assert after(text, (0, 1), (1, 1), (0, 1)) == [Action.RESTART_POD, Action.RESTART_POD, Action.FAIL]


def test_a_job_with_fewer_pods_at_once_starts_the_next() -> None:
    text = job("[x]", pods=3).replace("parallelism: 3", "parallelism: 1")
    assert after(text, (0, 0), (1, 0)) == [Action.START_NEXT, Action.START_NEXT]


def test_a_success_policy_ends_a_job_early() -> None:
    text = job("[x]", pods=3, more="successPolicy:\n  rules:\n  - {succeededIndexes: '0,2', succeededCount: 1}")
    assert after(text, (1, 0)) == [Action.NOTHING]
    assert after(text, (2, 0)) == [Action.SUCCEED]


def test_a_failed_job_restarts_the_whole_jobset_up_to_its_limit() -> None:
    assert after(JOBSET, (0, 1), (1, 1)) == [Action.RESTART_ALL, Action.FAIL]


def test_a_jobset_without_a_failure_policy_fails_with_its_first_job() -> None:
    assert after(JOBSET.replace("maxRestarts: 1", "maxRestarts: 0"), (0, 1)) == [Action.FAIL]


def test_rules_of_a_failure_policy_decide_by_the_reason() -> None:
    rules = "maxRestarts: 0\n    rules:\n    - {action: RestartJobSetAndIgnoreMaxRestarts, onJobFailureReasons: [R]}"
    matching = JOBSET.replace("maxRestarts: 1", rules.replace("[R]", "[BackoffLimitExceeded]"))
    assert after(matching, (0, 1), (0, 1)) == [Action.RESTART_ALL, Action.RESTART_ALL]
    assert after(JOBSET.replace("maxRestarts: 1", rules.replace("[R]", "[PodFailurePolicy]")), (0, 1)) == [Action.FAIL]


def test_a_jobset_may_succeed_with_one_of_its_jobs() -> None:
    text = JOBSET.replace("replicas: 1", "replicas: 2").replace(
        "spec:\n  failure", "spec:\n  successPolicy: CHOICE\n  failure"
    )
    needs_all, needs_any = (text.replace("CHOICE", f"{{operator: {name}}}") for name in ("All", "Any"))
    assert after(needs_all, (0, 0), (1, 0)) == [Action.NOTHING, Action.SUCCEED_JOB]
    assert after(needs_any, (0, 0), (1, 0)) == [Action.NOTHING, Action.SUCCEED]


# --- Manifests that cannot be simulated ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected a Job"),
        ("kind: Deployment\napiVersion: apps/v1", "got Deployment"),
        ("[1, 2]", "expected a mapping"),
        ("a: [", "not valid YAML"),
        ("!!python/object/apply:os.system [ls]", "not valid YAML"),
        (job("[x]") + "---" + job("[x]"), "2 workloads"),
        (job("[x]").replace("completions: 1", "completions: many"), "spec.completions: expected a whole number"),
        (job("[x]").replace("          command: [x]\n", ""), "containers[0].command is missing"),
        (job("[x]", more="podFailurePolicy: {rules: [{action: Retry}]}"), "rules[0].action: expected one of"),
        (JOBSET.replace("- name: workers", "- title: workers"), "replicatedJobs[0].name is missing"),
    ],
)
def test_a_manifest_that_cannot_be_simulated_gets_a_sentence(text: str, reason: str) -> None:
    with pytest.raises(ManifestError, match=None) as raised:
        parse(text)
    assert reason in str(raised.value)


def test_a_text_that_grows_is_refused() -> None:
    aliases = "\n".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}], k{n}: 1}}" for n in range(1, 60))
    merged = "a0: &a0 {" + ", ".join(f"x{n}: 1" for n in range(100)) + "}\n" + aliases
    for text in (merged, "[" * 5000, "a: &a [*a]\n" + "b: *a\n" * 500):
        with pytest.raises(ManifestError):
            parse(text)


def everything(workload: Workload) -> None:
    """Make all that a rehearsal makes before it starts a process."""
    resource_findings(workload, None, "f.yaml")
    ignored_parts(workload, {})
    for index, _ in enumerate(pods_of(workload)[:4]):
        launch(workload, index)


@settings(max_examples=100)
@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda data: data.decode("latin-1")))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        everything(parse(text))
    except ManifestError:
        pass


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        found += paths(item, (*path, key))
    return found


MANIFEST = list(yaml.safe_load_all(JOBSET))[1]
PATHS = paths(MANIFEST)


@settings(max_examples=150)
@given(st.sampled_from(PATHS[1:]), JUNK)
def test_any_value_in_any_field_is_used_or_refused(path: tuple[Any, ...], junk: Any) -> None:
    document = yaml.safe_load(JOBSET.split("---")[1])
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = junk
    try:
        everything(parse(yaml.safe_dump(document)))
    except ManifestError:
        pass
