"""The summary of a job's steps: what a host needed by itself, and for what it waited."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cloud_tpu_diagnostics._companion.step_summary import StepSummaries
from cloud_tpu_diagnostics.entries import STEP_SUMMARY
from ml_diagnostics_common.progress import Progress

from .accompanied_jobs import Job, ending, of_kind

MS = 1_000_000
_OFFSET_NS = 1_700_000_000_000_000_000


class Host:
    """The marks of a training loop, as its page has them."""

    def __init__(self) -> None:
        self.states: list[Progress] = []
        self.now_ns = 0

    def mark(self, phase: str, step: int | None = None, *, lasts_ms: float = 0) -> None:
        self.states.append(Progress(len(self.states) + 1, self.now_ns, phase, step))
        self.now_ns += round(lasts_ms * MS)

    def summary(self, lost: int = 0) -> dict[str, Any] | None:
        summaries = StepSummaries(0.0)
        summaries.add(self.states, lost)
        assert summaries.take(9.9, _OFFSET_NS) is None
        return summaries.take(10.0, _OFFSET_NS)


def test_the_slow_host_has_a_long_time_of_its_own_and_the_others_wait() -> None:
    slow, fast = Host(), Host()
    for step in range(21):
        slow.mark("step", step, lasts_ms=57)
        slow.mark("sync", step, lasts_ms=2)
        fast.mark("step", step, lasts_ms=6)
        fast.mark("sync", step, lasts_ms=53)
    found = [host.summary() for host in (slow, fast)]
    assert found[0] is not None
    assert found[1] is not None
    assert [each["wall_seconds"]["p50"] for each in found] == [0.059, 0.059]
    assert [each["own_seconds"]["p50"] for each in found] == [0.057, 0.006]
    assert [each["wait_seconds"]["p50"] for each in found] == [0.002, 0.053]
    assert (found[0]["first_step"], found[0]["last_step"], found[0]["count"]) == (0, 19, 20)
    # All hosts return from the wait of a step at once: a clock that they share.
    assert (found[0]["return_step"], found[0]["return_ns"]) == (0, _OFFSET_NS + 59 * MS)
    assert found[0]["returns"] == [[16, _OFFSET_NS + 17 * 59 * MS], [8, _OFFSET_NS + 9 * 59 * MS]]
    assert (found[0]["return_ns"], found[0]["returns"]) == (found[1]["return_ns"], found[1]["returns"])


def test_data_that_is_loaded_after_the_wait_is_time_of_the_host() -> None:
    host = Host()
    for step in range(6):
        host.mark("step", step, lasts_ms=5)
        host.mark("sync", step, lasts_ms=20)
        host.mark("data", step, lasts_ms=65)
        host.mark("step", step, lasts_ms=1)  # The load is done.
    found = host.summary()
    assert found is not None
    assert found["data_seconds"]["p50"] == 0.065
    assert found["wait_seconds"]["p50"] == 0.02
    assert found["own_seconds"]["p50"] == 0.071
    assert (found["return_step"], found["return_ns"]) == (0, _OFFSET_NS + 25 * MS)


def test_saves_and_evaluations_count_as_pauses_and_not_as_steps() -> None:
    host = Host()
    for step in range(9):
        host.mark("step", step, lasts_ms=10)
        if step % 4 == 3:
            host.mark("checkpoint", step, lasts_ms=100 * step)
            host.mark("checkpoint", step, lasts_ms=50)  # The same save.
    host.mark("eval", 8, lasts_ms=70)
    host.mark("step", 9)
    found = host.summary()
    assert found is not None
    assert found["count"] == 6
    assert found["wall_seconds"]["max"] == 0.01
    assert found["pauses"] == {
        "checkpoint": {"count": 2, "sum": 1.1, "max": 0.75},
        "eval": {"count": 1, "sum": 0.07, "max": 0.07},
    }


def test_a_loop_that_waits_every_ten_steps_is_summed_over_them() -> None:
    host = Host()
    for step in range(31):
        host.mark("step", step, lasts_ms=6)
        if step % 10 == 9:
            host.mark("sync", step, lasts_ms=410)
    found = host.summary()
    assert found is not None
    assert found["own_seconds"]["sum"] == 30 * 0.006
    assert found["wait_seconds"]["sum"] == 3 * 0.41
    assert [found["return_step"], *(step for step, _ in found["returns"])] == [9, 29, 19]


def test_a_step_with_two_waits_has_one_return_and_it_is_kept_until_a_step_is_complete() -> None:
    summaries, host = StepSummaries(0.0), Host()
    host.mark("step", 4, lasts_ms=5)
    for _ in range(2):
        host.mark("sync", 4, lasts_ms=10)
        host.mark("data", 4, lasts_ms=20_000)
    summaries.add(host.states, 0)
    assert summaries.take(10.0, 0) is None
    host.states.clear()
    host.mark("step", 5)
    summaries.add(host.states, 0)
    found = summaries.take(20.0, 0)
    assert found is not None
    assert (found["return_step"], found["return_ns"]) == (4, 15 * MS)
    assert "returns" not in found


def test_a_wait_that_an_exception_ends_is_no_clock() -> None:
    host = Host()
    for step in range(3):
        host.mark("step", step, lasts_ms=6)
        host.mark("sync", step, lasts_ms=53)
    host.mark("ended", 2)
    found = host.summary()
    assert found is not None
    assert (found["last_step"], found["return_step"], found["returns"][0][0]) == (1, 0, 1)
    assert len(found["returns"]) == 1


def test_without_a_mark_of_the_wait_only_whole_steps_are_known() -> None:
    host = Host()
    for step in range(5):
        host.mark("step", step, lasts_ms=10 if step != 2 else 40)
    found = host.summary()
    assert found is not None
    assert found["wall_seconds"] == {"sum": 0.07, "p50": 0.01, "p95": 0.04, "max": 0.04}
    assert {"own_seconds", "wait_seconds", "data_seconds", "return_ns", "lost_marks"}.isdisjoint(found)


def test_a_save_or_a_compilation_is_not_the_time_of_a_step() -> None:
    host = Host()
    for step in range(6):
        host.mark("step", step, lasts_ms=10)
        if step == 3:
            host.mark("checkpoint", step, lasts_ms=9000)
    found = host.summary()
    assert found is not None
    assert (found["count"], found["wall_seconds"]["max"]) == (4, 0.01)


def test_steps_that_were_overwritten_are_counted_and_not_taken_for_a_long_one() -> None:
    summaries, host = StepSummaries(0.0), Host()
    for step in range(100):
        host.mark("step", step, lasts_ms=1)
    summaries.add(host.states[:10], 0)
    summaries.add(host.states[90:], 80)
    found = summaries.take(10.0, 0)
    assert found is not None
    assert (found["count"], found["lost_marks"], found["wall_seconds"]["max"]) == (18, 80, 0.001)
    assert summaries.take(20.0, 0) is None, "nothing is repeated"


def test_the_steps_of_a_job_are_recorded_to_its_last_second(tmp_path: Path) -> None:
    program = """
from ml_diagnostics_common.progress import ProgressPage
page = ProgressPage.create()
companion = start(progress_path=str(page.path))
for step in range(1000):  # The page holds them all, until the companion has started.
    page.publish("step", step)
    page.publish("sync", step)
    if step == 500:
        time.sleep(1.5)  # The companion reads each second.
os.kill(os.getpid(), signal.SIGKILL)
"""
    Job(program, tmp_path / "trace").end()
    ending()
    found = of_kind(STEP_SUMMARY)
    assert sum(each["count"] + each.get("lost_marks", 0) for each in found) >= 999
    assert (found[0]["first_step"], found[-1]["last_step"]) == (0, 998)
    assert max(each["wait_seconds"]["max"] for each in found) >= 1.4
