"""The command xprofiler with a Compute on loopback: its help, its lists, what it deletes, and what it makes."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks import commands
from benchmarks.commands import Finished
from benchmarks.results import Row, Table, seconds

_ZONES = [f"us-central{number}-{letter}" for number in range(1, 6) for letter in "abcd"]
_OPERATION_SECONDS = 1.0
_SCRIPT = "echo a startup script\n" * 200


@contextmanager
def _compute(**options: Any) -> Iterator[tuple[Any, dict[str, str]]]:
    """Run a Compute on loopback; yield it and the variables that redirect a command to it."""
    from tests.loopback.compute import ComputeServer

    with tempfile.TemporaryDirectory() as folder, ComputeServer(**options) as server:
        yield server, {**server.environment(), "CLOUDSDK_CONFIG": folder, "NO_GCE_CHECK": "true"}


def _fill(server: Any, count: int) -> None:
    """Viewers, spread over all zones, as the command makes them."""
    for number in range(count):
        server.add_instance(
            f"xprof-{number:04d}",
            _ZONES[number % len(_ZONES)],
            labels={"xprofiler_version": "0-1-1", "tb_backend_id": f"id{number}"},
            metadata={"xprofiler_log_directory": f"gs://test-bucket/run-{number}", "startup-script": _SCRIPT},
        )


def _each(repetitions: int, *arguments: str, environment: dict[str, str]) -> dict[str, Finished]:
    """Run ours and the public command in turns; return the median run of each. The latter needs gcloud."""
    runs: dict[str, list[Finished]] = {"ours": [], "reference": []}
    for _ in range(repetitions):
        runs["ours"].append(commands.run([commands.ours(), *arguments], environment))
        if shutil.which("gcloud") or arguments == ("--help",):
            runs["reference"].append(commands.run([commands.reference(), *arguments], environment))
    return {name: commands.median(found) for name, found in runs.items() if found}


def _row(what: str, runs: dict[str, Finished], target: str, is_met: Callable[[Finished], bool]) -> Row:
    mine, theirs = runs["ours"], runs.get("reference")
    return Row(
        what,
        f"{seconds(mine.seconds)}, {mine.mib:.0f} MiB",
        f"{seconds(theirs.seconds)}, {theirs.mib:.0f} MiB" if theirs else "needs gcloud",
        f"{theirs.seconds / mine.seconds:.1f} times faster" if theirs else "",
        target,
        is_met(mine),
    )


def _help(repetitions: int) -> Row:
    runs = _each(3 * repetitions, "--help", environment={})
    return _row("`xprofiler --help`", runs, "<= 60 ms", lambda run: run.seconds <= 0.06)


def _lists(repetitions: int, many: int) -> list[Row]:
    rows = []
    for count, what, target, most_seconds, most_mib in (
        (5, "`list`, 5 VMs", "<= 0.3 s", 0.3, 1e9),
        (many, f"`list`, {many:,} VMs in {len(_ZONES)} zones", "<= 0.4 s, <= 80 MB", 0.4, 80e6 / 2**20),
    ):
        with _compute(zones=_ZONES, machine_types={"c4-highmem-8": _ZONES, "n2-standard-8": _ZONES}) as (server, cloud):
            _fill(server, count)
            runs = _each(repetitions, "list", environment=cloud)
            assert all(run.out.count("gs://test-bucket/run-") == count for run in runs.values())
            is_met = lambda run, s=most_seconds, m=most_mib: run.seconds <= s and run.mib <= m  # noqa: E731
            rows.append(_row(what, runs, target, is_met))
    return rows


def _deletes() -> list[Row]:
    """Time deletes of one VM and of ten, with slow operations of Compute."""
    took: dict[int, dict[str, Finished]] = {}
    for count in (1, 10):
        with _compute() as (server, cloud):
            server.operations.seconds = _OPERATION_SECONDS
            names = [f"xprof-{number:04d}" for number in range(count)]
            for name, argv in (("ours", commands.ours()), ("reference", commands.reference())):
                if name == "reference" and not shutil.which("gcloud"):
                    continue
                for vm in names:
                    labels = {"xprofiler_version": "0-1-1"}
                    metadata = {"xprofiler_log_directory": "gs://test-bucket/run"}
                    server.add_instance(vm, labels=labels, metadata=metadata)
                arguments = ["delete", "-z", "us-central1-a", "-n", *names, "--quiet"]
                took.setdefault(count, {})[name] = commands.run([argv, *arguments], cloud)
                assert not server.instances(), f"{name} has left some"
    ratio = took[10]["ours"].seconds / took[1]["ours"].seconds
    one = _row(f"`delete` of one VM, an operation of {_OPERATION_SECONDS:g} s", took[1], "", lambda run: True)
    ten = _row("`delete` of ten", took[10], "<= 1.3 times that of one", lambda run: ratio <= 1.3)
    return [dataclasses.replace(one, met=None), dataclasses.replace(ten, ratio=f"{ratio:.2f} times one")]


def _create() -> Row:
    """Time the command from the VM's report that XProf answers to its end."""
    late: dict[str, float] = {}
    for name in ("ours", "reference"):
        if name == "reference" and not shutil.which("gcloud"):
            continue
        with _compute() as (server, cloud):
            healthy: list[float] = []

            def play(instance: Any, server: Any = server, healthy: list[float] = healthy) -> None:
                time.sleep(3.0)
                status = {
                    "startup_script_begin_ts": "1",
                    "tb_launched_ts": "2",
                    "tb_attempts_count": "1",
                    "tb_backend_id": "abc",
                }
                # The public command reads the text of a Python dict, which JSON of texts is, too.
                data = json.dumps(status).encode()
                server.storage.write("test-bucket", f"run/{instance['name']}/startup_output.json", data)
                healthy.append(time.monotonic())

            server.on_instance_created(play)
            argv = commands.ours() if name == "ours" else commands.reference()
            commands.run([argv, "create", "-z", "us-central1-a", "-l", "gs://test-bucket/run"], cloud)
            late[name] = time.monotonic() - healthy[0]
    theirs = f"{seconds(late['reference'])}" if "reference" in late else "needs gcloud"
    what = "`create`, after the VM's first healthy answer"
    return Row(what, seconds(late["ours"]), theirs, "", "<= 2 s", late["ours"] <= 2.0)


def measure(*, quick: bool) -> list[Table]:
    repetitions, many = (1, 200) if quick else (5, 2000)
    rows = [_help(repetitions), *_lists(repetitions, many), *_deletes(), _create()]
    note = (
        "Whole commands, from start to end, against the same Compute and Cloud Storage on loopback; the middle of"
        f" {repetitions} runs in turns, and the most memory that it, or a program that it started, has had. The public"
        " command starts gcloud for all of this, ours asks Compute itself."
    )
    return [Table("xprofiler: viewers", note, rows)]
