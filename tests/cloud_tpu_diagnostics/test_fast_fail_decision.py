"""Fast-fail names the process that failed first, soon, and never ends a healthy job."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from cloud_tpu_diagnostics._fast_fail.decision import (
    ASKED_SECONDS,
    CASCADE_SECONDS,
    CLEAN_SECONDS,
    SETTLING_SECONDS,
    Decision,
)
from cloud_tpu_diagnostics._fast_fail.messages import RefusedError
from cloud_tpu_diagnostics._fast_fail.reports import Event, Hello, JobState
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.story import ProcessEnd

from .simulated_stars import GLOO, KILLED, Job, healthy_job

HEALTHY_JOBS = 1200
FAULTS = {
    "SIGKILL": KILLED,
    "SIGSEGV": ProcessEnd("signal", signal="SIGSEGV"),
    "out of memory": ProcessEnd("out_of_memory", signal="SIGKILL"),
    "exit code 3": ProcessEnd("exit", exit_code=3),
}
CASCADE = ProcessEnd("exception", exception=GLOO)
SOON = 0.3
"""Above the settling: the decision is taken at most a quarter of a second later."""


@pytest.mark.parametrize("part", range(8))
def test_no_healthy_job_is_ended(part: int) -> None:
    ended = []
    for seed in range(part * HEALTHY_JOBS // 8, (part + 1) * HEALTHY_JOBS // 8):
        job = healthy_job(seed)
        if job.decision.first_cause is not None:
            ended.append((seed, job.now, job.decision.first_cause.message))
    assert ended == []


@pytest.mark.parametrize("fault", FAULTS)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=25)
def test_the_culprit_is_named_soon_whatever_clocks_and_the_order_of_reports(fault: str, seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randrange(2, 12)
    culprit = draw.randrange(count)
    job = Job(count, offsets=[draw.uniform(-60, 60) for _ in range(count)])
    job.run(30)
    # The survivors report their failures before the culprit's companion reports its own.
    job.at(30.0, lambda: job.end(culprit, FAULTS[fault], delay=draw.uniform(0, 0.1)))
    for index in range(count):
        if index != culprit:
            job.at(30.0 + draw.uniform(0, 0.05), lambda index=index: job.leave(index, CASCADE))  # type: ignore[misc]
    job.run(60)
    cause = job.decision.first_cause
    assert cause is not None
    assert (cause.process_indices, cause.confidence) == ((culprit,), "proven")
    assert job.decision.first == {culprit}
    assert cause.hosts == (f"host-{culprit}",)
    assert job.now <= 30.0 + 0.1 + SETTLING_SECONDS + SOON


def test_of_two_failures_of_their_own_the_earlier_is_first_and_close_ones_are_both_named() -> None:
    for gap, first in ((0.2, (2,)), (0.05, (1, 2))):
        job = Job(3, offsets=[0.0, 50.0, -50.0])
        job.run(30)
        job.at(30.0, lambda: job.end(2, KILLED))  # noqa: B023
        job.at(30.0 + gap, lambda: job.end(1, FAULTS["SIGSEGV"]))  # noqa: B023
        job.run(60)
        assert job.decision.first_cause is not None
        assert job.decision.first_cause.process_indices == first


def test_an_exception_that_leaves_a_block_ends_the_job_while_its_process_waits_in_a_barrier() -> None:
    job = Job(4)
    job.run(30)
    job.leave(2, ProcessEnd("exception", exception="ValueError: batch 12 is empty"))
    job.run(60)
    cause = job.decision.first_cause
    assert cause is not None
    assert cause.message == "process 2 on host-2 raised ValueError: batch 12 is empty at step 130"
    assert job.now <= 30.0 + SETTLING_SECONDS + SOON


def test_failures_that_others_cause_are_waited_for_longer_and_name_the_missing_one() -> None:
    for gone, expected in ((lambda job: job.lose(1), (1,)), (lambda job: job.end(1), (1,)), (lambda _: None, (0,))):
        job = Job(3)
        job.run(30)
        gone(job)
        job.leave(0, CASCADE)
        job.run(30 + CASCADE_SECONDS - 0.1)
        assert not job.is_decided()
        job.run(60)
        assert job.decision.first_cause is not None
        assert (job.decision.first_cause.process_indices, job.decision.first_cause.confidence) == (expected, "possible")
        assert job.now <= 30 + CASCADE_SECONDS + SOON


def test_a_lost_connection_alone_ends_nothing() -> None:
    job = Job(8)
    for index in range(7):
        job.at(10.0 + index, lambda index=index: job.lose(index))  # type: ignore[misc]
    job.run(10_000)
    assert not job.is_decided()


# --- Ends without an error --------------------------------------------------------------------------------


def test_an_early_exit_with_0_ends_the_others_once_they_have_waited_long_enough() -> None:
    job = Job(3)
    job.run(30)
    job.processes[1].planned_steps = 1000
    job.end(1, ProcessEnd("exit", exit_code=0))
    for index in (0, 2):
        job.pause(index, None)
        job.processes[index].step = (job.processes[1].step or 0) + (1 if index else -1)
    job.run(30 + CLEAN_SECONDS - 0.5)
    assert not job.is_decided()
    job.run(100)
    assert job.decision.first_cause is not None
    assert (job.decision.first_cause.process_indices, job.decision.first_cause.exit_code) == ((1,), 0)
    assert job.now <= 30 + CLEAN_SECONDS + 4


def test_an_early_stop_of_all_ends_no_process_that_saves_without_a_report_of_it() -> None:
    """Every end is then one before the planned number of steps."""
    for ending, further in (((1, 2, 3), 0), ((1,), 0), ((1, 2, 3), -1)):
        job = Job(4)
        job.run(30)
        for process in job.processes:
            process.planned_steps = 1000
        for index in ending:
            job.leave(index)
        for process in job.processes:
            job.pause(process.index, None)
            if process.index not in ending:
                process.step = (job.processes[1].step or 0) + further
        job.run(300)
        assert not job.is_decided()


@pytest.mark.parametrize("end", [Job.leave, Job.end])
@pytest.mark.parametrize("further", [0, 1, 50])
def test_an_end_that_may_be_the_planned_one_ends_no_process_that_still_saves(
    end: Callable[..., None], further: int
) -> None:
    """Also not one that is a step further: the loops of a job need not be equal."""
    job = Job(3)
    job.run(30)
    end(job, 1)
    for index in (0, 2):
        job.pause(index, None)
        job.processes[index].step = (job.processes[1].step or 0) + further
    job.run(900)
    assert not job.is_decided()


def test_an_end_that_an_older_kernel_hides_counts_only_once_others_have_failed() -> None:
    for others_fail in (False, True):
        job = Job(3)
        job.run(30)
        job.end(1, ProcessEnd("killed_or_os_exit"))
        if others_fail:
            job.leave(2, CASCADE)
        job.run(300)
        assert job.is_decided() is others_fail
    assert job.decision.first == {1}


def test_one_that_evaluates_or_pauses_as_long_as_before_is_left_alone_after_an_early_end() -> None:
    for phase, silence, is_ended in (("eval", 1.0, False), (None, 100.0, False), (None, 1.0, True)):
        job = Job(3)
        job.run(30)
        job.processes[1].planned_steps = 1000
        job.end(1, ProcessEnd("exit", exit_code=0))
        job.pause(0, phase)
        job.pause(2, None)
        for index in (0, 2):
            job.processes[index].step = (job.processes[1].step or 0) + 1
        job.processes[0].longest_silence = silence
        job.run(150)
        assert job.is_decided() is is_ended


def test_a_crash_at_exit_after_a_clean_block_ends_no_process_that_still_saves() -> None:
    job = Job(2)
    job.run(30)
    job.leave(1)
    job.pause(0, "checkpoint")
    job.at(31, lambda: job.end(1, FAULTS["SIGSEGV"]))
    job.run(300)
    assert not job.is_decided()


# --- Requests to stop -----------------------------------------------------------------------------------


def test_no_process_is_ended_while_one_has_its_time_to_stop() -> None:
    job = Job(3)
    job.run(30)
    job.ask(2)
    job.at(31, lambda: job.end(1, FAULTS["exit code 3"]))
    job.run(30 + ASKED_SECONDS - 0.1)
    assert not job.is_decided()
    job.run(100)
    assert job.decision.first_cause is not None
    assert job.decision.first_cause.process_indices == (1,)


def test_a_process_that_saves_when_it_is_asked_to_stop_keeps_its_time() -> None:
    job = Job(2)
    job.run(30)
    job.ask(0)
    job.at(31, lambda: job.pause(0, "checkpoint"))
    job.at(32, lambda: job.end(1, FAULTS["exit code 3"]))
    job.run(150)
    assert not job.is_decided()
    job.resume(0)
    job.run(200)
    assert job.decision.first_cause is not None


def test_a_preempted_process_is_the_first_cause_of_the_failures_that_follow() -> None:
    job = Job(3)
    job.run(30)
    job.end(1, ProcessEnd("signal", signal="SIGTERM"))
    for index in (0, 2):
        job.at(30.02, lambda index=index: job.leave(index, CASCADE))  # type: ignore[misc]
    job.run(200)
    cause = job.decision.first_cause
    assert cause is not None
    assert (cause.process_indices, cause.signal) == ((1,), "SIGTERM")
    assert job.now >= 30 + ASKED_SECONDS


@pytest.mark.parametrize("end", [KILLED, ProcessEnd("signal", signal="SIGTERM"), ProcessEnd("exit", exit_code=143)])
def test_the_others_of_a_preempted_process_end_once_they_wait_for_it_in_vain(end: ProcessEnd) -> None:
    """On a TPU they see no error: they wait in their collective, in the same step."""
    for is_waiting in (True, False):
        job = Job(3)
        job.run(30)
        job.ask(1)
        job.at(45, lambda: job.end(1, end))  # noqa: B023
        if is_waiting:
            job.at(45, lambda: job.pause(0, None))  # noqa: B023
            job.at(45, lambda: job.pause(2, None))  # noqa: B023
        job.run(200)
        assert job.is_decided() is is_waiting
    assert job.now >= 30 + ASKED_SECONDS


def test_a_request_that_was_ignored_for_long_does_not_explain_a_later_failure() -> None:
    job = Job(3)
    job.run(30)
    job.ask(1)
    job.run(1000)
    job.end(1, FAULTS["SIGSEGV"])
    job.run(1100)
    assert job.decision.first == {1}
    assert job.now <= 1000 + SETTLING_SECONDS + SOON


def test_a_preemption_of_all_ends_no_process_that_saves_without_a_report_of_it() -> None:
    job = Job(3)
    job.run(30)
    for index in range(3):
        job.ask(index)
        job.at(31, lambda index=index: job.pause(index, None))  # type: ignore[misc]
    job.at(40, lambda: job.end(1, ProcessEnd("signal", signal="SIGTERM")))
    job.run(290)
    assert not job.is_decided()


def test_a_job_that_is_killed_from_outside_has_no_first_cause() -> None:
    job = Job(4)
    job.run(30)
    for index in range(4):
        job.end(index, KILLED, delay=0.02 * index)
    job.run(100)
    assert not job.is_decided()


# --- Hangs ----------------------------------------------------------------------------------------------


def stuck_job(*, hang: bool = True, suspected: Sequence[int] = range(4)) -> Job:
    job = Job(4, hang=hang)
    job.run(30)
    for process in job.processes:
        job.pause(process.index, None)
        process.frame = "train_step (train.py:9)"
        if process.index in suspected:
            job.at(50, lambda process=process: setattr(process, "is_suspected", True))  # type: ignore[misc]
    return job


def test_a_job_that_is_stuck_as_a_whole_is_ended_and_the_different_stack_is_named() -> None:
    job = stuck_job()
    job.processes[2].frame = "next_batch (input.py:3)"
    job.run(200)
    cause = job.decision.first_cause
    assert cause is not None
    assert (cause.process_indices, cause.how, cause.confidence) == ((2,), "hang", "possible")
    assert job.now <= 50 + 4


def test_a_stuck_job_is_left_alone_unless_that_is_wanted() -> None:
    job = stuck_job(hang=False)
    job.run(2000)
    assert not job.is_decided()


@pytest.mark.parametrize("phase", ["checkpoint", "eval", "wait", "ended", "compile"])
def test_a_job_of_which_one_process_saves_evaluates_waits_or_compiles_is_not_stuck(phase: str) -> None:
    job = stuck_job()
    job.at(31, lambda: job.pause(1, phase))
    job.run(300)
    assert not job.is_decided()


def test_a_job_of_which_one_process_makes_progress_is_not_stuck() -> None:
    job = stuck_job(suspected=(0, 2, 3))
    for second in range(31, 300, 5):
        job.at(second, lambda: job.pause(1, "step"))
    job.run(300)
    assert not job.is_decided()


def test_a_process_without_a_verdict_that_is_silent_for_longer_than_ever_counts_as_stuck() -> None:
    job = stuck_job(suspected=(0,))
    job.run(300)
    assert job.decision.first_cause is not None


def test_a_process_that_compiles_or_is_debugged_is_asked_for_its_stack_and_stops_the_end() -> None:
    for name in ("is_compiling", "is_traced"):
        job = stuck_job()
        setattr(job.processes[3], name, True)
        job.run(400)
        assert not job.is_decided()
        if name == "is_compiling":
            assert job.decision.needs_stack(3)


def test_a_process_that_shows_no_stack_is_waited_for_and_then_counts_as_stuck() -> None:
    job = stuck_job()
    job.processes[1].answers, job.processes[1].frame = False, None
    job.run(58)
    assert job.decision.needs_stack(1)
    assert not job.is_decided()
    job.run(200)
    assert job.decision.first_cause is not None
    assert job.decision.first_cause.process_indices == (1,)


def test_a_verdict_of_one_host_alone_ends_nothing() -> None:
    job = Job(4, hang=True)
    job.run(30)
    job.processes[1].is_suspected = True
    job.run(1000)
    assert not job.is_decided()


# --- The members of the star ----------------------------------------------------------------------------


def test_a_second_process_with_an_index_is_refused_and_a_later_block_of_the_same_is_not() -> None:
    decision = Decision(2)
    decision.join(Hello(1, "a", 10, 20), 0.0)
    for other in (Hello(1, "b", 10, 20), Hello(1, "a", 11, 20)):
        with pytest.raises(RefusedError, match="duplicate"):
            decision.join(other, 1.0)
    decision.add(1, Event("left", ProcessEnd("clean")), 2.0)
    decision.join(Hello(1, "a", 10, 21), 3.0)
    decision.report(1, JobState("step", 1, 0.0), 3.0)
    assert decision.is_undecided()


def test_a_process_that_the_job_does_not_have_is_refused() -> None:
    with pytest.raises(RefusedError, match="garbage"):
        Decision(2).join(Hello(2, "a", 10, 20), 0.0)


def test_a_repeated_event_changes_nothing() -> None:
    job = Job(3)
    job.run(30)
    event = Event("left", ProcessEnd("exception", exception="ValueError: x"), 5)
    for _ in range(3):
        job.decision.add(1, event, 30.0)
    job.decision.lose(1)
    job.run(60)
    assert job.decision.first_cause is not None
    assert (job.decision.first_cause.process_indices, job.decision.first_cause.step) == ((1,), 5)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["lost", "joined", "ping", "asked"])), max_size=60))
def test_no_sequence_of_reports_without_an_end_decides_anything(reports: list[tuple[int, str]]) -> None:
    job = Job(3, hang=False)
    for second, (index, report) in enumerate(reports):
        job.run(float(second))
        {"lost": job.lose, "joined": job.join, "ping": job.resume, "asked": job.ask}[report](index)
    job.run(len(reports) + 200.0)
    assert not job.is_decided()
