"""The conversion of profile files to a `Summary`, with XProf's converters.

`overview_page` has utilization and input, `pod_viewer` each step on each core, and `hlo_stats` (on a GPU
`kernel_stats`) the operations.

`xprofiler summary` reads a profile in a process of its own: XProf's converters log to standard error, and may crash on
damaged files, which becomes an error message here. The request is JSON on standard input, the answer JSON on standard
output.
"""

from __future__ import annotations

import html
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec
from ml_diagnostics_common.command.console import Console
from ml_diagnostics_common.command.errors import CommandError
from ml_diagnostics_common.texts import format_bytes

from xprofiler.summary.cause import activities_of, cause_of, compilations_of, slow_host_of, time_percent_of
from xprofiler.summary.converters import (
    Tables,
    converted,
    require_disk_space,
    require_xprof,
    tool_names,
    tools_with_data,
)
from xprofiler.summary.host_operations import HostOperations, ProfileWindow, add_operations, profile_window
from xprofiler.summary.host_time import HostTime, host_time
from xprofiler.summary.pods import core_steps, host_steps, hosts_of, numbered, steps_of
from xprofiler.summary.summary import InputPipeline, Operation, Summary, mean_parts
from xprofiler.summary.xspace import read_planes

__all__ = ["main", "operations_of", "summarize", "summarized"]

_TAG = re.compile(r"<[^>]*>")
_UTILIZATION: Final = {
    "FLOP rate, of the roofline": "flop_rate_utilization_relative_to_roofline",
    "memory bandwidth, of the hardware's": "memory_bw_utilization_relative_to_hw_limit",
    "matrix unit": "mxu_utilization_percent",
    "duty cycle": "device_duty_cycle_percent",
}
_MOST_BYTES: Final = 300_000_000  # About 3 GB in memory.
_INPUT_PARTS: Final = {
    "enqueueing": "enqueue_us",
    "preprocessing": "preprocessing_us",
    "reading files in advance": "advanced_file_read_us",
    "reading files on demand": "demanded_file_read_us",
    "other": "unclassified_nonequeue_us",
}


def summarize(session: str, files: Mapping[str, Path]) -> Summary:
    """Return the summary of a profile. XProf logs to standard error, and writes caches beside the files.

    Args:
        session: The session's name.
        files: The file of each host.

    Raises:
        CommandError: XProf can read none of the files, or the disk is full.
    """
    require_disk_space(list(files.values()))
    readable, notes = _readable(files)
    paths = list(readable.values())
    overview = Tables(converted(paths, "overview_page") or [])
    operations = operations_of(Tables(converted(paths, "hlo_stats") or []))
    operations = operations or _kernels_of(Tables(converted(paths, "kernel_stats") or []))
    devices = int(overview.number("device_core_count") or 0)
    on_hosts = None if operations or devices else HostOperations()
    read = _read_hosts(readable, on_hosts)
    on_cores = core_steps(converted(paths, "pod_viewer") or {}, list(readable)) if devices else []
    rounds = numbered(on_cores, read.times.values()) or host_steps(read.times)
    steps = steps_of(rounds)
    busy, busy_on = _busy(overview, devices, on_hosts)
    sizes = {host: file.stat().st_size for host, file in files.items()}
    hosts = hosts_of(sizes, read.windows, rounds, steps)
    slow_host = slow_host_of(hosts, read.times)
    times = list(read.times.values())
    return Summary(
        session=session,
        device=overview.text("device_type") or "unknown device",
        device_count=devices,
        hosts=hosts,
        steps=steps,
        busy_percent=busy,
        busy_on=busy_on,
        utilization=_utilization(overview) if devices else {},
        operations=operations or _host_operations(on_hosts),
        input=_input(overview, paths) if devices else InputPipeline(),
        notes=[*notes, *read.notes, *(_plain(row["message"]) for row in overview.rows("severity"))],
        tools=tools_with_data(paths, has_devices=bool(devices)),
        cause=cause_of(read.times, mean_parts(steps), slow_host, devices),
        slow_host=slow_host,
        time_percent=time_percent_of(times),
        activities=activities_of(times),
        compilations=compilations_of(times),
    )


@dataclass
class _Hosts:
    windows: dict[str, ProfileWindow] = field(default_factory=dict)
    times: dict[str, HostTime] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def _read_hosts(files: Mapping[str, Path], operations: HostOperations | None) -> _Hosts:
    """Read what XProf's tables lack from the files, one after the other, since each is completely in memory."""
    read = _Hosts()
    for host, file in files.items():
        if file.stat().st_size > _MOST_BYTES:
            read.notes.append(
                f"{host}: its profile is larger than {format_bytes(_MOST_BYTES)}; host events are not read"
            )
            continue
        planes = read_planes(file)
        read.windows[host] = profile_window(planes)
        time = host_time(planes)
        if time is not None:
            read.times[host] = time
        if operations is not None:
            add_operations(planes, operations)
    return read


def _readable(files: Mapping[str, Path]) -> tuple[dict[str, Path], list[str]]:
    """Return the files that XProf can read, and a note for each of the others."""
    readable = {host: file for host, file in files.items() if file.stat().st_size}
    if len(tool_names(readable.values())) == 0:  # One truncated file makes XProf reject all.
        readable = {host: file for host, file in readable.items() if tool_names([file])}
    broken = sorted(set(files) - set(readable))
    if not readable:
        raise CommandError(
            f"XProf cannot read the profile of {', '.join(broken)}: the file is empty, truncated, or not a profile; "
            "capture it again"
        )
    return readable, [f"{host}: its profile is empty or truncated, and is left out" for host in broken]


def operations_of(stats: Tables) -> list[Operation]:
    """Return the operations in XProf's HLO statistics, the slowest first."""
    found = [
        Operation(
            name=str(row["hlo_op_name"]),
            category=str(row["category"]),
            runs=int(row["occurrences"]),
            self_us=float(row["total_self_time"]),
            percent=0.0,
            framework_name=str(row["tf_op_name"] or ""),
            bound_by=str(row["bound_by"] or "").replace("Unknown", ""),
            gflops_per_second=_known(row["normalized_flop_rate"]),
            gib_per_second=_known(row["measured_memory_bw"]),
        )
        for row in stats.rows("hlo_op_name")
        if str(row["category"]) != "IDLE"
    ]
    return _with_shares(found)


def _known(rate: Any) -> float | None:
    """Return a rate; None if XProf could not compute it, and wrote 0 or a value that is not a number."""
    return float(rate) if isinstance(rate, (int, float)) and math.isfinite(rate) and rate > 0 else None


def _kernels_of(stats: Tables) -> list[Operation]:
    return _with_shares(
        [
            Operation(
                name=str(row["kernel_name"]),
                category="kernel",
                runs=int(row["occurrences"]),
                self_us=float(row["total_duration_us"]),
                percent=0.0,
                framework_name=str(row["op_name"] or ""),
            )
            for row in stats.rows("kernel_name")
        ]
    )


def _host_operations(found: HostOperations | None) -> list[Operation]:
    if found is None:
        return []
    return _with_shares(
        [Operation(name, "CPU", found.runs[name], spent / 1e3, 0.0) for name, spent in found.self_ns.items()]
    )


def _with_shares(operations: list[Operation]) -> list[Operation]:
    """Return the operations with their shares, the slowest first."""
    total = sum(operation.self_us for operation in operations) or 1.0
    shares = [replace(operation, percent=100 * operation.self_us / total) for operation in operations]
    return sorted(shares, key=lambda operation: (-operation.self_us, operation.name))


def _busy(overview: Tables, devices: int, on_hosts: HostOperations | None) -> tuple[float | None, str]:
    idle = overview.number("device_idle_time_percent")
    if devices and idle is not None:
        return 100 - idle, "device"
    if on_hosts is not None and on_hosts.profiled_ns:
        return min(100.0, 100 * on_hosts.busy_ns / on_hosts.profiled_ns), "host"
    return None, "device"


def _utilization(overview: Tables) -> dict[str, float]:
    values = {name: overview.number(key) for name, key in _UTILIZATION.items()}
    return {name: value for name, value in values.items() if value}


def _input(overview: Tables, paths: list[Path]) -> InputPipeline:
    """Return XProf's analysis of input; without a conclusion if it was not measured, as on the CPU."""
    waiting = overview.number("infeed_percent_average")
    pipeline = Tables(converted(paths, "input_pipeline_analyzer") or [])
    parts = {name: pipeline.number(key) or 0.0 for name, key in _INPUT_PARTS.items()}
    return InputPipeline(
        conclusion="" if waiting is None else _plain(overview.text("input_conclusion")),
        waiting_percent=waiting,
        parts_us={name: spent for name, spent in parts.items() if spent},
    )


def _plain(text: str) -> str:
    """Return XProf's text without HTML."""
    return " ".join(html.unescape(_TAG.sub("", text)).split())


@dataclass(frozen=True)
class _Request:
    session: str
    files: dict[str, str]


@dataclass(frozen=True)
class _Answer:
    summary: Summary | None = None
    error: str = ""


def summarized(session: str, files: Mapping[str, Path], console: Console) -> Summary:
    """Return the summary of a profile, read by another process with `summarize`.

    Raises:
        MissingExtraError: XProf is not installed.
        CommandError: XProf cannot read the files, or failed.
    """
    from ml_diagnostics_common.sidecar import python_argv

    from xprofiler.gcloud.processes import Programs

    require_xprof("a summary of a profile")
    request = msgspec.json.encode(_Request(session, {host: str(file) for host, file in files.items()}))
    with Programs(console) as programs:
        done = programs.run(python_argv(__name__), stdin=request)
    if done.exit_code != 0:
        raise CommandError(f"XProf failed on {session} ({done.exit_code}):\n{done.complaint}")
    for line in done.errors.decode("utf-8", "replace").splitlines():
        console.detail(line)
    answer = msgspec.json.decode(done.output, type=_Answer)
    if answer.summary is None:
        raise CommandError(answer.error)
    return answer.summary


def main() -> None:
    """Answer a request."""
    from ml_diagnostics_common.sidecar_parent import take_stdout

    request = msgspec.json.decode(sys.stdin.buffer.read(), type=_Request)
    messages = take_stdout()
    try:
        answer = _Answer(summarize(request.session, {host: Path(file) for host, file in request.files.items()}))
    except CommandError as error:
        answer = _Answer(error=str(error))
    with messages:
        messages.write(msgspec.json.encode(answer))
