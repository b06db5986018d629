"""Errors of GPUs, limits of their clocks and the states of their links are recorded as they change."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest
from google_cloud_mldiagnostics._system_metrics import Reading, gpu, payload_of
from google_cloud_mldiagnostics._system_metrics.changes import REPEAT_SECONDS
from google_cloud_mldiagnostics._system_metrics.gpu import GpuMeter
from google_cloud_mldiagnostics._system_metrics.gpu_health import GpuHealth

from .nvidia_driver import Driver, Gpu

XID = pynvml.nvmlEventTypeXidCriticalError


class Health:
    """The health of a driver's GPUs, at a time that a test sets."""

    def __init__(self, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
        self.driver = driver.installed(monkeypatch)
        self._seconds = 0.0
        meter = GpuMeter(lambda uuid: True, environ={})
        self._health = GpuHealth(meter.gpus, lambda: self._seconds)

    def collect(self, after_seconds: float = 0.0) -> dict[str, Reading]:
        self._seconds += after_seconds
        return {reading.name: reading for reading in self._health.collect()}


def test_each_kind_of_trouble_has_its_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    sick = Gpu(
        "GPU-bb",
        ecc={(0, 0): 3, (0, 1): 30, (1, 0): 1, (1, 1): 2},
        remapped_rows=(1, 2, 1, 0),
        reasons=pynvml.nvmlClocksEventReasonGpuIdle | pynvml.nvmlClocksEventReasonHwThermalSlowdown,
        clocks=(900, 1980),
        links=[True, False, True],
        link_errors={(0, 0): 5, (2, 0): 6, (0, 1): 1, (2, 1): 0, (0, 2): 7, (2, 2): 8},
    )
    healthy = Gpu(
        "GPU-aa", ecc=dict.fromkeys(sick.ecc or {}, 0), remapped_rows=(0, 0, 0, 0), reasons=0, links=[True] * 3
    )
    readings = Health(Driver([healthy, sick]), monkeypatch).collect()
    payloads = {name: payload_of(reading, "h", 0) for name, reading in readings.items()}
    for payload in payloads.values():
        assert payload["unit"] == "1"
        assert payload["accelerator_type"] == "gpu"

    def fields(name: str) -> dict[str, object]:
        common = ("unit", "hostname", "process_index", "accelerator_type", "mean")
        return {key: value for key, value in payloads[name].items() if key not in common}

    both = {"accelerator_labels": ["h-gpu0", "h-gpu1"]}
    assert fields("gpu_xid_errors") == {"values": [0, 0], "codes": [[], []], **both}
    assert fields("gpu_ecc_corrected_errors") == {"values": [0, 3], "aggregate": [0, 30], **both}
    assert fields("gpu_ecc_uncorrected_errors") == {"values": [0, 1], "aggregate": [0, 2], **both}
    assert fields("gpu_remapped_rows") == {"values": [0, 3], "pending": [False, True], "failed": [False, False], **both}
    assert fields("gpu_throttle_reasons") == {
        "values": [0, 1],
        "reasons": [[], ["hw_thermal_slowdown"]],
        "sm_clock_mhz": [345, 900],
        "max_sm_clock_mhz": [1980, 1980],
        **both,
    }
    assert fields("gpu_nvlink_active_links") == {
        "values": [3, 2],
        "links": [3, 3],
        "inactive_links": [[], [1]],
        **both,
    }
    assert fields("gpu_nvlink_errors") == {
        "values": [27],
        "replay": [11],
        "recovery": [1],
        "crc": [15],
        "accelerator_labels": ["h-gpu1"],  # The other one counts none.
    }


def test_an_xid_error_is_recorded_in_the_next_collection_with_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    health = Health(Driver([Gpu("GPU-aa"), Gpu("GPU-bb")]), monkeypatch)
    assert health.collect()["gpu_xid_errors"].values == [0, 0]
    assert health.driver.registered == [(0, XID), (1, XID)]
    assert health.collect(10) == {}
    health.driver.events = [(1, XID, 48), (1, XID, 79), (1, XID, 79)]
    reading = health.collect(10)["gpu_xid_errors"]
    assert (reading.values, reading.beside["codes"]) == ([0, 3], [[], [48, 79]])
    assert health.collect(10) == {}
    health.driver.events = [(0, XID, 31)]
    reading = health.collect(10)["gpu_xid_errors"]
    assert (reading.values, reading.beside["codes"]) == ([1, 3], [[31], [48, 79]])


def test_a_storm_of_errors_fills_no_entry_and_no_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    health = Health(Driver([Gpu("GPU-aa")]), monkeypatch)
    health.collect()
    health.driver.events = [(0, XID, code) for code in range(100_000)]
    reading = health.collect(10)["gpu_xid_errors"]
    assert len(reading.beside["codes"][0]) == 16
    assert len(health.driver.events) > 90_000  # Left for the next collections.


def test_an_unchanged_state_is_recorded_once_a_minute_and_a_clock_is_no_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Gpu("GPU-aa", reasons=0)
    health = Health(Driver([device]), monkeypatch)
    assert health.collect().keys() == {"gpu_xid_errors", "gpu_throttle_reasons"}
    device.clocks = (1200, 1980)
    assert health.collect(10) == {}
    device.reasons = pynvml.nvmlClocksEventReasonSwPowerCap
    assert health.collect(10)["gpu_throttle_reasons"].beside["reasons"] == [["sw_power_cap"]]
    assert health.collect(REPEAT_SECONDS).keys() == {"gpu_xid_errors", "gpu_throttle_reasons"}


def test_a_driver_with_the_older_names_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver([Gpu("GPU-aa", reasons=pynvml.nvmlClocksThrottleReasonHwSlowdown)])
    driver.has_new_names = False
    assert Health(driver, monkeypatch).collect()["gpu_throttle_reasons"].beside["reasons"] == [["hw_slowdown"]]


def test_what_a_gpu_does_not_have_is_absent_and_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Health(Driver([Gpu("GPU-aa", has_events=False)]), monkeypatch).collect() == {}
    assert Health(Driver([]), monkeypatch).collect() == {}


def test_a_pynvml_without_a_function_costs_only_its_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pynvml, "nvmlDeviceGetRemappedRows")
    readings = Health(Driver([Gpu("GPU-aa", remapped_rows=(0, 0, 0, 0), reasons=0)]), monkeypatch).collect()
    assert readings.keys() == {"gpu_xid_errors", "gpu_throttle_reasons"}


@pytest.mark.skipif(not gpu.may_have_gpu(Path("/dev")), reason="there is no NVIDIA driver")
def test_a_real_gpu_answers() -> None:
    readings = {reading.name: reading for reading in GpuHealth(GpuMeter(lambda uuid: True, environ={}).gpus).collect()}
    assert readings["gpu_throttle_reasons"].beside["max_sm_clock_mhz"][0] > 0
    assert readings["gpu_xid_errors"].values[0] >= 0
