"""Profiles of many processes of this machine by xprofiler: how far apart they start, and how long it takes."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import commands, process
from benchmarks.results import Row, Table, seconds

_DURATION_MS = 2000
_LEAD_SECONDS = 0.15
_HOSTS = 4
_MANY = 64

_JOB = """
import os, sys, threading, time
import jax, jax.numpy as jnp
jax.profiler.start_server(int(sys.argv[1]))
step = jax.jit(lambda x: jnp.tanh(x @ x))
x = jnp.ones((200, 200))
step(x).block_until_ready()
print("ready", flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
while True:
    step(x).block_until_ready()
    time.sleep(float(sys.argv[2]))
"""
"""Trains until its standard input ends, with a rest after each step."""

_SERVICES = """
import sys
from ml_diagnostics_testing.profiler_service import ProfilerServiceServer
servers = [ProfilerServiceServer() for _ in range(int(sys.argv[1]))]
print(*(server.address for server in servers), flush=True)
sys.stdin.read()
for server in servers:
    server.close()
"""


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in taken]


@contextlib.contextmanager
def _program(source: str, *arguments: str, **variables: str) -> Iterator[str]:
    """Run a program until the block is left; yield the first line that it prints."""
    command = [sys.executable, "-c", source, *arguments]
    environment = process.environment_of_a_job({"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", **variables})
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as job:
        assert job.stdout is not None
        try:
            yield job.stdout.readline().strip()
        finally:
            job.communicate()


@contextlib.contextmanager
def _jobs(rest_seconds: float) -> Iterator[list[str]]:
    """Run some JAX jobs on this machine; yield their addresses."""
    ports = _free_ports(_HOSTS)
    with contextlib.ExitStack() as stack:
        for port in ports:
            stack.enter_context(_program(_JOB, str(port), str(rest_seconds)))
        yield [f"localhost:{port}" for port in ports]


def _capture(hosts: list[str]) -> tuple[float, float]:
    """Return how long the command takes, and how far apart the profiles start, both in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [commands.ours(), "capture", "-o", "local", "-f", "jax", "-l", folder, "-d", str(_DURATION_MS)]
        done = commands.run([*argv, "-n", *hosts], {"NO_GCE_CHECK": "true"})
        starts = [_start_ns(file) for file in Path(folder).rglob("*.xplane.pb")]
        assert len(starts) == len(hosts), done.err
        return done.seconds, (max(starts) - min(starts)) / 1e9


def _start_ns(file: Path) -> int:
    """Return the start of a profile, from its file."""
    from ml_diagnostics_common.xplane import read_xplane

    found = read_xplane(file).start_ns
    assert found
    return found


def _reference_seconds() -> float | None:
    """Time the public command on pods of a Kubernetes on loopback: it has no other connection to this machine."""
    if not shutil.which("kubectl"):
        return None
    from ml_diagnostics_testing.cloud_storage import CloudStorageServer

    from tests.loopback.kubernetes import KubernetesServer

    with (
        tempfile.TemporaryDirectory() as folder,
        KubernetesServer() as cluster,
        CloudStorageServer(["bucket"]) as storage,
    ):
        config = Path(folder, "kubeconfig")
        config.write_text(cluster.kubeconfig(), encoding="utf-8")
        # It runs Python with XProf in the pod, and has no host for a job but the pod's own name.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        cluster.add_pod("localhost", environment={"PATH": path})
        with _program(_SERVICES, "1", **storage.environment()) as address:
            argv = [commands.reference(), "capture", "-o", "gke", "-z", "z", "-f", "jax", "-d", str(_DURATION_MS)]
            argv += ["-p", address.rpartition(":")[2], "-l", "gs://bucket", "-n", *["localhost"] * _HOSTS]
            took = commands.run(argv, {**cluster.environment(), "KUBECONFIG": str(config)}).seconds
        assert storage.names("bucket"), "the public command has captured nothing"
        return took


def measure(*, quick: bool) -> list[Table]:
    repetitions = 1 if quick else 5
    bare = _DURATION_MS / 1000 + _LEAD_SECONDS
    reference = _reference_seconds()
    rows = []
    for what, rest_seconds, slack in (("lightly loaded", 0.05, 0.5), ("saturated", 0.0, 1.0)):
        with _jobs(rest_seconds) as hosts:
            runs = sorted(_capture(hosts) for _ in range(repetitions))
        took, apart = runs[len(runs) // 2][0], max(gap for _, gap in runs)
        theirs = f"one after the other: {seconds(reference)}" if reference and what == "lightly loaded" else ""
        rows += [
            Row(
                f"{_HOSTS} jobs, {what}: the command",
                seconds(took),
                theirs,
                f"{reference / took:.1f} times faster" if theirs and reference else "",
                f"<= {bare + slack:.2f} s",
                took <= bare + slack,
            ),
            Row(f"{_HOSTS} jobs, {what}: starts apart, at most", seconds(apart), "", "", "<= 10 ms", apart <= 0.01),
        ]
    counts = {}
    for count in (_HOSTS, _MANY):
        with _program(_SERVICES, str(count)) as addresses:
            counts[count] = sorted(_capture(addresses.split())[0] for _ in range(repetitions))[repetitions // 2]
    took = counts[_MANY]
    few = f"{_HOSTS} of them {seconds(counts[_HOSTS])}"
    rows.append(
        Row(f"{_MANY} simulated services", seconds(took), few, "", f"<= {bare + 0.5:.2f} s", took <= bare + 0.5)
    )
    note = (
        f"`xprofiler capture -o local` for {_DURATION_MS / 1000:g} s, whole commands; the middle of"
        f" {repetitions} runs, and the largest difference between the starts in the files. The jobs are of JAX,"
        " which rest 50 ms after each step, or never. The public command profiles pods of a Kubernetes on"
        f" loopback, {_HOSTS} times the same simulated service."
    )
    return [Table("xprofiler: captures", note, rows)]
