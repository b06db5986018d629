"""The public names, signatures, defaults and values are those of the public library at 0.2.3: nothing to change.

What we add is keyword-only, or a name of its own, so that no positional argument moves.
"""

from __future__ import annotations

import enum
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any, get_type_hints

import ml_goodput_measurement
import pytest
from ml_diagnostics_common.environment import diagnostics_directory

RECORDER = (
    "(job_name, logger_name, logging_enabled=False, cloud_logger=None, *, background_grace_period_s=5.0, "
    "background_batch_size=100, background_max_latency_s=2.0, expected_processes=None, planned_steps=None)"
)
CALCULATOR = (
    "(job_name, logger_name, cloud_logger=None, using_pathways=False, max_logs_retention_period=None, gcs_path=None, "
    "cache_dir='/tmp')"
)
CUSTOM = "(start_time=None, custom_badput_event_type='unknown')"
CUSTOM_END = "(end_time=None, custom_badput_event_type='unknown')"

SIGNATURES = {
    "goodput.GoodputRecorder": {
        "": RECORDER,
        "flush": "()",
        "record_job_start_time": "(start_time=None)",
        "record_job_end_time": "(end_time=None)",
        "record_step_start_time": "(step, start_time=None)",
        "record_step_end_time": "(step, end_time=None)",  # Ours: trainers call it where it is there.
        "record_checkpoint_progress": "(step, checkpoint_start_time=None)",  # The default is ours.
        "record_tpu_init_start_time": "(start_time=None)",
        "record_tpu_init_end_time": "(end_time=None)",
        "record_training_preparation_start_time": "(start_time=None)",
        "record_training_preparation_end_time": "(end_time=None)",
        "record_data_loading_start_time": "(start_time=None)",
        "record_data_loading_end_time": "(end_time=None)",
        "record_custom_badput_event_start_time": CUSTOM,
        "record_custom_badput_event_end_time": CUSTOM_END,
    },
    "goodput.GoodputCalculator": {
        "": CALCULATOR,
        "get_job_goodput": "(include_badput_breakdown=False, configured_ideal_step_time=None)",
        "get_job_goodput_interval": "(interval_start, interval_end)",
        "get_step_deviation": "(configured_ideal_step_time=None)",
        "get_job_goodput_details": "()",
        "get_interval_metric_details": "(interval_start, interval_end)",
        "get_job_goodput_with_exclusions": (
            "(exclusion_intervals, include_badput_breakdown=False, configured_ideal_step_time=None)"
        ),
        "sync_to_gcs": "()",
    },
    "goodput._CloudLogger": {
        "": (
            "(job_name, log_name, max_logs_retention_period=None, *, background_grace_period_s=5.0, "
            "background_batch_size=100, background_max_latency_s=2.0)"
        ),
    },
    "monitoring.GoodputMonitor": {
        "": (
            "(job_name, logger_name, tensorboard_dir, upload_interval, monitoring_enabled=False, "
            "pathway_enabled=False, include_badput_breakdown=False, include_step_deviation=False, "
            "configured_ideal_step_time=None, step_deviation_interval_seconds=10, gcp_options=GCPOptions(), "
            "skip_final_flush=False, final_flush_timeout_seconds=10, gcs_sync_interval_seconds=3600, "
            "cache_dir='/tmp', max_logs_retention_period=None)"
        ),
        "start_goodput_uploader": "()",
        "stop_goodput_uploader": "(skip_final_flush=None)",
        "start_step_deviation_uploader": "()",
        "stop_step_deviation_uploader": "(skip_final_flush=None)",
        "start_rolling_window_goodput_uploader": "(rolling_windows_seconds)",
        "stop_rolling_window_goodput_uploader": "(skip_final_flush=None)",
    },
    "goodput_elastic.ElasticGoodputRecorder": {
        "": RECORDER,
        "record_elastic_slice_counts": "(active_slices, total_slices, available_slices, timestamp=None)",
        "record_elastic_wait_start_time": "(event_type, start_time=None)",
        "record_elastic_wait_end_time": "(event_type, end_time=None)",
        "record_elastic_reinit_start_time": "(start_time=None)",
        "record_elastic_reinit_end_time": "(end_time=None)",
    },
    "goodput_elastic.ElasticGoodputCalculator": {"": CALCULATOR},
    "monitoring_elastic.ElasticGoodputMonitor": {
        "": (
            "(job_name, logger_name, tensorboard_dir, upload_interval, monitoring_enabled=False, "
            "include_badput_breakdown=False, include_step_deviation=False, include_slice_efficiency=False, "
            "configured_ideal_step_time=None, step_deviation_interval_seconds=10, gcp_options=GCPOptions(), "
            "skip_final_flush=False, final_flush_timeout_seconds=10, gcs_sync_interval_seconds=3600, "
            "cache_dir='/tmp', max_logs_retention_period=None)"
        ),
    },
    "goodput_cache.GoodputCache": {
        "": "(job_name, cache_dir='/tmp', gcs_path=None)",
        "update_step_info": "(step_info)",
        "update_cached_entries": "(entries, last_entry_info)",
        "update_last_entry_info": "(last_entry_info)",
        "update_goodput_info": "(goodput_info)",
        "get_cached_entries": "()",
        "get_step_entries": "()",
        "get_goodput_info": "()",
        "get_job_start_time": "()",
        "get_job_end_time": "()",
        "get_last_entry_info": "()",
        "get_step_info": "()",
        "sync_to_gcs": "()",
        "clear_cache": "()",
        "is_cache_empty": "()",
    },
    "gcp_metrics.GCPMetrics": {
        "": "(project_id)",
        "create_time_series": (
            "(metric_type, value, value_type, metric_labels, resource_type, resource_labels, seconds, nanos)"
        ),
        "send_metrics": "(metrics, context=None)",
    },
    "checkpoint_badput_calculator.CheckpointBadputCalculator": {
        "": "(options=None)",
        "read_entries": "()",
        "is_valid_save_stats": "(step_stats, operation_type='persistent_and_local')",
        "is_valid_restore_stats": "(step_stats, operation_type='persistent_and_local')",
        "calculate_save_operation_checkpoint_manager_blocking_time": "(operation_type='persistent_and_local')",
        "calculate_restore_operation_checkpoint_manager_blocking_time": "(operation_type='persistent_and_local')",
    },
    "goodput_exclusion.GoodputExclusion": {
        "get_job_goodput_with_exclusions": (
            "(exclusion_intervals, include_badput_breakdown=False, configured_ideal_step_time=None)"
        ),
    },
}

FUNCTIONS = {
    "goodput_utils.compute_percentile": "(values, percentile)",
    "goodput_utils.compute_step_deviation_from_baseline": (
        "(step_time_deviation, mode=MonitoringWindowType.CUMULATIVE, recent_window_size=100, "
        "baseline_window_size=1000, spike_percentile=90)"
    ),
    "goodput_utils.compute_ideal_step_time": "(step_times)",
    "goodput_utils.get_anomalous_and_normal_step_times": "(step_times)",
    "goodput_utils.get_extra_time_from_anomalous_steps": "(step_times)",
    "goodput_utils.get_timestamp_from_log_entry": "(entry)",
    "goodput_utils.get_gcp_metadata": "(category, attribute, timeout=5, retries=3)",
    "goodput_utils.get_gcp_project_id": "()",
    "goodput_utils.get_node_zone": "()",
    "goodput_utils.get_accelerator_type": "()",
    "goodput_utils.get_cluster_name": "()",
    "exclusion_utils.normalize_intervals": "(intervals)",
    "exclusion_utils.get_exclusion_overlap": "(start, end, exclusions)",
}

ENUMS: dict[str, dict[str, Any]] = {
    "goodput_utils.BadputType": {
        "TPU_INITIALIZATION": 1,
        "TRAINING_PREP": 2,
        "PROGRAM_STARTUP": 3,
        "DATA_LOADING_SYNC": 4,
        "DATA_LOADING_ASYNC": 5,
        "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME": 6,
        "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME": 7,
        "WASTED_PROGRESS_FROM_DISRUPTION": 8,
        "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION": 9,
        "CUSTOM_BADPUT_EVENTS": 10,
        "OTHER": 11,
        "ELASTIC_SLICE_DOWN": 12,
        "ELASTIC_SCALE_UP": 13,
        "ELASTIC_REINITIALIZATION": 14,
    },
    "goodput_utils.GoodputType": {"TOTAL": 1},
    "goodput_utils.MetricType": {
        "GOODPUT_TIME": "goodput_time",
        "BADPUT_TIME": "badput_time",
        "MAX_PRODUCTIVE_STEP": "max_productive_step",
        "TOTAL_ELAPSED_TIME": "total_elapsed_time",
        "DISRUPTION_COUNT": "disruption_count",
        "STEP_TIME_DEVIATION": "step_time_deviation",
        "IDEAL_STEP_TIME": "ideal_step_time",
        "TOTAL_EXCLUDED_TIME": "total_excluded_time",
    },
    "goodput_utils.IntervalMetricType": {
        "INTERVAL_GOODPUT": "interval_goodput",
        "INTERVAL_BADPUT": "interval_badput",
        "INTERVAL_SIZE": "interval_size",
    },
    "goodput_utils.MonitoringWindowType": {"CUMULATIVE": "cumulative", "INTERVAL": "interval"},
    "gcp_metrics.ValueType": {
        "BOOL": "bool_value",
        "INT": "int64_value",
        "DOUBLE": "double_value",
        "STRING": "string_value",
        "DISTRIBUTION": "distribution_value",
    },
}

_FIVE = ("total", "average", "minimum", "maximum", "standard_deviation")
_SAVE_PARTS = ("checkpoint_manager_blocking", "checkpointer_blocking", "wait_for_prev", "get_old_steps")
_RESTORE_PARTS = ("checkpoint_manager", "restore", "broadcast")
_MADE = object()  # A default that is created for each call.

DATACLASSES: dict[str, dict[str, Any]] = {
    "goodput_utils.GCPOptions": {
        "project_id": None,
        "location": None,
        "replica_id": "0",
        "acc_type": None,
        "cluster_name": None,
        "enable_gcp_goodput_metrics": True,
        "enable_gcp_step_deviation_metrics": True,
    },
    "goodput_utils.GoodputInfo": {
        "total_productive_time": 0.0,
        "total_elapsed_time": 0.0,
        "total_unproductive_time": None,
        "max_productive_step": 0,
        "last_recorded_step": 0,
        "last_updated_timestamp": _MADE,
        "number_of_disruptions": 0,
        "total_excluded_time": 0.0,
    },
    "goodput_utils.StepInfo": {"ideal_step_time": MISSING, "step_deviations": MISSING},
    "checkpoint_badput_calculator.CheckpointLoggerOptions": {
        "job_name": "checkpoint_job",
        "logger_name": "checkpoint_logger",
        "client": None,
        "use_goodput_logger": False,
    },
    "checkpoint_badput_calculator.SaveCheckpointManagerVerticalStepStats": {
        f"{kind}_{part}_time": 0.0 for part in _SAVE_PARTS for kind in _FIVE
    },
    "checkpoint_badput_calculator.RestoreCheckpointManagerVerticalStepStats": {
        f"{kind}_{part}_time": 0.0 for part in _RESTORE_PARTS for kind in _FIVE
    },
    "checkpoint_badput_calculator.SaveProcessedStep": {
        "step": "",
        **{f"total_{part}_time": 0.0 for part in _SAVE_PARTS},
        "occurrence": 0,
    },
    "checkpoint_badput_calculator.RestoreProcessedStep": {
        "step": "",
        **{f"total_{part}_time": 0.0 for part in _RESTORE_PARTS},
        "broadcast_occurrence": 0,
        "occurrence": 0,
    },
}

_CUMULATIVE_KEYS = {
    "goodput_time",
    "badput_time",
    "max_productive_step",
    "total_elapsed_time",
    "disruption_count",
    "step_time_deviation",
    "ideal_step_time",
    "total_excluded_time",
}
_INTERVAL_KEYS = {"interval_goodput", "interval_badput", "interval_size"}
_ELASTIC_KEYS = {"stepping_slice_efficiency", "available_slice_efficiency"}

TYPED_DICTS = {
    "WorkloadMetricDetails": _CUMULATIVE_KEYS,
    "IntervalWorkloadMetricDetails": _INTERVAL_KEYS,
    "ElasticWorkloadMetricDetails": _CUMULATIVE_KEYS | _ELASTIC_KEYS,
    "ElasticIntervalWorkloadMetricDetails": _INTERVAL_KEYS | _ELASTIC_KEYS,
}

CONSTANTS: dict[str, Any] = {
    "goodput_utils.ACTIVITY_EXCLUSION_LIST": ["DATA_LOADING_ASYNC"],
    "checkpoint_badput_calculator.OPERATION_TYPE_SAVE": "save",
    "checkpoint_badput_calculator.OPERATION_TYPE_RESTORE": "restore",
    "checkpoint_badput_calculator.OPERATION_TYPE_EMERGENCY_RESTORE": "emergency_restore",
    "checkpoint_badput_calculator.OPERATION_TYPE_LOCAL": "local",
    "checkpoint_badput_calculator.OPERATION_TYPE_PERSISTENT": "persistent",
    "checkpoint_badput_calculator.OPERATION_TYPE_PERSISTENT_AND_LOCAL": "persistent_and_local",
}

REEXPORTS = {
    "goodput_elastic": {"goodput": ["GoodputRecorder"]},
    "goodput": {
        "goodput_utils": [
            "BadputType",
            "GoodputType",
            "MetricType",
            "IntervalMetricType",
            "GoodputInfo",
            "StepInfo",
            "UnproductiveTimeDict",
            "WorkloadMetricDetails",
            "IntervalWorkloadMetricDetails",
            "get_timestamp_from_log_entry",
            "get_extra_time_from_anomalous_steps",
            "compute_ideal_step_time",
        ],
        "goodput_cache": ["GoodputCache"],
        "checkpoint_badput_calculator": ["CheckpointLoggerOptions", "CheckpointBadputCalculator"],
        "monitoring": ["GoodputMonitor"],  # As the library's own documentation spells it.
    },
    "monitoring": {
        "goodput_utils": [
            "GCPOptions",
            "BadputType",
            "MetricType",
            "IntervalMetricType",
            "MonitoringWindowType",
            "UnproductiveTimeDict",
            "WorkloadMetricDetails",
            "IntervalWorkloadMetricDetails",
            "ACTIVITY_EXCLUSION_LIST",
        ],
        "gcp_metrics": ["GCPMetrics", "ValueType"],
        "goodput": ["GoodputCalculator"],
    },
    "monitoring_elastic": {"goodput_utils": ["GCPOptions"]},
}

PACKAGE_ATTRIBUTES = [
    "checkpoint_badput_calculator",
    "gcp_metrics",
    "goodput",
    "goodput_cache",
    "goodput_elastic",
    "goodput_utils",
    "monitoring",
    "monitoring_elastic",
    "src",
]


def find(path: str) -> Any:
    module, _, name = path.partition(".")
    return getattr(importlib.import_module(f"ml_goodput_measurement.{module}"), name)


def written(function: Any, expected: str, *, without_self: bool) -> str:
    """Return a signature without types, and without our additions: keyword-only arguments, and `*_`."""
    kinds = inspect.Parameter
    parts: list[str] = []
    for parameter in list(inspect.signature(function).parameters.values())[without_self:]:
        if parameter.kind is kinds.VAR_POSITIONAL:
            continue
        if parameter.kind is kinds.KEYWORD_ONLY and f"{parameter.name}=" not in expected:
            assert parameter.default is not kinds.empty, parameter
            continue
        if parameter.kind is kinds.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        default = parameter.default
        if default is kinds.empty:
            parts.append(parameter.name)
        elif type(default).__name__ == "GCPOptions":
            assert default == type(default)()
            parts.append(f"{parameter.name}=GCPOptions()")
        else:
            parts.append(f"{parameter.name}={default if isinstance(default, enum.Enum) else repr(default)}")
    return f"({', '.join(parts)})"


def methods() -> Iterator[Any]:
    for path, table in SIGNATURES.items():
        for name, signature in table.items():
            yield pytest.param(path, name, signature, id=f"{path}.{name}".rstrip("."))


@pytest.mark.parametrize(("path", "name", "signature"), list(methods()))
def test_methods_take_what_they_took(path: str, name: str, signature: str) -> None:
    assert written(getattr(find(path), name or "__init__"), signature, without_self=True) == signature


@pytest.mark.parametrize("path", FUNCTIONS)
def test_functions_take_what_they_took(path: str) -> None:
    assert written(find(path), FUNCTIONS[path], without_self=False) == FUNCTIONS[path]


@pytest.mark.parametrize("path", ENUMS)
def test_kinds_have_the_values_that_others_have_stored(path: str) -> None:
    assert issubclass(find(path), enum.Enum)
    assert {member.name: member.value for member in find(path)} == ENUMS[path]
    assert [member.name for member in find(path)] == list(ENUMS[path])


@pytest.mark.parametrize("path", DATACLASSES)
def test_records_have_the_fields_that_they_had(path: str) -> None:
    found = {
        field.name: _MADE if field.default_factory is not MISSING else field.default for field in fields(find(path))
    }
    assert found == DATACLASSES[path]
    assert list(found) == list(DATACLASSES[path])


@pytest.mark.parametrize("name", TYPED_DICTS)
def test_details_have_the_keys_that_they_had(name: str) -> None:
    assert set(get_type_hints(find(f"goodput_utils.{name}"))) == TYPED_DICTS[name]


@pytest.mark.parametrize("path", CONSTANTS)
def test_constants_have_the_values_that_they_had(path: str) -> None:
    assert find(path) == CONSTANTS[path]


def test_machine_types_are_found_in_order() -> None:
    mapping = find("goodput_utils.MACHINE_TYPE_TO_ACCELERATOR_TYPE_MAPPING")
    assert mapping
    assert all(isinstance(part, str) for pair in mapping.items() for part in pair)


@pytest.mark.parametrize(
    ("module", "owner", "name"),
    [(module, owner, name) for module, table in REEXPORTS.items() for owner, names in table.items() for name in names],
)
def test_names_are_also_where_users_take_them_from(module: str, owner: str, name: str) -> None:
    found = find(f"{module}.{name}")
    assert found is find(f"{owner}.{name}") or found == find(f"{owner}.{name}")
    assert name in importlib.import_module(f"ml_goodput_measurement.{module}").__all__


@pytest.mark.parametrize("name", PACKAGE_ATTRIBUTES)
def test_modules_are_attributes_of_the_package(name: str) -> None:
    assert getattr(ml_goodput_measurement, name) is importlib.import_module(f"ml_goodput_measurement.{name}")
    assert name in ml_goodput_measurement.__all__


def test_elastic_classes_stand_in_for_the_plain_ones() -> None:
    for module, plain in (
        ("goodput_elastic.ElasticGoodputRecorder", "goodput.GoodputRecorder"),
        ("goodput_elastic.ElasticGoodputCalculator", "goodput.GoodputCalculator"),
        ("monitoring_elastic.ElasticGoodputMonitor", "monitoring.GoodputMonitor"),
        ("goodput.GoodputCalculator", "goodput_exclusion.GoodputExclusion"),
    ):
        assert issubclass(find(module), find(plain))


def test_a_calculator_keeps_the_attributes_that_it_had() -> None:
    calculator = find("goodput.GoodputCalculator")("job", "log", using_pathways=True)
    assert (calculator.job_name, calculator.using_pathways) == ("job", True)


def test_a_step_end_is_recorded_whatever_else_a_trainer_passes() -> None:
    recorder = find("goodput.GoodputRecorder")("job", "log", logging_enabled=True)
    recorder.record_step_end_time(3, None, "more", 7)
    (segment,) = diagnostics_directory().glob("journal/log/*.jsonl")
    assert '"step_end_count":3,' in segment.read_text()


KEYS = {
    "_JOB_NAME": "job_name",
    "_JOB_START_TIME": "job_start_time",
    "_JOB_END_TIME": "job_end_time",
    "_STEP_COUNT": "step_count",
    "_STEP_START_TIME": "step_start_time",
    "_TPU_INIT_START_TIME": "tpu_init_start_time",
    "_TPU_INIT_END_TIME": "tpu_init_end_time",
    "_TRAINING_PREPARATION_START_TIME": "training_prep_start_time",
    "_TRAINING_PREPARATION_END_TIME": "training_prep_end_time",
    "_DATA_LOADING_START_TIME": "data_loading_start_time",
    "_DATA_LOADING_END_TIME": "data_loading_end_time",
    "_CUSTOM_BADPUT_EVENT_TYPE": "custom_badput_event_type",
    "_CUSTOM_BADPUT_EVENT_START_TIME": "custom_badput_event_start_time",
    "_CUSTOM_BADPUT_EVENT_END_TIME": "custom_badput_event_end_time",
}


def test_the_keys_of_payloads_have_the_names_that_tests_of_users_import() -> None:
    goodput = importlib.import_module("ml_goodput_measurement.goodput")
    assert {name: getattr(goodput, name, None) for name in KEYS} == KEYS
