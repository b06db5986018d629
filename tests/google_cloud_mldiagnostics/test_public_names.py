"""The names, signatures and values of the public package are all there, and cost nothing before they are used."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import google_cloud_mldiagnostics as package
import pytest
from google_cloud_mldiagnostics.custom_types import exceptions, mlrun_types

OF_1_0_0 = [
    ("name", inspect.Parameter.empty),
    ("run_group", ""),
    ("configs", None),
    ("gcs_path", None),
    ("project", None),
    ("region", "us-central1"),
    ("metrics_record_interval_sec", 10.0),
    ("on_demand_xprof", False),
    ("environment", "prod"),
]
OF_1_0_10 = {
    "base_url": None,
    "cluster_id": None,
    "framework": mlrun_types.Framework.JAX,
    "serving_engine": mlrun_types.ServingEngine.NONE,
    "run_workload_id": None,
    "metric_only_run": False,
    "metrics_exporter_config": None,
    "accelerator_orchestrator": mlrun_types.AcceleratorOrchestrator.NONE,
    "application_framework": mlrun_types.ApplicationFramework.NONE,
    "rl_orchestrator": mlrun_types.RlOrchestrator.NONE,
}


def test_the_documented_import_works() -> None:
    from google_cloud_mldiagnostics import machinelearning_run, metric_types, metrics, xprof

    assert inspect.isfunction(machinelearning_run)
    assert inspect.ismodule(metrics)
    assert inspect.ismodule(metric_types)
    assert inspect.isclass(xprof)
    assert package._version.get_version() == package.__version__


def test_every_name_of_all_exists() -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert dir(package) == package.__all__
    with pytest.raises(AttributeError, match="no attribute 'wandb'"):
        _ = package.wandb


@pytest.mark.parametrize(
    "module",
    [
        "api",
        "api.metrics",
        "api.mlrun",
        "clients",
        "core",
        "core.global_manager",
        "core.xprof",
        "custom_types",
        "custom_types.exceptions",
        "custom_types.metric_types",
        "custom_types.mlrun_types",
        "metric_types",
        "metrics",
        "utils",
    ],
)
def test_modules_of_the_public_package_hold_what_they_name(module: str) -> None:
    found = importlib.import_module(f"google_cloud_mldiagnostics.{module}")
    for name in found.__all__:
        assert hasattr(found, name)


def test_the_arguments_are_those_of_the_first_release_in_its_order_and_those_of_the_last_by_name() -> None:
    parameters = inspect.signature(package.machinelearning_run).parameters
    positional = [p for p in parameters.values() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert [(p.name, p.default) for p in positional] == OF_1_0_0
    keywords = {p.name: p.default for p in parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    assert {name: keywords[name] for name in OF_1_0_10} == OF_1_0_10
    assert keywords["log_system_metrics"] is True  # As in the first release and its documentation.
    assert keywords["strict"] is False


def test_metrics_are_recorded_by_the_documented_arguments() -> None:
    from google_cloud_mldiagnostics.api import metrics

    record = list(inspect.signature(metrics.record).parameters)
    assert record[:5] == ["metric_name", "value", "step", "labels", "record_on_all_hosts"]
    assert "timestamp" in record
    assert list(inspect.signature(metrics.record_metrics).parameters)[:3] == [
        "metrics_data",
        "record_on_all_hosts",
        "step",
    ]


def test_enumerations_have_the_values_of_the_wire() -> None:
    assert {phase.name: phase.value for phase in mlrun_types.RunPhase} == {
        "PHASE_UNSPECIFIED": "RUN_PHASE_UNSPECIFIED",
        "PHASE_ACTIVE": "ACTIVE",
        "PHASE_COMPLETED": "COMPLETED",
        "PHASE_FAILED": "FAILED",
    }
    assert [member.name for member in mlrun_types.Framework] == ["JAX", "PYTORCH"]
    assert [member.name for member in mlrun_types.Orchestrator] == ["GKE", "SLURM", "CUSTOM", "NONE"]
    assert isinstance(mlrun_types.Orchestrator.GKE, str)


def test_errors_are_one_family_and_the_kinds_that_programs_catch() -> None:
    assert issubclass(exceptions.MLRunConfigurationError, ValueError)
    assert issubclass(exceptions.RecordingError, ValueError)
    for name in exceptions.__all__:
        assert issubclass(getattr(exceptions, name), exceptions.MLDiagnosticError)


def test_a_run_outside_of_google_cloud_has_no_project() -> None:
    run = mlrun_types.MLRun("mine")
    assert (run.project, run.location, run.run_phase) == ("", "us-central1", mlrun_types.RunPhase.PHASE_ACTIVE)
    run.configs.update(lr=0.1)
    assert run.configs.lr == 0.1
    run.finish()


def test_importing_the_package_imports_nothing_of_its_own() -> None:
    program = "import sys, google_cloud_mldiagnostics; print(sorted(n for n in sys.modules if 'diagnostics' in n))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "['google_cloud_mldiagnostics', 'google_cloud_mldiagnostics._version']"


def test_the_names_of_a_training_script_import_no_client_and_no_framework() -> None:
    program = (
        "import sys\n"
        "from google_cloud_mldiagnostics import machinelearning_run, metrics, xprof, metric_types\n"
        "heavy = {'jax', 'numpy', 'google.auth', 'google.cloud', 'grpc', 'requests', 'psutil', 'torch', 'asyncio'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
