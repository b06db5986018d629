"""The jobs that save too rarely are those outside of the 80 % range of their best interval."""

from __future__ import annotations

import dataclasses

import pytest
from ml_diagnostics_fleet.answers import SaveSums
from ml_diagnostics_fleet.saving import saving_advice
from ml_diagnostics_fleet.schemas import JobKey

SECOND = 10**9


def job(interval_steps: int, failures: int = 20, **values: object) -> SaveSums:
    """Return a job of 100,000 steps of a second, with saves of 5 s, of 256 chips at 3 a chip-hour."""
    steps, attempts = 100_000, failures + 1
    saves = round(steps / interval_steps - attempts / 2)
    save_ns = saves * 5 * SECOND
    uptime_ns = steps * SECOND + save_ns
    restart_ns = failures * 300 * SECOND
    wall_ns = uptime_ns + restart_ns
    made = SaveSums(
        JobKey("log", f"every-{interval_steps}"), "llm", "zone", "tpu",
        saves=saves, steps_kept=steps - failures * interval_steps // 2, stepping_attempts=attempts, steps_made=steps,
        uptime_ns=uptime_ns, disruptions=failures, failures=failures, restart_ns=restart_ns, job_ns=wall_ns,
        productive_ns=(steps - failures * interval_steps // 2) * SECOND, save_ns=save_ns, startup_ns=0,
        chip_ns=wall_ns * 256, cost=wall_ns * 256 * 3_000_000,
    )  # fmt: skip
    return dataclasses.replace(made, **values)  # type: ignore[arg-type]


def test_a_job_that_saves_too_rarely_is_listed_with_a_range_in_money() -> None:
    (one,) = saving_advice([job(1500)]).rare
    low, high = one.advice.interval_seconds
    assert 0 < low < high < 1500
    assert one.advice.now_seconds == pytest.approx(1500, rel=0.01)
    assert 0 < one.lost_share[0] < one.lost_share[1] < 1
    assert one.lost_cost == tuple(share * one.job.cost for share in one.lost_share)


@pytest.mark.parametrize("interval", [2, 50, 220, 250])
def test_a_job_within_its_range_or_below_it_is_not_listed(interval: int) -> None:
    found = saving_advice([job(interval)])
    assert (found.rare, found.jobs) == ([], {"llm": 1})


def test_without_a_failure_nothing_is_known() -> None:
    found = saving_advice([job(1500, failures=0)])
    assert (found.rare, found.jobs, found.never) == ([], {}, {})


def test_jobs_that_fail_and_never_save_are_counted() -> None:
    found = saving_advice([job(1500, saves=0, save_ns=0)])
    assert (found.rare, found.jobs, found.never) == ([], {}, {"llm": 1})


def test_the_job_that_loses_most_for_sure_is_first() -> None:
    found = saving_advice([job(1000), job(1500), job(800)]).rare
    assert [one.job.key.job for one in found] == ["every-1500", "every-1000", "every-800"]
