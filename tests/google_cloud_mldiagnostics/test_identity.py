"""A run has one id on all hosts and in each attempt of a known workload; the id is valid for any name."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping

import pytest
from google_cloud_mldiagnostics._identity import identify, process_position, with_instance, workload_of
from google_cloud_mldiagnostics.mlrun_types import Orchestrator
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.texts import readable_id
from ml_diagnostics_testing.faults import Hang
from ml_diagnostics_testing.metadata import MetadataServer

ID = re.compile(r"[a-z][a-z0-9-]{0,62}")
NOON = 1_763_726_400.0  # 2025-11-21T12:00:00Z

GKE = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "GKE_DIAGON_IDENTIFIER": json.dumps(
        {
            "metadata.name": "s5",
            "metadata.kind": "JobSet",
            "clustername": "projects/p/locations/us-central1/clusters/c1",
            "namespace": "ml",
        }
    ),
    "GKE_DIAGON_METADATA": json.dumps(
        {
            "associated-labels": "team=vision,tier=1",
            "parent-workload": "queue/q1",
            "creation-timestamp": "2026-03-10T01:02:03Z",
        }
    ),
}


def run_id(name: str, environ: Mapping[str, str], occasion: int = 1, clock: Callable[[], float] = lambda: NOON) -> str:
    workload = workload_of(environ=environ)
    return identify(
        name, workload, occasion=occasion, clock=clock, random_bytes=lambda n: b"\x12\x34" * (n // 2)
    ).run_id


@given(st.lists(st.text(max_size=80), min_size=1, max_size=6))
def test_every_id_is_one_that_the_control_plane_takes(parts: list[str]) -> None:
    assert ID.fullmatch(readable_id(*parts))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("My_Run 1", "my-run-1"),
        ("Müller/é", "muller-e"),
        ("实验", r"run-[0-9a-f]{8}"),
        ("exp-実験", r"exp-[0-9a-f]{8}"),
        ("эксперимент 7", r"run-7-[0-9a-f]{8}"),
        ("123", "run-123"),
        ("***", r"run-[0-9a-f]{8}"),
    ],
)
def test_a_name_in_any_script_makes_an_id_that_people_recognise(name: str, expected: str) -> None:
    assert re.fullmatch(expected, readable_id(name))


@given(st.text("ab一二 ", max_size=6), st.text("ab一二 ", max_size=6))
def test_names_in_another_script_stay_apart(one: str, other: str) -> None:
    if one != other and not (one.isascii() and other.isascii()):
        assert readable_id(one) != readable_id(other)


NAME_AND_WORKLOAD = [
    ("train", "w-2"),
    ("train-w", "2"),
    ("train", "w 2"),
    ("train", "W2"),
    ("train", "w2"),
    ("Train", "w2"),
    ("train ", "w2"),
    ("lr=0.1", "w"),
    ("lr 0 1", "w"),
    ("lr-0", "1-w"),
    ("7", "w"),
    ("run", "7-w"),
    ("run-7", "run-7"),
    ("run 7", "run 7"),
    ("實驗", "w"),
]


def test_different_workloads_have_different_runs() -> None:
    """An id names a run permanently: a run with the id of another would be its next attempt."""
    runs = [
        (name, workload, occasion, identify(name, workload_of(workload, {}), occasion=occasion).run_id)
        for name, workload in NAME_AND_WORKLOAD
        for occasion in (1, 2)
    ]
    assert len({run_id for *_, run_id in runs}) == len(runs), sorted(run_id for *_, run_id in runs)
    assert ("train", "w2", 2, "train-w2-2") in runs
    assert ("run-7", "run-7", 1, "run-7") in runs


def test_processes_agree_on_a_run_by_its_full_name() -> None:
    keys: list[str] = []

    def agree_on(key: str, proposal: str) -> str:
        keys.append(key)
        return proposal

    for name in ("lr=0.1", "lr 0 1", "LR 0 1", "lr-0-1"):
        identify(name, workload_of(environ={}), agree_on=agree_on)
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("form", ["creation-timestamp", "timestamp"])
@pytest.mark.parametrize(
    "written",
    ["2026-03-10T01:02:03Z", "2026-03-10T01:02:03+00:00", "2026-03-10 01:02:03.123456Z", "2026-03-10T01:02:03"],
)
def test_on_gke_when_the_workload_was_made_is_understood_however_it_is_written(form: str, written: str) -> None:
    environ = {**GKE, "GKE_DIAGON_METADATA": json.dumps({form: written})}
    assert run_id("train", environ) == run_id("train", GKE)


def test_on_gke_a_workload_that_was_made_again_under_its_name_is_another_run_even_without_its_time() -> None:
    first, second = (
        {**GKE, "GKE_DIAGON_METADATA": json.dumps({"associated-labels": "", "parent-workload": "", "uid": uid})}
        for uid in ("a9889541-0000-4000-8000-000000000000", "b1234567-0000-4000-8000-000000000000")
    )
    assert run_id("train", first) != run_id("train", second)
    assert "a9889541" in run_id("train", first)
    timed = {"creation-timestamp": "2026-03-10T01:02:03Z", "uid": "a9889541-0000-4000-8000-000000000000"}
    assert run_id("train", {**GKE, "GKE_DIAGON_METADATA": json.dumps(timed)}) == run_id("train", GKE)


def test_a_metadata_server_that_is_silent_changes_no_id(
    metadata_server: MetadataServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in metadata_server.environment().items():
        monkeypatch.setenv(name, text)
    answered = run_id("train", {**os.environ, **GKE})
    metadata_server.faults.always(Hang())
    assert run_id("train", {**os.environ, **GKE}) == answered
    assert workload_of(environ={**os.environ, **GKE}).orchestrator is Orchestrator.GKE
    assert metadata_server.requests == []


def test_a_long_id_is_cut_and_differs_from_others_with_the_same_start() -> None:
    long = "experiment-" * 20
    one, other = readable_id(long + "a", "20260310-010203"), readable_id(long + "b", "20260310-010203")
    assert one != other
    assert len(one) == 63
    assert one.startswith("experiment-experiment")
    assert one.endswith("-20260310-010203")


def test_without_a_workload_an_id_is_the_name_the_time_in_utc_and_a_random_part() -> None:
    assert run_id("train", {}) == "train-20251121-120000-1234"


def test_two_runs_of_one_name_in_one_second_are_two() -> None:
    workload = workload_of(environ={})
    runs = {identify("train", workload, clock=lambda: NOON).run_id for _ in range(3)}
    assert len(runs) > 1  # Of the random parts, which have 16 bits, two may be equal.


def test_on_gke_the_id_names_the_workload_and_is_the_same_on_all_hosts_and_in_each_attempt() -> None:
    first, later = (run_id("train", GKE, clock=lambda now=now: now) for now in (NOON, NOON + 3600))  # type: ignore[misc]
    assert first == later
    assert re.fullmatch("train-c1-ml-jobset-s5-20260310-010203-[0-9a-f]{8}", first)


def test_on_gke_the_control_plane_receives_the_workload() -> None:
    workload = workload_of(environ=GKE)
    assert workload.orchestrator is Orchestrator.GKE
    assert workload.wire == "GKE"
    assert workload.details == {
        "gke": {
            "id": "s5",
            "kind": "JobSet",
            "cluster": "projects/p/locations/us-central1/clusters/c1",
            "namespace": "ml",
            "parentWorkload": "queue/q1",
            "labels": {"team": "vision", "tier": "1"},
        }
    }


def test_runs_of_one_workload_with_different_names_are_different() -> None:
    assert run_id("train", GKE) != run_id("eval", GKE)


def test_the_second_run_of_a_name_in_a_process_is_another_one() -> None:
    assert run_id("train", {"SLURM_JOB_ID": "1"}, occasion=2) == "train-slurm-1-2"
    assert run_id("train", GKE, occasion=2).startswith("train-c1-ml-jobset-s5-20260310-010203-2-")


def test_a_pod_without_the_webhook_has_a_run_and_a_warning_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    workload = workload_of(environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert (workload.orchestrator, workload.id_parts) == (Orchestrator.GKE, ())
    assert "managed-mldiagnostics-gke=true" in caplog.text


@pytest.mark.parametrize("damaged", ["{", "[1]", "null", "[" * 100_000])
def test_damaged_variables_of_the_webhook_are_ignored(damaged: str, caplog: pytest.LogCaptureFixture) -> None:
    assert workload_of(environ={**GKE, "GKE_DIAGON_IDENTIFIER": damaged}).id_parts == ()
    assert "GKE_DIAGON_IDENTIFIER holds no JSON object" in caplog.text


def test_variables_of_the_webhook_are_ignored_outside_of_kubernetes() -> None:
    fakes = {name: text for name, text in GKE.items() if name.startswith("GKE_")}
    assert run_id("train", fakes) == "train-20251121-120000-1234"


def test_a_run_on_slurm_is_identified_by_its_job() -> None:
    environ = {"SLURM_JOB_ID": "4711", "SLURM_CLUSTER_NAME": "alps", "SLURM_JOB_NAME": "train.sh"}
    assert run_id("train", environ) == "train-alps-slurm-4711"
    workload = workload_of(environ=environ)
    assert workload.details == {"slurm": {"jobId": "4711", "cluster": "alps", "displayName": "train.sh"}}
    assert workload.token


def test_a_requeued_slurm_job_is_the_same_run_in_another_life() -> None:
    first = {"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "0"}
    second = {"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "1"}
    assert run_id("train", first) == run_id("train", second)
    assert workload_of(environ=first).token != workload_of(environ=second).token


@pytest.mark.parametrize("environ", [{}, GKE, {"SLURM_JOB_ID": "1"}])
def test_run_workload_id_overrides_every_detected_workload(environ: Mapping[str, str]) -> None:
    assert run_id("train", {**environ, "RUN_WORKLOAD_ID": "w1"}) == "train-w1"
    assert identify("train", workload_of("given", {**environ, "RUN_WORKLOAD_ID": "w1"})).run_id == "train-given"


def test_all_processes_take_the_identity_of_the_first() -> None:
    agreed: dict[str, str] = {}

    def agree_on(key: str, proposal: str) -> str:
        return agreed.setdefault(key, proposal)

    workload = workload_of(environ={})
    ids = {identify("train", workload, clock=lambda now=now: now, agree_on=agree_on).run_id for now in (NOON, NOON + 2)}  # type: ignore[misc]
    assert len(ids) == 1


@pytest.mark.parametrize(
    ("environ", "position"),
    [
        ({}, (0, 1)),
        ({"JAX_PROCESS_ID": "2", "JAX_NUM_PROCESSES": "4"}, (2, 4)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (1, 2)),
        ({"RANK": "3"}, (3, 4)),
        ({"RANK": "x", "WORLD_SIZE": "y"}, (0, 1)),
    ],
)
def test_a_process_gets_its_index_and_count_from_its_launcher(
    environ: Mapping[str, str], position: tuple[int, int]
) -> None:
    assert process_position(environ) == position


def test_a_workload_that_is_neither_of_gke_nor_of_slurm_is_custom() -> None:
    details = workload_of(environ={"RUN_WORKLOAD_ID": "mine"}).details
    assert details["custom"]["id"] == details["custom"]["displayName"] == "mine"
    unnamed = workload_of(environ={}).details
    assert details is not None
    assert unnamed is not None
    (target,) = unnamed["targets"]
    assert unnamed["custom"]["displayName"] == target["hostname"] == os.uname().nodename
    on_a_vm = with_instance(unnamed, "123", "us-central1-a")
    assert on_a_vm["custom"]["id"] == "123"
    assert on_a_vm["targets"] == [{**target, "instanceId": "123", "zone": "us-central1-a"}]
    assert with_instance(details, "123", "")["custom"]["id"] == "mine"
    assert "custom" not in (workload_of(environ={"SLURM_JOB_ID": "1"}).details or {})
