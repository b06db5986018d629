"""All 32 metrics that libtpu has of a host are recorded, in the forms that it documents, and nothing is guessed."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from google_cloud_mldiagnostics._system_metrics import payload_of, tpu
from google_cloud_mldiagnostics._system_metrics.changes import REPEAT_SECONDS
from google_cloud_mldiagnostics._system_metrics.libtpu_metrics import METRICS, RECORDED_OF_EACH_CHIP, metric_name
from google_cloud_mldiagnostics._system_metrics.tpu import TpuDetails
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.guard import LOSSES

from ..reference_environment import LIBTPU, ReferenceUnavailableError, reference_python

BY_NAME = {metric.name: metric for metric in METRICS}
TIMES = ", 100.00, 200.00, 300.00, 400.00, 500.00"
PERCENTILES = {"p50": [200.0], "p90": [300.0], "p95": [400.0], "p999": [500.0]}
SIZES = {"sizes": ["8MB+"], **PERCENTILES}
CHIPS = {"accelerator_labels": ["h-tpu0", "h-tpu1"]}

SAMPLES: list[tuple[str, list[str], str, list[float], dict[str, Any]]] = [
    (
        "ici_link_health",
        ["tray1.chip3.ici0.int: 0", "tray2.chip0.ici1.ext: 10"],
        "1",
        [0, 10],
        {
            "links": ["tray1.chip3.ici0.int", "tray2.chip0.ici1.ext"],
            "trays": [1, 2],
            "chips": [3, 0],
            "ports": ["ici0.int", "ici1.ext"],
        },
    ),
    ("tpu_throttle_score", ["0-0", "3-1"], "1", [0, 1], {"accelerator_labels": ["h-tpu0", "h-tpu3"]}),
    (
        "hlo_queue_size",
        ["tensorcore_0: 0", "tensorcore_1: 10"],
        "1",
        [0, 10],
        {"tensorcores": ["tensorcore_0", "tensorcore_1"]},
    ),
    ("idle_duration", ["0", "61.5"], "s", [0, 61.5], CHIPS),
    ("hlo_execution_timing", [f"tensorcore_0{TIMES}"], "us", [100], {"tensorcores": ["tensorcore_0"], **PERCENTILES}),
    (
        "collective_e2e_latency",
        [f"2MB+-ALL_REDUCE{TIMES}"],
        "us",
        [100],
        {"sizes": ["2MB+"], "operations": ["ALL_REDUCE"], **PERCENTILES},
    ),
    ("buffer_transfer_latency", [f"8MB+{TIMES}"], "us", [100], SIZES),
    ("inbound_buffer_transfer_latency", [f"8MB+{TIMES}"], "us", [100], SIZES),
    ("host_to_device_transfer_latency", [f"8MB+{TIMES}"], "us", [100], SIZES),
    ("device_to_host_transfer_latency", [f"8MB+{TIMES}"], "us", [100], SIZES),
    ("host_compute_latency", [f"8MB+{TIMES}"], "us", [100], SIZES),
    ("tcp_min_rtt", [TIMES[2:]], "us", [100], PERCENTILES),
    ("tcp_delivery_rate", [TIMES[2:]], "Mbit/s", [100], PERCENTILES),
    ("hbm_util", ["0.00", "20.00"], "%", [0, 20], CHIPS),
    ("runtime_hbm_utilization", ["0.00", "20.00"], "%", [0, 20], CHIPS),
    *(
        (name, ["12.5"], unit, [12.5], {})
        for name, unit in {
            "orbax_write_size": "GB",
            "orbax_write_throughput": "GB/s",
            "checkpoint_write_async_blocking_duration": "s",
            "checkpoint_write_async_total_duration": "s",
            "orbax_read_total_duration": "s",
            "orbax_read_blocking_duration": "s",
            "orbax_write_async_start_count": "1",
            "orbax_read_async_start_count": "1",
            "pygrain_data_sources_read_size": "bytes",
            "pygrain_dataset_source_read_duration": "s",
            "pygrain_dataset_next_duration": "s",
            "pygrain_dataset_prefetch_buffer_ready_count": "1",
            "pygrain_dataloader_iterator_get_next_duration": "s",
        }.items()
    ),
]


@pytest.mark.parametrize(("name", "data", "unit", "values", "beside"), SAMPLES, ids=[each[0] for each in SAMPLES])
def test_each_metric_has_its_unit_and_labels(
    name: str, data: list[str], unit: str, values: list[float], beside: Mapping[str, Any]
) -> None:
    reading, unknown = BY_NAME[name].parse(data)
    assert unknown == []
    assert reading is not None
    assert reading.name == f"tpu_{name}".replace("tpu_tpu_", "tpu_")
    payload = payload_of(reading, "h", 0)
    common = {"unit": unit, "values": values, "hostname": "h", "process_index": "0", "accelerator_type": "tpu"}
    assert payload == {**common, "mean": sum(values) / len(values), **beside}


def test_every_metric_of_libtpu_is_known() -> None:
    assert sorted(BY_NAME) == sorted(sample[0] for sample in SAMPLES)
    assert len({*BY_NAME, *RECORDED_OF_EACH_CHIP}) == 32


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ici_link_health", "tray1.chip3.ici0.int: 11"),
        ("ici_link_health", "tray1.chip3.ici0: 0"),
        ("ici_link_health", "0"),
        ("tpu_throttle_score", "1-11"),
        ("tpu_throttle_score", "1: 5"),
        ("hlo_queue_size", "tensorcore_0: -1"),
        ("hlo_queue_size", "10"),
        ("hbm_util", "20 %"),
        ("hbm_util", "inf"),
        ("tcp_min_rtt", "100.0, 200.0"),
        ("tcp_min_rtt", "100.00"),
        ("buffer_transfer_latency", f"large{TIMES}"),
        ("collective_e2e_latency", f"2MB+{TIMES}"),
        ("idle_duration", "1,000"),
        ("orbax_write_size", "12 GB"),
    ],
)
def test_a_text_in_another_form_is_unknown_and_gives_no_value(name: str, text: str) -> None:
    assert BY_NAME[name].parse([text]) == (None, [text])


def test_a_text_in_another_form_costs_no_other_value() -> None:
    reading, unknown = BY_NAME["hbm_util"].parse(["1.0", "broken", "n/a", "4.0"])
    assert unknown == ["broken"]
    assert reading is not None
    assert dict(zip(reading.chips, reading.values, strict=True)) == {"tpu0": 1.0, "tpu3": 4.0}


def test_the_values_of_a_reading_have_the_same_labels() -> None:
    reading, unknown = BY_NAME["pygrain_dataset_next_duration"].parse([f"shuffle{TIMES}", "12.5", f"map{TIMES}"])
    assert unknown == ["12.5"]
    assert reading is not None
    assert reading.beside["series"] == ["shuffle", "map"]


def test_a_host_with_absurdly_many_texts_does_not_fill_an_entry() -> None:
    reading, unknown = BY_NAME["orbax_write_size"].parse(["1"] * 100_000)
    assert reading is not None
    assert len(reading.values) == 512
    assert len(unknown) == 100_000 - 512


@given(st.sampled_from(METRICS), st.lists(st.text() | st.none() | st.floats() | st.binary(), max_size=5))
def test_nothing_that_libtpu_may_return_raises(metric: Any, data: list[object]) -> None:
    reading, unknown = metric.parse(data)
    assert len(unknown) + (len(reading.values) if reading else 0) <= len(data)


# --- What is recorded when ----------------------------------------------------------------------------


class Libtpu(types.ModuleType):
    """A stand-in for libtpu's module, with data that a test changes."""

    def __init__(self) -> None:
        super().__init__("libtpu.sdk.tpumonitoring")
        self.values: dict[str, Any] = {}
        self.asked: list[str] = []
        self.list_supported_metrics = lambda: list(self.values)

    def get_metric(self, name: str) -> Any:
        self.asked.append(name)
        value = self.values[name]
        if isinstance(value, Exception):
            raise value
        return types.SimpleNamespace(data=lambda: value)


@pytest.fixture
def libtpu(monkeypatch: pytest.MonkeyPatch) -> Libtpu:
    module = Libtpu()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def collect() -> Callable[[float], list[str]]:
    """Return what collects after so many seconds more, and returns the names."""
    clock = Clock()
    details = TpuDetails(clock)

    def collected(seconds: float) -> list[str]:
        clock.seconds += seconds
        return [reading.name for reading in details.collect()]

    return collected


def test_a_state_is_recorded_when_it_changes_and_once_a_minute(
    libtpu: Libtpu, collect: Callable[[float], list[str]]
) -> None:
    libtpu.values = {"tpu_throttle_score": ["0-0"], "ici_link_health": ["tray0.chip0.ici0.int: 0"]}
    assert collect(0) == ["tpu_ici_link_health", "tpu_throttle_score"]
    assert collect(10) == []
    libtpu.values["tpu_throttle_score"] = ["0-3"]
    assert collect(10) == ["tpu_throttle_score"]
    assert collect(10) == []
    assert collect(REPEAT_SECONDS) == ["tpu_ici_link_health", "tpu_throttle_score"]


def test_latencies_are_read_once_a_minute_only(libtpu: Libtpu, collect: Callable[[float], list[str]]) -> None:
    libtpu.values = {"host_compute_latency": [f"8MB+{TIMES}"]}
    assert collect(0) == ["tpu_host_compute_latency"]
    libtpu.values = {"host_compute_latency": [f"8MB+{TIMES.replace('1', '9')}"]}
    assert collect(10) == []
    assert libtpu.asked == ["host_compute_latency"]
    assert collect(REPEAT_SECONDS) == ["tpu_host_compute_latency"]


def test_the_queue_is_recorded_when_a_chip_becomes_idle_for_long(
    libtpu: Libtpu, collect: Callable[[float], list[str]]
) -> None:
    libtpu.values = {"idle_duration": ["0"], "hlo_queue_size": ["tensorcore_0: 2"]}
    assert collect(0) == ["tpu_idle_duration", "tpu_hlo_queue_size"]
    libtpu.values = {"idle_duration": ["0.5"], "hlo_queue_size": ["tensorcore_0: 1"]}
    assert collect(10) == []  # Both change all the time in a healthy job.
    libtpu.values = {"idle_duration": ["12"], "hlo_queue_size": ["tensorcore_0: 0"]}
    assert collect(10) == ["tpu_idle_duration", "tpu_hlo_queue_size"]
    libtpu.values["idle_duration"] = ["22"]
    assert collect(10) == []
    libtpu.values["idle_duration"] = ["0"]
    assert collect(10) == ["tpu_idle_duration", "tpu_hlo_queue_size"]


def test_an_unknown_form_is_counted_and_reported_once(
    libtpu: Libtpu, collect: Callable[[float], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    libtpu.values = {"tpu_throttle_score": ["0-0", "chip 1 is slow"]}
    for _ in range(3):
        collect(10)
    assert LOSSES["system_metrics: unknown form of tpu_throttle_score"] == 3
    [record] = caplog.records
    assert record.getMessage() == (
        "libtpu reports tpu_throttle_score in a form that is not known, which is not recorded: 'chip 1 is slow'"
    )


def test_a_metric_that_fails_costs_no_other(
    libtpu: Libtpu, collect: Callable[[float], list[str]], in_production: None
) -> None:
    libtpu.values = {"ici_link_health": RuntimeError("no link"), "tpu_throttle_score": ["0-0"]}
    assert collect(0) == ["tpu_throttle_score"]
    assert LOSSES["SystemMetrics: RuntimeError"] == 1


def test_an_older_libtpu_is_asked_for_no_metric_that_it_does_not_have(
    libtpu: Libtpu, collect: Callable[[float], list[str]]
) -> None:
    libtpu.values = {"duty_cycle_pct": ["1"], "nonsense": ["1"]}
    assert collect(0) == []
    assert libtpu.asked == []


def test_without_libtpu_there_are_no_details(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu, "_MODULES", ("libtpu_that_is_not_installed",))
    assert TpuDetails().collect() == []


# --- The real libtpu ----------------------------------------------------------------------------------

_DESCRIBE = """
import json
from libtpu.sdk import tpumonitoring
names = tpumonitoring.list_supported_metrics()
print(json.dumps({name: tpumonitoring.get_metric(name).description() for name in names}))
"""


@pytest.fixture(scope="module")
def descriptions() -> dict[str, str]:
    """Return the description of each metric of the real libtpu, which has no data without a TPU."""
    if int(platform.python_version_tuple()[1]) < 11 or platform.system() != "Linux":
        pytest.skip("libtpu has no wheel for this Python or system")
    try:
        python = reference_python(LIBTPU, timeout_seconds=1200)
    except ReferenceUnavailableError as error:
        pytest.skip(f"libtpu cannot be installed here: {error}")
    # Else it asks the metadata server for minutes.
    environment = {**os.environ, "TPU_SKIP_MDS_QUERY": "1"}
    done = subprocess.run(
        [python, "-c", _DESCRIBE], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    described: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return described


@pytest.mark.slow
def test_the_real_libtpu_has_the_metrics_that_are_recorded(descriptions: dict[str, str]) -> None:
    assert set(descriptions) == {*BY_NAME, *RECORDED_OF_EACH_CHIP}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name, data, *_ in SAMPLES if name.partition("_")[0] not in ("orbax", "pygrain", "checkpoint")]
)
def test_the_examples_of_the_real_libtpu_are_understood(name: str, descriptions: dict[str, str]) -> None:
    example = re.search(r"Example: \[(.+?)\]", descriptions[name])
    if example is None:
        pytest.skip("its description has no example")
    quoted = re.findall(r"'([^']*)'", example[1])
    # A list of distributions is one text in its example, and of numbers one text each.
    texts = quoted or ([example[1]] if len(BY_NAME[name].parse([example[1]]).unknown) == 0 else example[1].split(", "))
    reading, unknown = BY_NAME[name].parse(texts)
    assert unknown == []
    assert reading is not None
    assert reading.name == metric_name(name)
