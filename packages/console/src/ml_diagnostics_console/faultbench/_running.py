"""One run: a job is started, its fault is injected once it is in its steps, and it is observed and ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ml_diagnostics_console.faultbench._evidence import Evidence
from ml_diagnostics_console.faultbench._jobs import DIAGNOSTICS, Job, host_name
from ml_diagnostics_console.faultbench._kinds import At, Kind
from ml_diagnostics_console.faultbench._labels import Label, label_of
from ml_diagnostics_console.faultbench._machine import control_group, small_disk
from ml_diagnostics_console.faultbench._network import Network, network
from ml_diagnostics_console.faultbench._plans import KINDS, Plan
from ml_diagnostics_console.faultbench._replayed_clusters import CLUSTER_KINDS, WITHOUT_JOB, write_cluster
from ml_diagnostics_console.faultbench._replayed_metrics import METRIC_KINDS, add_metrics

__all__ = ["Ask", "Live", "RunResult", "run"]

_START_SECONDS: Final = 150.0
"""The most time from the start of the processes to the injection, on a machine with other work."""
_SAMPLE_SECONDS: Final = 1.0
_ASK_SECONDS: Final = 2.0
_SHORT_TIMEOUTS_SECONDS: Final = 8.0
_SETTLED_SECONDS: Final = 2.0
_GROUP_BYTES: Final = 1_200 * 2**20
_SIGNALS: Final = {"sigkill": signal.SIGKILL, "sigsegv": signal.SIGSEGV, "sigstop": signal.SIGSTOP}
_BUSY: Final = "while True: pass"


@dataclass(frozen=True)
class Live:
    """An answer while the job ran."""

    seconds: float
    """The time since the injection."""
    answer: dict[str, Any]
    """The headline, as JSON."""


@dataclass
class RunResult:
    """One run.

    Attributes:
        plan: Its plan.
        label: The right answer.
        void: The reason why it does not count; empty if it does.
        name: The name of the run, for the doctor.
        ended_ns: When the bench had ended it, in ns since 1970.
        all_ended_seconds: The time from the injection to the end of all processes; None if the bench ended them.
        live: Answers while it ran.
        exit_statuses: The exit status of each process; None of those that the bench ended.
        outputs: The end of what each has printed.
    """

    plan: Plan
    label: Label
    void: str = ""
    name: str = ""
    ended_ns: int = 0
    all_ended_seconds: float | None = None
    live: list[Live] = field(default_factory=list)
    exit_statuses: list[int | None] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return it in the types of JSON; without the outputs, which are files."""
        return {
            "plan": self.plan.to_json(),
            "label": self.label.to_json(),
            "void": self.void,
            "name": self.name,
            "ended_ns": self.ended_ns,
            "all_ended_seconds": self.all_ended_seconds,
            "live": [{"seconds": live.seconds, "answer": live.answer} for live in self.live],
            "exit_statuses": self.exit_statuses,
        }


Ask = Callable[[Path, str], dict[str, Any]]
"""Returns a doctor's headline as JSON, given ML_DIAGNOSTICS_DIR and the run's name."""


def run(plan: Plan, folder: Path, ask: Ask | None = None, *, environment: Mapping[str, str] | None = None) -> RunResult:
    """Run one plan.

    Args:
        plan: The plan.
        folder: An empty folder for the job; its journal is in `diagnostics`, its output in `output-*.txt`.
        ask: Asked while the job runs; None asks nothing.
        environment: Further variables for its processes.
    """
    return _Running(plan, folder, ask, environment or {}).run()


class _Running:
    def __init__(self, plan: Plan, folder: Path, ask: Ask | None, environment: Mapping[str, str]) -> None:
        self._plan, self._folder, self._ask, self._environment = plan, folder, ask, environment
        self._kind: Kind = KINDS[plan.kind]
        self._result = RunResult(plan, label_of(plan), name=plan.name)
        self._seen_events = 0
        self._injected_at, self._injected_ns = 0.0, 0
        self._around = _Surroundings()

    def run(self) -> RunResult:
        plan, result = self._plan, self._result
        if plan.kind in WITHOUT_JOB:
            return self._without_job()
        attempts = plan.settings.get("attempts", 1)
        with _surroundings(plan, self._folder, self._kind) as around:
            self._around = around
            for attempt in range(1, attempts + 1):
                job = self._job(attempt, attempts)
                self._seen_events = len(job.events())
                with job:
                    job.start()
                    if attempt < attempts:
                        self._end_attempt(job)
                        continue
                    result.void = self._last_attempt(job, is_injected=attempt == 1 or plan.kind == "restart_loop")
                    result.exit_statuses = [process.exit_status for process in job.evidence]
        if plan.kind in METRIC_KINDS:
            add_metrics(plan, self._folder / DIAGNOSTICS)
        result.ended_ns = time.time_ns()
        if plan.kind in CLUSTER_KINDS:
            write_cluster(plan, self._folder, failed_ns=self._injected_ns, now_ns=result.ended_ns)
        result.outputs = [process.output for process in job.evidence]
        evidence = Evidence(plan.culprit, self._step_of_injection(job), job.evidence, job.events(), attempts)
        result.void = result.void or self._kind.check(evidence)
        result.label = label_of(plan, step=evidence.step)
        return result

    def _without_job(self) -> RunResult:
        """Write what a cluster reports of a job that never starts."""
        (self._folder / DIAGNOSTICS).mkdir()
        self._result.ended_ns = now_ns = time.time_ns()
        write_cluster(self._plan, self._folder, failed_ns=now_ns, now_ns=now_ns)
        return self._result

    def _job(self, attempt: int, attempts: int) -> Job:
        plan = self._plan
        count = plan.processes - 1 if plan.settings.get("shrinks") and attempt == attempts else plan.processes
        first_step = plan.settings.get("first_steps", (0,) * attempts)[attempt - 1]
        if plan.settings.get("shrinks") and attempt > 1:
            first_step = plan.step
        return Job(
            plan,
            self._folder,
            attempt=attempt,
            processes=count,
            first_step=first_step,
            extra=self._around.extra,
            prefix=self._around.prefix,
            environment=self._environment,
        )

    def _end_attempt(self, job: Job) -> None:
        """Inject, and wait for the end of an attempt that is not the last, as a scheduler does."""
        self._inject(job)
        is_stopping = self._plan.settings.get("sigterm") == "save"
        job.wait_until(lambda: job.has_ended, 20.0 if is_stopping else _SETTLED_SECONDS)

    def _last_attempt(self, job: Job, *, is_injected: bool) -> str:
        """Inject and observe; return why the run is void."""
        if is_injected and (why := self._inject(job)):
            job.sample()
            return why
        self._injected_at, self._injected_ns = time.monotonic(), time.time_ns()
        self._note_run(job)
        with _actions(self._plan, job, is_on=is_injected) as act:
            self._observe(job, act)
        return ""

    def _inject(self, job: Job) -> str:
        """Wait until the fault is injected, or inject it; return why that failed."""
        plan, kind = self._plan, self._kind
        if kind.at is At.LAUNCHER and kind.check.__name__ == "never_started_steps":
            is_waiting = job.wait_until(lambda: all(job.mark(slot)[2] for slot in _started(plan)), _START_SECONDS)
            return "" if is_waiting else "the processes have not started"
        if plan.is_outside or kind.at in (At.NOWHERE, At.LAUNCHER) or plan.kind in METRIC_KINDS:
            slots = range(job.count)
            if not job.wait_until(lambda: all(job.mark(slot)[1] >= plan.step for slot in slots), _START_SECONDS, 0.01):
                return "the job has not reached its step"
            if plan.is_outside:
                self._signal(job)
            return ""
        if not job.wait_until(lambda: self._is_injected(job), _START_SECONDS):
            return "no process has reported the injection"
        return ""

    def _is_injected(self, job: Job) -> bool:
        return any(event["what"] == "injected" for event in job.events()[self._seen_events :])

    def _signal(self, job: Job) -> None:
        plan = self._plan
        name = plan.settings.get("signal")
        number = signal.Signals[name] if name else _SIGNALS.get(plan.kind)
        job.note("injected", plan.culprit)
        if number is not None:
            job.send(plan.culprits, number)
            job.note("signalled", plan.culprit)
        if self._around.network is not None:
            cut = self._around.network.cut if plan.settings["network"] == "down" else self._around.network.narrow
            cut(plan.culprit)
            job.note("signalled", plan.culprit)

    def _observe(self, job: Job, act: Callable[[float], None]) -> None:
        """Sample the processes and ask for verdicts until all have ended, or the time is over."""
        seconds = self._kind.observe_seconds
        if self._plan.has_short_timeouts and self._kind.is_ending:
            seconds += _SHORT_TIMEOUTS_SECONDS
        sampled = asked = 0.0
        while (elapsed := time.monotonic() - self._injected_at) < seconds:
            act(elapsed)
            if elapsed - sampled >= _SAMPLE_SECONDS or not sampled:
                sampled = elapsed or 1e-9
                job.sample()
            if self._ask is not None and elapsed - asked >= _ASK_SECONDS:
                asked = elapsed
                self._note_run(job)
                answer = self._ask(self._folder / DIAGNOSTICS, self._result.name)
                self._result.live.append(Live(round(time.monotonic() - self._injected_at, 2), answer))
            if job.has_ended:
                self._result.all_ended_seconds = round(time.monotonic() - self._injected_at, 2)
                break
            time.sleep(0.1)
        job.sample()

    def _note_run(self, job: Job) -> None:
        names = [event["run"] for event in job.events() if event["what"] == "run"]
        self._result.name = names[-1] if names else self._plan.name

    def _step_of_injection(self, job: Job) -> int:
        steps = [event["step"] for event in job.events() if event["what"] == "injected"]
        return steps[-1] if steps else self._plan.step


def _started(plan: Plan) -> list[int]:
    is_missing = plan.kind == "process_missing"
    return [slot for slot in range(plan.processes) if not (is_missing and slot == plan.culprit)]


@dataclass
class _Surroundings:
    """The surroundings of a job: settings for its trainers, commands before its processes, and its network."""

    extra: dict[str, Any] = field(default_factory=dict)
    prefix: dict[int, list[str]] = field(default_factory=dict)
    network: Network | None = None


@contextlib.contextmanager
def _surroundings(plan: Plan, folder: Path, kind: Kind) -> Iterator[_Surroundings]:
    """Prepare the machine for a job."""
    if kind.needs == "mount":
        with small_disk(folder / "small-disk") as disk:
            yield _Surroundings({"small_disk": str(disk)})
    elif kind.needs == "control_group":
        with control_group(f"faultbench-{os.getpid()}-{plan.name}", _GROUP_BYTES) as group:
            entering = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
            yield _Surroundings(prefix={plan.culprit: entering})
    elif kind.needs == "network":
        slots = range(plan.processes)
        with network([host_name(plan, slot) for slot in slots]) as made:
            prefix = {slot: made.prefix(slot) for slot in slots}
            yield _Surroundings({"coordinator": made.coordinator}, prefix, made)
    else:
        yield _Surroundings()


@contextlib.contextmanager
def _actions(plan: Plan, job: Job, *, is_on: bool) -> Iterator[Callable[[float], None]]:
    """Yield a function that does what follows the injection, given the seconds since."""
    settings = plan.settings if is_on else {}
    pending: list[tuple[float, Callable[[], None]]] = []
    if "kill_after_seconds" in settings:
        pending.append((settings["kill_after_seconds"], lambda: job.send(plan.culprits, signal.SIGKILL)))
    if "continue_after_seconds" in settings:
        pending.append((settings["continue_after_seconds"], lambda: job.send(plan.culprits, signal.SIGCONT)))
    if "clock_step_seconds" in settings:
        (job.folder / "marks" / "clock-is-set").touch()

    def act(elapsed: float) -> None:
        while pending and elapsed >= pending[0][0]:
            pending.pop(0)[1]()

    busy = [
        subprocess.Popen([sys.executable, "-I", "-S", "-c", _BUSY])
        for _ in range(settings.get("busy_per_core", 0) * (os.cpu_count() or 1))
    ]
    try:
        yield act
    finally:
        for process in busy:
            process.kill()
            process.wait()
