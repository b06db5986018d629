"""The rehearsal: starts the pods of a workload, does with their ends what a cluster would do, and ends all of them."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ml_diagnostics_console._simulate.faults import Fault, Injector
from ml_diagnostics_console._simulate.findings import Call, call_of, count_verdict
from ml_diagnostics_console._simulate.launch import Launch, Settings, group_of, launch_of
from ml_diagnostics_console._simulate.manifest import Job, Workload
from ml_diagnostics_console._simulate.policies import Action, Decision, Progress
from ml_diagnostics_console._simulate.processes import Line, PodProcess, Processes
from ml_diagnostics_console._simulate.variables import Pod, Sources, pods_of
from ml_diagnostics_console.verdict import Verdict

__all__ = ["Outcome", "Simulation"]

_TICK_SECONDS: Final = 0.1
_FAULT_TICK_SECONDS: Final = 0.01
_CALLS_SECONDS: Final = 0.5
_SETTLED_SECONDS: Final = 5.0
"""After the last call of `jax.distributed.initialize`, no further process is expected."""
_BACKOFF_SECONDS: Final = 1.0
"""In place of Kubernetes' 10 s, which double each time."""
_FOLLOWED: Final[Mapping[Action, str]] = {
    Action.RESTART_POD: "; it is started again, here after 1 s",
    Action.RESTART_JOB: "; its pods are started again",
    Action.RESTART_ALL: "; all pods are started again",
}
_LONGEST_GRACE_SECONDS: Final = 5.0
_DEFAULT_GRACE_SECONDS: Final = 30


@dataclass
class Outcome:
    """The end of a rehearsal.

    Attributes:
        exit_code: The job's exit code: 0, or that of the pod which failed it; None if it did not end by itself.
        reason: Why the job has failed, or was ended, for people; empty if it has succeeded.
        verdicts: Findings of the rehearsal itself.
        is_time_limit: True if the job still ran when the time was over.
        not_injected: Faults that never were due.
    """

    exit_code: int | None = None
    reason: str = ""
    verdicts: list[Verdict] = field(default_factory=list)
    is_time_limit: bool = False
    not_injected: list[Fault] = field(default_factory=list)


class Simulation:
    """One rehearsal.

    Args:
        workload: The workload.
        settings: Settings of all pods.
        hosts: The most pods of each job; None for all.
        faults: Faults to inject.
        time_limit_seconds: When the job is ended.
        source: The manifest's file, or the command.
        show: Prints a line of a pod.
        notify: Prints a sentence on the rehearsal.
        at_limit: Called once while the job still runs, when the time is over.

    Raises:
        ManifestError: The pods cannot be made from the manifest.
    """

    def __init__(
        self,
        workload: Workload,
        settings: Settings,
        *,
        hosts: int | None,
        faults: Sequence[Fault],
        time_limit_seconds: float,
        source: str,
        show: Callable[[Line], None],
        notify: Callable[[str], None],
        at_limit: Callable[[], None],
    ) -> None:
        self._workload, self._settings, self._source = workload, settings, source
        self._show, self._notify, self._at_limit = show, notify, at_limit
        self.pods = pods_of(workload, hosts)
        self._progress = Progress(workload, hosts)
        self._injector = Injector(list(faults), Path(settings.folder))
        self._deadline = time.monotonic() + time_limit_seconds
        self._attempts: dict[str, int] = {}
        self._starts: list[tuple[float, Pod]] = []
        self._addresses: dict[frozenset[str], str] = {}
        """Addresses by the names of the pods that form one job of JAX."""
        self._calls: list[Call] = []
        self._last_call = self._next_calls = time.monotonic()
        self._noted: set[str] = set()
        self._job_started: dict[str, float] = {}
        self.outcome = Outcome()
        # A mistake in the manifest is reported before anything is started.
        launches = [self._launch(pod, 0) for pod in self.pods]
        self.buckets = tuple(dict.fromkeys(bucket for launch in launches for bucket in launch.buckets))
        """The addresses of buckets that pods get."""

    def run(self) -> Outcome:
        """Run the job to its end, its time limit, or the first finding that lets it wait for ever."""
        outcome = self.outcome
        with Processes() as processes:
            try:
                self._starts = [(0.0, pod) for pod in self.pods]
                while self._continues(processes):
                    self._start_due(processes)
                    for _, lines in processes.wait(self._tick()):
                        self._print(lines)
                    for process, code, lines in processes.ended():
                        self._print(lines)
                        self._after_end(process, code, processes)
                    self._check(processes)
            finally:
                self._end_all(processes, time.monotonic() + self._grace())
                self._injector.close()
        outcome.not_injected = self._injector.pending
        return outcome

    def _continues(self, processes: Processes) -> bool:
        outcome = self.outcome
        return outcome.exit_code is None and not outcome.reason and bool(processes.running or self._starts)

    def _tick(self) -> float:
        return _FAULT_TICK_SECONDS if self._injector.pending else _TICK_SECONDS

    # --- Starts ---------------------------------------------------------------------------------------

    def _start_due(self, processes: Processes) -> None:
        now = time.monotonic()
        due = [pod for at, pod in self._starts if at <= now]
        self._starts = [(at, pod) for at, pod in self._starts if at > now]
        for pod in due:
            attempt = self._attempts.get(pod.name, 0)
            self._attempts[pod.name] = attempt + 1
            launch = self._launch(pod, attempt)
            for note in launch.notes:
                self._note(f"ignored: {note}")
            if not Path(launch.directory).is_dir():
                self._note(
                    f"ignored: workingDir {launch.directory}: it is not on this machine; the current one is used"
                )
                launch = replace(launch, directory=self._settings.here)
            self._job_started.setdefault(pod.job.name, now)
            processes.start(pod, launch, attempt)

    def _launch(self, pod: Pod, attempt: int) -> Launch:
        sources = Sources(self._workload, pod, attempt, self._progress.restarts, self._settings.given)
        return launch_of(sources, self.pods, self._address(pod), self._settings)

    def _address(self, pod: Pod) -> str:
        """Return the coordinator's address of a pod, that of all pods of its job of JAX.

        A pod that is started again alone finds the others there. Once all of them are started again, there is a new
        one, since the port may still be in use.
        """
        group = self._group(pod)
        while group not in self._addresses:
            with socket.socket() as server:
                server.bind(("127.0.0.1", 0))
                address = f"127.0.0.1:{server.getsockname()[1]}"
            if address not in self._addresses.values():
                self._addresses[group] = address
        return self._addresses[group]

    def _group(self, pod: Pod) -> frozenset[str]:
        return frozenset(each.name for each in group_of(pod, self.pods))

    def _note(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._notify(text)

    def _print(self, lines: Sequence[Line]) -> None:
        for line in lines:
            self._show(line)

    # --- Ends -----------------------------------------------------------------------------------------

    def _after_end(self, process: PodProcess, code: int, processes: Processes) -> None:
        if process.is_asked:
            return
        pod = process.pod
        decision = self._progress.after(pod.job, pod.index, code)
        if code:
            followed = _FOLLOWED.get(decision.action, "")
            self._notify(f"{pod.name} ended with exit code {code}: {decision.reason}{followed}")
        self._act(decision, pod, code, processes)

    def _act(self, decision: Decision, pod: Pod, code: int, processes: Processes) -> None:
        action, soon = decision.action, time.monotonic() + _BACKOFF_SECONDS
        if action is Action.START_NEXT:
            index = self._progress.next_index(pod.job)
            self._starts.append((0.0, Pod(pod.job, index, len(self.pods) + index)))
        elif action is Action.RESTART_POD:
            self._starts.append((soon, pod))
        elif action is Action.RESTART_ALL:
            self._end_all(processes, time.monotonic() + self._grace())
            self._restart(self.pods, soon)
        elif action is Action.RESTART_JOB:
            of_job = [each for each in self.pods if each.job.name == pod.job.name]
            self._end_all(processes, time.monotonic() + self._grace(), of_job)
            self._restart(of_job, soon)
        elif action is Action.SUCCEED_JOB:
            self._end_all(
                processes, time.monotonic() + self._grace(), [each for each in self.pods if each.job is pod.job]
            )
        elif action is Action.SUCCEED:
            self.outcome.exit_code = 0
        elif action is Action.FAIL:
            self.outcome.exit_code, self.outcome.reason = code or 1, decision.reason

    def _restart(self, pods: Sequence[Pod], at: float) -> None:
        """Start pods again, as one further attempt of all of them."""
        names = {pod.name for pod in pods}
        for group in {self._group(pod) for pod in pods}:
            if group <= names:
                self._addresses.pop(group, None)
        self._starts = [(when, pod) for when, pod in self._starts if pod.name not in names]
        self._starts += [(at, pod) for pod in pods]
        newest = max(self._attempts.get(name, 0) for name in names)
        self._attempts.update(dict.fromkeys(names, newest))
        self._calls = [call for call in self._calls if call.pod not in {pod.rank for pod in pods}]
        for pod in pods:
            self._job_started.pop(pod.job.name, None)

    def _grace(self) -> float:
        seconds = (
            job.template.spec.number("terminationGracePeriodSeconds", _DEFAULT_GRACE_SECONDS)
            for job in self._workload.jobs
        )
        return min(_LONGEST_GRACE_SECONDS, max(seconds, default=0))

    def _end_all(self, processes: Processes, deadline: float, pods: Sequence[Pod] | None = None) -> None:
        """Ask pods to end, and kill them after the grace period; None for all."""
        names = None if pods is None else {pod.name for pod in pods}
        chosen = [each for each in processes.running if names is None or each.pod.name in names]
        for process in chosen:
            process.ask_to_end()
        is_killed = False
        while any(process in processes.running for process in chosen):
            for _, lines in processes.wait(0.05):
                self._print(lines)
            for _, _, lines in processes.ended():
                self._print(lines)
            if not is_killed and time.monotonic() > deadline:
                is_killed = True
                for process in chosen:
                    process.kill()

    # --- While it runs --------------------------------------------------------------------------------

    def _check(self, processes: Processes) -> None:
        for each in self._injector.check(processes.running):
            self._notify(f"injected {each}")
        now = time.monotonic()
        for job in self._overdue(now):
            pod = next(each for each in self.pods if each.job is job)
            self._act(self._progress.after_deadline(job), pod, 1, processes)
        if now >= self._next_calls:
            self._next_calls = now + _CALLS_SECONDS
            self._read_calls(now)
        if now >= self._deadline and self.outcome.exit_code is None:
            self.outcome.is_time_limit = True
            self.outcome.reason = "the time limit"
            self._at_limit()

    def _overdue(self, now: float) -> Iterator[Job]:
        for job in self._workload.jobs:
            started = self._job_started.get(job.name)
            if job.deadline_seconds is not None and started is not None and now - started > job.deadline_seconds:
                yield job

    def _read_calls(self, now: float) -> None:
        """Read the reports of the launchers, and end the job if processes wait for ones that never start."""
        for path in Path(self._settings.folder).glob("initialize-*.json"):
            values: object = None
            with contextlib.suppress(OSError, ValueError):
                values = json.loads(path.read_text(encoding="utf-8"))
                path.unlink()
            call = call_of(values) if isinstance(values, Mapping) else None
            if call is not None:
                self._calls.append(call)
                self._last_call = now
                self._report_call(call)
        verdict = count_verdict(
            self._workload,
            self.pods,
            self._calls,
            is_settled=now - self._last_call >= _SETTLED_SECONDS,
            source=self._source,
        )
        if verdict is not None:
            self.outcome.verdicts.append(verdict)
            self.outcome.reason = verdict.sentence

    def _report_call(self, call: Call) -> None:
        if call.is_bare:
            self._note(
                "the program calls jax.distributed.initialize() without arguments: the number and the index of each "
                "process were passed to it, as JAX finds them on TPUs of GKE; on other clusters pass them yourself"
            )
        if call.replaced:
            self._note(f"ignored: coordinator_address {call.replaced}: the coordinator is on this machine")
