"""Calls are retried after temporary failures, no longer than allowed, and never sooner than the server asks."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_diagnostics_common.backoff import Backoff, RequestBudget, Retries
from ml_diagnostics_common.exceptions import StorageError
from ml_diagnostics_common.failures import Kind, RemoteError, response_error


class Clock:
    """Time that passes only while a caller sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def seconds_left(self, deadline: float) -> Callable[[], float]:
        return lambda: deadline - self.now


class Call:
    """A call that fails with prepared errors, and then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


BUSY = RemoteError("RESOURCE_EXHAUSTED", "slow down")


def test_waits_leave_the_random_numbers_of_the_job_as_they_are() -> None:
    random.seed(7)
    expected = random.Random(7).random()
    assert Backoff().failed(retry_after_seconds=3.0) > 0
    assert random.random() == expected


@given(failures=st.integers(0, 1100), first=st.floats(0.01, 10), longest=st.floats(10, 600))
def test_waits_grow_to_the_longest_and_are_never_shorter_than_half(failures: int, first: float, longest: float) -> None:
    backoff = Backoff(first, longest)
    backoff.failures = failures
    ceiling = min(longest, first * 2.0 ** min(failures, 30))
    assert ceiling / 2 <= backoff.failed() <= ceiling


@given(asked=st.floats(0, 10_000))
def test_a_wait_is_never_shorter_than_the_server_asks_up_to_ten_minutes(asked: float) -> None:
    assert Backoff(1.0, 60.0).failed(asked) >= min(asked, 600.0)


def test_temporary_failures_are_retried() -> None:
    clock, call = Clock(), Call(BUSY, RemoteError("UNAVAILABLE", "no"), TimeoutError())
    assert Retries(Backoff(), sleep=clock.sleep)(call) == "done"
    assert (call.count, len(clock.slept)) == (4, 3)


@pytest.mark.parametrize("error", [RemoteError("PERMISSION_DENIED", "no"), StorageError("no"), KeyError("bug")])
def test_any_other_failure_is_raised_at_once(error: Exception) -> None:
    clock, call = Clock(), Call(error)
    with pytest.raises(type(error)) as raised:
        Retries(Backoff(), sleep=clock.sleep)(call)
    assert raised.value is error
    assert (call.count, clock.slept) == (1, [])


def test_an_exhausted_quota_is_not_retried() -> None:
    call = Call(response_error(403, b'{"error": {"message": "no", "errors": [{"reason": "quotaExceeded"}]}}'))
    with pytest.raises(RemoteError):
        Retries(Backoff(), sleep=Clock().sleep)(call)
    assert call.count == 1


def test_no_wait_ends_after_the_deadline() -> None:
    clock, call = Clock(), Call(*[BUSY] * 100)
    retries = Retries(Backoff(1.0, 8.0), seconds_left=clock.seconds_left(30.0), sleep=clock.sleep)
    with pytest.raises(RemoteError):
        retries(call)
    assert 20 < clock.now < 30
    assert retries.failures == call.count


def test_a_delay_beyond_the_deadline_is_not_waited_for() -> None:
    clock, call = Clock(), Call(RemoteError("UNAVAILABLE", "no", retry_after_seconds=60.0))
    with pytest.raises(RemoteError):
        Retries(Backoff(), seconds_left=clock.seconds_left(30.0), sleep=clock.sleep)(call)
    assert clock.slept == []


@pytest.mark.parametrize("most_tries", [1, 3])
def test_tries_are_limited(most_tries: int) -> None:
    call = Call(*[BUSY] * 100)
    with pytest.raises(RemoteError):
        Retries(Backoff(), most_tries=most_tries, sleep=Clock().sleep)(call)
    assert call.count == most_tries


def test_an_event_interrupts_the_retries() -> None:
    stop, call = threading.Event(), Call(*[BUSY] * 100)
    stop.set()
    with pytest.raises(RemoteError):
        Retries(Backoff(3600.0, 3600.0), seconds_left=lambda: math.inf, sleep=stop.wait)(call)
    assert call.count == 1


def test_a_caller_may_retry_after_other_failures() -> None:
    call = Call(RemoteError("ABORTED", "changed"), RemoteError("ABORTED", "changed"))
    retries = Retries(Backoff(), retry_if=lambda failure: failure.kind is Kind.CONFLICT, sleep=Clock().sleep)
    assert retries(call) == "done"


def test_a_budget_allows_so_many_requests_in_any_minute() -> None:
    clock = Clock()
    budget = RequestBudget(3, clock=lambda: clock.now, sleep=clock.sleep)
    assert [budget.spend() for _ in range(3)] == [0, 0, 0]
    assert budget.spend() == 60
    assert clock.now == 60
