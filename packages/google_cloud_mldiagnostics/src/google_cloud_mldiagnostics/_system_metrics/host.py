"""Metrics of this host and this process by psutil: CPU, memory, disks and network."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ml_diagnostics_common.process_hooks import import_undisturbed

from google_cloud_mldiagnostics._system_metrics import Reading, cgroup

__all__ = ["HostMeter", "ProcessMeter"]

_SYS: Final = Path("/sys")


class _Counters(NamedTuple):
    """Counters since the host started.

    Attributes:
        moment: Seconds of the monotonic clock.
        busy_seconds: The busy time of all cores.
        cpu_seconds: The time of all cores, busy or not.
        disks: Bytes read and written, by disk.
        networks: Bytes received and sent, by interface.
    """

    moment: float
    busy_seconds: float
    cpu_seconds: float
    disks: Mapping[str, tuple[int, int]]
    networks: Mapping[str, tuple[int, int]]


class HostMeter:
    """Measure the host. Rates are averages since the last measurement, so the first has none.

    Args:
        monotonic: The clock, in seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._before: _Counters | None = None

    def collect(self) -> list[Reading]:
        """Return CPU, memory, disk and network of the host, and memory and CPU of a container that has limits."""
        import_undisturbed("psutil", "encodings.ascii")  # Imported here, not in the job's thread.
        import psutil

        before, now = self._before, _counters(psutil, self._monotonic())
        self._before = now
        readings = _memory(psutil)
        if before is not None and now.moment > before.moment:
            readings += _cpu(before, now, psutil.cpu_count() or 1)
            seconds = now.moment - before.moment
            readings += _throughput("host_disk_read", "host_disk_write", before.disks, now.disks, seconds)
            readings += _throughput("host_network_receive", "host_network_send", before.networks, now.networks, seconds)
        return readings


class ProcessMeter:
    """Measures this process alone, not those that it started."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._before: tuple[float, float] | None = None

    def collect(self) -> list[Reading]:
        """Return its memory, and its CPU since the last time."""
        import_undisturbed("psutil")
        import psutil

        readings = [Reading("process_memory", "bytes", [float(psutil.Process().memory_info().rss)])]
        before, now = self._before, (self._monotonic(), time.process_time())
        self._before = now
        if before is not None and now[0] > before[0]:
            share = 100 * (now[1] - before[1]) / (now[0] - before[0])
            readings.append(Reading("process_cpu_utilization", "%", [share]))
        return readings


def _counters(psutil: Any, moment: float) -> _Counters:
    cpu = psutil.cpu_times()._asdict()
    # A guest's time is in user and nice already: proc(5).
    total = sum(cpu.values()) - cpu.get("guest", 0.0) - cpu.get("guest_nice", 0.0)
    disks = psutil.disk_io_counters(perdisk=True) or {}
    networks = psutil.net_io_counters(pernic=True) or {}
    return _Counters(
        moment=moment,
        busy_seconds=total - cpu["idle"] - cpu.get("iowait", 0.0),
        cpu_seconds=total,
        disks={name: (each.read_bytes, each.write_bytes) for name, each in disks.items() if is_disk(name)},
        networks={name: (networks[name].bytes_recv, networks[name].bytes_sent) for name in outer_networks(networks)},
    )


def _cpu(before: _Counters, now: _Counters, cores: int) -> list[Reading]:
    """Return CPU utilisation as `top` has it, with 100 % for one core, and as a share of all cores."""
    total = now.cpu_seconds - before.cpu_seconds
    if total <= 0:  # The interval is shorter than the kernel's tick.
        return []
    share = min(100.0, max(0.0, 100 * (now.busy_seconds - before.busy_seconds) / total))
    return [
        Reading("host_cpu_utilization", "%", [share * cores], beside={"cores": cores}),
        Reading("host_cpu_share", "%", [share]),
    ]


def _memory(psutil: Any) -> list[Reading]:
    memory = psutil.virtual_memory()
    readings = [_share_of_memory("host_memory_utilization", memory.total - memory.available, memory.total)]
    limit, used = cgroup.memory_limit_bytes(), cgroup.memory_used_bytes()
    if limit and used is not None and limit < memory.total:
        readings.append(_share_of_memory("container_memory_utilization", used, limit))
    return readings


def _share_of_memory(name: str, used: int, total: int) -> Reading:
    return Reading(name, "%", [100 * used / total], beside={"used_bytes": used, "total_bytes": total})


def _throughput(
    first: str,
    second: str,
    before: Mapping[str, tuple[int, int]],
    now: Mapping[str, tuple[int, int]],
    seconds: float,
) -> list[Reading]:
    """Return the rates of the devices that both counters have; none if the host has no such device."""
    both = [name for name in now if name in before]
    if not both:
        return []
    # A counter that decreases was reset.
    sums = [sum(max(0, now[name][side] - before[name][side]) for name in both) for side in (0, 1)]
    names = (f"{first}_throughput", f"{second}_throughput")
    return [Reading(name, "bytes/s", [total / seconds]) for name, total in zip(names, sums, strict=True)]


def is_disk(name: str, sys: Path = _SYS) -> bool:
    """Return True for a disk; False for partitions, loop devices and volumes, since a disk counts their bytes.

    Args:
        name: The name in the kernel: nvme0n1.
        sys: The folder of sysfs. Without it (not on Linux), every device of psutil counts as a disk.
    """
    block = sys / "block"
    if not block.is_dir():
        return True
    device = block / name.replace("/", "!")
    try:
        return device.is_dir() and not any((device / "slaves").iterdir()) and not name.startswith(("loop", "ram"))
    except OSError:
        return True


def outer_networks(names: Mapping[str, Any], sys: Path = _SYS) -> list[str]:
    """Return the interfaces through which bytes leave the host: hardware, or in a container without any, all but lo.

    Args:
        names: The names of all interfaces.
        sys: The mount point of sysfs.
    """
    outer = [name for name in names if not name.startswith("lo")]
    hardware = [name for name in outer if (sys / "class" / "net" / name / "device").exists()]
    return hardware or outer
