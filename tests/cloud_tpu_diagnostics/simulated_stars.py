"""Jobs of many processes in simulated time, and what their companions report to the decision of fast-fail."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

from cloud_tpu_diagnostics._fast_fail.decision import Decision
from cloud_tpu_diagnostics._fast_fail.reports import ASKED, ENDED, LEFT, Event, Hello, JobState
from ml_diagnostics_common.story import ProcessEnd

GLOO = "ValueError: UNKNOWN: Gloo all-reduce failed: [pair.cc:538] Read error: Connection reset by peer"
KILLED = ProcessEnd("signal", signal="SIGKILL")
LEFT_CLEAN = ProcessEnd("clean")
EXITED_0 = ProcessEnd("clean", exit_code=0)
PING_SECONDS = 2.0
DECIDE_SECONDS = 0.25
_SECOND_NS = 10**9


class Process:
    """A process that steps, until it does something else."""

    def __init__(self, index: int, step_seconds: float, first_step: int = 100) -> None:
        self.index, self.step_seconds = index, step_seconds
        self.phase: str | None = "step"
        self.step: int | None = first_step
        self.progress_at = 0.0
        self.is_stepping = True
        self.longest_silence = step_seconds
        self.is_suspected = self.is_compiling = self.is_traced = False
        self.answers = True
        """True if it shows its stack when it is asked for."""
        self.frame: str | None = None
        self.is_connected = True
        self.is_over = False
        self.planned_steps: int | None = None

    def state(self, now: float) -> JobState:
        if self.is_stepping and self.step is not None:
            done = int((now - self.progress_at) / self.step_seconds)
            self.step += done
            self.progress_at += done * self.step_seconds
        age = None if self.phase is None else now - self.progress_at
        compiling = self.is_compiling if self.answers else None
        return JobState(
            self.phase, self.step, age, self.longest_silence, self.is_suspected, self.frame, compiling, self.is_traced
        )


class Job:
    """A job with a decision on it.

    Args:
        count: The number of its processes.
        hang: True to decide on hangs, too.
        offsets: The error of each host's clock, in seconds.
    """

    def __init__(
        self, count: int, *, hang: bool = False, step_seconds: float = 1.0, offsets: list[float] | None = None
    ) -> None:
        self.now = 0.0
        self.decision = Decision(count, hang=hang)
        self.offsets = offsets or [0.0] * count
        self.processes = [Process(index, step_seconds) for index in range(count)]
        self._todo: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        for process in self.processes:
            self.decision.join(self._hello(process), 0.0)
            self._ping(process)
        self._decide()

    def at(self, when: float, action: Callable[[], object]) -> None:
        """Do something at a time."""
        heapq.heappush(self._todo, (max(when, self.now), next(self._numbers), action))

    def run(self, until: float) -> None:
        """Let the time pass, until there is a decision."""
        while self._todo and self._todo[0][0] <= until and self.decision.first_cause is None:
            self.now, _, action = heapq.heappop(self._todo)
            action()
        if self.decision.first_cause is None:
            self.now = until

    def is_decided(self) -> bool:
        """Return True once there is a first cause."""
        return self.decision.first_cause is not None

    # --- What processes do ----------------------------------------------------------------------------

    def pause(self, index: int, phase: str | None) -> None:
        """Make no progress from now on; None stays in the phase."""
        process = self.processes[index]
        process.state(self.now)
        process.is_stepping = False
        if phase is not None:
            process.phase, process.progress_at = phase, self.now

    def resume(self, index: int) -> None:
        process = self.processes[index]
        if not process.is_over:
            process.phase, process.progress_at, process.is_stepping = "step", self.now, True
            process.is_suspected = process.is_compiling = process.is_traced = False

    def leave(self, index: int, end: ProcessEnd = LEFT_CLEAN, delay: float = 0.0) -> None:
        self.pause(index, None)
        self._send(index, LEFT, end, delay)

    def end(self, index: int, end: ProcessEnd = EXITED_0, delay: float = 0.0) -> None:
        self.pause(index, None)
        self.processes[index].is_over = True
        self._send(index, ENDED, end, delay)

    def ask(self, index: int) -> None:
        self._send(index, ASKED, ProcessEnd(), 0.0)

    def lose(self, index: int) -> None:
        if self.processes[index].is_connected:
            self.processes[index].is_connected = False
            self.decision.lose(index)

    def join(self, index: int) -> None:
        if not self.processes[index].is_connected:
            self.processes[index].is_connected = True
            self.decision.join(self._hello(self.processes[index]), self.now)

    def _send(self, index: int, kind: str, end: ProcessEnd, delay: float) -> None:
        process = self.processes[index]
        stamp = int((self.now + self.offsets[index]) * _SECOND_NS)
        is_early = process.planned_steps is not None and (process.step or 0) < process.planned_steps - 1
        event = Event(kind, end._replace(ended_ns=stamp if end.how else None), process.step, is_early)
        self.at(self.now + delay, lambda: process.is_connected and self._receive(index, event))

    def _receive(self, index: int, event: Event) -> None:
        self._compare_clocks(index)
        self.decision.add(index, event, self.now)
        self.decision.decide(self.now)

    # --- What companions do ---------------------------------------------------------------------------

    def _hello(self, process: Process) -> Hello:
        return Hello(process.index, f"host-{process.index}", 1000 + process.index, 2000 + process.index)

    def _ping(self, process: Process) -> None:
        if process.is_connected and not process.is_over:
            self._compare_clocks(process.index)
            self.decision.report(process.index, process.state(self.now), self.now)
        self.at(self.now + PING_SECONDS, lambda: self._ping(process))

    def _compare_clocks(self, index: int) -> None:
        now_ns = int(self.now * _SECOND_NS)
        sent_ns = now_ns + int(self.offsets[index] * _SECOND_NS) - 1_000_000
        self.decision.compare_clocks(index, sent_ns, now_ns)

    def _decide(self) -> None:
        self.decision.decide(self.now)
        self.at(self.now + DECIDE_SECONDS, self._decide)


# --- Healthy jobs ---------------------------------------------------------------------------------------


def healthy_job(seed: int) -> Job:
    """Return a job of a random size that does several things that healthy jobs do, and has ended well."""
    draw = random.Random(seed)
    job = Job(draw.randrange(2, 9), hang=draw.random() < 0.5, step_seconds=draw.choice([0.02, 0.5, 1.0, 4.0]))
    start = 20.0
    for _ in range(draw.randrange(3)):
        activity = draw.choice([save, evaluation, compilation, lost_connections, debugger, dead_companion, quiet_pause])
        start = activity(job, start, draw) + draw.uniform(0, 10)
    ends = [clean_end, clean_end_with_a_last_save, early_stop, asked_to_stop, one_asked_of_all]
    draw.choice(ends)(job, start, draw)
    job.run(start + 400)
    return job


def save(job: Job, start: float, draw: random.Random) -> float:
    """All save, each for its own time."""
    return max(_pause(job, index, "checkpoint", start, draw.uniform(0.1, 120)) for index in _all(job))


def evaluation(job: Job, start: float, draw: random.Random) -> float:
    return max(_pause(job, index, "eval", start, draw.uniform(1, 120)) for index in _all(job))


def quiet_pause(job: Job, start: float, draw: random.Random) -> float:
    """One saves without a report of it, the others wait for it; hang detection suspects them all."""
    seconds = draw.uniform(5, 90)
    for index in _all(job):
        _pause(job, index, None, start, seconds)
        # A hang is suspected later than anything that a healthy job does: the watch has learned its pauses.
        job.at(start + seconds, lambda index=index: _learn(job, index, seconds))  # type: ignore[misc]
    return start + seconds


def compilation(job: Job, start: float, draw: random.Random) -> float:
    """One or all compile for long in a step, and are suspected."""
    seconds, compiling = draw.uniform(20, 200), set(draw.sample(_all(job), draw.randrange(1, len(_all(job)) + 1)))
    for index in _all(job):
        _pause(job, index, None, start, seconds)
        job.at(start, lambda index=index: setattr(job.processes[index], "is_compiling", index in compiling))  # type: ignore[misc]
        job.at(start + 15, lambda index=index: setattr(job.processes[index], "is_suspected", True))  # type: ignore[misc]
        job.at(start + seconds, lambda index=index: _learn(job, index, seconds))  # type: ignore[misc]
    return start + seconds


def debugger(job: Job, start: float, draw: random.Random) -> float:
    """A debugger stops one, the others wait for it and are suspected."""
    seconds, traced = draw.uniform(20, 120), draw.choice(_all(job))
    for index in _all(job):
        _pause(job, index, None, start, seconds)
        job.at(start + 15, lambda index=index: setattr(job.processes[index], "is_suspected", index != traced))  # type: ignore[misc]
    job.at(start, lambda: setattr(job.processes[traced], "is_traced", True))
    return start + seconds


def lost_connections(job: Job, start: float, draw: random.Random) -> float:
    """Connections break, and are made again."""
    for index in draw.sample(_all(job), draw.randrange(1, len(_all(job)) + 1)):
        job.at(start + draw.uniform(0, 5), lambda index=index: job.lose(index))  # type: ignore[misc]
        job.at(start + draw.uniform(5, 20), lambda index=index: job.join(index))  # type: ignore[misc]
    return start + 20


def dead_companion(job: Job, start: float, draw: random.Random) -> float:
    """The companion of one is killed; its job goes on."""
    index = draw.choice(_all(job))
    job.at(start, lambda: job.lose(index))
    return start


def clean_end(job: Job, start: float, draw: random.Random) -> None:
    """All have done their last step, and end in any order, some without leaving their block."""
    last = max((process.step or 0) for process in job.processes) + int(start / job.processes[0].step_seconds) + 5
    for index in _all(job):
        own_last = last + draw.choice([0, 0, 0, 1, 5])  # Loops need not be equal.
        job.at(start, lambda index=index, own_last=own_last: _finish(job, index, own_last))  # type: ignore[misc]
        _end_well(job, index, start + draw.uniform(0, 60), draw)


def clean_end_with_a_last_save(job: Job, start: float, draw: random.Random) -> None:
    """The same; process 0 saves at last, and does not always report it."""
    clean_end(job, start, draw)
    phase = draw.choice(["checkpoint", "eval", "other"])
    job.at(start + 0.1, lambda: job.processes[0].is_over or job.pause(0, phase))


def early_stop(job: Job, start: float, draw: random.Random) -> None:
    """All stop in the same step before the planned one; process 0 saves inside its block, without a report of it."""
    for process in job.processes:
        process.planned_steps = 1_000_000
    last = max((process.step or 0) for process in job.processes) + int(start / job.processes[0].step_seconds) + 5
    for index in _all(job):
        job.at(start, lambda index=index: _finish(job, index, last))  # type: ignore[misc]
        _end_well(job, index, start + (draw.uniform(20, 120) if index == 0 else draw.uniform(0, 5)), draw)


def asked_to_stop(job: Job, start: float, draw: random.Random) -> None:
    """All are asked to stop, as when a job is deleted: each saves, and ends in its own time."""
    for index in _all(job):
        job.at(start + draw.uniform(0, 2), lambda index=index: job.ask(index))  # type: ignore[misc]
        job.at(start + 2, lambda index=index: job.pause(index, draw.choice(["checkpoint", None])))  # type: ignore[misc]
        end = draw.choice(
            [
                ProcessEnd("clean", exit_code=0),
                ProcessEnd("signal", signal="SIGTERM"),
                ProcessEnd("exit", exit_code=143),
                ProcessEnd("exit", exit_code=1),
                ProcessEnd("signal", signal="SIGKILL"),
                ProcessEnd("exception", exception="SystemExit"),
            ]
        )
        job.at(start + draw.uniform(3, 29), lambda index=index, end=end: job.end(index, end))  # type: ignore[misc]


def one_asked_of_all(job: Job, start: float, draw: random.Random) -> None:
    """One is preempted; all save at JAX's sync point, and end well."""
    asked = draw.choice(_all(job))
    job.at(start, lambda: job.ask(asked))
    for index in _all(job):
        job.at(start + 3, lambda index=index: job.pause(index, "checkpoint"))  # type: ignore[misc]
        _end_well(job, index, start + draw.uniform(5, 28), draw)


def _all(job: Job) -> list[int]:
    return [process.index for process in job.processes]


def _pause(job: Job, index: int, phase: str | None, start: float, seconds: float) -> float:
    job.at(start, lambda: job.pause(index, phase))
    job.at(start + seconds, lambda: job.resume(index))
    return start + seconds


def _learn(job: Job, index: int, seconds: float) -> None:
    job.processes[index].longest_silence = max(job.processes[index].longest_silence, seconds)


def _finish(job: Job, index: int, last: int) -> None:
    job.pause(index, None)
    job.processes[index].step = last


def _end_well(job: Job, index: int, when: float, draw: random.Random) -> None:
    """Leave the block, and end a while later; or end without leaving it."""
    if draw.random() < 0.8:
        job.at(when, lambda: job.leave(index))
        when += draw.uniform(0, 20)
    job.at(when, lambda: job.end(index))
