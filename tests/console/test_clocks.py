"""Clocks are compared by returns from waits that companions select, each in windows of its own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from cloud_tpu_diagnostics._companion.step_summary import StepSummaries
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_diagnostics_common.entry import COMPANION_LOG_ID, EntryContext, LogEntry
from ml_diagnostics_common.progress import Progress
from ml_diagnostics_console._facts.clocks import compare_clocks
from ml_diagnostics_console._facts.entries import Lives
from ml_diagnostics_console._facts.facts import StepSummary, Times

from .made_facts import after, ref

SECOND_NS = 1_000_000_000
_JOB_SECONDS = 300
_ENTERED = 60.0


def companion_of(
    host: int, step_seconds: float, each: int, starts: float, offset_ns: int, noise_ns: list[int]
) -> tuple[str, Sequence[StepSummary]]:
    """Return what the companion of a host records of a job that waits for its devices in one of `each` steps.

    Args:
        host: Its number.
        step_seconds: The duration of a step, on all hosts.
        each: The loop waits in each of so many steps.
        starts: When the companion starts, in seconds after the job.
        offset_ns: The clock of the host less that of the others.
        noise_ns: How much later the host notices that a wait has ended.
    """
    summaries, step, lives = StepSummaries(starts), int(starts / step_seconds) + 1, Lives()
    context = EntryContext(COMPANION_LOG_ID, "", {}, {"host": f"host-{host}", "pid": "41", "run": "run-1"}, writer="w")
    now = starts
    while now < _JOB_SECONDS:
        now += 1.0
        states: list[Progress] = []
        while step * step_seconds <= now:
            at_ns = round(step * step_seconds * SECOND_NS) + noise_ns[(step + host) % len(noise_ns)]
            states.append(Progress(2 * step, at_ns, "step", step))
            if step % each == each - 1:
                states.append(Progress(2 * step + 1, at_ns + 1_000_000, "sync", step))
            step += 1
        summaries.add(states, 0)
        payload = summaries.take(now, after(0) + offset_ns)
        if payload is not None:
            time_ns = after(now) + offset_ns
            lives.add([LogEntry(time_ns, step, payload, context)])
    (life,) = lives.labelled(["run-1"])
    return life.host, life.summaries


@settings(max_examples=25, deadline=None)
@given(
    milliseconds=st.floats(0.7, 4.47).map(lambda power: 10**power),
    each=st.sampled_from([1, 1, 2, 7, 10, 50]),
    hosts=st.lists(
        st.tuples(st.floats(0, _ENTERED), st.integers(-60 * SECOND_NS, 60 * SECOND_NS)), min_size=2, max_size=4
    ),
    noise=st.lists(st.integers(0, 2_000_000), min_size=7, max_size=7),
)
def test_after_five_minutes_of_steps_clocks_are_known_whenever_the_hosts_began_their_windows(
    milliseconds: float, each: int, hosts: list[tuple[float, int]], noise: list[int]
) -> None:
    marks = [
        companion_of(host, milliseconds / 1000, each, starts, offset_ns, noise)
        for host, (starts, offset_ns) in enumerate(hosts)
    ]
    clocks = compare_clocks(marks)
    if milliseconds * each <= 10_000:
        assert clocks.offsets_ns.keys() == {f"host-{host}" for host in range(len(hosts))}
        assert clocks.uncertainty_ns < 50_000_000
    for host, (_, offset_ns) in enumerate(hosts):
        if {"host-0", f"host-{host}"} <= clocks.offsets_ns.keys():
            error = clocks.offsets_ns[f"host-{host}"] - (offset_ns - hosts[0][1])
            assert abs(error) <= clocks.uncertainty_ns


@pytest.mark.parametrize(("milliseconds", "each"), [(5, 1), (37, 10), (300, 1), (900, 10), (4000, 1), (10_000, 1)])
def test_three_common_returns_are_known_after_a_minute_of_usual_steps(milliseconds: int, each: int) -> None:
    steps = [
        {
            step
            for summary in companion_of(host, milliseconds / 1000, each, starts, 0, [0])[1]
            if summary.return_step is not None and summary.return_step * milliseconds <= 100_000
            for step in (summary.return_step, *(step for step, _ in summary.returns))
        }
        for host, starts in enumerate((30.0, 36.1))
    ]
    assert len(steps[0] & steps[1]) >= 3


def marks_of(host: str, steps: range, offset: float) -> tuple[str, Sequence[StepSummary]]:
    times = Times(10, 1, 1, 1)
    return host, [
        StepSummary(after(step), step, step, 10, times, None, None, None, step, after(step + offset), ref())
        for step in steps
    ]


def test_a_host_is_corrected_through_another_one_that_shares_steps_with_both() -> None:
    marks = [
        marks_of("host-0", range(10), 0),
        marks_of("host-1", range(20, 30), -30),
        marks_of("host-2", range(5, 25), 12),
    ]
    clocks = compare_clocks(marks)
    assert clocks.offsets_ns == {"host-0": 0, "host-1": -30 * SECOND_NS, "host-2": 12 * SECOND_NS}
    assert clocks.corrected("host-1", after(-30)) == after(0)


def test_a_first_host_that_shares_no_steps_leaves_the_others_corrected() -> None:
    marks = [
        marks_of("host-0", range(100, 110), 0),
        marks_of("host-1", range(20), 3),
        marks_of("host-2", range(20), 8),
    ]
    clocks = compare_clocks(marks)
    assert clocks.offsets_ns.keys() == {"host-1", "host-2"}
    assert clocks.offsets_ns["host-2"] - clocks.offsets_ns["host-1"] == 5 * SECOND_NS


def test_a_clock_that_was_set_is_corrected_by_its_newest_returns() -> None:
    marks = [
        marks_of("host-0", range(400), 0),
        marks_of("host-1", range(300), 0),
        marks_of("host-1", range(300, 400), 7),
    ]
    assert compare_clocks(marks).offsets_ns["host-1"] == 7 * SECOND_NS
