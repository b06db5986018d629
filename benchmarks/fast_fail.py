"""Fast-fail: how soon all processes of a failed job are gone, which one it blames, and that it ends no healthy job."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import fast_fail_crowd, process
from benchmarks.results import Row, Table, seconds

_TARGET_SECONDS = 5.0
_FAULTS = {
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", "100 s"),
    "SIGSEGV": ("os.kill(os.getpid(), signal.SIGSEGV)", "100 s"),
    "os._exit(0)": ("os._exit(0)", "100 s"),
    "an exception": ("raise ValueError('batch 12 is empty')", "301 s"),
}
"""Each with the time of a prototype without fast-fail, which is that of JAX's own timeouts."""
_PINGS = 2_000


def fault(name: str, processes: int, culprit: int) -> dict[str, Any]:
    """Let one process of a job of JAX fail; return the seconds until all are gone, and if the right one is blamed."""
    from cloud_tpu_diagnostics.entries import JOB_ENDED

    from tests.cloud_tpu_diagnostics.fast_fail_jobs import TRAINER, fast_fail_job

    with (
        tempfile.TemporaryDirectory() as folder,
        fast_fail_job(Path(folder), *[TRAINER] * processes) as job,
    ):
        time.sleep(1)
        started = time.monotonic()
        job.do(culprit, _FAULTS[name][0])
        job.codes(120)
        took = time.monotonic() - started
        ends = job.wait_for_entries(JOB_ENDED, processes)
    first = [end.get("first_cause", {}).get("process_indices") for end in ends]
    return {"seconds": took, "is_right": first == [[culprit]] * processes}


def hub_costs(members: int, pings: int) -> dict[str, float]:
    """Return the seconds of CPU that the hub takes for a ping of one of many members, and its memory for each."""
    from cloud_tpu_diagnostics._fast_fail.hub import Hub
    from cloud_tpu_diagnostics._fast_fail.member import Member
    from cloud_tpu_diagnostics._fast_fail.reports import Hello, JobState

    key = bytes(32)
    hub = Hub("127.0.0.1", key, members + 1, Hello(0, "host-0", 1, 2))
    joined = [
        Member("127.0.0.1", hub.port, key, Hello(index, f"host-{index}", 1, 2)) for index in range(1, members + 1)
    ]
    while not all(member.is_joined for member in joined):
        hub.step()
        for member in joined:
            member.step()
    cpu = 0.0
    for number in range(pings):
        member = joined[number % members]
        member._next_ping = 0.0
        member.report(JobState("step", number, 0.1, 1.0))
        member.step()
        before = time.process_time()
        hub.step()
        cpu += time.process_time() - before
        member.step()
    return {"ping": cpu / pings}


def measure(*, quick: bool) -> list[Table]:
    return [_ends(quick=quick), _healthy(quick=quick)]


def _ends(*, quick: bool) -> Table:
    rows = []
    right = total = 0
    for name, (_, alone) in _FAULTS.items():
        runs = [
            process.ours(fault, name=name, processes=3, culprit=(1, 2, 0)[number % 3 if name == "SIGKILL" else 0])
            for number in range(1 if quick else 5)
        ]
        right += sum(run["is_right"] for run in runs)
        total += len(runs)
        rows.append(_row(f"3 processes of JAX, {name}", [run["seconds"] for run in runs], f"JAX alone {alone}"))
    for processes in (8,) if quick else (16, 32):
        jobs = 1 if quick else 5
        found = process.ours(fast_fail_crowd.killed_jobs, processes=processes, jobs=jobs)
        right += found["right"]
        total += jobs
        rows.append(_row(f"{processes} stand-ins, SIGKILL", found["seconds"], ""))
    rows.append(Row("the right process recorded by all", f"{right} of {total}", target="all", met=right == total))
    return Table(
        "Fast-fail: a job that fails",
        "From the fault to the end of the last process, and the first cause that every companion records. JAX's own"
        " timeouts are those of a prototype without fast-fail, measured once: 100 s for heartbeats, 300 s for the"
        " barrier of its shutdown. Each of these ends has 0.25 s in which other processes may report an earlier failure"
        " (2 s where no process reports a failure of its own), and up to a second to print an exception.",
        rows,
    )


def _row(work: str, times: list[float], compared_with: str) -> Row:
    return Row(
        work,
        f"p50 {seconds(statistics.median(times))}, max {seconds(max(times))}",
        compared_with,
        target=f"<= {_TARGET_SECONDS:g} s",
        met=max(times) <= _TARGET_SECONDS,
    )


def _healthy(*, quick: bool) -> Table:
    count = 20 if quick else 1_000
    found = process.ours(fast_fail_crowd.healthy_jobs, first=0, count=count, most_at_once=12 if quick else 24)
    wrong = len(found["wrong"])
    cost = process.ours(hub_costs, members=16 if quick else 400, pings=_PINGS)
    rows = [
        Row(
            f"of {found['jobs']:,} healthy jobs ended",
            f"{wrong}",
            target="0",
            met=wrong == 0 and found["not_joined"] == 0,
        ),
        Row(
            "CPU of the hub for a member",
            seconds(cost["ping"] / 2),
            ratio="a second",
            target="<= 200 µs",
            met=cost["ping"] / 2 <= 2e-4,
        ),
    ]
    return Table(
        "Fast-fail: healthy jobs, and its cost",
        f"{found['processes']:,} processes in blocks of diagnose(), 2 to 4 to a job. They leave in random order, save"
        " or evaluate for up to 14 s, also without a report of it and also after the others have left, are asked to"
        " stop alone or all at once, compile, are stopped by a debugger, or lose their companion or its connection.",
        rows,
    )
