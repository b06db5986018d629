"""A job of real JAX processes on this machine: it is started, watched from outside, and ended."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from ml_diagnostics_common.processes import read_system_file, stat_fields

from ml_diagnostics_console.faultbench._evidence import ProcessEvidence, Sample
from ml_diagnostics_console.faultbench._labels import twin_of
from ml_diagnostics_console.faultbench._plans import Plan

__all__ = ["DIAGNOSTICS", "Job", "host_name"]

DIAGNOSTICS: Final = "diagnostics"
"""The name of ML_DIAGNOSTICS_DIR in a job's folder."""
_HERE: Final = Path(__file__).parent
_HOST: Final = _HERE / "_simulated_host.py"
_TRAINER: Final = _HERE / "_trainer.py"
_TICKS: Final = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_COMPANION_SECONDS: Final = 12.0
_OUTPUT_BYTES: Final = 64 * 1024
_NAMES: Final = ("ML_DIAGNOSTICS_", "GOOGLE_", "CLOUDSDK_", "GCE_METADATA_", "FAULTBENCH_", "SLURM_", "JAX_", "XLA_")
_HOST_NAMES: Final = ("worker-{}", "bench")


class Job:
    """One attempt of a plan's job.

    Args:
        plan: The plan.
        folder: The job's folder; further attempts use the same.
        attempt: The number of the attempt, from 1.
        processes: The number of processes of this attempt.
        first_step: The first step of this attempt.
        extra: Further settings for the trainer.
        prefix: Commands before the one of a process, by slot, such as those that enter a control group.
        environment: Further variables of the environment.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        *,
        attempt: int = 1,
        processes: int | None = None,
        first_step: int = 0,
        extra: Mapping[str, Any] | None = None,
        prefix: Mapping[int, list[str]] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.plan = plan
        self.folder = folder
        self.count = processes or plan.processes
        self.evidence = [ProcessEvidence(slot) for slot in range(self.count)]
        self._attempt, self._first_step = attempt, first_step
        self._extra, self._prefix, self._variables = extra or {}, prefix or {}, environment or {}
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._port, self._other_port = _free_port(), _free_port()
        for name in ("marks", "traces", "checkpoints", "scripts", DIAGNOSTICS):
            (folder / name).mkdir(parents=True, exist_ok=True)
        shutil.copy(_TRAINER, folder / "train.py")

    # --- Start ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all processes but a missing one."""
        for slot in range(self.count):
            with contextlib.suppress(FileNotFoundError):
                (self.folder / "marks" / f"status-{slot}").unlink()
            if self.plan.kind == "process_missing" and slot == self.plan.culprit:
                continue
            with (self.folder / f"output-{slot}.txt").open("ab") as output:
                self._children[slot] = subprocess.Popen(
                    self._command(slot),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self.folder,
                    env=self._environment(slot),
                    start_new_session=True,
                )

    def _command(self, slot: int) -> list[str]:
        python = [sys.executable, "-W", "ignore", str(_HOST)]
        command = [*python, str(self.folder / "train.py")]
        if self.plan.is_wrapped:
            command = [*python, "-m", "cloud_tpu_diagnostics", "run", "--", *command]
        return [*self._prefix.get(slot, []), *command]

    def _environment(self, slot: int) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_NAMES)}
        environment = {
            **inherited,
            "ML_DIAGNOSTICS_DIR": str(self.folder / DIAGNOSTICS),
            "ML_DIAGNOSTICS_BACKEND": "local",
            "ML_DIAGNOSTICS_JOB": self.plan.name,
            "ML_DIAGNOSTICS_ATTEMPT": str(self._attempt - 1),
            "JAX_PLATFORMS": "cpu",
            "FAULTBENCH_HOST": host_name(self.plan, slot),
            "FAULTBENCH_CLOCK": json.dumps(self._clock(slot)),
            "FAULTBENCH_PYTHON": sys.executable,
            "FAULTBENCH_SCRIPTS": str(self.folder / "scripts"),
            "FAULTBENCH_PLAN": json.dumps(self._trainer_plan(slot)),
            **self._variables,
        }
        if self.plan.kind == "version_skew" and slot == self.plan.culprit:
            environment["PYTHONPATH"] = os.pathsep.join([str(self._other_version()), environment.get("PYTHONPATH", "")])
        return environment

    def _clock(self, slot: int) -> dict[str, Any]:
        plan, clock = self.plan, dict[str, Any]()
        if plan.clock_offsets_seconds:
            clock["offset_seconds"] = plan.clock_offsets_seconds[slot]
        if plan.clock_drifts_ppm:
            clock |= {"drift_ppm": plan.clock_drifts_ppm[slot], "since_ns": time.time_ns()}
        if "clock_step_seconds" in plan.settings and slot == plan.culprit:
            step_file = str(self.folder / "marks" / "clock-is-set")
            clock |= {"step_seconds": plan.settings["clock_step_seconds"], "step_file": step_file}
        return clock

    def _trainer_plan(self, slot: int) -> dict[str, Any]:
        plan, settings = self.plan, self.plan.settings
        is_culprit = slot == plan.culprit
        seconds = 10 if plan.has_short_timeouts else 100
        port = self._other_port if plan.kind == "wrong_coordinator" and is_culprit else self._port
        fault = settings.get("fault", plan.kind)
        configs = {"learning_rate": 0.05, "model": {"width": plan.width}, "batch_size": 8 * self.count}
        if plan.kind == "config_skew" and is_culprit:
            configs["learning_rate"] = 0.005
        return {
            "slot": slot,
            "index": twin_of(plan) if plan.kind == "index_twice" and is_culprit else slot,
            "fault": "" if plan.is_outside else fault,
            "culprits": plan.culprits,
            "step": plan.step,
            "processes": self.count,
            "first_step": self._first_step,
            "planned_steps": plan.planned_steps,
            "expected_processes": plan.processes,
            "is_planned": plan.is_planned,
            "job": plan.name,
            "goodput_log": f"goodput_{plan.name}",
            "coordinator": f"127.0.0.1:{port}",
            "heartbeat_seconds": seconds,
            "shutdown_seconds": seconds if plan.has_short_timeouts else 300,
            "initialization_seconds": 300,
            "width": plan.width,
            "folder": str(self.folder),
            "configs": configs,
            "floor_seconds": settings["floor_seconds"],
            "startup_floor_seconds": settings["startup_floor_seconds"],
            "size": settings.get("size", 1),
            "pause_seconds": settings.get("pause_seconds", 0),
            "save_every": settings.get("save_every", 25),
            "sigterm": settings.get("sigterm", ""),
            **self._extra,
        }

    def _other_version(self) -> Path:
        """Make a folder in which Python finds another version of a package's metadata."""
        folder = self.folder / "other-version"
        metadata = folder / "optax-0.1.0.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True, exist_ok=True)
        metadata.write_text("Metadata-Version: 2.1\nName: optax\nVersion: 0.1.0\n")
        return folder

    # --- Watch ----------------------------------------------------------------------------------------

    def mark(self, slot: int) -> tuple[int, int, str]:
        """Return the process id of a trainer, its step and its phase, as it has reported them; zeros before."""
        try:
            pid, step, phase = (self.folder / "marks" / f"status-{slot}").read_text().split()
        except (OSError, ValueError):
            return 0, -1, ""
        return int(pid), int(step), phase

    def events(self) -> list[dict[str, Any]]:
        """Return what trainers have reported."""
        try:
            lines = (self.folder / "marks" / "events").read_text().splitlines()
        except OSError:
            return []
        return [json.loads(line) for line in lines]

    def note(self, what: str, slot: int, **fields: Any) -> None:
        """Add an event of the bench."""
        _, step, _ = self.mark(slot)
        line = json.dumps({"what": what, "index": slot, "step": step, "monotonic_ns": time.monotonic_ns(), **fields})
        with (self.folder / "marks" / "events").open("a") as file:
            file.write(line + "\n")

    def sample(self) -> None:
        """Add the state of each process to the evidence, and the status of those that have ended."""
        for slot, child in self._children.items():
            known = self.evidence[slot]
            pid, step, phase = self.mark(slot)
            known.pid = pid or known.pid
            if known.ended_ns is None:
                known.samples.append(_sample_of(known.pid, step, phase))
            status = child.poll()
            if status is not None and known.ended_ns is None:
                known.exit_status, known.ended_ns = status, time.monotonic_ns()

    @property
    def has_ended(self) -> bool:
        """True if all processes have ended."""
        return all(child.poll() is not None for child in self._children.values())

    def wait_until(self, is_so: Callable[[], bool], timeout_seconds: float, interval_seconds: float = 0.05) -> bool:
        """Wait until something is so; return False after the timeout, or once all processes have ended."""
        deadline = time.monotonic() + timeout_seconds
        while not is_so():
            if time.monotonic() >= deadline or self.has_ended:
                return is_so()
            time.sleep(interval_seconds)
        return True

    def send(self, slots: Iterable[int], number: signal.Signals) -> None:
        """Send a signal to trainers."""
        for slot in slots:
            pid, _, _ = self.mark(slot)
            with contextlib.suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, number)

    # --- End ------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Kill what still runs, as a scheduler does, and wait until companions have recorded that."""
        for slot, child in self._children.items():
            pid, _, _ = self.mark(slot)
            if child.poll() is None and pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + _COMPANION_SECONDS
        for child in self._children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.1, (deadline - time.monotonic()) / 2))
            child.kill()
            child.wait()
        while time.monotonic() < deadline and self._others():
            time.sleep(0.1)
        for pid in self._others():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for known in self.evidence:
            path = self.folder / f"output-{known.index}.txt"
            if path.exists():
                known.output = path.read_bytes()[-_OUTPUT_BYTES:].decode("utf-8", "replace")

    def _others(self) -> list[int]:
        """Return the processes that the job has left: those with its folder in their environment."""
        wanted = b"ML_DIAGNOSTICS_DIR=" + os.fsencode(self.folder / DIAGNOSTICS) + b"\0"
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if wanted in path.read_bytes() + b"\0":
                    found.append(int(path.parent.name))
        return found

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()


def host_name(plan: Plan, slot: int) -> str:
    """Return the host name of a process."""
    own, shared = _HOST_NAMES
    return own.format(slot) if plan.hosts == "own" else shared


def _sample_of(pid: int, step: int, phase: str) -> Sample:
    try:
        fields = stat_fields(pid)
        state, cpu_seconds = fields[0].decode(), (int(fields[11]) + int(fields[12])) / _TICKS
    except (OSError, IndexError):
        state, cpu_seconds = "", 0.0
    channel = ""
    with contextlib.suppress(OSError):
        channel = read_system_file(f"/proc/{pid}/wchan").decode()
    return Sample(time.monotonic_ns(), state, channel, cpu_seconds, step, phase)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
