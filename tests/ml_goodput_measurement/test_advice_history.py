"""Advice starts from what happened: uptimes, restarts, failures, and the costs of saves."""

from __future__ import annotations

import pytest
from ml_goodput_measurement.advice import JobHistory

from .histories import BASE, History
from .simulated import JOB, history_of_payloads, history_of_run


def history_at(history: History, now: float) -> JobHistory | None:
    return history_of_payloads(history.payloads, BASE + now, history.job)


def killed_and_resumed(ended: float | None = None) -> History:
    """Killed in step 9, one step after the save of step 6; back from step 6, and going on."""
    history = History().start(0).init(1, 4).prepare(4, 10)
    history.steps(range(3), at=12).save(3, 42, 43).steps(range(3, 6), at=43).save(6, 73, 74).steps(range(6, 9), at=74)
    if ended is not None:
        history.end(ended)
    return history.start(130).init(131, 134).prepare(134, 140).steps(range(6, 10), at=142)


def test_a_failure_has_its_uptime_and_its_restart() -> None:
    found = history_at(killed_and_resumed(), 182)
    assert found is not None
    first, last = found.lives
    assert (first.uptime_seconds, first.restart_seconds, first.failed) == (82.0, 48.0, True)  # 12 to 94, then to 142
    assert (last.uptime_seconds, last.restart_seconds, last.failed) == (40.0, None, False)
    assert (found.failures, found.uptime_seconds) == (1, 122.0)
    assert (found.saves, found.save_seconds, found.interval_steps) == (2, 1.0, 3)
    assert found.start_seconds == 12.0
    assert found.steps == 9
    assert found.period_seconds == pytest.approx(10.0, rel=0.01)


def test_an_end_that_the_job_recorded_is_not_a_failure() -> None:
    found = history_at(killed_and_resumed(ended=104), 182)
    assert found is not None
    assert found.failures == 0
    assert not found.lives[0].failed


def test_a_save_right_before_the_end_keeps_all() -> None:
    history = History().start(0)
    for first in (0, 3, 6):
        at = 10 + 31 * first // 3
        history.steps(range(first, first + 3), at=at).save(first + 3, at + 30, at + 31)
    history.steps(range(9, 11), at=103).save(10, 123, 124).start(130).steps(range(11, 13), at=142)
    found = history_at(history, 162)
    assert found is not None
    assert [life.kept_all for life in found.lives] == [True, False]


def test_a_job_that_is_starting_again_has_a_life_without_uptime() -> None:
    history = History().start(0).steps(range(5), at=10).start(100).init(101, 104)
    found = history_at(history, 120)
    assert found is not None
    assert [(life.uptime_seconds, life.restart_seconds) for life in found.lives] == [(40.0, 70.0), (0.0, None)]


def test_starts_of_saves_show_the_interval_but_not_their_cost() -> None:
    history = History().start(0)
    for step in range(9):
        history.step(step, 10 + 10 * step)
        if step % 4 == 0:
            history.add(checkpoint_progress_step=step, checkpoint_progress_started=BASE + 11 + 10 * step)
    found = history_at(history, 100)
    assert found is not None
    assert (found.save_seconds, found.interval_steps, found.saves) == (None, 4, 0)


def test_the_storage_with_most_saves_counts_and_its_hosts_once() -> None:
    history = History().start(0).steps(range(10), at=10)
    for step in (2, 4, 6, 8):
        for host in range(3):
            history.save(step, 10 + 10 * step + host, 11 + 10 * step + host, directory="/disk")
    history.save(8, 90, 99)
    found = history_at(history, 110)
    assert found is not None
    assert (found.saves, found.save_seconds, found.interval_steps) == (4, 1.0, 2)


@pytest.mark.parametrize("history", [History(), History().start(0), History().start(0).init(1, 5)])
def test_a_job_without_steps_has_no_history(history: History) -> None:
    assert history_at(history, 100) is None


def test_the_history_of_a_simulated_job_is_its_truth() -> None:
    run = JOB.run(noise_seed=1, is_recorded=True)
    found = history_of_run(run)
    assert found.failures == run.failures
    assert found.goodput_percent == pytest.approx(run.goodput, abs=0.02)
    assert found.steps == JOB.steps
    assert found.step_seconds == pytest.approx(run.productive / JOB.steps, rel=1e-3)
    assert found.save_seconds == pytest.approx(JOB.save_seconds, rel=1e-3)
    assert found.interval_steps == JOB.interval_steps
    assert found.start_seconds == pytest.approx(JOB.restart_seconds, rel=1e-3)
    lasted = sum(life.uptime_seconds + (life.restart_seconds or 0) for life in found.lives)
    assert found.start_seconds + lasted == pytest.approx(found.wall_seconds, abs=1e-3)
