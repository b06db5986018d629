"""The arguments of `machinelearning_run`, and the fields of the MLRun that it returns."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
from typing import Any

import numpy as np
import pytest
from google_cloud_mldiagnostics import machinelearning_run, xprof
from google_cloud_mldiagnostics._run.arguments import RunArguments
from google_cloud_mldiagnostics.control_plane.local import LocalControlPlane
from google_cloud_mldiagnostics.custom_types import mlrun_types
from google_cloud_mldiagnostics.exceptions import MLRunConfigurationError
from google_cloud_mldiagnostics.mlrun_types import MLRun, RunPhase
from ml_diagnostics_common.entry import parse_timestamp
from ml_diagnostics_common.environment import diagnostics_directory

from . import run_programs as programs

OF_1_0_0 = {
    "name": dataclasses.MISSING,
    "run_group": "",
    "configs": dataclasses.MISSING,
    "gcs_path": None,
    "location": "us-central1",
    "project": "",
    "run_phase": RunPhase.PHASE_ACTIVE,
    "created_at": None,
    "workload_details": None,
    "orchestrator": None,
    "display_name": "",
    "on_demand_xprof": False,
    "environment": "prod",
}
OF_1_0_10 = {
    "workload_targets": None,
    "log_system_metrics": True,
    "metric_only_run": False,
    "framework": mlrun_types.Framework.JAX,
    "serving_engine": mlrun_types.ServingEngine.NONE,
    "metrics_exporter_config": None,
    "accelerator_orchestrator": mlrun_types.AcceleratorOrchestrator.NONE,
    "application_framework": mlrun_types.ApplicationFramework.NONE,
    "rl_orchestrator": mlrun_types.RlOrchestrator.NONE,
    "control_plane_url": None,
    "ml_run_id": None,
    "cluster_id": None,
    "workload_id": None,
    "namespace": None,
}


def start_run(**arguments: Any) -> MLRun:
    run = machinelearning_run(**{"name": "train", "log_system_metrics": False, **arguments})
    run.finish()
    return run


def test_an_mlrun_has_the_fields_of_the_first_release_in_its_order_and_those_of_the_last() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(MLRun)}
    assert list(fields)[: len(OF_1_0_0)] == list(OF_1_0_0)
    assert {name: fields[name] for name in (*OF_1_0_0, *OF_1_0_10)} == OF_1_0_0 | OF_1_0_10


@pytest.mark.parametrize(
    ("kind", "members"),
    [
        ("Framework", {"JAX", "PYTORCH"}),
        ("ServingEngine", {"NONE", "VLLM"}),
        ("AcceleratorOrchestrator", {"NONE", "PATHWAYS"}),
        ("ApplicationFramework", {"NONE", "MAXTEXT", "AXLEARN", "MAXDIFFUSION"}),
        ("RlOrchestrator", {"NONE", "TUNIX"}),
        ("Orchestrator", {"GKE", "SLURM", "CUSTOM", "NONE"}),
    ],
)
def test_enumerations_have_the_names_and_values_of_the_public_package(kind: str, members: set[str]) -> None:
    found: type[enum.Enum] = getattr(mlrun_types, kind)
    assert {member.name: member.value for member in found} == {name: name for name in members}


def test_xprof_accepts_the_arguments_of_the_public_package() -> None:
    parameters = inspect.signature(xprof).parameters
    assert [(name, parameters[name].default) for name in list(parameters)[:2]] == [
        ("run", None),
        ("process_index_list", None),
    ]


def test_the_workload_id_comes_from_the_argument_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert start_run().workload_id is None
    monkeypatch.setenv("RUN_WORKLOAD_ID", "of-env")
    assert start_run().workload_id == "of-env"
    run = start_run(run_workload_id="given", metrics_exporter_config={"a": 1})
    assert (run.workload_id, run.metrics_exporter_config, run.ml_run_id) == ("given", {"a": 1}, run.name)


def test_a_run_on_gke_knows_its_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("GKE_DIAGON_IDENTIFIER", json.dumps({"metadata.name": "s5", "namespace": "ml"}))
    assert start_run().namespace == "ml"


def test_a_run_was_created_at_the_start_of_its_first_attempt() -> None:
    programs.run("start_run('created')", RUN_WORKLOAD_ID="w")
    run = start_run(name="created", run_workload_id="w")
    kept = LocalControlPlane(diagnostics_directory()).get_run(run.name)
    assert run.attempt == 2
    assert run.created_at is not None
    assert run.created_at.timestamp() == pytest.approx(parse_timestamp(kept["createTime"]) / 1e9)


FLAGS = ["on_demand_xprof", "log_system_metrics", "metric_only_run", "strict"]


def checked(**given: Any) -> RunArguments:
    parameters = inspect.signature(machinelearning_run).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    return RunArguments.checked(**{**defaults, "name": "train", **given})


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize(
    ("value", "meant"),
    [
        *((value, False) for value in ("no", "False", "0", "", None, 0, np.bool_(False))),
        *((value, True) for value in ("yes", "true", " 1", 1, True, np.bool_(True))),
    ],
)
def test_a_flag_given_as_text_is_parsed(flag: str, value: object, meant: bool) -> None:
    assert getattr(checked(**{flag: value}), flag) is meant


@pytest.mark.parametrize("argument", [*FLAGS, "environment", "base_url", "run_group", "metrics_record_interval_sec"])
@pytest.mark.parametrize("value", [np.zeros(3), [], object(), "perhaps" * 300])
def test_an_invalid_argument_is_named(argument: str, value: object) -> None:
    with pytest.raises(MLRunConfigurationError, match=argument):
        checked(**{argument: value})


def test_an_invalid_url_of_the_environment_is_named_by_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DIAGON_BASE_URL", "diagon.local")
    with pytest.raises(MLRunConfigurationError, match=r"DIAGON_BASE_URL is 'diagon\.local'"):
        checked()
    assert checked(base_url="http://own/").base_url == "http://own"


@pytest.mark.parametrize("status", ["ACTIVE", "", 7, None, [], RunPhase.PHASE_ACTIVE, "x" * 10_000])
def test_a_status_that_no_run_ends_with_raises(status: Any) -> None:
    with pytest.raises(MLRunConfigurationError, match="status is") as caught:
        MLRun("train").finish(status)
    assert len(str(caught.value)) < 300


def test_a_number_too_long_to_print_is_reported_too() -> None:
    for call in (lambda: MLRun("train").finish(10**5000), lambda: checked(strict=10**5000)):  # type: ignore[arg-type]
        with pytest.raises(MLRunConfigurationError):
            call()
