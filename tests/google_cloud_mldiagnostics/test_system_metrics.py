"""Hosts and chips are measured while the run is active, and the job does not wait for it."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pynvml
import pytest
from google_cloud_mldiagnostics._recording.run_log import RunLog
from google_cloud_mldiagnostics._system_metrics import Reading, cgroup, gpu, host, payload_of, tpu
from google_cloud_mldiagnostics._system_metrics.gpu import GpuMeter, is_visible
from google_cloud_mldiagnostics._system_metrics.host import HostMeter, ProcessMeter
from google_cloud_mldiagnostics._system_metrics.sampler import Bounded, Claims, SystemMetrics
from google_cloud_mldiagnostics.core.global_manager import ActiveRun
from google_cloud_mldiagnostics.metric_types import AcceleratorType
from google_cloud_mldiagnostics.mlrun_types import MLRun
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.guard import LOSSES
from ml_diagnostics_common.worker import Interval

from ..waiting import wait_until
from .kept_entries import kept_entries
from .nvidia_driver import Driver, Gpu

HOST = "host-a"


@pytest.fixture
def run(tmp_path: Path) -> ActiveRun:
    log = RunLog("my-run", location="us-central1", project="", labels={}, is_shipped=False, root=tmp_path)
    return ActiveRun(
        run=MLRun(name="my-run"),
        log=log,
        folder=tmp_path / "runs" / "my-run",
        host=HOST,
        process_index=3,
        process_count=4,
        pid=os.getpid(),
        is_local=True,
    )


def metric_names(root: Path) -> list[str]:
    return [entry.resource_label("namespace") for entry in kept_entries(root=root)]


def by_name(readings: list[Reading]) -> dict[str, Reading]:
    named = {reading.name: reading for reading in readings}
    assert len(named) == len(readings)
    return named


# --- The thread ---------------------------------------------------------------------------------------


def test_a_run_of_any_length_has_metrics_of_its_host(run: ActiveRun, tmp_path: Path) -> None:
    metrics = SystemMetrics(run, 0.2, chips=[])
    metrics.start()
    wait_until(lambda: "host_cpu_utilization" in metric_names(tmp_path))
    assert metrics.stop(10)
    entries = kept_entries(root=tmp_path)
    names = {entry.resource_label("namespace") for entry in entries}
    assert names >= {
        "host_cpu_utilization",
        "host_cpu_share",
        "host_memory_utilization",
        "process_cpu_utilization",
        "process_memory",
    }
    for entry in entries:
        payload = entry.payload
        assert payload["hostname"] == HOST
        assert payload["process_index"] == "3"
        assert payload["unit"] in ("%", "bytes", "bytes/s")
        assert "step_index" not in payload
        [value] = payload["values"]
        assert value >= 0
    memory = next(e for e in entries if e.resource_label("namespace") == "host_memory_utilization").payload
    assert memory["values"] == [pytest.approx(100 * memory["used_bytes"] / memory["total_bytes"])]
    assert run.log.averages.as_dict()["host_memory_utilization"]["count"] > 0


def test_a_short_run_is_measured_at_its_end(run: ActiveRun, tmp_path: Path) -> None:
    metrics = SystemMetrics(run, 3600, chips=[])
    metrics.start()
    wait_until(lambda: metric_names(tmp_path))
    time.sleep(1.1)
    assert metrics.stop(10)
    assert metric_names(tmp_path).count("process_cpu_utilization") == 1
    assert metric_names(tmp_path).count("process_memory") == 2


def test_the_entries_of_a_collection_have_one_time(run: ActiveRun, tmp_path: Path) -> None:
    readings = [Reading("one", "%", [1.0]), Reading("two", "%", [2.0])]
    metrics = SystemMetrics(run, 0.1, host=[lambda: readings[:1], lambda: readings[1:]], chips=[])
    metrics.start()
    wait_until(lambda: len(metric_names(tmp_path)) >= 6)
    metrics.stop(10)
    times = collections.Counter(entry.timestamp_ns for entry in kept_entries(root=tmp_path))
    assert set(times.values()) == {2}


def test_neither_start_nor_stop_waits_for_a_source_that_hangs(run: ActiveRun, tmp_path: Path) -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    def hang() -> list[Reading]:
        hangs.set()
        goes_on.wait()
        return []

    metrics = SystemMetrics(run, 0.1, host=[lambda: [Reading("fine", "%", [1.0])]], chips=[hang])
    metrics.start()
    assert hangs.wait(10)
    assert not metrics.stop(0.05)
    goes_on.set()
    assert metrics.stop(10)


def test_a_chip_that_hangs_costs_its_own_metrics_and_no_others(
    run: ActiveRun, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    goes_on = threading.Event()
    asked: list[int] = []

    def hang() -> list[Reading]:
        asked.append(1)
        goes_on.wait()
        return [Reading("late", "%", [1.0])]

    chips = [Bounded("the driver", hang, timeout_seconds=0.01).collect]
    metrics = SystemMetrics(run, 0.1, host=[lambda: [Reading("fine", "%", [1.0])]], chips=chips)
    metrics.start()
    wait_until(lambda: metric_names(tmp_path).count("fine") >= 4)
    assert len(asked) == 1  # One thread waits, not one per collection.
    assert [record.getMessage().split(" for ")[0] for record in caplog.records] == ["the driver has not answered"]
    assert LOSSES["system_metrics: the driver does not answer"] >= 3
    assert "late" not in metric_names(tmp_path)
    goes_on.set()
    wait_until(lambda: "late" in metric_names(tmp_path))
    assert metrics.stop(10)


def test_a_source_that_fails_costs_its_own_metrics_and_no_others(
    run: ActiveRun, tmp_path: Path, in_production: None, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> list[Reading]:
        raise OSError("no such file")

    metrics = SystemMetrics(
        run, 0.1, host=[fail, lambda: [Reading("fine", "%", [1.0])]], chips=[Bounded("chips", fail).collect]
    )
    metrics.start()
    wait_until(lambda: metric_names(tmp_path).count("fine") >= 3)
    assert metrics.stop(10)
    assert LOSSES["SystemMetrics: OSError"] >= 6
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no such file" in caplog.text


def test_a_forked_child_measures_nothing_and_stops_nothing(run: ActiveRun, tmp_path: Path) -> None:
    metrics = SystemMetrics(dataclasses.replace(run, pid=os.getppid()), 0.1)
    metrics.start()
    assert metrics.stop(0)
    assert metric_names(tmp_path) == []


def test_stopping_twice_or_before_the_start_is_not_an_error(run: ActiveRun) -> None:
    metrics = SystemMetrics(run, 0.1, host=[], chips=[])
    assert metrics.stop(1)
    metrics.start()
    assert metrics.stop(10)
    assert metrics.stop(10)
    assert metrics.stop(10)


@given(
    st.floats(0.1, 1e4),
    st.lists(st.floats(0, 3), max_size=20),
)
def test_delays_do_not_accumulate(interval: float, works: list[float]) -> None:
    """A collection that takes `work` intervals does not shift the next ones: all are at whole intervals."""
    first = 1000.0
    moments = Interval(interval, first)
    for work in works:
        now = moments.due + work * interval
        following = moments.advance(now)
        assert -1e-6 < following - now <= interval * 1.001
        count = (following - first) / interval
        assert abs(count - round(count)) < 1e-6


# --- The host -----------------------------------------------------------------------------------------


def test_100_percent_is_one_core_and_the_share_is_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([_cpu_times(user=10, idle=90), _cpu_times(user=40, idle=100)])
    monkeypatch.setattr(psutil, "cpu_times", lambda: next(times))
    monkeypatch.setattr(psutil, "cpu_count", lambda: 8)
    meter = HostMeter(monotonic=iter([0.0, 5.0]).__next__)
    assert "host_cpu_utilization" not in by_name(meter.collect())  # A rate needs two samples.
    readings = by_name(meter.collect())
    assert readings["host_cpu_share"].values == [75.0]
    assert readings["host_cpu_utilization"].values == [600.0]
    assert readings["host_cpu_utilization"].beside == {"cores": 8}


def _cpu_times(**seconds: float) -> Any:
    fields = dict.fromkeys(("user", "nice", "system", "idle", "iowait", "guest", "guest_nice"), 0.0) | seconds
    return collections.namedtuple("scputimes", fields)(**fields)


def test_a_core_that_is_busy_is_seen() -> None:
    meter = ProcessMeter(monotonic=itertools.count().__next__)  # A wait for a core does not make it less busy.
    meter.collect()
    time.sleep(0.2)
    idle = by_name(meter.collect())["process_cpu_utilization"].values[0]
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    busy = by_name(meter.collect())["process_cpu_utilization"].values[0]
    assert busy > 2 * idle
    assert by_name(meter.collect())["process_memory"].values[0] > 1 << 20


def test_throughput_is_of_bytes_a_second_and_each_byte_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = collections.namedtuple("counter", "read_bytes write_bytes bytes_recv bytes_sent")
    disks = iter(
        [
            {"sda": counter(0, 100, 0, 0), "sda1": counter(0, 100, 0, 0), "old": counter(5, 5, 0, 0)},
            {"sda": counter(4000, 100, 0, 0), "sda1": counter(4000, 0, 0, 0), "new": counter(9, 9, 0, 0)},
        ]
    )
    networks = iter(
        [
            {"lo": counter(0, 0, 0, 0), "eth0": counter(0, 0, 500, 1000)},
            {"lo": counter(0, 0, 10**9, 10**9), "eth0": counter(0, 0, 2500, 0)},  # Sent: the counter was reset.
        ]
    )
    monkeypatch.setattr(psutil, "disk_io_counters", lambda perdisk: next(disks))
    monkeypatch.setattr(psutil, "net_io_counters", lambda pernic: next(networks))
    monkeypatch.setattr(host, "is_disk", lambda name: name != "sda1")
    monkeypatch.setattr(host, "outer_networks", lambda names: [name for name in names if name != "lo"])
    meter = HostMeter(monotonic=iter([0.0, 2.0]).__next__)
    meter.collect()
    readings = by_name(meter.collect())
    rates = {name: reading.values for name, reading in readings.items() if reading.unit == "bytes/s"}
    assert rates == {
        "host_disk_read_throughput": [2000.0],
        "host_disk_write_throughput": [0.0],
        "host_network_receive_throughput": [1000.0],
        "host_network_send_throughput": [0.0],
    }


def test_a_host_without_disks_or_networks_has_no_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "disk_io_counters", lambda perdisk: None)
    monkeypatch.setattr(psutil, "net_io_counters", lambda pernic: {})
    meter = HostMeter()
    meter.collect()
    time.sleep(0.05)
    assert not [reading for reading in meter.collect() if "throughput" in reading.name]


def test_partitions_volumes_and_loops_are_not_counted_as_disks(tmp_path: Path) -> None:
    for name in ("nvme0n1", "dm-0", "loop0"):
        (tmp_path / "block" / name / "slaves").mkdir(parents=True)
    (tmp_path / "block/dm-0/slaves/nvme0n1").touch()
    disks = [name for name in ("nvme0n1", "nvme0n1p1", "dm-0", "loop0") if host.is_disk(name, tmp_path)]
    assert disks == ["nvme0n1"]
    assert host.is_disk("disk0", tmp_path / "not linux")


def test_bridges_count_only_where_there_is_no_hardware(tmp_path: Path) -> None:
    (tmp_path / "class/net/ens4/device").mkdir(parents=True)
    (tmp_path / "class/net/docker0").mkdir()
    assert host.outer_networks(dict.fromkeys(["lo", "ens4", "docker0", "veth1"]), tmp_path) == ["ens4"]
    assert host.outer_networks(dict.fromkeys(["lo", "eth0"]), tmp_path) == ["eth0"]


def test_a_containers_memory_is_that_of_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "memory_limit_bytes", lambda: 1000)
    monkeypatch.setattr(cgroup, "memory_used_bytes", lambda: 900)
    readings = by_name(HostMeter().collect())
    assert readings["container_memory_utilization"].values == [90.0]
    assert readings["container_memory_utilization"].beside == {"used_bytes": 900, "total_bytes": 1000}
    monkeypatch.setattr(cgroup, "memory_limit_bytes", lambda: None)
    assert "container_memory_utilization" not in by_name(HostMeter().collect())


# --- The wire -----------------------------------------------------------------------------------------


def test_each_chip_keeps_its_own_value_with_its_label() -> None:
    reading = Reading("tpu_duty_cycle", "%", [10.0, 20.0, 60.0], ["tpu0", "tpu1", "tpu3"], AcceleratorType.TPU)
    assert payload_of(reading, HOST, 1) == {
        "values": [10.0, 20.0, 60.0],
        "unit": "%",
        "hostname": "host-a",
        "process_index": "1",
        "accelerator_type": "tpu",
        "accelerator_labels": ["host-a-tpu0", "host-a-tpu1", "host-a-tpu3"],
        "mean": 30.0,
    }


# --- TPU ----------------------------------------------------------------------------------------------

LIBTPU = """
import threading, time
asked = []
class _Metric:
    def __init__(self, name): self._name = name
    def data(self): return DATA.get(self._name, [])
def list_supported_metrics(): return list(DATA)
def get_metric(name):
    asked.append((name, threading.current_thread() is threading.main_thread()))
    BEFORE()
    return _Metric(name)
BEFORE = lambda: None
DATA = {
    "duty_cycle_pct": ["10.00", "20.00", "30.00", "40.00"],
    "tensorcore_util": ["1.5", "2.5", "n/a", "4.5"],
    "hbm_capacity_usage": ["100", "200", "300", "400"],
    "hbm_capacity_total": ["1000", "1000", "0", "1000"],
    "hlo_queue_size": ["0"],
}
"""


@pytest.fixture
def libtpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """Install a stand-in for the real module, and simulate a job that has started its TPU runtime."""
    package = tmp_path / "site" / "libtpu" / "sdk"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "tpumonitoring.py").write_text(LIBTPU)
    loaded = [name for name in sys.modules if name.split(".")[0] == "libtpu"]
    for name in loaded:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    monkeypatch.delenv("MLRUN_SKIP_LIBTPU", raising=False)
    bridge = types.SimpleNamespace(backends_are_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)
    yield lambda: sys.modules.get("libtpu.sdk.tpumonitoring")
    for name in [name for name in sys.modules if name.split(".")[0] == "libtpu"]:
        del sys.modules[name]


def test_chips_of_a_tpu_are_measured_each(libtpu: Callable[[], Any]) -> None:
    readings = by_name(tpu.collect_tpu())
    assert readings["tpu_duty_cycle"].values == [10.0, 20.0, 30.0, 40.0]
    assert readings["tpu_duty_cycle"].chips == ["tpu0", "tpu1", "tpu2", "tpu3"]
    assert readings["tpu_tensorcore_utilization"].values == [1.5, 2.5, 4.5]
    assert readings["tpu_tensorcore_utilization"].chips == ["tpu0", "tpu1", "tpu3"]
    hbm = readings["hbm_utilization"]
    assert (hbm.values, hbm.chips) == ([10.0, 20.0, 40.0], ["tpu0", "tpu1", "tpu3"])
    assert hbm.beside == {"used_bytes": [100, 200, 400], "total_bytes": [1000, 1000, 1000]}


@pytest.mark.parametrize(
    ("cores", "chips"),
    [
        (["10", "30", "n/a", "40", "0", "0", "n/a", "n/a"], {"tpu0": 20.0, "tpu1": 40.0, "tpu2": 0.0}),
        (
            ["1", "2", "3"],
            {"tpu0": 1.0, "tpu1": 2.0, "tpu2": 3.0},
        ),  # Not the same number on each chip: recorded unchanged.
        ([], {}),
    ],
)
def test_cores_of_one_chip_are_recorded_as_their_mean(
    libtpu: Callable[[], Any], cores: list[str], chips: dict[str, float]
) -> None:
    tpu.collect_tpu()
    libtpu().DATA["tensorcore_util"] = cores
    readings = by_name(tpu.collect_tpu())
    found = readings.get("tpu_tensorcore_utilization")
    assert (dict(zip(found.chips, found.values, strict=True)) if found else {}) == chips


def test_only_metrics_that_libtpu_knows_are_asked_for(libtpu: Callable[[], Any]) -> None:
    tpu.collect_tpu()
    module = libtpu()
    module.DATA = {"duty_cycle_pct": []}
    module.asked.clear()
    assert tpu.collect_tpu() == []
    assert [name for name, _ in module.asked] == ["duty_cycle_pct"]


def test_a_libtpu_that_blocks_for_minutes_delays_no_other_metric(
    libtpu: Callable[[], Any], run: ActiveRun, tmp_path: Path
) -> None:
    tpu.collect_tpu()
    goes_on = threading.Event()
    libtpu().BEFORE = goes_on.wait
    libtpu().asked.clear()
    metrics = SystemMetrics(run, 0.1)
    metrics.start()
    wait_until(lambda: libtpu().asked and metric_names(tmp_path).count("host_memory_utilization") >= 2)
    assert libtpu().asked == [("duty_cycle_pct", False)]
    assert "tpu_duty_cycle" not in metric_names(tmp_path)
    goes_on.set()
    wait_until(lambda: "tpu_duty_cycle" in metric_names(tmp_path))
    assert metrics.stop(10)
    [entry, *_] = [e for e in kept_entries(root=tmp_path) if e.resource_label("namespace") == "tpu_duty_cycle"]
    assert entry.payload["values"] == [10.0, 20.0, 30.0, 40.0]
    assert entry.payload["accelerator_labels"][3] == "host-a-tpu3"


def test_libtpu_is_not_asked_before_the_jobs_own_runtime_is_up(
    libtpu: Callable[[], Any], run: ActiveRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_up = False
    bridge = types.SimpleNamespace(backends_are_initialized=lambda: is_up)
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)
    metrics = SystemMetrics(run, 0.1)
    metrics.start()
    wait_until(lambda: metric_names(tmp_path).count("host_memory_utilization") >= 3)
    assert libtpu() is None
    is_up = True
    wait_until(lambda: "tpu_duty_cycle" in metric_names(tmp_path))
    metrics.stop(10)


def test_libtpu_is_queried_only_where_it_can_answer_at_once(tmp_path: Path) -> None:
    devices = tmp_path / "dev"
    (devices / "vfio").mkdir(parents=True)
    (devices / "vfio" / "vfio").touch()  # It exists wherever the kernel's module is loaded.
    assert not tpu.may_have_tpu({}, devices)
    assert tpu.may_have_tpu({"TPU_SKIP_MDS_QUERY": "1"}, devices)
    assert not tpu.may_have_tpu({}, tmp_path / "nothing")
    (devices / "vfio" / "0").touch()
    assert tpu.may_have_tpu({}, devices)
    assert not tpu.may_have_tpu({"MLRUN_SKIP_LIBTPU": "1"}, devices)
    (devices / "accel0").touch()
    (devices / "vfio" / "0").unlink()
    assert tpu.may_have_tpu({}, devices)


# --- GPU ----------------------------------------------------------------------------------------------


def test_gpus_are_measured_each_and_over_the_whole_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(
        [
            Gpu("GPU-aa", utilization=7, used_bytes=20 << 30, tensor=42.5, samples=[(10, 40), (20, 60)]),
            Gpu("GPU-bb", utilization=30, used_bytes=None),
        ]
    ).installed(monkeypatch)
    meter = GpuMeter(lambda uuid: True, environ={})
    first = by_name(meter.collect())
    assert first["gpu_duty_cycle"].values == [50.0, 30.0]  # The mean of the samples, if there are some.
    assert first["gpu_utilization"].values == [7.0, 30.0]
    assert first["gpu_utilization"].chips == ["gpu0", "gpu1"]
    assert first["gpu_utilization"].accelerator is AcceleratorType.GPU
    assert (first["vram_utilization"].values, first["vram_utilization"].chips) == ([25.0], ["gpu0"])
    assert first["vram_utilization"].beside == {"used_bytes": [20 << 30], "total_bytes": [80 << 30]}
    assert "gpu_tensorcore_utilization" not in first  # A rate needs two samples.
    driver.gpus[0].samples.append((30, 100))
    for _ in range(5):
        second = by_name(meter.collect())
    assert second["gpu_tensorcore_utilization"].values == [42.5]
    assert second["gpu_tensorcore_utilization"].chips == ["gpu0"]
    assert driver.samples_alive == 1


def test_gpus_are_detected_only_where_there_is_a_driver(
    run: ActiveRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not gpu.may_have_gpu(tmp_path)
    (tmp_path / "nvidiactl").touch()
    assert gpu.may_have_gpu(tmp_path)
    monkeypatch.setattr(gpu, "may_have_gpu", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    Driver([Gpu("GPU-aa", utilization=7), Gpu("GPU-bb", utilization=30)]).installed(monkeypatch)
    metrics = SystemMetrics(run, 0.1)
    metrics.start()
    wait_until(lambda: "gpu_utilization" in metric_names(tmp_path))
    assert metrics.stop(10)
    entry = next(
        entry for entry in kept_entries(root=tmp_path) if entry.resource_label("namespace") == "gpu_utilization"
    )
    assert entry.payload["values"] == [7.0, 30.0]
    assert entry.payload["accelerator_type"] == "gpu"
    assert entry.payload["accelerator_labels"] == ["host-a-gpu0", "host-a-gpu1"]


def test_samples_of_earlier_collections_are_not_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver([Gpu("GPU-aa", utilization=7, samples=[(10, 40)])]).installed(monkeypatch)
    meter = GpuMeter(lambda uuid: True, environ={})
    meter.collect()
    driver.gpus[0].samples.append((20, 100))
    assert by_name(meter.collect())["gpu_duty_cycle"].values == [100.0]


def test_values_that_a_gpu_does_not_support_are_absent_and_not_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    Driver([Gpu("GPU-aa", utilization=None, used_bytes=None)]).installed(monkeypatch)
    assert GpuMeter(lambda uuid: True, environ={}).collect() == []


def test_a_missing_driver_is_not_an_error_and_records_no_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver([Gpu("GPU-aa")]).installed(monkeypatch)
    driver.nvmlInitWithFlags = lambda flags: pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert GpuMeter(lambda uuid: True, environ={}).collect() == []


def test_a_missing_pynvml_is_not_an_error_and_records_no_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert GpuMeter(lambda uuid: True, environ={}).collect() == []


def test_gpus_of_another_process_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    Driver([Gpu(f"GPU-{index}", utilization=index) for index in range(4)]).installed(monkeypatch)
    meter = GpuMeter(lambda uuid: uuid != "GPU-2", environ={"CUDA_VISIBLE_DEVICES": "1,2,3"})
    assert by_name(meter.collect())["gpu_utilization"].chips == ["gpu1", "gpu3"]


@pytest.mark.parametrize(
    ("visible", "is_shown"),
    [
        (None, True),
        ("0,1", True),
        ("1, 0", True),
        ("1", False),
        ("GPU-8b2c", True),
        ("GPU-ffff", False),
        ("", False),
        ("-1", False),
        ("1,-1,0", False),
        ("MIG-8b2c", False),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(visible: str | None, is_shown: bool) -> None:
    assert is_visible(0, "GPU-8b2c-44", visible) is is_shown


# --- Several processes of one host --------------------------------------------------------------------


def test_a_host_is_measured_by_one_process_and_by_the_next_when_that_is_gone(tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        import time
        from pathlib import Path
        from google_cloud_mldiagnostics._system_metrics.sampler import Claims
        claims = Claims(Path({str(tmp_path)!r}), "host/a")
        print(claims.hold("host"), claims.hold("host"), claims.hold("gpu"), flush=True)
        time.sleep(60)
        """
    )
    ours = Claims(tmp_path, "host/a")
    assert ours.hold("gpu")
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline().split() == ["True", "True", "False"]
        assert not ours.hold("host")
        assert Claims(tmp_path, "host-b").hold("host")
        other.kill()
    wait_until(lambda: ours.hold("host"))
    ours.release()
    assert Claims(tmp_path, "host/a").hold("gpu")


def test_without_file_locks_each_process_measures(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert Claims(tmp_path / "file" / "locks", HOST).hold("host")


# --- Cost ---------------------------------------------------------------------------------------------


def test_starting_imports_nothing_in_the_jobs_thread(tmp_path: Path) -> None:
    program = """
        import json, os, sys, threading
        loaded = {}
        class Watch:
            def find_spec(self, name, path=None, target=None):
                if name in ("psutil", "pynvml", "libtpu"):
                    loaded[name] = threading.current_thread() is threading.main_thread()
        sys.meta_path.insert(0, Watch())
        from pathlib import Path
        from google_cloud_mldiagnostics._run_state.active_run import ActiveRun
        from google_cloud_mldiagnostics.mlrun_types import MLRun
        from google_cloud_mldiagnostics._recording.run_log import RunLog
        from google_cloud_mldiagnostics._system_metrics.sampler import SystemMetrics
        root = Path(sys.argv[1])
        log = RunLog("r", location="l", project="", labels={}, is_shipped=False, root=root)
        run = ActiveRun(MLRun(name="r"), log, root / "r", "h", 0, 1, os.getpid(), True)
        metrics = SystemMetrics(run, 0.1)
        metrics.start()
        while "process_memory" not in log.averages.as_dict():
            pass
        metrics.stop(10)
        print(json.dumps(loaded))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    loaded = json.loads(done.stdout)
    assert loaded == {"psutil": False}  # And pynvml, which takes 0.1 s, not where there is no driver.
    assert done.stderr == ""


def test_a_process_ends_while_a_source_hangs(tmp_path: Path) -> None:
    program = """
        import os, sys, time
        from pathlib import Path
        from google_cloud_mldiagnostics._run_state.active_run import ActiveRun
        from google_cloud_mldiagnostics.mlrun_types import MLRun
        from google_cloud_mldiagnostics._recording.run_log import RunLog
        from google_cloud_mldiagnostics._system_metrics.sampler import Bounded, SystemMetrics
        root = Path(sys.argv[1])
        log = RunLog("r", location="l", project="", labels={}, is_shipped=False, root=root)
        run = ActiveRun(MLRun(name="r"), log, root / "r", "h", 0, 1, os.getpid(), True)
        metrics = SystemMetrics(run, 0.1, chips=[Bounded("chips", lambda: time.sleep(3600), 0.2).collect])
        metrics.start()
        while "process_memory" not in log.averages.as_dict():
            time.sleep(0.01)
        print(metrics.stop(10))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "True"
    assert "chips has not answered" in done.stderr
    assert "host_memory_utilization" in metric_names(tmp_path)
