"""Consequences of the end of a pod, by backoffLimit, podFailurePolicy, failurePolicy and successPolicy. Pure."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from ml_diagnostics_console._simulate.manifest import Job, JobSetRule, PodRule, Workload

__all__ = ["Action", "Decision", "Progress"]

_DEFAULT_REASON: Final = "BackoffLimitExceeded"


class Action(enum.Enum):
    """The consequence of the end of a pod."""

    NOTHING = "nothing"
    START_NEXT = "start next"
    """The next index starts: fewer pods run at once than the job has."""
    RESTART_POD = "restart pod"
    RESTART_JOB = "restart job"
    RESTART_ALL = "restart all"
    SUCCEED_JOB = "succeed job"
    """The job has succeeded; its other pods are ended."""
    SUCCEED = "succeed"
    FAIL = "fail"


class Decision(NamedTuple):
    """An action, and its reason for the user; empty where there is nothing to report."""

    action: Action
    reason: str = ""


class _JobState:
    """One life of a job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.next_index = job.parallelism
        self.succeeded: set[int] = set()
        self.failed: set[int] = set()
        self.failures: dict[int, int] = {}
        self.counted = 0

    def is_complete(self) -> bool:
        if any(len(self.succeeded & indexes) >= count for indexes, count in self.job.succeeds_with):
            return True
        return len(self.succeeded) >= self.job.completions and not self.failed


class Progress:
    """The state of a workload over the ends of its pods.

    Args:
        workload: The workload.
        hosts: The most pods of each job; None for all.
    """

    def __init__(self, workload: Workload, hosts: int | None = None) -> None:
        self._workload = workload
        self._hosts = hosts
        self.restarts = 0
        """How often the whole JobSet was restarted."""
        self._counted_restarts = 0
        self._job_restarts: dict[str, int] = {}
        self._succeeded: set[str] = set()
        self._states: dict[str, _JobState] = {}
        for job in workload.jobs:
            self._start(job)

    def _start(self, job: Job) -> None:
        limited = job
        if self._hosts is not None:
            count = min(self._hosts, job.parallelism)
            limited = Job(**{**vars(job), "completions": min(count, job.completions), "parallelism": count})
        self._states[job.name] = _JobState(limited)

    def next_index(self, job: Job) -> int:
        """Return the index of the pod that `START_NEXT` starts."""
        state = self._states[job.name]
        state.next_index += 1
        return state.next_index - 1

    def after(self, job: Job, index: int, exit_code: int) -> Decision:
        """Return what follows the end of a pod.

        Args:
            job: Its job.
            index: Its index.
            exit_code: The exit code of its container.
        """
        state = self._states[job.name]
        if exit_code == 0:
            state.succeeded.add(index)
            return self._after_success(state)
        rule = next((each for each in state.job.pod_rules if _matches(each, state.job, exit_code)), None)
        action = rule.action if rule else "Count"
        code = f"exit code {exit_code}"
        if action == "Ignore":
            return Decision(Action.RESTART_POD, f"podFailurePolicy ignores {code}")
        if action == "FailJob":
            return self._fail(state, "PodFailurePolicy", f"podFailurePolicy fails the job at {code}")
        failures = state.failures[index] = state.failures.get(index, 0) + 1
        limit = state.job.per_index_limit
        if limit is not None:
            if action != "FailIndex" and failures <= limit:
                return Decision(Action.RESTART_POD, f"failure {failures}; backoffLimitPerIndex is {limit}")
            return self._fail_index(state, index)
        state.counted += 1
        limit = state.job.backoff_limit
        if state.counted <= limit:
            return Decision(Action.RESTART_POD, f"failure {state.counted}; backoffLimit is {limit}")
        return self._fail(state, _DEFAULT_REASON, f"{_times(state.counted, 'failure')}; backoffLimit is {limit}")

    def after_deadline(self, job: Job) -> Decision:
        """Return what follows when a job has run for longer than its activeDeadlineSeconds."""
        return self._fail(
            self._states[job.name], "DeadlineExceeded", f"activeDeadlineSeconds is {job.deadline_seconds}"
        )

    def _after_success(self, state: _JobState) -> Decision:
        if state.is_complete():
            self._succeeded.add(state.job.name)
            needed = [
                job.name
                for job in self._workload.jobs
                if not self._workload.needed_jobs or job.replicated_job in self._workload.needed_jobs
            ]
            enough = all if self._workload.needs_all else any
            if enough(name in self._succeeded for name in needed):
                return Decision(Action.SUCCEED)
            return Decision(Action.SUCCEED_JOB)
        return self._go_on(state)

    def _go_on(self, state: _JobState) -> Decision:
        """Start the next index, or fail the job once all that is left has failed."""
        if state.next_index < state.job.completions:
            return Decision(Action.START_NEXT)
        if len(state.succeeded) + len(state.failed) >= state.job.completions:
            return self._fail(state, "FailedIndexes", f"{_times(len(state.failed), 'index', 'indexes')} failed")
        return Decision(Action.NOTHING)

    def _fail_index(self, state: _JobState, index: int) -> Decision:
        state.failed.add(index)
        most = state.job.most_failed_indexes
        if most is not None and len(state.failed) > most:
            failed = _times(len(state.failed), "failed index", "failed indexes")
            return self._fail(state, "MaxFailedIndexesExceeded", f"{failed}; maxFailedIndexes is {most}")
        return self._go_on(state)

    def _fail(self, state: _JobState, failure: str, reason: str) -> Decision:
        """Return what a JobSet does about a failed job; a Job alone has failed."""
        job, workload = state.job, self._workload
        if workload.kind != "JobSet":
            return Decision(Action.FAIL, reason)
        reason = f"job {job.name} failed ({reason})"
        rule = next((each for each in workload.rules if _applies(each, job, failure)), None)
        action = rule.action if rule else "RestartJobSet"
        if action == "FailJobSet":
            return Decision(Action.FAIL, f"{reason}; failurePolicy fails the JobSet")
        is_free = action.endswith("AndIgnoreMaxRestarts")
        most = workload.most_restarts
        counted = self._counted_restarts + sum(self._job_restarts.values())
        if not is_free and counted >= most:
            return Decision(Action.FAIL, f"{reason}; maxRestarts is {most}")
        if action.startswith("RestartJobSet"):
            self.restarts += 1
            self._counted_restarts += not is_free
            self._succeeded.clear()
            for each in workload.jobs:
                self._start(each)
            return Decision(Action.RESTART_ALL, f"{reason}; restart {self.restarts}, maxRestarts is {most}")
        self._job_restarts[job.name] = self._job_restarts.get(job.name, 0) + (not is_free)
        self._start(next(each for each in workload.jobs if each.name == job.name))
        return Decision(Action.RESTART_JOB, f"{reason}; failurePolicy restarts it")


def _matches(rule: PodRule, job: Job, exit_code: int) -> bool:
    """Return True if a rule is about this exit code. No pod is disrupted here, so no condition is ever met."""
    if not rule.exit_codes or rule.container not in ("", job.template.container.text("name")):
        return False
    return (exit_code in rule.exit_codes) is rule.is_in


def _applies(rule: JobSetRule, job: Job, failure: str) -> bool:
    return failure in (rule.reasons or (failure,)) and job.replicated_job in (rule.targets or (job.replicated_job,))


def _times(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
