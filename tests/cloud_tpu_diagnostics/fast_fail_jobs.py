"""Jobs of several processes with fast-fail: stand-ins for trainers that meet by a folder, and trainers of JAX."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from cloud_tpu_diagnostics._fast_fail.meeting import FOLDER, LAUNCH
from cloud_tpu_diagnostics.entries import LOG_ID
from ml_diagnostics_common.reader import JournalReader

from ..waiting import Child, free_port, wait_until
from .diagnosed_jobs import WITHOUT_FORK_WARNING

AS_PROCESS_1 = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
can_be_process_1 = pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run([*AS_PROCESS_1, "true"], capture_output=True, check=False).returncode != 0,
    reason="this system lets no user start a process 1",
)

_HEAD = """
import ctypes, os, queue, signal, sys, threading, time
from cloud_tpu_diagnostics import diagnose, heartbeat
from cloud_tpu_diagnostics.configuration.fast_fail_configuration import FastFailConfig
from cloud_tpu_diagnostics.configuration.hang_configuration import HangConfig

from ml_diagnostics_common import sidecar

# On a busy machine, a program may take longer to exit than the half second that its companion gives it.
PATIENT = "\\nfrom cloud_tpu_diagnostics._companion import fast_fail_job as end\\nend._KILL_SECONDS = 5.0\\nmain()\\n"
python_argv = sidecar.python_argv
def patient_argv(module, **options):
    return [word.replace("\\nmain()\\n", PATIENT) for word in python_argv(module, **options)]
sidecar.python_argv = patient_argv

index, count, port = map(int, sys.argv[1:4])
commands = queue.SimpleQueue()
running = True
step = 0
phase = "step"

def read():
    for line in sys.stdin:
        commands.put(line)

def next_command(seconds):
    try:
        return commands.get(timeout=seconds)
    except queue.Empty:
        return ""

threading.Thread(target=read, daemon=True).start()
"""
STAND_IN = """
with diagnose(fast_fail=FastFailConfig(enabled=True)):
    while running:
        heartbeat(step, phase)
        step += 1
        exec(next_command(0.01))
"""
TRAINER = """
import jax, numpy
jax.config.update("jax_cpu_collectives_implementation", "gloo")
with diagnose(fast_fail=FastFailConfig(enabled=True)):
    heartbeat(phase="init")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=count, process_id=index)
    mesh = jax.sharding.Mesh(numpy.array(jax.devices()), ("hosts",))
    spread, same = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)) for axes in (("hosts",), ()))
    total = jax.jit(lambda x: x.sum(), out_shardings=same)
    x = jax.make_array_from_process_local_data(spread, numpy.ones(len(jax.local_devices()), numpy.float32))
    for step in range(int(os.environ.get("STEPS", 1_000_000))):
        heartbeat(step)
        total(x).block_until_ready()
        exec(next_command(0.01))
"""


class FastFailJob:
    """The processes of a job.

    Args:
        programs: The program of each.
        folder: A folder for the job.
        prefix: A command in front of each.
        environ: More variables for them.
    """

    def __init__(
        self,
        programs: Sequence[str],
        folder: Path,
        *,
        prefix: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.records = folder / "records"
        self.records.mkdir(mode=0o700)
        self.folder = folder
        count, port = len(programs), free_port()
        self.processes: list[Child] = []
        for index, program in enumerate(programs):
            is_of_jax = "jax" in program
            variables = {
                **os.environ,
                "ML_DIAGNOSTICS_DIR": str(self.records),
                "JAX_PLATFORMS": "cpu",
                **({} if is_of_jax else {FOLDER: str(folder / "shared"), LAUNCH: "1", "MASTER_ADDR": "127.0.0.1"}),
                **({} if is_of_jax else {"JAX_PROCESS_ID": str(index), "JAX_NUM_PROCESSES": str(count)}),
                **(environ or {}),
            }
            program_argv = [sys.executable, *WITHOUT_FORK_WARNING, "-c", _HEAD + program]
            argv = [*prefix, *program_argv, str(index), str(count), str(port)]
            # To a file: JAX prints more than a pipe holds while no test reads it.
            with (folder / f"printed-{index}").open("wb") as printed:
                self.processes.append(Child(argv, env=variables, stdout=printed, stderr=printed))

    def wait_until_joined(self) -> None:
        """Wait until all processes are in the star: each has a file with its status."""
        folder = self.records / "state" / "fast_fail"
        count = len(self.processes)
        wait_until(lambda: len(list(folder.glob("[0-9]*.json"))) == count or self._ended(), 60)
        assert not self._ended(), "".join(map(self.printed, range(count)))

    def _ended(self) -> bool:
        return any(process.process.poll() is not None for process in self.processes)

    def do(self, index: int, command: str) -> None:
        """Let a process run a line of Python in its loop."""
        stdin = self.processes[index].process.stdin
        assert stdin is not None
        stdin.write(f"{command}\n")
        stdin.flush()

    def codes(self, timeout_seconds: float = 60.0) -> list[int]:
        """Wait for the end of all processes, and return their exit codes: negative for a signal."""
        return [process.process.wait(timeout_seconds) for process in self.processes]

    def printed(self, index: int) -> str:
        """Return what a process has printed."""
        return (self.folder / f"printed-{index}").read_text()

    def entries(self, kind: str) -> list[tuple[int, dict[str, Any]]]:
        """Return the entries of a kind, with the index of the process that each is about."""
        read = JournalReader(LOG_ID, root=self.records).read_new()
        found = [(int(entry.context.labels["process_index"]), entry.payload) for batch in read for entry in batch]
        return sorted(
            ((index, payload) for index, payload in found if payload["kind"] == kind), key=lambda each: each[0]
        )

    def wait_for_entries(self, kind: str, count: int) -> list[dict[str, Any]]:
        """Wait for the entries of a kind, in the order of the processes."""
        wait_until(lambda: len(self.entries(kind)) >= count)
        return [payload for _, payload in self.entries(kind)]


@contextlib.contextmanager
def fast_fail_job(folder: Path, *programs: str, **options: Any) -> Iterator[FastFailJob]:
    """Start a job, wait until all of its processes are in the star, and end what is left of it."""
    job = FastFailJob(programs, folder, **options)
    try:
        job.wait_until_joined()
        yield job
    finally:
        for process in job.processes:
            process.process.kill()
            with contextlib.suppress(OSError), process.process:
                pass
