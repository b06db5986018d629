"""The cost of shipping to Cloud Logging for a job: by REST, and by google-cloud-logging over gRPC, both with TLS.

The loopback server is a process of its own with a lower priority. Each number is the median of jobs that run in turns,
each in a fresh process.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import process
from benchmarks.job import LOG
from benchmarks.results import Row, Table, seconds

_PROJECT = "project"
_ARMS = ["off", "rest", "grpc"]
_RECORDS = 700
_ENTRIES_A_STEP = 4
_UNSENT = 2_000


def work(arm: str, steps: int) -> dict[str, Any]:
    """Record, ship, and take steps; leave entries unsent for the end of the process.

    Returns:
        The costs of connecting (`mib`, `threads`, CPU seconds `connect_cpu`, wall seconds `connect`), and of the steps
        the wall seconds `p50` and `p99`, and the CPU seconds of the whole process a step, `cpu`.
    """
    from ml_diagnostics_common.cloud_logging import connect
    from ml_diagnostics_common.journal import Journal
    from ml_diagnostics_common.shipper import Shipper

    root = Path(os.environ["ML_DIAGNOSTICS_DIR"])
    journal = Journal(LOG, root=root, labels={"job": "job"})
    batch = [{"name": f"{number}", "value": number * 1.5} for number in range(_RECORDS)]
    journal.append({"job_name": "job", "step_count": 0})
    found: dict[str, Any] = {}
    mib, cpu, start = process.resident_mib(), time.process_time(), time.perf_counter()
    if arm != "off":
        shipper = Shipper(LOG, root=root, connect=connect, max_latency_seconds=0.2)
        shipper.start()
        assert shipper.flush(60), shipper.statistics()
    found["connect"], found["connect_cpu"] = time.perf_counter() - start, time.process_time() - cpu
    found["mib"], found["threads"] = process.resident_mib() - mib, len(list(Path("/proc/self/task").iterdir()))
    times, cpu = [], time.process_time()
    for step in range(steps):
        start = time.perf_counter()
        for _ in range(_ENTRIES_A_STEP):
            journal.append({"job_name": "job", "step_count": step, "step_start_time": 1763710310.123456789})
        json.loads(json.dumps(batch))
        times.append(time.perf_counter() - start)
    found["cpu"] = (time.process_time() - cpu) / steps
    found["p50"], found["p99"] = statistics.median(times), process.percentile(times, 0.99)
    if arm != "off":
        assert shipper.flush(60), shipper.statistics()
    for step in range(_UNSENT):
        journal.append({"job_name": "job", "step_count": step, "step_start_time": 1763710310.123456789})
    return found


def serve(folder: str) -> None:
    """Serve until stdin ends; print how to reach the server."""
    from ml_diagnostics_testing.certificates import CertificateAuthority
    from ml_diagnostics_testing.cloud_logging import CloudLoggingServer

    os.nice(19)
    with CloudLoggingServer(_PROJECT, tls=CertificateAuthority(Path(folder))) as server:
        print(json.dumps(server.environment()), flush=True)
        sys.stdin.read()


def _run(arm: str, environment: dict[str, str], steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            **environment,
            "ML_DIAGNOSTICS_DIR": folder,
            "ML_DIAGNOSTICS_LOGGING_TRANSPORT": "" if arm == "off" else arm,
        }
        code = (
            "import json, time; from benchmarks import cloud_writing;"
            f"found = cloud_writing.work({arm!r}, {steps});"
            "print(json.dumps({**found, 'ended': time.time()}), flush=True)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=process.REPOSITORY,
            env=process.environment_of_a_job(settings),
            capture_output=True,
            text=True,
            check=False,
        )
        ended = time.time()
    if done.returncode or done.stderr:
        raise RuntimeError(f"the job that ships by {arm} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    found["exit"] = ended - found["ended"]
    return found


def measure(*, quick: bool) -> list[Table]:
    rounds, steps = (1, 500) if quick else (5, 1_000)
    runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in _ARMS}
    order, rng = list(_ARMS), random.Random(rounds)
    with (
        tempfile.TemporaryDirectory() as folder,
        process.server(__name__, folder) as (environment, _),
    ):
        for _ in range(rounds):
            rng.shuffle(order)
            for arm in order:
                runs[arm].append(_run(arm, environment, steps))
    off, rest, grpc = (_medians(runs[arm]) for arm in _ARMS)
    rows = [
        Row(
            "memory added by connecting and a first batch",
            f"{rest['mib']:.0f} MiB",
            f"gRPC {grpc['mib']:.0f} MiB",
            f"1/{grpc['mib'] / rest['mib']:.1f} of gRPC's",
        ),
        Row("threads then", f"{rest['threads']:.0f}", f"gRPC {grpc['threads']:.0f}; not shipped {off['threads']:.0f}"),
        Row(
            "CPU of it, in the job's process",
            seconds(rest["connect_cpu"]),
            f"gRPC {seconds(grpc['connect_cpu'])}",
            f"1/{grpc['connect_cpu'] / rest['connect_cpu']:.1f} of gRPC's",
        ),
    ]
    for name, key in (("step time, p50", "p50"), ("step time, p99", "p99"), ("CPU of the process a step", "cpu")):
        rows.append(Row(name, seconds(rest[key]), f"gRPC {seconds(grpc[key])}; not shipped {seconds(off[key])}"))
    rows.append(
        Row(
            f"end of a process with {_UNSENT:,} entries unsent",
            seconds(rest["exit"]),
            f"gRPC {seconds(grpc['exit'])}; not shipped {seconds(off['exit'])}",
        )
    )
    note = (
        f"A job records {_ENTRIES_A_STEP} entries a step and ships them to a loopback server with TLS. A step is JSON,"
        " which holds the GIL. REST is the default; `ML_DIAGNOSTICS_LOGGING_TRANSPORT=grpc` selects gRPC. Medians of"
        f" {rounds} jobs each, in turns."
    )
    return [Table("Writing to Cloud Logging", note, rows)]


def _medians(runs: list[dict[str, Any]]) -> dict[str, float]:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


if __name__ == "__main__":
    serve(sys.argv[1])
