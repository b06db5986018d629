"""The monitor as a trainer uses it: names, arguments, and no cost before it is started."""

from __future__ import annotations

import dataclasses
import datetime
import inspect
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_diagnostics_common.exceptions import ConfigurationError
from ml_goodput_measurement import goodput_utils, monitoring, monitoring_elastic
from ml_goodput_measurement._monitor.helper import calculator_of, sinks_of
from ml_goodput_measurement._monitor.settings import MonitorSettings, Upload, checked_windows
from ml_goodput_measurement.monitoring import GCPOptions, GoodputMonitor
from ml_goodput_measurement.monitoring_elastic import ElasticGoodputMonitor

from .loaded_modules import loaded_by

_REQUIRED = inspect.Parameter.empty
_BEFORE = {"job_name": _REQUIRED, "logger_name": _REQUIRED, "tensorboard_dir": _REQUIRED, "upload_interval": _REQUIRED}
_AFTER = {
    "configured_ideal_step_time": None,
    "step_deviation_interval_seconds": 10,
    "gcp_options": GCPOptions(),
    "skip_final_flush": False,
    "final_flush_timeout_seconds": 10,
    "gcs_sync_interval_seconds": 3600,
    "cache_dir": "/tmp",
    "max_logs_retention_period": None,
}
_SIGNATURES = {
    GoodputMonitor: {
        **_BEFORE,
        "monitoring_enabled": False,
        "pathway_enabled": False,
        "include_badput_breakdown": False,
        "include_step_deviation": False,
        **_AFTER,
    },
    ElasticGoodputMonitor: {
        **_BEFORE,
        "monitoring_enabled": False,
        "include_badput_breakdown": False,
        "include_step_deviation": False,
        "include_slice_efficiency": False,
        **_AFTER,
    },
}


def settings_of(monitor: GoodputMonitor) -> MonitorSettings:
    return monitor._settings


def enabled(**arguments: Any) -> MonitorSettings:
    """The settings of a monitor with these arguments, and ones that are right for the rest."""
    names = {"job_name": "job", "logger_name": "log", "tensorboard_dir": "/runs", "upload_interval": 30}
    return settings_of(GoodputMonitor(**{**names, **arguments}, monitoring_enabled=True))


def run_python(program: str, *arguments: str) -> str:
    completed = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


@pytest.mark.parametrize("monitor", _SIGNATURES)
def test_the_constructor_has_the_arguments_of_the_public_package(monitor: type[GoodputMonitor]) -> None:
    parameters = list(inspect.signature(monitor).parameters.values())
    assert [(p.name, p.default) for p in parameters] == list(_SIGNATURES[monitor].items())
    assert {p.kind for p in parameters} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("start_goodput_uploader", "(self)"),
        ("stop_goodput_uploader", "(self, skip_final_flush=None)"),
        ("start_step_deviation_uploader", "(self)"),
        ("stop_step_deviation_uploader", "(self, skip_final_flush=None)"),
        ("start_rolling_window_goodput_uploader", "(self, rolling_windows_seconds)"),
        ("stop_rolling_window_goodput_uploader", "(self, skip_final_flush=None)"),
    ],
)
def test_the_calls_have_the_arguments_of_the_public_package(name: str, signature: str) -> None:
    found = inspect.signature(getattr(GoodputMonitor, name))
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in found.parameters.values()]
    assert str(inspect.Signature(bare)) == signature


def test_every_name_of_the_public_modules_is_there() -> None:
    for module in (monitoring, monitoring_elastic):
        for name in module.__all__:
            assert getattr(module, name) is not None
        assert dir(module) == module.__all__
        with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
            module.nonsense  # noqa: B018
    assert monitoring.GCPOptions is monitoring_elastic.GCPOptions is goodput_utils.GCPOptions
    assert issubclass(ElasticGoodputMonitor, GoodputMonitor)


def test_a_monitor_costs_a_trainer_nothing_heavy() -> None:
    made = """
import sys, threading
from ml_goodput_measurement import monitoring
monitor = monitoring.GoodputMonitor("job", "log", sys.argv[1], 30, True, include_step_deviation=True)
assert threading.active_count() == 1
"""
    used = """
monitor.start_goodput_uploader()
monitor.start_step_deviation_uploader()
monitor.start_rolling_window_goodput_uploader([60])
monitor.stop_step_deviation_uploader(skip_final_flush=True)
monitor.stop_rolling_window_goodput_uploader(skip_final_flush=True)
monitor.stop_goodput_uploader(skip_final_flush=True)
"""
    disabled = "from ml_goodput_measurement import monitoring; monitoring.GoodputMonitor('job', 'log', '/runs', 30)"
    assert "ml_diagnostics_common.sidecar" not in loaded_by(disabled)
    heavy = {"google", "grpc", "tensorboardX", "numpy", "jax", "multiprocessing", "asyncio", "ssl"}
    assert not (heavy | {"subprocess", "socket"}) & loaded_by(made, "/nowhere")
    assert not heavy & loaded_by(made + used, "/nowhere")


def test_a_disabled_monitor_does_nothing_whatever_it_is_given(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ML_GOODPUT_GCS_SYNC_INTERVAL_SECONDS", "nonsense")
    caplog.set_level(logging.INFO)
    threads = set(threading.enumerate())
    for monitor in (GoodputMonitor(None, 1, None, -5), ElasticGoodputMonitor(None, 1, None, -5)):  # type: ignore[arg-type]
        monitor.start_goodput_uploader()
        monitor.start_step_deviation_uploader()
        monitor.start_rolling_window_goodput_uploader([])
        monitor.stop_goodput_uploader()
        monitor.stop_step_deviation_uploader(True)
        monitor.stop_rolling_window_goodput_uploader(skip_final_flush=True)
    assert set(threading.enumerate()) <= threads  # Those of other tests may just end.
    assert [record.message.partition(":")[0] for record in caplog.records] == ["Step deviation is not uploaded"]


def test_step_deviation_is_uploaded_only_where_it_is_included(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    monitor = GoodputMonitor("job", "log", "/runs", 30, monitoring_enabled=True)
    monitor.start_step_deviation_uploader()
    assert monitor._uploaders is not None
    assert monitor._uploaders.pid is None
    assert "include_step_deviation" in caplog.text
    monitor.stop_step_deviation_uploader()


@pytest.mark.parametrize(
    "wrong",
    [
        {"job_name": ""},
        {"job_name": None},
        {"logger_name": 7},
        {"tensorboard_dir": ""},
        {"tensorboard_dir": None},
        {"tensorboard_dir": b"/runs"},
        {"tensorboard_dir": "gs://"},
        {"tensorboard_dir": "gs:///runs"},
        {"tensorboard_dir": Path("gs://bucket/runs")},
        {"tensorboard_dir": "s3://bucket/runs"},
        {"upload_interval": 0},
        {"upload_interval": -1},
        {"upload_interval": "soon"},
        {"upload_interval": "30"},
        {"upload_interval": b"30"},
        {"upload_interval": np.bool_(True)},
        {"upload_interval": float("inf")},
        {"upload_interval": None},
        {"upload_interval": float("nan")},
        {"upload_interval": True},
        {"step_deviation_interval_seconds": "10"},
        {"step_deviation_interval_seconds": 0},
        {"step_deviation_interval_seconds": None},
        {"configured_ideal_step_time": -1},
        {"configured_ideal_step_time": 1e10},
        {"final_flush_timeout_seconds": -1},
        {"final_flush_timeout_seconds": "10"},
        {"gcs_sync_interval_seconds": 0},
        {"cache_dir": None},
        {"cache_dir": "gs://bucket/state"},
        {"gcp_options": {"project_id": "p"}},
        {"gcp_options": GCPOptions(project_id=b"p")},  # type: ignore[arg-type]
        {"max_logs_retention_period": datetime.timedelta(0)},
        {"max_logs_retention_period": "7d"},
        {"max_logs_retention_period": 1e12},
    ],
    ids=str,
)
def test_a_wrong_argument_is_named_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        enabled(**wrong)


def test_a_number_given_as_text_is_refused_with_what_was_expected() -> None:
    with pytest.raises(ConfigurationError, match=r"^upload_interval is '30'; expected a number of seconds$"):
        enabled(upload_interval="30")
    assert enabled(upload_interval=np.float32(30)).upload_interval_seconds == 30.0


def test_an_invalid_backend_raises_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_DIAGNOSTICS_BACKEND", "lokal")
    with pytest.raises(ConfigurationError, match="ML_DIAGNOSTICS_BACKEND"):
        enabled()


@pytest.mark.parametrize("windows", [[], None, 60, "60", [0], [-1], [1.5], [True], ["60"], {60: 1}, [10**10]], ids=str)
def test_wrong_windows_are_an_error_in_the_log_and_start_nothing(
    windows: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = GoodputMonitor("job", "log", "/runs", 30, monitoring_enabled=True)
    monitor.start_rolling_window_goodput_uploader(windows)
    assert monitor._uploaders is not None
    assert monitor._uploaders.pid is None
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert f"rolling_windows_seconds is {windows!r}; give a list of" in caplog.text


def test_windows_may_be_any_whole_numbers() -> None:
    import numpy as np

    assert checked_windows((np.int64(86400), 60, 60)) == [86400, 60]


def test_the_environment_wins_over_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_GOODPUT_GCS_SYNC_INTERVAL_SECONDS", "7")
    monkeypatch.setenv("ML_GOODPUT_CACHE_DIR", "/scratch")
    settings = enabled(gcs_sync_interval_seconds=8, cache_dir="/other")
    assert (settings.gcs_sync_interval_seconds, settings.cache_dir) == (7, "/scratch")
    monkeypatch.setenv("ML_GOODPUT_GCS_SYNC_INTERVAL_SECONDS", "often")
    with pytest.raises(ConfigurationError, match="ML_GOODPUT_GCS_SYNC_INTERVAL_SECONDS is 'often'"):
        enabled()


def test_options_are_neither_shared_nor_changed() -> None:
    mine = GCPOptions(project_id="mine")
    first, second = enabled(gcp_options=mine), enabled()
    assert first.gcp_options == mine
    assert first.gcp_options is not mine
    assert second.gcp_options is not enabled().gcp_options
    assert mine == GCPOptions(project_id="mine")
    mine.project_id = "another"
    assert first.gcp_options.project_id == "mine"


def test_a_path_means_the_same_wherever_the_trainer_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = enabled(tensorboard_dir=Path("runs"), cache_dir="cache")
    assert (settings.tensorboard_dir, settings.cache_dir) == (str(tmp_path / "runs"), str(tmp_path / "cache"))
    assert enabled(tensorboard_dir="gs://bucket/runs").tensorboard_dir == "gs://bucket/runs"


def test_the_helper_process_gets_the_arguments_of_the_monitor() -> None:
    settings = enabled(
        gcp_options=GCPOptions(project_id="p", enable_gcp_goodput_metrics=False),
        max_logs_retention_period=datetime.timedelta(days=2),
        configured_ideal_step_time=1.5,
    )
    assert settings.retention_seconds == 2 * 86400
    assert MonitorSettings.from_json(settings.to_json()) == settings


def test_the_state_in_a_bucket_is_beside_the_event_files() -> None:
    assert calculator_of(enabled(tensorboard_dir="gs://bucket/runs")).gcs_path == "gs://bucket/runs"
    assert calculator_of(enabled()).gcs_path is None


def test_an_elastic_monitor_asks_an_elastic_calculator() -> None:
    monitor = ElasticGoodputMonitor("job", "log", "/runs", 30, True, include_slice_efficiency=True)
    settings = settings_of(monitor)
    assert settings.include_slice_efficiency
    assert settings.using_pathways
    assert isinstance(calculator_of(settings), monitoring_elastic.ElasticGoodputCalculator)


@pytest.mark.parametrize(
    ("arguments", "wants"),
    [
        ({}, [{Upload.CUMULATIVE}, {Upload.CUMULATIVE, Upload.WINDOWS}]),
        ({"include_step_deviation": True}, [{Upload.CUMULATIVE, Upload.DEVIATION}, set(Upload)]),
        ({"gcp_options": GCPOptions(enable_gcp_goodput_metrics=False)}, [{Upload.CUMULATIVE}]),
        (
            {"include_step_deviation": True, "gcp_options": GCPOptions(enable_gcp_goodput_metrics=False)},
            [{Upload.CUMULATIVE, Upload.DEVIATION}, {Upload.DEVIATION}],
        ),
        (
            {"include_step_deviation": True, "gcp_options": GCPOptions(enable_gcp_step_deviation_metrics=False)},
            [{Upload.CUMULATIVE, Upload.DEVIATION}, {Upload.CUMULATIVE, Upload.WINDOWS}],
        ),
    ],
)
def test_windows_go_to_cloud_monitoring_only_and_each_kind_where_it_is_enabled(
    arguments: dict[str, Any], wants: list[set[Upload]]
) -> None:
    assert [set(sink._wants) for sink in sinks_of(enabled(**arguments))] == wants


def test_settings_are_read_only() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        enabled().job_name = "other"  # type: ignore[misc]
