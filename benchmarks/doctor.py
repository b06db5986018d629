"""The doctor on a job of 128 hosts, one of which ran out of memory: its time and its memory.

Once with a million entries, most of them metrics, and once with step summaries alone.

The journal is written by the journal's own writer, in the form of the libraries' entries: metrics of hosts, step
summaries, process entries and ends.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import commands
from benchmarks.results import Row, Table, seconds

_HOSTS = 128
_METRICS = (
    "host_cpu_utilization",
    "host_memory_utilization",
    "container_memory_utilization",
    "host_network_receive_throughput",
    "tpu_duty_cycle",
    "hbm_utilization",
)
_LONGEST_SECONDS = 5.0
_MOST_MIB = 286.0  # 300 MB
_CULPRIT = 17
_SECOND_NS = 1_000_000_000
_CRASH = 12
"""The exit code of the verdict."""
_SUMMARY_EVERY = 15
_SUMMARIES = 100_000
_RUN = "llama-7-20261127"


def make_job(root: Path, entries: int, now_ns: int, summary_every: int = _SUMMARY_EVERY) -> None:
    """Write the journal and the run of a job that host 17 has ended, with a step summary in so many entries."""
    from google_cloud_mldiagnostics.control_plane.local import LocalControlPlane

    for index in range(_HOSTS):
        _write_host(root, index, entries // _HOSTS, now_ns, summary_every)
    control_plane = LocalControlPlane(root)
    folder = control_plane.folder(_RUN)
    folder.mkdir(parents=True)
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_ns // _SECOND_NS - entries // _HOSTS))
    run = {
        "name": f"projects/local/locations/local/machineLearningRuns/{_RUN}",
        "displayName": "llama-7",
        "createTime": started,
        "runPhase": "FAILED",
        "configs": {"hardwareConfigs": {"num_devices": "512", "accelerator_type": "tpu"}},
        "labels": {"attempt": "1"},
    }
    (folder / "run.json").write_text(json.dumps(run))


def _write_host(root: Path, index: int, count: int, now_ns: int, summary_every: int) -> None:
    from ml_diagnostics_common.journal import Journal

    host = f"tpu-{index}"
    labels = {"job": "llama-7", "run": _RUN, "attempt": "1", "host": host, "process_index": str(index), "pid": "41"}
    moments = iter(range(now_ns - count * _SECOND_NS, now_ns + 10 * _SECOND_NS, _SECOND_NS))
    moment = [next(moments)]

    def clock_ns() -> int:
        return moment[0]

    def node(namespace: str) -> dict[str, Any]:
        return {"node_id": _RUN, "namespace": namespace, "location": "local"}

    process = {"attempt": 1, "hostname": host, "process_index": str(index), "process_count": _HOSTS, "pid": 41}
    resource = {"type": "generic_node", "labels": node("mlrun_process")}
    run = Journal("ml_diagnostics_metric", root=root, labels=labels, resource=resource, clock_ns=clock_ns, about_pid=41)
    companion = Journal("tpu.googleapis.com/runtime_monitor", root=root, labels=labels, clock_ns=clock_ns, about_pid=41)
    run.append({"phase": "ACTIVE", **process})
    for number in range(count - 3):
        moment[0] = next(moments)
        if number % summary_every == summary_every - 1:
            companion.append(_summary(number, moment[0]))
            continue
        value = 30 + number % 7 if index != _CULPRIT else min(100.0, 30 + 70 * number / (count - 3))
        payload = {"values": [value], "unit": "%", "hostname": host, "process_index": str(index)}
        run.append(payload, resource_labels={"namespace": _METRICS[number % len(_METRICS)]})
    moment[0] = now_ns + (40_000_000 if index == _CULPRIT else 10_000_000)
    if index == _CULPRIT:
        how = {"how": "out_of_memory", "signal": "SIGKILL", "evidence": "the count of oom_kill rose"}
    else:
        how = {"how": "signal", "signal": "SIGABRT", "exception": "XlaRuntimeError"}
        run.append({"phase": "FAILED", "reason": "XlaRuntimeError: coordination service: a task is gone", **process})
    companion.append(
        {"verb": "stacktraceanalyzer", "kind": "job_ended", "message": "the end", "ended_ns": moment[0], **how}
    )
    run.close(5)
    companion.close(5)


def _summary(number: int, now_ns: int) -> dict[str, Any]:
    times = {"sum": 14.9, "p50": 1.0, "p95": 1.1, "max": 1.2}
    return {
        "verb": "stacktraceanalyzer",
        "kind": "step_summary",
        "message": "15 steps",
        "first_step": number - 14,
        "last_step": number,
        "count": 15,
        "wall_seconds": times,
        "own_seconds": {name: value / 10 for name, value in times.items()},
        "wait_seconds": {name: 0.9 * value for name, value in times.items()},
        "return_step": number,
        "return_ns": now_ns,
    }


def measure(*, quick: bool) -> list[Table]:
    """Ask the doctor for the job."""
    entries = 100_000 if quick else 1_000_000
    ended = _asked(entries, times=1 if quick else 3)
    of_summaries = _asked(_SUMMARIES, times=1 if quick else 3, summary_every=1)
    hosts = json.loads(ended.out)["headline"]["hosts"]
    rows = [
        Row(
            f"`mldiagnostics doctor`, {_HOSTS} hosts, {entries:,} entries",
            f"{seconds(ended.seconds)}, {ended.mib:.0f} MiB",
            target=f"< {_LONGEST_SECONDS:g} s, < 300 MB" if not quick else "",
            met=ended.seconds < _LONGEST_SECONDS and ended.mib < _MOST_MIB if not quick else None,
        ),
        Row(
            f"the same with {_SUMMARIES:,} step summaries alone",
            f"{seconds(of_summaries.seconds)}, {of_summaries.mib:.0f} MiB",
            target=f"< {_LONGEST_SECONDS:g} s, < 300 MB",
            met=of_summaries.seconds < _LONGEST_SECONDS and of_summaries.mib < _MOST_MIB,
        ),
        Row("the host that failed first, though the 127 others report before it", f"{', '.join(hosts)} (tpu-17)"),
    ]
    return [
        Table(
            "The doctor",
            "A job of 128 hosts, of which host 17 ran out of memory; its journal is in the page cache.",
            rows,
        )
    ]


def _asked(entries: int, *, times: int, summary_every: int = _SUMMARY_EVERY) -> commands.Finished:
    """Return the middle one of some answers on a job of so many entries."""
    command = [str(Path(sys.executable).with_name("mldiagnostics")), "doctor", _RUN, "--kubernetes", "off"]
    with tempfile.TemporaryDirectory() as folder:
        make_job(Path(folder), entries, time.time_ns(), summary_every)
        environment = {"ML_DIAGNOSTICS_DIR": folder, "ML_DIAGNOSTICS_BACKEND": "local", "PATH": os.environ["PATH"]}
        command += ["--format", "json"]
        return commands.median([commands.run(command, environment, code=_CRASH) for _ in range(times)])
